//! Property test with random tasks and random rebalances: tasks keep their order, and each completes exactly once.
//!
//! A plan is derived from a seed: partitions, slots, keys, duration and outcome of each attempt, and the times at
//! which workers join and leave. `KAFLEET_SEED=7` runs only the plan of seed 7, `KAFLEET_SEEDS=500` the first
//! 500 plans.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::config::Order;
use kafleet::handlers::Failure;
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, Worker, eventually, kafka_with, memory};
use crate::worker::tail::ended_ids;
use crate::worker::types::{Kind, ok};

/// Number of plans in a default run, for each order.
const SEEDS: u64 = 10;
const MAX_WORKERS: usize = 4;
/// Number of the last attempt, which always succeeds.
const LAST_ATTEMPT: u32 = 6;

/// Observed actions by sequence. A sequence consists of tasks that must run one after the other, in the order of their
/// numbers: the tasks of a key or of a partition, or a single task if the type is unordered.
#[derive(Clone, Default)]
struct ActionLog(Arc<Mutex<HashMap<u64, Sequence>>>);

type Sequence = Vec<(u64, Act)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin,
    Fail,
    End,
    /// The attempt was dropped before it ended. No plan causes this, so it is an error.
    Dropped,
}

/// A running attempt; records its outcome on drop.
struct Attempt {
    log: ActionLog,
    sequence: u64,
    number: u64,
    end: Act,
}

impl ActionLog {
    fn begin(&self, sequence: u64, number: u64) -> Attempt {
        self.note(sequence, number, Act::Begin);
        Attempt { log: self.clone(), sequence, number, end: Act::Dropped }
    }

    fn note(&self, sequence: u64, number: u64, act: Act) {
        self.0.lock().entry(sequence).or_default().push((number, act));
    }

    fn check(&self, plan: &Plan) {
        let sequences = self.0.lock();
        assert_eq!(sequences.len() as u64, plan.sequences(), "{plan:?}");
        for (number, sequence) in &*sequences {
            let broken = check_sequence(sequence, plan.tasks_per_sequence()).err();
            assert!(broken.is_none(), "{plan:?}, sequence {number}: {}\n{sequence:?}", broken.unwrap());
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.log.note(self.sequence, self.number, self.end);
    }
}

/// Checks that tasks run one at a time and in order, and that each ends exactly once.
fn check_sequence(sequence: &Sequence, tasks: u64) -> Result<(), String> {
    let mut next = 0;
    let mut running = false;
    for (at, (number, act)) in sequence.iter().enumerate() {
        if (*act == Act::Begin) == running || *number != next {
            return Err(format!("entry {at}, {act:?} of task {number}, while task {next} is due (running: {running})"));
        }
        match act {
            Act::Begin => running = true,
            Act::Fail => running = false,
            Act::End => (running, next) = (false, next + 1),
            Act::Dropped => return Err(format!("entry {at}: an attempt of task {number} was dropped")),
        }
    }
    if next == tasks { Ok(()) } else { Err(format!("{next} of {tasks} tasks have ended")) }
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    order: Order,
    partitions: u32,
    slots: u32,
    keys: u64,
    per_key: u64,
    /// Percentage of attempts that fail.
    failures: u64,
    /// Maximum duration of an attempt, µs.
    longest: u64,
    backoff: Millis,
}

impl Plan {
    fn new(seed: u64, order: Order) -> Self {
        let mut random = Rng::with_seed(seed);
        let keys = random.u64(1..24);
        Self {
            seed,
            order,
            partitions: random.u32(1..7),
            slots: random.choice([1, 2, 7, 16, 64]).unwrap_or(1),
            keys,
            per_key: random.u64(200..500) / keys.max(4),
            failures: random.choice([0, 5, 25]).unwrap_or(0),
            longest: random.choice([1, 500, 4_000]).unwrap_or(1),
            backoff: Millis(random.choice([0, 3, 20]).unwrap_or(0)),
        }
    }

    fn tasks(&self) -> u64 {
        self.keys * self.per_key
    }

    fn partition(&self, key: u64) -> u64 {
        key % u64::from(self.partitions)
    }

    fn sequences(&self) -> u64 {
        match self.order {
            Order::None => self.tasks(),
            Order::Key => self.keys,
            Order::Partition => u64::from(self.partitions),
        }
    }

    fn tasks_per_sequence(&self) -> u64 {
        self.tasks() / self.sequences()
    }

    /// Returns the sequence of the task with this key and round, and the task's number in it.
    fn sequence_of(&self, key: u64, round: u64) -> (u64, u64) {
        match self.order {
            Order::None => (round * self.keys + key, 0),
            Order::Key => (key, round),
            Order::Partition => {
                (self.partition(key), round * self.keys_of_a_partition() + key / u64::from(self.partitions))
            }
        }
    }

    fn keys_of_a_partition(&self) -> u64 {
        self.keys / u64::from(self.partitions)
    }

    /// Returns the random generator of an attempt. Its seed depends only on the plan and the attempt, so every worker
    /// makes the same choices.
    fn chance(&self, id: &str, attempt: u32) -> Rng {
        let mut hasher = DefaultHasher::new();
        (self.seed, id, attempt).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    fn kind(&self, log: &ActionLog) -> Kind {
        let plan = self.clone();
        let log = log.clone();
        let kind = Kind::new("sequences", move |params: Value, cx| {
            let plan = plan.clone();
            let log = log.clone();
            async move {
                let number = |name: &str| params[name].as_u64().unwrap();
                let mut attempt = log.begin(number("sequence"), number("number"));
                let mut chance = plan.chance(cx.id.as_str(), cx.number);
                match chance.u32(0..3) {
                    0 => {}
                    1 => tokio::task::yield_now().await,
                    // The work of the attempt.
                    _ => tokio::time::sleep(Duration::from_micros(chance.u64(0..plan.longest))).await,
                }
                let fails = cx.number < LAST_ATTEMPT && chance.u64(0..100) < plan.failures;
                attempt.end = if fails { Act::Fail } else { Act::End };
                if fails { Err(Failure::retry("by chance")) } else { ok(Value::Null) }
            }
        });
        kind.slots(self.slots).retries(LAST_ATTEMPT, self.backoff).order(self.order)
    }

    async fn publish(&self, fleet: &Fleet, key: u64, round: u64) {
        let (sequence, number) = self.sequence_of(key, round);
        let params = json!({"sequence": sequence, "number": number}).to_string();
        let id = format!("{key}-{round}");
        let partition = self.partition(key) as i32;
        let key = format!("key-{key}");
        fleet.send_record("sequences", Some(partition), Some(&key), Some(params.as_bytes()), &[("ce_id", &id)]).await;
    }

    async fn run(mut self) {
        if self.order == Order::Partition {
            // The same number of keys in each partition, so that sequences are equally long.
            self.keys = self.keys.next_multiple_of(u64::from(self.partitions));
        }
        let log = ActionLog::default();
        let (fleet, _) = memory(self.partitions, &[self.kind(&log)]).await;
        let mut crew = Crew::new(&fleet, self.seed);
        for round in 0..self.per_key {
            for key in 0..self.keys {
                self.publish(&fleet, key, round).await;
            }
            crew.change();
        }
        let tasks = self.tasks() as usize;
        eventually(&format!("{self:?}: {tasks} tasks have ended"), async || {
            crew.change();
            let ended = ended_ids(&fleet.events.all());
            if ended >= tasks { Ok(()) } else { Err(ended) }
        })
        .await;
        crew.stop_all().await;
        assert_eq!(fleet.results().len(), tasks, "{self:?}: each task completes exactly once");
        fleet.assert_clean("sequences").await;
        log.check(&self);
    }
}

/// Workers of a fleet that join and leave.
struct Crew<'a> {
    fleet: &'a Fleet,
    random: Rng,
    working: Vec<Worker>,
    leaving: Vec<Worker>,
}

impl<'a> Crew<'a> {
    fn new(fleet: &'a Fleet, seed: u64) -> Self {
        Self { fleet, random: Rng::with_seed(!seed), working: vec![fleet.worker()], leaving: Vec::new() }
    }

    /// With a probability of 3 in 16, lets a worker join, leave or be replaced.
    fn change(&mut self) {
        let (joins, leaves) = match self.random.u32(0..16) {
            0 => (true, false),
            1 => (false, true),
            2 => (true, true),
            _ => return,
        };
        for ended in self.leaving.extract_if(.., |worker| worker.has_ended()) {
            assert_clean_takeovers(&ended);
        }
        if joins && self.working.len() + self.leaving.len() < MAX_WORKERS {
            self.working.push(self.fleet.worker());
        }
        if leaves && self.working.len() > 1 {
            let worker = self.working.swap_remove(self.random.usize(0..self.working.len()));
            worker.begin_stop();
            self.leaving.push(worker);
        }
    }

    async fn stop_all(self) {
        for worker in self.working.into_iter().chain(self.leaving) {
            assert_clean_takeovers(&worker);
            worker.stop().await;
        }
    }
}

/// Checks that the worker took over every partition from an owner that had released it, not from a crashed one.
fn assert_clean_takeovers(worker: &Worker) {
    assert_eq!(worker.metric("kafleet_unclean_takeovers_total", ""), 0.0, "the previous owner of a partition crashed");
}

/// Five workers join and three leave while tasks are published.
#[tokio::test(flavor = "multi_thread")]
async fn order_of_a_key_is_never_broken_on_kafka() {
    let log = ActionLog::default();
    let plan = ON_KAFKA;
    // Members learn of a rebalance from the response to a heartbeat, so short intervals make rebalances fast.
    let Some(fleet) = kafka_with(&[("heartbeat.interval.ms", "300")], plan.partitions, &[plan.kind(&log)]).await else {
        return;
    };
    let mut workers = vec![fleet.worker()];
    for round in 0..plan.per_key {
        futures::future::join_all((0..plan.keys).map(|key| plan.publish(&fleet, key, round))).await;
        match round {
            10 | 20 => workers.push(fleet.worker()),
            30 | 40 | 50 => {
                workers.push(fleet.worker());
                let leaves = workers.remove(0);
                assert_clean_takeovers(&leaves);
                leaves.stop().await;
            }
            _ => {}
        }
    }
    let tasks = plan.tasks() as usize;
    fleet.wait_for_results(tasks).await;
    for worker in workers {
        assert_clean_takeovers(&worker);
        worker.stop().await;
    }
    assert_eq!(fleet.results().len(), tasks, "each task completes exactly once");
    fleet.assert_clean("sequences").await;
    log.check(&plan);
}

const ON_KAFKA: Plan = Plan {
    seed: 1,
    order: Order::Key,
    partitions: 6,
    slots: 16,
    keys: 20,
    per_key: 60,
    failures: 5,
    longest: 4_000,
    backoff: Millis(3),
};

async fn run_plans(order: Order) {
    let variable = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let seeds = match variable("KAFLEET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("KAFLEET_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let plan = Plan::new(seed, order);
        eprintln!("{plan:?}");
        plan.run().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_a_key_is_never_broken() {
    run_plans(Order::Key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_a_partition_is_never_broken() {
    run_plans(Order::Partition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unordered_tasks_complete_exactly_once() {
    run_plans(Order::None).await;
}

#[test]
fn check_detects_broken_sequences() {
    use Act::{Begin, Dropped, End, Fail};
    let sequence = |acts: &[(u64, Act)]| check_sequence(&acts.to_vec(), 2).err().unwrap_or_default();
    assert_eq!(sequence(&[(0, Begin), (0, Fail), (0, Begin), (0, End), (1, Begin), (1, End)]), "");
    assert!(sequence(&[(0, Begin), (1, Begin), (0, End), (1, End)]).starts_with("entry 1"), "overlap");
    assert!(
        sequence(&[(0, Begin), (0, Fail), (1, Begin), (1, End), (0, Begin), (0, End)]).starts_with("entry 2"),
        "overtaken"
    );
    assert!(
        sequence(&[(0, Begin), (0, End), (0, Begin), (0, End), (1, Begin), (1, End)]).starts_with("entry 2"),
        "twice"
    );
    assert!(sequence(&[(0, Begin), (0, Dropped)]).starts_with("entry 1"), "cut short");
    assert_eq!(sequence(&[(0, Begin), (0, End)]), "1 of 2 tasks have ended");
}
