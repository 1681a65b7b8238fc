//! Calls of brokers and stores, as the conditions of rules see them.

use kafleet_broker::{ConsumerSpec, DependentRecord, Partition, ProducerRecord, StartOffset};
use kafleet_model::task::id::TaskId;

use super::consumer::Reader;

/// A call about which a rule may decide.
pub enum Call<'a> {
    OpenConsumer(&'a ConsumerSpec),
    OpenProducer,
    OpenTransactionalProducer,
    Watermarks(&'a Partition),
    GroupOffsets,
    /// Any other call of the broker itself.
    OfBroker,
    Poll(&'a Reader),
    Assign(&'a [(Partition, StartOffset)]),
    /// Commit of one partition; the others of the same call are decided separately.
    Commit(&'a Reader, &'a Partition),
    /// Arrival of the outcome of a commit, which can only be delayed.
    CommitOutcome,
    ReadCommits(&'a Reader, &'a [Partition]),
    Send {
        /// Number of producers opened before this one.
        producer: usize,
        record: &'a ProducerRecord<'a>,
    },
    Transaction(&'a [ProducerRecord<'a>]),
    /// Records of a transaction that depend on others, before they are sent.
    Dependents(&'a [DependentRecord]),
    OpenWriter,
    Nodes(&'a [TaskId]),
    /// Read of records of tasks by the writer of a partition.
    WriterNodes,
    Checkpoints,
    Reserve,
    Notices,
    Apply,
    /// Any other call of a store or of its writers.
    OfStore,
}

impl Call<'_> {
    /// Number of records that the call sends to topics whose names contain `topic`.
    pub fn records_of(&self, topic: &str) -> usize {
        match self {
            Self::Send { record, .. } => record.topic.contains(topic).into(),
            Self::Transaction(records) => records.iter().filter(|record| record.topic.contains(topic)).count(),
            _ => 0,
        }
    }
}

/// Matches calls of the broker itself, but not those of its clients.
pub fn broker_calls(call: &Call<'_>) -> bool {
    let opens = matches!(call, Call::OpenConsumer(_) | Call::OpenProducer | Call::OpenTransactionalProducer);
    opens || matches!(call, Call::Watermarks(_) | Call::GroupOffsets | Call::OfBroker)
}

/// Matches calls of the store and of its writers.
pub fn store_calls(call: &Call<'_>) -> bool {
    let reads = matches!(call, Call::OpenWriter | Call::Nodes(_) | Call::WriterNodes | Call::Checkpoints);
    reads || matches!(call, Call::Reserve | Call::Notices | Call::Apply | Call::OfStore)
}

pub fn open_transactional_producer(call: &Call<'_>) -> bool {
    matches!(call, Call::OpenTransactionalProducer)
}

pub fn group_offsets(call: &Call<'_>) -> bool {
    matches!(call, Call::GroupOffsets)
}

/// Matches reads of records of tasks, but not those of writers.
pub fn read_nodes(call: &Call<'_>) -> bool {
    matches!(call, Call::Nodes(_))
}

pub fn read_checkpoints(call: &Call<'_>) -> bool {
    matches!(call, Call::Checkpoints)
}

pub fn apply(call: &Call<'_>) -> bool {
    matches!(call, Call::Apply)
}

/// Matches records sent outside of transactions to topics whose names contain `topic`.
pub fn send(topic: impl Into<String>) -> impl Fn(&Call<'_>) -> bool {
    let topic = topic.into();
    move |call| matches!(call, Call::Send { .. }) && call.records_of(&topic) > 0
}

/// Matches transactions with a record whose topic contains `topic`.
pub fn transaction(topic: impl Into<String>) -> impl Fn(&Call<'_>) -> bool {
    let topic = topic.into();
    move |call| matches!(call, Call::Transaction(_)) && call.records_of(&topic) > 0
}

/// Matches the dependent records of transactions.
pub fn dependents(call: &Call<'_>) -> bool {
    matches!(call, Call::Dependents(_))
}

/// Matches reads of the watermarks of topics whose names contain `topic`.
pub fn watermarks(topic: impl Into<String>) -> impl Fn(&Call<'_>) -> bool {
    let topic = topic.into();
    move |call| matches!(call, Call::Watermarks(partition) if partition.topic.contains(&topic))
}

/// Matches polls of the members of a group.
pub fn polls_of(group: impl Into<String>) -> impl Fn(&Call<'_>) -> bool + Clone {
    let group = group.into();
    move |call| matches!(call, Call::Poll(reader) if reader.spec.group.as_ref() == Some(&group))
}

/// Matches polls of consumers that are members of any group.
pub fn polls_of_groups(call: &Call<'_>) -> bool {
    matches!(call, Call::Poll(reader) if reader.spec.group.is_some())
}

/// Matches reads of the commits of topics whose names contain `topic` by the first consumer of its group.
pub fn read_commits(topic: impl Into<String>) -> impl Fn(&Call<'_>) -> bool {
    let topic = topic.into();
    let is_of_topic = move |partition: &Partition| partition.topic.contains(&topic);
    move |call| {
        matches!(call, Call::ReadCommits(reader, partitions)
            if reader.number == 0 && partitions.iter().any(&is_of_topic))
    }
}
