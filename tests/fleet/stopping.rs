//! A tracker as a process that is killed, or frozen and thawed, at each step of firing, while another one takes over: each
//! timer, and each time of a schedule, makes one task all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use kafleet::control::schedules::ScheduleKey;
use kafleet::control::{CONTROL_VERSION, arrange};
use kafleet::model::json::RawJson;
use kafleet::model::schedule::{Overlap, Schedule, Spec, Template, task_of};
use kafleet::model::task::id::TaskId;
use kafleet::publish::{NewTask, Publisher, time_text};
use kafleet::runtime::now_ms;
use tokio::runtime::Handle;

use crate::inside::{brokers, unique_prefix};
use crate::processes::{HandlerEnv, Process};
use crate::survival::settled;
use crate::wire::{self, ADD_PARTITIONS, Deed, END_TXN, INIT_PRODUCER, PRODUCE, Step, Trap, When};

/// Fleets side by side: whoever takes over waits for the end of a session, and most of the time goes by so.
const LANES: usize = 9;
const TIMERS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(240);

/// Whose transactions they are: timers are fired by one producer for each partition of the events, schedules by one of their own.
const FIRING: &str = "firing.0";
const SCHEDULES: &str = "schedules";

#[derive(Clone, Copy, Debug)]
struct Point {
    producer: &'static str,
    step: Step,
    when: When,
    deed: Deed,
}

/// Opening the producer, the partitions of a transaction, its records (the first and the last), its commit, and the fold of it.
fn points() -> Vec<Point> {
    let in_kafka = [
        (INIT_PRODUCER, 1, When::Asked),
        (INIT_PRODUCER, 1, When::Answered),
        (ADD_PARTITIONS, 1, When::Asked),
        (ADD_PARTITIONS, 1, When::Answered),
        (PRODUCE, 1, When::Asked),
        (PRODUCE, 2, When::Answered),
        (END_TXN, 1, When::Asked),
        (END_TXN, 1, When::Answered),
    ];
    let mut points = Vec::new();
    for deed in [Deed::Kill, Deed::Freeze] {
        for producer in [FIRING, SCHEDULES] {
            let of = |(api, nth, when)| Point { producer, step: Step::Kafka(api, nth), when, deed };
            points.extend(in_kafka.map(of));
        }
        points.extend([When::Asked, When::Answered].map(|when| Point { producer: FIRING, step: Step::Exec, when, deed }));
    }
    points
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_is_stopped_at_each_step_of_firing() {
    let Some(brokers) = brokers() else { return };
    let (points, here) = (points(), Handle::current());
    let lanes = (0..LANES).map(|lane| {
        let points: Vec<Point> = points.iter().skip(lane).step_by(LANES).copied().collect();
        let (brokers, here) = (brokers.clone(), here.clone());
        tokio::task::spawn_blocking(move || Lane::new(brokers, here).run(&points))
    });
    for lane in futures::future::join_all(lanes.collect::<Vec<_>>()).await {
        lane.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    }
}

/// A fleet without workers: what is released stays in its topic.
struct Lane {
    fleet: HandlerEnv,
    here: Handle,
    kafka: Arc<Kafka>,
    names: Names,
    publisher: Publisher,
    released: Released,
    /// What there has to be in the end.
    expected: BTreeSet<String>,
}

impl Lane {
    fn new(brokers: String, here: Handle) -> Self {
        let types = "[types.echo]\nhandler = \"echo\"\n";
        let fleet = HandlerEnv::new(Path::new(env!("CARGO_BIN_EXE_kafleet")), brokers.clone(), unique_prefix(), types);
        let kafka = Arc::new(Kafka::new(&BTreeMap::from([("bootstrap.servers".to_owned(), brokers)])).unwrap());
        let names = Names::new(&fleet.prefix);
        let link = here.block_on(async { SharedProducer::open(kafka.clone(), None).unwrap() });
        let publisher = Publisher::new(link, names.clone(), fleet.events_partitions, "test");
        let released = Released::of(&kafka, &names.tasks("echo"));
        Self { fleet, here, kafka, names, publisher, released, expected: BTreeSet::new() }
    }

    fn run(mut self, points: &[Point]) {
        for (n, point) in points.iter().enumerate() {
            let mut last = self.round(n, *point);
            if n + 1 == points.len() {
                let (store, all) =
                    (self.fleet.redis.store(&self.fleet.prefix), (0..self.fleet.events_partitions).collect::<Vec<_>>());
                let oracle = self.here.block_on(settled(&self.kafka, &self.names, &store, &all));
                assert_eq!(oracle.tasks(), self.expected.len(), "{points:?}");
            }
            last.stop();
        }
        self.released.until_the_end();
        let times: BTreeMap<&str, usize> = self.expected.iter().map(|id| (id.as_str(), 1)).collect();
        let found: BTreeMap<&str, usize> = self.released.times.iter().map(|(id, times)| (id.as_str(), *times)).collect();
        assert_eq!(found, times, "each of them once: {points:?}");
    }

    /// Returns the tracker that has taken over.
    fn round(&mut self, round: usize, point: Point) -> Process {
        let Point { producer, step, when, deed } = point;
        let trap = Trap::new(format!("{}.{producer}", self.names.events()), step, when, deed);
        let broker = self.fleet.brokers.rsplit_once(':').unwrap().1.parse().unwrap();
        let brokers = format!("127.0.0.1:{}", wire::kafka(broker, &trap));
        let redis = format!("redis://127.0.0.1:{}", wire::redis(self.fleet.redis.port, &trap));
        let mut first = self.fleet.start_with("tracker", &["--brokers", &brokers, "--redis", &redis]);
        trap.set_for(first.id());
        self.ask(producer, &format!("r{round}-before"));
        trap.until_sprung();
        let mut second = self.fleet.start("tracker");
        // Nobody else can fire this: it has taken over by then.
        self.ask(producer, &format!("r{round}-then"));
        self.released.until(&self.expected, point, &mut second);
        if deed == Deed::Freeze {
            trap.thaw();
            self.ask(producer, &format!("r{round}-after"));
            self.released.until(&self.expected, point, &mut second);
            first.stop();
        }
        second
    }

    /// Something that is due in a moment.
    fn ask(&mut self, producer: &str, name: &str) {
        if producer == FIRING { self.timers(name) } else { self.schedule(name) }
    }

    /// All in the first partition.
    fn timers(&mut self, name: &str) {
        let ids = (0..).map(|n| TaskId::parse(&format!("{name}-{n}")).unwrap());
        let ids = ids.filter(|id| self.publisher.partition_of(id) == 0).take(TIMERS);
        let tasks = ids.map(|id| {
            let mut task = NewTask::new("echo", RawJson::null());
            task.id = Some(id);
            task.delay(Duration::from_millis(200))
        });
        let told = self.here.block_on(self.publisher.publish_all(tasks.collect(), now_ms()));
        self.expected.extend(told.into_iter().map(|told| told.unwrap().id.to_string()));
    }

    /// Three times, a second apart.
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
        let schedule = Schedule { v: CONTROL_VERSION, at_ms: from_ms, from_ms, paused: None, applied: false, spec };
        let key = ScheduleKey::Schedule(name.to_owned());
        self.here.block_on(arrange(self.publisher.link(), &self.names, &key, Some(&schedule))).unwrap();
        self.expected.extend((first..first + 3).map(|second| task_of(name, second * 1_000)));
    }
}

/// How often each task is in the topic, as far as transactions are committed.
struct Released {
    consumer: Box<dyn Consumer>,
    kafka: Arc<Kafka>,
    places: Vec<Partition>,
    times: BTreeMap<String, usize>,
}

impl Released {
    fn of(kafka: &Arc<Kafka>, topic: &str) -> Self {
        let known = kafka.topics(topic, DEADLINE).unwrap();
        let partitions = known.iter().find(|info| info.name == topic).unwrap().partitions;
        let places: Vec<Partition> = (0..partitions as i32).map(|number| Partition::new(topic, number)).collect();
        let mut consumer = kafka.consumer(&ConsumerSpec::default()).unwrap();
        let starts: Vec<(Partition, StartOffset)> = places.iter().map(|place| (place.clone(), StartOffset::Beginning)).collect();
        consumer.assign(&starts).unwrap();
        Self { consumer, kafka: kafka.clone(), places, times: BTreeMap::new() }
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

    fn until(&mut self, expected: &BTreeSet<String>, point: Point, tracker: &mut Process) {
        let end = Instant::now() + DEADLINE;
        loop {
            self.poll();
            let missing: Vec<&String> = expected.iter().filter(|id| !self.times.contains_key(*id)).collect();
            if missing.is_empty() {
                return;
            }
            tracker.check();
            assert!(Instant::now() < end, "{point:?}: not within {DEADLINE:?}: {missing:?}");
        }
    }

    /// Everything that is there now.
    fn until_the_end(&mut self) {
        let ends: Vec<i64> = self.places.iter().map(|place| self.kafka.ends(place, DEADLINE).unwrap().end).collect();
        let deadline = Instant::now() + DEADLINE;
        let is_there = |consumer: &mut Box<dyn Consumer>, place: &Partition, end: i64| {
            end == 0 || consumer.positions().unwrap().iter().any(|(own, at)| own == place && *at >= end)
        };
        for (place, end) in self.places.clone().iter().zip(ends) {
            while !is_there(&mut self.consumer, place, end) {
                self.poll();
                assert!(Instant::now() < deadline, "read to the end within {DEADLINE:?}");
            }
        }
    }
}
