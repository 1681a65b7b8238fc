//! A fleet of workers, a learner and a service with a number of servers, which refuses what it has no server for.

use super::share::{AdaptiveShare, ShareOf};
use super::*;

const PARTITIONS: u32 = 40;
const STEP_MS: u64 = 2;
const CALL_MS: u64 = 50;
const REFUSAL_MS: u64 = 4;
const DECIDE_MS: u64 = 3_000;
const EPOCH_MS: u64 = 1_769_860_800_123;

struct Worker {
    share: AdaptiveShare,
    /// Running attempts: start, end, whether the service refuses it.
    running: Vec<(u64, u64, bool)>,
    completed: u64,
    /// Time of the next heartbeat, and the counts of the last one.
    beats_at: u64,
    counts: RoundCounts,
}

struct Simulation {
    random: fastrand::Rng,
    now: u64,
    workers: Vec<Worker>,
    limit: AdaptiveLimit,
    bounds: AdaptiveBounds,
    /// No tracker decides.
    is_tracker_away: bool,
    /// Workers apply no decision that cuts the limit.
    ignores_cuts: bool,
    servers: u64,
    /// Servers in use.
    busy: u64,
    usage: Usage,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    completed: u64,
    refused: u64,
    /// Time of all servers, in milliseconds.
    available_ms: u64,
}

impl Usage {
    fn used(&self) -> f64 {
        (self.completed * CALL_MS) as f64 / self.available_ms as f64
    }

    fn refused_part(&self) -> f64 {
        self.refused as f64 / (self.completed + self.refused).max(1) as f64
    }
}

fn share_of(limit: &AdaptiveLimit, owned: Vec<u32>) -> ShareOf {
    ShareOf { round: limit.round, limit: limit.limit, tick_ms: limit.tick_ms, owned, of: PARTITIONS }
}

impl Simulation {
    fn new(workers: usize, servers: u64, seed: u64) -> Self {
        let bounds = AdaptiveBounds { min: 1.0, max: 1_000.0, target_ms: None };
        let mut simulation = Self {
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            workers: Vec::new(),
            limit: AdaptiveLimit::first(bounds),
            bounds,
            is_tracker_away: false,
            ignores_cuts: false,
            servers,
            busy: 0,
            usage: Usage::default(),
        };
        simulation.set_workers(workers);
        simulation
    }

    /// Starts or ends workers. The partitions are divided evenly among those that run.
    fn set_workers(&mut self, number: usize) {
        while self.workers.len() < number {
            self.workers.push(Worker {
                share: AdaptiveShare::new(share_of(&self.limit, Vec::new()), self.now, EPOCH_MS),
                running: Vec::new(),
                completed: 0,
                beats_at: self.now + self.random.u64(0..DECIDE_MS),
                counts: RoundCounts::default(),
            });
        }
        self.workers.truncate(number);
        let running = self.workers.iter().flat_map(|worker| &worker.running);
        self.busy = running.filter(|(_, _, is_refused)| !is_refused).count() as u64;
        self.apply();
    }

    fn apply(&mut self) {
        let workers = self.workers.len() as u32;
        for (worker, number) in self.workers.iter_mut().zip(0..) {
            let owned = (0..PARTITIONS).filter(|partition| partition % workers == number).collect();
            worker.share.set(share_of(&self.limit, owned), self.now, EPOCH_MS);
        }
    }

    /// Runs for a number of seconds, and returns what was done in them.
    fn run(&mut self, seconds: u64) -> Usage {
        self.usage = Usage::default();
        let end = self.now + seconds * 1_000;
        while self.now < end {
            self.step();
        }
        self.usage
    }

    fn step(&mut self) {
        self.now += STEP_MS;
        self.usage.available_ms += self.servers * STEP_MS;
        let now = self.now;
        for worker in &mut self.workers {
            let (ended, running) = std::mem::take(&mut worker.running).into_iter().partition(|(_, end, _)| *end <= now);
            worker.running = running;
            let ended: Vec<(u64, u64, bool)> = ended;
            for (started, _, is_refused) in ended {
                worker.share.attempt_ended(started, now, is_refused);
                worker.completed += u64::from(!is_refused);
                self.usage.completed += u64::from(!is_refused);
                self.usage.refused += u64::from(is_refused);
                self.busy -= u64::from(!is_refused);
            }
        }
        // In another order each time, so that none is always the first.
        let first = self.random.usize(0..self.workers.len());
        for n in 0..self.workers.len() {
            self.start(first + n);
        }
        for worker in self.workers.iter_mut().filter(|worker| worker.beats_at <= now) {
            worker.counts = worker.share.counts(now);
            worker.beats_at += DECIDE_MS;
        }
        if now.is_multiple_of(DECIDE_MS) && !self.is_tracker_away {
            let counts: Vec<RoundCounts> = self.workers.iter().map(|worker| worker.counts).collect();
            if let Some(next) = self.limit.decide(self.bounds, &counts, 0) {
                let is_cut = next.limit < self.limit.limit;
                self.limit = next;
                if !(is_cut && self.ignores_cuts) {
                    self.apply();
                }
            }
        }
    }

    /// Starts the attempts of a worker, which always has tasks.
    fn start(&mut self, worker: usize) {
        let index = worker % self.workers.len();
        let worker = &mut self.workers[index];
        while worker.share.admits(worker.running.len(), self.now) {
            worker.share.attempt_started(worker.running.len());
            let is_refused = self.busy >= self.servers;
            let takes_ms = if is_refused { REFUSAL_MS } else { CALL_MS * self.random.u64(80..=120) / 100 };
            self.busy += u64::from(!is_refused);
            worker.running.push((self.now, self.now + takes_ms, is_refused));
        }
    }
}

fn assert_good(usage: Usage, least_used: f64, case: &str) {
    let (used, refused) = (usage.used(), usage.refused_part());
    assert!(used >= least_used, "{case}: {used:.3} of the service is used, {refused:.3} refused");
    assert!(refused <= 0.03, "{case}: {refused:.3} of the calls are refused, {used:.3} used");
}

#[test]
fn service_is_used_by_few_and_many_workers() {
    for workers in [1, 3, 20] {
        let mut simulation = Simulation::new(workers, 40, 1);
        simulation.run(60);
        assert_good(simulation.run(120), 0.9, &format!("{workers} workers"));
        let completed: Vec<u64> = simulation.workers.iter().map(|worker| worker.completed).collect();
        let (least, most) = (*completed.iter().min().unwrap(), *completed.iter().max().unwrap());
        assert!(least as f64 >= 0.85 * most as f64, "{workers} workers: progress {completed:?}");
    }
}

#[test]
fn workers_that_join_and_leave_share_the_service() {
    let mut simulation = Simulation::new(3, 40, 2);
    simulation.run(60);
    for workers in [10, 20, 5, 1, 12] {
        simulation.set_workers(workers);
        simulation.run(15);
        assert_good(simulation.run(60), 0.85, &format!("{workers} workers"));
    }
}

#[test]
fn service_that_shrinks_and_grows_is_used() {
    let mut simulation = Simulation::new(20, 40, 3);
    simulation.run(60);
    simulation.servers = 10;
    simulation.run(30);
    assert_good(simulation.run(60), 0.85, "10 servers");
    simulation.servers = 40;
    simulation.run(60);
    assert_good(simulation.run(120), 0.9, "40 servers again");
}

#[test]
fn last_limit_stays_while_no_tracker_decides() {
    let mut simulation = Simulation::new(8, 40, 4);
    simulation.run(60);
    simulation.is_tracker_away = true;
    let limit = simulation.limit.clone();
    assert_good(simulation.run(60), 0.85, "without a tracker");
    assert_eq!(simulation.limit, limit);
    simulation.servers = 20;
    let usage = simulation.run(60);
    assert!(usage.refused_part() < 0.2, "the brake alone: {usage:?}");
    simulation.is_tracker_away = false;
    simulation.run(30);
    assert_good(simulation.run(60), 0.85, "with a tracker again");
}

/// The simulation notices workers that ignore a cut.
#[test]
fn ignored_cuts_are_noticed() {
    let mut simulation = Simulation::new(8, 40, 5);
    simulation.ignores_cuts = true;
    simulation.run(60);
    let usage = simulation.run(60);
    // 0.029 with the workers' brakes alone, 0.008 to 0.014 in the other runs.
    assert!(usage.refused_part() > 0.02, "{usage:?}");
}
