//! Assigned partitions of a consumer, by partition number.

use super::partition::{PartitionState, Phase};
use crate::completions::{ASSIGNMENT_IDS, ArrivedCompletions, Completions};

#[derive(Default)]
pub(super) struct PartitionTable {
    states: Vec<Option<PartitionState>>,
    next_assignment_id: u32,
}

impl PartitionTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = &PartitionState> {
        self.states.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PartitionState> {
        self.states.iter_mut().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(super) fn get_mut(&mut self, partition: i32) -> Option<&mut PartitionState> {
        usize::try_from(partition).ok().and_then(|index| self.states.get_mut(index)).and_then(Option::as_mut)
    }

    /// Returns a partition that is read: one that is neither refused nor revoked.
    pub(super) fn reading_mut(&mut self, partition: i32) -> Option<&mut PartitionState> {
        self.get_mut(partition).filter(|state| state.phase.is_reading())
    }

    pub(super) fn by_assignment_mut(&mut self, assignment_id: u32) -> Option<&mut PartitionState> {
        self.iter_mut().find(|state| state.assignment_id == assignment_id)
    }

    pub(super) fn insert(&mut self, state: PartitionState) {
        let Ok(index) = usize::try_from(state.partition.index) else { return };
        if self.states.len() <= index {
            self.states.resize_with(index + 1, || None);
        }
        self.states[index] = Some(state);
    }

    pub(super) fn remove(&mut self, partition: i32) -> Option<PartitionState> {
        usize::try_from(partition).ok().and_then(|index| self.states.get_mut(index)).and_then(Option::take)
    }

    /// Returns an assignment id that no partition has and that was not used for the longest time.
    pub(super) fn free_assignment_id(&mut self) -> u32 {
        let is_taken = |id: u32| self.iter().any(|state| state.assignment_id == id);
        let mut candidates = (0..ASSIGNMENT_IDS).map(|n| (self.next_assignment_id + n) % ASSIGNMENT_IDS);
        let id = candidates.find(|id| !is_taken(*id)).unwrap_or_default();
        self.next_assignment_id = (id + 1) % ASSIGNMENT_IDS;
        id
    }

    /// Returns whether nothing waits and nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.iter().all(|state| state.waiting() == 0 && state.outstanding() == 0)
    }

    pub(super) fn refused(&self) -> impl Iterator<Item = &PartitionState> {
        self.iter().filter(|state| state.phase == Phase::Refused)
    }
}

/// Buffers for completions, reused between polls.
#[derive(Default)]
pub(super) struct CompletionBuffers(ArrivedCompletions);

impl CompletionBuffers {
    /// Applies the completions that have arrived. Returns whether any input is complete.
    pub(super) fn apply(&mut self, completions: &Completions, partitions: &mut PartitionTable) -> bool {
        let Self(arrived) = self;
        completions.take_arrived(arrived);
        let any = !arrived.completed.is_empty();
        // First: the final commit of a partition follows the release of its last task.
        for recorded in arrived.recorded.drain(..) {
            if let Some(state) = partitions.by_assignment_mut(recorded.tag.assignment_id()) {
                state.record(&recorded);
            }
        }
        for tag in arrived.completed.drain(..) {
            if let Some(state) = partitions.by_assignment_mut(tag.assignment_id()) {
                state.complete(tag);
            }
        }
        for tag in arrived.released.drain(..) {
            if let Some(state) = partitions.by_assignment_mut(tag.assignment_id()) {
                state.release();
            }
        }
        any
    }
}
