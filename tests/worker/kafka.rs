//! The core cases on a real Kafka.

use crate::answers::{failing, retries_until_exhausted};
use crate::children::{results_for_others, told};
use crate::commits::{made_anew, one_stuck, restart_with_metadata};
use crate::fleet::{kafka, kafka_with};
use crate::malformed::{malformed_records, strict};
use crate::rebalance::{added_partitions, brief, rolling};
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
