//! A tracker process that is killed, or frozen and resumed, at each step of publishing an effect, while another one
//! takes over: each timer and each time of a schedule still creates exactly one task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::{Names, Topology};
use kafleet::control::schedules::ScheduleKey;
use kafleet::control::{CONTROL_VERSION, put_schedule};
use kafleet::model::json::RawJson;
use kafleet::model::schedule::{Overlap, Schedule, Spec, Template, task_of};
use kafleet::model::task::TaskSpec;
use kafleet::model::task::id::TaskId;
use kafleet::model::units::time::time_text;
use kafleet::publish::Publisher;
use kafleet::runtime::now_ms;
use kafleet_testkit::names::unique;
use kafleet_testkit::processes::{Process, ProcessFleet};
use kafleet_testkit::services::connect;
use kafleet_testkit::wait::{DEADLINE, eventually_blocking};
use tokio::runtime::Handle;

use crate::fleet::fault_proxy::{self, ADD_PARTITIONS, Breakpoint, END_TXN, Fault, INIT_PRODUCER, PRODUCE, Step, When};
use crate::fleet::in_process::brokers;
use crate::fleet::process_crashes::wait_until_folded;

/// Number of fleets tested concurrently: most of the time is spent waiting for Kafka sessions to expire.
const FLEETS: usize = 9;
const TIMERS: usize = 3;

/// Suffixes of transactional ids: one producer per events partition publishes timers, another one schedules.
const EFFECTS: &str = "outbox.0";
const SCHEDULES: &str = "schedules";

#[derive(Clone, Copy, Debug)]
struct Point {
    producer: &'static str,
    step: Step,
    when: When,
    fault: Fault,
}

/// Steps to interrupt: opening the producer, adding partitions, the first and last record, the commit, and the fold.
fn points() -> Vec<Point> {
    let in_kafka = [
        (INIT_PRODUCER, 1, When::BeforeRequest),
        (INIT_PRODUCER, 1, When::BeforeResponse),
        (ADD_PARTITIONS, 1, When::BeforeRequest),
        (ADD_PARTITIONS, 1, When::BeforeResponse),
        (PRODUCE, 1, When::BeforeRequest),
        (PRODUCE, 2, When::BeforeResponse),
        (END_TXN, 1, When::BeforeRequest),
        (END_TXN, 1, When::BeforeResponse),
    ];
    let mut points = Vec::new();
    for fault in [Fault::Kill, Fault::Freeze] {
        for producer in [EFFECTS, SCHEDULES] {
            let of = |(api, nth, when)| Point { producer, step: Step::Kafka(api, nth), when, fault };
            points.extend(in_kafka.map(of));
        }
        points.extend([When::BeforeRequest, When::BeforeResponse].map(|when| Point {
            producer: EFFECTS,
            step: Step::Exec,
            when,
            fault,
        }));
    }
    points
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_tracker_publishes_each_effect_once() {
    let Some(brokers) = brokers() else { return };
    let (points, runtime) = (points(), Handle::current());
    let fleets = (0..FLEETS).map(|first| {
        let points: Vec<Point> = points.iter().skip(first).step_by(FLEETS).copied().collect();
        let (brokers, runtime) = (brokers.clone(), runtime.clone());
        tokio::task::spawn_blocking(move || TrackerFleet::new(brokers, runtime).run(&points))
    });
    for fleet in futures::future::join_all(fleets.collect::<Vec<_>>()).await {
        fleet.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    }
}

/// Fleet without workers: released tasks stay in their topic.
struct TrackerFleet {
    fleet: ProcessFleet,
    runtime: Handle,
    kafka: Arc<Kafka>,
    names: Names,
    publisher: Publisher,
    released: ReleaseLog,
    /// Ids of the tasks that must exist in the end.
    expected: BTreeSet<String>,
}

impl TrackerFleet {
    fn new(brokers: String, runtime: Handle) -> Self {
        let types = "[types.echo]\nhandler = \"echo\"\n";
        let fleet =
            ProcessFleet::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers.clone(), unique("fleet"), types);
        let kafka = connect(brokers);
        let names = Names::new(&fleet.prefix);
        let producer = runtime.block_on(async { SharedProducer::open(kafka.clone(), None).unwrap() });
        let publisher = Publisher::new(producer, Topology::new(names.clone(), fleet.events_partitions), "test");
        let released = ReleaseLog::of(&kafka, &names.tasks("echo"));
        Self { fleet, runtime, kafka, names, publisher, released, expected: BTreeSet::new() }
    }

    fn run(mut self, points: &[Point]) {
        for (n, point) in points.iter().enumerate() {
            let mut tracker = self.interrupt(n, *point);
            if n + 1 == points.len() {
                let (store, all) =
                    (self.fleet.redis.store(&self.fleet.prefix), (0..self.fleet.events_partitions).collect::<Vec<_>>());
                let oracle = self.runtime.block_on(wait_until_folded(&self.kafka, &self.names, &store, &all));
                assert_eq!(oracle.tasks(), self.expected.len(), "{points:?}");
            }
            tracker.stop();
        }
        self.released.read_to_end();
        let times: BTreeMap<&str, usize> = self.expected.iter().map(|id| (id.as_str(), 1)).collect();
        let found: BTreeMap<&str, usize> =
            self.released.times.iter().map(|(id, times)| (id.as_str(), *times)).collect();
        assert_eq!(found, times, "each task exists once: {points:?}");
    }

    /// Interrupts a tracker at the point, and returns the tracker that has taken over.
    fn interrupt(&mut self, round: usize, point: Point) -> Process {
        let Point { producer, step, when, fault } = point;
        let breakpoint = Breakpoint::new(format!("{}.{producer}", self.names.events()), step, when, fault);
        let broker = self.fleet.brokers.rsplit_once(':').unwrap().1.parse().unwrap();
        let brokers = format!("127.0.0.1:{}", fault_proxy::kafka(broker, &breakpoint));
        let redis = format!("redis://127.0.0.1:{}", fault_proxy::redis(self.fleet.redis.port, &breakpoint));
        let mut first = self.fleet.start_with("tracker", &["--brokers", &brokers, "--redis", &redis]);
        breakpoint.attach(first.id());
        self.request(producer, &format!("r{round}-before"));
        breakpoint.wait_until_hit();
        let mut second = self.fleet.start("tracker");
        // Only the second tracker can publish this task, so it has taken over.
        self.request(producer, &format!("r{round}-during"));
        self.released.wait_until(&self.expected, point, &mut second);
        if fault == Fault::Freeze {
            breakpoint.resume();
            self.request(producer, &format!("r{round}-after"));
            self.released.wait_until(&self.expected, point, &mut second);
            first.stop();
        }
        second
    }

    /// Requests tasks that are due soon.
    fn request(&mut self, producer: &str, name: &str) {
        if producer == EFFECTS { self.timers(name) } else { self.schedule(name) }
    }

    /// Publishes delayed tasks in the first events partition.
    fn timers(&mut self, name: &str) {
        let ids = (0..).map(|n| TaskId::parse(&format!("{name}-{n}")).unwrap());
        let ids = ids.filter(|id| self.publisher.topology.partition_of(id) == 0).take(TIMERS);
        let due_ms = now_ms() + 200;
        let tasks = ids.map(|id| TaskSpec::new(id, "echo", RawJson::null()).at(due_ms));
        let published = self.runtime.block_on(self.publisher.publish_all(tasks.collect(), now_ms()));
        self.expected.extend(published.into_iter().map(|task| task.unwrap().id.to_string()));
    }

    /// Creates a schedule with three times, a second apart.
    fn schedule(&mut self, name: &str) {
        let from_ms = now_ms();
        let first = from_ms.div_euclid(1_000) + 1;
        let spec = Spec {
            every: Some("1s".parse().unwrap()),
            end_at: Some(time_text((first + 3) * 1_000)),
            overlap: Overlap::Allow,
            task: Template { task_type: "echo".into(), ..Template::default() },
            ..Spec::default()
        };
        let schedule = Schedule { v: CONTROL_VERSION, at_ms: from_ms, from_ms, paused: None, owner: None, spec };
        let key = ScheduleKey::Schedule(name.to_owned());
        self.runtime.block_on(put_schedule(self.publisher.producer(), &self.names, &key, Some(&schedule))).unwrap();
        self.expected.extend((first..first + 3).map(|second| task_of(name, second * 1_000)));
    }
}

/// Number of committed records per task in the topic.
struct ReleaseLog {
    consumer: Box<dyn Consumer>,
    kafka: Arc<Kafka>,
    partitions: Vec<Partition>,
    times: BTreeMap<String, usize>,
}

impl ReleaseLog {
    fn of(kafka: &Arc<Kafka>, topic: &str) -> Self {
        let topics = kafka.topics(topic, DEADLINE).unwrap();
        let partitions = topics.iter().find(|info| info.name == topic).unwrap().partitions;
        let partitions: Vec<Partition> = (0..partitions as i32).map(|number| Partition::new(topic, number)).collect();
        let mut consumer = kafka.consumer(&ConsumerSpec::default()).unwrap();
        let starts: Vec<(Partition, StartOffset)> =
            partitions.iter().map(|partition| (partition.clone(), StartOffset::Beginning)).collect();
        consumer.assign(&starts).unwrap();
        Self { consumer, kafka: kafka.clone(), partitions, times: BTreeMap::new() }
    }

    fn poll(&mut self) {
        let times = &mut self.times;
        let mut count = |id: &[u8]| *times.entry(String::from_utf8_lossy(id).into_owned()).or_default() += 1;
        let polled = self.consumer.poll(1_000, Duration::from_millis(20), &mut |record| {
            let record = record.to_owned();
            let id = record.headers.iter().find(|(name, _)| name == "ce_id");
            count(id.and_then(|(_, id)| id.as_deref()).unwrap_or_default());
        });
        polled.unwrap();
    }

    fn wait_until(&mut self, expected: &BTreeSet<String>, point: Point, tracker: &mut Process) {
        eventually_blocking(&format!("{point:?}: all are released"), || {
            tracker.assert_running();
            self.poll();
            let missing: Vec<&String> = expected.iter().filter(|id| !self.times.contains_key(*id)).collect();
            if missing.is_empty() { Ok(()) } else { Err(missing) }
        });
    }

    /// Reads up to the current end of the topic.
    fn read_to_end(&mut self) {
        let ends: Vec<i64> =
            self.partitions.iter().map(|partition| self.kafka.watermarks(partition, DEADLINE).unwrap().high).collect();
        let is_read = |consumer: &mut Box<dyn Consumer>, partition: &Partition, end: i64| {
            end == 0 || consumer.positions().unwrap().iter().any(|(assigned, at)| assigned == partition && *at >= end)
        };
        for (partition, end) in self.partitions.clone().iter().zip(ends) {
            eventually_blocking("the topic is read to its end", || {
                self.poll();
                is_read(&mut self.consumer, partition, end)
            });
        }
    }
}
