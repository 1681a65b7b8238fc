//! Sessions, roles, modes, and forms of other sites.

use kafleet::config::{ApiConfig, Role, UiConfig, UiMode};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::fixture::{fleet, unfolded};
use crate::ui::browser::{Browser, guarded_fleet, token, with_tokens};
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};

/// Forms with the role that they need.
const FORMS: &[(&str, Role)] = &[
    ("/tasks/order/cancel", Role::Operate),
    ("/tasks/order/retry", Role::Operate),
    ("/tasks/order/retry-failed", Role::Operate),
    ("/tasks/order/forget-key", Role::Operate),
    ("/tasks/order/start-now", Role::Submit),
    ("/new/many", Role::Submit),
    ("/tasks/order/edit", Role::Submit),
    ("/tasks/order/append", Role::Submit),
    ("/tasks/order/attach", Role::Submit),
    ("/new", Role::Submit),
    ("/types/echo/pause", Role::Operate),
    ("/types/echo/resume", Role::Operate),
    ("/types/echo/limits", Role::Operate),
    ("/types/echo/circuit", Role::Operate),
    ("/kill-switches/new", Role::Operate),
    ("/kill-switches/x/off", Role::Operate),
    ("/new-view", Role::Operate),
    ("/v/x/edit", Role::Operate),
    ("/v/x/delete", Role::Operate),
    ("/new-schedule", Role::Operate),
    ("/schedules/x/edit", Role::Operate),
    ("/schedules/x/pause", Role::Operate),
    ("/schedules/x/resume", Role::Operate),
    ("/schedules/x/trigger", Role::Operate),
    ("/schedules/x/backfill", Role::Operate),
    ("/schedules/x/delete", Role::Operate),
    ("/bulk/new", Role::Operate),
    ("/dead-letters/drop", Role::Operate),
    ("/dead-letters/echo:0:0/redrive", Role::Operate),
    ("/dead-letters/echo:0:0/edit", Role::Operate),
    ("/dead-letters/echo:0:0/drop", Role::Operate),
];

#[tokio::test]
async fn forms_require_their_role() {
    let fleet = guarded_fleet().await;
    for role in [Role::Read, Role::Submit] {
        let browser = Browser::of_role(&fleet, role);
        for (path, needed) in FORMS {
            for page in [browser.get(path).await, browser.post(path, "reason=x").await] {
                assert_eq!(page.status == StatusCode::FORBIDDEN, role < *needed, "{path} as {role:?}: {}", page.text);
            }
        }
        browser.open("/types/echo").await.lacks(&["Pause…", "Set the limits"]);
        browser.open("/kill-switches").await.lacks(&["New kill switch…"]);
    }
    Browser::of_role(&fleet, Role::Read).open("/").await.lacks(&["New task"]);
    Browser::of_role(&fleet, Role::Operate).open("/types/echo").await.has(&["Pause…", "Set the limits", "New task"]);
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let host = fleet.base.trim_start_matches("http://").to_owned();
    for (path, _) in FORMS {
        for site in ["cross-site", "same-site", "none"] {
            let page = browser.send(Method::POST, path, &[("sec-fetch-site", site)], Some("reason=x")).await;
            assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}: {}", page.text);
            page.has(&["forbidden_origin"]);
        }
        let page = browser.send(Method::POST, path, &[("origin", "http://evil.example")], Some("x=1")).await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}");
    }
    let origin = format!("http://{host}");
    let page = browser.send(Method::POST, "/types/echo/pause", &[("origin", &origin)], Some("reason=x")).await;
    assert_eq!(page.status, StatusCode::SEE_OTHER, "a browser without the header `sec-fetch-site`");
    for path in ["/login", "/logout", "/theme"] {
        let page = browser.send(Method::POST, path, &[("sec-fetch-site", "cross-site")], Some("theme=dark")).await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn pages_lead_to_the_login_and_back() {
    let fleet = guarded_fleet().await;
    let mut browser = Browser::new(&fleet);
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    for path in PLAIN.iter().map(|path| (*path).to_owned()).chain(of_task) {
        let page = browser.get(&path).await;
        assert_eq!(page.status, StatusCode::SEE_OTHER, "{path}");
        assert!(page.header("location").starts_with("/login?next="), "{path}");
    }
    let wrong = browser.post("/login", "token=0123456789abcdef&next=%2Ftypes").await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    wrong.has(&["there is no such token", "value=\"/types\""]);
    let done = browser.post("/login", &format!("token={}&next=%2Ftypes", token(Role::Submit))).await;
    assert_eq!(done.header("location"), "/login?check=1&next=%2Ftypes");
    let cookie = done.header("set-cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && !cookie.contains("token-of"), "{cookie}");
    browser.get("/login?check=1&next=%2Ftypes").await.has(&["did not send the session"]);
    browser.headers.push(("cookie", cookie.split(';').next().unwrap().to_owned()));
    assert_eq!(browser.get("/login?check=1&next=%2Ftypes").await.header("location"), "/types");
    browser.open("/types").await.has(&["(submit)", "Log out"]);
    let refused = fleet.request(Method::GET, "/v1/types").header("cookie", &browser.headers[1].1).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "the API takes no cookies");
    assert!(browser.post("/logout", "").await.header("set-cookie").contains("Max-Age=0"));
}

#[tokio::test]
async fn login_continues_on_this_host_only() {
    let fleet = guarded_fleet().await;
    let browser = Browser::of_role(&fleet, Role::Read);
    for next in ["https://evil.example", "//evil.example", "/\\evil.example", "evil", ""] {
        let query: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
        let page = browser.get(&format!("/login?next={query}")).await;
        assert_eq!(page.header("location"), "/", "{next}");
    }
}

#[tokio::test]
async fn other_hosts_are_refused_without_tokens() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    for path in ["/", "/tasks", "/login", "/help"] {
        let page = browser.send(Method::GET, path, &[("host", "evil.example")], None).await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}");
    }
    let listed = browser.send(Method::GET, "/", &[("host", "evil.example"), ("accept", "*/*")], None).await;
    assert_eq!(listed.status, StatusCode::FORBIDDEN);
    browser.open("/").await.has(&["open to all"]);
}

#[tokio::test]
async fn read_only_ui_has_no_actions() {
    let fleet = unfolded(with_tokens(UiConfig { mode: UiMode::ReadOnly, ..UiConfig::default() })).await;
    fleet.track();
    let browser = Browser::of_role(&fleet, Role::Operate);
    for (path, _) in FORMS {
        let page = browser.post(path, "reason=x").await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}");
        page.has(&["read_only"]);
    }
    browser.open("/types/echo").await.lacks(&["Pause…", "New task"]);
    assert_eq!(browser.post("/theme", "theme=dark&next=%2Ftypes").await.header("location"), "/types");
}

#[tokio::test]
async fn ui_moves_to_its_base_path_or_off() {
    let at = |mode, base: &str| with_tokens(UiConfig { mode, base_path: base.into(), ..UiConfig::default() });
    let fleet = unfolded(at(UiMode::Full, "/fleet")).await;
    fleet.track();
    let browser = Browser::of_role(&fleet, Role::Operate);
    browser.open("/fleet").await.has(&["href=\"/fleet/tasks\"", "href=\"/fleet/ui/app."]).lacks(&["href=\"/tasks"]);
    browser.open("/fleet/types/echo").await.has(&["/fleet/types/echo/pause"]);
    browser.open("/").await.has(&["GET /v1/tasks/{id}"]);
    assert_eq!(browser.get("/types").await.status, StatusCode::NOT_FOUND);
    let fleet = unfolded(at(UiMode::Off, "")).await;
    let browser = Browser::of_role(&fleet, Role::Operate);
    assert_eq!(browser.get("/types").await.status, StatusCode::NOT_FOUND);
    browser.open("/").await.has(&["GET /v1/tasks/{id}"]);
}

#[tokio::test]
async fn task_links_to_its_trace_with_the_template() {
    let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let template = "https://traces.example/t/{trace_id}?from=kafleet";
    for (trace_url, expected) in [
        (Some(template), "href=\"https://traces.example/t/0af7651916cd43dd8448eb211c80319c?from=kafleet\""),
        (None, "<code>0af7651916cd43dd8448eb211c80319c</code>"),
    ] {
        let ui = UiConfig { trace_url: trace_url.map(str::to_owned), ..UiConfig::default() };
        let fleet = unfolded(ApiConfig { ui, ..ApiConfig::default() }).await;
        fleet.track();
        for (id, flags) in [("a", "01"), ("b", "00")] {
            let trace = format!("{}{flags}", &given[..53]);
            let request = fleet.request(Method::POST, "/v1/tasks").header("traceparent", trace);
            let created = request.json(&json!({"type": "echo", "id": id})).send().await.unwrap();
            assert_eq!(created.status(), StatusCode::CREATED);
            let created: Value = created.json().await.unwrap();
            let after = created["position"].as_str().unwrap();
            let _: Value = fleet.get(&format!("/v1/tasks/{id}?after={after}")).await;
        }
        let browser = Browser::new(&fleet);
        browser.open("/tasks/a").await.has(&[expected]);
        browser.open("/tasks/b").await.lacks(&["0af7651916cd43dd8448eb211c80319c"]);
    }
}

#[tokio::test]
async fn forms_without_a_session_use_no_memory_of_other_requests() {
    let fleet = guarded_fleet().await;
    let host = fleet.base.trim_start_matches("http://").to_owned();
    let mut clients = Vec::new();
    for n in 0..32 {
        let path = ["/login", "/logout", "/theme"][n % 3];
        let mut client = TcpStream::connect(&host).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nsec-fetch-site: same-origin\r\ncontent-length: 8388608\r\n\
             expect: 100-continue\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100", "the server waits for the body");
        clients.push(client);
    }
    let create = fleet.request(Method::POST, "/v1/tasks").bearer_auth(token(Role::Operate));
    let made = create.json(&json!({"type": "echo"})).send().await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    let page = Browser::new(&fleet).post("/login", &format!("token={}", "x".repeat(20_000))).await;
    assert_eq!(page.status, StatusCode::PAYLOAD_TOO_LARGE);
    page.has(&["larger than 16384 bytes"]).lacks(&["max_body"]);
}
