//! Tasks from each kind of producer, queried in each way.

use kafleet::model::record::state::State;
use serde_json::json;

use crate::fleet::in_process::{Fleet, eventually};

async fn task_is_published_executed_and_queried(mut fleet: Fleet) {
    fleet.start_worker();
    let published = fleet.publish("echo", "order-1", &json!({"text": "hello"})).await;
    let task_record = fleet.wait_for_end("order-1").await;
    assert_eq!((task_record.state, task_record.attempt), (State::Succeeded, 1));
    assert_eq!(task_record.outcome.output.unwrap().value().unwrap(), json!({"text": "hello"}));
    let status = fleet.get(&format!("/v1/tasks/order-1?after={}", published.position)).await;
    assert_eq!((&status["state"], &status["result"]), (&json!("succeeded"), &json!({"text": "hello"})));
    bare_record(&fleet).await;
    record_with_headers(&fleet).await;
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// A record with a JSON value and no headers.
async fn bare_record(fleet: &Fleet) {
    let (partition, offset) = fleet.publish_bare("echo", &[], r#"{"from":"kcat"}"#).await;
    let id = eventually("the record is listed as a task", || async {
        let page = fleet.get("/v1/tasks?type=echo").await;
        let found = page["tasks"].as_array()?.iter().find(|task| task["result"] == json!({"from": "kcat"}))?.clone();
        (found["state"] == "succeeded").then(|| found["id"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(id.starts_with(&format!("echo-{partition}-{offset}-")), "{id}");
    let task_record = fleet.record(&id).await.unwrap();
    assert_eq!(
        task_record.definition.position.map(|position| (position.partition, position.offset)),
        Some((partition, offset))
    );
    assert_eq!(fleet.get(&format!("/v1/tasks/{id}/params")).await["params"], json!({"from": "kcat"}));
}

/// A record with the documented headers: a child named by its segment, with policies.
async fn record_with_headers(fleet: &Fleet) {
    let headers: &[(&str, &[u8])] = &[
        ("ce_id", b"page-1"),
        ("ce_parent", b"order-2:fetch"),
        ("ce_type", b"echo"),
        ("ce_time", b"2026-01-31T12:00:00Z"),
        ("ce_tags", b"cover, urgent"),
        ("ce_retries", b"3"),
        ("something_else", b"\xff"),
    ];
    fleet.publish_bare("echo", headers, "null").await;
    let task_record = fleet.wait_for_end("order-2:fetch:page-1").await;
    let policy = task_record.definition.policy.unwrap();
    assert_eq!((task_record.state, task_record.times.created_at_ms), (State::Succeeded, Some(1_769_860_800_000)));
    assert_eq!((policy.retries, policy.tags), (Some(3), vec!["cover".to_owned(), "urgent".to_owned()]));
    let parent = fleet.record("order-2:fetch").await.unwrap();
    assert_eq!(parent.state, State::Expected, "the parent is not announced");
}

cases! {
    task_is_published_executed_and_queried,
}
