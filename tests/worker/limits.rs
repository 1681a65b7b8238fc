//! Slots, memory, and isolation of types and partitions.

use std::time::Duration;

use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{bytes, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated, ok};

#[tokio::test(flavor = "multi_thread")]
async fn all_slots_are_used_and_never_more() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(2, &[gated("slots", &journal, &gate).slots(50)]).await;
    fleet.send_many("slots", "t", 400, "0").await;
    let worker = fleet.worker();
    eventually("50 tasks run on 2 partitions", async || journal.running() == 50).await;
    eventually("the metric counts the running tasks", async || {
        worker.metric("kafleet_tasks_in_flight", "slots") == 50.0
    })
    .await;
    gate.open();
    fleet.wait_for_results(400).await;
    worker.stop().await;
    assert_eq!((journal.most(), journal.started()), (50, 400));
    fleet.assert_clean("slots").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_retry_holds_no_slot() {
    let kind = Kind::new("retry", |params: Value, cx| async move {
        if params == 0 && cx.number == 1 {
            Err(Failure::retry_after("wait", Duration::from_secs(3)))
        } else {
            ok(params)
        }
    });
    let (fleet, _) = memory(1, &[kind.slots(1)]).await;
    fleet.send("retry", "waits", "0").await;
    fleet.send_many("retry", "t", 20, "1").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(21).await;
    worker.stop().await;
    // Records are read in order only within a partition.
    let last = results.iter().max_by_key(|event| event.at_ms).unwrap();
    assert_eq!(last.id.as_str(), "waits");
}

/// A due retry must not wait for the end of a backlog of short tasks.
#[tokio::test(flavor = "multi_thread")]
async fn due_retry_is_not_starved_by_a_backlog() {
    let kind = Kind::new("flood", |params: Value, cx| async move {
        if params == 0 && cx.number == 1 {
            Err(Failure::retry_after("wait", Duration::from_millis(20)))
        } else {
            ok(params)
        }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("flood", "retried", "0").await;
    fleet.send_many("flood", "t", 30_000, "1").await;
    let worker = fleet.worker();
    fleet.wait_for_results(30_001).await;
    worker.stop().await;
    let results = fleet.events.all();
    let retried =
        results.iter().find(|event| event.id.as_str() == "retried" && event.kind() == EventKind::Succeeded).unwrap();
    let behind =
        results.iter().filter(|event| event.kind() == EventKind::Succeeded && event.at_ms > retried.at_ms).count();
    assert!(behind > 1_000, "only {behind} tasks ended after the retry");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_bounded_with_a_long_backlog() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(4, &[gated("large", &journal, &gate).slots(16)]).await;
    fleet.config.memory_limit = bytes(16 << 20);
    let params = format!("\"{}\"", "x".repeat(10 << 10));
    fleet.send_many("large", "t", 20_000, &params).await;
    let worker = fleet.worker();
    let used = || worker.metric("kafleet_worker_held_bytes", "");
    eventually("much memory is in use", async || used() > f64::from(4 << 20)).await;
    gate.open();
    let mut most = 0.0_f64;
    eventually("all tasks have run", async || {
        most = most.max(used());
        assert!(used() < f64::from(16 << 20), "{} bytes", used());
        journal.started() == 20_000
    })
    .await;
    fleet.wait_for_results(20_000).await;
    eventually("no memory is in use", async || used() == 0.0).await;
    worker.stop().await;
    assert!(most > 0.0);
    fleet.assert_clean("large").await;
}

/// Unwritten dead letters use memory too.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_records_use_memory_until_their_dead_letters_are_written() {
    use kafleet::broker::memory::MemoryBrokerOptions;
    let options = MemoryBrokerOptions { log_bytes_per_partition: 24 << 20, ..MemoryBrokerOptions::default() };
    let (mut fleet, _) = crate::worker::fleet::memory_with(options, 4, &[Kind::echo("echo")]).await;
    fleet.config.drain_timeout = Millis(100);
    let value = format!("not JSON {}", "x".repeat(1 << 20));
    for n in 0..40 {
        fleet.send_record("echo", Some(n % 4), None, Some(value.as_bytes()), &[]).await;
    }
    let worker = fleet.worker();
    // The dead-letter topic accepts 22 of them.
    fleet.dead("echo", 20).await;
    eventually("the other dead letters are in memory", async || {
        worker.metric("kafleet_worker_held_bytes", "") > f64::from(10 << 20)
    })
    .await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_type_does_not_block_another() {
    let blocked = Journal::default();
    let gate = Gate::closed();
    let free = Journal::default();
    let kinds = [gated("blocked", &blocked, &gate).slots(2), counted("free", &free)];
    let (mut fleet, _) = memory(2, &kinds).await;
    fleet.config.memory_limit = bytes(8 << 20);
    let large = format!("\"{}\"", "x".repeat(10 << 10));
    fleet.send_many("blocked", "b", 2_000, &large).await;
    let worker = fleet.worker();
    eventually("the blocked type has used its part of the memory", async || {
        worker.metric("kafleet_worker_held_bytes", "") > f64::from(2 << 20)
    })
    .await;
    // Not a wait for a condition: longer than a poll loop waits before it pauses partitions, which it must not do.
    tokio::time::sleep(Duration::from_millis(300)).await;
    fleet.send_many("free", "f", 2_000, &large).await;
    eventually("the other type has run all its tasks", async || free.started() == 2_000).await;
    assert_eq!(blocked.running(), 2);
    gate.open();
    fleet.wait_for_results(4_000).await;
    worker.stop().await;
}

/// All tasks of one partition wait for a retry; tasks of the other one run.
#[tokio::test(flavor = "multi_thread")]
async fn stuck_partition_does_not_block_another() {
    let kind = Kind::new("stuck", |params: Value, _| async move {
        if params == 0 { Err(Failure::retry_after("not today", Duration::from_secs(3_600))) } else { ok(params) }
    });
    let (mut fleet, _) = memory(2, &[kind.slots(4)]).await;
    // Retries wait in the worker, not at the tracker.
    fleet.config.inline_retry_max = Millis::secs(7_200);
    let sends = (0..12_000).map(|n| {
        let fleet = &fleet;
        let id = format!("s{n}");
        async move { fleet.send_to("stuck", 0, &id, "0").await }
    });
    futures::future::join_all(sends).await;
    let worker = fleet.worker();
    let retrying =
        |events: &[kafleet::model::event::Event]| events.iter().any(|event| event.kind() == EventKind::Retrying);
    fleet.events.wait("the first tasks wait", retrying).await;
    eventually("the backlog is full", async || worker.metric("kafleet_worker_held_bytes", "") > 8_192.0 * 512.0).await;
    for n in 0..10 {
        fleet.send_to("stuck", 1, &format!("free{n}"), "1").await;
    }
    fleet.wait_for_results(10).await;
    worker.stop().await;
}
