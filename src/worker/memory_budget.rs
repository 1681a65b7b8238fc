//! What a worker holds, in bytes: one limit over everything, with a part for each type that no other one can take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The account of a worker, by lane.
pub struct MemoryBudget {
    held: Vec<AtomicUsize>,
    limit: usize,
}

/// What a lane takes in one turn. Charges go by the account of their turn, and bytes are added once for all of them: counters
/// that the lane and its dispatcher both change for each task cost more than what they count.
pub struct Account {
    memory: Arc<MemoryBudget>,
    lane: usize,
}

/// Bytes counted against the limit for as long as this lives.
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl MemoryBudget {
    pub fn new(lanes: usize, limit: usize) -> Arc<Self> {
        Arc::new(Self { held: (0..lanes).map(|_| AtomicUsize::default()).collect(), limit })
    }

    /// Bytes of all types.
    pub fn held(&self) -> usize {
        self.held.iter().map(|held| held.load(Ordering::Relaxed)).sum()
    }

    /// The lane may take more. Half of the memory is for whoever needs it, the other half is divided among the lanes: one
    /// that is stuck does not hold up the others.
    pub fn has_room(&self, lane: usize) -> bool {
        let part = self.limit / 2 / self.held.len().max(1);
        let taken = |held: &AtomicUsize| held.load(Ordering::Relaxed);
        let within = self.held.get(lane).is_some_and(|held| taken(held) < part);
        within || self.held.iter().map(|held| taken(held).max(part)).sum::<usize>() < self.limit
    }

    fn add(&self, lane: usize, bytes: usize) {
        self.held.get(lane).map(|held| held.fetch_add(bytes, Ordering::Relaxed));
    }

    fn subtract(&self, lane: usize, bytes: usize) {
        self.held.get(lane).map(|held| held.fetch_sub(bytes, Ordering::Relaxed));
    }
}

impl Account {
    pub fn open(memory: &Arc<MemoryBudget>, lane: usize) -> Arc<Self> {
        Arc::new(Self { memory: memory.clone(), lane })
    }

    /// A part of what is added when the turn is over.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        Charge { account: self.clone(), bytes }
    }

    /// Counts all that was charged, before any of it can be given back.
    pub fn add(&self, bytes: usize) {
        self.memory.add(self.lane, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.memory.subtract(self.account.lane, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(memory: &Arc<MemoryBudget>, lane: usize, bytes: usize) -> Charge {
        let account = Account::open(memory, lane);
        account.add(bytes);
        account.charge(bytes)
    }

    #[test]
    fn one_lane_may_have_it_all() {
        let memory = MemoryBudget::new(1, 100);
        let most = charge(&memory, 0, 99);
        assert!(memory.has_room(0));
        let last = charge(&memory, 0, 1);
        assert!(!memory.has_room(0));
        drop((most, last));
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn a_greedy_lane_leaves_the_others_their_parts() {
        let memory = MemoryBudget::new(2, 100);
        let mut charges = Vec::new();
        while memory.has_room(0) {
            charges.push(charge(&memory, 0, 1));
        }
        assert_eq!(memory.held(), 75, "its own quarter and the common half");
        while memory.has_room(1) {
            charges.push(charge(&memory, 1, 1));
        }
        assert_eq!(memory.held(), 100);
    }
}
