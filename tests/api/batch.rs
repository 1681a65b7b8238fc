//! `POST /v1/batches`.

use kafleet::documents::{BatchOutcome, Status, TreeNode};
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{Fleet, fleet};

async fn send(fleet: &Fleet, items: Value) -> BatchOutcome {
    let (status, outcome) = fleet.post("/v1/batches", items).await;
    assert_eq!(status, 200, "{outcome}");
    serde_json::from_value(outcome).unwrap()
}

/// Id or `!code` of each item.
fn answer(outcome: &BatchOutcome) -> Vec<String> {
    assert!(outcome.items.iter().enumerate().all(|(n, item)| item.index == n));
    let text = |item: &kafleet::documents::BatchItem| match &item.problem {
        Some(problem) => format!("!{}", problem.code),
        None => item.id.clone().unwrap(),
    };
    outcome.items.iter().map(text).collect()
}

#[tokio::test]
async fn items_have_separate_outcomes() {
    let fleet = fleet().await;
    fleet.echo("taken").await;
    fleet.echo("there").await;
    let outcome = send(
        &fleet,
        json!([
            {"type": "echo", "id": "a"},
            {"type": "echo", "id": "taken", "params": 1},
            {"type": "nothing"},
            {"type": "echo", "prio": 1},
            5,
            {"type": "resize", "params": {"width": 1}},
            {"type": "echo", "id": "urn:x"},
            {"type": "echo", "parent": "nobody"},
            {"type": "echo", "id": "c", "parent": "there"},
            {"type": "note", "id": "e", "external": true},
            {"type": "echo", "id": "taken"},
        ]),
    )
    .await;
    assert_eq!(
        answer(&outcome),
        [
            "a",
            "!duplicate_id",
            "!unknown_type",
            "!unknown_field",
            "!bad_field",
            "!schema",
            "!bad_id",
            "!unknown_parent",
            "there:c",
            "e",
            "taken"
        ]
    );
    assert_eq!((outcome.accepted, outcome.refused), (4, 7));
    for item in outcome.items.iter().filter(|item| item.problem.is_none()) {
        let status: Status = fleet
            .get(&format!("/v1/tasks/{}?after={}", item.id.as_ref().unwrap(), item.position.as_ref().unwrap()))
            .await;
        assert_eq!(status.state, State::Queued);
    }
}

#[tokio::test]
async fn batch_may_contain_a_whole_tree() {
    let fleet = fleet().await;
    let outcome = send(
        &fleet,
        json!([
            {"type": "echo", "id": "r"},
            {"type": "echo", "id": "a", "parent": "r"},
            {"type": "echo", "id": "x", "parent": "r:a"},
            {"type": "echo", "id": "b", "parent": "r"},
            {"type": "echo", "id": "a", "parent": "r"},
        ]),
    )
    .await;
    assert_eq!(answer(&outcome), ["r", "r:a", "r:a:x", "r:b", "r:a"]);
    fleet.folded().await;
    assert_eq!(fleet.published("echo"), 4, "repeated items are one task");
    let tree: TreeNode = fleet.get("/v1/tasks/r/tree").await;
    assert_eq!((tree.tree.total, tree.tree.pending), (4, 4));
}

#[tokio::test]
async fn children_of_a_rejected_parent_are_rejected() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    let outcome = send(
        &fleet,
        json!([
            {"type": "echo", "id": "r", "params": "other"},
            {"type": "echo", "id": "p", "parent": "r"},
            {"type": "echo", "id": "q", "parent": "r:p"},
            {"type": "echo", "id": "p", "parent": "r"},
            {"type": "echo", "id": "before", "parent": "late"},
            {"type": "echo", "id": "late"},
        ]),
    )
    .await;
    let codes = answer(&outcome);
    assert_eq!(
        codes,
        ["!duplicate_id", "!unknown_parent", "!unknown_parent", "!unknown_parent", "!unknown_parent", "late"]
    );
    assert!(outcome.items[1].problem.as_ref().unwrap().hint.as_ref().unwrap().contains("item 0"));
}

#[tokio::test]
async fn ndjson_body_is_accepted() {
    let fleet = fleet().await;
    let lines = "{\"type\":\"echo\",\"id\":\"a\"}\n\n{\"type\":\r\n{\"type\":\"echo\",\"id\":\"b\"}\r\n";
    let request = fleet.request(Method::POST, "/v1/batches").header("content-type", "application/x-ndjson").body(lines);
    let outcome: BatchOutcome = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer(&outcome), ["a", "!bad_json", "b"]);
}

#[tokio::test]
async fn batch_is_limited_to_ten_thousand_items() {
    let fleet = fleet().await;
    let items = |count: usize| Value::Array((0..count).map(|n| json!({"type": "echo", "params": n})).collect());
    let outcome = send(&fleet, items(10_000)).await;
    assert_eq!((outcome.accepted, outcome.refused), (10_000, 0));
    let answer = problem(fleet.request(Method::POST, "/v1/batches").json(&items(10_001))).await;
    assert_eq!((answer.status, answer.code.as_str()), (400, "too_many_items"));
    assert_eq!(send(&fleet, json!([])).await.items.len(), 0);
}
