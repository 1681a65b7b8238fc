//! Events of attempts that end without an outcome: each repeated start has one with the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kafleet::broker::memory::MemoryBrokerOptions;
use kafleet::model::event::{Event, InterruptionReason, Kind as EventKind};
use kafleet::model::units::duration::Millis;

use crate::worker::fleet::{Fleet, eventually, memory, memory_with};
use crate::worker::types::{Gate, Journal, gated};

/// Asserts that every start of an attempt but the last of each task is followed by its interruption, for these reasons.
fn assert_interruptions(fleet: &Fleet, reason: InterruptionReason) {
    let events = fleet.events.all();
    let of = |id: &str| events.iter().filter(|event| event.id.as_str() == id).collect::<Vec<&Event>>();
    let interrupted: Vec<&Event> = events.iter().filter(|event| event.kind() == EventKind::Interrupted).collect();
    assert!(!interrupted.is_empty(), "{events:?}");
    for event in &interrupted {
        let error = event.payload.error().unwrap();
        assert_eq!((error.kind.as_str(), event.attempt), (reason.code(), 1), "{event:?}");
        assert!(event.payload.started_at_ms().is_some() && event.worker.is_some(), "{event:?}");
        let of_task = of(event.id.as_str());
        let count = |kind: EventKind| of_task.iter().filter(|event| event.kind() == kind).count();
        assert_eq!(count(EventKind::Started), count(EventKind::Interrupted) + 1, "{of_task:?}");
        let kinds: Vec<EventKind> =
            of_task.iter().filter(|one| one.worker == event.worker).map(|one| one.kind()).collect();
        assert_eq!(kinds, [EventKind::Started, EventKind::Interrupted], "{of_task:?}");
    }
}

/// Waits until the events show this number of running tasks: an attempt that ends at once has no event of its start.
async fn until_shown(fleet: &Fleet, running: usize) {
    let is_shown = |events: &[Event]| {
        let count = |kind: EventKind| events.iter().filter(|event| event.kind() == kind).count();
        count(EventKind::Started) == count(EventKind::Interrupted) + running
    };
    fleet.events.wait("all attempts are shown", is_shown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_worker_reports_the_attempts_that_outlast_the_drain() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(1, &[gated("work", &journal, &gate)]).await;
    fleet.config.drain_timeout = Millis(50);
    fleet.send_many("work", "t", 3, "0").await;
    let first = fleet.worker();
    eventually("3 run", async || journal.running() == 3).await;
    first.stop().await;
    let second = fleet.worker();
    eventually("3 run again", async || journal.started() == 6).await;
    until_shown(&fleet, 3).await;
    gate.open();
    fleet.wait_for_results(3).await;
    second.stop().await;
    assert_interruptions(&fleet, InterruptionReason::WorkerStopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_a_partition_that_moves_are_reported() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(4, &[gated("work", &journal, &gate).slots(50)]).await;
    fleet.config.drain_timeout = Millis(50);
    fleet.send_many("work", "t", 40, "0").await;
    let first = fleet.worker();
    eventually("all run", async || journal.running() == 40).await;
    let second = fleet.worker();
    let is_moved = |events: &[Event]| events.iter().any(|event| event.kind() == EventKind::Interrupted);
    fleet.events.wait("an attempt is interrupted", is_moved).await;
    eventually("all run again", async || journal.running() == 40).await;
    until_shown(&fleet, 40).await;
    gate.open();
    fleet.wait_for_results(40).await;
    first.stop().await;
    second.stop().await;
    assert_interruptions(&fleet, InterruptionReason::PartitionMoved);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_a_lost_partition_are_reported() {
    let skew = Arc::new(AtomicI64::new(0));
    let clock = {
        let skew = skew.clone();
        Arc::new(move || kafleet::runtime::now_ms() + skew.load(Ordering::Relaxed))
    };
    let (journal, gate) = (Journal::default(), Gate::closed());
    let options = MemoryBrokerOptions { clock, ..MemoryBrokerOptions::default() };
    let (fleet, _) = memory_with(options, 2, &[gated("lost", &journal, &gate).slots(16)]).await;
    fleet.send_many("lost", "t", 10, "0").await;
    let first = fleet.worker();
    let second = fleet.worker();
    eventually("all run", async || journal.running() == 10).await;
    eventually("some tasks start again", async || {
        skew.fetch_add(100_000, Ordering::Relaxed);
        journal.started() > 10
    })
    .await;
    let reasons = |events: &[Event]| {
        let interrupted = events.iter().filter(|event| event.kind() == EventKind::Interrupted);
        interrupted.filter_map(|event| Some(event.payload.error()?.kind.clone())).collect::<Vec<_>>()
    };
    let is_lost = |events: &[Event]| reasons(events).iter().any(|reason| reason == "partition_lost");
    fleet.events.wait("an attempt is interrupted", is_lost).await;
    gate.open();
    fleet.wait_for_results(10).await;
    first.stop().await;
    second.stop().await;
}
