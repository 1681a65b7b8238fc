//! Shares of slot time, compared with the weights in simulated workers with a backlog.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use proptest::prelude::*;

use super::*;

const SLOTS: usize = 8;
/// Longest time between two looks for new tasks, in milliseconds.
const STEP_MS: u64 = 20;

fn class(priority: Priority, tenant: u64) -> TaskClass {
    TaskClass { priority, tenant }
}

fn shares(weights: [f64; 3], tenants: &[(u64, f64)]) -> FairShares {
    let priorities = weights.map(|weight| PriorityShare { weight, reserve: 0 });
    FairShares { priorities, tenants: tenants.iter().copied().collect(), ..FairShares::default() }
}

/// Worker with slots. Tasks are the times of their attempts, in milliseconds.
struct Worker {
    queue: FairQueue<u64>,
    now: u64,
    /// Attempts by the time of their end: their numbers, classes and times.
    ends: BinaryHeap<Reverse<(u64, u64, TaskClass, u64)>>,
    ids: BTreeMap<u64, AttemptId>,
    used: BTreeMap<TaskClass, u64>,
    starts: Vec<(u64, TaskClass)>,
    next_charge: u64,
}

impl Worker {
    fn new(shares: FairShares) -> Self {
        let queue = FairQueue::new(shares);
        Self {
            queue,
            now: 0,
            ends: BinaryHeap::new(),
            ids: BTreeMap::new(),
            used: BTreeMap::new(),
            starts: Vec::new(),
            next_charge: 1_000,
        }
    }

    /// Starts what may start.
    fn fill(&mut self) {
        while self.ends.len() < SLOTS
            && let Some((class, time)) = self.queue.pop(SLOTS)
        {
            let number = self.starts.len() as u64;
            self.ids.insert(number, self.queue.start(class, self.now));
            self.starts.push((self.now, class));
            self.ends.push(Reverse((self.now + time, number, class, time)));
        }
    }

    /// Runs until `end`, and calls `supply` before each start, to keep its backlog.
    fn run(&mut self, end: u64, mut supply: impl FnMut(&mut FairQueue<u64>, u64)) {
        loop {
            supply(&mut self.queue, self.now);
            self.fill();
            let Some(Reverse((at, ..))) = self.ends.peek() else { return };
            let at = (*at).min(self.next_charge).min(self.now + STEP_MS);
            if at > end {
                return;
            }
            self.now = at;
            if at == self.next_charge {
                self.queue.charge_running(at);
                self.next_charge += 1_000;
            }
            while self.ends.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Some(Reverse((_, number, class, time))) = self.ends.pop() else { break };
                if let Some(id) = self.ids.remove(&number) {
                    self.queue.end(id, self.now);
                }
                *self.used.entry(class).or_default() += time;
            }
        }
    }
}

/// Keeps tasks of each class ready for all slots, with random times around the mean of the class.
fn backlog<'a>(means: &'a [(TaskClass, u64)], rng: &'a mut fastrand::Rng) -> impl FnMut(&mut FairQueue<u64>, u64) + 'a {
    move |queue, _| {
        for (class, mean) in means {
            (queue.ready_of(*class)..2 * SLOTS).for_each(|_| queue.push_back(*class, rng.u64(1..=2 * mean)));
        }
    }
}

impl FairQueue<u64> {
    fn ready_of(&self, class: TaskClass) -> usize {
        self.priorities[class.priority.index()].classes.ready_of(class.tenant)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Each class gets its share of slot time, within 1 %, whatever its attempts take.
    #[test]
    fn shares_follow_weights_of_any_attempt_times(
        weights in prop::array::uniform3(1u32..20),
        tenants in prop::collection::vec(1u32..8, 1..4),
        means in prop::array::uniform12(2u64..150),
        present in prop::array::uniform3(any::<bool>()),
        seed in any::<u64>(),
    ) {
        let weighted: Vec<(u64, f64)> = tenants.iter().enumerate().map(|(n, weight)| (n as u64, f64::from(*weight))).collect();
        let priorities: Vec<Priority> = Priority::ALL.into_iter().filter(|priority| present[priority.index()]).collect();
        let classes: Vec<TaskClass> = priorities.iter().flat_map(|priority| weighted.iter().map(|(n, _)| class(*priority, *n))).collect();
        let means: Vec<(TaskClass, u64)> = classes.iter().copied().zip(means).collect();
        let mut worker = Worker::new(shares(weights.map(f64::from), &weighted));
        let mut rng = fastrand::Rng::with_seed(seed);
        worker.run(120_000, backlog(&means, &mut rng));
        let all: u64 = worker.used.values().sum();
        let of_priorities: u32 = priorities.iter().map(|priority| weights[priority.index()]).sum();
        let of_tenants: u32 = tenants.iter().sum();
        for class in classes {
            let expected = f64::from(weights[class.priority.index()] * tenants[class.tenant as usize]) / f64::from(of_priorities * of_tenants);
            let share = worker.used.get(&class).copied().unwrap_or_default() as f64 / all as f64;
            prop_assert!((share - expected).abs() <= 0.01, "{:?} has {} instead of {} of {:?}", class, share, expected, worker.used);
        }
    }
}

/// Time from the arrival of each urgent task to its start, beside a backlog of others: 10 a second of 20 ms.
fn urgent_waits(worker: &mut Worker, others: (TaskClass, u64), end: u64) -> Vec<u64> {
    let (mut arrivals, mut next) = (Vec::new(), 0);
    let urgent = class(Priority::High, 1);
    worker.run(end, |queue, now| {
        while next <= now {
            queue.push_back(urgent, 20);
            arrivals.push(next);
            next += 100;
        }
        (queue.ready_of(others.0)..2 * SLOTS).for_each(|_| queue.push_back(others.0, others.1));
    });
    let starts = worker.starts.iter().filter(|(_, class)| *class == urgent).map(|(at, _)| *at);
    starts.zip(arrivals).map(|(start, arrival)| start - arrival).collect()
}

#[test]
fn urgent_tasks_wait_for_one_attempt_at_most() {
    for (time, reserve, longest) in [(100, 0, 100), (2_000, 0, 2_000), (2_000, 1, 100)] {
        let mut worker = Worker::new(shares([1.0, 4.0, 16.0], &[]));
        worker.queue.shares.priorities[2].reserve = reserve;
        let waits = urgent_waits(&mut worker, (class(Priority::Low, 0), time), 60_000);
        let worst = waits.iter().max().copied().unwrap_or(u64::MAX);
        assert!(worst <= longest, "{worst} ms beside attempts of {time} ms with {reserve} slots reserved");
    }
}

#[test]
fn reserve_leaves_a_slot_to_other_tasks() {
    let mut queue = FairQueue::new(FairShares::default());
    queue.shares.priorities[2].reserve = 9;
    (0..3).for_each(|n| queue.push_back(class(Priority::Low, 0), n));
    let (low, _) = queue.pop(4).unwrap();
    let id = queue.start(low, 0);
    assert!(queue.pop(4).is_none(), "the other three are reserved");
    queue.push_back(class(Priority::High, 0), 7);
    assert_eq!(queue.pop(4).map(|(class, task)| (class.priority, task)), Some((Priority::High, 7)));
    queue.end(id, 10);
    assert!(queue.pop(4).is_some());
    assert!(FairQueue::<u64>::new(FairShares::default()).pop(0).is_none());
}

#[test]
fn strict_order_starts_a_priority_after_those_above_it() {
    let mut queue = FairQueue::new(FairShares { order: PriorityOrder::Strict, ..FairShares::default() });
    for (priority, task) in [(Priority::Low, 1), (Priority::High, 2), (Priority::Normal, 3), (Priority::High, 4)] {
        queue.push_back(class(priority, 0), task);
    }
    let mut order = Vec::new();
    while let Some((class, task)) = queue.pop(SLOTS) {
        let id = queue.start(class, 0);
        queue.end(id, 1_000);
        order.push(task);
    }
    assert_eq!(order, [2, 4, 3, 1]);
}

#[test]
fn class_that_was_idle_takes_no_time_of_the_past() {
    let (busy, late) = (class(Priority::Normal, 1), class(Priority::Normal, 2));
    let mut worker = Worker::new(FairShares::default());
    let mut rng = fastrand::Rng::with_seed(1);
    worker.run(60_000, backlog(&[(busy, 50)], &mut rng));
    worker.used.clear();
    worker.run(120_000, backlog(&[(busy, 50), (late, 50)], &mut rng));
    let share = worker.used[&late] as f64 / worker.used.values().sum::<u64>() as f64;
    assert!((share - 0.5).abs() < 0.02, "{share}");
}

/// Low tasks ran alone for a minute. A moment without any, in which a high one arrives, must not make them wait as
/// long.
#[test]
fn priority_begins_at_the_floor_after_a_moment_without_tasks() {
    let (high, low) = (class(Priority::High, 0), class(Priority::Low, 0));
    let mut worker = Worker::new(FairShares::default());
    let mut rng = fastrand::Rng::with_seed(1);
    worker.run(60_000, backlog(&[(low, 50)], &mut rng));
    worker.queue.extract(&mut |_| true);
    (0..SLOTS).for_each(|_| worker.queue.push_back(high, 50));
    worker.used.clear();
    worker.run(120_000, backlog(&[(high, 50), (low, 50)], &mut rng));
    let share = worker.used[&low] as f64 / worker.used.values().sum::<u64>() as f64;
    assert!((share - 1.0 / 17.0).abs() < 0.01, "{share}");
}

/// An attempt of an hour costs its class turns while it runs, not only at its end.
#[test]
fn attempts_that_run_are_charged_every_second() {
    let (long, short) = (class(Priority::Normal, 1), class(Priority::Normal, 2));
    let mut queue = FairQueue::new(FairShares::default());
    queue.push_back(long, 1);
    let (first, _) = queue.pop(2).unwrap();
    queue.start(first, 0);
    let before = queue.used_by_class(long);
    queue.charge_running(10_000);
    queue.charge_running(20_000);
    assert_eq!(queue.used_by_class(long) - before, 20_000.0 - FIRST_ATTEMPT_MS);
    queue.push_back(long, 2);
    queue.push_back(short, 3);
    assert_eq!(queue.pop(2), Some((short, 3)));
}

#[test]
fn blocked_tenants_are_left_out_until_they_may_start() {
    let (one, two) = (class(Priority::Normal, 1), class(Priority::Normal, 2));
    let mut queue = FairQueue::new(FairShares::default());
    queue.set_blocked(1, true);
    queue.push_back(one, 1);
    queue.push_back(two, 2);
    queue.push_back(two, 3);
    assert_eq!((queue.pop(8), queue.len()), (Some((two, 2)), 2));
    assert_eq!((queue.pop(8), queue.pop(8)), (Some((two, 3)), None));
    queue.set_blocked(1, false);
    assert_eq!((queue.pop(8), queue.is_empty()), (Some((one, 1)), true));
}

#[test]
fn tasks_of_a_class_keep_their_order() {
    let one = class(Priority::Normal, 1);
    let mut queue = FairQueue::new(FairShares::default());
    (0..6).for_each(|task| queue.push_back(one, task));
    queue.push_front(one, 9);
    assert_eq!(queue.extract(&mut |task| task % 2 == 0), [0, 2, 4]);
    let order: Vec<i32> = std::iter::from_fn(|| queue.pop(8)).map(|(_, task)| task).collect();
    assert_eq!(order, [9, 1, 3, 5]);
}

/// Tenants with the same slot time start in the order in which their oldest tasks have arrived.
#[test]
fn oldest_task_is_first_among_equal_tenants() {
    let mut queue = FairQueue::new(FairShares::default());
    [5, 3, 9, 1].into_iter().for_each(|tenant| queue.push_back(class(Priority::Normal, tenant), tenant));
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop(8)).map(|(_, task)| task).collect();
    assert_eq!(order, [5, 3, 9, 1]);
}

#[test]
fn number_of_known_tenants_is_bounded() {
    let mut queue = FairQueue::new(FairShares::default());
    for tenant in 0..30_000 {
        queue.push_back(class(Priority::Normal, tenant), tenant);
        let (class, _) = queue.pop(8).unwrap();
        let id = queue.start(class, tenant);
        queue.end(id, tenant + 1);
    }
    assert!(queue.priorities[1].classes.known() <= 10_000);
}
