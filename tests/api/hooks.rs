//! Hooks of the application at its API.

use kafleet::documents::{BatchOutcome, Status};
use kafleet::handlers::hooks::Submission;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::refusal;
use crate::api::fixture::{Fleet, fleet_with};

/// Names the tenant of tasks without one, and refuses those of a closed one.
fn add_tenant(task: &mut Submission) -> Result<(), String> {
    if task.task_type() == "resize" {
        task.params.set("width", json!(200));
        return Ok(());
    }
    let tenant = task.params.slice().member("tenant").and_then(|tenant| Some(tenant.string()?.into_owned()));
    if tenant.as_deref() == Some("closed") {
        return Err("the tenant `closed` has no account".into());
    }
    assert!(tenant.as_deref() != Some("panic"), "a hook that panics");
    task.params.set("tenant", json!("acme"));
    task.policy.tags.push("prepared".into());
    Ok(())
}

async fn fleet() -> Fleet {
    fleet_with(|registry| {
        registry.prepare(add_tenant);
    })
    .await
}

async fn params(fleet: &Fleet, id: &str) -> Value {
    fleet.folded().await;
    fleet.get::<Value>(&format!("/v1/tasks/{id}/params")).await["params"].take()
}

#[tokio::test]
async fn hook_changes_tasks_of_every_request_that_creates_them() {
    let fleet = fleet().await;
    let task = |id: &str| json!({"type": "echo", "id": id, "params": {"n": 1}});
    let made = fleet.create(task("one")).await;
    assert_eq!(made.fields.tags, ["prepared"]);
    let batch = |path: &'static str, ids: [&str; 2]| fleet.post(path, json!([task(ids[0]), task(ids[1])]));
    assert_eq!(batch("/v1/batches", ["two", "three"]).await.1["accepted"], 2);
    let tree = json!([task("root"), {"type": "echo", "id": "child", "parent": "root", "params": {"n": 1}}]);
    assert_eq!(fleet.post("/v1/batches?atomic=true", tree).await.1["accepted"], 2);
    for id in ["one", "two", "three", "root", "root:child"] {
        assert_eq!(params(&fleet, id).await, json!({"n": 1, "tenant": "acme"}), "{id}");
    }
    // The hash of a repeated request is that of the changed params.
    let (status, again) = fleet.post("/v1/tasks", task("one")).await;
    assert_eq!((status, serde_json::from_value::<Status>(again).unwrap().id), (200, "one".to_owned()));
}

#[tokio::test]
async fn params_are_checked_after_the_hook() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "resize", "id": "r", "params": {"url": "a.png"}})).await;
    assert_eq!(params(&fleet, "r").await, json!({"url": "a.png", "width": 200}));
}

#[tokio::test]
async fn refused_task_is_not_published() {
    let fleet = fleet().await;
    let refused = json!({"type": "echo", "id": "no", "params": {"tenant": "closed"}});
    let problem = refusal(fleet.request(Method::POST, "/v1/tasks").json(&refused)).await;
    assert_eq!((problem.status, &*problem.code), (422, "rejected"));
    assert_eq!(problem.detail, "the tenant `closed` has no account");
    let other = json!({"type": "echo", "id": "yes", "params": {}});
    let (_, outcome) = fleet.post("/v1/batches", json!([refused, other])).await;
    let outcome: BatchOutcome = serde_json::from_value(outcome).unwrap();
    assert_eq!((outcome.accepted, outcome.refused), (1, 1));
    assert_eq!(outcome.items[0].problem.as_ref().unwrap().code, "rejected");
    let tree = json!([{"type": "echo", "id": "t", "params": {}}, refused]);
    let problem = refusal(fleet.request(Method::POST, "/v1/batches?atomic=true").json(&tree)).await;
    assert_eq!((&*problem.code, problem.pointer.as_deref()), ("rejected", Some("/1")));
    assert_eq!(fleet.published("echo"), 1);
}

#[tokio::test]
async fn panic_of_a_hook_is_an_internal_error() {
    let fleet = fleet().await;
    let task = json!({"type": "echo", "params": {"tenant": "panic"}});
    let problem = refusal(fleet.request(Method::POST, "/v1/tasks").json(&task)).await;
    assert_eq!((problem.status, &*problem.code), (500, "internal"));
    assert_eq!(fleet.published("echo"), 0);
}
