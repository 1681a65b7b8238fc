//! Children added to a parent that already exists, was retried, or is being cancelled.

use futures::FutureExt;
use kafleet::documents::{BatchOutcome, Status};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::store::Store;
use kafleet_testkit::faults::{Call, read_nodes};
use serde_json::json;

use crate::api::client::Client;
use crate::api::fixture::{Fleet, eventually, fleet};

impl Client {
    async fn status(&self, id: &str) -> Status {
        self.get(&format!("/v1/tasks/{id}")).await
    }
}

impl Fleet {
    /// Fails the task and retries it, so that it is in run 2.
    async fn start_again(&self, id: &str) {
        self.fail(id, "broken").await;
        self.folded().await;
        let (status, answer) = self.post(&format!("/v1/tasks/{id}/retry"), json!({})).await;
        assert_eq!((status, &answer["run"]), (202, &json!(2)), "{answer}");
    }

    /// Submits the parent again together with a child.
    async fn grow(&self) {
        let items = json!([{"type": "echo", "id": "p"}, {"type": "echo", "id": "c", "parent": "p"}, {"type": "echo", "id": "p"}]);
        let (status, outcome) = self.post("/v1/batches", items).await;
        let outcome: BatchOutcome = serde_json::from_value(outcome).unwrap();
        assert_eq!((status, outcome.accepted), (200, 3), "{outcome:?}");
        self.folded().await;
    }
}

#[tokio::test]
async fn batch_adds_children_to_the_current_run_of_the_parent() {
    let fleet = fleet().await;
    fleet.echo("p").await;
    fleet.start_again("p").await;
    fleet.grow().await;
    let (parent, child) = (fleet.status("p").await, fleet.status("p:c").await);
    assert_eq!((parent.run, child.run, parent.children.total), (2, 2, 1), "{parent:?}");
}

#[tokio::test]
async fn batch_adds_children_to_a_cancelled_parent() {
    let fleet = fleet().await;
    fleet.echo("p").await;
    assert_eq!(fleet.post("/v1/tasks/p/cancel", json!({})).await.0, 202);
    fleet.folded().await;
    fleet.grow().await;
    assert_eq!(fleet.status("p:c").await.state, State::Queued, "a child added after the cancel is exempt from it");
}

#[tokio::test]
async fn child_is_created_again_in_a_later_run_of_its_parent() {
    let fleet = fleet().await;
    fleet.echo("p").await;
    fleet.echo("p:c").await;
    fleet.succeed("p:c", json!(1)).await;
    fleet.start_again("p").await;
    let child = json!({"type": "echo", "id": "c", "parent": "p"});
    let (status, again) = fleet.post("/v1/tasks", child.clone()).await;
    assert_eq!((status, &again["run"]), (201, &json!(2)), "a child of the first run does not count: {again}");
    let (status, _) = fleet.post("/v1/tasks", child.clone()).await;
    assert_eq!(status, 200, "the child is created again in this run");
    eventually("the child is in run 2", async || {
        let status = fleet.status("p:c").await;
        (status.state, status.run) == (State::Queued, 2)
    })
    .await;
    assert_eq!(fleet.post("/v1/tasks", child).await.0, 200);
    assert_eq!(fleet.status("p").await.children.total, 1);
}

#[tokio::test]
async fn retry_is_accepted_although_the_store_is_erased_meanwhile() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let end = fleet.succeed("a", json!(1)).await;
    fleet.folded().await;
    // The request follows the result in the log.
    let (memory, partitions) = (fleet.memory.clone(), [end.partition as u32]);
    let is_projected = move || {
        let checkpoints = memory.checkpoints(&partitions).now_or_never().unwrap().unwrap();
        checkpoints[0].is_some_and(|checkpoint| checkpoint.offset >= end.offset + 2)
    };
    let erased =
        fleet.faults.on(move |call| read_nodes(call) && is_projected()).times(1).answer_with(|call| match call {
            Call::Nodes(ids) => vec![None::<TaskRecord>; ids.len()],
            _ => Vec::new(),
        });
    let (status, answer) = fleet.post("/v1/tasks/a/retry", json!({})).await;
    assert_eq!((status, &answer["run"]), (202, &json!(2)), "{answer}");
    assert_eq!(erased.hits(), 1, "no read was without a record");
}

#[tokio::test]
async fn retry_of_failed_tasks_is_rejected_without_failed_tasks() {
    let fleet = fleet().await;
    fleet.echo("p").await;
    fleet.echo("p:c").await;
    fleet.succeed("p", json!(1)).await;
    fleet.succeed("p:c", json!(1)).await;
    fleet.folded().await;
    let (status, answer) = fleet.post("/v1/tasks/p/retry", json!({"only_failed": true})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("nothing_to_retry")), "{answer}");
    assert!(answer["hint"].as_str().unwrap().contains("starts the task itself again"), "{answer}");
    // Without a body the task itself is retried, in the next run.
    let answer = fleet.request(reqwest::Method::POST, "/v1/tasks/p/retry").send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let answer: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(answer["run"], 2, "the rejected retry starts no run");
}

#[tokio::test]
async fn retry_of_failed_tasks_is_rejected_if_only_external_tasks_failed() {
    let fleet = fleet().await;
    fleet.echo("p").await;
    fleet.create(json!({"type": "review", "id": "x", "parent": "p", "external": true})).await;
    fleet.succeed("p", json!(1)).await;
    let report = fleet.request(reqwest::Method::PUT, "/v1/tasks/p:x/state").json(&json!({"state": "failed"}));
    assert_eq!(report.send().await.unwrap().status(), 200);
    eventually("the task has failed", async || fleet.status("p").await.state == State::Failed).await;
    for id in ["p", "p:x"] {
        let (status, answer) = fleet.post(&format!("/v1/tasks/{id}/retry"), json!({"only_failed": true})).await;
        assert_eq!((status, &answer["code"]), (409, &json!("nothing_to_retry")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("that workers run"), "{answer}");
    }
    let (status, answer) = fleet.post("/v1/tasks/p/retry", json!({})).await;
    assert_eq!((status, &answer["run"]), (202, &json!(2)), "the rejected retry starts no run: {answer}");
}

#[tokio::test]
async fn retry_of_failed_tasks_is_rejected_for_a_superseded_task() {
    let fleet = fleet().await;
    for id in ["p", "p:c", "p:c:d"] {
        fleet.echo(id).await;
    }
    fleet.fail("p:c:d", "broken").await;
    fleet.succeed("p:c", json!(1)).await;
    fleet.start_again("p").await;
    for id in ["p:c", "p:c:d"] {
        let status: Status = fleet.status(id).await;
        assert!(status.superseded, "{status:?}");
        let (code, answer) = fleet.post(&format!("/v1/tasks/{id}/retry"), json!({"only_failed": true})).await;
        assert_eq!((code, &answer["code"]), (409, &json!("nothing_to_retry")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("earlier run of its parent"), "{answer}");
    }
    let (code, answer) = fleet.post("/v1/tasks/p:c/retry", json!({})).await;
    assert_eq!((code, &answer["run"]), (202, &json!(3)), "the task itself can be retried: {answer}");
    assert!(!fleet.status("p:c").await.superseded, "it counts again");
    assert_eq!(fleet.status("p").await.children.total, 1);
}
