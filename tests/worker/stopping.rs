//! Stopping a worker: gracefully, after the drain timeout, and at once.

use std::time::{Duration, Instant};

use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::offsets::{Mark, Metadata};
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated, ok};

#[tokio::test(flavor = "multi_thread")]
async fn running_tasks_finish_on_stop_and_nothing_is_repeated() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(3, &[gated("work", &journal, &gate).slots(8)]).await;
    fleet.send_many("work", "t", 500, "0").await;
    let first = fleet.worker();
    eventually("8 run", async || journal.running() == 8).await;
    first.begin_stop();
    assert!(!first.has_ended());
    gate.open();
    first.wait_ended().await;
    assert_eq!(fleet.results().len(), journal.started(), "all started tasks have results");
    for committed in fleet.committed("work").await.into_iter().flatten() {
        assert_eq!(Metadata::decode(committed.offset, &committed.metadata).unwrap().mark, Mark::Clean, "{committed:?}");
    }
    let second = fleet.worker();
    fleet.wait_for_results(500).await;
    second.stop().await;
    assert_eq!(journal.started(), 500, "no task is repeated");
    fleet.assert_clean("work").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_outlast_the_drain_are_not_counted() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(1, &[gated("work", &journal, &gate).retries(0, Millis(1))]).await;
    fleet.config.drain_timeout = Millis(100);
    fleet.send_many("work", "t", 3, "0").await;
    let first = fleet.worker();
    eventually("3 run", async || journal.running() == 3).await;
    let begun = Instant::now();
    first.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!((journal.running(), fleet.results().len()), (0, 0), "dropped without a result");
    gate.open();
    let second = fleet.worker();
    let results = fleet.wait_for_results(3).await;
    second.stop().await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded && event.attempt == 1), "{results:?}");
    fleet.assert_clean("work").await;
}

/// A retry that is due after the stop is left to the next worker, which waits for the rest of the time.
#[tokio::test(flavor = "multi_thread")]
async fn delayed_retry_does_not_delay_the_stop() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let inner = journal.clone();
    let hold = gate.clone();
    let kind = Kind::new("retry", move |params: Value, cx| {
        let journal = inner.clone();
        let gate = hold.clone();
        async move {
            let _run = journal.begin(&cx);
            if params == 0 {
                gate.pass("go").await;
            }
            if params == 2 { ok(Value::Null) } else { Err(Failure::retry("first")) }
        }
    });
    let (mut fleet, _) = memory(1, &[kind.retries(3, Millis::secs(3_600))]).await;
    // Far longer than any stop takes.
    fleet.config.inline_retry_max = Millis::secs(7_200);
    fleet.config.drain_timeout = Millis::secs(100);
    fleet.send("retry", "waits", "1").await;
    fleet.send("retry", "runs", "0").await;
    let first = fleet.worker();
    eventually("both tasks have started", async || journal.started() == 2).await;
    let retrying =
        |events: &[kafleet::model::event::Event]| events.iter().any(|event| event.kind() == EventKind::Retrying);
    fleet.events.wait("one task waits for its retry", retrying).await;
    first.begin_stop();
    gate.open();
    let begun = Instant::now();
    first.wait_ended().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let second = fleet.worker();
    // In the only partition it is behind the two others.
    fleet.send("retry", "new", "2").await;
    fleet.wait_for_results(1).await;
    second.stop().await;
    assert_eq!(journal.counts(), [("new", 1), ("runs", 1), ("waits", 1)].map(|(id, n)| (id.to_owned(), n)).into());
}

/// While one worker drains, the other one crashes, and the group assigns its partitions to the first.
#[tokio::test(flavor = "multi_thread")]
async fn stopping_worker_accepts_no_new_partition() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(4, &[gated("work", &journal, &gate).slots(2)]).await;
    fleet.config.drain_timeout = Millis::secs(100);
    let first = fleet.worker();
    let second = fleet.worker();
    first.ready().await;
    second.ready().await;
    fleet.send_many("work", "t", 40, "0").await;
    eventually("both workers are busy", async || journal.running() == 4).await;
    first.begin_stop();
    second.kill().await;
    // Not a wait for a condition: the worker must ignore the assignment, so that nothing shows its arrival.
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.open();
    let begun = Instant::now();
    first.wait_ended().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let third = fleet.worker();
    fleet.wait_for_results(40).await;
    third.stop().await;
    fleet.assert_clean("work").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_ends_at_once_and_commits_nothing() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(1, &[gated("work", &journal, &gate)]).await;
    fleet.config.drain_timeout = Millis::secs(100);
    fleet.send_many("work", "t", 20, "0").await;
    let first = fleet.worker();
    eventually("8 run", async || journal.running() == 8).await;
    let begun = Instant::now();
    first.kill().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    gate.open();
    assert_eq!(fleet.committed("work").await[0].as_ref().unwrap().offset, 0);
    let second = fleet.worker();
    fleet.wait_for_results(20).await;
    second.stop().await;
    assert_eq!(fleet.results().len(), 20, "aborted attempts have no results");
    fleet.assert_clean("work").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_an_idle_worker_takes_no_time() {
    let (mut fleet, _) = memory(8, &[counted("idle", &Journal::default())]).await;
    fleet.config.drain_timeout = Millis::secs(100);
    let worker = fleet.worker();
    worker.ready().await;
    let begun = Instant::now();
    worker.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Stops a worker before it has joined its group.
#[tokio::test(flavor = "multi_thread")]
async fn stop_right_after_the_start_succeeds() {
    let (fleet, _) = memory(8, &[counted("idle", &Journal::default())]).await;
    for _ in 0..20 {
        let worker = fleet.worker();
        worker.stop().await;
    }
}
