//! A broker that refuses: missing permissions, and consumers that fail.

use kafleet::broker::BrokerError;
use kafleet::control::heartbeat::HeartbeatState;
use kafleet::handlers::{Child, Failure};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use kafleet_testkit::faults::{Call, FaultRules, polls_of_groups, send};
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::heartbeats::last_heartbeat;
use crate::worker::types::{Gate, Journal, Kind, counted, ok};

/// Creates a fleet of one type on a broker with faults.
async fn faulty_fleet(kind: Kind) -> (Fleet, FaultRules) {
    let (mut fleet, _) = memory(2, &[kind]).await;
    let faults = fleet.add_faults();
    (fleet, faults)
}

fn denied() -> BrokerError {
    BrokerError::Denied("topic authorization failed".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_consumer_is_recreated() {
    let journal = Journal::default();
    let (fleet, faults) = faulty_fleet(counted("broken", &journal)).await;
    let has_read = |call: &Call<'_>| matches!(call, Call::Poll(reader) if reader.records > 100);
    let fatal = BrokerError::Fatal("the client instance is fenced".into());
    let failed = faults.on(move |call| polls_of_groups(call) && has_read(call)).times(2).fail(fatal);
    faults.on(polls_of_groups).at_most(50);
    fleet.send_many("broken", "t", 2_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(2_000).await;
    assert_eq!(failed.hits(), 2, "two consumers failed");
    worker.ready().await;
    fleet.wait_committed("broken").await;
    worker.stop().await;
    fleet.assert_clean("broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_dead_letters_hold_back_their_tasks() {
    let kind = Kind::new("dying", |_, _| async move { Err(Failure::dead("no")) });
    let (fleet, faults) = faulty_fleet(kind).await;
    let denying = faults.on(send(".dead.")).undelivered(denied());
    fleet.send("dying", "d", "0").await;
    let worker = fleet.worker();
    eventually("the health report contains the reason", async || {
        worker.health.reasons().iter().any(|(part, _)| part == "dead letters of dying")
    })
    .await;
    assert!(fleet.results().is_empty(), "a task is not complete before its dead letter is written");
    denying.lift();
    assert_eq!(fleet.dead("dying", 1).await[0].code, "dead");
    assert_eq!(fleet.result_of("d").await.kind(), EventKind::Failed);
    worker.ready().await;
    worker.stop().await;
    fleet.assert_clean("dying").await;
}

/// The start of the task was published, and its outcome is not.
#[tokio::test(flavor = "multi_thread")]
async fn unwritten_dead_letter_is_unfinished_when_its_worker_stops() {
    let gate = Gate::closed();
    let opened = gate.clone();
    let kind = Kind::new("dying", move |_, _| {
        let gate = gate.clone();
        async move {
            gate.pass("d").await;
            Err(Failure::dead("no"))
        }
    });
    let (mut fleet, faults) = faulty_fleet(kind).await;
    faults.on(send(".dead.")).undelivered(denied());
    fleet.config.drain_timeout = Millis(100);
    fleet.send("dying", "d", "0").await;
    let worker = fleet.worker();
    eventually("the start of the task is published", async || fleet.kinds_of("d").iter().any(|kind| kind == "started"))
        .await;
    opened.open();
    eventually("the health report contains the reason", async || {
        worker.health.reasons().iter().any(|(part, _)| part == "dead letters of dying")
    })
    .await;
    worker.stop().await;
    let heartbeat = last_heartbeat(&fleet).await;
    assert_eq!((heartbeat.state, heartbeat.unfinished), (HeartbeatState::Stopped, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_results_are_retried() {
    let journal = Journal::default();
    let (fleet, faults) = faulty_fleet(counted("quiet", &journal)).await;
    let denying = faults.on(send(".events")).undelivered(denied());
    fleet.send_many("quiet", "t", 300, "0").await;
    let worker = fleet.worker();
    eventually("the health report contains the reason", async || {
        worker.health.reasons().iter().any(|(part, _)| part == "results")
    })
    .await;
    denying.lift();
    fleet.wait_for_results(300).await;
    assert_eq!(journal.started(), 300, "results are sent again; tasks do not run again");
    worker.ready().await;
    worker.stop().await;
    fleet.assert_clean("quiet").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn child_without_a_topic_fails_the_attempt_before_its_siblings_are_published() {
    let parent = Kind::new("parent", |_: Value, cx| async move {
        cx.spawn_child(Child::new("echo", json!(1)));
        cx.spawn_child(Child::new("nowhere", json!(2)));
        ok(json!(null))
    });
    let (fleet, _) = memory(1, &[parent, Kind::echo("echo")]).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    let failed = fleet.result_of("p").await;
    let error = failed.payload.error().unwrap();
    assert_eq!((failed.kind(), &*error.kind), (EventKind::Failed, "bad_child"));
    assert!(error.message.contains("`nowhere`") && error.message.contains("hint: "), "{}", error.message);
    worker.stop().await;
    assert_eq!(fleet.end_of(&fleet.names.tasks("echo"), 0).await, 0, "the other child is not published");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_without_a_partition_is_ready() {
    let (fleet, _) = memory(1, &[Kind::echo("echo")]).await;
    let first = fleet.worker();
    first.ready().await;
    let second = fleet.worker();
    second.ready().await;
    first.ready().await;
    first.stop().await;
    fleet.send("echo", "e", "0").await;
    fleet.result_of("e").await;
    second.stop().await;
}
