//! Outages of a service behind a simulated type: how many attempts they cost, and how soon the work is back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use kafleet_model::retry::{RetryPolicy, Waits};
use proptest::prelude::*;

use super::*;

const REFUSAL: Duration = Duration::from_millis(2);
const TIME_BEFORE: Duration = Duration::from_secs(10);
const TIME_AFTER: Duration = Duration::from_secs(60);

/// A type with tasks at a steady rate, all of which call one service.
struct Model {
    slots: usize,
    /// Tasks per second.
    rate: u32,
    /// Time of a call.
    latency: Duration,
    outage: Duration,
    seed: u64,
}

/// Attempts that run: end, start, task.
type RunningAttempts = BinaryHeap<Reverse<(Instant, Instant, u64)>>;

struct Simulation {
    model: Model,
    circuit: Circuit,
    random: fastrand::Rng,
    begun: Instant,
    now: Instant,
    running: RunningAttempts,
    /// Tasks that run again at a time.
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Attempts and waits of the tasks that have failed.
    used: BTreeMap<u64, (u32, Waits)>,
    fresh: u64,
    cost: SimulatedCost,
}

#[derive(Debug, Default)]
struct SimulatedCost {
    failed: u32,
    dead: u32,
    /// Time from the return of the service to the first success, and to the use of all slots.
    success_after: Option<Duration>,
    closed_after: Option<Duration>,
}

impl Model {
    fn run(self) -> SimulatedCost {
        let begun = Instant::now();
        let mut circuit = Circuit::new();
        circuit.set_slots(self.slots);
        let mut simulation = Simulation {
            random: fastrand::Rng::with_seed(self.seed),
            circuit,
            begun,
            now: begun,
            running: BinaryHeap::new(),
            delayed: BinaryHeap::new(),
            used: BTreeMap::new(),
            fresh: 0,
            cost: SimulatedCost::default(),
            model: self,
        };
        let end = simulation.back() + TIME_AFTER;
        while simulation.now < end {
            simulation.step();
        }
        simulation.cost
    }
}

impl Simulation {
    /// Time at which the service is back.
    fn back(&self) -> Instant {
        self.begun + TIME_BEFORE + self.model.outage
    }

    fn is_away(&self, at: Instant) -> bool {
        at >= self.begun + TIME_BEFORE && at < self.back()
    }

    fn arrival(&self, task: u64) -> Instant {
        self.begun + Duration::from_secs(1) * u32::try_from(task).unwrap() / self.model.rate
    }

    fn next_task(&mut self) -> Option<u64> {
        if self.delayed.peek().is_some_and(|Reverse((due, _))| *due <= self.now) {
            return self.delayed.pop().map(|Reverse((_, task))| task);
        }
        let is_there = self.arrival(self.fresh) <= self.now;
        is_there.then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Starts the attempts that may start, and advances to the next event.
    fn step(&mut self) {
        let mut has_task = true;
        while has_task && self.circuit.admits(self.now, self.running.len()) && self.running.len() < self.model.slots {
            let task = self.next_task();
            has_task = task.is_some();
            if let Some(task) = task {
                self.circuit.attempt_started(self.now);
                let took = if self.is_away(self.now) { REFUSAL } else { self.model.latency };
                self.running.push(Reverse((self.now + took.mul_f64(0.5 + self.random.f64()), self.now, task)));
            }
        }
        let end = self.running.peek().map(|Reverse((end, ..))| *end);
        let arrivals = [self.delayed.peek().map(|Reverse((due, _))| *due), Some(self.arrival(self.fresh))];
        let arrival = arrivals.into_iter().flatten().filter(|at| *at > self.now).min();
        let events = [end, arrival, self.circuit.next_due(self.now)];
        self.now = events.into_iter().flatten().min().unwrap().max(self.now);
        while self.running.peek().is_some_and(|Reverse((end, ..))| *end <= self.now) {
            let Reverse((_, started_at, task)) = self.running.pop().unwrap();
            self.end(started_at, task);
        }
        if self.now >= self.back() && !self.circuit.makes_waits() {
            self.cost.closed_after.get_or_insert(self.now - self.back());
        }
    }

    fn end(&mut self, started_at: Instant, task: u64) {
        let is_bad = self.is_away(started_at);
        let outcome = if is_bad { Outcome::Bad(None) } else { Outcome::Good };
        self.circuit.attempt_ended(started_at, self.now, outcome, self.random.f64());
        if is_bad {
            self.fail(task);
        } else if started_at >= self.back() {
            self.cost.success_after.get_or_insert(self.now - self.back());
        }
    }

    fn fail(&mut self, task: u64) {
        let retry = RetryPolicy::default();
        let (attempts, waits) = self.used.entry(task).or_default();
        self.cost.failed += 1;
        let wait = if self.circuit.makes_waits() {
            *waits = waits.after_another(0);
            retry.wait_backoff(waits.number, self.random.f64())
        } else {
            *attempts += 1;
            if !retry.allows(*attempts) {
                self.cost.dead += 1;
                return;
            }
            retry.backoff(*attempts, self.random.f64())
        };
        self.delayed.push(Reverse((self.now + Duration::from(wait), task)));
    }
}

#[test]
fn outage_of_a_minute_costs_few_attempts_and_the_work_is_soon_back() {
    for seed in 0..30 {
        let slots = [1, 4, 10][seed as usize % 3];
        let latency = Duration::from_millis(20);
        let cost = Model { slots, rate: 200, latency, outage: Duration::from_secs(60), seed }.run();
        assert!(cost.dead == 0 && cost.failed <= 60, "{slots} slots: {cost:?}");
        assert!(cost.success_after.unwrap() <= Duration::from_secs(10), "{slots} slots: {cost:?}");
    }
}

#[test]
fn outage_of_two_hours_ends_no_task() {
    for seed in 0..6 {
        let slots = [1, 10, 100][seed as usize % 3];
        let latency = Duration::from_millis(20);
        let cost = Model { slots, rate: 200, latency, outage: Duration::from_secs(7_200), seed }.run();
        assert!(cost.dead == 0 && cost.failed <= 350, "{slots} slots: {cost:?}");
        assert!(
            cost.success_after.unwrap() <= MAX_PAUSE.mul_f64(1.0 + JITTER) + latency * 2,
            "{slots} slots: {cost:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// No outage makes a task fail for good. Failed attempts are limited to one per `MAX_PAUSE`, plus a constant.
    #[test]
    fn outage_ends_no_task(
        slots in 1..64usize, rate in 20..300u32, latency_ms in 1..200u64, outage in 2..7_200u64, seed: u64,
    ) {
        let (outage, latency) = (Duration::from_secs(outage), Duration::from_millis(latency_ms));
        let cost = Model { slots, rate, latency, outage, seed }.run();
        prop_assert_eq!(cost.dead, 0, "{:?}", cost);
        let probes = 40.0 + outage.as_secs_f64() / MAX_PAUSE.as_secs_f64();
        prop_assert!(f64::from(cost.failed) <= probes * 1.3 + 25.0 + slots as f64, "{:?}", cost);
        let pause = (outage / PAUSE_PART).clamp(FIRST_PAUSE, MAX_PAUSE).mul_f64(1.0 + JITTER);
        prop_assert!(cost.success_after.unwrap() <= pause + latency * 2, "{:?}", cost);
        let growth = Duration::from_secs(7);
        prop_assert!(cost.closed_after.unwrap() <= pause + latency * 6 + growth, "{:?}", cost);
    }
}
