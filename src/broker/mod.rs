//! Kafka, as far as kafleet needs it, behind three small traits. The only folder that names rdkafka.
//!
//! Every call here may block the calling thread up to the deadline it takes; async code calls through
//! `tokio::task::spawn_blocking` or from a thread of its own. Two implementations, [`kafka`] and [`memory`], pass the same
//! conformance suite (`tests/broker_conformance`).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub mod kafka;
pub mod memory;
pub mod offset_range;
pub mod shared_producer;

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

/// A record as it lies in the client's memory. Valid only while the sink is called.
pub struct RecordRef<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// Epoch milliseconds; -1 where the broker gave none.
    pub timestamp_ms: i64,
    /// The timestamp was set by the broker on append, not by the producer.
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

    /// Bytes that keeping this record costs, roughly.
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

/// Headers without a copy. A header whose name is not UTF-8 is left out.
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

/// A record of one's own.
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

/// A record to be sent. The bytes are copied before `send` returns.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    pub topic: &'a str,
    /// None: by the key (murmur2), or any partition where there is no key.
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [(&'a str, &'a [u8])],
}

/// One of several records for one partition: no headers.
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// Comes back with the outcome.
    pub token: u64,
}

/// What a call to the broker can say instead of succeeding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The local queue, or the in-memory log, has no room. Nothing was sent; try again later.
    #[error("no room: {0}")]
    Full(String),
    /// The record is larger than the topic or the client allows. Sending it again is of no use.
    #[error("the record is too large: {0}")]
    TooLarge(String),
    #[error("unknown topic or partition: {0}")]
    Unknown(String),
    /// Another producer or group member has taken over.
    #[error("fenced: {0}")]
    Fenced(String),
    /// The commit came during a rebalance, or from outside a group with members.
    #[error("refused: {0}")]
    Refused(String),
    /// It may have worked or not.
    #[error("outcome unknown: {0}")]
    InDoubt(String),
    /// It was given up before it was sent: its client was closed, or could not go on.
    #[error("purged before it was sent")]
    Purged,
    /// No answer in time, or the broker is away: worth another try.
    #[error("{0}")]
    Unavailable(String),
    /// The client cannot go on and has to be made anew.
    #[error("fatal: {0}")]
    Fatal(String),
    #[error("not allowed: {0}")]
    Denied(String),
    /// What was asked, or the record itself, is wrong. Asking again is of no use.
    #[error("{0}")]
    Invalid(String),
    /// A record was refused for a reason that does not lie in it: only somebody, or time, can change that.
    #[error("refused: {0}")]
    Unexpected(String),
}

impl BrokerError {
    /// Worth trying again with the same client.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Unavailable(_) | Self::InDoubt(_) | Self::Refused(_) | Self::Purged)
    }

    /// Worth sending again: by the same client, or by the one that replaces it.
    pub fn is_passing(&self) -> bool {
        self.is_transient() || matches!(self, Self::Fatal(_))
    }
}

/// Kafka or its stand-in.
pub trait Broker: Send + Sync + 'static {
    /// A consumer in a group, or one that reads the partitions it is given.
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError>;

    /// A producer; the outcome of every accepted record comes to `sink`, exactly once, on a thread of the producer.
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError>;

    /// A producer for atomic sends. Opening one with the same name fences the one before it.
    fn atomic_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError>;

    /// All topics whose names begin with `prefix`.
    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError>;

    /// Creates what is missing, adds partitions where there are fewer, and sets the given configuration. One outcome per topic.
    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError>;

    /// First offset and end of a partition: the place after the last record, open atomic sends included.
    fn ends(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError>;

    /// What a reader of what is committed finds first from an offset on. Opens no records and waits for none.
    fn first_visible(&self, partition: &Partition, offset: i64, deadline: Duration) -> Result<CommittedProbe, BrokerError>;

    /// Lists the committed records in a range of offsets, at most `most` of them. Reads records, up to some MiB, and waits
    /// for none.
    fn records_in(
        &self,
        partition: &Partition,
        range: Range<i64>,
        most: usize,
        deadline: Duration,
    ) -> Result<Listed, BrokerError> {
        let mut listed = Listed { offsets: Vec::new(), to: range.start };
        while listed.to < range.end && listed.offsets.len() < most {
            let first_visible = self.first_visible(partition, listed.to, deadline)?;
            match first_visible.record {
                Some(record) if record.offset < range.end => {
                    listed.offsets.push(record.offset);
                    listed.to = record.offset + 1;
                }
                record => {
                    listed.to = if record.is_some() { range.end } else { first_visible.place.clamp(listed.to, range.end) };
                    break;
                }
            }
        }
        Ok(listed)
    }

    /// Reads the committed record at an offset. None where the log does not hold one there, or no longer.
    ///
    /// # Errors
    /// `Unavailable` also while it is open whether what lies there is committed.
    fn read_at(&self, partition: &Partition, offset: i64, deadline: Duration) -> Result<Option<Record>, BrokerError> {
        let first_visible = self.first_visible(partition, offset, deadline)?;
        if first_visible.record.is_none() && first_visible.place <= offset && offset < self.ends(partition, deadline)?.end {
            return Err(BrokerError::Unavailable(format!("what lies at {offset} of {partition} is not committed yet")));
        }
        Ok(first_visible.record.filter(|record| record.offset == offset))
    }

    /// What a group has committed (`offsets` empty), or commits for a group without members.
    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<Committed>>, BrokerError>;

    /// Commits for a group from outside; refused while the group has members.
    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError>;
}

#[derive(Clone, Debug, Default)]
pub struct ConsumerSpec {
    /// None: partitions come from [`Consumer::assign`] alone and nothing can be committed.
    pub group: Option<String>,
    /// Topics to subscribe to (with a group).
    pub topics: Vec<String>,
    /// Records, in bytes, that may lie prefetched in the client. 0: the client's default.
    pub prefetch_bytes: usize,
    /// Read past open atomic sends and see aborted records.
    pub read_uncommitted: bool,
}

/// What happened to the consumer besides records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// The group gives these; the consumer answers with [`Consumer::assign`].
    Assigned(Vec<Partition>),
    /// The group wants these back; the consumer finishes its work and answers with [`Consumer::release`].
    Revoked(Vec<Partition>),
    /// These are gone already: no commit any more, only [`Consumer::release`].
    Lost(Vec<Partition>),
    /// The outcome of a commit made with [`Consumer::commit`].
    Committed { result: Result<(), BrokerError>, partitions: Vec<Partition> },
    /// The place to read from lies outside the log.
    OutOfRange(Partition),
    /// Something failed that the client itself goes on trying.
    Trouble(BrokerError),
}

/// Where to start reading a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOffset {
    Beginning,
    End,
    At(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub partition: Partition,
    /// The next offset to read.
    pub offset: i64,
    /// At most 4096 bytes.
    pub metadata: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub offset: i64,
    pub metadata: String,
}

/// Reads records; used by one thread at a time.
pub trait Consumer: Send {
    /// Hands at most `max` records to the sink, waiting up to `wait` for the first. Returns what else happened. With 0 no
    /// records are asked for, only what the group has to say; one that was on its way may still come.
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError>;

    /// Takes partitions, each from its start: those the group assigned, or (without a group) any. A partition that is
    /// held already moves to the new start.
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError>;

    /// Gives partitions back.
    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError>;

    /// Begins a commit; its outcome comes as [`GroupEvent::Committed`]. At most one may be under way.
    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError>;

    /// Commits and waits for the outcome.
    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError>;

    /// What the consumer's group has committed for these.
    fn committed(&mut self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError>;

    /// Stops or restarts the delivery of records for these partitions.
    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError>;

    /// Where each held partition is read on: everything before has been handed to the sink, or holds nothing for readers,
    /// such as the marker that ends an atomic send. What has no place yet is left out.
    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError>;

    /// Leaves the group, at the latest after the deadline.
    fn close(self: Box<Self>, deadline: Duration);
}

/// Receives what became of sent records.
pub trait DeliverySink: Send + Sync + 'static {
    /// Called once per accepted record. On failure the record comes along, so that it can be sent again.
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>);
}

/// Sends records; shared by threads.
pub trait Producer: Send + Sync + 'static {
    /// Accepts a record; never waits. `Full` means that the caller has to come back.
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError>;

    /// Accepts several records for one partition, in their order, for less than one by one. Returns which of them were not
    /// accepted, and why.
    fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        let send = |record: &BatchRecord<'_>| {
            let (key, value) = (Some(record.key), Some(record.value));
            self.send(&ProducerRecord { topic, partition: Some(partition), key, value, headers: &[] }, record.token)
        };
        records.iter().enumerate().filter_map(|(n, record)| Some((n, send(record).err()?))).collect()
    }

    /// Waits until everything accepted has its outcome.
    fn flush(&self, deadline: Duration) -> Result<(), BrokerError>;

    /// Gives up what is not sent yet; each such record gets the outcome `Purged`.
    fn purge(&self);
}

/// Sends several records, to any partitions, so that readers see all of them or none.
pub trait TransactionalProducer: Send {
    /// `Fenced`: another one was opened under this name. `InDoubt`: it may or may not have happened; open a new one and look.
    fn send_all(&mut self, records: &[ProducerRecord<'_>], deadline: Duration) -> Result<Vec<(i32, i64)>, BrokerError> {
        self.send_with_dependents(records, &mut |_| Vec::new(), deadline)
    }

    /// The same, with records that are made of the places of the first ones. Returns the places of all of them, in order.
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError>;
}

/// Makes records of the places of those before them.
pub type MakeDependents<'a> = dyn FnMut(&[(i32, i64)]) -> Vec<DependentRecord> + 'a;

/// A record that follows others: bytes of its own, and no headers.
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

/// What readers of what is committed find from an offset on: the same for all of them, now and later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedProbe {
    /// From that offset up to here there is nothing for them: marks that end atomic sends, what was given up, and what
    /// compaction or retention has removed.
    pub place: i64,
    /// The record at this place. None: what lies there is open, or there is nothing yet.
    pub record: Option<Record>,
}

/// Where the committed records of a range lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub offsets: Vec<i64>,
    /// Everything in the range below here is listed; what lies from here on is not known.
    pub to: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    pub first: i64,
    pub end: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    pub name: String,
    pub partitions: u32,
    pub replication: u32,
    /// Configuration entries that differ from the broker's defaults or were asked for in [`TopicSpec`].
    pub config: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSpec {
    pub name: String,
    pub partitions: u32,
    /// None: min(3, number of brokers), with `min.insync.replicas=2` where there are 3.
    pub replication: Option<u32>,
    pub config: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOutcome {
    pub name: String,
    pub change: TopicChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicChange {
    Created,
    Altered(Vec<String>),
    Unchanged,
    Failed(BrokerError),
}
