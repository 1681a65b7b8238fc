//! Attempts that a process of an app runs at once.
//!
//! An app that runs coroutines and blocking functions side by side declares `threads`: attempts of its `sync` types then have
//! slots of their own, so that neither kind waits for the other.

/// Attempts of each kind that one process runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Attempts of all types, or of those that are not `sync` if there are `threads`.
    pub slots: u32,
    /// Attempts of `sync` types alone. 0: they share `slots`.
    pub threads: u32,
}

/// Kind of slot: of a coroutine or any attempt, or of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    General,
    Thread,
}

impl Capacity {
    /// Capacity that all types share.
    pub const fn shared(slots: u32) -> Self {
        Self { slots, threads: 0 }
    }

    /// Number of attempts of all types.
    pub const fn total(self) -> u32 {
        self.slots.saturating_add(self.threads)
    }

    pub const fn of(self, slot_kind: SlotKind) -> u32 {
        match slot_kind {
            SlotKind::General => self.slots,
            SlotKind::Thread => self.threads,
        }
    }

    /// Returns the kind of slot that attempts of a type take.
    pub const fn slot_kind(self, is_sync: bool) -> SlotKind {
        if is_sync && self.threads > 0 { SlotKind::Thread } else { SlotKind::General }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_types_take_threads_if_there_are_any() {
        let mixed = Capacity { slots: 10, threads: 1 };
        assert_eq!(
            (mixed.slot_kind(true), mixed.slot_kind(false), mixed.total()),
            (SlotKind::Thread, SlotKind::General, 11)
        );
        assert_eq!(Capacity::shared(3).slot_kind(true), SlotKind::General);
    }
}
