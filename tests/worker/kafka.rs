//! The core cases on a real Kafka.

use std::sync::Arc;

use kafleet::broker::Partition;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::answers::{failing, retries_until_exhausted};
use crate::children::{results_for_others, told};
use crate::commits::{made_anew, one_stuck, restart_with_metadata};
use crate::fleet::{DEADLINE, kafka, kafka_with};
use crate::malformed::{malformed_records, strict};
use crate::rebalance::{added_partitions, brief, rolling};
use crate::removed::{commits_pass_only_removed_records_that_no_worker_has, lag_is_zero_behind_a_transaction, one_slot};
use crate::types::{Gate, Journal, counted};

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_made_again_until_they_are_exhausted() {
    let Some(fleet) = kafka(1, &[failing()]).await else { return };
    retries_until_exhausted(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_records_are_dead_letters_with_reasons() {
    let Some(fleet) = kafka(1, &[strict()]).await else { return };
    malformed_records(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_published_for_a_type_that_asks_for_it() {
    let Some(fleet) = kafka(1, &[told()]).await else { return };
    results_for_others(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_repeats_only_what_was_not_finished() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let Some(fleet) = kafka(1, &[one_stuck(&journal, &gate)]).await else { return };
    restart_with_metadata(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_anew_is_refused_until_somebody_says_where_to_begin() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[counted("anew", &journal)]).await else { return };
    made_anew(fleet, journal).await;
}

/// As retention does, at once.
fn delete_records(place: &Partition, offset: i64) {
    let servers = std::env::var("KAFLEET_TEST_KAFKA").unwrap();
    let client: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    let mut places = TopicPartitionList::new();
    places.add_partition_offset(&place.topic, place.index, Offset::Offset(offset)).unwrap();
    let options = AdminOptions::new().request_timeout(Some(DEADLINE)).operation_timeout(Some(DEADLINE));
    let deleted = futures::executor::block_on(client.delete_records(&places, &options)).unwrap();
    assert!(deleted.elements().iter().all(|element| element.error().is_ok()), "{deleted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_pass_only_removed_records_that_no_worker_has_on_kafka() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let Some(fleet) = kafka(1, &[one_slot(&journal, &gate)]).await else { return };
    commits_pass_only_removed_records_that_no_worker_has(fleet, journal, gate, Arc::new(delete_records)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_is_zero_behind_a_transaction_on_kafka() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let Some(fleet) = kafka(1, &[one_slot(&journal, &gate)]).await else { return };
    lag_is_zero_behind_a_transaction(fleet, gate).await;
}

/// Clients look for them every half a minute, unless told otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn added_partitions_are_taken_up() {
    let journal = Journal::default();
    let settings = [("topic.metadata.refresh.interval.ms", "500"), ("heartbeat.interval.ms", "300")];
    let Some(fleet) = kafka_with(&settings, 1, &[brief(&journal)]).await else { return };
    added_partitions(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_come_and_go_under_load_without_loss_or_doubled_work() {
    let journal = Journal::default();
    let Some(fleet) = kafka(6, &[brief(&journal)]).await else { return };
    rolling(fleet, journal, 6_000).await;
}
