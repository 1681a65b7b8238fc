//! Commits over records that Kafka has removed, and over offsets without a task.

use std::sync::Arc;

use kafleet::broker::{Partition, ProducerRecord};
use kafleet::model::offsets::Metadata;
use kafleet::runtime::blocking;

use crate::worker::fleet::{DEADLINE, Fleet, eventually, memory};
use crate::worker::heartbeats::wait_for_heartbeat;
use crate::worker::types::{Gate, Journal, Kind, gated};

pub const TYPE: &str = "removed";

/// A type with one slot, so that all tasks but one wait in the worker.
pub fn one_slot(journal: &Journal, gate: &Gate) -> Kind {
    gated(TYPE, journal, gate).slots(1)
}

/// Removes the records of a partition before an offset.
pub type Remove = Arc<dyn Fn(&Partition, i64) + Send + Sync>;

async fn committed_metadata(fleet: &Fleet) -> Metadata {
    let committed = fleet.committed(TYPE).await[0].clone().expect("a commit");
    Metadata::decode(committed.offset, &committed.metadata).expect("our metadata")
}

/// Trackers treat tasks below the commit as lost if no worker has reported them.
pub async fn commits_skip_only_removed_records_that_no_worker_has(
    fleet: Fleet,
    journal: Journal,
    gate: Gate,
    remove: Remove,
) {
    let partition = Partition::new(fleet.names.tasks(TYPE), 0);
    let removed = |offset: i64| {
        let remove = remove.clone();
        let partition = partition.clone();
        async move { blocking(move || remove(&partition, offset)).await.unwrap() }
    };
    fleet.send_many(TYPE, "a", 10, "0").await;
    let worker = fleet.worker();
    wait_for_heartbeat(&fleet, "nine wait", |heartbeat| {
        heartbeat.types[0].in_flight == 1 && heartbeat.types[0].waiting == 9
    })
    .await;
    removed(10).await;
    // The worker continues to read, so it has handled the offset outside the log.
    fleet.send_many(TYPE, "b", 5, "0").await;
    wait_for_heartbeat(&fleet, "fourteen wait", |heartbeat| heartbeat.types[0].waiting == 14).await;
    let now = committed_metadata(&fleet).await.completed;
    assert_eq!((0..15).find(|offset| now.is_done(*offset)), None, "waiting tasks are not complete");
    gate.open();
    fleet.wait_for_results(15).await;
    worker.stop().await;
    fleet.send_many(TYPE, "c", 5, "0").await;
    removed(20).await;
    let worker = fleet.worker();
    // No record is left to deliver: the worker commits past the removed ones.
    fleet.wait_committed(TYPE).await;
    assert_eq!(committed_metadata(&fleet).await.completed.watermark(), 20);
    fleet.send(TYPE, "d", "0").await;
    fleet.wait_for_results(16).await;
    worker.stop().await;
    assert_eq!(journal.started(), 16);
    fleet.assert_clean(TYPE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_pass_only_removed_records_that_no_worker_has_in_memory() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, broker) = memory(1, &[one_slot(&journal, &gate)]).await;
    let remove = Arc::new(move |partition: &Partition, offset| broker.truncate_before(partition, offset).unwrap());
    commits_skip_only_removed_records_that_no_worker_has(fleet, journal, gate, remove).await;
}

/// The marker that ends a transaction is not a task and must not count as lag.
pub async fn lag_is_zero_after_a_transaction(fleet: Fleet, gate: Gate) {
    gate.open();
    let broker = fleet.broker.clone();
    let topic = fleet.names.tasks(TYPE);
    let send = move || {
        let headers: [(&str, &[u8]); 1] = [("ce_id", b"t")];
        let record =
            ProducerRecord { topic: &topic, partition: Some(0), key: None, value: Some(b"0"), headers: &headers };
        broker.transactional_producer("lag")?.send_all(&[record], DEADLINE)
    };
    blocking(send).await.unwrap().unwrap();
    let worker = fleet.worker();
    fleet.wait_for_results(1).await;
    let topic = fleet.names.tasks(TYPE);
    eventually("the log has a marker", async || fleet.end_of(&topic, 0).await >= 2).await;
    fleet.wait_committed(TYPE).await;
    let lag = format!("kafleet_partition_lag_records{{partition=\"0\",topic=\"{}\"}} 0", fleet.names.tasks(TYPE));
    eventually("the lag is measured", async || worker.metrics.render().contains(&lag)).await;
    worker.stop().await;
    fleet.assert_clean(TYPE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_is_zero_behind_a_transaction_in_memory() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[one_slot(&journal, &gate)]).await;
    lag_is_zero_after_a_transaction(fleet, gate).await;
}
