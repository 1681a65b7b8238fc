//! What a batch of events changes in the store: the fold's output, applied in one atomic step.

use std::sync::Arc;

use crate::model::record::state::State;
use crate::model::retention::Lifetimes;
use crate::model::task::id::TaskId;

/// The indexes that the store keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Roots, newest first.
    Roots,
    /// Direct children of a task, oldest first.
    Children(TaskId),
    /// Tasks of a type in a state that is indexed ([`State::is_indexed`]), newest first.
    Members { task_type: Arc<str>, state: State },
    /// Tasks with a timer, the next due first; `seen_ms` is when.
    Timers,
    /// Tasks with effects that are to be done, the oldest first; `seen_ms` is the offset of its cause.
    Effects,
    /// Tasks with something to come by log time ([`crate::model::retention`]) other than their removal, the next first; `seen_ms` is
    /// when.
    Ages,
}

/// A place in an index: ordered by the log time of the task's first event (or what the index says), then by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub seen_ms: i64,
    pub id: TaskId,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Records to write, encoded.
    pub nodes: Vec<(TaskId, Vec<u8>)>,
    pub added: Vec<(Index, Entry)>,
    pub removed: Vec<(Index, Entry)>,
    /// What to add to the counters; never zero.
    pub counts: Vec<(Arc<str>, State, i64)>,
    pub logs: Vec<(TaskId, Vec<String>)>,
    /// What lies beside tasks, by name, in this order; None: no longer.
    pub attachments: Vec<(TaskId, String, Option<Vec<u8>>)>,
    /// Records of tasks to keep until they are due ([`crate::model::outbox::KeptRecord::encode`]); None: no longer.
    pub kept: Vec<(TaskId, Option<Vec<u8>>)>,
    /// Roots that have finished; `seen_ms` is when they are to be removed. Many have the same time, so that they take
    /// little room: nothing but their ids is kept, under that time.
    pub done: Vec<Entry>,
    /// Of the finished roots with this time so many, from the front, are dealt with.
    pub done_with: Option<(i64, usize)>,
    /// Records to remove, with their logs and attachments. What indexes and counters say of them is in the other fields.
    pub gone: Vec<TaskId>,
    /// What holds from here on, where that has changed.
    pub lifetimes: Option<Lifetimes>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        let dealt_with = self.gone.is_empty() && self.done_with.is_none();
        self.nodes.is_empty() && self.logs.is_empty() && dealt_with && self.lifetimes.is_none()
    }

    /// Something new is due or to be done.
    pub fn concerns_outbox(&self) -> bool {
        self.added.iter().any(|(index, _)| matches!(index, Index::Timers | Index::Effects))
    }
}
