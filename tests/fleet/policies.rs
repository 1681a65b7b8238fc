//! What children that fail do to their parent.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::inside::{Fleet, until};

async fn submit(fleet: &Fleet, asked: Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(format!("{}/v1/tasks", fleet.api)).json(&asked).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 201, "{text}");
}

async fn the_first_failure_ends_the_tree(mut fleet: Fleet) {
    fleet.start_worker();
    let params = json!({"widths": [3, 2], "held": [0, 1], "failing": [1, 0], "fused": true});
    submit(&fleet, json!({"type": "branch", "id": "fast", "params": params, "fail_fast": true})).await;
    // Whoever is cancelled runs by then, and those above have ended themselves.
    for (id, own) in [("fast", State::Succeeded), ("fast:1", State::Succeeded), ("fast:0:1", State::Running)] {
        until(&format!("`{id}` is {own}"), || async { fleet.node(id).await.filter(|node| node.own == own) }).await;
    }
    fleet.fuse.0.open();
    let root = fleet.ended("fast").await;
    assert_eq!((root.own, root.state), (State::Succeeded, State::Failed));
    let told = root.error.unwrap();
    assert_eq!(told.kind, "child_failed");
    assert!(told.message.starts_with("child `fast:1` is failed"), "{}", told.message);
    assert_eq!(fleet.node("fast:0:1").await.unwrap().state, State::Cancelled, "nobody opened its gate");
    let status = fleet.get("/v1/tasks/fast").await;
    assert_eq!((&status["fail_fast"], &status["error"]["kind"]), (&json!(true), &json!("child_failed")));
    until("the workers need not know any more", || async { fleet.node("fast").await.filter(|node| node.effects.is_empty()) })
        .await;
    fleet.agrees().await;
    fleet.stop().await;
}

async fn some_failures_are_tolerated(mut fleet: Fleet) {
    fleet.start_worker();
    let params = json!({"widths": [3], "failing": [1]});
    submit(&fleet, json!({"type": "branch", "id": "two", "params": params, "max_failed": 1})).await;
    let root = fleet.ended("two").await;
    assert_eq!((root.state, fleet.node("two:1").await.unwrap().state), (State::Succeeded, State::Failed));
    fleet.agrees().await;
    fleet.stop().await;
}

cases! {
    the_first_failure_ends_the_tree,
    some_failures_are_tolerated,
}
