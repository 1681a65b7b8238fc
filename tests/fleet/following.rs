//! What follows a task: fan-out and fan-in, chains, what a handler says, and what cannot be started.

use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::inside::{Fleet, until};

async fn submit(fleet: &Fleet, asked: Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(format!("{}/v1/tasks", fleet.api)).json(&asked).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 201, "{text}");
}

async fn fan_out_and_in(mut fleet: Fleet) {
    fleet.start_worker();
    let join = json!({"type": "echo", "params": {"sum": true}, "with_results": true, "name": "join",
        "then": [{"type": "echo", "params": "last", "on": "ended"}]});
    let clean = json!({"type": "echo", "params": "clean up", "on": "failed"});
    let params = json!({"widths": [3]});
    submit(&fleet, json!({"type": "branch", "id": "fan", "params": params, "then": [join, clean]})).await;
    let root = fleet.ended("fan").await;
    assert_eq!(root.state, State::Succeeded);
    let joined = fleet.node("fan:then").await.unwrap();
    assert_eq!((joined.state, joined.duplicates, joined.attempt), (State::Succeeded, 0, 1));
    let given = joined.output.unwrap().value().unwrap();
    assert_eq!((&given["params"], &given["task"]["output"]), (&json!({"sum": true}), &json!(3)));
    let mut results: Vec<(&str, &Value)> =
        given["results"].as_array().unwrap().iter().map(|one| (one["id"].as_str().unwrap(), &one["output"])).collect();
    results.sort_by_key(|(id, _)| *id);
    let done = json!("done");
    assert_eq!(results, [("fan:0", &done), ("fan:1", &done), ("fan:2", &done)]);
    assert_eq!(fleet.node("fan:then:then").await.unwrap().output.unwrap().text(), "\"last\"");
    assert!(fleet.node("fan:then-2").await.is_none(), "the task has not failed");
    assert_eq!(fleet.get("/v1/tasks/fan:then/params").await["params"]["params"], json!({"sum": true}));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (format, media, line) in
        [("mermaid", "text/vnd.mermaid", "n0 -.-> n4"), ("dot", "text/vnd.graphviz", "n0 -> n4 [style=dashed]")]
    {
        let answer = client.get(format!("{}/v1/tasks/fan/tree?format={format}", fleet.api)).send().await.unwrap();
        assert!(answer.headers()["content-type"].to_str().unwrap().starts_with(media));
        let text = answer.text().await.unwrap();
        assert!(text.contains(line), "{text}");
    }
    // A new run of the task has them again.
    let answer = client.post(format!("{}/v1/tasks/fan/retry", fleet.api)).json(&json!({})).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    until("the second run is over", || async {
        fleet.node("fan").await.filter(|node| node.run == 2 && node.state == State::Succeeded)
    })
    .await;
    let again = fleet.node("fan:then:then").await.unwrap();
    assert_eq!((again.run, again.state, again.duplicates), (2, State::Succeeded, 0));
    fleet.agrees().await;
    fleet.stop().await;
}

async fn what_is_said_and_what_is_not_possible(mut fleet: Fleet) {
    fleet.start_worker();
    submit(&fleet, json!({"type": "branch", "id": "said", "params": {"widths": [1], "next": "said by the handler"}})).await;
    assert_eq!(fleet.ended("said").await.state, State::Succeeded);
    assert_eq!(fleet.node("said:then").await.unwrap().output.unwrap().text(), "\"said by the handler\"");
    // The api refuses this; other producers are not asked.
    let policy = json!({"then": [{"type": "nobody-has-this"}]}).to_string();
    fleet.publish_bare("echo", &[("ce_id", b"off"), ("ce_policy", policy.as_bytes())], "1").await;
    assert_eq!(fleet.ended("off").await.state, State::Failed);
    let error = fleet.node("off:then").await.unwrap().error.unwrap();
    assert!(error.message.starts_with("it cannot be started: the topic"), "{}", error.message);
    fleet.agrees().await;
    fleet.stop().await;
}

cases! {
    fan_out_and_in,
    what_is_said_and_what_is_not_possible,
}
