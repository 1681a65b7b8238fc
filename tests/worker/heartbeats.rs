//! Heartbeats of workers.

use kafleet::broker::{Broker, Commit, Partition};
use kafleet::control::heartbeat::{Heartbeat, HeartbeatState};
use kafleet::handlers::Failure;
use kafleet::model::units::duration::Millis;

use crate::worker::fleet::{DEADLINE, Fleet, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated};

pub async fn last_heartbeat(fleet: &Fleet) -> Heartbeat {
    let records = fleet.records(&fleet.names.workers(), 1, 1).await;
    let record = records.last().unwrap();
    let heartbeat: Heartbeat = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(record.key.as_deref(), Some(heartbeat.id.as_bytes()));
    heartbeat
}

/// Waits for a heartbeat that satisfies the condition.
pub async fn wait_for_heartbeat(fleet: &Fleet, subject: &str, holds: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
    eventually(subject, async || {
        let heartbeat = last_heartbeat(fleet).await;
        if holds(&heartbeat) { Ok(heartbeat) } else { Err(heartbeat) }
    })
    .await
}

/// Heartbeats contain the reasons for which no tasks are started.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_contains_stopped_types_and_refused_partitions() {
    let mut kind =
        Kind::new("failing", |_, _| async { Err(Failure::retry("the disk is full")) }).retries(1_000, Millis(1));
    (kind.registered.policy.max_failures, kind.registered.policy.failure_period) = (Some(5), Millis::secs(60));
    let (fleet, broker) = memory(2, &[kind]).await;
    fleet.send("failing", "t", "0").await;
    let worker = fleet.worker();
    let heartbeat =
        wait_for_heartbeat(&fleet, "the type has stopped", |heartbeat| heartbeat.types[0].stopped.is_some()).await;
    let reason = heartbeat.types[0].stopped.as_deref().unwrap();
    assert!(reason.contains("more than 5 attempts failed") && reason.contains("the disk is full"), "{reason}");
    assert_eq!((&heartbeat.types[0].refused[..], &heartbeat.types[0].partitions[..]), (&[][..], &[0, 1][..]));
    let control = || {
        let read = kafleet::control::settings::read_control_blocking;
        tokio::task::block_in_place(|| read(&*broker, &fleet.names, DEADLINE)).unwrap()
    };
    eventually("both partitions are marked as consumed", async || {
        (0..2).all(|index| control().is_consumed("failing", index))
    })
    .await;
    worker.stop().await;
    broker.expire_groups();
    // An operator commits an offset for one of the two partitions.
    let commit =
        Commit { partition: Partition::new(fleet.names.tasks("failing"), 0), offset: 0, metadata: String::new() };
    broker.set_group_offsets(&fleet.names.group("failing"), &[commit], DEADLINE).unwrap();
    let worker = fleet.worker();
    let heartbeat =
        wait_for_heartbeat(&fleet, "one partition is refused", |heartbeat| !heartbeat.types[0].refused.is_empty())
            .await;
    assert_eq!((&heartbeat.types[0].refused[..], &heartbeat.types[0].partitions[..]), (&[1][..], &[0, 1][..]));
    worker.stop().await;
}

/// A partition whose first commit was made by `kafleet offsets init` is marked as consumed too: a later loss of its commit
/// is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn partition_with_an_early_commit_is_refused_once_its_commit_is_lost() {
    let journal = Journal::default();
    let (fleet, broker) = memory(1, &[counted("early", &journal)]).await;
    fleet.send_many("early", "t", 10, "0").await;
    let commit =
        Commit { partition: Partition::new(fleet.names.tasks("early"), 0), offset: 4, metadata: String::new() };
    broker.set_group_offsets(&fleet.names.group("early"), &[commit], DEADLINE).unwrap();
    let worker = fleet.worker();
    fleet.wait_for_results(6).await;
    worker.stop().await;
    broker.expire_groups();
    let worker = fleet.worker();
    wait_for_heartbeat(&fleet, "the partition is refused", |heartbeat| heartbeat.types[0].refused == [0]).await;
    worker.stop().await;
    assert_eq!(journal.started(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_contains_running_tasks_and_the_stop() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(2, &[gated("work", &journal, &gate).slots(150)]).await;
    fleet.send_many("work", "t", 120, "0").await;
    let worker = fleet.worker();
    eventually("all run", async || journal.running() == 120).await;
    let heartbeat =
        wait_for_heartbeat(&fleet, "all tasks are running", |heartbeat| heartbeat.types[0].in_flight == 120).await;
    assert_eq!((heartbeat.state, heartbeat.running.len()), (HeartbeatState::Running, 100));
    let part = &heartbeat.types[0];
    assert_eq!(
        (part.task_type.as_str(), part.slots, part.paused, &part.partitions[..]),
        ("work", 150, false, &[0, 1][..])
    );
    assert!(
        heartbeat.held_bytes > 0 && heartbeat.started_ms > 0 && heartbeat.running[0].started_ms >= heartbeat.started_ms
    );
    gate.open();
    fleet.wait_for_results(120).await;
    worker.stop().await;
    let heartbeat = last_heartbeat(&fleet).await;
    assert_eq!((heartbeat.state, heartbeat.types[0].finished.get("succeeded")), (HeartbeatState::Stopped, Some(&120)));
    assert!(!heartbeat.unfinished, "the stopped worker left no task unfinished");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_heartbeat_reports_unfinished_tasks() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (mut fleet, _) = memory(1, &[gated("work", &journal, &gate)]).await;
    fleet.config.drain_timeout = Millis(100);
    fleet.send("work", "t", "0").await;
    let worker = fleet.worker();
    eventually("the start of the task is published", async || fleet.kinds_of("t").iter().any(|kind| kind == "started"))
        .await;
    worker.stop().await;
    let heartbeat = last_heartbeat(&fleet).await;
    assert_eq!((heartbeat.state, heartbeat.unfinished), (HeartbeatState::Stopped, true));
}
