//! Masked values: no response to a role that does not see them contains one, whatever the route.

use std::collections::BTreeSet;

use kafleet::config::{ApiConfig, Role, TypePolicy, UiConfig};
use kafleet::control::types::{DeclaredLimits, TypeRecord};
use kafleet::control::{CONTROL_VERSION, ControlKey, ControlRecord, put_record};
use kafleet::documents::{BulkOptions, DeadLetterDetail, Params, ScheduleDocument, Status};
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Registry, TypeRegistration};
use kafleet::model::event::{Kind, Payload};
use kafleet::model::json::{HiddenTexts, MASKED, RawJson};
use kafleet::model::task::Position;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::Client;
use crate::api::dead_letters::{LETTER, NewLetter, make_letter_topics};
use crate::api::fixture::{Fleet, api_without_control, eventually, unfolded_with};
use crate::ui::browser::{token, with_tokens};

/// Value at `/card/number`, which the type `echo` masks here.
pub const SECRET: &str = "4111-1111-2222";

/// Params of the task `order`.
pub fn params() -> Value {
    json!({"card": {"number": SECRET}, "n": 1})
}

/// Text about these params as a worker of the type writes it.
fn by_worker(text: &str) -> String {
    let mask = ["/card/number".to_owned()];
    HiddenTexts::of(&RawJson::of(&params()).unwrap(), &mask).hide(text).into_owned()
}

fn masked_echo(registry: &mut Registry) {
    let policy = TypePolicy { mask: vec!["/card/number".into()], ..TypePolicy::default() };
    registry.add("echo", TypeRegistration { policy, ..TypeRegistration::new(Echo) });
}

/// Sends a request as a role. Returns the status and the text of the answer.
pub async fn send(fleet: &Client, role: Role, method: Method, path: &str, body: Option<Value>) -> (u16, String) {
    let request = fleet.request(method, path).bearer_auth(token(role));
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn read<T: serde::de::DeserializeOwned>(fleet: &Client, role: Role, path: &str) -> T {
    let (status, text) = send(fleet, role, Method::GET, path, None).await;
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Fleet with a masked value wherever one can be: in the params, the result, the continuation and the log of `order`, the error of
/// `bad`, the dead letter that is returned, and the schedule `nightly`.
pub async fn masked_fleet(ui: UiConfig) -> (Fleet, String) {
    let config: ApiConfig = with_tokens(ui);
    let fleet = unfolded_with(config, masked_echo).await;
    make_letter_topics(&fleet);
    fleet.track();
    let then = json!([{"type": "echo", "params": params()}]);
    for (id, then) in [("order", then), ("bad", json!([]))] {
        let body = json!({"type": "echo", "id": id, "params": params(), "then": then});
        let (status, text) = send(&fleet, Role::Submit, Method::POST, "/v1/tasks", Some(body)).await;
        assert_eq!(status, 201, "{text}");
        fleet.publish_event(id, Kind::Started, |event| event.attempt = 1).await;
    }
    let line = by_worker(&format!("charging {SECRET}"));
    fleet.publish_event("order", Payload::log(vec![line]), |_| {}).await;
    fleet.succeed("order", params()).await;
    fleet.fail("bad", &by_worker(&format!("the card {SECRET} was refused"))).await;
    let policy = json!({"then": [{"type": "echo", "params": params()}]}).to_string();
    let letter = NewLetter {
        key: "gone",
        task: Some(("gone", 1)),
        message: &format!("the card {SECRET} was refused"),
        value: params().to_string().as_bytes().to_vec().leak(),
        headers: &[("ce_id", b"gone"), ("ce_policy", policy.as_bytes())],
        source: Position { partition: 0, offset: 900 },
        ..LETTER
    };
    let letter = fleet.letter(letter, 0).await;
    let spec = json!({"every": "1h", "task": {"type": "echo", "params": params()}});
    let (status, text) = send(&fleet, Role::Operate, Method::PUT, "/v1/schedules/nightly", Some(spec)).await;
    assert_eq!(status, 201, "{text}");
    fleet.folded().await;
    // The continuation ends, so that streams of its task do.
    fleet.succeed("order:then", params()).await;
    fleet.folded().await;
    (fleet, letter)
}

/// Declares the mask of the type, as `kafleet topics apply` does.
pub async fn declare_mask(fleet: &Fleet) {
    let policy = DeclaredLimits { mask: vec!["/card/number".into()], ..DeclaredLimits::default() };
    let record = ControlRecord::Type(Box::new(TypeRecord { v: CONTROL_VERSION, policy, ..TypeRecord::default() }));
    put_record(fleet.publisher.producer(), &fleet.names, &ControlKey::Type("echo".into()), &record).await.unwrap();
}

/// Requests a redrive of no dead letter with a masked value in its patch, and returns the id of its task.
pub async fn masked_redrive(fleet: &Fleet) -> String {
    let body = json!({"action": "redrive", "ids": ["echo:0:999"], "patch": params()});
    let (status, text) = send(fleet, Role::Operate, Method::POST, "/v1/bulk", Some(body)).await;
    assert_eq!(status, 202, "{text}");
    assert!(text.contains(MASKED) && !text.contains(SECRET), "{text}");
    let action: Status = serde_json::from_str(&text).unwrap();
    eventually("the end of the redrive", async || {
        let status: Status = read(fleet, Role::Read, &format!("/v1/tasks/{}", action.id)).await;
        status.state.is_terminal()
    })
    .await;
    action.id
}

/// Bodies of the routes that write. A new one has to be added here.
fn body_of(label: &str) -> Option<Value> {
    let none = json!(null);
    let bulk = json!({"action": "retry", "q": "type:echo"});
    let task = json!({"type": "echo", "params": params()});
    Some(match label {
        "POST /v1/tasks" | "POST /v1/preview" => task,
        "POST /v1/batches" => json!([task]),
        "PUT /v1/tasks/{id}/state" => json!({"state": "running"}),
        "PATCH /v1/tasks/{id}" => json!({"name": "first order"}),
        "POST /v1/tasks/{id}/log" => json!({"lines": ["seen"]}),
        "PUT /v1/tasks/{id}/attachments/{name}" => json!("small"),
        "POST /v1/bulk" | "POST /v1/bulk/preview" => bulk,
        "POST /v1/dead-letters/{letter}/redrive" => json!({"params": {"card": {"number": MASKED}, "n": 2}}),
        "POST /v1/dead-letters/drop" => json!({"type": "resize"}),
        "PUT /v1/views/{name}" => json!({"q": "type:echo"}),
        "PUT /v1/types/{type}/limits" => json!({"slots": 2}),
        "PUT /v1/types/{type}/circuit" => json!({"state": "closed"}),
        "PUT /v1/kill-switches/{name}" => json!({"type": "echo", "params": {"/n": 1}, "reason": "a test"}),
        "POST /v1/schedules" => json!({"id": "daily", "spec": {"every": "24h", "task": task}}),
        "PUT /v1/schedules/{id}" | "POST /v1/schedules/{id}/preview" => {
            json!({"every": "2h", "task": {"type": "echo", "params": {"card": {"number": MASKED}}}})
        }
        "POST /v1/tasks/{id}/start" | "DELETE /v1/views/{name}" | "DELETE /v1/unique/{type}/{key}" => none,
        "POST /v1/tasks/{id}/retry" | "POST /v1/tasks/{id}/cancel" | "DELETE /v1/tasks/{id}/attachments/{name}" => none,
        "POST /v1/dead-letters/{letter}/drop" | "DELETE /v1/types/{type}" | "DELETE /v1/kill-switches/{name}" => none,
        "POST /v1/types/{type}/pause" | "POST /v1/types/{type}/resume" | "DELETE /v1/types/{type}/circuit" => none,
        "POST /v1/schedules/{id}/pause" | "POST /v1/schedules/{id}/resume" | "DELETE /v1/schedules/{id}" => none,
        "POST /v1/schedules/{id}/trigger" | "POST /v1/schedules/{id}/backfill" => none,
        _ => return None,
    })
}

/// All routes of the OpenAPI document: those that read first, and deletions last.
async fn routes(fleet: &Fleet) -> Vec<(Method, String)> {
    let document: Value = read(fleet, Role::Read, "/openapi.json").await;
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            routes.push((Method::from_bytes(method.to_uppercase().as_bytes()).unwrap(), path.clone()));
        }
    }
    let rank =
        |method: &Method| [Method::GET, Method::PUT, Method::PATCH, Method::POST].iter().position(|it| it == method);
    routes.sort_by_key(|(method, path)| (rank(method).unwrap_or(9), path.clone()));
    routes
}

#[tokio::test]
async fn no_route_shows_a_masked_value_to_a_lower_role() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let redrive = masked_redrive(&fleet).await;
    let mut with_mask = BTreeSet::new();
    for (method, path) in routes(&fleet).await {
        let label = format!("{method} {path}");
        // It never ends, and contains ids alone.
        if label == "GET /v1/watch" {
            continue;
        }
        let written = || body_of(&label).unwrap_or_else(|| panic!("{label} is not in the table"));
        let body = (method != Method::GET).then(written).filter(|body| !body.is_null());
        let role = if method == Method::GET { Role::Read } else { Role::Operate };
        let tasks = ["order", "bad", redrive.as_str()];
        for task in tasks.into_iter().take(if path.contains("/tasks/{id}") { tasks.len() } else { 1 }) {
            let (kind, name) = if path.contains("schedules") { ("nightly", "x") } else { (task, "notes") };
            let url = path
                .replace("{id}", kind)
                .replace("{type}", "echo")
                .replace("{key}", "k")
                .replace("{letter}", &letter)
                .replace("{name}", name);
            let url = if url.ends_with("suggestions") { format!("{url}?q=tag:") } else { url };
            let (status, text) = send(&fleet, role, method.clone(), &url, body.clone()).await;
            assert!(status < 500, "{label}: {status} {text}");
            assert!(!text.contains(SECRET), "{label}: {text}");
            if text.contains(MASKED) && method == Method::GET {
                with_mask.insert(label.clone());
            }
        }
    }
    let expected = [
        "GET /v1/dead-letters",
        "GET /v1/dead-letters/{letter}",
        "GET /v1/failures",
        "GET /v1/schedules",
        "GET /v1/schedules/{id}",
        "GET /v1/tasks",
        "GET /v1/tasks/{id}",
        "GET /v1/tasks/{id}/history",
        "GET /v1/tasks/{id}/log",
        "GET /v1/tasks/{id}/params",
        "GET /v1/tasks/{id}/tree",
        "GET /v1/tasks/{id}/watch",
    ];
    let missing: Vec<_> = expected.iter().filter(|label| !with_mask.contains(**label)).collect();
    assert!(missing.is_empty(), "nothing is hidden in {missing:?}");
}

#[tokio::test]
async fn highest_role_sees_masked_values_of_a_single_task() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let status: Status = read(&fleet, Role::Admin, "/v1/tasks/order").await;
    assert_eq!(status.result.unwrap(), params());
    assert_eq!(status.fields.rules.then[0].params, params());
    let redrive = masked_redrive(&fleet).await;
    let status: Status = read(&fleet, Role::Admin, &format!("/v1/tasks/{redrive}")).await;
    assert_eq!(BulkOptions::of(&status).unwrap().patch.unwrap(), params());
    let shown: Params = read(&fleet, Role::Admin, "/v1/tasks/order/params").await;
    assert_eq!(shown.params, params());
    let detail: DeadLetterDetail = read(&fleet, Role::Admin, &format!("/v1/dead-letters/{letter}")).await;
    assert_eq!(detail.params.unwrap(), params());
    assert!(detail.letter.error.contains(SECRET), "{}", detail.letter.error);
    let schedule: ScheduleDocument = read(&fleet, Role::Admin, "/v1/schedules/nightly").await;
    assert_eq!(schedule.spec.task.params, params());
    for list in ["/v1/tasks?q=level:any", "/v1/schedules", "/v1/dead-letters"] {
        let (_, text) = send(&fleet, Role::Admin, Method::GET, list, None).await;
        assert!(!text.contains(SECRET) && text.contains(MASKED), "{list}: {text}");
    }
}

#[tokio::test]
async fn api_hides_all_values_until_it_knows_the_masks() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    declare_mask(&fleet).await;
    let (api, outage) = api_without_control(&fleet, with_tokens(UiConfig::default())).await;
    let status: Status = read(&api, Role::Read, "/v1/tasks/order").await;
    let shown: Params = read(&api, Role::Read, "/v1/tasks/order/params").await;
    for hidden in [status.result.unwrap(), status.fields.rules.then[0].params.clone(), shown.params] {
        assert_eq!(hidden, json!(MASKED));
    }
    for path in ["/v1/tasks?q=level:any", "/v1/dead-letters", &format!("/v1/dead-letters/{letter}")] {
        let (_, text) = send(&api, Role::Read, Method::GET, path, None).await;
        assert!(text.contains(MASKED) && !text.contains(SECRET), "{path}: {text}");
    }
    let shown: Params = read(&api, Role::Admin, "/v1/tasks/order/params").await;
    assert_eq!(shown.params, params());
    outage.lift();
    eventually("the values that no mask names", async || {
        let shown: Params = read(&api, Role::Read, "/v1/tasks/order/params").await;
        shown.params == json!({"card": {"number": MASKED}, "n": 1})
    })
    .await;
}

#[tokio::test]
async fn mask_is_no_value() {
    let (fleet, _) = masked_fleet(UiConfig::default()).await;
    let masked = json!({"card": {"number": MASKED}, "n": 1});
    let new = json!({"type": "echo", "params": masked.clone()});
    let of_then = json!({"type": "echo", "then": [new.clone()]});
    let schedule = json!({"id": "other", "spec": {"every": "1h", "task": new.clone()}});
    for (path, body, pointer) in [
        ("/v1/tasks", new.clone(), "/params/card/number"),
        ("/v1/tasks", of_then, "/then/0/params/card/number"),
        ("/v1/schedules", schedule, "/spec/task/params/card/number"),
    ] {
        let (status, text) = send(&fleet, Role::Operate, Method::POST, path, Some(body)).await;
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status, problem["code"].as_str(), problem["pointer"].as_str()),
            (400, Some("bad_field"), Some(pointer))
        );
    }
    let elsewhere = json!({"type": "echo", "params": {"note": MASKED}});
    let (status, text) = send(&fleet, Role::Submit, Method::POST, "/v1/tasks", Some(elsewhere)).await;
    assert_eq!(status, 201, "{text}");
}

#[tokio::test]
async fn changes_by_a_lower_role_keep_masked_values() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let shown: ScheduleDocument = read(&fleet, Role::Operate, "/v1/schedules/nightly").await;
    let mut spec = serde_json::to_value(shown.spec).unwrap();
    spec["every"] = json!("2h");
    let (status, text) = send(&fleet, Role::Operate, Method::PUT, "/v1/schedules/nightly", Some(spec)).await;
    assert_eq!(status, 200, "{text}");
    let changed: ScheduleDocument = read(&fleet, Role::Admin, "/v1/schedules/nightly").await;
    assert_eq!(changed.spec.task.params, params());

    let path = format!("/v1/dead-letters/{letter}/redrive");
    let edited = json!({"params": {"card": {"number": MASKED}, "n": 2}});
    let (status, text) = send(&fleet, Role::Operate, Method::POST, &path, Some(edited)).await;
    assert_eq!(status, 200, "{text}");
    let topic = |partition| kafleet::broker::Partition::new(fleet.names.tasks("echo"), partition);
    let is_redriven = |value: &[u8]| {
        let params: Value = serde_json::from_slice(value).unwrap();
        params == json!({"card": {"number": SECRET}, "n": 2})
    };
    eventually("the record with the hidden value and the changed one", async || {
        (0..2).any(|partition| {
            let records = (0..20).filter_map(|offset| fleet.record(&topic(partition), offset));
            records.filter_map(|record| record.value).any(|value| is_redriven(&value))
        })
    })
    .await;
}

#[tokio::test]
async fn kill_switch_shows_and_compares_masked_values_for_the_highest_role_alone() {
    let (fleet, _) = masked_fleet(UiConfig::default()).await;
    let path = "/v1/kill-switches/stolen";
    let send = async |role, method: Method, path: &str, body| send(&fleet, role, method, path, body).await;
    for params in [
        json!({"/card/number": SECRET}),
        json!({"/card": {"number": 1}}),
        json!({"": params()}),
        json!({"/card/number/0": 4}),
    ] {
        let query: String = url::form_urlencoded::byte_serialize(params.to_string().as_bytes()).collect();
        let preview = format!("{path}/preview?type=echo&params={query}");
        let body = json!({"type": "echo", "params": params});
        // A guess would be answered by the tasks that are counted or cancelled.
        for (status, text) in [
            send(Role::Operate, Method::PUT, path, Some(body.clone())).await,
            send(Role::Read, Method::GET, &preview, None).await,
        ] {
            let problem: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{params}: {text}");
        }
        assert_eq!(send(Role::Admin, Method::GET, &preview, None).await.0, 200, "{params}");
    }
    let stolen = json!({"type": "echo", "params": {"/card/number": SECRET, "/n": 1}});
    let (status, set) = send(Role::Admin, Method::PUT, path, Some(stolen)).await;
    assert!(status == 200 && set.contains(SECRET), "{set}");
    let (_, listed) = send(Role::Admin, Method::GET, "/v1/kill-switches", None).await;
    assert!(listed.contains(SECRET), "{listed}");
    let (_, text) = send(Role::Admin, Method::GET, "/v1/tasks/order/why", None).await;
    assert!(!text.contains(SECRET), "{text}");
    for route in ["/v1/kill-switches", "/v1/audit"] {
        let (status, text) = send(Role::Operate, Method::GET, route, None).await;
        assert!(status == 200 && text.contains(MASKED) && !text.contains(SECRET), "{route}: {text}");
    }
    let (status, text) =
        send(Role::Admin, Method::PUT, path, Some(json!({"type": "echo", "params": {"/card/number": MASKED}}))).await;
    assert!(status == 400 && text.contains("stands for a masked value"), "{text}");
    let (status, removed) = send(Role::Operate, Method::DELETE, path, None).await;
    assert!(status == 200 && removed.contains(MASKED) && !removed.contains(SECRET), "{removed}");
}
