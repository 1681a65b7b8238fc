//! Commits: their contents, the tasks that a successor repeats, and the start offsets of partitions.

use std::collections::HashSet;

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{Broker, BrokerClient, Commit, Partition};
use kafleet::control::{ControlKey, ControlRecord, Offsets};
use kafleet::model::offsets::{Mark, Metadata};
use serde_json::Value;

use crate::worker::fleet::{DEADLINE, Fleet, Worker, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, ok};

fn tasks(fleet: &Fleet, task_type: &str) -> Partition {
    Partition::new(fleet.names.tasks(task_type), 0)
}

/// A type whose tasks end at once, except one that waits for the gate.
pub fn one_stuck(journal: &Journal, gate: &Gate) -> Kind {
    let journal = journal.clone();
    let gate = gate.clone();
    let kind = Kind::new("stuck", move |params: Value, cx| {
        let journal = journal.clone();
        let gate = gate.clone();
        async move {
            let _run = journal.begin(&cx);
            if params == "stuck" {
                gate.pass(cx.id.as_str()).await;
            }
            ok(Value::Null)
        }
    });
    kind.slots(16)
}

/// Restarts a worker while the first task is stuck and 5,000 after it are complete: only the stuck one is repeated.
pub async fn restart_with_metadata(fleet: Fleet, journal: Journal, gate: Gate) {
    const BEHIND: usize = 5_000;
    fleet.send_to("stuck", 0, "stuck", r#""stuck""#).await;
    fleet.send_many("stuck", "t", BEHIND, "0").await;
    let first = fleet.worker();
    fleet.wait_for_results(BEHIND).await;
    let done_above = |committed: &kafleet::broker::CommittedOffset| {
        let metadata = Metadata::decode(committed.offset, &committed.metadata).unwrap();
        (committed.offset, metadata.completed.done_above(), metadata.mark == Mark::Clean)
    };
    eventually("the completed tasks are committed", async || {
        let committed = fleet.committed("stuck").await[0].clone();
        let is_complete = committed.as_ref().map(done_above) == Some((0, BEHIND as u64, false));
        if is_complete { Ok(()) } else { Err(committed) }
    })
    .await;
    first.kill().await;
    gate.open();
    let second = fleet.worker();
    fleet.result_of("stuck").await;
    second.stop().await;
    let repeated: Vec<_> = journal.counts().into_iter().filter(|(_, count)| *count > 1).collect();
    assert_eq!(repeated, [("stuck".to_owned(), 2)]);
    fleet.assert_clean("stuck").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_repeats_only_incomplete_tasks() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[one_stuck(&journal, &gate)]).await;
    restart_with_metadata(fleet, journal, gate).await;
}

/// Kills workers at random times: tasks handed out and not committed are within one window of each partition.
#[tokio::test(flavor = "multi_thread")]
async fn kill_repeats_at_most_one_window() {
    const WINDOW: usize = 256;
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("quick", &journal).slots(8)]).await;
    // Long enough that only a full window triggers commits.
    fleet.config.commit_interval = kafleet::model::units::duration::Millis::secs(60);
    fleet.send_many("quick", "t", 12_000, "0").await;
    for round in 1..=4 {
        let worker = fleet.worker();
        eventually("more tasks have started", async || journal.started() > round * 2_000).await;
        worker.kill().await;
    }
    let repeated_before_the_end = journal.started() - journal.counts().len();
    let last = fleet.worker();
    // On a busy machine the earlier workers may have completed all tasks.
    last.ready().await;
    fleet.wait_for_results(12_000).await;
    last.stop().await;
    let repeated = journal.started() - 12_000;
    assert!(repeated_before_the_end <= repeated && repeated <= 4 * 2 * WINDOW, "{repeated} repeated after 4 kills");
    assert_eq!(journal.counts().len(), 12_000);
    fleet.assert_clean("quick").await;
}

/// Every other task is stuck, so the map of completed offsets is a bitmap without long runs: full after some 18,000
/// offsets.
#[tokio::test(flavor = "multi_thread")]
async fn full_map_of_completed_offsets_stops_new_tasks_until_it_shrinks() {
    const TASKS: usize = 24_000;
    let journal = Journal::default();
    let gate = Gate::closed();
    let inner = journal.clone();
    let hold = gate.clone();
    let kind = Kind::new("holes", move |params: Value, cx| {
        let journal = inner.clone();
        let gate = hold.clone();
        async move {
            let _run = journal.begin(&cx);
            if params.as_u64().unwrap().is_multiple_of(2) {
                gate.pass("all").await;
            }
            ok(Value::Null)
        }
    });
    let (fleet, _) = memory(1, &[kind.slots(20_000)]).await;
    let sends = (0..TASKS).map(|n| {
        let fleet = &fleet;
        let id = format!("t{n}");
        let params = n.to_string();
        async move { (fleet.send_to("holes", 0, &id, &params).await.offset, id) }
    });
    let offsets = futures::future::join_all(sends).await;
    let first = fleet.worker();
    let full = |metadata: &str| metadata.len() > kafleet::model::offsets::FULL_METADATA_BYTES;
    let mut last = (0, 0);
    eventually("the metadata is full, and no task has started for some commits", async || {
        let metadata =
            fleet.committed("holes").await[0].clone().map_or_else(String::new, |committed| committed.metadata);
        assert!(metadata.len() <= kafleet::model::offsets::MAX_METADATA_BYTES);
        let before = std::mem::replace(&mut last, (journal.started(), metadata.len()));
        // Not a wait for a condition, but ten intervals of commits: a worker that goes on starts a task in one of them.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        if full(&metadata) && last == before { Ok(()) } else { Err(last) }
    })
    .await;
    let held = r#"kafleet_window_held_offset{partition="0",type="holes"} 0"#;
    assert!(first.metrics.render().contains(held), "the metric has the offset");
    first.kill().await;
    let begun = journal.started();
    assert!(begun < TASKS, "new tasks stopped at {begun}");
    let left = fleet.committed("holes").await[0].clone().unwrap();
    let left = Metadata::decode(left.offset, &left.metadata).unwrap().completed;
    let second = fleet.worker();
    gate.open();
    fleet.wait_for_results(TASKS).await;
    eventually("the metric is removed", async || !second.metrics.render().contains("kafleet_window_held_offset{"))
        .await;
    second.stop().await;
    let counts = journal.counts();
    let twice = offsets.iter().find(|(offset, id)| left.is_done(*offset) && counts[id.as_str()] != 1);
    assert_eq!(twice, None, "tasks committed as complete are not repeated");
    assert!(left.done_above() > 7_000, "completed above the watermark: {}", left.done_above());
    fleet.assert_clean("holes").await;
}

/// Retention removes more than a window of records while no worker runs.
#[tokio::test(flavor = "multi_thread")]
async fn log_that_starts_after_the_commit_is_resumed_at_its_start() {
    let journal = Journal::default();
    let (fleet, broker) = memory(1, &[counted("kept", &journal)]).await;
    fleet.send("kept", "first", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(1).await;
    worker.stop().await;
    fleet.send_many("kept", "t", 1_000, "0").await;
    broker.truncate_before(&tasks(&fleet, "kept"), 900).unwrap();
    let worker = fleet.worker();
    fleet.wait_for_results(102).await;
    worker.stop().await;
    assert_eq!(journal.started(), 102, "offsets 900 to 1000, and the first task before");
    fleet.assert_clean("kept").await;
}

/// A gap in the middle of the log, as left by aborted transactions and compaction.
#[tokio::test(flavor = "multi_thread")]
async fn gap_larger_than_the_window_is_skipped() {
    let journal = Journal::default();
    let (fleet, broker) = memory(1, &[counted("gaps", &journal)]).await;
    fleet.send("gaps", "before", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(1).await;
    fleet.wait_committed("gaps").await;
    write_gap(&fleet, &broker, "gaps", 2_000).await;
    fleet.send("gaps", "after", "0").await;
    fleet.wait_for_results(2).await;
    worker.stop().await;
    assert_eq!(journal.starts(), ["before", "after"]);
    let committed = fleet.committed("gaps").await[0].clone().unwrap();
    assert_eq!(committed.offset, fleet.end_of(&fleet.names.tasks("gaps"), 0).await);
}

/// Appends an aborted transaction with a number of records.
async fn write_gap(fleet: &Fleet, broker: &MemoryBroker, task_type: &str, records: usize) {
    let topic = fleet.names.tasks(task_type);
    broker.hold_transactions("gap", true);
    let record = kafleet::broker::ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: None,
        value: Some(b"never"),
        headers: &[],
    };
    let all = vec![record; records];
    tokio::task::block_in_place(|| broker.transactional_producer("gap").unwrap().send_all(&all, DEADLINE)).unwrap_err();
    assert!(broker.end_transaction("gap", false));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partition_is_read_from_its_start_and_marked_as_consumed() {
    let journal = Journal::default();
    let (fleet, broker) = memory(2, &[counted("new", &journal)]).await;
    fleet.send_many("new", "t", 50, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(50).await;
    worker.stop().await;
    let control = kafleet::control::settings::read_control(&BrokerClient::new(broker), &fleet.names).await.unwrap();
    assert!(control.is_consumed("new", 0) && control.is_consumed("new", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn consumed_partition_without_a_commit_is_refused_with_a_hint() {
    let journal = Journal::default();
    let (fleet, broker) = memory(2, &[counted("gone", &journal)]).await;
    fleet.send_many("gone", "t", 50, "0").await;
    fleet.worker().stop_after(&fleet, 50).await;
    broker.expire_groups();
    fleet.send_many("gone", "more", 10, "0").await;
    // An operator commits an offset for one of the two partitions; the other one stays refused.
    let commit = Commit { partition: tasks(&fleet, "gone"), offset: 0, metadata: String::new() };
    broker.set_group_offsets(&fleet.names.group("gone"), &[commit], DEADLINE).unwrap();
    let worker = fleet.worker();
    let refused = || worker.health.reasons().into_iter().find(|(part, _)| part.ends_with("/1"));
    eventually("the health names the partition", async || refused().is_some()).await;
    let reason = refused().unwrap().1;
    assert!(reason.contains("partition 1 of `kafleet.tasks.gone`") && reason.contains("commit is missing"), "{reason}");
    assert!(
        reason.contains("choose its start offset with `kafleet offsets init gone/1 --at earliest|OFFSET|TIME`"),
        "{reason}"
    );
    eventually("the other partition is processed", async || journal.counts().values().any(|count| *count > 1)).await;
    worker.stop().await;
    let committed = fleet.committed("gone").await;
    assert!(
        committed[0].is_some() && committed[1].is_none(),
        "nothing is committed for the refused partition: {committed:?}"
    );
}

/// A refused partition is released in a rebalance like any other.
#[tokio::test(flavor = "multi_thread")]
async fn refused_partition_can_move_to_another_worker() {
    let journal = Journal::default();
    let (fleet, broker) = memory(2, &[counted("gone", &journal)]).await;
    fleet.send_many("gone", "t", 20, "0").await;
    fleet.worker().stop_after(&fleet, 20).await;
    broker.expire_groups();
    let first = fleet.worker();
    let refused = |worker: &Worker| worker.health.reasons().iter().filter(|(part, _)| part.contains('/')).count();
    eventually("both partitions are refused", async || refused(&first) == 2).await;
    let second = fleet.worker();
    eventually("each worker has one partition", async || (refused(&first), refused(&second)) == (1, 1)).await;
    first.stop().await;
    second.stop().await;
}

/// Commits of other programs have other metadata or none; their offset is used.
#[tokio::test(flavor = "multi_thread")]
async fn commit_with_foreign_metadata_is_a_start_offset() {
    for metadata in ["", "kf9 open 1 2 3", "something else"] {
        let journal = Journal::default();
        let (fleet, broker) = memory(1, &[counted("moved", &journal)]).await;
        fleet.send_many("moved", "t", 50, "0").await;
        let commit = Commit { partition: tasks(&fleet, "moved"), offset: 20, metadata: metadata.into() };
        broker.set_group_offsets(&fleet.names.group("moved"), &[commit], DEADLINE).unwrap();
        let worker = fleet.worker();
        fleet.wait_for_results(30).await;
        worker.stop().await;
        assert_eq!(journal.started(), 30, "with {metadata:?}");
        fleet.assert_clean("moved").await;
    }
}

/// The documented formats, written by hand.
#[tokio::test(flavor = "multi_thread")]
async fn handwritten_metadata_is_applied() {
    // From offset 2 on: 3 not done, 1 done, 4 not done. Of the second format: read to 10, and 2 to 9 were claimed.
    for metadata in ["kf1 open 9 0 r:AwEE", "kf2 open 0 10 r:AAg r:AwEE"] {
        let journal = Journal::default();
        let (fleet, broker) = memory(1, &[counted("hand", &journal)]).await;
        fleet.send_many("hand", "t", 10, "0").await;
        let commit = Commit { partition: tasks(&fleet, "hand"), offset: 2, metadata: metadata.into() };
        broker.set_group_offsets(&fleet.names.group("hand"), &[commit], DEADLINE).unwrap();
        let worker = fleet.worker();
        fleet.wait_for_results(7).await;
        worker.stop().await;
        let ran: HashSet<String> = journal.starts().into_iter().collect();
        assert_eq!(ran, [2, 3, 4, 6, 7, 8, 9].map(|n| format!("t{n}")).into(), "{metadata}");
        fleet.assert_clean("hand").await;
    }
}

/// A commit beyond the log's end is refused, because the topic was recreated, until a start offset is chosen.
pub async fn recreated(fleet: Fleet, journal: Journal) {
    fleet.send_many("recreated", "t", 5, "0").await;
    let commit = Commit { partition: tasks(&fleet, "recreated"), offset: 500, metadata: "kf1 clean 500 0 -".into() };
    let broker = fleet.broker.clone();
    let group = fleet.names.group("recreated");
    tokio::task::block_in_place(|| broker.set_group_offsets(&group, &[commit], DEADLINE)).unwrap();
    let worker = fleet.worker();
    let reason = || worker.health.reasons().into_iter().find(|(_, reason)| reason.contains("recreated"));
    eventually("the health report contains the reason", async || reason().is_some()).await;
    assert!(reason().unwrap().1.contains("`kafleet offsets init recreated/0 --at"), "{:?}", reason());
    worker.stop().await;
    assert_eq!(fleet.committed("recreated").await[0].as_ref().unwrap().offset, 500, "the commit is unchanged");
    let worker = fleet.worker();
    eventually("the partition is refused again", async || {
        worker.health.reasons().iter().any(|(_, reason)| reason.contains("recreated"))
    })
    .await;
    fleet
        .put_control(
            ControlKey::Offsets("recreated".into(), 0),
            ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 2 }),
        )
        .await;
    fleet.wait_for_results(3).await;
    eventually("the worker is healthy", async || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    assert_eq!(journal.starts(), ["t2", "t3", "t4"]);
    fleet.assert_clean("recreated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_topic_is_refused_until_a_start_offset_is_chosen() {
    let journal = Journal::default();
    let (fleet, _) = memory(1, &[counted("recreated", &journal)]).await;
    recreated(fleet, journal).await;
}

impl Worker {
    pub async fn stop_after(self, fleet: &Fleet, results: usize) {
        fleet.wait_for_results(results).await;
        self.stop().await;
    }
}
