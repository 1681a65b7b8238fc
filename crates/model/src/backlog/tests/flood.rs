//! A worker with a backlog and fair turns, in simulated time: light tenants beside a flood.

use std::collections::VecDeque;

use super::*;
use crate::fair_queue::{AttemptId, FairQueue, FairShares};

const SLOTS: usize = 64;
const STEP_MS: u64 = 5;
const ATTEMPT_MS: u64 = 50;
/// Records that one step reads, and that one step scans: 200,000 and 100,000 a second.
const READ: usize = 1_000;
const SCANNED: usize = 500;

/// View of a queue: slot times decide where scans begin.
struct QueueView<'a>(&'a FairQueue<i64>);

impl ClassView for QueueView<'_> {
    fn used_by_priority(&self, priority: Priority) -> f64 {
        self.0.used_by_priority(priority)
    }

    fn used_by_class(&self, class: TaskClass) -> f64 {
        self.0.used_by_class(class)
    }

    fn is_blocked(&self, _: u64) -> bool {
        false
    }

    fn held_limit(&self, _: u64) -> usize {
        usize::MAX
    }

    fn needs_work(&self) -> bool {
        self.0.len() < 2 * SLOTS
    }
}

struct Simulation {
    backlog: PartitionBacklog,
    queue: FairQueue<i64>,
    /// Class and time of the arrival of each record.
    log: Vec<(TaskClass, u64)>,
    /// Records taken from the queue that wait for a commit.
    unclaimed: VecDeque<(TaskClass, i64)>,
    running: VecDeque<(u64, i64, AttemptId)>,
    now: u64,
    /// Waits of started tasks in milliseconds, by class.
    waits: Vec<(TaskClass, u64)>,
}

impl Simulation {
    fn new() -> Self {
        let backlog = PartitionBacklog::resume(0, None, BacklogLimits::new(512, 1_000));
        let queue = FairQueue::new(FairShares::default());
        let (unclaimed, running) = (VecDeque::new(), VecDeque::new());
        Self { backlog, queue, log: Vec::new(), unclaimed, running, now: 0, waits: Vec::new() }
    }

    fn append(&mut self, class: TaskClass, records: usize) {
        self.log.extend(std::iter::repeat_n((class, self.now), records));
    }

    fn deliver(&mut self, offset: i64, is_scan: bool) {
        let class = self.log[offset as usize].0;
        let record = DeliveredRecord { offset, class, is_ending: false };
        let view = QueueView(&self.queue);
        let delivery =
            if is_scan { self.backlog.scans().record(record, &view) } else { self.backlog.read(record, &view) };
        if delivery == ReadDecision::Hold {
            self.queue.push_back(class, offset);
        }
    }

    fn step(&mut self) {
        self.now += STEP_MS;
        while self.running.front().is_some_and(|(end, ..)| *end <= self.now) {
            let Some((_, offset, id)) = self.running.pop_front() else { break };
            self.queue.end(id, self.now);
            self.backlog.complete(offset);
        }
        for _ in 0..READ {
            let offset = self.backlog.read_offset();
            if offset >= self.log.len() as i64 || !self.backlog.may_read() {
                break;
            }
            self.deliver(offset, false);
        }
        for _ in 0..SCANNED {
            self.backlog.scans().begin(&QueueView(&self.queue));
            let Some(offset) = self.backlog.scans().offset() else { break };
            self.deliver(offset, true);
        }
        let commit = self.backlog.commit(Mark::Open, 0, &PendingRetries::default());
        self.backlog.commit_acknowledged(commit.id);
        for offset in self.backlog.moves().due(50).into_iter().flatten() {
            let (class, arrival) = self.log[offset as usize];
            if self.backlog.moves().begin(DeliveredRecord { offset, class, is_ending: false }) {
                self.log.push((class, arrival));
                self.backlog.moves().moved(offset);
            }
        }
        self.start();
    }

    fn start(&mut self) {
        for (class, offset) in std::mem::take(&mut self.unclaimed) {
            self.queue.push_front(class, offset);
        }
        while self.running.len() < SLOTS
            && let Some((class, offset)) = self.queue.pop(SLOTS)
        {
            if !self.backlog.start(offset) {
                self.unclaimed.push_back((class, offset));
                continue;
            }
            let id = self.queue.start(class, self.now);
            self.running.push_back((self.now + ATTEMPT_MS, offset, id));
            self.waits.push((class, self.now - self.log[offset as usize].1));
        }
    }

    /// Waits of the tasks that arrived after `from`, of a class, in ascending order.
    fn waits_of(&self, is_of: impl Fn(TaskClass) -> bool) -> Vec<u64> {
        let of_class = self.waits.iter().filter(|(class, _)| is_of(*class));
        let mut waits: Vec<u64> = of_class.map(|(_, wait)| *wait).collect();
        waits.sort_unstable();
        waits
    }
}

fn class(priority: Priority, tenant: u64) -> TaskClass {
    TaskClass { priority, tenant }
}

/// 20 light tenants with 3 tasks a second each, beside a tenant with 20,000 tasks at once, which takes 16 s.
#[test]
fn light_tenants_wait_for_a_moment_beside_a_flood() {
    let mut simulation = Simulation::new();
    simulation.append(class(Priority::Normal, 1), 20_000);
    while simulation.now < 15_000 {
        if simulation.now % 1_000 < 300 && simulation.now.is_multiple_of(15) {
            let tenant = 10 + simulation.now / 15 % 20;
            simulation.append(class(Priority::Normal, tenant), 3);
        }
        simulation.step();
    }
    let light = simulation.waits_of(|class| class.tenant != 1);
    assert!(light.len() > 500, "{} light tasks", light.len());
    let (p99, longest) = (light[light.len() * 99 / 100], light[light.len() - 1]);
    assert!(p99 <= 100 && longest <= 1_300, "p99 {p99} ms, longest {longest} ms");
    let flood = simulation.waits_of(|class| class.tenant == 1).len();
    assert!(flood as u64 * ATTEMPT_MS > 14_000 * SLOTS as u64 * 9 / 10, "slots are used: {flood} tasks of the flood");
    assert_eq!(simulation.backlog.recounts(), 0);
}

/// A burst of 300 tasks that arrives in the middle of the flood takes its fair half of the slots.
#[test]
fn burst_behind_a_flood_takes_its_fair_time() {
    let mut simulation = Simulation::new();
    simulation.append(class(Priority::Normal, 1), 20_000);
    (0..400).for_each(|_| simulation.step());
    simulation.append(class(Priority::Normal, 2), 300);
    let from = simulation.now;
    while simulation.waits_of(|class| class.tenant == 2).len() < 300 && simulation.now < from + 10_000 {
        simulation.step();
    }
    // Alone it needs 234 ms, with half of the slots 469 ms.
    assert!(simulation.now - from <= 750, "{} ms", simulation.now - from);
}

/// Low, normal and high tasks with a backlog each share the slots by their weights, though the log has them one behind
/// the other.
#[test]
fn priorities_share_slots_by_weight_whatever_their_order_in_the_log() {
    let mut simulation = Simulation::new();
    for priority in Priority::ALL {
        simulation.append(class(priority, 0), 15_000);
    }
    (0..200).for_each(|_| simulation.step());
    simulation.waits.clear();
    (0..1_200).for_each(|_| simulation.step());
    let [low, normal, high] =
        Priority::ALL.map(|priority| simulation.waits_of(|class| class.priority == priority).len() as f64);
    let all = low + normal + high;
    for (share, expected) in [(low / all, 1.0 / 21.0), (normal / all, 4.0 / 21.0), (high / all, 16.0 / 21.0)] {
        assert!((share - expected).abs() < 0.05, "{low} : {normal} : {high}");
    }
}
