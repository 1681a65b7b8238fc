//! Weighted fair queue of a type's ready tasks: which one has its turn. Pure: times in milliseconds of a clock that
//! only advances.
//!
//! The priority with the least slot time by weight is first, then its tenant with the least slot time by weight, then
//! that tenant's oldest task. Shares count slot time, not starts: beside attempts of 10 s, tasks of 0.1 s that take
//! turns by starts wait a hundred times as long as they run. A start is charged with the usual time of its class,
//! because its own is not known yet; what it uses beyond that is charged while it runs, and the difference at its end.
//!
//! Invariant: a class that has had nothing ready begins at the slot time of the class that started last. It takes its
//! share from then on, and no time for which it has asked for nothing.
//!
//! Read next: `classes.rs` (tenants of one priority).

mod classes;

use std::cmp::Ordering;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::task::priority::{Priority, TaskClass};
use classes::Classes;

/// Weight of the latest attempt in the usual time of attempts.
const LATEST: f64 = 0.1;
/// Time of an attempt that is assumed before the first one has ended, in milliseconds.
const FIRST_ATTEMPT_MS: f64 = 100.0;

/// Slot time divided by a weight, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct SlotTime(f64);

/// Share of the tasks of one priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriorityShare {
    /// Share of slot time relative to the other priorities that have something to do; above 0.
    pub weight: f64,
    /// Number of slots that tasks of lower priorities leave free.
    pub reserve: usize,
}

/// Order in which priorities take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityOrder {
    /// By their weights.
    #[default]
    Weighted,
    /// A priority starts only while those above it have nothing ready; it may wait forever.
    Strict,
}

/// Shares of priorities and tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct FairShares {
    /// Shares by priority, in the order of [`Priority::ALL`].
    pub priorities: [PriorityShare; 3],
    /// Order in which priorities take turns.
    pub order: PriorityOrder,
    /// Weights of tenants by the hash of their names, each above 0. The weight of others is 1.
    pub tenants: FxHashMap<u64, f64>,
}

/// Ready tasks of a type in classes, and the slot time that each class has used.
#[derive(Debug)]
pub struct FairQueue<T> {
    shares: FairShares,
    priorities: [PriorityQueue<T>; 3],
    /// Slot time of the priority that had the last turn.
    floor: SlotTime,
    attempts: FxHashMap<AttemptId, RunningAttempt>,
    next_attempt: u64,
    /// Usual time of the type's attempts.
    usual: UsualTime,
    /// Tenants that may not start now.
    blocked: FxHashSet<u64>,
    /// Ages of the next tasks at the front and at the back.
    ages: (i64, i64),
}

#[derive(Debug)]
struct PriorityQueue<T> {
    classes: Classes<T>,
    used: SlotTime,
    /// Attempts that run.
    running: usize,
}

/// Attempt whose slot time is being charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptId(u64);

#[derive(Clone, Copy, Debug)]
struct RunningAttempt {
    class: TaskClass,
    started_ms: u64,
    charged_ms: f64,
}

/// Mean of recent attempts in milliseconds; `None` before the first one.
#[derive(Clone, Copy, Debug, Default)]
struct UsualTime(Option<f64>);

impl Default for FairShares {
    /// Weights 1, 4 and 16, and no reserve.
    fn default() -> Self {
        let priorities = [1.0, 4.0, 16.0].map(|weight| PriorityShare { weight, reserve: 0 });
        Self { priorities, order: PriorityOrder::Weighted, tenants: FxHashMap::default() }
    }
}

impl FairShares {
    fn share(&self, priority: Priority) -> &PriorityShare {
        &self.priorities[priority.index()]
    }

    fn tenant_weight(&self, tenant: u64) -> f64 {
        self.tenants.get(&tenant).copied().unwrap_or(1.0)
    }

    /// Number of slots that tasks of this priority and those below leave free, of `open` ones: at least one is not
    /// reserved.
    fn reserved_above(&self, priority: Priority, open: usize) -> usize {
        let above = self.priorities.iter().skip(priority.index() + 1);
        above.map(|share| share.reserve).fold(0, usize::saturating_add).min(open.saturating_sub(1))
    }
}

impl<T> FairQueue<T> {
    /// Creates an empty queue.
    pub fn new(shares: FairShares) -> Self {
        let priority = || PriorityQueue { classes: Classes::default(), used: SlotTime::default(), running: 0 };
        Self {
            shares,
            priorities: [priority(), priority(), priority()],
            floor: SlotTime::default(),
            attempts: FxHashMap::default(),
            next_attempt: 0,
            usual: UsualTime::default(),
            blocked: FxHashSet::default(),
            ages: (-1, 0),
        }
    }

    /// Replaces the shares. What has been used stays charged by the earlier weights.
    pub fn set_shares(&mut self, shares: FairShares) {
        self.shares = shares;
    }

    /// Number of ready tasks.
    pub fn len(&self) -> usize {
        self.priorities.iter().map(|priority| priority.classes.len()).sum()
    }

    /// Returns whether no task is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a ready task behind those of its class.
    pub fn push_back(&mut self, class: TaskClass, task: T) {
        let age = self.ages.1;
        self.ages.1 += 1;
        self.insert(class, |classes| classes.push_back(class.tenant, age, task));
    }

    /// Adds a ready task before those of its class, such as one whose wait is over.
    pub fn push_front(&mut self, class: TaskClass, task: T) {
        let age = self.ages.0;
        self.ages.0 -= 1;
        self.insert(class, |classes| classes.push_front(class.tenant, age, task));
    }

    fn insert(&mut self, class: TaskClass, push: impl FnOnce(&mut Classes<T>)) {
        let floor = self.floor;
        let is_blocked = self.blocked.contains(&class.tenant);
        let priority = &mut self.priorities[class.priority.index()];
        let was_idle = !priority.classes.has_turn();
        if is_blocked {
            priority.classes.set_blocked(class.tenant, true);
        }
        push(&mut priority.classes);
        priority.begin_at(floor, was_idle);
    }

    /// Lets a tenant start nothing, or again: it is at a limit, or paused.
    pub fn set_blocked(&mut self, tenant: u64, is_blocked: bool) {
        if is_blocked {
            self.blocked.insert(tenant)
        } else {
            self.blocked.remove(&tenant)
        };
        for priority in &mut self.priorities {
            let was_idle = !priority.classes.has_turn();
            priority.classes.set_blocked(tenant, is_blocked);
            priority.begin_at(self.floor, was_idle);
        }
    }

    /// Takes the task that has its turn, of a type with so many slots open now, free or not. `None`: nothing is ready,
    /// or the free slots are reserved.
    pub fn pop(&mut self, open_slots: usize) -> Option<(TaskClass, T)> {
        let priority = self.priority_in_turn(open_slots)?;
        let queue = &mut self.priorities[priority.index()];
        self.floor = self.floor.max(queue.used);
        let (tenant, task) = queue.classes.pop()?;
        Some((TaskClass { priority, tenant }, task))
    }

    fn priority_in_turn(&self, open_slots: usize) -> Option<Priority> {
        let mut running_below = 0;
        let mut first: Option<Priority> = None;
        for priority in Priority::ALL {
            let queue = &self.priorities[priority.index()];
            running_below += queue.running;
            let is_admitted = running_below + self.shares.reserved_above(priority, open_slots) < open_slots;
            let is_before = |other: Priority| match self.shares.order {
                PriorityOrder::Strict => true,
                PriorityOrder::Weighted => queue.used <= self.priorities[other.index()].used,
            };
            if is_admitted && queue.classes.has_turn() && first.is_none_or(is_before) {
                first = Some(priority);
            }
        }
        first
    }

    /// Registers the start of an attempt, and charges it with the usual time of its class.
    pub fn start(&mut self, class: TaskClass, now_ms: u64) -> AttemptId {
        let queue = &mut self.priorities[class.priority.index()];
        let usual = queue.classes.usual(class.tenant).0.or(self.usual.0).unwrap_or(FIRST_ATTEMPT_MS);
        queue.running += 1;
        queue.classes.add_running(class.tenant, 1);
        let id = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        self.attempts.insert(id, RunningAttempt { class, started_ms: now_ms, charged_ms: usual });
        self.charge(class, usual);
        id
    }

    /// Charges what the attempts that run have used beyond what they have been charged with. To be called every second.
    pub fn charge_running(&mut self, now_ms: u64) {
        let mut charges = Vec::new();
        for attempt in self.attempts.values_mut() {
            let beyond = attempt.used_ms(now_ms) - attempt.charged_ms;
            if beyond > 0.0 {
                attempt.charged_ms += beyond;
                charges.push((attempt.class, beyond));
            }
        }
        charges.into_iter().for_each(|(class, beyond)| self.charge(class, beyond));
    }

    /// Registers the end of an attempt: its class is charged with exactly what it has used.
    pub fn end(&mut self, id: AttemptId, now_ms: u64) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let used = attempt.used_ms(now_ms);
        self.charge(attempt.class, used - attempt.charged_ms);
        let queue = &mut self.priorities[attempt.class.priority.index()];
        queue.running = queue.running.saturating_sub(1);
        queue.classes.end(attempt.class.tenant, used);
        self.usual.add(used);
    }

    fn charge(&mut self, class: TaskClass, slot_ms: f64) {
        let queue = &mut self.priorities[class.priority.index()];
        queue.used.add(slot_ms / self.shares.share(class.priority).weight);
        queue.classes.charge(class.tenant, slot_ms / self.shares.tenant_weight(class.tenant));
    }

    /// Slot time of a priority by its weight, in milliseconds: of two priorities the one with less is first.
    pub fn used_by_priority(&self, priority: Priority) -> f64 {
        self.priorities[priority.index()].used.0
    }

    /// Slot time of a class by its tenant's weight, in milliseconds, compared with others of its priority. A class that
    /// is not known begins with the next task.
    pub fn used_by_class(&self, class: TaskClass) -> f64 {
        self.priorities[class.priority.index()].classes.used(class.tenant)
    }

    /// Takes out the selected tasks, by class and each class in its order.
    pub fn extract(&mut self, is_selected: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        self.priorities.iter_mut().flat_map(|priority| priority.classes.extract(is_selected)).collect()
    }
}

impl<T> PriorityQueue<T> {
    /// Lifts the slot time of a priority that had nothing ready until now.
    fn begin_at(&mut self, floor: SlotTime, was_idle: bool) {
        if was_idle && self.classes.has_turn() {
            self.used = self.used.max(floor);
        }
    }
}

impl RunningAttempt {
    fn used_ms(&self, now_ms: u64) -> f64 {
        now_ms.saturating_sub(self.started_ms) as f64
    }
}

impl UsualTime {
    fn add(&mut self, time_ms: f64) {
        self.0 = Some(self.0.map_or(time_ms, |usual| usual + LATEST * (time_ms - usual)));
    }
}

impl SlotTime {
    fn add(&mut self, time: f64) {
        self.0 += time;
    }
}

impl PartialEq for SlotTime {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for SlotTime {}
impl PartialOrd for SlotTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for SlotTime {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests;
