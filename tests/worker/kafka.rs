//! Main cases of the worker tests, on a real Kafka. The cases are shared with the tests on the in-memory broker.

use std::sync::Arc;

use kafleet::broker::Partition;
use kafleet::config::Order;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::worker::commits::{one_stuck, recreated, restart_with_metadata};
use crate::worker::fleet::{DEADLINE, kafka, kafka_with};
use crate::worker::held_retries::{self, moves, restarts};
use crate::worker::malformed::{malformed_records, strict};
use crate::worker::outcomes::{failing, retries_until_exhausted};
use crate::worker::rebalance::{added_partitions, brief, rolling};
use crate::worker::removed::{
    commits_skip_only_removed_records_that_no_worker_has, lag_is_zero_after_a_transaction, one_slot,
};
use crate::worker::results::{every_end_is_published, plain, replies_are_correlated, with_results};
use crate::worker::types::{Gate, Journal, counted};

#[tokio::test(flavor = "multi_thread")]
async fn task_is_retried_until_attempts_are_exhausted() {
    let Some(fleet) = kafka(1, &[failing()]).await else { return };
    retries_until_exhausted(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_records_become_dead_letters_with_reasons() {
    let Some(fleet) = kafka(1, &[strict()]).await else { return };
    malformed_records(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_topic_has_every_end() {
    let Some(fleet) = kafka(1, &[with_results()]).await else { return };
    every_end_is_published(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_have_the_headers_of_the_producer_that_name_a_correlation() {
    let Some(fleet) = kafka(1, &[plain(), with_results()]).await else { return };
    replies_are_correlated(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_repeats_only_incomplete_tasks() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let Some(fleet) = kafka(1, &[one_stuck(&journal, &gate)]).await else { return };
    restart_with_metadata(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_topic_is_refused_until_a_start_offset_is_chosen() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[counted("recreated", &journal)]).await else { return };
    recreated(fleet, journal).await;
}

/// Deletes all records below an offset, as retention would.
fn delete_records(partition: &Partition, offset: i64) {
    let servers = std::env::var("KAFLEET_TEST_KAFKA").unwrap();
    let client: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&partition.topic, partition.index, Offset::Offset(offset)).unwrap();
    let options = AdminOptions::new().request_timeout(Some(DEADLINE)).operation_timeout(Some(DEADLINE));
    let deleted = futures::executor::block_on(client.delete_records(&offsets, &options)).unwrap();
    assert!(deleted.elements().iter().all(|element| element.error().is_ok()), "{deleted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_skip_only_removed_records_that_no_worker_has_on_kafka() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let Some(fleet) = kafka(1, &[one_slot(&journal, &gate)]).await else { return };
    commits_skip_only_removed_records_that_no_worker_has(fleet, journal, gate, Arc::new(delete_records)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_is_zero_behind_a_transaction_on_kafka() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let Some(fleet) = kafka(1, &[one_slot(&journal, &gate)]).await else { return };
    lag_is_zero_after_a_transaction(fleet, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn added_partitions_are_consumed() {
    let journal = Journal::default();
    // kafleet's clients refresh their metadata, and so find added partitions, every 30 s by default.
    let settings = [("topic.metadata.refresh.interval.ms", "500"), ("heartbeat.interval.ms", "300")];
    let Some(fleet) = kafka_with(&settings, 1, &[brief(&journal)]).await else { return };
    added_partitions(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_join_and_leave_under_load_without_loss_or_repetition() {
    let journal = Journal::default();
    let Some(fleet) = kafka(6, &[brief(&journal)]).await else { return };
    rolling(fleet, journal, 6_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_go_on_after_restarts_of_the_worker() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[held_retries::failing(&journal).order(Order::Key)]).await else { return };
    restarts(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_go_on_in_another_worker() {
    let journal = Journal::default();
    let Some(fleet) = kafka(4, &[held_retries::failing(&journal)]).await else { return };
    moves(fleet, journal).await;
}
