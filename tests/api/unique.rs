//! Unique tasks over HTTP: verdicts, the key, and two APIs at once.

use futures::future::join_all;
use kafleet::config::ApiConfig;
use kafleet::documents::{Status, UniqueKeyDocument, Why};
use kafleet::model::event::Kind;
use kafleet::model::unique::AskVerdict;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::{Client, problem};
use crate::api::fixture::{Fleet, eventually, fleet, unfolded};

fn body(unique: Value, params: Value) -> Value {
    json!({"type": "echo", "params": params, "unique": unique})
}

/// Submits a task; returns the HTTP status, the verdict and the id.
async fn submit(client: &Client, body: Value) -> (u16, AskVerdict, String) {
    let (status, answer) = client.post("/v1/tasks", body).await;
    let status_document: Status =
        serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (status, status_document.verdict.expect("a verdict"), status_document.id)
}

async fn key(fleet: &Fleet) -> UniqueKeyDocument {
    fleet.get("/v1/unique/echo/k").await
}

async fn until_started(fleet: &Fleet, id: &str) {
    let path = format!("/v1/tasks/{id}");
    eventually("the release", async || fleet.get::<Status>(&path).await.state.name() == "queued").await;
}

#[tokio::test]
async fn second_task_of_a_key_joins_the_open_one() {
    let fleet = fleet().await;
    let (status, verdict, first) = submit(&fleet, body(json!("k"), json!(1))).await;
    assert_eq!((status, verdict), (201, AskVerdict::Started));
    assert!(first.starts_with("echo~k~~"), "{first}");
    assert_eq!(submit(&fleet, body(json!("k"), json!(2))).await, (200, AskVerdict::Joined, first.clone()));
    let shown = key(&fleet).await;
    assert_eq!((shown.open, shown.started, shown.joined), (vec![first.clone()], 1, 1));
    until_started(&fleet, &first).await;
    assert_eq!(fleet.published("echo"), 1);
    fleet.succeed(&first, json!(1)).await;
    let (_, verdict, second) = submit(&fleet, body(json!("k"), json!(3))).await;
    assert_eq!(verdict, AskVerdict::Started);
    assert_ne!(first, second);
}

#[tokio::test]
async fn latest_task_is_kept_until_the_open_one_has_ended() {
    let fleet = fleet().await;
    let latest = json!({"key": "k", "mode": "latest"});
    let (_, _, first) = submit(&fleet, body(latest.clone(), json!(1))).await;
    until_started(&fleet, &first).await;
    let (status, verdict, kept) = submit(&fleet, body(latest.clone(), json!(2))).await;
    assert_eq!((status, verdict), (201, AskVerdict::Kept));
    assert_eq!(submit(&fleet, body(latest, json!(3))).await, (201, AskVerdict::Kept, kept.clone()));
    let answer: Why = fleet.get(&format!("/v1/tasks/{kept}/why")).await;
    assert_eq!(answer.findings[0].task.as_deref(), Some(&*first), "{answer:?}");
    assert!(key(&fleet).await.kept.is_some_and(|task| task.id == kept && task.waits_for_open));
    fleet.succeed(&first, json!(1)).await;
    until_started(&fleet, &kept).await;
    let params: Value = fleet.get(&format!("/v1/tasks/{kept}/params")).await;
    assert_eq!(params["params"], json!(3), "the newest params count: {params}");
}

#[tokio::test]
async fn repeated_request_gets_the_same_verdict() {
    let fleet = fleet().await;
    let task = |id: &str| json!({"type": "echo", "params": 1, "unique": "k", "id": id});
    let (status, _, first) = submit(&fleet, task("a")).await;
    assert_eq!((status, &*first), (201, "echo~k~~a"));
    let joined = submit(&fleet, task("b")).await;
    assert_eq!(joined, (200, AskVerdict::Joined, first.clone()));
    assert_eq!(submit(&fleet, task("a")).await, (200, AskVerdict::Started, first.clone()));
    assert_eq!(submit(&fleet, task("b")).await, joined);
    assert_eq!(key(&fleet).await.joined, 1);
}

#[tokio::test]
async fn two_apis_at_once_start_one_task() {
    let fleet = fleet().await;
    let other = Client::new(fleet.second_api().await);
    let asked_tasks = (0..20).map(|n| submit(if n % 2 == 0 { &fleet } else { &other }, body(json!("k"), json!(n))));
    let answers = join_all(asked_tasks).await;
    let started: Vec<_> = answers.iter().filter(|(_, verdict, _)| *verdict == AskVerdict::Started).collect();
    assert_eq!(started.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|(_, _, id)| *id == started[0].2), "{answers:?}");
}

#[tokio::test]
async fn cleared_key_starts_the_kept_task_and_the_next_one() {
    let fleet = fleet().await;
    let latest = json!({"key": "k", "mode": "latest"});
    let (_, _, first) = submit(&fleet, body(latest.clone(), json!(1))).await;
    let (_, _, kept) = submit(&fleet, body(latest.clone(), json!(2))).await;
    let cleared = fleet.request(Method::DELETE, "/v1/unique/echo/k").send().await.unwrap();
    assert_eq!(cleared.status(), 200);
    until_started(&fleet, &first).await;
    until_started(&fleet, &kept).await;
    assert_eq!(fleet.problem("/v1/unique/echo/k").await.code, "unknown_unique");
    assert_eq!(submit(&fleet, body(latest, json!(3))).await.1, AskVerdict::Started);
}

#[tokio::test]
async fn invalid_unique_tasks_are_refused() {
    let fleet = fleet().await;
    fleet.echo("parent").await;
    let child = json!({"type": "echo", "parent": "parent", "unique": "k"});
    let atomic = json!([{"type": "echo", "unique": "k"}]);
    for (path, body, code) in [
        ("/v1/tasks", child, "unique_root"),
        ("/v1/batches?atomic=true", atomic, "unique_root"),
        ("/v1/tasks", json!({"type": "echo", "unique": {"mode": "latest"}}), "bad_field"),
        ("/v1/tasks", json!({"type": "echo", "unique": {"key": "k", "mode": "debounce"}}), "bad_field"),
        ("/v1/tasks", json!({"type": "echo", "unique": "k", "delay": "1h"}), "bad_field"),
        ("/v1/tasks", json!({"type": "echo", "unique": "k", "external": true}), "bad_field"),
        ("/v1/tasks", json!({"type": "echo", "unique": "k", "params": "x".repeat(300 << 10)}), "too_large"),
    ] {
        let refused = problem(fleet.request(Method::POST, path).json(&body)).await;
        assert_eq!(refused.code, code, "{refused:?}");
    }
}

#[tokio::test]
async fn ask_without_a_tracker_is_decided_later() {
    let fleet = unfolded(ApiConfig::default()).await;
    let task = json!({"type": "echo", "unique": "k", "id": "a"});
    let refused = problem(fleet.request(Method::POST, "/v1/tasks").json(&task)).await;
    assert!(["not_decided", "not_visible_yet"].contains(&&*refused.code), "{refused:?}");
    fleet.track();
    eventually("the verdict", async || fleet.post("/v1/tasks", task.clone()).await.0 < 300).await;
    assert_eq!(fleet.get::<Status>("/v1/tasks/echo~k~~a").await.id, "echo~k~~a");
}

#[tokio::test]
async fn store_that_is_projected_again_has_the_same_key() {
    let fleet = fleet().await;
    let latest = json!({"key": "k", "mode": "latest"});
    let (_, _, first) = submit(&fleet, body(latest.clone(), json!(1))).await;
    until_started(&fleet, &first).await;
    submit(&fleet, body(latest, json!(2))).await;
    fleet.folded().await;
    let before = key(&fleet).await;
    fleet.untrack().await;
    fleet.memory.wipe();
    fleet.track();
    fleet.folded().await;
    eventually("the key", async || key(&fleet).await == before).await;
}

#[tokio::test]
async fn cancelled_kept_task_frees_its_place() {
    let fleet = fleet().await;
    let latest = json!({"key": "k", "mode": "latest"});
    submit(&fleet, body(latest.clone(), json!(1))).await;
    let (_, _, kept) = submit(&fleet, body(latest, json!(2))).await;
    fleet.publish_event(&kept, Kind::Cancelled, |_| {}).await;
    eventually("the freed place", async || key(&fleet).await.kept.is_none()).await;
}
