//! Tenants of one priority: their ready tasks, and the slot time that each has used.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use super::{SlotTime, UsualTime};

/// Number of tenants above which those without ready tasks and attempts are forgotten: they begin again like new ones.
const MAX_TENANTS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Classes<T> {
    tenants: FxHashMap<u64, Tenant<T>>,
    /// Tenants that may start a task, by slot time and the age of their oldest task.
    turns: BTreeSet<(SlotTime, i64, u64)>,
    /// Slot time of the tenant that had the last turn.
    floor: SlotTime,
    /// Number of ready tasks.
    ready: usize,
}

#[derive(Debug)]
struct Tenant<T> {
    /// Ready tasks with their ages, which ascend.
    ready: VecDeque<(i64, T)>,
    used: SlotTime,
    running: usize,
    usual: UsualTime,
    is_blocked: bool,
}

impl<T> Default for Classes<T> {
    fn default() -> Self {
        Self { tenants: FxHashMap::default(), turns: BTreeSet::new(), floor: SlotTime::default(), ready: 0 }
    }
}

impl<T> Default for Tenant<T> {
    fn default() -> Self {
        let (used, usual) = (SlotTime::default(), UsualTime::default());
        Self { ready: VecDeque::new(), used, running: 0, usual, is_blocked: false }
    }
}

impl<T> Tenant<T> {
    fn turn(&self, tenant: u64) -> Option<(SlotTime, i64, u64)> {
        self.ready.front().filter(|_| !self.is_blocked).map(|(age, _)| (self.used, *age, tenant))
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.running == 0
    }
}

impl<T> Classes<T> {
    /// Number of ready tasks, also of blocked tenants.
    pub(super) fn len(&self) -> usize {
        self.ready
    }

    /// Returns whether a tenant may start a task.
    pub(super) fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Changes a tenant, and keeps the order of turns. A tenant that gets a turn begins at the floor.
    fn update<R>(&mut self, tenant: u64, change: impl FnOnce(&mut Tenant<T>) -> R) -> R {
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(&tenant) {
            self.tenants.retain(|_, tenant| !tenant.is_idle());
        }
        let state = self.tenants.entry(tenant).or_default();
        let before = state.turn(tenant);
        let answer = change(state);
        if before.is_none() && state.turn(tenant).is_some() {
            state.used = state.used.max(self.floor);
        }
        let after = state.turn(tenant);
        if before != after {
            if let Some(turn) = before {
                self.turns.remove(&turn);
            }
            self.turns.extend(after);
        }
        answer
    }

    pub(super) fn push_back(&mut self, tenant: u64, age: i64, task: T) {
        self.ready += 1;
        self.update(tenant, |tenant| tenant.ready.push_back((age, task)));
    }

    pub(super) fn push_front(&mut self, tenant: u64, age: i64, task: T) {
        self.ready += 1;
        self.update(tenant, |tenant| tenant.ready.push_front((age, task)));
    }

    /// Takes the oldest task of the tenant with the least slot time.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let &(used, _, tenant) = self.turns.first()?;
        self.floor = self.floor.max(used);
        let (_, task) = self.update(tenant, |tenant| tenant.ready.pop_front())?;
        self.ready -= 1;
        Some((tenant, task))
    }

    pub(super) fn set_blocked(&mut self, tenant: u64, is_blocked: bool) {
        if is_blocked || self.tenants.contains_key(&tenant) {
            self.update(tenant, |tenant| tenant.is_blocked = is_blocked);
        }
    }

    pub(super) fn charge(&mut self, tenant: u64, time: f64) {
        self.update(tenant, |tenant| tenant.used.add(time));
    }

    pub(super) fn add_running(&mut self, tenant: u64, attempts: usize) {
        self.update(tenant, |tenant| tenant.running += attempts);
    }

    /// Registers the end of an attempt that has used so many milliseconds.
    pub(super) fn end(&mut self, tenant: u64, used_ms: f64) {
        self.update(tenant, |tenant| {
            tenant.running = tenant.running.saturating_sub(1);
            tenant.usual.add(used_ms);
        });
    }

    pub(super) fn usual(&self, tenant: u64) -> UsualTime {
        self.tenants.get(&tenant).map_or_else(UsualTime::default, |tenant| tenant.usual)
    }

    /// Slot time by weight in milliseconds, of a tenant without ready tasks at least the floor.
    pub(super) fn used(&self, tenant: u64) -> f64 {
        let known = self.tenants.get(&tenant);
        let has_turn = known.is_some_and(|known| known.turn(tenant).is_some());
        let used = known.map_or(self.floor, |known| known.used);
        if has_turn { used.0 } else { used.max(self.floor).0 }
    }

    /// Takes out the selected tasks, by tenant.
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        let mut tenants: Vec<u64> =
            self.tenants.iter().filter(|(_, state)| !state.ready.is_empty()).map(|(tenant, _)| *tenant).collect();
        tenants.sort_unstable();
        let mut taken = Vec::new();
        for tenant in tenants {
            self.update(tenant, |tenant| {
                let (out, stay): (VecDeque<_>, VecDeque<_>) =
                    tenant.ready.drain(..).partition(|(_, task)| is_selected(task));
                tenant.ready = stay;
                taken.extend(out.into_iter().map(|(_, task)| task));
            });
        }
        self.ready -= taken.len();
        taken
    }
}

#[cfg(test)]
impl<T> Classes<T> {
    pub(super) fn ready_of(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.ready.len())
    }

    pub(super) fn known(&self) -> usize {
        self.tenants.len()
    }
}
