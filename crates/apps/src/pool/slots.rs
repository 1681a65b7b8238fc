//! Table of an app's processes: free slots, and the attempts that wait for them, in turn.

use std::collections::VecDeque;

use kafleet_handlers::permit::Sharing;

use crate::capacity::{Capacity, SlotKind};

/// Number of a process; never reused.
pub(super) type ProcessId = u64;

/// Place that an attempt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub sharing: Sharing,
    pub slot_kind: SlotKind,
}

/// Processes of an app, and the queue of waiting attempts. `W` identifies a waiting attempt.
pub(super) struct SlotTable<W> {
    processes: Vec<ProcessSlots>,
    waiting: VecDeque<(Claim, W)>,
    /// A spare process can be started for quarantined attempts, so that they leave one of the others free.
    has_spares: bool,
    /// Processes that have just started get no attempts: they may die by themselves.
    withholds_young: bool,
}

struct ProcessSlots {
    id: ProcessId,
    capacity: Capacity,
    /// Running attempts that take slots, and those that take threads.
    in_slots: u32,
    in_threads: u32,
    /// The running attempt shares the process with no other.
    is_exclusive: bool,
    /// The running attempt is quarantined.
    is_quarantine: bool,
    /// The process runs quarantined attempts only.
    is_spare: bool,
    /// The process has just started.
    is_young: bool,
    /// No more attempts are started: the process is to be replaced.
    is_closing: bool,
    /// Kept free for an attempt that waits to run alone.
    is_reserved: bool,
    /// Attempts until the process is replaced. `None`: no limit.
    left: Option<u64>,
}

/// Slots and processes that have become free.
pub(super) struct FreedSlots<W> {
    /// Waiting attempts that have got a slot.
    pub granted: Vec<(ProcessId, W)>,
    /// The process is closed and runs no more attempts.
    pub is_finished: bool,
}

impl<W> SlotTable<W> {
    /// Creates a table without processes.
    pub(super) fn new() -> Self {
        Self { processes: Vec::new(), waiting: VecDeque::new(), has_spares: false, withholds_young: false }
    }

    /// Adds a process. `left`: attempts until it is replaced.
    pub(super) fn add(&mut self, id: ProcessId, capacity: Capacity, left: Option<u64>) -> Vec<(ProcessId, W)> {
        self.processes.push(ProcessSlots { left, ..ProcessSlots::new(id, capacity) });
        self.grant()
    }

    /// Adds a process that runs quarantined attempts only.
    pub(super) fn add_spare(&mut self, id: ProcessId, capacity: Capacity) -> Vec<(ProcessId, W)> {
        self.processes.push(ProcessSlots { is_spare: true, ..ProcessSlots::new(id, capacity) });
        self.grant()
    }

    /// Sets whether spare processes can be started. If not, quarantined attempts may use the last process.
    pub(super) fn set_spares(&mut self, has_spares: bool) -> Vec<(ProcessId, W)> {
        self.has_spares = has_spares;
        self.grant()
    }

    /// Sets whether processes that have just started get no attempts.
    pub(super) fn withhold_young(&mut self, is_withheld: bool) -> Vec<(ProcessId, W)> {
        self.withholds_young = is_withheld;
        self.grant()
    }

    /// Notes that a process has lasted for some time.
    pub(super) fn has_lasted(&mut self, id: ProcessId) -> Vec<(ProcessId, W)> {
        if let Some(entry) = self.entry(id) {
            entry.is_young = false;
        }
        self.grant()
    }

    /// Returns whether some process has lasted and still starts attempts.
    pub(super) fn has_lasting(&self) -> bool {
        self.processes.iter().any(|entry| !entry.is_young && !entry.is_closing)
    }

    /// Returns whether an attempt waits to run in quarantine, and no spare process is free for it.
    pub(super) fn needs_spare(&self) -> bool {
        let is_free = |entry: &ProcessSlots| entry.is_spare && entry.is_open() && entry.is_idle();
        let is_waiting = self.waiting.iter().any(|(claim, _)| claim.sharing == Sharing::Quarantined);
        is_waiting && !self.processes.iter().any(is_free)
    }

    /// Returns whether a process runs no attempt.
    pub(super) fn is_idle(&self, id: ProcessId) -> bool {
        self.processes.iter().any(|entry| entry.id == id && entry.is_idle())
    }

    /// Removes a process that has ended. Its slots are given back later without effect.
    pub(super) fn remove(&mut self, id: ProcessId) {
        self.processes.retain(|entry| entry.id != id);
    }

    /// Starts no more attempts in a process. Returns whether it runs none.
    pub(super) fn close(&mut self, id: ProcessId) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        entry.is_closing = true;
        entry.is_idle()
    }

    /// Number of processes that start attempts, without spare ones.
    pub(super) fn serving(&self) -> usize {
        self.processes.iter().filter(|entry| !entry.is_closing && !entry.is_spare).count()
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
        let busy = self.processes.iter().map(|entry| u64::from(entry.running())).sum();
        (open.map(|entry| u64::from(entry.capacity.total())).sum(), busy)
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
    pub(super) fn take_slot(&mut self, claim: Claim) -> Option<ProcessId> {
        // Attempts that wait for the other kind of place are not overtaken by this one.
        let is_overtaking = self
            .waiting
            .iter()
            .any(|(other, _)| other.sharing != Sharing::Shared || other.slot_kind == claim.slot_kind);
        if is_overtaking { None } else { self.find(claim) }
    }

    /// Adds an attempt to the queue. Returns the attempts that get a slot, possibly this one.
    pub(super) fn wait(&mut self, claim: Claim, waiter: W) -> Vec<(ProcessId, W)> {
        self.waiting.push_back((claim, waiter));
        self.grant()
    }

    /// Drops waiting attempts.
    pub(super) fn retain_waiting(&mut self, mut is_kept: impl FnMut(&W) -> bool) {
        self.waiting.retain(|(_, waiter)| is_kept(waiter));
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, id: ProcessId, slot_kind: SlotKind) -> FreedSlots<W> {
        let mut is_finished = false;
        if let Some(entry) = self.entry(id) {
            *entry.running_in(slot_kind) -= 1;
            (entry.is_exclusive, entry.is_quarantine) = (false, false);
            is_finished = entry.is_closing && entry.is_idle();
        }
        FreedSlots { granted: self.grant(), is_finished }
    }

    /// Gives free slots to waiting attempts, in turn. Attempts that wait to run alone keep a process free.
    fn grant(&mut self) -> Vec<(ProcessId, W)> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.processes.iter_mut().for_each(|entry| entry.is_reserved = false);
        let mut granted = Vec::new();
        for (claim, waiter) in std::mem::take(&mut self.waiting) {
            if let Some(id) = self.find(claim) {
                granted.push((id, waiter));
                continue;
            }
            if claim.sharing == Sharing::Alone
                || (claim.sharing == Sharing::Quarantined
                    && !self.has_spares
                    && !is_barred(&self.processes, self.has_spares))
            {
                reserve(&mut self.processes);
            }
            self.waiting.push_back((claim, waiter));
        }
        if self.waiting.is_empty() {
            self.processes.iter_mut().for_each(|entry| entry.is_reserved = false);
        }
        granted
    }

    /// Takes a slot in the least busy process that suits.
    fn find(&mut self, Claim { sharing, slot_kind }: Claim) -> Option<ProcessId> {
        let is_alone = sharing != Sharing::Shared;
        let is_quarantine = sharing == Sharing::Quarantined;
        let is_barred = is_quarantine && is_barred(&self.processes, self.has_spares);
        let withholds_young = self.withholds_young;
        let suits = |entry: &&mut ProcessSlots| {
            let is_for_it = if entry.is_spare { is_quarantine } else { !is_barred };
            let is_withheld = withholds_young && entry.is_young;
            let has_free = if is_alone { entry.is_idle() } else { entry.has_free(slot_kind) };
            is_for_it && !is_withheld && entry.is_open() && has_free
        };
        // A spare process first: nothing else runs in it.
        let entry = self.processes.iter_mut().filter(suits).min_by_key(|entry| (!entry.is_spare, entry.running()))?;
        *entry.running_in(slot_kind) += 1;
        (entry.is_exclusive, entry.is_quarantine) = (is_alone, is_quarantine);
        Some(entry.id)
    }

    fn entry(&mut self, id: ProcessId) -> Option<&mut ProcessSlots> {
        self.processes.iter_mut().find(|entry| entry.id == id)
    }
}

/// Returns whether quarantined attempts take no more of the processes that others use: they leave one of them free. If there
/// is only one, and no spare process can be started, they take it in turn with the others.
fn is_barred(processes: &[ProcessSlots], has_spares: bool) -> bool {
    let regular = processes.iter().filter(|entry| !entry.is_spare);
    let quarantined = regular.clone().filter(|entry| entry.is_quarantine).count();
    let open = regular.filter(|entry| !entry.is_closing).count();
    quarantined + 1 >= open && (has_spares || quarantined > 0)
}

/// Keeps the least busy process free.
fn reserve(processes: &mut [ProcessSlots]) {
    let open = processes.iter_mut().filter(|entry| entry.is_open() && !entry.is_spare);
    if let Some(entry) = open.min_by_key(|entry| entry.running()) {
        entry.is_reserved = true;
    }
}

impl ProcessSlots {
    fn new(id: ProcessId, capacity: Capacity) -> Self {
        Self {
            id,
            capacity,
            in_slots: 0,
            in_threads: 0,
            is_exclusive: false,
            is_quarantine: false,
            is_spare: false,
            is_young: true,
            is_closing: false,
            is_reserved: false,
            left: None,
        }
    }

    /// Number of running attempts.
    fn running(&self) -> u32 {
        self.in_slots + self.in_threads
    }

    fn running_in(&mut self, slot_kind: SlotKind) -> &mut u32 {
        match slot_kind {
            SlotKind::General => &mut self.in_slots,
            SlotKind::Thread => &mut self.in_threads,
        }
    }

    fn is_idle(&self) -> bool {
        self.running() == 0
    }

    fn has_free(&self, slot_kind: SlotKind) -> bool {
        let running = match slot_kind {
            SlotKind::General => self.in_slots,
            SlotKind::Thread => self.in_threads,
        };
        running < self.capacity.of(slot_kind)
    }

    /// Returns whether attempts may be started.
    fn is_open(&self) -> bool {
        !self.is_closing && !self.is_exclusive && !self.is_reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn claim(sharing: Sharing) -> Claim {
        Claim { sharing, slot_kind: SlotKind::General }
    }

    const SHARED: Claim = claim(Sharing::Shared);
    const ALONE: Claim = claim(Sharing::Alone);
    const QUARANTINED: Claim = claim(Sharing::Quarantined);
    const SYNC: Claim = Claim { slot_kind: SlotKind::Thread, ..SHARED };

    /// Table with two processes of two slots.
    fn table() -> SlotTable<&'static str> {
        let mut table = SlotTable::new();
        assert!(
            table.add(1, Capacity::shared(2), None).is_empty() && table.add(2, Capacity::shared(2), None).is_empty()
        );
        table
    }

    #[test]
    fn least_busy_process_gets_the_attempt() {
        let mut table = table();
        assert_eq!([0; 5].map(|_| table.take_slot(SHARED)), [Some(1), Some(2), Some(1), Some(2), None]);
        assert!(table.free(2, SlotKind::General).granted.is_empty());
        assert_eq!(table.take_slot(SHARED), Some(2));
    }

    #[test]
    fn waiting_attempts_get_seats_in_turn() {
        let mut table = table();
        while table.take_slot(SHARED).is_some() {}
        assert!(table.wait(SHARED, "first").is_empty() && table.wait(SHARED, "second").is_empty());
        assert_eq!(table.free(1, SlotKind::General).granted, [(1, "first")]);
        assert_eq!(table.add(3, Capacity::shared(1), None), [(3, "second")]);
        table.wait(SHARED, "third");
        table.retain_waiting(|_| false);
        assert!(table.free(1, SlotKind::General).granted.is_empty());
    }

    #[test]
    fn attempt_that_waits_to_run_alone_is_not_overtaken_for_ever() {
        let mut table = table();
        while table.take_slot(SHARED).is_some() {}
        assert!(table.wait(ALONE, "alone").is_empty());
        assert!(table.wait(SHARED, "shared").is_empty());
        assert!(table.free(1, SlotKind::General).granted.is_empty(), "the first process is kept free");
        assert_eq!(table.free(2, SlotKind::General).granted, [(2, "shared")]);
        assert_eq!(table.free(1, SlotKind::General).granted, [(1, "alone")]);
        assert_eq!(table.take_slot(SHARED), None, "the process of the first has a free slot and runs nothing else");
        table.free(1, SlotKind::General);
        assert_eq!([0; 3].map(|_| table.take_slot(SHARED)), [Some(1), Some(1), None]);
    }

    #[test]
    fn quarantined_attempts_leave_one_process_to_the_others() {
        let mut table = table();
        table.add(3, Capacity::shared(2), None);
        assert_eq!([0; 2].map(|_| table.take_slot(QUARANTINED)), [Some(1), Some(2)]);
        assert!(table.wait(QUARANTINED, "third").is_empty());
        assert_eq!(table.wait(SHARED, "shared"), [(3, "shared")], "no process is kept free for the third");
        assert_eq!(table.free(1, SlotKind::General).granted, [(1, "third")]);
    }

    #[test]
    fn quarantined_attempts_wait_for_a_spare_process_if_there_may_be_one() {
        let mut table = SlotTable::new();
        table.add(1, Capacity::shared(2), None);
        table.set_spares(true);
        assert!(table.wait(QUARANTINED, "first").is_empty() && table.needs_spare());
        assert_eq!(table.wait(SHARED, "shared"), [(1, "shared")]);
        assert_eq!(table.add_spare(2, Capacity::shared(2)), [(2, "first")]);
        assert_eq!(
            (table.take_slot(SHARED), table.take_slot(SHARED)),
            (Some(1), None),
            "the spare process is not for others"
        );
        assert!(table.free(1, SlotKind::General).granted.is_empty() && !table.is_idle(2) && !table.needs_spare());
        assert!(table.wait(QUARANTINED, "second").is_empty());
        assert_eq!(table.free(2, SlotKind::General).granted, [(2, "second")]);
        table.free(1, SlotKind::General);
        assert!(table.wait(QUARANTINED, "third").is_empty(), "the only process is left to others");
        assert_eq!(table.set_spares(false), [(1, "third")], "no spare process can be started");
    }

    #[test]
    fn young_processes_are_withheld_until_they_have_lasted() {
        let mut table = table();
        table.has_lasted(1);
        assert!(table.has_lasting());
        table.withhold_young(true);
        assert_eq!([0; 3].map(|_| table.take_slot(SHARED)), [Some(1), Some(1), None]);
        assert!(table.wait(SHARED, "waits").is_empty());
        assert_eq!(table.has_lasted(2), [(2, "waits")]);
        table.close(1);
        table.remove(2);
        assert!(!table.has_lasting());
    }

    #[test]
    fn closed_process_is_finished_with_its_last_attempt() {
        let mut table = table();
        assert_eq!(
            [table.take_slot(SHARED), table.take_slot(SHARED), table.take_slot(SHARED)],
            [Some(1), Some(2), Some(1)]
        );
        assert!(!table.close(1));
        assert_eq!(table.serving(), 1);
        assert!(!table.free(1, SlotKind::General).is_finished);
        assert!(table.free(1, SlotKind::General).is_finished);
        table.remove(1);
        assert_eq!([0; 2].map(|_| table.take_slot(SHARED)), [Some(2), None]);
        assert!(!table.free(1, SlotKind::General).is_finished, "the process has ended");
    }

    #[test]
    fn process_is_used_up_after_its_attempts() {
        let mut table = SlotTable::<()>::new();
        table.add(1, Capacity::shared(1), Some(2));
        for _ in 0..3 {
            assert!(
                table.take_slot(SHARED).is_some() && !table.is_used_up(1),
                "a slot without an attempt does not count"
            );
            table.free(1, SlotKind::General);
        }
        assert!(!table.count_attempt(1));
        assert!(table.count_attempt(1) && table.is_used_up(1));
    }

    #[test]
    fn sync_attempts_have_places_of_their_own() {
        let mut table = SlotTable::new();
        table.add(1, Capacity { slots: 2, threads: 1 }, None);
        assert_eq!([0; 2].map(|_| table.take_slot(SYNC)), [Some(1), None]);
        assert!(table.wait(SYNC, "sync").is_empty());
        assert_eq!([0; 3].map(|_| table.take_slot(SHARED)), [Some(1), Some(1), None], "not behind the waiting one");
        assert!(table.free(1, SlotKind::General).granted.is_empty());
        assert_eq!(table.free(1, SlotKind::Thread).granted, [(1, "sync")]);
        assert!(table.wait(ALONE, "alone").is_empty());
        assert_eq!(table.take_slot(SHARED), None, "the process is kept free");
        assert!(table.free(1, SlotKind::Thread).granted.is_empty());
        assert_eq!(table.free(1, SlotKind::General).granted, [(1, "alone")]);
        assert_eq!((table.take_slot(SYNC), table.slots()), (None, (3, 1)));
    }
}
