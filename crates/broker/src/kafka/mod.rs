//! Kafka through librdkafka.
//!
//! Group events are returned by [`Consumer::poll`] as values, and partitions are taken and returned later with
//! [`Consumer::assign`] and [`Consumer::release`]: the rebalance callback only records the event.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, Timestamp, TopicPartitionList};

use self::admin::Cluster;
use self::consumer::KafkaConsumer;
use self::native::Isolation;
use self::producer::{KafkaProducer, KafkaTransactionalProducer};
use self::reader::Reader;
use self::settings::Settings;
use super::{
    Broker, BrokerError, Commit, CommittedOffset, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, Partition,
    Producer, RecordListing, RecordRef, StartOffset, TopicInfo, TopicOutcome, TopicSpec, TransactionalProducer,
    Watermarks,
};

mod admin;
pub mod baseline;
mod commits;
mod committed_offsets;
mod consumer;
mod error;
mod native;
mod out_of_range;
mod polled_producer;
mod producer;
mod reader;
mod rebalance;
mod reconnect;
mod settings;

/// A Kafka cluster.
pub struct Kafka {
    settings: Settings,
    cluster: Cluster,
    reader: Reader,
}

impl Kafka {
    /// Checks the settings and creates the client for administration, without waiting for a connection. `section` is
    /// the `[kafka]` section of the configuration: any librdkafka key, passed to every client it applies to.
    ///
    /// # Errors
    /// `Invalid` for an unknown key, a bad value, or a file named by a value (such as a certificate) that is missing.
    pub fn new(section: &BTreeMap<String, String>) -> Result<Self, BrokerError> {
        let settings = Settings::new(section)?;
        Ok(Self { cluster: Cluster::new(settings.clone())?, settings, reader: Reader::default() })
    }

    /// Deletes all topics whose names begin with `prefix`, for benchmarks and tests.
    pub fn delete_topics(&self, prefix: &str, deadline: Duration) -> Result<(), BrokerError> {
        self.cluster.delete_topics(prefix, deadline)
    }
}

impl Broker for Kafka {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        Ok(Box::new(KafkaConsumer::new(&self.settings, spec)?))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        Ok(Arc::new(KafkaProducer::new(&self.settings, sink)?))
    }

    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        Ok(Box::new(KafkaTransactionalProducer::new(&self.settings, name)?))
    }

    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        self.cluster.topics(prefix, deadline)
    }

    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        self.cluster.apply_topics(topics, deadline)
    }

    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        self.cluster.watermarks(partition, deadline)
    }

    fn end_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        self.cluster.list_offsets(partitions, Offset::End, Isolation::Uncommitted, deadline)
    }

    fn start_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        self.cluster.list_offsets(partitions, Offset::Beginning, Isolation::Uncommitted, deadline)
    }

    fn stable_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        self.cluster.list_offsets(partitions, Offset::End, Isolation::Committed, deadline)
    }

    fn first_visible(
        &self,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        self.reader
            .first_visible(&self.settings, partition, offset, deadline)
            .map_err(|error| self.cluster.after_failure(error))
    }

    fn list_records(
        &self,
        partition: &Partition,
        range: Range<i64>,
        max_records: usize,
        deadline: Duration,
    ) -> Result<RecordListing, BrokerError> {
        let listed = self.reader.list(&self.settings, partition, range, max_records, deadline);
        listed.map_err(|error| self.cluster.after_failure(error))
    }

    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        committed_offsets::offsets(&self.settings, group, partitions, deadline)
    }

    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError> {
        committed_offsets::set_offsets(&self.settings, group, commits, deadline)
    }
}

/// Version of librdkafka.
pub fn client_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}

/// Context of clients whose events are ignored.
struct SilentContext;

impl ClientContext for SilentContext {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

/// Forwards librdkafka's log lines to `tracing`.
fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    if facility == "CONFWARN" && message.contains("will be ignored by this") {
        // The section applies to all clients, but some keys concern only producers or only consumers.
        return;
    }
    match log_level(level, facility, message) {
        tracing::Level::INFO => tracing::info!(target: "kafleet::kafka", facility, "{message}"),
        tracing::Level::DEBUG => tracing::debug!(target: "kafleet::kafka", facility, "{message}"),
        _ => tracing::warn!(target: "kafleet::kafka", facility, "{message}"),
    }
}

fn log_level(level: RDKafkaLogLevel, facility: &str, message: &str) -> tracing::Level {
    // A new cluster loads its coordinator on the first request for a producer id, which the client repeats.
    let is_repeated = facility == "GETPID" && message.ends_with("retrying");
    match level {
        _ if is_repeated => tracing::Level::INFO,
        RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::Level::INFO,
        RDKafkaLogLevel::Debug => tracing::Level::DEBUG,
        _ => tracing::Level::WARN,
    }
}

/// Passes a record borrowed from librdkafka to `read`.
fn with_record<T>(message: &BorrowedMessage<'_>, read: impl FnOnce(&RecordRef<'_>) -> T) -> T {
    let headers = native::Headers(message.headers());
    let timestamp = message.timestamp();
    read(&RecordRef {
        topic: message.topic(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms: timestamp.to_millis().unwrap_or(-1),
        log_append_time: matches!(timestamp, Timestamp::LogAppendTime(_)),
        key: message.key(),
        value: message.payload(),
        headers: &headers,
    })
}

/// Builds a partition list for librdkafka.
fn list<'a>(items: impl IntoIterator<Item = (&'a Partition, Offset)>) -> Result<TopicPartitionList, BrokerError> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in items {
        check_topic(&partition.topic)?;
        list.add_partition(&partition.topic, partition.index)
            .set_offset(offset)
            .map_err(|_| BrokerError::Invalid(format!("`{offset:?}` is not a valid offset in {partition}")))?;
    }
    Ok(list)
}

fn list_of_commits(commits: &[Commit]) -> Result<TopicPartitionList, BrokerError> {
    let list = list(commits.iter().map(|commit| (&commit.partition, Offset::Offset(commit.offset))))?;
    for (mut elem, commit) in list.elements().into_iter().zip(commits) {
        elem.set_metadata(&commit.metadata);
    }
    Ok(list)
}

/// Rejects topic names with a zero byte: librdkafka's names are C strings.
fn check_topic(topic: &str) -> Result<(), BrokerError> {
    if topic.contains('\0') {
        Err(BrokerError::Invalid(format!("topic name `{}` contains a zero byte", topic.escape_debug())))
    } else {
        Ok(())
    }
}

fn offset_of(start: StartOffset) -> Offset {
    match start {
        StartOffset::Beginning => Offset::Beginning,
        StartOffset::End => Offset::End,
        StartOffset::At(offset) => Offset::Offset(offset),
    }
}

/// Returns the committed offset of a list entry, if there is one.
fn committed(entry: native::PartitionEntry) -> Option<CommittedOffset> {
    (entry.offset >= 0).then_some(CommittedOffset { offset: entry.offset, metadata: entry.metadata })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_request_for_a_producer_id_is_no_warning() {
        let message =
            "[thrd:main]: Failed to acquire idempotence PID from broker b: Broker: Coordinator load in progress";
        let level = |facility, message: &str| log_level(RDKafkaLogLevel::Warning, facility, message);
        assert_eq!(level("GETPID", &format!("{message}: retrying")), tracing::Level::INFO);
        assert_eq!(level("GETPID", message), tracing::Level::WARN);
        assert_eq!(level("FAIL", "connection refused"), tracing::Level::WARN);
    }
}
