//! Records that Kafka has removed, and places of the log that hold no task: what commits say of them.

use std::sync::Arc;
use std::time::Instant;

use kafleet::broker::{Partition, ProducerRecord};
use kafleet::model::offsets::Metadata;
use kafleet::runtime::blocking;

use crate::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::heartbeats::beat_where;
use crate::types::{Gate, Journal, Kind, gated};

pub const TYPE: &str = "removed";

/// One slot, so that all but one wait in the worker.
pub fn one_slot(journal: &Journal, gate: &Gate) -> Kind {
    gated(TYPE, journal, gate).slots(1)
}

/// Removes the records of a partition before an offset.
pub type Remove = Arc<dyn Fn(&Partition, i64) + Send + Sync>;

async fn passed(fleet: &Fleet) -> Metadata {
    let committed = fleet.committed(TYPE).await[0].clone().expect("a commit");
    Metadata::decode(committed.offset, &committed.metadata).expect("our metadata")
}

/// Trackers take for lost what a commit passes and nobody has reported.
pub async fn commits_pass_only_removed_records_that_no_worker_has(fleet: Fleet, journal: Journal, gate: Gate, remove: Remove) {
    let place = Partition::new(fleet.names.tasks(TYPE), 0);
    let removed = |offset: i64| {
        let (remove, place) = (remove.clone(), place.clone());
        async move { blocking(move || remove(&place, offset)).await.unwrap() }
    };
    fleet.send_many(TYPE, "a", 10, "0").await;
    let worker = fleet.worker();
    beat_where(&fleet, "nine wait", |beat| beat.types[0].in_flight == 1 && beat.types[0].waiting == 9).await;
    removed(10).await;
    // The worker reads on, which it could not if it had noticed nothing of a place outside the log.
    fleet.send_many(TYPE, "b", 5, "0").await;
    beat_where(&fleet, "fourteen wait", |beat| beat.types[0].waiting == 14).await;
    let now = passed(&fleet).await.completed;
    assert_eq!((0..15).find(|offset| now.is_done(*offset)), None, "all of them wait");
    gate.open();
    fleet.wait_for_results(15).await;
    worker.stop().await;
    fleet.send_many(TYPE, "c", 5, "0").await;
    removed(20).await;
    let worker = fleet.worker();
    // Nothing is left that could be delivered: the worker itself says that it has passed them.
    fleet.wait_committed(TYPE).await;
    assert_eq!(passed(&fleet).await.completed.watermark(), 20);
    fleet.send(TYPE, "d", "0").await;
    fleet.wait_for_results(16).await;
    worker.stop().await;
    assert_eq!(journal.started(), 16);
    fleet.assert_clean(TYPE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_pass_only_removed_records_that_no_worker_has_in_memory() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, broker) = memory(1, &[one_slot(&journal, &gate)]).await;
    let remove = Arc::new(move |place: &Partition, offset| broker.truncate_before(place, offset).unwrap());
    commits_pass_only_removed_records_that_no_worker_has(fleet, journal, gate, remove).await;
}

/// The marker that ends a transaction is no task: when all tasks are done, nothing is left to do.
pub async fn lag_is_zero_behind_a_transaction(fleet: Fleet, gate: Gate) {
    gate.open();
    let (broker, topic) = (fleet.broker.clone(), fleet.names.tasks(TYPE));
    let send = move || {
        let headers: [(&str, &[u8]); 1] = [("ce_id", b"t")];
        let record = ProducerRecord { topic: &topic, partition: Some(0), key: None, value: Some(b"0"), headers: &headers };
        broker.atomic_producer("lag")?.send_all(&[record], DEADLINE)
    };
    blocking(send).await.unwrap().unwrap();
    let worker = fleet.worker();
    fleet.wait_for_results(1).await;
    let end = Instant::now() + DEADLINE;
    while fleet.end_of(&fleet.names.tasks(TYPE), 0).await < 2 {
        assert!(Instant::now() < end, "there is no marker");
        pause().await;
    }
    fleet.wait_committed(TYPE).await;
    let lag = format!("kafleet_partition_lag_records{{partition=\"0\",topic=\"{}\"}} 0", fleet.names.tasks(TYPE));
    until("the lag is told", || worker.metrics.render().contains(&lag)).await;
    worker.stop().await;
    fleet.assert_clean(TYPE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_is_zero_behind_a_transaction_in_memory() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(1, &[one_slot(&journal, &gate)]).await;
    lag_is_zero_behind_a_transaction(fleet, gate).await;
}
