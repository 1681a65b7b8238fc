//! Checks of what runs: the clock of this machine, open transactions, and the clocks and keys of workers.

use std::sync::Arc;

use kafleet_broker::{BrokerClient, Partition, TopicInfo};
use kafleet_config::Names;
use kafleet_documents::{WorkerDocument, WorkerState, Workers};
use kafleet_fleet::control::learn_broker_time;
use kafleet_model::units::time::time_text;
use kafleet_runtime::clock::skew_text;

use super::Diagnosis;
use crate::cli::client::Client;
use crate::cli::setup::CALL_DEADLINE;

/// Compares the clock of this machine with the brokers'.
pub(super) async fn check_clock(client: &BrokerClient, names: &Names) -> Diagnosis {
    let producer = match client.shared_producer(None).await {
        Ok(producer) => producer,
        Err(error) => return Diagnosis::warning("clock", format!("the brokers' time cannot be read: {error}")),
    };
    match tokio::time::timeout(CALL_DEADLINE, learn_broker_time(&producer, names)).await {
        Ok(()) => clock_finding(kafleet_runtime::clock_ahead_ms()),
        Err(_) => Diagnosis::warning("clock", "the brokers' time cannot be read: no answer to a record"),
    }
}

pub(super) fn clock_finding(ahead_ms: i64) -> Diagnosis {
    match skew_text(ahead_ms) {
        None => Diagnosis::ok("clock", "that of this machine is the brokers'"),
        Some(skew) => Diagnosis::warning("clock", format!("that of this machine is {skew}")).hint(
            "synchronise it; kafleet uses the brokers' clock, but programs that producers and handlers run may not",
        ),
    }
}

/// Reports partitions of the fleet that open transactions hold back.
pub(super) async fn check_transactions(client: &BrokerClient, present: &[TopicInfo]) -> Vec<Diagnosis> {
    let of_topic = |info: &TopicInfo| {
        let topic: Arc<str> = info.name.as_str().into();
        (0..).take(info.partitions as usize).map(move |index| Partition::new(topic.clone(), index))
    };
    let transactions = client.open_transactions(present.iter().flat_map(of_topic).collect()).await;
    let held = match transactions {
        Ok(held) => held,
        Err(error) => return vec![Diagnosis::warning("transactions", error.to_string())],
    };
    let finding = |held: &kafleet_broker::OpenTransaction| {
        let since = time_text(held.since_ms);
        let message = format!("an open transaction holds it back since {since}, from offset {}", held.offset);
        Diagnosis::warning(held.partition.to_string(), message).hint(
            "find its producer with Kafka's `kafka-transactions.sh`; when that is gone, Kafka aborts the transaction after \
             its `transaction.timeout.ms`",
        )
    };
    held.iter().map(finding).collect()
}

/// Reports live workers whose clocks differ from the brokers', and keys in other partitions than they belong into. An API that
/// does not answer has a finding of its own.
pub(super) async fn check_workers(client: &Client) -> Vec<Diagnosis> {
    match client.get::<Workers>(&["v1", "workers"], &Vec::new()).await {
        Ok(answer) => answer.workers.iter().flat_map(worker_findings).collect(),
        Err(_) => Vec::new(),
    }
}

pub(super) fn worker_findings(worker: &WorkerDocument) -> Vec<Diagnosis> {
    if !matches!(worker.state, WorkerState::Alive | WorkerState::Draining) {
        return Vec::new();
    }
    let clock = skew_text(worker.clock_ahead_ms).map(|skew| {
        Diagnosis::warning(format!("worker {}", worker.id), format!("the clock of `{}` is {skew}", worker.host))
            .hint("synchronise it; kafleet uses the brokers' clock, but the programs of handlers may not")
    });
    let keys = worker.types.iter().filter_map(|status| {
        let example = status.misplaced_keys.as_ref()?;
        let message = format!("keys are in other partitions than they belong into, such as {example}");
        Some(Diagnosis::warning(format!("type {}", status.task_type), message).hint(
            "attempts of one key may overlap: set the partitioner of all producers to murmur2 \
             (`partitioner=murmur2_random` in librdkafka)",
        ))
    });
    clock.into_iter().chain(keys).collect()
}
