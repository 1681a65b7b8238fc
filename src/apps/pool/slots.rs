//! Table of an app's processes: free slots, and the attempts that wait for them, in turn.

use std::collections::VecDeque;

use crate::handlers::permit::Sharing;

/// Number of a process; never reused.
pub(super) type ProcessId = u64;

/// Processes of an app, and the queue of waiting attempts. `W` identifies a waiting attempt.
pub(super) struct SlotTable<W> {
    processes: Vec<Entry>,
    waiting: VecDeque<(Sharing, W)>,
    /// Quarantined attempts that run, and their maximum.
    quarantined: usize,
    max_quarantined: usize,
}

struct Entry {
    id: ProcessId,
    slots: u32,
    running: u32,
    /// The running attempt shares the process with no other.
    is_exclusive: bool,
    /// No more attempts are started: the process is to be replaced.
    is_closing: bool,
    /// Kept free for an attempt that waits to run alone.
    is_reserved: bool,
    /// Attempts until the process is replaced. `None`: no limit.
    left: Option<u64>,
}

/// Slots and processes that have become free.
pub(super) struct Freed<W> {
    /// Waiting attempts that have got a slot.
    pub granted: Vec<(ProcessId, Sharing, W)>,
    /// The process is closed and runs no more attempts.
    pub is_finished: bool,
}

impl<W> SlotTable<W> {
    /// Creates a table for this number of processes.
    pub(super) fn new(processes: u32) -> Self {
        let max_quarantined = (processes as usize / 2).max(1);
        Self { processes: Vec::new(), waiting: VecDeque::new(), quarantined: 0, max_quarantined }
    }

    /// Adds a process. `left`: attempts until it is replaced.
    pub(super) fn add(&mut self, id: ProcessId, slots: u32, left: Option<u64>) -> Vec<(ProcessId, Sharing, W)> {
        let entry = Entry { id, slots, running: 0, is_exclusive: false, is_closing: false, is_reserved: false, left };
        self.processes.push(entry);
        self.grant()
    }

    /// Removes a process that has ended. Its slots are given back later without effect.
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.processes.retain(|entry| entry.id != id);
    }

    /// Starts no more attempts in a process. Returns whether it runs none.
    pub(super) fn close(&mut self, id: ProcessId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        entry.is_closing = true;
        entry.running == 0
    }

    /// Number of processes that start attempts.
    pub(super) fn serving(&self) -> usize {
        self.processes.iter().filter(|entry| !entry.is_closing).count()
    }

    /// Makes a process due for replacement.
    pub(super) fn use_up(&mut self, id: ProcessId) {
        if let Some(entry) = self.entry(id) {
            entry.left = Some(0);
        }
    }

    /// Counts an attempt that was sent to a process. Returns whether the process is now due for replacement.
    pub(super) fn count_attempt(&mut self, id: ProcessId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        entry.left = entry.left.map(|left| left.saturating_sub(1));
        entry.left == Some(0)
    }

    /// Number of waiting attempts.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of slots of processes that start attempts, and of all slots in use.
    pub(super) fn slots(&self) -> (u64, u64) {
        let open = self.processes.iter().filter(|entry| !entry.is_closing);
        let busy = self.processes.iter().map(|entry| u64::from(entry.running)).sum();
        (open.map(|entry| u64::from(entry.slots)).sum(), busy)
    }

    /// Returns whether a process is due for replacement.
    pub(super) fn is_used_up(&self, id: ProcessId) -> bool {
        self.processes.iter().any(|entry| entry.id == id && entry.left == Some(0))
    }

    /// Returns whether a process gets no more attempts.
    pub(super) fn is_closed(&self, id: ProcessId) -> bool {
        self.processes.iter().all(|entry| entry.id != id || entry.is_closing)
    }

    /// Takes a slot, or returns `None` if the attempt has to wait.
    pub(super) fn take(&mut self, sharing: Sharing) -> Option<ProcessId> {
        if !self.waiting.is_empty() { None } else { self.find(sharing) }
    }

    /// Adds an attempt to the queue. Returns the attempts that get a slot, possibly this one.
    pub(super) fn wait(&mut self, sharing: Sharing, waiter: W) -> Vec<(ProcessId, Sharing, W)> {
        self.waiting.push_back((sharing, waiter));
        self.grant()
    }

    /// Drops waiting attempts.
    pub(super) fn retain_waiting(&mut self, mut is_kept: impl FnMut(&W) -> bool) {
        self.waiting.retain(|(_, waiter)| is_kept(waiter));
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, id: ProcessId, sharing: Sharing) -> Freed<W> {
        if sharing == Sharing::Quarantined {
            self.quarantined -= 1;
        }
        let mut is_finished = false;
        if let Some(entry) = self.entry(id) {
            entry.running -= 1;
            entry.is_exclusive = false;
            is_finished = entry.is_closing && entry.running == 0;
        }
        Freed { granted: self.grant(), is_finished }
    }

    /// Gives free slots to waiting attempts, in turn. Attempts that wait to run alone keep a process free.
    fn grant(&mut self) -> Vec<(ProcessId, Sharing, W)> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.processes.iter_mut().for_each(|entry| entry.is_reserved = false);
        let mut granted = Vec::new();
        for (sharing, waiter) in std::mem::take(&mut self.waiting) {
            if let Some(id) = self.find(sharing) {
                granted.push((id, sharing, waiter));
                continue;
            }
            if sharing != Sharing::Shared && !self.is_barred(sharing) {
                self.reserve();
            }
            self.waiting.push_back((sharing, waiter));
        }
        if self.waiting.is_empty() {
            self.processes.iter_mut().for_each(|entry| entry.is_reserved = false);
        }
        granted
    }

    /// Takes a slot in the least busy process that suits.
    fn find(&mut self, sharing: Sharing) -> Option<ProcessId> {
        if self.is_barred(sharing) {
            return None;
        }
        let is_alone = sharing != Sharing::Shared;
        let suits = |entry: &&mut Entry| entry.is_open() && entry.running < if is_alone { 1 } else { entry.slots };
        let entry = self.processes.iter_mut().filter(suits).min_by_key(|entry| entry.running)?;
        entry.running += 1;
        entry.is_exclusive = is_alone;
        let id = entry.id;
        self.quarantined += usize::from(sharing == Sharing::Quarantined);
        Some(id)
    }

    fn is_barred(&self, sharing: Sharing) -> bool {
        sharing == Sharing::Quarantined && self.quarantined >= self.max_quarantined
    }

    /// Keeps the least busy process free.
    fn reserve(&mut self) {
        let open = self.processes.iter_mut().filter(|entry| entry.is_open());
        if let Some(entry) = open.min_by_key(|entry| entry.running) {
            entry.is_reserved = true;
        }
    }

    fn entry(&mut self, id: ProcessId) -> Option<&mut Entry> {
        self.processes.iter_mut().find(|entry| entry.id == id)
    }
}

impl Entry {
    /// Returns whether attempts may be started.
    fn is_open(&self) -> bool {
        !self.is_closing && !self.is_exclusive && !self.is_reserved
    }
}

#[cfg(test)]
mod tests {
    use Sharing::{Alone, Quarantined, Shared};

    use super::*;

    /// Table with two processes of two slots.
    fn table() -> SlotTable<&'static str> {
        let mut table = SlotTable::new(2);
        assert!(table.add(1, 2, None).is_empty() && table.add(2, 2, None).is_empty());
        table
    }

    #[test]
    fn least_busy_process_gets_the_attempt() {
        let mut table = table();
        assert_eq!([0; 5].map(|_| table.take(Shared)), [Some(1), Some(2), Some(1), Some(2), None]);
        assert!(table.free(2, Shared).granted.is_empty());
        assert_eq!(table.take(Shared), Some(2));
    }

    #[test]
    fn waiting_attempts_get_seats_in_turn() {
        let mut table = table();
        while table.take(Shared).is_some() {}
        assert!(table.wait(Shared, "first").is_empty() && table.wait(Shared, "second").is_empty());
        assert_eq!(table.free(1, Shared).granted, [(1, Shared, "first")]);
        assert_eq!(table.add(3, 1, None), [(3, Shared, "second")]);
        table.wait(Shared, "third");
        table.retain_waiting(|_| false);
        assert!(table.free(1, Shared).granted.is_empty());
    }

    #[test]
    fn attempt_that_waits_to_run_alone_is_not_overtaken_for_ever() {
        let mut table = table();
        while table.take(Shared).is_some() {}
        assert!(table.wait(Alone, "alone").is_empty());
        assert!(table.wait(Shared, "shared").is_empty());
        assert!(table.free(1, Shared).granted.is_empty(), "the first process is kept free");
        assert_eq!(table.free(2, Shared).granted, [(2, Shared, "shared")]);
        assert_eq!(table.free(1, Shared).granted, [(1, Alone, "alone")]);
        assert_eq!(table.take(Shared), None, "the process of the first has a free slot and runs nothing else");
        table.free(1, Alone);
        assert_eq!([0; 3].map(|_| table.take(Shared)), [Some(1), Some(1), None]);
    }

    #[test]
    fn quarantined_attempts_run_in_half_of_the_processes() {
        let mut table = table();
        assert_eq!(table.take(Quarantined), Some(1));
        assert!(table.wait(Quarantined, "second").is_empty());
        assert_eq!(table.wait(Shared, "shared"), [(2, Shared, "shared")], "no process is kept free for the second");
        let freed = table.free(1, Quarantined).granted;
        assert_eq!(freed, [(1, Quarantined, "second")]);
    }

    #[test]
    fn closed_process_is_finished_with_its_last_attempt() {
        let mut table = table();
        assert_eq!([table.take(Shared), table.take(Shared), table.take(Shared)], [Some(1), Some(2), Some(1)]);
        assert!(!table.close(1));
        assert_eq!(table.serving(), 1);
        assert!(!table.free(1, Shared).is_finished);
        assert!(table.free(1, Shared).is_finished);
        table.remove(1);
        assert_eq!([0; 2].map(|_| table.take(Shared)), [Some(2), None]);
        assert!(!table.free(1, Shared).is_finished, "the process has ended");
    }

    #[test]
    fn process_is_used_up_after_its_attempts() {
        let mut table = SlotTable::<()>::new(1);
        table.add(1, 1, Some(2));
        for _ in 0..3 {
            assert!(table.take(Shared).is_some() && !table.is_used_up(1), "a slot without an attempt does not count");
            table.free(1, Shared);
        }
        assert!(!table.count_attempt(1));
        assert!(table.count_attempt(1) && table.is_used_up(1));
    }
}
