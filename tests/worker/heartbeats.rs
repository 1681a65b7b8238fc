//! What workers tell of themselves.

use std::time::Instant;

use kafleet::broker::{Broker, Commit, Partition};
use kafleet::config::Alarm;
use kafleet::control::heartbeat::{Heartbeat, HeartbeatState};
use kafleet::handlers::Failure;
use kafleet::model::units::duration::Millis;

use crate::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::types::{Gate, Journal, Kind, gated};

pub async fn last_beat(fleet: &Fleet) -> Heartbeat {
    let records = fleet.records(&fleet.names.workers(), 1, 1).await;
    let record = records.last().unwrap();
    let beat: Heartbeat = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(record.key.as_deref(), Some(beat.id.as_bytes()));
    beat
}

/// The newest heartbeat that is as it should be.
pub async fn beat_where(fleet: &Fleet, what: &str, holds: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
    let end = Instant::now() + DEADLINE;
    loop {
        let beat = last_beat(fleet).await;
        if holds(&beat) {
            return beat;
        }
        assert!(Instant::now() < end, "{what}: {beat:?}");
        pause().await;
    }
}

/// Whoever looks at the workers sees why nothing goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_what_stands_still() {
    let mut kind = Kind::new("shaky", |_, _| async { Err(Failure::retry("the disk is full")) }).retries(1_000, Millis(1));
    kind.registered.policy.alarm = Some(Alarm { max_failures: 5, period: Millis::secs(60) });
    let (fleet, broker) = memory(2, &[kind]).await;
    fleet.send("shaky", "t", "0").await;
    let worker = fleet.worker();
    let beat = beat_where(&fleet, "the type has stopped", |beat| beat.types[0].stopped.is_some()).await;
    let why = beat.types[0].stopped.as_deref().unwrap();
    assert!(why.contains("more than 5 attempts failed") && why.contains("the disk is full"), "{why}");
    assert_eq!((&beat.types[0].refused[..], &beat.types[0].partitions[..]), (&[][..], &[0, 1][..]));
    let control =
        || tokio::task::block_in_place(|| kafleet::control::settings::read_control(&*broker, &fleet.names, DEADLINE)).unwrap();
    until("both are marked as consumed", || (0..2).all(|index| control().is_consumed("shaky", index))).await;
    worker.stop().await;
    broker.expire_groups();
    // One of the two is put right by hand.
    let commit = Commit { partition: Partition::new(fleet.names.tasks("shaky"), 0), offset: 0, metadata: String::new() };
    broker.set_group_offsets(&fleet.names.group("shaky"), &[commit], DEADLINE).unwrap();
    let worker = fleet.worker();
    let beat = beat_where(&fleet, "one is refused", |beat| !beat.types[0].refused.is_empty()).await;
    assert_eq!((&beat.types[0].refused[..], &beat.types[0].partitions[..]), (&[1][..], &[0, 1][..]));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_what_it_does_and_that_it_stops() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(2, &[gated("work", &journal, &gate).slots(150)]).await;
    fleet.send_many("work", "t", 120, "0").await;
    let worker = fleet.worker();
    until("all run", || journal.running() == 120).await;
    let beat = beat_where(&fleet, "all are told", |beat| beat.types[0].in_flight == 120).await;
    assert_eq!((beat.state, beat.running.len()), (HeartbeatState::Running, 100));
    let part = &beat.types[0];
    assert_eq!((part.task_type.as_str(), part.slots, part.paused, &part.partitions[..]), ("work", 150, false, &[0, 1][..]));
    assert!(beat.held_bytes > 0 && beat.started_ms > 0 && beat.running[0].began_ms >= beat.started_ms);
    gate.open();
    fleet.wait_for_results(120).await;
    worker.stop().await;
    let beat = last_beat(&fleet).await;
    assert_eq!((beat.state, beat.types[0].finished.get("succeeded")), (HeartbeatState::Stopped, Some(&120)));
    assert!(!beat.unfinished, "nothing of what it had begun is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_tells_that_it_leaves_something_unfinished() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(1, &[gated("work", &journal, &gate)]).await;
    fleet.config.drain_timeout = Millis(100);
    fleet.send("work", "t", "0").await;
    let worker = fleet.worker();
    until("it is said to run", || fleet.kinds_of("t").iter().any(|kind| kind == "started")).await;
    worker.stop().await;
    let beat = last_beat(&fleet).await;
    assert_eq!((beat.state, beat.unfinished), (HeartbeatState::Stopped, true));
}
