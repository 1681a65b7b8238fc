//! A property over random tasks and random rebalances: order holds, and everything is done exactly once.
//!
//! A plan follows from its seed: partitions, slots, keys, how long each attempt takes and whether it fails, and when
//! workers join and leave. `KAFLEET_SEED=7` tries that one only, `KAFLEET_SEEDS=500` the first 500.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use kafleet::config::Order;
use kafleet::handlers::Failure;
use kafleet::model::units::duration::Millis;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fleet::{DEADLINE, Fleet, Worker, kafka_with, memory, pause};
use crate::tail::ended_ids;
use crate::types::{Kind, ok};

/// Plans that are tried each time, for each order.
const SEEDS: u64 = 10;
const MOST_WORKERS: usize = 4;
/// From this attempt on a task succeeds.
const LAST_ATTEMPT: u32 = 6;

/// What the tasks of one line, which are to run one after the other, were seen doing: each has a number that counts up.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<HashMap<u64, Line>>>);

type Line = Vec<(u64, Act)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin,
    Fail,
    End,
    /// Ended from outside: nothing here gives a reason for that.
    Dropped,
}

/// An attempt that runs; says what came of it when it is dropped.
struct Attempt {
    ledger: Ledger,
    line: u64,
    number: u64,
    end: Act,
}

impl Ledger {
    fn begin(&self, line: u64, number: u64) -> Attempt {
        self.note(line, number, Act::Begin);
        Attempt { ledger: self.clone(), line, number, end: Act::Dropped }
    }

    fn note(&self, line: u64, number: u64, act: Act) {
        self.0.lock().entry(line).or_default().push((number, act));
    }

    fn check(&self, plan: &Plan) {
        let lines = self.0.lock();
        assert_eq!(lines.len() as u64, plan.lines(), "{plan:?}");
        for (number, line) in &*lines {
            let broken = check_line(line, plan.in_line()).err();
            assert!(broken.is_none(), "{plan:?}, line {number}: {}\n{line:?}", broken.unwrap());
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.ledger.note(self.line, self.number, self.end);
    }
}

/// One at a time, in their order, each to its end exactly once.
fn check_line(line: &Line, tasks: u64) -> Result<(), String> {
    let (mut next, mut running) = (0, false);
    for (at, (number, act)) in line.iter().enumerate() {
        if (*act == Act::Begin) == running || *number != next {
            return Err(format!("entry {at}, {act:?} of task {number}, while task {next} is due (running: {running})"));
        }
        match act {
            Act::Begin => running = true,
            Act::Fail => running = false,
            Act::End => (running, next) = (false, next + 1),
            Act::Dropped => return Err(format!("entry {at}: an attempt of task {number} was cut short")),
        }
    }
    if next == tasks { Ok(()) } else { Err(format!("{next} of {tasks} tasks came to their end")) }
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    order: Order,
    partitions: u32,
    slots: u32,
    keys: u64,
    per_key: u64,
    /// Of 100 attempts.
    failures: u64,
    /// The longest that an attempt takes, µs.
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

    /// How many lines there are, and the line and number of a task in it.
    fn lines(&self) -> u64 {
        match self.order {
            Order::None => self.tasks(),
            Order::Key => self.keys,
            Order::Partition => u64::from(self.partitions),
        }
    }

    fn in_line(&self) -> u64 {
        self.tasks() / self.lines()
    }

    fn place(&self, key: u64, round: u64) -> (u64, u64) {
        match self.order {
            Order::None => (round * self.keys + key, 0),
            Order::Key => (key, round),
            Order::Partition => (self.partition(key), round * self.keys_of_a_partition() + key / u64::from(self.partitions)),
        }
    }

    fn keys_of_a_partition(&self) -> u64 {
        self.keys / u64::from(self.partitions)
    }

    /// The same for the same attempt, whoever makes it.
    fn chance(&self, id: &str, attempt: u32) -> Rng {
        let mut hasher = DefaultHasher::new();
        (self.seed, id, attempt).hash(&mut hasher);
        Rng::with_seed(hasher.finish())
    }

    fn kind(&self, ledger: &Ledger) -> Kind {
        let (plan, ledger) = (self.clone(), ledger.clone());
        let kind = Kind::new("lines", move |params: Value, cx| {
            let (plan, ledger) = (plan.clone(), ledger.clone());
            async move {
                let number = |name: &str| params[name].as_u64().unwrap();
                let mut attempt = ledger.begin(number("line"), number("number"));
                let mut chance = plan.chance(cx.id.as_str(), cx.number);
                match chance.u32(0..3) {
                    0 => {}
                    1 => tokio::task::yield_now().await,
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
        let (line, number) = self.place(key, round);
        let (params, id) = (json!({"line": line, "number": number}).to_string(), format!("{key}-{round}"));
        let (partition, key) = (self.partition(key) as i32, format!("key-{key}"));
        fleet.send_record("lines", Some(partition), Some(&key), Some(params.as_bytes()), &[("ce_id", &id)]).await;
    }

    async fn try_it(mut self) {
        if self.order == Order::Partition {
            // As many keys in each, so that lines are equally long.
            self.keys = self.keys.next_multiple_of(u64::from(self.partitions));
        }
        let ledger = Ledger::default();
        let (fleet, _) = memory(self.partitions, &[self.kind(&ledger)]).await;
        let mut crew = Crew::new(&fleet, self.seed);
        for round in 0..self.per_key {
            for key in 0..self.keys {
                self.publish(&fleet, key, round).await;
            }
            crew.change();
        }
        let (tasks, until) = (self.tasks() as usize, Instant::now() + DEADLINE);
        while ended_ids(&fleet.events.all()) < tasks {
            assert!(Instant::now() < until, "{self:?}: {} of {tasks} tasks after {DEADLINE:?}", fleet.results().len());
            crew.change();
            pause().await;
        }
        crew.dismiss().await;
        assert_eq!(fleet.results().len(), tasks, "{self:?}: each told exactly once");
        fleet.assert_clean("lines").await;
        ledger.check(&self);
    }
}

/// The workers of a fleet that come and go.
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

    /// Perhaps one joins, or one leaves, or one takes the place of another.
    fn change(&mut self) {
        let (joins, leaves) = match self.random.u32(0..16) {
            0 => (true, false),
            1 => (false, true),
            2 => (true, true),
            _ => return,
        };
        for ended in self.leaving.extract_if(.., |worker| worker.has_ended()) {
            all_given_back(&ended);
        }
        if joins && self.working.len() + self.leaving.len() < MOST_WORKERS {
            self.working.push(self.fleet.worker());
        }
        if leaves && self.working.len() > 1 {
            let worker = self.working.swap_remove(self.random.usize(0..self.working.len()));
            worker.begin_stop();
            self.leaving.push(worker);
        }
    }

    async fn dismiss(self) {
        for worker in self.working.into_iter().chain(self.leaving) {
            all_given_back(&worker);
            worker.stop().await;
        }
    }
}

/// Nobody died: nobody may say so of a predecessor.
fn all_given_back(worker: &Worker) {
    assert_eq!(worker.metric("kafleet_unclean_takeovers_total", ""), 0.0, "a partition was not given back in order");
}

/// On a real Kafka a rebalance takes as long as it takes: three workers come, and three leave, while tasks are published.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_key_is_never_broken_on_kafka() {
    let (ledger, plan) = (Ledger::default(), ON_KAFKA);
    // So soon it is heard that partitions are asked back.
    let Some(fleet) = kafka_with(&[("heartbeat.interval.ms", "300")], plan.partitions, &[plan.kind(&ledger)]).await else {
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
                all_given_back(&leaves);
                leaves.stop().await;
            }
            _ => {}
        }
    }
    let tasks = plan.tasks() as usize;
    fleet.wait_for_results(tasks).await;
    for worker in workers {
        all_given_back(&worker);
        worker.stop().await;
    }
    assert_eq!(fleet.results().len(), tasks, "each told exactly once");
    fleet.assert_clean("lines").await;
    ledger.check(&plan);
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

async fn try_plans(order: Order) {
    let asked = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let seeds = match asked("KAFLEET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..asked("KAFLEET_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let plan = Plan::new(seed, order);
        eprintln!("{plan:?}");
        plan.try_it().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_key_is_never_broken() {
    try_plans(Order::Key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_a_partition_is_never_broken() {
    try_plans(Order::Partition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_order_everything_is_still_done_once() {
    try_plans(Order::None).await;
}

#[test]
fn what_breaks_a_line_is_seen() {
    use Act::{Begin, Dropped, End, Fail};
    let line = |acts: &[(u64, Act)]| check_line(&acts.to_vec(), 2).err().unwrap_or_default();
    assert_eq!(line(&[(0, Begin), (0, Fail), (0, Begin), (0, End), (1, Begin), (1, End)]), "");
    assert!(line(&[(0, Begin), (1, Begin), (0, End), (1, End)]).starts_with("entry 1"), "overlap");
    assert!(line(&[(0, Begin), (0, Fail), (1, Begin), (1, End), (0, Begin), (0, End)]).starts_with("entry 2"), "overtaken");
    assert!(line(&[(0, Begin), (0, End), (0, Begin), (0, End), (1, Begin), (1, End)]).starts_with("entry 2"), "twice");
    assert!(line(&[(0, Begin), (0, Dropped)]).starts_with("entry 1"), "cut short");
    assert_eq!(line(&[(0, Begin), (0, End)]), "1 of 2 tasks came to their end");
}
