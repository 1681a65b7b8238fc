//! Kafka behind four traits: [`Broker`], [`Consumer`], [`Producer`] and [`TransactionalProducer`]. The only crate of
//! the product that depends on rdkafka.
//!
//! In: records to send, topics to read, transactions, questions about topics and groups. Out: acknowledged positions,
//! records, and a [`BrokerError`], whose variants differ in what a caller may do next. Calls of a [`Broker`] block up
//! to their deadline; async code uses [`BrokerClient`], which makes them on other threads. Two brokers implement the
//! traits: [`kafka`], and [`memory`] for tests, the simulation and `kafleet dev`.
//!
//! Invariant: [`kafka`] and [`memory`] pass the same conformance suite (`tests/broker_conformance`), failures included;
//! otherwise tests on one of them would prove nothing about the other.
//!
//! Read next: [`BrokerError`], then [`memory`], the shorter implementation, then `kafka/mod.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

mod client;
mod error;
pub mod kafka;
pub mod memory;
pub mod offset_range;
mod open_transactions;
pub mod shared_producer;
mod topic;

pub use client::{BrokerClient, CALL_DEADLINE, Transactions};
pub use error::BrokerError;
pub use open_transactions::{OpenTransaction, open_transactions};
pub use topic::{TopicChange, TopicInfo, TopicOutcome, TopicSpec};

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    pub topic: Arc<str>,
    pub index: i32,
}

impl Partition {
    pub fn new(topic: impl Into<Arc<str>>, index: i32) -> Self {
        Self { topic: topic.into(), index }
    }
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

/// A record borrowed from the client's memory. Valid only while the callback that receives it runs.
pub struct RecordRef<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// Epoch milliseconds; -1 if the broker gave no timestamp.
    pub timestamp_ms: i64,
    /// True if the broker set the timestamp on append, false if the producer set it.
    pub log_append_time: bool,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a dyn HeaderList,
}

impl<'a> RecordRef<'a> {
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> + use<'a> {
        let list = self.headers;
        (0..list.len()).filter_map(move |n| list.get(n))
    }

    /// Total bytes of key, value and headers: approximately the memory that an owned copy needs.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers
    }

    pub fn to_owned(&self) -> Record {
        Record {
            topic: self.topic.into(),
            partition: self.partition,
            offset: self.offset,
            timestamp_ms: self.timestamp_ms,
            key: self.key.map(<[u8]>::to_vec),
            value: self.value.map(<[u8]>::to_vec),
            headers: self.headers().map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))).collect(),
        }
    }
}

/// Headers accessed without copying. A header whose name is not UTF-8 is skipped.
pub trait HeaderList {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn get(&self, n: usize) -> Option<(&str, Option<&[u8]>)>;
}

pub type OwnedHeaders = Vec<(String, Option<Vec<u8>>)>;

impl HeaderList for OwnedHeaders {
    fn len(&self) -> usize {
        Vec::len(self)
    }
    fn get(&self, n: usize) -> Option<(&str, Option<&[u8]>)> {
        self.as_slice().get(n).map(|(name, value)| (name.as_str(), value.as_deref()))
    }
}

/// A record that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    pub timestamp_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: OwnedHeaders,
}

/// Returns the value of the first header with this name, or `None` if there is none or its value is null.
pub fn header_value<'a>(headers: &'a [(String, Option<Vec<u8>>)], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|(other, _)| other == name)?.1.as_deref()
}

/// A record to send. The bytes are copied before `send` returns.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    pub topic: &'a str,
    /// `None`: chosen by the key (murmur2), or at random for a record without a key.
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [(&'a str, &'a [u8])],
}

/// A record of a batch for one partition, without headers.
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// Returned with the delivery outcome.
    pub token: u64,
}

/// A Kafka cluster, or its in-memory implementation.
pub trait Broker: Send + Sync + 'static {
    /// Opens a consumer: a group member if the spec names topics, otherwise one for explicitly assigned partitions.
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError>;

    /// Opens a producer. `sink` receives the outcome of every accepted record exactly once, on a thread of the
    /// producer.
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError>;

    /// Opens a transactional producer. `name` is its `transactional.id`: opening another producer under the same name
    /// fences this one.
    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError>;

    /// Lists all topics whose names begin with `prefix`.
    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError>;

    /// Creates missing topics, adds missing partitions and sets the given configuration. Returns one outcome per
    /// topic.
    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError>;

    /// Returns the low and high watermark of a partition. The high watermark includes records of open transactions.
    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError>;

    /// Returns the high watermarks of many partitions, one entry per partition, with few requests; `None` for a
    /// partition without an answer.
    fn end_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        Ok(partitions.iter().map(|at| self.watermarks(at, deadline).ok().map(|ends| ends.high)).collect())
    }

    /// Returns the low watermarks of many partitions, like [`Self::end_offsets`].
    fn start_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        Ok(partitions.iter().map(|at| self.watermarks(at, deadline).ok().map(|ends| ends.low)).collect())
    }

    /// Returns the last stable offsets of many partitions, like [`Self::end_offsets`]: a read-committed consumer sees nothing
    /// behind it while the transaction that begins there is open. The default knows of no open transactions.
    fn stable_offsets(&self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        self.end_offsets(partitions, deadline)
    }

    /// Returns the first record that a read-committed consumer sees at or after an offset. Does not wait for open
    /// transactions.
    fn first_visible(
        &self,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError>;

    /// Lists the offsets of at most `max_records` committed records in a range. Fetches whole records, so a call
    /// may stop after a few MiB. Does not wait for open transactions.
    fn list_records(
        &self,
        partition: &Partition,
        range: Range<i64>,
        max_records: usize,
        deadline: Duration,
    ) -> Result<RecordListing, BrokerError> {
        let mut listed = RecordListing { offsets: Vec::new(), to: range.start };
        while listed.to < range.end && listed.offsets.len() < max_records {
            let first_visible = self.first_visible(partition, listed.to, deadline)?;
            match first_visible.record {
                Some(record) if record.offset < range.end => {
                    listed.offsets.push(record.offset);
                    listed.to = record.offset + 1;
                }
                record => {
                    listed.to =
                        if record.is_some() { range.end } else { first_visible.offset.clamp(listed.to, range.end) };
                    break;
                }
            }
        }
        Ok(listed)
    }

    /// Reads the committed record at an offset. `None` if the log contains no visible record there.
    ///
    /// # Errors
    /// `Unavailable` also while a transaction is open that began at or before this offset.
    fn read_at(&self, partition: &Partition, offset: i64, deadline: Duration) -> Result<Option<Record>, BrokerError> {
        let first_visible = self.first_visible(partition, offset, deadline)?;
        if first_visible.record.is_none()
            && first_visible.offset <= offset
            && offset < self.watermarks(partition, deadline)?.high
        {
            return Err(BrokerError::Unavailable(format!(
                "the record at offset {offset} of {partition} is not committed yet"
            )));
        }
        Ok(first_visible.record.filter(|record| record.offset == offset))
    }

    /// Returns a group's committed offsets, one entry per partition.
    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError>;

    /// Commits offsets for a group from outside it. Refused while the group has members.
    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError>;
}

/// Configuration of a consumer.
#[derive(Clone, Debug, Default)]
pub struct ConsumerSpec {
    /// `None`: partitions are assigned with [`Consumer::assign`] only, and commits are not possible.
    pub group: Option<String>,
    /// Topics to subscribe to; requires a group.
    pub topics: Vec<String>,
    /// Maximum bytes of prefetched records of each topic in the client. 0: the client's default.
    pub prefetch_bytes: usize,
    /// Read records of open and aborted transactions too.
    pub read_uncommitted: bool,
    /// Time after which the group assigns the partitions of a dead member to others. `None`: the broker's default.
    pub session_timeout: Option<Duration>,
}

/// Outcome of a commit for each of its partitions: an error of one does not concern the others.
pub type CommitOutcomes = Vec<(Partition, Result<(), BrokerError>)>;

/// An event of a consumer other than a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// The group assigned these partitions; take them with [`Consumer::assign`].
    Assigned(Vec<Partition>),
    /// The group revokes these partitions; finish their work, then call [`Consumer::release`].
    Revoked(Vec<Partition>),
    /// These partitions now belong to other members; commits are no longer possible. Call [`Consumer::release`].
    Lost(Vec<Partition>),
    /// The outcomes of a commit made with [`Consumer::commit`].
    Committed(CommitOutcomes),
    /// The position in this partition is outside the log; no more records of it are delivered until it is assigned
    /// again.
    OutOfRange(Partition),
    /// A failure that the client itself keeps retrying.
    ClientError(BrokerError),
}

/// Offset at which reading of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOffset {
    Beginning,
    End,
    At(i64),
}

/// An offset to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub partition: Partition,
    /// Next offset to read.
    pub offset: i64,
    /// At most 4096 bytes.
    pub metadata: String,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    pub offset: i64,
    pub metadata: String,
}

/// Reads records. Used by one thread at a time.
pub trait Consumer: Send {
    /// Passes at most `max` records to the sink and returns the other events. Waits up to `wait` for the first record
    /// or event. With `max` 0, only events are requested; a record already in transit may still arrive.
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError>;

    /// Starts reading partitions at the given offsets: partitions that the group assigned, or any partitions without
    /// a group. A partition that is already read is moved to the new offset.
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError>;

    /// Stops reading partitions and returns them to the group.
    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError>;

    /// Starts a commit; its outcomes arrive as one [`GroupEvent::Committed`]. Only one commit may be in flight.
    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError>;

    /// Commits and waits for the outcome. After an error, partitions that it does not concern are committed.
    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError>;

    /// Returns the committed offsets of the consumer's group.
    fn committed(
        &mut self,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError>;

    /// Pauses or resumes the delivery of records of these partitions.
    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError>;

    /// Holds the records of a subscribed topic back in the client, or delivers them again. Unlike a pause it keeps what
    /// the client has prefetched. Has no effect on other topics. A record already in transit may still arrive.
    fn hold(&mut self, topic: &str, held: bool);

    /// Returns the next position of each assigned partition. Every record before it has been passed to the sink or is
    /// invisible to the consumer, such as a transaction marker. Partitions whose position is not known yet, or is outside
    /// their log, are omitted.
    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError>;

    /// Leaves the group, within the deadline.
    fn close(self: Box<Self>, deadline: Duration);
}

/// Receives the delivery outcomes of sent records.
pub trait DeliverySink: Send + Sync + 'static {
    /// Called once per accepted record. A failure includes the record, so that it can be sent again.
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>);

    /// Called before [`Self::delivered`] with the time at which the broker appended the record, if it reported it (epoch
    /// milliseconds).
    fn appended(&self, _token: u64, _append_ms: i64) {}
}

/// Sends records. Shared by threads.
pub trait Producer: Send + Sync + 'static {
    /// Enqueues a record without blocking. After `Full`, try again later.
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError>;

    /// Enqueues several records for one partition, in order, at a lower cost than individual sends. Returns the index
    /// and the error of each record that was not accepted.
    fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        let send = |record: &BatchRecord<'_>| {
            let (key, value) = (Some(record.key), Some(record.value));
            self.send(&ProducerRecord { topic, partition: Some(partition), key, value, headers: &[] }, record.token)
        };
        records.iter().enumerate().filter_map(|(n, record)| Some((n, send(record).err()?))).collect()
    }

    /// Waits until every accepted record has its outcome.
    fn flush(&self, deadline: Duration) -> Result<(), BrokerError>;

    /// Discards records that have not been sent; each of them gets the outcome `Purged`.
    fn purge(&self);
}

/// Sends records to any partitions in a transaction: consumers see all of them or none.
pub trait TransactionalProducer: Send {
    /// Sends the records in one transaction and returns their partitions and offsets.
    ///
    /// # Errors
    /// `Fenced`: another producer was opened under this name. `InDoubt`: the commit may or may not have happened;
    /// open a new producer and check.
    fn send_all(&mut self, records: &[ProducerRecord<'_>], deadline: Duration) -> Result<Vec<(i32, i64)>, BrokerError> {
        self.send_with_dependents(records, &mut |_| Ok(Vec::new()), deadline)
    }

    /// Sends records like [`Self::send_all`], with further ones in the same transaction that depend on the offsets of the
    /// first ones. Returns the partitions and offsets of all records, in order.
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        make_dependents: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError>;
}

/// Builds records from the partitions and offsets of the records before them. An error aborts the transaction.
pub type MakeDependents<'a> = dyn FnMut(&[(i32, i64)]) -> Result<Vec<DependentRecord>, BrokerError> + 'a;

/// A record sent after others of its transaction. It owns its bytes and has no headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependentRecord {
    pub topic: Arc<str>,
    pub partition: i32,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl DependentRecord {
    pub fn outgoing(&self) -> ProducerRecord<'_> {
        let (key, value) = (Some(self.key.as_slice()), Some(self.value.as_slice()));
        ProducerRecord { topic: &self.topic, partition: Some(self.partition), key, value, headers: &[] }
    }
}

/// The first record that read-committed consumers see at or after an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedProbe {
    /// Offset before which no record is visible or will become visible: the log contains only transaction markers,
    /// aborted records, and gaps left by compaction or retention.
    pub offset: i64,
    /// The record at this offset. `None` if the next record belongs to an open transaction, or the log ends here.
    pub record: Option<Record>,
}

/// Offsets of the committed records in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordListing {
    pub offsets: Vec<i64>,
    /// Offset below which the range is completely listed; the rest is unknown.
    pub to: i64,
}

/// Offsets that delimit a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Low watermark: offset of the first record.
    pub low: i64,
    /// High watermark: offset after the last record.
    pub high: i64,
}
