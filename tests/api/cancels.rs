//! Repeated and late cancels.

use std::time::Instant;

use kafleet::broker::{Broker, Partition};
use kafleet::documents::{Problem, Status};
use kafleet::model::event::{CancelScope, Kind, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::store::Store;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::Client;
use crate::api::fixture::{DEADLINE, Fleet, PARTITIONS, eventually, fleet};

impl Client {
    async fn cancel(&self, id: &str, body: Value) -> (u16, Value) {
        self.post(&format!("/v1/tasks/{id}/cancel"), body).await
    }

    async fn is(&self, id: &str) -> (State, u32) {
        let status: Status = self.get(&format!("/v1/tasks/{id}")).await;
        (status.state, status.run)
    }

    async fn until_cancelled(&self, id: &str) {
        let cancelled = [State::Cancelling, State::Cancelled];
        eventually(&format!("the cancel of `{id}`"), async || cancelled.contains(&self.is(id).await.0)).await;
    }
}

impl Fleet {
    /// Offsets and kinds of the events of a task.
    fn events_written(&self) -> i64 {
        let end = |number| self.log.watermarks(&Partition::new(self.names.events(), number), DEADLINE).unwrap().high;
        (0..PARTITIONS as i32).map(end).sum()
    }

    /// Reports the task as stopped by a worker.
    async fn stopped(&self, id: &str) {
        self.publish_event(id, Kind::Cancelled, |event| (event.attempt, event.worker) = (1, Some("w-1".into()))).await;
        eventually(&format!("the end of `{id}`"), async || self.is(id).await.0 == State::Cancelled).await;
    }
}

#[tokio::test]
async fn task_retried_after_a_cancel_can_be_cancelled_again() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.echo("r:c").await;
    fleet.succeed("r", json!(1)).await;
    fleet.folded().await;
    let (status, first) = fleet.cancel("r", json!({})).await;
    assert_eq!((status, &first["already_requested"]), (202, &json!(false)));
    fleet.stopped("r:c").await;
    eventually("the end of `r`", async || fleet.is("r").await.0 == State::Cancelled).await;
    let (status, answer) = fleet.post("/v1/tasks/r/retry", json!({"only_failed": true})).await;
    assert_eq!(status, 202, "{answer}");
    eventually("the retry", async || fleet.is("r:c").await == (State::Queued, 2)).await;
    let (status, second) = fleet.cancel("r", json!({})).await;
    assert_eq!((status, &second["already_requested"]), (202, &json!(false)), "{second}");
    fleet.until_cancelled("r:c").await;
    assert_eq!(fleet.is("r:c").await.1, 2);
}

#[tokio::test]
async fn child_added_after_a_cancel_is_cancelled_by_a_second_cancel() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.echo("r:a").await;
    fleet.cancel("r", json!({})).await;
    fleet.until_cancelled("r").await;
    fleet.echo("r:late").await;
    assert_eq!(fleet.is("r:late").await.0, State::Queued, "a task created after the cancel is exempt from it");
    let (status, second) = fleet.cancel("r", json!({})).await;
    assert_eq!((status, &second["already_requested"]), (202, &json!(false)), "{second}");
    fleet.until_cancelled("r:late").await;
    let (status, third) = fleet.cancel("r", json!({})).await;
    // The whole tree may have ended by now on a slow machine.
    if status != 409 {
        assert_eq!((status, &third["already_requested"], &third["position"]), (200, &json!(true), &second["position"]));
    }
}

#[tokio::test]
async fn cancel_of_a_single_task_can_be_extended_to_its_tree() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.create(json!({"type": "review", "id": "x", "parent": "r", "external": true})).await;
    fleet.folded().await;
    fleet.cancel("r", json!({"subtree": false})).await;
    fleet.folded().await;
    let (status, wider) = fleet.cancel("r", json!({})).await;
    assert_eq!((status, &wider["already_requested"]), (202, &json!(false)), "{wider}");
    fleet.until_cancelled("r:x").await;
}

impl Fleet {
    /// Waits until no effects of the task are pending.
    async fn is_idle(&self, id: &str) -> bool {
        let id = TaskId::parse(id).unwrap();
        let nodes = self.memory.task_records(self.publisher.topology.partition_of(&id), &[id]).await.unwrap();
        nodes[0].as_ref().is_some_and(|task_record| task_record.effects.is_empty())
    }
}

#[tokio::test]
async fn late_cancel_record_of_an_ended_task_is_deleted() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "review", "id": "x", "external": true})).await;
    fleet.folded().await;
    let full = fleet.faults.full_control_topic();
    let asked = tokio::spawn(fleet.request(Method::POST, "/v1/tasks/x/cancel").json(&json!({})).send());
    eventually("the end of `x`", async || fleet.is("x").await.0 == State::Cancelled).await;
    eventually("the tracker has published and withdrawn the cancel", async || fleet.is_idle("x").await).await;
    assert_eq!(fleet.control("cancel/x"), None);
    full.lift();
    assert_eq!(asked.await.unwrap().unwrap().status(), 202);
    assert_eq!(fleet.control("cancel/x"), None, "a leftover record would cancel a later task with this id");
}

#[tokio::test]
async fn late_cancel_record_is_kept_while_workers_may_receive_the_task() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.folded().await;
    let full = fleet.faults.full_control_topic();
    let asked = tokio::spawn(fleet.request(Method::POST, "/v1/tasks/r/cancel").json(&json!({})).send());
    eventually("the end of `r`", async || fleet.is("r").await.0 == State::Cancelled).await;
    full.lift();
    assert_eq!(asked.await.unwrap().unwrap().status(), 202);
    assert!(fleet.control("cancel/r").is_some(), "workers have not committed past the record");
    assert!(!fleet.is_idle("r").await, "the withdrawal is pending");
}

#[tokio::test]
async fn ignored_cancel_is_withdrawn_from_the_workers() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.untrack().await;
    fleet.succeed("r", json!(1)).await;
    // A slow API leaves the control record to the tracker, which is not running.
    eventually("the cancel is on the control topic", async || {
        assert_eq!(fleet.cancel("r", json!({})).await.0, 202, "the end is not projected yet");
        fleet.control("cancel/r").is_some()
    })
    .await;
    fleet.track();
    eventually("the cancel is withdrawn", async || fleet.control("cancel/r").is_none()).await;
    assert_eq!(fleet.is("r").await.0, State::Succeeded);
}

/// The API reads the parent before the cancel is projected: the child has not seen it.
#[tokio::test]
async fn child_added_after_an_unseen_cancel_is_cancelled() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.folded().await;
    fleet.untrack().await;
    fleet.publish_event("r", Payload::CancelRequested(CancelScope::default()), |_| ()).await;
    let child = json!({"type": "echo", "id": "late", "parent": "r"});
    let created = fleet.request(Method::POST, "/v1/tasks").json(&child).send().await.unwrap();
    assert_eq!(created.status(), 201);
    fleet.track();
    eventually("the child is cancelled", async || fleet.is("r:late").await.0 == State::Cancelled).await;
}

#[tokio::test]
async fn cancel_of_own_work_that_has_just_ended_is_refused() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.echo("r:open").await;
    fleet.folded().await;
    fleet.untrack().await;
    fleet.succeed("r", json!(1)).await;
    let cancel = fleet.request(Method::POST, "/v1/tasks/r/cancel").json(&json!({"subtree": false})).send();
    let fold = async {
        let before = fleet.events_written();
        eventually("the cancel is written", async || fleet.events_written() > before).await;
        fleet.track();
    };
    let (answer, ()) = futures::future::join(cancel, fold).await;
    let answer = answer.unwrap();
    // An API that gave up waiting for the projection cannot know better.
    if answer.status() != 202 {
        assert_eq!(answer.json::<Problem>().await.unwrap().code, "already_finished");
    }
    fleet.folded().await;
    assert_eq!(fleet.is("r:open").await.0, State::Queued);
}

/// Two concurrent cancels do not see each other when written; the projection decides which is first.
#[tokio::test]
async fn second_cancel_reports_already_requested() {
    let fleet = fleet().await;
    let begun = Instant::now();
    for round in 0.. {
        let id = format!("r{round}");
        fleet.echo(&id).await;
        fleet.untrack().await;
        let before = fleet.events_written();
        let both = futures::future::join(fleet.cancel(&id, json!({})), fleet.cancel(&id, json!({})));
        let fold = async {
            eventually("both requests are written", async || fleet.events_written() >= before + 2).await;
            fleet.track();
        };
        let (((one, first), (other, second)), ()) = futures::future::join(both, fold).await;
        let answer = [&first["already_requested"], &second["already_requested"]];
        // An API that gave up waiting for the projection cannot report `already_requested`.
        if answer.contains(&&Value::Null) && begun.elapsed() < DEADLINE {
            continue;
        }
        let mut answer = [(one, answer[0].as_bool().unwrap()), (other, answer[1].as_bool().unwrap())];
        answer.sort_unstable();
        assert_eq!(answer, [(200, true), (202, false)], "{first} {second}");
        assert_eq!(first["position"], second["position"], "the position of the first request");
        return;
    }
}
