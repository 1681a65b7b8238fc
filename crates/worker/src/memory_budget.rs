//! Memory budget of a worker in bytes: one limit over all task types, half of it divided among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in flight of each task type, and their common limit.
pub(super) struct MemoryBudget {
    used: Vec<AtomicUsize>,
    limit: usize,
}

/// Account of one poll. Bytes are added once per poll and refunded per task: a counter that consumer and dispatcher
/// both update for each task would cost more than the rest of the accounting.
pub(super) struct Account {
    budget: Arc<MemoryBudget>,
    type_index: usize,
}

/// Bytes counted against the limit until this is dropped.
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl MemoryBudget {
    pub(super) fn new(types: usize, limit: usize) -> Arc<Self> {
        Arc::new(Self { used: (0..types).map(|_| AtomicUsize::default()).collect(), limit })
    }

    /// Bytes in flight over all task types.
    pub(super) fn used(&self) -> usize {
        self.used.iter().map(|used| used.load(Ordering::Relaxed)).sum()
    }

    /// Returns whether a task type may take more records. Half of the limit is common, the other half is divided
    /// among the types, so that a type that is stuck does not block the others.
    pub(super) fn has_room(&self, type_index: usize) -> bool {
        let reserved = self.limit / 2 / self.used.len().max(1);
        let bytes = |used: &AtomicUsize| used.load(Ordering::Relaxed);
        let within = self.used.get(type_index).is_some_and(|used| bytes(used) < reserved);
        within || self.used.iter().map(|used| bytes(used).max(reserved)).sum::<usize>() < self.limit
    }

    fn add(&self, type_index: usize, bytes: usize) {
        self.used.get(type_index).map(|used| used.fetch_add(bytes, Ordering::Relaxed));
    }

    fn subtract(&self, type_index: usize, bytes: usize) {
        self.used.get(type_index).map(|used| used.fetch_sub(bytes, Ordering::Relaxed));
    }
}

impl Account {
    pub(super) fn open(budget: &Arc<MemoryBudget>, type_index: usize) -> Arc<Self> {
        Arc::new(Self { budget: budget.clone(), type_index })
    }

    /// Creates a charge for a part of the bytes that [`Account::add`] adds at the end of the poll.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        Charge { account: self.clone(), bytes }
    }

    /// Adds the bytes of all charges, before any of them can be refunded.
    pub(super) fn add(&self, bytes: usize) {
        self.budget.add(self.type_index, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.budget.subtract(self.account.type_index, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(budget: &Arc<MemoryBudget>, type_index: usize, bytes: usize) -> Charge {
        let account = Account::open(budget, type_index);
        account.add(bytes);
        account.charge(bytes)
    }

    #[test]
    fn single_type_can_use_the_whole_limit() {
        let budget = MemoryBudget::new(1, 100);
        let most = charge(&budget, 0, 99);
        assert!(budget.has_room(0));
        let last = charge(&budget, 0, 1);
        assert!(!budget.has_room(0));
        drop((most, last));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn greedy_type_leaves_the_others_their_reserved_parts() {
        let budget = MemoryBudget::new(2, 100);
        let mut charges = Vec::new();
        while budget.has_room(0) {
            charges.push(charge(&budget, 0, 1));
        }
        assert_eq!(budget.used(), 75, "its reserved quarter and the common half");
        while budget.has_room(1) {
            charges.push(charge(&budget, 1, 1));
        }
        assert_eq!(budget.used(), 100);
    }
}
