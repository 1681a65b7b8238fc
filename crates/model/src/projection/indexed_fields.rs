//! Fields of a record by which the store finds and counts it.

use std::sync::Arc;

use crate::error_fingerprint::Fingerprint;
use crate::record::TaskRecord;
use crate::record::state::State;
use crate::retention::ExpiryKind;

/// Type, error and score of a task in [`Failed`](super::changes::Index::Failed).
pub(super) type FailedEntry = Option<(Arc<str>, Fingerprint, i64)>;

/// Fields of a stored record that determine its index entries and counters.
pub struct IndexedFields {
    pub(super) task_type: Option<Arc<str>>,
    pub(super) state: State,
    /// Scores in [`Timers`](super::changes::Index::Timers) and [`Effects`](super::changes::Index::Effects).
    pub timer: Option<i64>,
    pub effect: Option<i64>,
    /// Score in [`Ages`](super::changes::Index::Ages).
    pub age: Option<i64>,
    /// Time of the tree's removal.
    pub(super) done: Option<i64>,
    /// Whether the store has a deferred record of the task.
    pub has_deferred: bool,
    /// Error and score in [`Failed`](super::changes::Index::Failed).
    pub(super) failed: Option<(Fingerprint, i64)>,
}

impl IndexedFields {
    pub fn of(task: &TaskRecord) -> Self {
        let is_done = |age: &crate::retention::Expiry| age.kind == ExpiryKind::Done;
        Self {
            task_type: task.task_type.clone(),
            state: task.state,
            timer: task.timer().map(|timer| timer.due_ms),
            effect: task.turn(),
            age: task.times.expiry.filter(|age| !is_done(age)).map(|age| age.due_ms),
            done: task.times.expiry.filter(is_done).map(|age| age.due_ms),
            has_deferred: task.deferral.stored_bytes() > 0,
            failed: task.times.failed_ms.map(|at_ms| (Fingerprint::of(task.outcome.error.as_deref()), at_ms)),
        }
    }

    /// Type and error of a failed task, and its score in the indexes of failed tasks.
    pub(super) fn failed(&self) -> FailedEntry {
        let (task_type, (error, failed_ms)) = (self.task_type.clone()?, self.failed?);
        Some((task_type, error, failed_ms))
    }
}
