//! Committed offsets of the consumer's own group, and of other groups.

use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::commits::commit_and_wait;
use super::settings::Settings;
use super::{committed, error, list, native};
use crate::{BrokerError, Commit, CommittedOffset, Partition};

/// Delay before the group coordinator is queried again.
const COORDINATOR_RETRY_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn offsets(
    settings: &Settings,
    group: &str,
    partitions: &[Partition],
    deadline: Duration,
) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
    committed_of(&observer(settings, group)?, partitions, deadline)
}

pub(super) fn set_offsets(
    settings: &Settings,
    group: &str,
    commits: &[Commit],
    deadline: Duration,
) -> Result<(), BrokerError> {
    let client = observer(settings, group)?;
    commit_and_wait(client.client(), commits, deadline, &format!("setting the offsets of `{group}`"))
}

/// Opens a client with the group's id that never joins the group. librdkafka's request for the offsets of any group is no
/// alternative: in a client without a group, an answer that the coordinator has moved crashes the process (2.12).
fn observer(settings: &Settings, group: &str) -> Result<BaseConsumer<Observer>, BrokerError> {
    if group.is_empty() || group.contains('\0') {
        return Err(BrokerError::Invalid(format!("invalid group name `{}`", group.escape_debug())));
    }
    settings.observer(group).create_with_context(Observer).map_err(|error| error::of(&error, "[kafka]"))
}

/// Returns a group's committed offsets, in the order of `partitions`.
pub(super) fn committed_of<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    deadline: Duration,
) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let requested = list(partitions.iter().map(|partition| (partition, Offset::Invalid)))?;
    let entries =
        fetch(client, &requested, deadline).map_err(|error| error::of(&error, "fetching committed offsets"))?;
    let mut entries = native::entries(&entries);
    if let Some(entry) = entries.iter().find(|entry| entry.error != RDKafkaErrorCode::NoError) {
        return Err(error::of_code(entry.error, &format!("fetching the committed offset of {}", entry.partition)));
    }
    partitions
        .iter()
        .map(|partition| match entries.iter().position(|entry| entry.partition == *partition) {
            Some(n) => Ok(committed(entries.swap_remove(n))),
            None => Err(BrokerError::Unavailable(format!("no answer about the committed offset of {partition}"))),
        })
        .collect()
}

/// Retries while the group's coordinator moves or starts; librdkafka does not.
fn fetch<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    requested: &TopicPartitionList,
    deadline: Duration,
) -> Result<TopicPartitionList, KafkaError> {
    let end = Instant::now() + deadline;
    loop {
        match client.committed_offsets(requested.clone(), end.saturating_duration_since(Instant::now())) {
            Err(error) if has_no_coordinator(&error) && Instant::now() + COORDINATOR_RETRY_INTERVAL < end => {
                std::thread::sleep(COORDINATOR_RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

fn has_no_coordinator(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator};
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| matches!(code, CoordinatorLoadInProgress | CoordinatorNotAvailable | NotCoordinator))
}

struct Observer;

impl ClientContext for Observer {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Observer {}
