//! Partitions whose next offset is outside their log: retention was faster, or the topic was recreated.

use std::sync::Arc;

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{Broker, BrokerError, Commit, GroupEvent, Partition, Watermarks};
use kafleet::control::{ControlKey, ControlRecord, Offsets};
use kafleet::model::offsets::Metadata;
use kafleet_testkit::faults::{FaultRules, polls_of_groups, send, watermarks};
use serde_json::Value;

use crate::worker::fleet::{DEADLINE, Fleet, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, ok};

async fn faulty_fleet(kind: Kind) -> (Fleet, Arc<MemoryBroker>, FaultRules) {
    let (mut fleet, inner) = memory(1, &[kind]).await;
    let faults = fleet.add_faults();
    (fleet, inner, faults)
}

#[tokio::test(flavor = "multi_thread")]
async fn partition_behind_its_log_continues_at_the_start_once_the_broker_answers() {
    let journal = Journal::default();
    let (fleet, inner, faults) = faulty_fleet(counted("removed", &journal)).await;
    fleet.send_many("removed", "t", 10, "0").await;
    let partition = Partition::new(fleet.names.tasks("removed"), 0);
    let commit = Commit { partition: partition.clone(), offset: 2, metadata: "kf1 clean 2 0 -".into() };
    inner.set_group_offsets(&fleet.names.group("removed"), &[commit], DEADLINE).unwrap();
    inner.truncate_before(&partition, 5).unwrap();
    let silent = faults.on(watermarks(".tasks.")).fail(BrokerError::Unavailable("no answer in time".into()));
    let worker = fleet.worker();
    let is_reported = || {
        worker
            .health
            .reasons()
            .into_iter()
            .any(|(part, reason)| part.ends_with("/0") && reason.contains("outside its log"))
    };
    eventually("the health names the partition", async || is_reported()).await;
    silent.lift();
    fleet.wait_for_results(5).await;
    eventually("the worker is healthy", async || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    assert_eq!(journal.started(), 5, "remaining tasks: {:?}", journal.starts());
    fleet.assert_clean("removed").await;
}

/// A type whose tasks end at once the first time, and wait at the gate when they run again.
fn gated_on_repeat(journal: &Journal, gate: &Gate) -> Kind {
    let journal = journal.clone();
    let gate = gate.clone();
    Kind::new("recreated", move |_, cx| {
        let journal = journal.clone();
        let gate = gate.clone();
        async move {
            let _run = journal.begin(&cx);
            if journal.counts()[cx.id.as_str()] > 1 {
                gate.pass(cx.id.as_str()).await;
            }
            ok(Value::Null)
        }
    })
}

/// Late results of the old log must not complete records of the new one with the same offsets.
#[tokio::test(flavor = "multi_thread")]
async fn late_results_do_not_complete_offsets_of_a_recreated_topic() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _, faults) = faulty_fleet(gated_on_repeat(&journal, &gate)).await;
    fleet.send_many("recreated", "t", 5, "0").await;
    let holding = faults.on(send(".events")).hold();
    let worker = fleet.worker();
    let is_result = |value: &[u8]| String::from_utf8_lossy(value).contains(r#""kind":"succeeded""#);
    eventually("all tasks have run", async || holding.held_records(is_result) == 5).await;
    let recreated = faults.on(watermarks(".tasks.")).answer(Watermarks { low: 0, high: 0 });
    let partition = Partition::new(fleet.names.tasks("recreated"), 0);
    faults.on(polls_of_groups).times(1).answer(vec![GroupEvent::OutOfRange(partition)]);
    eventually("the partition is refused", async || {
        worker.health.reasons().iter().any(|(_, reason)| reason.contains("recreated"))
    })
    .await;
    recreated.lift();
    fleet
        .put_control(
            ControlKey::Offsets("recreated".into(), 0),
            ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 0 }),
        )
        .await;
    eventually("the tasks of the new log run", async || journal.started() == 10).await;
    holding.lift();
    fleet.send("recreated", "t5", "0").await;
    fleet.wait_for_results(6).await;
    let completed = eventually("the last task is committed", async || {
        let committed = fleet.committed("recreated").await[0].clone()?;
        let completed = Metadata::decode(committed.offset, &committed.metadata)?.completed;
        completed.is_done(5).then_some(completed)
    })
    .await;
    assert_eq!((0..5).find(|offset| completed.is_done(*offset)), None, "running tasks are not committed as complete");
    gate.open();
    worker.stop().await;
    fleet.assert_clean("recreated").await;
}
