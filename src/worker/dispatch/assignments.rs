//! Assignments whose tasks must not start, or whose results no longer count.

use rustc_hash::FxHashSet;

use crate::worker::completions::DeliveryTag;

#[derive(Default)]
pub(super) struct AssignmentStates {
    closed: FxHashSet<u32>,
    cancelled: FxHashSet<u32>,
}

impl AssignmentStates {
    /// Registers a new assignment, which may have the id of an earlier one.
    pub(super) fn open(&mut self, assignment_id: u32) {
        self.closed.remove(&assignment_id);
        self.cancelled.remove(&assignment_id);
    }

    pub(super) fn close(&mut self, assignment_id: u32) {
        self.closed.insert(assignment_id);
    }

    pub(super) fn cancel(&mut self, assignment_id: u32) {
        self.cancelled.insert(assignment_id);
    }

    /// Returns whether the input's assignment starts no more tasks.
    pub(super) fn is_closed(&self, tag: DeliveryTag) -> bool {
        self.closed.contains(&tag.assignment_id())
    }

    /// Returns whether the results of the input's assignment no longer count.
    pub(super) fn is_cancelled(&self, tag: DeliveryTag) -> bool {
        self.cancelled.contains(&tag.assignment_id())
    }
}
