//! Table of invalid tasks for all ways into the API: each way refuses each task, with the pointer to the field.

use kafleet::model::task::id::{MAX_ID_BYTES, MAX_LEVELS};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::fixture::{Fleet, fleet};

/// Members of a task of the type `resize`, and the pointer to the invalid one. The type's `max_backoff` is 3 s, its
/// `timeout` 2 min, and a tree stays open for at most 40 days.
fn invalid_options() -> Vec<(Value, &'static str)> {
    let callback = json!({"callback": {"url": "https://a.example/"}});
    let late_check = json!({"after": "41d", "expect": ["succeeded"], "failed": callback});
    let slow = json!({"callback": {"url": "https://a.example/", "timeout": "41d"}});
    let resize = |own: Value| {
        let mut task = json!({"type": "resize", "params": {"url": "u", "width": 1}});
        task.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        task
    };
    vec![
        (json!({"timeout": 1_795_853_855_000_i64}), "/timeout"),
        (json!({"timeout": "1795853855000"}), "/timeout"),
        (json!({"timeout": "41d"}), "/timeout"),
        (json!({"timeout": "0s"}), "/timeout"),
        (json!({"max_wait": "41d"}), "/max_wait"),
        (json!({"min_backoff": "41d", "max_backoff": "42d"}), "/min_backoff"),
        (json!({"min_backoff": "10s", "max_backoff": "1s"}), "/min_backoff"),
        (json!({"min_backoff": "10s"}), "/min_backoff"),
        (json!({"max_backoff": "10ms"}), "/max_backoff"),
        (json!({"backoff_reset": "3m"}), "/backoff_reset"),
        (json!({"backoff_reset": "3m", "timeout": "1m"}), "/backoff_reset"),
        (json!({"tags": [".."]}), "/tags"),
        (json!({"actions": [slow]}), "/actions/0/callback"),
        (json!({"checks": [late_check]}), "/checks/0"),
        (json!({"then": [resize(json!({"timeout": "41d"}))]}), "/then/0/timeout"),
        (json!({"then": [resize(json!({"min_backoff": "10s"}))]}), "/then/0/min_backoff"),
        (
            json!({"then": [resize(json!({"then": [resize(json!({"checks": [late_check]}))]}))]}),
            "/then/0/then/0/checks/0",
        ),
        (json!({"then": [resize(json!({"actions": [slow]}))]}), "/then/0/actions/0/callback"),
    ]
}

/// Further members of a single task.
fn invalid_tasks() -> Vec<(Value, &'static str)> {
    let deepest = vec!["a"; MAX_LEVELS - 1].join(":");
    let long = [["a"; 128], ["b"; 128], ["c"; 128]].map(|segment| segment.concat()).join(":");
    let segment = "d".repeat(MAX_ID_BYTES - long.len() - 1);
    let then = json!([{"type": "echo"}]);
    vec![
        (json!({"expires": 1_795_853_855}), "/expires"),
        (json!({"expires": "1795853855"}), "/expires"),
        (json!({"expires": "41d"}), "/expires"),
        (json!({"expires": "soon"}), "/expires"),
        (json!({"expires": "1m", "delay": "1h"}), "/expires"),
        (json!({"delay": "41d"}), "/delay"),
        (json!({"delay": 1_795_853_855_000_i64}), "/delay"),
        (json!({"at": "1795853855"}), "/at"),
        (json!({"total_timeout": "41d"}), "/total_timeout"),
        (json!({"timeout": "2s", "total_timeout": "1s"}), "/timeout"),
        (json!({"max_wait": "2s", "total_timeout": "1s"}), "/max_wait"),
        (
            json!({"checks": [{"at": "1795853855", "expect": ["succeeded"], "failed": {"callback": {"url": "https://a"}}}]}),
            "/checks/0/at",
        ),
        (json!({"id": "."}), "/id"),
        (json!({"id": ".."}), "/id"),
        (json!({"id": "..", "parent": "a"}), "/id"),
        (json!({"id": "a", "parent": ".."}), "/parent"),
        (json!({"parent": long, "id": segment, "then": then}), "/then/0"),
        (json!({"parent": deepest, "id": "a", "then": then}), "/then/0"),
        (json!({"id": "x", "then": [{"type": "A"}]}), "/then/0/type"),
    ]
}

fn with_members(members: &Value) -> Value {
    let mut task = json!({"type": "resize", "params": {"url": "u", "width": 1}});
    task.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    task
}

/// Pointer and detail of the refusal of a task, by each way to create one.
async fn refusals(fleet: &Fleet, task: &Value) -> Vec<(&'static str, Value)> {
    let (status, single) = fleet.post("/v1/tasks", task.clone()).await;
    assert!((400..500).contains(&status), "{task}: {single}");
    let (_, batch) = fleet.post("/v1/batches", json!([task])).await;
    let lines = fleet.request(Method::POST, "/v1/batches").header("content-type", "application/x-ndjson");
    let lines: Value = lines.body(format!("{task}\n")).send().await.unwrap().json().await.unwrap();
    let (status, atomic) = fleet.post("/v1/batches?atomic=true", json!([task])).await;
    assert!((400..500).contains(&status), "{task}: {atomic}");
    let of_item = |document: &Value| document["items"][0]["problem"].clone();
    vec![("single", single), ("batch", of_item(&batch)), ("lines", of_item(&lines)), ("atomic", atomic)]
}

#[tokio::test]
async fn every_way_to_create_a_task_refuses_what_cannot_be_kept() {
    let fleet = fleet().await;
    for (members, pointer) in invalid_options().into_iter().chain(invalid_tasks()) {
        let task = with_members(&members);
        for (door, problem) in refusals(&fleet, &task).await {
            let found = problem["pointer"].as_str().unwrap_or_default();
            assert!(found.ends_with(pointer), "{door} {task}: {problem}");
            assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{door} {task}: {problem}");
        }
    }
    assert_eq!(fleet.published("resize"), 0);
}

#[tokio::test]
async fn schedules_refuse_what_their_tasks_cannot_keep() {
    let fleet = fleet().await;
    let of_schedules =
        [(json!({"expires": 1_795_853_855_000_i64}), "/expires"), (json!({"expires": "41d"}), "/expires")];
    for (members, pointer) in invalid_options().into_iter().chain(of_schedules) {
        let spec = json!({"every": "1h", "task": with_members(&members)});
        let (status, problem) = fleet.post("/v1/schedules", json!({"id": "s", "spec": spec})).await;
        assert_eq!(status, 400, "{spec}: {problem}");
        let found = problem["pointer"].as_str().unwrap_or_default();
        // Rules are checked as a whole by the schedule itself.
        let whole = pointer.split('/').nth(1).map(|member| format!("/spec/task/{member}")).unwrap();
        assert!(found == format!("/spec/task{pointer}") || found == whole, "{spec}: {problem}");
    }
    for name in [".", ".."] {
        let spec = json!({"every": "1h", "task": with_members(&json!({}))});
        let (status, problem) = fleet.post("/v1/schedules", json!({"id": name, "spec": spec})).await;
        assert_eq!((status, problem["pointer"].as_str()), (400, Some("/id")), "{problem}");
    }
}

#[tokio::test]
async fn changes_of_a_task_refuse_what_cannot_be_kept() {
    let fleet = fleet().await;
    fleet.create(with_members(&json!({"id": "a", "delay": "1h"}))).await;
    fleet.folded().await;
    let is_changeable = |members: &Value| {
        let fixed = ["then", "actions", "checks", "id", "parent"];
        members.as_object().unwrap().keys().all(|name| !fixed.contains(&name.as_str()))
    };
    let of_changes = [(json!({"expires": "1m"}), "/expires")];
    let all = invalid_options().into_iter().chain(invalid_tasks()).filter(|(members, _)| is_changeable(members));
    for (members, pointer) in all.chain(of_changes) {
        let answer = fleet.request(Method::PATCH, "/v1/tasks/a").json(&members).send().await.unwrap();
        let (status, problem): (_, Value) = (answer.status(), answer.json().await.unwrap());
        assert_eq!(
            (status, problem["pointer"].as_str()),
            (StatusCode::BAD_REQUEST, Some(pointer)),
            "{members}: {problem}"
        );
    }
    let label = fleet.request(Method::PATCH, "/v1/tasks/a").json(&json!({"name": "n"})).send().await.unwrap();
    assert_eq!(label.status(), StatusCode::OK);
}

#[tokio::test]
async fn expiry_is_a_duration_or_a_time() {
    let fleet = fleet().await;
    let now = kafleet::runtime::now_ms();
    for (n, expires) in [
        json!("1h"),
        json!(3_600_000),
        json!(now + 3_600_000),
        json!((now + 3_600_000).to_string()),
        json!(kafleet::model::units::time::time_text(now + 3_600_000)),
    ]
    .into_iter()
    .enumerate()
    {
        let status = fleet.create(with_members(&json!({"id": format!("e-{n}"), "expires": expires}))).await;
        let record = fleet.get::<Value>(&format!("/v1/tasks/e-{n}?after={}", status.position)).await;
        assert_eq!(record["state"], "queued", "{expires}");
    }
}

/// Sends a request whose path is not normalised, and returns the status.
async fn raw(base: &str, method: &str, path: &str) -> u16 {
    let address = base.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
         connection: close\r\n\r\n{{}}"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{method} {path}: {text}"))
}

/// A name that URLs remove is refused wherever a name is part of a path, also by routes that are added later.
#[tokio::test]
async fn no_route_accepts_a_name_that_urls_remove() {
    let fleet = fleet().await;
    let api: Value = fleet.get("/openapi.json").await;
    let mut asked = 0;
    for (path, methods) in api["paths"].as_object().unwrap() {
        let parts: Vec<&str> = path.split('/').collect();
        let parameters = parts.iter().filter(|part| part.starts_with('{')).count();
        for method in methods.as_object().unwrap().keys().filter(|_| parameters > 0) {
            for name in [".", ".."] {
                let filled = parts.iter().map(|part| if part.starts_with('{') { name } else { part });
                let filled = filled.collect::<Vec<_>>().join("/");
                let status = raw(&fleet.base, &method.to_uppercase(), &filled).await;
                assert!((400..500).contains(&status), "{method} {filled}: {status}");
                asked += 1;
            }
        }
    }
    assert!(asked > 60, "{asked}");
    let attach = raw(&fleet.base, "PUT", "/v1/tasks/a/attachments/..").await;
    assert_eq!((attach, raw(&fleet.base, "PUT", "/v1/kill-switches/..").await), (400, 400));
}
