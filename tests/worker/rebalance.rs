//! Partitions that move between workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kafleet::broker::memory::MemoryBrokerOptions;
use kafleet::broker::{Partition, TopicSpec};
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::units::duration::Millis;
use kafleet_testkit::faults::Call;
use serde_json::Value;

use crate::worker::fleet::{DEADLINE, Fleet, eventually, memory, memory_with};
use crate::worker::types::{Gate, Journal, Kind, gated, ok};

/// A type whose attempts take a few milliseconds.
pub fn brief(journal: &Journal) -> Kind {
    let journal = journal.clone();
    let kind = Kind::new("brief", move |_, cx| {
        let journal = journal.clone();
        async move {
            let _run = journal.begin(&cx);
            // The work of the attempt.
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..4_000))).await;
            ok(Value::Null)
        }
    });
    kind.slots(32)
}

/// Three workers join, and leave one after the other, while tasks are published.
pub async fn rolling(fleet: Fleet, journal: Journal, count: usize) {
    let mut workers = vec![fleet.worker()];
    for step in 0..6 {
        fleet.send_many("brief", &format!("t{step}-"), count / 6, "0").await;
        eventually("tasks are being processed", async || journal.started() > step * count / 6).await;
        match step {
            0..2 => workers.push(fleet.worker()),
            _ => {
                workers.push(fleet.worker());
                workers.remove(0).stop().await;
            }
        }
    }
    fleet.wait_for_results(count / 6 * 6).await;
    for worker in workers {
        worker.stop().await;
    }
    let is_lost = |event: &&Event| (event.kind(), event.attempt) != (EventKind::Succeeded, 1);
    assert_eq!(fleet.results().iter().find(is_lost), None, "no attempt is lost");
    let repeated: Vec<_> = journal.counts().into_iter().filter(|(_, count)| *count != 1).collect();
    assert_eq!(repeated, [], "no task completes twice");
    assert_eq!((journal.started(), fleet.results().len()), (count / 6 * 6, count / 6 * 6));
    fleet.assert_clean("brief").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_join_and_leave_under_load_without_loss_or_repetition() {
    let journal = Journal::default();
    let (fleet, _) = memory(8, &[brief(&journal)]).await;
    rolling(fleet, journal, 12_000).await;
}

/// Attempts may continue in the old worker until the end of the drain; only then does the partition move.
#[tokio::test(flavor = "multi_thread")]
async fn partition_moves_after_its_tasks_are_complete() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(2, &[gated("slow", &journal, &gate).slots(1_000)]).await;
    let has_joined = |call: &Call<'_>| matches!(call, Call::Poll(reader) if reader.spec.group.is_some() && reader.number == 1 && reader.polls > 0);
    let polls = fleet.add_faults().count(has_joined);
    fleet.send_many("slow", "t", 100, "0").await;
    let first = fleet.worker();
    eventually("all run", async || journal.running() == 100).await;
    let second = fleet.worker();
    fleet.send_many("slow", "more", 100, "0").await;
    eventually("the second worker has joined the group", async || polls.hits() > 0).await;
    gate.open();
    fleet.wait_for_results(200).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(journal.started(), 200);
    fleet.assert_clean("slow").await;
}

/// A worker that hangs loses its partitions; its later results do not count.
#[tokio::test(flavor = "multi_thread")]
async fn lost_partition_is_processed_by_another_worker() {
    let skew = Arc::new(AtomicI64::new(0));
    let clock = {
        let skew = skew.clone();
        Arc::new(move || kafleet::runtime::now_ms() + skew.load(Ordering::Relaxed))
    };
    let journal = Journal::default();
    let gate = Gate::closed();
    let options = MemoryBrokerOptions { clock, ..MemoryBrokerOptions::default() };
    let (mut fleet, _) = memory_with(options, 2, &[gated("lost", &journal, &gate).slots(16)]).await;
    fleet.config.commit_interval = Millis(20);
    fleet.send_many("lost", "t", 10, "0").await;
    let first = fleet.worker();
    let second = fleet.worker();
    eventually("all run", async || journal.running() == 10).await;
    // Time jumps past every session timeout: a worker that is not polling is evicted, and its tasks run again on
    // another one.
    eventually("some tasks start again", async || {
        skew.fetch_add(100_000, Ordering::Relaxed);
        journal.started() > 10
    })
    .await;
    gate.open();
    fleet.wait_for_results(10).await;
    // A result may come from the old owner; an offset is complete when the new owner commits it.
    fleet.wait_committed("lost").await;
    first.stop().await;
    second.stop().await;
    fleet.assert_clean("lost").await;
}

/// Partitions added at run time are consumed without a restart.
pub async fn added_partitions(fleet: Fleet, journal: Journal) {
    let worker = fleet.worker();
    fleet.send_many("brief", "before", 20, "0").await;
    fleet.wait_for_results(20).await;
    let spec = TopicSpec { name: fleet.names.tasks("brief"), partitions: 4, replication: None, config: Vec::new() };
    tokio::task::block_in_place(|| fleet.broker.apply_topics(&[spec], DEADLINE)).unwrap();
    // Producers refresh their metadata a little later.
    let topic = fleet.names.tasks("brief");
    let ends = || tokio::task::block_in_place(|| fleet.broker.watermarks(&Partition::new(topic.as_str(), 3), DEADLINE));
    eventually("the partition exists", async || ends().is_ok()).await;
    let mut sent = 20;
    eventually("the new partition has a record", async || {
        fleet.send_many("brief", &format!("t{sent}-"), 20, "0").await;
        sent += 20;
        ends().unwrap().high > 0
    })
    .await;
    fleet.wait_for_results(sent).await;
    worker.stop().await;
    assert_eq!(journal.started(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn added_partitions_are_consumed() {
    let journal = Journal::default();
    added_partitions(memory(1, &[brief(&journal)]).await.0, journal).await;
}
