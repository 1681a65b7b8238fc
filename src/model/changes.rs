//! What a batch of events changes in the store: the fold's output, applied in one atomic step.

use std::sync::Arc;

use super::id::TaskId;
use super::state::State;

/// The indexes that the store keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Roots, newest first.
    Roots,
    /// Direct children of a task, oldest first.
    Children(TaskId),
    /// Tasks of a type in a state that is indexed ([`State::is_indexed`]), newest first.
    Members { task_type: Arc<str>, state: State },
}

/// A place in an index: ordered by the log time of the task's first event, then by id.
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
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.logs.is_empty()
    }
}
