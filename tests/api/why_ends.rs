//! `GET /v1/tasks/{id}/why` of tasks that have ended or were interrupted.

use kafleet::documents::Reason;
use kafleet::model::event::{AttemptFailure, InterruptionReason, Kind, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, fleet};
use crate::api::why::{codes, why};

#[tokio::test]
async fn continuation_that_the_outcome_has_not_started_is_named() {
    let fleet = fleet().await;
    let then = json!([{"type": "echo"}, {"type": "echo", "on": "failed"}]);
    for id in ["a", "b"] {
        assert_eq!(fleet.post("/v1/tasks", json!({"type": "echo", "id": id, "then": then})).await.0, 201);
    }
    fleet.succeed("a", json!(1)).await;
    fleet.fail("b", "the disk is full").await;
    fleet.succeed("a:then", json!(1)).await;
    fleet.succeed("b:then-2", json!(1)).await;
    for (id, unstarted) in [
        ("a", "not started: the continuation `then-2` (`echo`), which starts only if the task or a child of it fails"),
        ("b", "not started: the continuation `then` (`echo`), which starts only if the task and its children succeed"),
    ] {
        let ended = why(&fleet, id).await;
        assert_eq!(codes(&ended), [Reason::Ended, Reason::ContinuationNotStarted], "{id}");
        assert_eq!(ended.findings[1].message, unstarted);
    }
    let tree: Value = fleet.get("/v1/tasks/a/tree").await;
    assert_eq!(tree["not_started"], json!([{"id": "a:then-2", "type": "echo", "on": "failed"}]));
    assert_eq!(tree["below"][0]["not_started"], json!([]));
}

/// A task that was lost before it ran.
#[tokio::test]
async fn lost_task_reports_its_cause() {
    let fleet = fleet().await;
    fleet.announce("gone", "echo", Some(Position { partition: 1, offset: 7 })).await;
    let failure = AttemptFailure::new("expired", "removed by retention", 0);
    fleet.publish_event("gone", Payload::Expired(failure), |_| {}).await;
    let lost = why(&fleet, "gone").await;
    assert_eq!(codes(&lost), [Reason::Lost]);
    let message = &lost.findings[0].message;
    assert!(
        message.contains("deleted its record, 1:7 of the topic of `echo`") && message.contains("detected at 2"),
        "{message}"
    );
    fleet.announce("ran", "echo", Some(Position { partition: 1, offset: 8 })).await;
    fleet.publish_event("ran", Kind::Started, |event| (event.worker, event.attempt) = (Some("w-3".into()), 1)).await;
    let failure = AttemptFailure::new("expired", "removed by retention", 1);
    fleet.publish_event("ran", Payload::Expired(failure), |_| {}).await;
    let message = &why(&fleet, "ran").await.findings[0].message;
    assert!(message.starts_with("`w-3`, which ran it, has stopped") && message.contains("1:8"), "{message}");
    // A disconnected worker ran the task after all.
    fleet.publish_event("gone", Kind::Succeeded, |event| event.worker = Some("w-7".into())).await;
    let late = why(&fleet, "gone").await;
    let message = &late.findings[0].message;
    assert!(message.contains("`w-7`, which had been disconnected, reported succeeded"), "{message}");
}

/// Writes a start of the first attempt in a worker.
async fn start(fleet: &Fleet, id: &str, worker: &str, at_ms: i64) {
    let position = fleet.publish_event(id, Kind::Started, |event| {
        (event.attempt, event.worker, event.at_ms) = (1, Some(worker.into()), at_ms);
    });
    position.await;
}

async fn interrupt(fleet: &Fleet, id: &str, worker: &str, reason: InterruptionReason) {
    let failure = AttemptFailure::new(reason.code(), reason.message(), 1);
    let position = fleet.publish_event(id, Payload::Interrupted(failure), |event| {
        (event.attempt, event.worker) = (1, Some(worker.into()));
    });
    position.await;
}

#[tokio::test]
async fn interrupted_task_reports_its_interruptions_and_its_last_start() {
    let fleet = fleet().await;
    fleet.announce("t", "echo", Some(Position { partition: 1, offset: 3 })).await;
    for reason in InterruptionReason::ALL {
        start(&fleet, "t", "w-1", 1_800_000_000_000).await;
        interrupt(&fleet, "t", "w-1", reason).await;
        let queued = why(&fleet, "t").await;
        assert_eq!(queued.state, State::Queued);
        let finding = queued.findings.iter().find(|finding| finding.code == Reason::Interrupted).unwrap();
        assert!(finding.message.ends_with(&format!(", last by {}", reason.cause("w-1"))), "{}", finding.message);
    }
    start(&fleet, "t", "w-2", 1_800_000_001_000).await;
    let running = why(&fleet, "t").await;
    let (count, since) = (InterruptionReason::ALL.len(), kafleet::model::units::time::time_text(1_800_000_001_000));
    let last = InterruptionReason::ALL[count - 1].cause("w-1");
    let text = format!("interrupted {count} times, last by {last}; attempt 1 is running on `w-2` since {since}");
    assert!(running.findings[0].message.starts_with(&text), "{}", running.findings[0].message);
    let status: Value = fleet.get("/v1/tasks/t").await;
    assert_eq!((&status["interruptions"], &status["state"]), (&json!(count), &json!("running")));
}
