//! Storage of task records, written by the tracker and read by the API server: Redis or memory. The only crate of the
//! product that depends on redis.
//!
//! The store is a projection of the log: it may be lost, and is then filled again from it. [`Store`] is what readers
//! use, over shared connections; [`PartitionWriter`] is what the owner of an events partition uses, over a connection
//! of its own.
//!
//! Invariant: all keys of an events partition, including its checkpoint, change in one atomic step. The checkpoint is
//! the position up to which the partition is folded. A writer passes the checkpoint from which its batch started and is
//! fenced off if the store has another one: a zombie tracker cannot write, and a store that lost writes is detected. If
//! records and checkpoint could differ, events would be folded twice or not at all, and nothing would show it.
//!
//! Read next: [`keys`] (all keys with their contents), `redis/writer/mod.rs`, [`memory`].

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet_model::encode_error::EncodeError;
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::projection::changes::Changes;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::retention::Lifetimes;
use kafleet_model::statistics::aggregate::{Aggregate, AggregateKey};
use kafleet_model::statistics::errors::ErrorSummary;
use kafleet_model::statistics::{Overview, StoredStatistics};
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;

pub use kafleet_model::projection::changes::{Entry, Index};

pub mod inspect;
pub mod integrity;
pub mod keys;
mod log_tail;
pub mod memory;
pub mod redis;
mod statistics;

pub use integrity::{IndexedTask, IntegrityPage};
pub use log_tail::{MAX_LOG_BYTES, MAX_LOG_LINES};

/// Maximum entries per page; a higher limit is reduced to this.
pub const MAX_PAGE: usize = 10_000;
/// Maximum ids named by a notice.
pub const MAX_NOTICE_IDS: usize = 200;
/// Maximum number of types named in a notice.
pub const MAX_NOTICE_TYPES: usize = 32;
/// Lifetime of a reservation whose publish has ended.
pub const RESERVATION_TTL: Duration = Duration::from_secs(120);
/// Lifetime of a reservation while a request publishes the task, counted from the last renewal.
pub const LEASE_TTL: Duration = Duration::from_secs(10);
/// Number of notices by which a reader may lag behind before it receives a [`Notice::Gap`] instead.
const NOTICE_BUFFER: usize = 1_024;

/// Position up to which a partition is folded, and its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The next offset of the events partition to fold.
    pub offset: i64,
    /// Fold version of the writer ([`kafleet_model::projection::FOLD_VERSION`]).
    pub version: u32,
    /// Highest broker append time folded, epoch milliseconds.
    pub log_time_ms: i64,
    /// Bytes of deferred records in this partition.
    pub deferred_bytes: u64,
    /// Number of the rebuild that owns the partition, counted from 1; 0 for a tracker.
    pub rebuild: u32,
    /// End of the log when a tracker started to fold the partition from the beginning: below it the partition is
    /// incomplete.
    pub complete_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The checkpoint differs from the one at the start of the batch: another owner, or a store that lost writes.
    #[error("the checkpoint is {stored:?}, not the one this tracker wrote")]
    Conflict { stored: Option<Checkpoint> },
    /// Not reachable, or no answer in time; can be retried. The outcome of a timed-out apply is unknown.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The server's configuration or version is not suitable.
    #[error("store misconfigured: {0}")]
    Misconfigured(String),
    /// The store has lost data. The partition is marked, and the next open empties it.
    #[error("the store has lost data: {0}")]
    Damaged(String),
    /// The open has emptied a partition that had lost data. The next open starts from scratch.
    #[error("the partition was emptied because the store had lost data: {0}")]
    Emptied(String),
    #[error("{0}")]
    Invalid(String),
}

impl From<EncodeError> for StoreError {
    fn from(error: EncodeError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Operations of a store that readers and trackers share.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Opens the writer of an events partition on a connection of its own. Also returns the checkpoint found there,
    /// `None` if the partition was never folded.
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError>;

    /// Reads records of one partition; one result per id, in order.
    async fn task_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError>;

    /// Reads the checkpoint and records of one partition as of one moment. The records of a call with more than 1,000 ids,
    /// and those of this implementation, may be newer than the checkpoint.
    async fn task_records_with_checkpoint(
        &self,
        partition: u32,
        ids: &[TaskId],
    ) -> Result<(Option<Checkpoint>, Vec<Option<TaskRecord>>), StoreError> {
        let checkpoint = self.checkpoints(&[partition]).await?.pop().flatten();
        Ok((checkpoint, self.task_records(partition, ids).await?))
    }

    /// Reads the checkpoints of these partitions.
    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError>;

    /// Reads a page of an index in index order, starting after `after`, which need not exist any more. Entries that
    /// exist during the whole iteration are returned exactly once. At most [`MAX_PAGE`] entries.
    async fn page(
        &self,
        partition: u32,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError>;

    /// Reads finished roots scheduled for removal at the first time after `after_ms`, at most `limit` and
    /// [`MAX_PAGE`]; `seen_ms` is that time. An entry stays until it is processed; only the root's record determines
    /// whether, and when, the tree is removed.
    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Reads the first due timers and the first effects, at most `limit` of each, as of one checkpoint.
    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError>;

    /// Reads deferred records ([`kafleet_model::outbox::RecordCopy::decode`]); one result per id, in order.
    async fn deferred(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Reads states of keys of unique tasks by their tags; one result per tag, in order.
    async fn unique_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError>;

    /// Counts tasks by type and state over these partitions, exact as of their checkpoints. Sorted; zeros are
    /// omitted.
    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError>;

    /// Reads aggregates of these series, the open minute of each, and the counters, as of one checkpoint.
    async fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics, StoreError>;

    /// Reads commonest errors and slowest attempts of a type in these hours; empty hours are omitted.
    async fn error_summaries(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>, StoreError>;

    /// Groups the tasks of a type whose own state is failed or expired by their error: at most `limit` groups, the
    /// largest first. `since_ms`: start of the range of [`ErrorGroup::recent`].
    async fn error_groups(
        &self,
        partition: u32,
        task_type: &str,
        level: ErrorLevel,
        since_ms: i64,
        limit: usize,
    ) -> Result<ErrorGroups, StoreError>;

    /// Reads the audit log: requests of users, newest first, at most `limit`.
    async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>, StoreError>;

    /// Reads at most `limit` log lines of a task from line number `from` (0 is the first ever; dropped lines are
    /// skipped). The newest [`MAX_LOG_LINES`] are retained, up to [`MAX_LOG_BYTES`].
    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError>;

    /// Reads an attachment of a task by name.
    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Reserves an id for a run of its task. If it is reserved already, returns the existing reservation, which after
    /// a lost answer may be the caller's own.
    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        reservation: &Reservation,
    ) -> Result<Option<Reservation>, StoreError>;

    /// Replaces the reservation of an id and run if it still equals `held`, and reports whether it equals `reservation`
    /// afterwards. `None` releases the id; passing `held` itself renews the reservation.
    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        reservation: Option<&Reservation>,
    ) -> Result<bool, StoreError>;

    /// Subscribes to change notices, which are hints and may be lost. The stream yields [`Notice::Gap`] when it
    /// starts listening (also after a reconnect) and when its reader is too slow; it ends only when dropped.
    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError>;

    /// Checks that the server is reachable and suitably configured (Redis: `noeviction`, version).
    async fn check(&self) -> Result<(), StoreError>;

    /// Memory of each server that holds records and has a memory limit.
    async fn memory(&self) -> Result<Vec<MemoryUse>, StoreError> {
        Ok(Vec::new())
    }

    /// Settings of the servers that can cost connections or hold back readers.
    async fn risky_settings(&self) -> Result<Vec<RiskySetting>, StoreError> {
        Ok(Vec::new())
    }

    /// Makes each kind of call that roles make, with all permissions that they need, and leaves nothing behind.
    async fn probe(&self, _partitions: u32) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The writer of one partition, used by one task at a time. After any error, and after a call dropped half-way, it is
/// closed and must be opened again.
#[async_trait]
pub trait PartitionWriter: Send {
    /// Reads the retention of trees and records, if the log has defined it.
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError>;

    /// Reads the overview of the statistics and the aggregates that may still change.
    async fn statistics(&mut self) -> Result<StoredStatistics, StoreError>;

    /// Reads the head of [`Store::done`] through the writer's connection: two servers may differ in its order.
    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Reads records through the writer's connection.
    async fn task_records(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError>;

    /// Reads states of keys of unique tasks through the writer's connection.
    async fn unique_keys(&mut self, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError>;

    /// Checks the server's settings and memory. Evicted keys mark the partition as damaged: [`StoreError::Damaged`].
    async fn check(&mut self) -> Result<(), StoreError>;

    /// Compares the sizes of indexes and counters with the expected ones, as of this writer's checkpoint. Returns a
    /// description of any difference.
    async fn verify_totals(&mut self) -> Result<Option<String>, StoreError>;

    /// Reads entries of an index after `after` together with their related keys, as of this writer's checkpoint. At
    /// most `limit`, and fewer if they are large.
    async fn indexed_tasks(
        &mut self,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<IntegrityPage, StoreError>;

    /// Marks the partition as damaged: the next open empties it and returns [`StoreError::Emptied`] with this reason.
    /// Closes the writer.
    async fn mark_damaged(&mut self, reason: &str) -> Result<(), StoreError>;

    /// Applies a batch atomically, moves the checkpoint from `from` to `to` and publishes a notice.
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError>;
}

/// Heads of [`Index::Timers`] and [`Index::Effects`], and the checkpoint they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    pub checkpoint: Option<Checkpoint>,
    pub timers: Vec<Entry>,
    pub effects: Vec<Entry>,
}

/// Statistics and counters of a partition, and the checkpoint they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStatistics {
    pub checkpoint: Option<Checkpoint>,
    /// `None` before the first batch.
    pub overview: Option<Overview>,
    /// Tasks by type and state.
    pub counts: Vec<TypeCount>,
    /// Aggregates found, by series, including the open minute.
    pub aggregates: Vec<(Arc<str>, AggregateKey, Aggregate)>,
}

/// Similarity of the errors of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorLevel {
    /// Errors of one kind.
    Kind,
    /// Errors of one kind with one message, up to its variable parts.
    Message,
}

/// Tasks of a type in a partition that failed or expired, grouped by error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorGroups {
    /// The largest groups, largest first.
    pub groups: Vec<ErrorGroup>,
    /// Number of groups, including those left out.
    pub total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorGroup {
    pub error: Fingerprint,
    pub count: u64,
    /// Number of them that ended at the start of the range or later.
    pub recent: u64,
    /// Tasks that ended first and last; `seen_ms` is the log time.
    pub first: Entry,
    pub last: Entry,
}

/// Memory usage of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub server: String,
    pub used_bytes: u64,
    pub limit_bytes: u64,
}

/// Setting of a server with a risk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RiskySetting {
    /// Server, setting, value and consequence.
    pub message: String,
    pub hint: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeCount {
    pub task_type: Arc<str>,
    pub state: State,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// Number of the first line of this page.
    pub from: u64,
    /// Stored lines ([`kafleet_model::record::log_line::StoredLine`]).
    pub lines: Vec<String>,
}

/// Guard against concurrent publishing under one id. An optimisation, not a source of truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Hash of type and params.
    pub hash: String,
    pub stage: Stage,
}

/// Progress of the publish that an id is reserved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A request is publishing the task. The reservation is its lease and ends [`LEASE_TTL`] after the last renewal.
    Publishing {
        /// Identifies the request: letters, digits and hyphens.
        owner: String,
    },
    /// The publish ended with an unknown outcome; the next request publishes again. Ends after [`RESERVATION_TTL`].
    InDoubt,
    /// Position of the acknowledged `submitted` event. Ends after [`RESERVATION_TTL`].
    Published(kafleet_model::task::Position),
}

/// A change notice: one per batch and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Changed {
        partition: u32,
        offset: i64,
        /// `None` if there are too many to name.
        ids: Option<Vec<TaskId>>,
        /// Types whose numbers of tasks or statistics have changed; `None` if there are too many to name.
        types: Option<Vec<Arc<str>>>,
    },
    /// Notices may have been lost.
    Gap,
}

impl Notice {
    /// Builds the notice of a batch.
    fn of(partition: u32, to: Checkpoint, changes: &Changes) -> Self {
        let few = changes.task_records.len() + changes.deleted.len() <= MAX_NOTICE_IDS;
        let changed = changes.task_records.iter().map(|(id, _)| id).chain(&changes.deleted);
        let ids = few.then(|| changed.cloned().collect());
        Self::Changed { partition, offset: to.offset, ids, types: types_of(changes) }
    }
}

/// Types whose numbers of tasks or statistics change, if they are few.
fn types_of(changes: &Changes) -> Option<Vec<Arc<str>>> {
    let counted = changes.counts.iter().map(|(name, ..)| name);
    let statistics = &changes.statistics;
    let measured = statistics.aggregates.iter().map(|(name, ..)| name);
    let failed = statistics.errors.iter().map(|(name, ..)| name);
    let types: BTreeSet<&Arc<str>> = counted.chain(measured).chain(failed).collect();
    (types.len() <= MAX_NOTICE_TYPES).then(|| types.into_iter().cloned().collect())
}

/// Error of a writer that is used after an earlier error.
fn closed_writer() -> StoreError {
    StoreError::Unavailable("the writer is closed: open a new one".into())
}

/// Decodes states of keys, in the order of their tags; `remedy` is the hint for one of another version.
fn decode_keys(
    partition: u32,
    tags: &[String],
    states: Vec<Option<Vec<u8>>>,
    remedy: &str,
) -> Result<Vec<Option<KeyState>>, StoreError> {
    let decoded = |(tag, bytes): (&String, Option<Vec<u8>>)| {
        let Some(bytes) = bytes else { return Ok(None) };
        KeyState::decode(&bytes).map(Some).ok_or_else(|| {
            let reason = format!("the key `{tag}` in partition {partition} was written by another version");
            StoreError::Invalid(format!("{reason}\n\nhint: {remedy}"))
        })
    };
    tags.iter().zip(states).map(decoded).collect()
}

/// Decodes a record; `remedy` is the hint for one of another version.
fn decode(partition: u32, id: &TaskId, bytes: &[u8], remedy: &str) -> Result<TaskRecord, StoreError> {
    TaskRecord::decode(bytes).ok_or_else(|| {
        StoreError::Invalid(format!(
            "the record of `{id}` in partition {partition} was written by another version and cannot be decoded\n\n\
             hint: {remedy}"
        ))
    })
}

/// Sums the counters of several partitions.
fn sum_counts(counters: impl IntoIterator<Item = ((Arc<str>, State), i64)>) -> Result<Vec<TypeCount>, StoreError> {
    let mut totals: BTreeMap<(Arc<str>, State), i64> = BTreeMap::new();
    for (key, count) in counters {
        *totals.entry(key).or_default() += count;
    }
    let counts = totals.into_iter().filter(|(_, count)| *count != 0);
    let checked = counts.map(|((task_type, state), count)| match u64::try_from(count) {
        Ok(count) => Ok(TypeCount { task_type, state, count }),
        Err(_) => Err(StoreError::Invalid(format!("the counter of {state} `{task_type}` tasks is {count}"))),
    });
    checked.collect()
}
