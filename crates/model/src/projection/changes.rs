//! Output of the projection: the changes of a batch of events, applied to the store in one atomic step.

use std::sync::Arc;

use crate::error_fingerprint::Fingerprint;
use crate::record::state::State;
use crate::retention::Lifetimes;
use crate::statistics::StatisticsChanges;
use crate::task::id::TaskId;

/// Index in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Roots, newest first.
    Roots,
    /// Direct children of a task, oldest first.
    Children(TaskId),
    /// Tasks of a type in a state that is indexed ([`State::is_indexed`]), newest first.
    Members { task_type: Arc<str>, state: State },
    /// Tasks of a type whose own state is failed or expired, newest first, by error and by the kind of the error;
    /// `seen_ms` is the log time at which they ended.
    Failed { task_type: Arc<str>, error: Fingerprint },
    /// Tasks with a timer, next due first; `seen_ms` is the due time.
    Timers,
    /// Tasks with pending effects, oldest first; `seen_ms` is the offset of the causing event ([`TaskRecord::turn`]).
    ///
    /// [`TaskRecord::turn`]: crate::record::TaskRecord::turn
    Effects,
    /// Tasks that expire by log time ([`crate::retention`]), next due first; `seen_ms` is the due time.
    /// Removals of finished trees are in [`Changes::done`].
    Ages,
}

/// Entry of an index: ordered by the log time of the task's first event (or the index's own score), then by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Sort key: a time, or an offset, as the index says.
    pub seen_ms: i64,
    pub id: TaskId,
}

/// Changes of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Task records to write, encoded.
    pub task_records: Vec<(TaskId, Vec<u8>)>,
    pub added: Vec<(Index, Entry)>,
    pub removed: Vec<(Index, Entry)>,
    /// Differences to add to the counters; never zero.
    pub counts: Vec<(Arc<str>, State, i64)>,
    /// Differences in the number of tasks in [`Index::Failed`] by error; never zero. Those by kind are their sums.
    pub errors: Vec<(Arc<str>, Fingerprint, i64)>,
    /// Log lines to append ([`crate::record::log_line::StoredLine`]).
    pub logs: Vec<(TaskId, Vec<String>)>,
    /// Attachments by name, in order of application; `None` removes one.
    pub attachments: Vec<(TaskId, String, Option<Vec<u8>>)>,
    /// Deferred task records to store until they are due ([`crate::outbox::RecordCopy::encode`]); `None`
    /// removes one.
    pub deferred: Vec<(TaskId, Option<Vec<u8>>)>,
    /// States of the keys of unique tasks by tag, encoded ([`crate::unique::KeyState`]); `None` removes one.
    pub unique: Vec<(String, Option<Vec<u8>>)>,
    /// Finished roots; `seen_ms` is the time of their removal. Many roots share a time: the store keeps only their
    /// ids under it, which saves space.
    pub done: Vec<Entry>,
    /// Removal time, and number of its roots, counted from the front, that have been processed.
    pub done_with: Option<(i64, usize)>,
    /// Task records to remove with their logs and attachments. Their index entries and counters are in the other
    /// fields.
    pub deleted: Vec<TaskId>,
    /// New lifetimes, if they changed.
    pub lifetimes: Option<Lifetimes>,
    pub statistics: StatisticsChanges,
    /// Requests of users, oldest first, encoded; the store keeps the newest [`MAX_AUDIT`].
    ///
    /// [`MAX_AUDIT`]: super::audit::MAX_AUDIT
    pub audit: Vec<Vec<u8>>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        let dealt_with = self.deleted.is_empty() && self.done_with.is_none();
        let counted = self.statistics.is_empty() && self.audit.is_empty() && self.unique.is_empty();
        self.task_records.is_empty() && self.logs.is_empty() && dealt_with && self.lifetimes.is_none() && counted
    }

    /// Returns true if a timer or an effect was added.
    pub fn concerns_outbox(&self) -> bool {
        self.added.iter().any(|(index, _)| matches!(index, Index::Timers | Index::Effects))
    }
}
