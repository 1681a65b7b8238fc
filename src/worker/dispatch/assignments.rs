//! Assignments whose tasks must not start, or whose results no longer count, and the retries that they keep.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::event::InterruptionReason;
use crate::worker::completions::DeliveryTag;

#[derive(Default)]
pub(super) struct AssignmentStates {
    closed: FxHashSet<u32>,
    cancelled: FxHashMap<u32, InterruptionReason>,
    retries: FxHashMap<u32, KeptRetries>,
    /// Number of the last recorded retry.
    last_sequence: u64,
}

/// Retries that the commits of an assignment keep.
#[derive(Default)]
struct KeptRetries {
    /// Number of the last one that is committed.
    committed: u64,
    /// Has one owner more than there are tasks.
    counted: Arc<()>,
}

impl AssignmentStates {
    /// Registers a new assignment, which may have the id of an earlier one.
    pub(super) fn open(&mut self, assignment_id: u32) {
        self.closed.remove(&assignment_id);
        self.cancelled.remove(&assignment_id);
        self.retries.remove(&assignment_id);
    }

    /// Number of tasks of the input's assignment that have recorded a retry.
    pub(super) fn kept_retries(&self, tag: DeliveryTag) -> usize {
        self.retries.get(&tag.assignment_id()).map_or(0, |retries| Arc::strong_count(&retries.counted) - 1)
    }

    /// Registers a retry. Returns its number, and what counts the task until it is dropped.
    pub(super) fn add_retry(&mut self, tag: DeliveryTag) -> (u64, Arc<()>) {
        self.last_sequence += 1;
        (self.last_sequence, self.retries.entry(tag.assignment_id()).or_default().counted.clone())
    }

    /// Registers that the retries up to a number are committed.
    pub(super) fn commit_retries(&mut self, assignment_id: u32, sequence: u64) {
        if let Some(retries) = self.retries.get_mut(&assignment_id) {
            retries.committed = retries.committed.max(sequence);
        }
    }

    /// Returns whether a retry with this number is committed.
    pub(super) fn is_committed(&self, tag: DeliveryTag, sequence: u64) -> bool {
        self.retries.get(&tag.assignment_id()).is_some_and(|retries| sequence <= retries.committed)
    }

    pub(super) fn close(&mut self, assignment_id: u32) {
        self.closed.insert(assignment_id);
    }

    pub(super) fn cancel(&mut self, assignment_id: u32, why: InterruptionReason) {
        self.cancelled.insert(assignment_id, why);
    }

    /// Returns whether the input's assignment starts no more tasks.
    pub(super) fn is_closed(&self, tag: DeliveryTag) -> bool {
        self.closed.contains(&tag.assignment_id())
    }

    /// Returns why the results of the input's assignment no longer count; `None` if they do.
    pub(super) fn cancelled(&self, tag: DeliveryTag) -> Option<InterruptionReason> {
        self.cancelled.get(&tag.assignment_id()).copied()
    }
}
