//! Callbacks of a consumer: they record group events for the next poll, and answer rebalances.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use super::commits::RequestOutcome;
use super::{error, native};
use crate::GroupEvent;

/// Returns all partitions to the group.
pub(super) fn unassign_all(client: &BaseConsumer<CallbackEvents>) {
    let unassigned = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.assignment().and_then(|all| client.incremental_unassign(&all)),
        _ => client.unassign(),
    };
    if let Err(error) = unassigned {
        tracing::warn!(target: "kafleet::kafka", "{}", error::of(&error, "releasing all partitions"));
    }
}

/// Events recorded by librdkafka's callbacks during a poll.
#[derive(Default)]
pub(super) struct CallbackEvents {
    recorded: Mutex<RecordedCallbacks>,
    pub closing: AtomicBool,
}

#[derive(Default)]
pub(super) struct RecordedCallbacks {
    pub events: Vec<GroupEvent>,
    commits: Vec<RequestOutcome>,
    /// Reason for the error that the poll is about to return.
    pub reason: String,
}

impl RecordedCallbacks {
    /// Takes the group events and the outcomes of commit requests.
    pub(super) fn take_recorded(&mut self) -> (Vec<GroupEvent>, Vec<RequestOutcome>) {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.commits))
    }
}

impl CallbackEvents {
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordedCallbacks> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for CallbackEvents {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, _: KafkaError, reason: &str) {
        self.lock().reason = reason.to_owned();
    }
}

impl ConsumerContext for CallbackEvents {
    fn rebalance(&self, client: &BaseConsumer<Self>, kind: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        if self.closing.load(Ordering::Acquire) {
            return unassign_all(client);
        }
        let partitions = native::entries(partitions).into_iter().map(|entry| entry.partition).collect();
        self.lock().events.push(match kind {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                accept_assignment(client);
                GroupEvent::Assigned(partitions)
            }
            _ if client.assignment_lost() => GroupEvent::Lost(partitions),
            _ => GroupEvent::Revoked(partitions),
        });
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        self.lock().commits.push((error_code(&result), native::entries(offsets)));
    }
}

fn error_code(result: &KafkaResult<()>) -> RDKafkaErrorCode {
    match result {
        Ok(()) => RDKafkaErrorCode::NoError,
        Err(error) => error::code_of(error).unwrap_or(RDKafkaErrorCode::Unknown),
    }
}

/// Accepts an assignment at once with an empty list. librdkafka pauses the already assigned partitions until it gets
/// an answer, and the owner of this consumer may take the new partitions one by one, late, or never.
fn accept_assignment(client: &BaseConsumer<CallbackEvents>) {
    let nothing = TopicPartitionList::new();
    let accepted = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_assign(&nothing),
        _ => client.assign(&nothing),
    };
    if let Err(error) = accepted {
        tracing::warn!(target: "kafleet::kafka", "{}", error::of(&error, "accepting an assignment"));
    }
}
