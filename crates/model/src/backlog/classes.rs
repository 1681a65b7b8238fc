//! Classes of a partition's records: what each holds, how much it may hold, and what of it is passed over.

use rustc_hash::FxHashMap;

use super::{BacklogLimits, ClassView};
use crate::task::priority::{Priority, TaskClass};

/// Number of records that each class without passed-over records may hold, while there is room.
const MIN_HELD: usize = 8;
/// Tenant of the classes that are not distinguished.
const SHARED_TENANT: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct ClassTable {
    limits: BacklogLimits,
    states: FxHashMap<TaskClass, ClassState>,
    /// Classes with passed-over records, and what they hold.
    deferred: GroupTotals,
    /// Other classes with held records.
    others: GroupTotals,
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupTotals {
    classes: usize,
    held: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassState {
    held: usize,
    pub passed_over: u64,
    /// Offset below which nothing of the class is passed over; meaningless without such records.
    pub hint: i64,
    /// Part in the scan that is going on.
    pub scan: Option<ScanPart>,
}

/// Part of a class in a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanPart {
    pub phase: ScanPhase,
    /// Records that reading on has passed over since the scan began.
    pub added: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanPhase {
    /// The scan has not reached its hint.
    Ahead,
    /// Its records are held as they come.
    Active,
    /// It has no room, or must begin again: the hint is where.
    Full,
}

impl ClassState {
    fn is_deferred(&self) -> bool {
        self.passed_over > 0
    }

    fn is_empty(&self) -> bool {
        self.held == 0 && self.passed_over == 0 && self.scan.is_none()
    }
}

impl ClassTable {
    pub(super) fn new(limits: BacklogLimits) -> Self {
        let (deferred, others) = (GroupTotals::default(), GroupTotals::default());
        Self { limits, states: FxHashMap::default(), deferred, others }
    }

    /// Class under which a record counts. Classes beyond the limit share one, and so do further ones while it has
    /// records: the class of a record is then the same when it is passed over and when it is scanned.
    pub(super) fn resolve(&self, class: TaskClass) -> TaskClass {
        let shared = TaskClass { tenant: SHARED_TENANT, ..class };
        let is_shared = self.states.len() >= self.limits.classes || self.states.contains_key(&shared);
        if is_shared && !self.states.contains_key(&class) { shared } else { class }
    }

    pub(super) fn state(&self, class: TaskClass) -> ClassState {
        self.states.get(&class).copied().unwrap_or_default()
    }

    /// Number of held records of all classes.
    pub(super) fn held(&self) -> usize {
        self.deferred.held + self.others.held
    }

    pub(super) fn passed_over(&self, class: TaskClass) -> u64 {
        self.state(class).passed_over
    }

    /// Changes a class, and keeps the totals.
    pub(super) fn update<R>(&mut self, class: TaskClass, change: impl FnOnce(&mut ClassState) -> R) -> R {
        let mut state = self.state(class);
        self.group_of(&state).remove(&state);
        let answer = change(&mut state);
        self.group_of(&state).add(&state);
        if state.is_empty() {
            self.states.remove(&class)
        } else {
            self.states.insert(class, state)
        };
        answer
    }

    fn group_of(&mut self, state: &ClassState) -> &mut GroupTotals {
        if state.is_deferred() { &mut self.deferred } else { &mut self.others }
    }

    pub(super) fn add_held(&mut self, class: TaskClass) {
        self.update(class, |state| state.held += 1);
    }

    pub(super) fn remove_held(&mut self, class: TaskClass) {
        self.update(class, |state| state.held = state.held.saturating_sub(1));
    }

    /// Part of a class that the scan has not reached yet.
    pub(super) fn part_ahead(&mut self, class: TaskClass) -> Option<&mut ScanPart> {
        self.states.get_mut(&class)?.scan.as_mut().filter(|part| part.phase == ScanPhase::Ahead)
    }

    /// Counts a record of reading on as passed over.
    pub(super) fn pass_over(&mut self, class: TaskClass, offset: i64) {
        self.update(class, |state| {
            state.hint = if state.is_deferred() { state.hint.min(offset) } else { offset };
            state.passed_over += 1;
            if let Some(part) = &mut state.scan {
                part.added += 1;
            }
        });
    }

    /// Part of a half of the room that records of a priority may fill: the last eighth is for high ones, the last
    /// quarter for high and normal ones.
    fn part_of_half(&self, priority: Priority) -> usize {
        let half = self.limits.room / 2;
        match priority {
            Priority::High => half,
            Priority::Normal => half - half / 8,
            Priority::Low => half - half / 4,
        }
    }

    /// Returns whether a class without passed-over records may hold one more; false for a class that has some.
    pub(super) fn has_room_of_others(&self, class: TaskClass, view: &impl ClassView) -> bool {
        let state = self.state(class);
        let classes = self.others.classes + usize::from(state.held == 0);
        let quota = (self.limits.room / 2 / (classes + 1)).max(MIN_HELD).min(view.held_limit(class.tenant));
        !state.is_deferred()
            && state.held < quota
            && self.others.held < self.part_of_half(class.priority)
            && self.held() < self.limits.room
    }

    /// Number of records that a class with passed-over ones may hold.
    fn quota_of_deferred(&self, class: TaskClass, view: &impl ClassView) -> usize {
        let quota = (self.limits.room / 2 / (self.deferred.classes + 1)).max(1);
        let quota = if view.needs_work() { quota.max(self.part_of_half(class.priority)) } else { quota };
        quota.min(view.held_limit(class.tenant))
    }

    /// Returns whether a class with passed-over records may hold one more.
    pub(super) fn has_room_of_deferred(&self, class: TaskClass, view: &impl ClassView) -> bool {
        self.state(class).held < self.quota_of_deferred(class, view)
            && self.deferred.held < self.part_of_half(class.priority)
            && self.held() < self.limits.room
    }

    /// Classes with passed-over records that need more held ones and may start them, in a fixed order, each with its
    /// hint.
    pub(super) fn hungry(&self, view: &impl ClassView) -> Vec<(i64, TaskClass)> {
        let mut hungry = self.startable(view);
        hungry.retain(|(_, class)| {
            self.state(*class).held <= self.quota_of_deferred(*class, view) / 2
                && self.has_room_of_deferred(*class, view)
        });
        hungry
    }

    /// Classes with passed-over records that may start them, in a fixed order, each with its hint.
    pub(super) fn startable(&self, view: &impl ClassView) -> Vec<(i64, TaskClass)> {
        let deferred = self.states.iter().filter(|(_, state)| state.is_deferred());
        let startable = deferred.filter(|(class, _)| !view.is_blocked(class.tenant));
        let mut startable: Vec<(i64, TaskClass)> = startable.map(|(class, state)| (state.hint, *class)).collect();
        startable.sort_unstable();
        startable
    }

    /// Forgets all counts and hints.
    pub(super) fn forget_passed_over(&mut self) {
        let classes: Vec<TaskClass> = self.states.keys().copied().collect();
        for class in classes {
            self.update(class, |state| {
                state.passed_over = 0;
                state.scan = None;
            });
        }
    }
}

impl GroupTotals {
    fn add(&mut self, state: &ClassState) {
        self.classes += usize::from(state.is_deferred() || state.held > 0);
        self.held += state.held;
    }

    fn remove(&mut self, state: &ClassState) {
        self.classes -= usize::from(state.is_deferred() || state.held > 0);
        self.held -= state.held;
    }
}

#[cfg(test)]
impl ClassTable {
    pub(super) fn total_passed_over(&self) -> u64 {
        self.states.values().map(|state| state.passed_over).sum()
    }

    pub(super) fn number(&self) -> usize {
        self.states.len()
    }
}
