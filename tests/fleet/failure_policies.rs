//! Effect of failed children on their parent: `fail_fast` and `max_failed`.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::fleet::in_process::{Fleet, eventually};

async fn submit(fleet: &Fleet, task: Value) {
    let client = kafleet_testkit::http::client();
    let response = client.post(format!("{}/v1/tasks", fleet.api)).json(&task).send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 201, "{text}");
}

async fn fail_fast_cancels_the_tree(mut fleet: Fleet) {
    fleet.start_worker();
    let params = json!({"widths": [3, 2], "held": [0, 1], "failing": [1, 0], "waits_to_fail": true});
    submit(&fleet, json!({"type": "branch", "id": "fast", "params": params, "fail_fast": true})).await;
    // The child to be cancelled runs, and the tasks above it have ended themselves.
    for (id, own) in [("fast", State::Succeeded), ("fast:1", State::Succeeded), ("fast:0:1", State::Running)] {
        eventually(&format!("`{id}` is {own}"), || async {
            fleet.record(id).await.filter(|task_record| task_record.own == own)
        })
        .await;
    }
    fleet.failure_gate.0.open();
    let root = fleet.wait_for_end("fast").await;
    assert_eq!((root.own, root.state), (State::Succeeded, State::Failed));
    let error = root.outcome.error.unwrap();
    assert_eq!(error.kind, "child_failed");
    assert!(error.message.starts_with("child `fast:1` is failed"), "{}", error.message);
    assert_eq!(fleet.record("fast:0:1").await.unwrap().state, State::Cancelled, "the held leaf is cancelled");
    let status = fleet.get("/v1/tasks/fast").await;
    assert_eq!((&status["fail_fast"], &status["error"]["kind"]), (&json!(true), &json!("child_failed")));
    eventually("the cancel is removed from the workers", || async {
        fleet.record("fast").await.filter(|task_record| task_record.effects.is_empty())
    })
    .await;
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

async fn max_failed_tolerates_failures(mut fleet: Fleet) {
    fleet.start_worker();
    let params = json!({"widths": [3], "failing": [1]});
    submit(&fleet, json!({"type": "branch", "id": "two", "params": params, "max_failed": 1})).await;
    let root = fleet.wait_for_end("two").await;
    assert_eq!((root.state, fleet.record("two:1").await.unwrap().state), (State::Succeeded, State::Failed));
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    fail_fast_cancels_the_tree,
    max_failed_tolerates_failures,
}
