//! Invalid input is answered with a problem document that explains the error, never with status 500.

use kafleet::config::ApiConfig;
use kafleet_testkit::faults::Call;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{Fleet, fleet, unfolded};

/// Bodies that readers understand differently, with the codes and the pointers.
#[tokio::test]
async fn ambiguous_bodies_are_rejected_with_a_pointer() {
    let fleet = fleet().await;
    for (body, code, pointer) in [
        (r#"{"type":"echo","params":{"a":[1,{"b":1,"b":2}]}}"#, "ambiguous_json", Some("/params/a/1/b")),
        (r#"{"type":"echo","type":"echo"}"#, "ambiguous_json", Some("/type")),
        (r#"{"type":"echo","options":{"n":"\udc00"}}"#, "ambiguous_json", Some("/options/n")),
        (r#"{"type":"echo","then":[{"type":"echo","params":1e9999999999}]}"#, "ambiguous_json", Some("/then/0/params")),
        ("\u{feff}{\"type\":\"echo\"}", "bad_json", None),
    ] {
        let request = fleet.request(Method::POST, "/v1/tasks").header("content-type", "application/json").body(body);
        let answer = problem(request).await;
        assert_eq!((answer.code.as_str(), answer.pointer.as_deref()), (code, pointer), "{body}: {}", answer.detail);
    }
    let nested = format!(r#"{{"type":"echo","params":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let request = fleet.request(Method::POST, "/v1/tasks").header("content-type", "application/json").body(nested);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::CREATED, "200 nested arrays");
}

/// The last pair was one task before: both numbers were the same float.
#[tokio::test]
async fn repeated_creation_compares_exact_values() {
    let fleet = fleet().await;
    for (n, (first, second, status)) in [
        ("1.0", "1", 200),
        ("1e2", "100", 200),
        (r#"{"a":1,"b":2}"#, r#"{ "b": 2.0, "a": 1e0 }"#, 200),
        ("9007199254740993", "9007199254740992", 409),
        ("618970019642690137449562111", "618970019642690137449562112", 409),
    ]
    .into_iter()
    .enumerate()
    {
        let create = async |params: &str| {
            let body = format!(r#"{{"type":"echo","id":"t{n}","params":{params}}}"#);
            let request = fleet.request(Method::POST, "/v1/tasks").header("content-type", "application/json");
            let response = request.body(body).send().await.unwrap();
            (response.status().as_u16(), response.json::<Value>().await.unwrap())
        };
        let (_, made) = create(first).await;
        let position = made["position"].as_str().unwrap().to_owned();
        fleet.get::<Value>(&format!("/v1/tasks/t{n}?after={position}")).await;
        assert_eq!(create(second).await.0, status, "{first} and {second}");
    }
}

#[tokio::test]
async fn invalid_tasks_are_rejected_with_their_reasons() {
    let fleet = fleet().await;
    fleet.echo("taken").await;
    let long = "x".repeat(600);
    let table: Vec<(Value, u16, &str, &str)> = vec![
        (json!([]), 400, "bad_field", ""),
        (json!(["echo", 7]), 400, "bad_field", ""),
        (json!({}), 400, "bad_field", ""),
        (json!({"type": "echo", "prio": 1}), 400, "unknown_field", "/prio"),
        (json!({"type": 5}), 400, "bad_field", "/type"),
        (json!({"type": "No Type"}), 400, "bad_field", "/type"),
        (json!({"type": "ehco"}), 404, "unknown_type", ""),
        (json!({"type": "echo", "then": [{"type": "ehco"}]}), 404, "unknown_type", "/then/0/type"),
        (
            json!({"type": "echo", "then": [{"type": "echo", "then": [{"type": "ehco"}]}]}),
            404,
            "unknown_type",
            "/then/0/then/0/type",
        ),
        (json!({"type": "echo", "id": ""}), 400, "bad_id", "/id"),
        (json!({"type": "echo", "id": "urn:uuid:1"}), 400, "bad_id", "/id"),
        (json!({"type": "echo", "id": "a b"}), 400, "bad_id", "/id"),
        (json!({"type": "echo", "id": "c", "parent": "a/b"}), 400, "bad_id", "/parent"),
        (json!({"type": "echo", "id": "x:c", "parent": "taken"}), 400, "bad_id", "/id"),
        (json!({"type": "echo", "parent": "nobody"}), 404, "unknown_parent", "/parent"),
        (json!({"type": "echo", "id": "taken", "params": {"other": 1}}), 409, "duplicate_id", ""),
        (json!({"type": "resize", "id": "taken", "params": {"url": "u", "width": 1}}), 409, "duplicate_id", ""),
        (json!({"type": "resize", "params": {"url": "u", "width": "wide"}}), 422, "schema", "/params/width"),
        (json!({"type": "resize", "params": {"url": "u"}}), 422, "schema", "/params"),
        (json!({"type": "resize"}), 422, "schema", "/params"),
        (json!({"type": "echo", "params": "y".repeat((1 << 20) - 1)}), 413, "too_large", "/params"),
        (json!({"type": "echo", "delay": "soon"}), 400, "bad_field", "/delay"),
        (json!({"type": "echo", "delay": "41d"}), 400, "bad_field", "/delay"),
        (json!({"type": "echo", "at": "tomorrow"}), 400, "bad_field", "/at"),
        (json!({"type": "echo", "at": "2000-01-01T00:00:00Z", "delay": "1s"}), 400, "bad_field", "/at"),
        (json!({"type": "echo", "delay": "1h", "expires": "1m"}), 400, "bad_field", "/expires"),
        (json!({"type": "echo", "retries": -1}), 400, "bad_field", "/retries"),
        (json!({"type": "echo", "retries": 1001}), 400, "bad_field", "/retries"),
        (json!({"type": "echo", "min_backoff": "2s", "max_backoff": "1s"}), 400, "bad_field", "/min_backoff"),
        (json!({"type": "echo", "total_timeout": 0}), 400, "bad_field", "/total_timeout"),
        (json!({"type": "echo", "timeout": 0}), 400, "bad_field", "/timeout"),
        (json!({"type": "echo", "tags": ["a,b"]}), 400, "bad_field", "/tags"),
        (json!({"type": "echo", "tags": vec!["t"; 33]}), 400, "bad_field", "/tags"),
        (json!({"type": "echo", "name": long}), 400, "bad_field", "/name"),
        (json!({"type": "echo", "key": long}), 400, "bad_field", "/key"),
        (json!({"type": "echo", "options": [1]}), 400, "bad_field", "/options"),
        (json!({"type": "echo", "options": {"o": "z".repeat(17_000)}}), 413, "too_large", "/options"),
        (json!({"type": "echo", "on_failure": "shrug"}), 400, "bad_field", "/on_failure"),
        (json!({"type": "echo", "block_when_done": true}), 400, "bad_field", "/block_when_done"),
        (json!({"type": "anything", "external": true, "params": 1}), 400, "bad_field", "/params"),
        (json!({"type": "echo", "reply_to": "not-allowed"}), 400, "bad_field", "/reply_to"),
        (json!({"type": "anything", "external": true, "delay": 1}), 400, "bad_field", "/delay"),
    ];
    for (body, status, code, pointer) in table {
        let answer = problem(fleet.request(Method::POST, "/v1/tasks").json(&body)).await;
        let body: String = body.to_string().chars().take(120).collect();
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{body}: {answer:?}");
        assert_eq!(answer.pointer.unwrap_or_default(), pointer, "{body}: {}", answer.detail);
    }
}

/// Requests with method, path, media type and body that are rejected with a status and a code.
const INVALID_WRITES: &[(Method, &str, &str, &str, u16, &str)] = &[
    (Method::POST, "/v1/tasks", JSON, "", 400, "bad_json"),
    (Method::POST, "/v1/tasks", JSON, "{\"type\":", 400, "bad_json"),
    (Method::POST, "/v1/tasks", JSON, "{\"type\":\"echo\"} {}", 400, "bad_json"),
    (Method::POST, "/v1/tasks", "text/plain", ECHO, 415, "unsupported_media_type"),
    (Method::POST, "/v1/tasks", "application/x-www-form-urlencoded", ECHO, 415, "unsupported_media_type"),
    (Method::POST, "/v1/tasks", "application/x-ndjson", ECHO, 415, "unsupported_media_type"),
    (Method::POST, "/v1/tasks", "", ECHO, 415, "unsupported_media_type"),
    (Method::POST, "/v1/tasks?wait=6m", JSON, ECHO, 400, "bad_parameter"),
    (Method::POST, "/v1/tasks?wait=soon", JSON, ECHO, 400, "bad_parameter"),
    (Method::POST, "/v1/tasks?wait=1s&wait=2s", JSON, ECHO, 400, "bad_parameter"),
    (Method::POST, "/v1/tasks?dry_run=true", JSON, ECHO, 400, "unknown_parameter"),
    (Method::POST, "/v1/batches?whole=true", JSON, "[]", 400, "unknown_parameter"),
    (Method::POST, "/v1/batches?atomic=perhaps", JSON, "[]", 400, "bad_parameter"),
    (Method::POST, "/v1/batches", JSON, "[", 400, "bad_json"),
    (Method::POST, "/v1/batches", JSON, "{}", 400, "bad_field"),
    (Method::DELETE, "/v1/tasks/a", "", "", 405, "method_not_allowed"),
    (Method::PUT, "/v1/tasks", JSON, ECHO, 405, "method_not_allowed"),
    (Method::PUT, "/v1/tasks/a/state", JSON, "{\"state\":\"running\"}", 409, "not_external"),
    (Method::PUT, "/v1/tasks/a/state", JSON, "{\"state\":\"sleeping\"}", 400, "bad_field"),
    (Method::PUT, "/v1/tasks/a/state", JSON, "{\"state\":\"cancelled\"}", 422, "bad_state"),
    (Method::PUT, "/v1/tasks/a/state", JSON, "{\"state\":\"running\",\"x\":1}", 400, "unknown_field"),
    (Method::PUT, "/v1/tasks/nobody/state", JSON, "{\"state\":\"running\"}", 404, "not_found"),
    (Method::PATCH, "/v1/tasks/", JSON, "{\"name\":\"n\"}", 400, "bad_id"),
    (Method::POST, "/v1/tasks//cancel", "", "", 400, "bad_id"),
];

/// Paths of reads that are rejected with a status and a code.
const INVALID_READS: &[(&str, u16, &str)] = &[
    ("/nowhere", 404, "unknown_route"),
    ("/v1/tasks/a/b/c", 404, "unknown_route"),
    ("/v1/tasks/nobody", 404, "not_found"),
    ("/v1/tasks/nobody/state", 404, "not_found"),
    ("/v1/tasks/nobody/children", 404, "not_found"),
    ("/v1/tasks/nobody/tree", 404, "not_found"),
    ("/v1/tasks/nobody/history", 404, "not_found"),
    ("/v1/tasks/nobody/log", 404, "not_found"),
    ("/v1/tasks/nobody/params", 404, "not_found"),
    ("/v1/tasks/nobody/watch", 404, "not_found"),
    ("/v1/tasks?root=nobody", 404, "not_found"),
    ("/v1/tasks/a%20b", 400, "bad_id"),
    ("/v1/tasks/", 400, "bad_id"),
    ("/v1/dead-letters/", 400, "bad_request"),
    ("/v1/tasks/a%FF", 400, "bad_request"),
    ("/v1/tasks/a?after=soon", 400, "bad_parameter"),
    ("/v1/tasks/a?after=99:0", 400, "bad_parameter"),
    ("/v1/tasks/a?verbose=1", 400, "unknown_parameter"),
    ("/v1/tasks/a/tree?depth=65", 400, "bad_parameter"),
    ("/v1/tasks/a/tree?format=svg", 400, "bad_parameter"),
    ("/v1/tasks/a/children?cursor=%21", 400, "bad_cursor"),
    ("/v1/tasks?limit=0", 400, "bad_parameter"),
    ("/v1/tasks?limit=201", 400, "bad_parameter"),
    ("/v1/tasks?limit", 400, "bad_parameter"),
    ("/v1/tasks?state=sleeping", 400, "bad_parameter"),
    ("/v1/tasks?tag=%FF", 400, "bad_parameter"),
    ("/v1/tasks?from=yesterday", 400, "bad_parameter"),
    ("/v1/tasks?cursor=abc", 400, "bad_cursor"),
    ("/v1/types/nothing/backlog", 404, "unknown_type"),
    ("/healthz?x=1", 400, "unknown_parameter"),
];

const JSON: &str = "application/json";
const ECHO: &str = r#"{"type":"echo"}"#;

#[tokio::test]
async fn invalid_requests_are_rejected_with_their_reasons() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    for (method, path, media, body, status, code) in INVALID_WRITES {
        let mut request = fleet.request(method.clone(), path).body(*body);
        if !media.is_empty() {
            request = request.header("content-type", *media);
        }
        let answer = problem(request).await;
        assert_eq!((answer.status, answer.code.as_str()), (*status, *code), "{method} {path} {body}: {answer:?}");
    }
    for (path, status, code) in INVALID_READS {
        let answer = fleet.problem(path).await;
        assert_eq!((answer.status, answer.code.as_str()), (*status, *code), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn problem_contains_a_hint() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let hint = async |body: Value| problem(fleet.request(Method::POST, "/v1/tasks").json(&body)).await;
    let typo = hint(json!({"type": "ehco"})).await;
    assert!(typo.hint.unwrap().contains("did you mean `echo`"));
    let strange = hint(json!({"type": "transcode"})).await;
    assert!(strange.detail.contains("t.tasks.transcode") && strange.hint.unwrap().contains("kafleet topics apply"));
    let taken = hint(json!({"type": "echo", "id": "a", "params": 1})).await;
    assert_eq!(taken.existing.as_deref(), Some("a"));
    let wrong = fleet.request(Method::DELETE, "/v1/tasks/a").send().await.unwrap();
    let allowed = wrong.headers()["allow"].to_str().unwrap().to_owned();
    assert!(allowed.contains("GET") && !allowed.contains("DELETE"), "{allowed}");
    let unknown = fleet.problem("/v1/tasks/a?wait=1s").await;
    assert!(unknown.hint.unwrap().contains("`after`"));
}

#[tokio::test]
async fn oversized_body_is_rejected_with_and_without_content_length() {
    let fleet = unfolded(ApiConfig { max_body: kafleet::config::Bytes(10_000), ..ApiConfig::default() }).await;
    let body = json!({"type": "echo", "params": "x".repeat(20_000)}).to_string();
    let request = || fleet.request(Method::POST, "/v1/tasks").header("content-type", "application/json");
    let announced = problem(request().body(body.clone())).await;
    let chunks = body.as_bytes().chunks(1_000).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>();
    let streamed = problem(request().body(reqwest::Body::wrap_stream(futures::stream::iter(chunks)))).await;
    for answer in [announced, streamed] {
        assert_eq!((answer.status, answer.code.as_str()), (413, "too_large"));
        assert!(answer.detail.contains("10000 bytes"), "{}", answer.detail);
    }
    assert_eq!(fleet.post("/v1/tasks", json!({"type": "echo"})).await.0, 201, "the next request succeeds");
}

#[tokio::test]
async fn panic_becomes_a_problem_document_and_affects_no_other_request() {
    let fleet = fleet().await;
    let reads_panics =
        |call: &Call<'_>| matches!(call, Call::Nodes(ids) if ids.iter().any(|id| id.as_str() == "panics"));
    fleet.faults.on(reads_panics).run(|| panic!("a panic on purpose"));
    let answer = fleet.problem("/v1/tasks/panics").await;
    assert_eq!((answer.status, answer.code.as_str()), (500, "internal"));
    assert!(!answer.detail.contains("a panic on purpose"), "the message of a panic is only logged");
    let answer = problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "panics"}))).await;
    assert_eq!(answer.code, "internal");
    fleet.echo("b").await;
}

#[tokio::test]
async fn token_with_a_sufficient_role_is_required() {
    let token = |name: &str, role| kafleet::config::TokenConfig {
        name: name.into(),
        token: format!("{name}-0123456789abcdef"),
        role,
    };
    let tokens = vec![token("reader", kafleet::config::Role::Read), token("producer", kafleet::config::Role::Submit)];
    let fleet = unfolded(ApiConfig { tokens, ..ApiConfig::default() }).await;
    let submit = |fleet: &Fleet| fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo"}));
    let nobody = problem(submit(&fleet)).await;
    assert_eq!((nobody.status, nobody.code.as_str()), (401, "unauthorized"));
    let answer = submit(&fleet).bearer_auth("wrong").send().await.unwrap();
    assert_eq!(
        (answer.status(), answer.headers()["www-authenticate"].as_bytes()),
        (StatusCode::UNAUTHORIZED, &b"Bearer"[..])
    );
    let reader = problem(submit(&fleet).bearer_auth("reader-0123456789abcdef")).await;
    assert_eq!((reader.status, reader.code.as_str()), (403, "forbidden"));
    assert!(reader.detail.contains("`reader`") && !reader.detail.contains("0123456789"), "{}", reader.detail);
    let producer = submit(&fleet).bearer_auth("producer-0123456789abcdef").send().await.unwrap();
    assert_eq!(producer.status(), StatusCode::CREATED);
    for open in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/"] {
        assert_eq!(fleet.request(Method::GET, open).send().await.unwrap().status(), StatusCode::OK, "{open}");
    }
    assert_eq!(fleet.problem("/v1/types").await.status, 401);
}

#[tokio::test]
async fn request_for_a_foreign_host_is_rejected() {
    let fleet = unfolded(ApiConfig::default()).await;
    let answer = problem(fleet.request(Method::GET, "/v1/types").header("host", "evil.example")).await;
    assert_eq!((answer.status, answer.code.as_str()), (403, "forbidden_host"));
}

#[tokio::test]
async fn index_is_rejected_for_a_foreign_host() {
    let fleet = unfolded(ApiConfig::default()).await;
    for path in ["/", "/openapi.json"] {
        let answer = problem(fleet.request(Method::GET, path).header("host", "evil.example")).await;
        assert_eq!((answer.status, answer.code.as_str()), (403, "forbidden_host"), "{path}");
    }
    // Probes use the address of the pod as host.
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = fleet.request(Method::GET, path).header("host", "10.1.2.3:8080").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn optional_bodies_may_be_omitted() {
    let fleet = fleet().await;
    let calls: Value = fleet.get("/openapi.json").await;
    let mut seen = Vec::new();
    for (path, methods) in calls["paths"].as_object().unwrap() {
        for (method, call) in methods.as_object().unwrap() {
            if call["requestBody"]["required"] != json!(false) {
                continue;
            }
            let url_path = path.replace("{type}", "echo").replace("{id}", "nobody").replace("{name}", "x");
            let url_path = url_path.replace("{letter}", "echo:0:0");
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = fleet.request(method.clone(), &url_path).send().await.unwrap();
            let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
            // The task or schedule does not exist, so the request itself was accepted.
            assert!([200, 202, 404].contains(&status), "{method} {url_path}: {status} {text}");
            seen.push(format!("{method} {path}"));
        }
    }
    for label in ["POST /v1/tasks/{id}/retry", "POST /v1/tasks/{id}/cancel", "PUT /v1/kill-switches/{name}"] {
        assert!(seen.iter().any(|seen| seen == label), "{label} is not among {seen:?}");
    }
}

/// A task id may be a word that is also used in paths.
#[tokio::test]
async fn task_named_like_an_endpoint_can_be_read() {
    let fleet = fleet().await;
    let calls: Value = fleet.get("/openapi.json").await;
    let paths = calls["paths"].as_object().unwrap().keys();
    let words: std::collections::BTreeSet<&str> = paths
        .flat_map(|path| path.split('/'))
        .filter(|word| !word.is_empty() && !word.starts_with('{'))
        .chain(["batch"])
        .collect();
    for word in words {
        let made = fleet.create(json!({"type": "echo", "id": word})).await;
        let status: Value = fleet.get(&format!("/v1/tasks/{word}?after={}", made.position)).await;
        assert_eq!(status["id"], word);
        let state: Value = fleet.get(&format!("/v1/tasks/{word}/state")).await;
        assert_eq!(state["state"], "queued", "{word}");
    }
}

#[tokio::test]
async fn inverted_time_range_is_rejected() {
    let fleet = fleet().await;
    for path in ["/v1/tasks", "/v1/dead-letters"] {
        let answer = fleet.problem(&format!("{path}?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z")).await;
        assert_eq!((answer.status, answer.code.as_str()), (400, "bad_parameter"), "{path}");
        assert!(answer.detail.contains("`from`: it must not be later than `to`"), "{}", answer.detail);
    }
}
