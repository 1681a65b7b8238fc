//! Continuations: fan-out and fan-in, chains, continuations added by a handler, and one that cannot be started.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::fleet::in_process::{Fleet, eventually};

async fn submit(fleet: &Fleet, task: Value) {
    let client = kafleet_testkit::http::client();
    let response = client.post(format!("{}/v1/tasks", fleet.api)).json(&task).send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(status, 201, "{text}");
}

async fn continuation_joins_children_and_runs_again_on_retry(mut fleet: Fleet) {
    fleet.start_worker();
    let join = json!({"type": "echo", "params": {"sum": true}, "with_results": true, "name": "join",
        "then": [{"type": "echo", "params": "last", "on": "ended"}]});
    let clean = json!({"type": "echo", "params": "clean up", "on": "failed"});
    let params = json!({"widths": [3]});
    submit(&fleet, json!({"type": "branch", "id": "fan", "params": params, "then": [join, clean]})).await;
    let root = fleet.wait_for_end("fan").await;
    assert_eq!(root.state, State::Succeeded);
    let joined = fleet.record("fan:then").await.unwrap();
    assert_eq!((joined.state, joined.history.duplicates, joined.attempt), (State::Succeeded, 0, 1));
    let given = joined.outcome.output.unwrap().value().unwrap();
    assert_eq!((&given["params"], &given["task"]["output"]), (&json!({"sum": true}), &json!(3)));
    let results: Vec<(&str, &Value)> = given["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["id"].as_str().unwrap(), &result["output"]))
        .collect();
    let done = json!("done");
    // In the order of spawn.
    assert_eq!(results, [("fan:0", &done), ("fan:1", &done), ("fan:2", &done)]);
    assert_eq!(fleet.record("fan:then:then").await.unwrap().outcome.output.unwrap().text(), "\"last\"");
    assert!(fleet.record("fan:then-2").await.is_none(), "the task has not failed");
    assert_eq!(fleet.get("/v1/tasks/fan:then/params").await["params"]["params"], json!({"sum": true}));
    let client = kafleet_testkit::http::client();
    let response = client.get(format!("{}/v1/tasks/fan/tree?format=mermaid", fleet.api)).send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/vnd.mermaid"));
    let text = response.text().await.unwrap();
    assert!(text.contains("n0 -.-> n4"), "{text}");
    // A new run of the task starts its continuations again.
    let response = client.post(format!("{}/v1/tasks/fan/retry", fleet.api)).json(&json!({})).send().await.unwrap();
    assert_eq!(response.status(), 202);
    eventually("the second run has succeeded", || async {
        fleet.record("fan").await.filter(|task_record| task_record.run == 2 && task_record.state == State::Succeeded)
    })
    .await;
    let again = fleet.record("fan:then:then").await.unwrap();
    assert_eq!((again.run, again.state, again.history.duplicates), (2, State::Succeeded, 0));
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

async fn handler_continuation_runs_and_unknown_type_fails(mut fleet: Fleet) {
    fleet.start_worker();
    submit(
        &fleet,
        json!({"type": "branch", "id": "by-handler", "params": {"widths": [1], "next": "added by the handler"}}),
    )
    .await;
    assert_eq!(fleet.wait_for_end("by-handler").await.state, State::Succeeded);
    assert_eq!(
        fleet.record("by-handler:then").await.unwrap().outcome.output.unwrap().text(),
        "\"added by the handler\""
    );
    // The API refuses an unknown type; other producers are not validated.
    let policy = json!({"then": [{"type": "nobody-has-this"}]}).to_string();
    fleet.publish_bare("echo", &[("ce_id", b"off"), ("ce_policy", policy.as_bytes())], "1").await;
    assert_eq!(fleet.wait_for_end("off").await.state, State::Failed);
    let error = fleet.record("off:then").await.unwrap().outcome.error.unwrap();
    assert!(error.message.starts_with("it cannot be started: the topic"), "{}", error.message);
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    continuation_joins_children_and_runs_again_on_retry,
    handler_continuation_runs_and_unknown_type_fails,
}
