//! Where the tracker keeps records and the api reads them: Redis, or memory. The only folder that names redis.
//!
//! Everything of one events partition, its *fence* included, changes in one atomic step. The fence is the place up to
//! which the partition is folded; whoever applies a batch names the fence it started from, and is refused when the store
//! has another: a zombie tracker cannot write, and a store that lost writes is noticed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::model::projection::changes::Changes;
pub use crate::model::projection::changes::{Entry, Index};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::retention::Lifetimes;
use crate::model::task::id::TaskId;

pub mod audit;
pub mod inspect;
pub mod keys;
mod log_tail;
pub mod memory;
pub mod redis;

pub use audit::{AuditPage, Audited};
pub use log_tail::{MAX_LOG_BYTES, MAX_LOG_LINES};

/// The most entries that one page holds; a higher limit means this one.
pub const MAX_PAGE: usize = 10_000;
/// The most ids that a notice names.
pub const MAX_NOTICE_IDS: usize = 200;
/// Lifetime of a reservation whose publish has ended.
pub const RESERVATION_TTL: Duration = Duration::from_secs(120);
/// Lifetime of a reservation while a request publishes the task, from its last renewal: a request that does not renew it is dead.
pub const LEASE_TTL: Duration = Duration::from_secs(10);
/// The notices a reader may be behind before it gets a [`Notice::Gap`] instead.
const NOTICE_BUFFER: usize = 1_024;

/// Up to where a partition is folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The next offset of the events partition to fold.
    pub offset: i64,
    /// The version of the fold that wrote it ([`crate::model::projection::FOLD_VERSION`]).
    pub version: u32,
    /// The highest broker append time folded, epoch milliseconds.
    pub log_time_ms: i64,
    /// Bytes of the records that wait for their time here.
    pub kept_bytes: u64,
    /// Which rebuild of this store wrote it, counted from 1; 0: a tracker, whose partition it is then.
    pub rebuild: u32,
    /// End of the log when a tracker began to fold the partition from the beginning: below it the partition is incomplete.
    pub complete_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The fence is not the one the batch started from: another owner, or a store that lost writes.
    #[error("the fence stands at {found:?}, not where this tracker left it")]
    Conflict { found: Option<Checkpoint> },
    /// Not reachable, or no answer in time: try again. For an apply: it may or may not have happened.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The store is not set up as it must be.
    #[error("store misconfigured: {0}")]
    Misconfigured(String),
    /// The store does not hold any more what was written to it: the partition has to be folded anew. It has been emptied, or
    /// marked so that whoever opens it next empties it.
    #[error("the store has lost what was written to it: {0}")]
    Damaged(String),
    #[error("{0}")]
    Invalid(String),
}

/// What readers and trackers share.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Opens the one writer of an events partition with a connection of its own. Also returns the fence found there
    /// (None: never folded).
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError>;

    /// Reads records; one answer per id, in order. All ids lie in this partition.
    async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError>;

    /// The fences of these partitions.
    async fn fences(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError>;

    /// A page of an index of one partition, in the index's order, beginning after `after`, which need not be there any
    /// more: whatever was there from the first page to the last is seen once. At most [`MAX_PAGE`] entries.
    async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Finished roots whose trees are removed at the first time after `after_ms`, at most `limit` and [`MAX_PAGE`];
    /// `seen_ms` is that time. An entry is there until it is dealt with, whatever became of its root: only the record says
    /// whether, and when, it is to be removed.
    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// What is due first and what is to be done first, at most `limit` of either, as of one fence.
    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError>;

    /// Records of tasks that wait for their time ([`crate::model::outbox::KeptRecord::decode`]); one answer per id, in order.
    async fn kept(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Tasks by type and state, over these partitions: exact as of their fences. Sorted; what is zero is left out.
    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError>;

    /// The log lines of a task from `from` (0 is the oldest ever; what is no longer kept is skipped), at most `limit`.
    /// The newest [`MAX_LOG_LINES`] are kept, up to [`MAX_LOG_BYTES`].
    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError>;

    /// What is attached to a task under a name.
    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Reserves an id for a run of its task, unless it is reserved; then returns the existing reservation. After a lost answer
    /// that is the caller's own mark.
    async fn reserve(&self, partition: u32, id: &TaskId, run: u32, mark: &Reservation)
    -> Result<Option<Reservation>, StoreError>;

    /// Replaces the reservation of an id and run if it still is `held`, and reports whether it is `mark` now. `None` releases
    /// the id; `held` itself renews the reservation.
    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        mark: Option<&Reservation>,
    ) -> Result<bool, StoreError>;

    /// Change notices. A hint only: some may be missing. The stream yields [`Notice::Gap`] whenever it begins to listen
    /// (first of all, and again after a cut) and when its reader is too slow; it ends only by being dropped.
    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError>;

    /// Reachable and set up as it must be (Redis: `noeviction`, version).
    async fn check(&self) -> Result<(), StoreError>;

    /// The memory of each server that holds records, where it is limited.
    async fn memory(&self) -> Result<Vec<MemoryUse>, StoreError> {
        Ok(Vec::new())
    }
}

/// The writer of one partition. Used by one task at a time. After any error (or a call that was dropped half way) it
/// answers nothing but "closed": it is dropped and opened anew.
#[async_trait]
pub trait PartitionWriter: Send {
    /// How long trees and records last, where the log has said so.
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError>;

    /// The head of [`Store::done`], as the writer itself sees it: two stores may have the same in another order.
    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Reads records through the writer's own connection.
    async fn nodes(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError>;

    /// Checks the server's settings and memory, and whether it has evicted keys, which condemns the partition:
    /// [`StoreError::Damaged`].
    async fn check(&mut self) -> Result<(), StoreError>;

    /// Compares the sizes of indexes and the counters with those that were written, as of this writer's fence. `Some`: what
    /// does not add up.
    async fn sums(&mut self) -> Result<Option<String>, StoreError>;

    /// Reads entries of an index from the first after `after`, with what lies beside their records, as of this writer's
    /// fence. At most `limit`, and fewer where they are large.
    async fn audit(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<AuditPage, StoreError>;

    /// Marks the partition as damaged: nobody goes on from its fence, and whoever opens it empties it. The writer is closed.
    async fn condemn(&mut self) -> Result<(), StoreError>;

    /// Applies a batch and moves the fence from `from` to `to`, all or nothing. Publishes the notice.
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError>;
}

/// The heads of [`Index::Timers`] and [`Index::Effects`], and the fence they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    pub fence: Option<Checkpoint>,
    pub timers: Vec<Entry>,
    pub effects: Vec<Entry>,
}

/// The memory of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub server: String,
    pub used_bytes: u64,
    pub limit_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeCount {
    pub task_type: Arc<str>,
    pub state: State,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The number of the first line of this page.
    pub from: u64,
    pub lines: Vec<String>,
}

/// A guard against two producers that use one id at once; not truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Hash of type and params.
    pub hash: String,
    pub stage: Stage,
}

/// Progress of the publish that an id is reserved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A request publishes the task. The reservation is its lease: it ends [`LEASE_TTL`] after its last renewal.
    Publishing {
        /// Identifies the request: letters, digits and hyphens.
        owner: String,
    },
    /// The publish ended with an unknown outcome: the next request publishes again. Ends after [`RESERVATION_TTL`].
    InDoubt,
    /// The place of the acknowledged `submitted` event. Ends after [`RESERVATION_TTL`].
    Published(crate::model::task::Position),
}

/// One per batch and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Changed {
        partition: u32,
        offset: i64,
        /// None: too many to name.
        ids: Option<Vec<TaskId>>,
    },
    /// Notices may have been missed.
    Gap,
}

impl Notice {
    /// What a batch tells those who wait.
    fn of(partition: u32, to: Checkpoint, changes: &Changes) -> Self {
        let few = changes.nodes.len() + changes.gone.len() <= MAX_NOTICE_IDS;
        let changed = changes.nodes.iter().map(|(id, _)| id).chain(&changes.gone);
        let ids = few.then(|| changed.cloned().collect());
        Self::Changed { partition, offset: to.offset, ids }
    }
}

/// What a writer says after an error.
fn closed_writer() -> StoreError {
    StoreError::Unavailable("the writer is closed: open a new one".into())
}

/// Reads a record; `wipe` tells how to be rid of what another version wrote.
fn decode(partition: u32, id: &TaskId, bytes: &[u8], wipe: &str) -> Result<TaskRecord, StoreError> {
    TaskRecord::decode(bytes).ok_or_else(|| {
        StoreError::Invalid(format!(
            "the record of `{id}` in partition {partition} cannot be read: another version wrote it\n\nhint: {wipe}; a tracker folds the partition again from the log"
        ))
    })
}

/// Adds up the counters of several partitions.
fn sum_counts(counters: impl IntoIterator<Item = ((Arc<str>, State), i64)>) -> Result<Vec<TypeCount>, StoreError> {
    let mut sums: BTreeMap<(Arc<str>, State), i64> = BTreeMap::new();
    for (key, count) in counters {
        *sums.entry(key).or_default() += count;
    }
    let told = sums.into_iter().filter(|(_, count)| *count != 0).map(|((task_type, state), count)| match u64::try_from(count) {
        Ok(count) => Ok(TypeCount { task_type, state, count }),
        Err(_) => Err(StoreError::Invalid(format!("the counter of `{task_type}` tasks that are {state} stands at {count}"))),
    });
    told.collect()
}
