//! Circuits of the hosts that a type calls: while one is open, the tasks of its host wait without a slot, and the tasks of
//! others start. Pure: tasks, times and outcomes go in, admissions, tasks that may start and state changes come out.
//!
//! Invariant: a task that is held is taken out once: it may start, has waited too long, or was selected by the caller.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::ForcedCircuit;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{Circuit, CircuitChange, Outcome};

/// Maximum number of hosts with a circuit. A further one replaces the host without tasks that was used longest ago.
pub(crate) const MAX_HOSTS: usize = 1_000;

/// Circuits by host, with the tasks `T` that wait for them.
pub(crate) struct HostCircuits<T> {
    by_host: FxHashMap<Arc<str>, HostCircuit<T>>,
    /// Hosts with waiting tasks.
    held: BTreeSet<Arc<str>>,
    /// States set by operators.
    forced: FxHashMap<Arc<str>, ForcedCircuit>,
    slots: usize,
    /// Number of the last use of a host.
    uses: u64,
}

struct HostCircuit<T> {
    circuit: Circuit,
    running: usize,
    /// Waiting tasks with their arrival, in that order.
    waiting: VecDeque<(Instant, T)>,
    /// Reason of the latest failure that opened the circuit or kept it open.
    cause: String,
    used: u64,
}

/// Host whose circuit is open.
pub(crate) struct HostOutage<'a> {
    pub host: &'a str,
    /// Start of the outage; `None` if an operator has opened the circuit.
    pub since: Option<Instant>,
    pub cause: &'a str,
    pub waiting: usize,
}

impl<T> HostCircuits<T> {
    pub(crate) fn new() -> Self {
        Self { by_host: FxHashMap::default(), held: BTreeSet::new(), forced: FxHashMap::default(), slots: 1, uses: 0 }
    }

    /// Sets the slots of the type, and the states that operators have set.
    pub(crate) fn set<'a>(
        &mut self,
        slots: usize,
        forced: impl Iterator<Item = (&'a str, ForcedCircuit)>,
        now: Instant,
    ) {
        self.slots = slots;
        self.forced = forced.map(|(host, state)| (host.into(), state)).collect();
        for (host, state) in &mut self.by_host {
            state.circuit.set_slots(slots);
            state.circuit.force(self.forced.get(host).copied(), now);
        }
    }

    /// Returns whether an attempt that calls the host may start now. One of too many hosts has no circuit.
    pub(crate) fn admits(&mut self, host: &Arc<str>, now: Instant) -> bool {
        match self.entry(host, now) {
            Some(state) => state.circuit.admits(now, state.running),
            None => true,
        }
    }

    /// Keeps a task until the circuit of its host admits it. Returns the task if the host has no circuit.
    pub(crate) fn hold(&mut self, host: &Arc<str>, task: T, now: Instant) -> Option<T> {
        let Some(state) = self.by_host.get_mut(host) else { return Some(task) };
        state.waiting.push_back((now, task));
        self.held.insert(host.clone());
        None
    }

    /// Registers the start of an attempt, which may be a probe.
    pub(crate) fn attempt_started(&mut self, host: &Arc<str>, now: Instant) {
        if let Some(state) = self.entry(host, now) {
            state.running += 1;
            state.circuit.attempt_started(now);
        }
    }

    /// Counts the end of an attempt. `jitter`: a random number from 0 to 1. `cause`: the reason of a bad outcome.
    pub(crate) fn attempt_ended(
        &mut self,
        host: &str,
        (started_at, now): (Instant, Instant),
        outcome: Outcome,
        jitter: f64,
        cause: impl FnOnce() -> String,
    ) -> Option<CircuitChange> {
        let state = self.by_host.get_mut(host)?;
        state.running = state.running.saturating_sub(1);
        let change = state.circuit.attempt_ended(started_at, now, outcome, jitter)?;
        if matches!(change, CircuitChange::Opened | CircuitChange::Paused(_)) {
            state.cause = cause();
        }
        Some(change)
    }

    /// Returns whether failures of calls of this host delay their tasks without counting as attempts.
    pub(crate) fn makes_waits(&self, host: &str) -> bool {
        self.by_host.get(host).is_some_and(|state| state.circuit.makes_waits())
    }

    /// Takes the tasks that may start now, and those that wait since `before` or longer, each with its arrival.
    pub(crate) fn take_ready(&mut self, now: Instant, before: Option<Instant>) -> Vec<(Instant, T)> {
        let mut ready = Vec::new();
        let by_host = &mut self.by_host;
        self.held.retain(|host| {
            let Some(state) = by_host.get_mut(host) else { return false };
            let mut admitted = 0;
            while !state.waiting.is_empty() && state.circuit.admits(now, state.running + admitted) {
                // Beside an open circuit there is one probe.
                let is_probe = state.circuit.is_open();
                ready.extend(state.waiting.pop_front());
                admitted += 1;
                if is_probe {
                    break;
                }
            }
            while let Some(late) =
                state.waiting.pop_front_if(|(since, _)| before.is_some_and(|before| *since <= before))
            {
                ready.push(late);
            }
            !state.waiting.is_empty()
        });
        ready
    }

    /// Time at which a held task may start, or has waited for `longest`.
    pub(crate) fn next_due(&self, now: Instant, longest: Option<Duration>) -> Option<Instant> {
        let due_of = |host: &Arc<str>| {
            let state = self.by_host.get(host)?;
            let late = longest.and_then(|longest| Some(state.waiting.front()?.0 + longest));
            state.circuit.next_due(now).into_iter().chain(late).min()
        };
        self.held.iter().filter_map(due_of).min()
    }

    /// Takes out the selected tasks.
    pub(crate) fn extract(&mut self, is_selected: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let by_host = &mut self.by_host;
        self.held.retain(|host| {
            let Some(state) = by_host.get_mut(host) else { return false };
            for (since, task) in std::mem::take(&mut state.waiting) {
                if is_selected(&task) { taken.push(task) } else { state.waiting.push_back((since, task)) }
            }
            !state.waiting.is_empty()
        });
        taken
    }

    /// Number of tasks that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.held.iter().filter_map(|host| self.by_host.get(host)).map(|state| state.waiting.len()).sum()
    }

    /// Hosts whose circuits are open, in no order.
    pub(crate) fn open(&self) -> impl Iterator<Item = HostOutage<'_>> {
        self.by_host.iter().filter(|(_, state)| state.circuit.is_open()).map(|(host, state)| HostOutage {
            host,
            since: state.circuit.open_since(),
            cause: &state.cause,
            waiting: state.waiting.len(),
        })
    }

    /// Circuit of a host, which is created if there is room or an idle one to replace.
    fn entry(&mut self, host: &Arc<str>, now: Instant) -> Option<&mut HostCircuit<T>> {
        self.uses += 1;
        if !self.by_host.contains_key(host) {
            if self.by_host.len() >= MAX_HOSTS {
                let idle = self.by_host.iter().filter(|(_, state)| state.running == 0 && state.waiting.is_empty());
                let oldest = idle.min_by_key(|(_, state)| state.used).map(|(host, _)| host.clone())?;
                self.by_host.remove(&oldest);
            }
            let mut circuit = Circuit::of_host();
            circuit.set_slots(self.slots);
            circuit.force(self.forced.get(host).copied(), now);
            let state = HostCircuit { circuit, running: 0, waiting: VecDeque::new(), cause: String::new(), used: 0 };
            self.by_host.insert(host.clone(), state);
        }
        let state = self.by_host.get_mut(host)?;
        state.used = self.uses;
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BAD: Outcome = Outcome::Bad(None);
    const LONGEST: Duration = Duration::from_secs(10);

    fn hosts(slots: usize) -> HostCircuits<u32> {
        let mut hosts = HostCircuits::new();
        hosts.set(slots, std::iter::empty(), Instant::now());
        hosts
    }

    /// Runs an attempt, if one is admitted.
    fn attempt(hosts: &mut HostCircuits<u32>, host: &str, now: Instant, outcome: Outcome) -> bool {
        let host: Arc<str> = host.into();
        let is_admitted = hosts.admits(&host, now);
        if is_admitted {
            hosts.attempt_started(&host, now);
            hosts.attempt_ended(&host, (now, now), outcome, 0.5, || "unreachable: no answer".to_owned());
        }
        is_admitted
    }

    #[test]
    fn dead_host_is_open_after_few_failures_and_others_are_not() {
        let (mut hosts, now) = (hosts(32), Instant::now());
        let calls = (0..100).filter(|_| attempt(&mut hosts, "dead", now, BAD)).count();
        assert_eq!(calls, 5);
        assert!((0..100).all(|_| attempt(&mut hosts, "alive", now, Outcome::Good)));
        let open: Vec<_> = hosts.open().map(|open| (open.host.to_owned(), open.cause.to_owned())).collect();
        assert_eq!(open, [("dead".to_owned(), "unreachable: no answer".to_owned())]);
        assert!(hosts.makes_waits("dead") && !hosts.makes_waits("alive"));
    }

    #[test]
    fn held_tasks_start_one_after_the_other_once_the_host_answers() {
        let (mut hosts, mut now) = (hosts(4), Instant::now());
        while attempt(&mut hosts, "a", now, BAD) {}
        let host: Arc<str> = "a".into();
        for task in 0..20 {
            assert_eq!(hosts.hold(&host, task, now), None);
        }
        assert_eq!((hosts.waiting(), hosts.take_ready(now, None)), (20, Vec::new()));
        let mut started = Vec::new();
        while hosts.waiting() > 0 {
            now = hosts.next_due(now, None).unwrap_or(now);
            let ready = hosts.take_ready(now, None);
            for (_, task) in &ready {
                hosts.attempt_started(&host, now);
                started.push(*task);
            }
            assert!(ready.len() <= 1 || started.len() > 3, "probes are single: {ready:?}");
            for _ in ready {
                hosts.attempt_ended(&host, (now, now), Outcome::Good, 0.5, String::new);
            }
        }
        assert_eq!(started, (0..20).collect::<Vec<_>>());
        assert_eq!(hosts.open().count(), 0);
    }

    #[test]
    fn task_that_waits_long_is_taken_out() {
        let (mut hosts, now) = (hosts(4), Instant::now());
        let host: Arc<str> = "a".into();
        hosts.set(4, [("a", ForcedCircuit::Open)].into_iter(), now);
        assert!(!hosts.admits(&host, now));
        hosts.hold(&host, 1, now);
        assert_eq!(hosts.next_due(now, Some(LONGEST)), Some(now + LONGEST));
        assert_eq!(hosts.take_ready(now + LONGEST, Some(now)), [(now, 1)]);
        assert_eq!(hosts.next_due(now, Some(LONGEST)), None);
        hosts.set(4, std::iter::empty(), now);
        assert!(hosts.admits(&host, now), "the operator has released it");
    }

    #[test]
    fn oldest_idle_host_is_dropped() {
        let (mut hosts, now) = (hosts(4), Instant::now());
        let (running, held): (Arc<str>, Arc<str>) = ("running".into(), "held".into());
        assert!(hosts.admits(&running, now) && hosts.admits(&held, now));
        hosts.attempt_started(&running, now);
        hosts.hold(&held, 1, now);
        while attempt(&mut hosts, "dead", now, BAD) {}
        for n in 0..3 * MAX_HOSTS {
            assert!(attempt(&mut hosts, &format!("host-{n}"), now, Outcome::Good));
        }
        assert_eq!(hosts.by_host.len(), MAX_HOSTS);
        assert!(hosts.by_host.contains_key(&running) && hosts.by_host.contains_key(&held));
        assert!(!hosts.by_host.contains_key("dead"), "it was used longest ago");
    }

    #[test]
    fn host_beyond_the_bound_has_no_circuit() {
        let (mut hosts, now) = (hosts(4), Instant::now());
        for n in 0..MAX_HOSTS {
            let host: Arc<str> = format!("host-{n}").into();
            assert!(hosts.admits(&host, now));
            hosts.attempt_started(&host, now);
        }
        assert!((0..100).all(|_| attempt(&mut hosts, "further", now, BAD)));
        assert_eq!(hosts.hold(&"further".into(), 7, now), Some(7));
    }

    proptest! {
        /// No task is lost or taken out twice, and none waits for longer than the limit, whatever the hosts do.
        #[test]
        fn each_held_task_is_taken_out_once(
            steps in prop::collection::vec((0..4usize, any::<bool>(), 0..3_000u64), 1..300),
        ) {
            let (mut hosts, mut now) = (hosts(8), Instant::now());
            let names: Vec<Arc<str>> = (0..4).map(|n| format!("host-{n}").into()).collect();
            let mut held = BTreeSet::new();
            for (task, (host, is_good, after_ms)) in (0..).zip(steps) {
                let host = &names[host];
                now += Duration::from_millis(after_ms);
                for (since, task) in hosts.take_ready(now, now.checked_sub(LONGEST)) {
                    prop_assert!(held.remove(&task), "{} was taken out twice", task);
                    prop_assert!(now - since <= LONGEST + Duration::from_millis(after_ms));
                }
                if hosts.admits(host, now) {
                    let outcome = if is_good { Outcome::Good } else { BAD };
                    hosts.attempt_started(host, now);
                    hosts.attempt_ended(host, (now, now), outcome, 0.5, String::new);
                } else {
                    hosts.hold(host, task, now);
                    held.insert(task);
                }
                prop_assert_eq!(hosts.waiting(), held.len());
                prop_assert!(held.is_empty() || hosts.next_due(now, Some(LONGEST)).is_some());
            }
            let rest: BTreeSet<u32> = hosts.extract(&mut |_| true).into_iter().collect();
            prop_assert_eq!(rest, held);
        }
    }
}
