//! `kafleet bench`: measures this build on this machine, beside baselines from the same run.
//!
//! In: the options of a benchmark and the addresses of Kafka and Redis. Out: a [`BenchReport`] with the median and the
//! spread of each figure. Each role runs in its own process (of the same binary), so that its CPU time and memory can
//! be measured.
//!
//! Load generators and observers call the blocking broker traits on their own threads: the async client's change of
//! thread per call would be measured as well.
//!
//! Invariant: only acknowledged records count, and every run ends with a check that all tasks are present exactly once.
//! A faster way that loses or repeats tasks would otherwise show as an improvement.
//!
//! Read next: `round.rs` (measurement of one process), `child_role.rs` (the measured roles), then `worker.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod api_fleet;
mod app;
mod baseline;
mod batch;
mod batch_rows;
mod check;
pub mod child_role;
mod e2e;
mod fanin;
mod fleet;
mod idle;
mod latency;
mod load;
mod local_kafka;
mod memory;
mod outbox;
mod overload;
mod overload_adaptive;
mod process;
mod publish;
mod reads;
mod receivers;
mod round;
mod sleep;
mod table;
mod timers;
mod tracker;
mod types;
mod ui;
mod unannounced;
mod unique;
mod watch;
mod worker;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use kafleet_broker::kafka::Kafka;
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{Broker, BrokerClient, Consumer, ConsumerSpec, Partition, TopicChange, TopicSpec, Watermarks};
use kafleet_config::{Bytes, Names, OtelConfig, RedisConfig, Scalar, Topology, TrackerConfig, WorkerConfig};
use kafleet_store::redis::{Redis, RedisOptions};
use local_kafka::LocalKafka;

pub use app::{AppBench, app};
pub use batch::{BatchBench, batch};
pub use e2e::{E2e, e2e};
pub use fanin::{Fanin, fanin};
pub use idle::{Idle, idle};
pub use latency::{Latency, latency};
pub use load::Shape;
pub use memory::{MemoryBench, memory};
pub use outbox::{OutboxBench, outbox};
pub use overload::{Overload, overload};
pub use publish::{PublishBench, publish};
pub use reads::{StatusReads, reads};
pub use receivers::{ReceiversBench, receivers};
pub use sleep::{Sleep, sleep};
pub use table::{BenchReport, Figure};
pub use timers::{Timers, timers};
pub use tracker::{TrackerBench, tracker};
pub use types::{Measurement as TypesMeasurement, TypesBench, types};
pub use ui::{Ui, ui};
pub use unannounced::{UnannouncedBench, unannounced};
pub use unique::{UniqueBench, unique};
pub use watch::{Watch, watch};
pub use worker::{WorkerBench, worker};

/// Options of all throughput benchmarks.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Tasks in each round.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub tasks: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Concurrent attempts in the worker.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Common {
    fn default() -> Self {
        Self { tasks: 1_000_000, rounds: 3, partitions: 4, slots: 2_000, linger: 5 }
    }
}

impl Common {
    /// Settings for the report.
    fn settings(&self, more: &[(&str, String)]) -> Vec<(String, String)> {
        let variables = [
            ("tasks", self.tasks.to_string()),
            ("partitions", self.partitions.to_string()),
            ("params", "200 B".into()),
            ("linger", format!("{} ms", self.linger)),
        ];
        variables.into_iter().chain(more.iter().cloned()).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns the options of the unmeasured warm-up, with a part of the tasks: a fresh broker is slow at first.
    fn warm_up(&self) -> Self {
        Self { tasks: (self.tasks / WARM_UP_PART).max(1), ..self.clone() }
    }
}

/// The services that a benchmark runs against.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Services {
    /// Settings of librdkafka, except those that benchmarks override.
    pub kafka: BTreeMap<String, Scalar>,
    pub redis: RedisConfig,
    pub worker: WorkerConfig,
    pub tracker: TrackerConfig,
    /// Tracing of the worker; off without an endpoint.
    pub otel: OtelConfig,
    /// Linger of every producer, in ms.
    pub linger: u32,
}

impl Services {
    pub fn linger(&self, linger: u32) -> Self {
        Self { linger, ..self.clone() }
    }

    /// Overrides the worker's memory limit if one is given.
    fn memory_limit(mut self, limit: Option<Bytes>) -> Self {
        self.worker.memory_limit = limit.unwrap_or(self.worker.memory_limit);
        self
    }

    /// Kafka's version, if it runs on this machine and can be determined.
    pub fn kafka_version(&self) -> Option<String> {
        self.local_kafka().version()
    }

    fn local_kafka(&self) -> LocalKafka {
        LocalKafka::listening_on(&self.kafka.get("bootstrap.servers").map(Scalar::to_string).unwrap_or_default())
    }

    fn redis(&self, prefix: &str) -> anyhow::Result<Redis> {
        let options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::from(&self.redis) };
        Redis::connect(options).context("cannot use Redis for the benchmark")
    }

    fn kafka(&self) -> anyhow::Result<Kafka> {
        let mut section: BTreeMap<String, String> =
            self.kafka.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        section.insert("linger.ms".to_owned(), self.linger.to_string());
        Kafka::new(&section).context("cannot use Kafka for the benchmark")
    }
}

/// Task type of benchmarks, which does nothing.
pub const NOOP: &str = "noop";
/// Task type of parents, which spawns the number of no-op tasks given by its params.
pub const FAN: &str = "fan";
/// Divisor of the number of tasks in a warm-up.
const WARM_UP_PART: u64 = 4;
/// Partitions of the events topic in benchmarks with a store.
const EVENTS_PARTITIONS: u32 = 4;
/// Maximum duration of a round.
const ROUND_DEADLINE: Duration = Duration::from_secs(600);
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two questions for the ends of a partition without a leader.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// Topics of a round, under a unique prefix; deleted on drop.
struct BenchTopics {
    broker: Arc<Kafka>,
    kafka: LocalKafka,
    topology: Topology,
    partitions: u32,
    /// Clients for reading committed offsets, by group: a new client would first have to find the group's
    /// coordinator, and that time would count as the worker's.
    commit_readers: Mutex<BTreeMap<String, Box<dyn Consumer>>>,
}

impl BenchTopics {
    fn prepare(services: &Services, partitions: u32, events_partitions: u32) -> anyhow::Result<Self> {
        let broker = Arc::new(services.kafka()?);
        let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let topology = Topology::new(Names::new(&format!("kafleet-bench-{}", tail.to_lowercase())), events_partitions);
        let names = &topology.names;
        let spec = |name: String, partitions, append_time: bool| TopicSpec {
            name,
            partitions,
            replication: None,
            config: if append_time {
                vec![
                    ("message.timestamp.type".into(), "LogAppendTime".into()),
                    ("retention.ms".into(), "-1".into()),
                    ("max.message.bytes".into(), kafleet_fleet::topics::MAX_RECORD_BYTES.to_string()),
                ]
            } else {
                Vec::new()
            },
        };
        let specs = [
            spec(names.tasks(NOOP), partitions, false),
            spec(names.dead(NOOP), 1, false),
            spec(names.tasks(FAN), 1, false),
            spec(names.dead(FAN), 1, false),
            spec(names.events(), events_partitions, true),
            spec(names.control(), 1, false),
            spec(names.workers(), 1, false),
        ];
        for outcome in broker.apply_topics(&specs, CALL_DEADLINE)? {
            if let TopicChange::Failed(error) = outcome.change {
                bail!("cannot create topic `{}`: {error}", outcome.name);
            }
        }
        Ok(Self { broker, kafka: services.local_kafka(), topology, partitions, commit_readers: Mutex::default() })
    }

    /// Opens a producer for the tasks of this process.
    async fn producer(&self) -> anyhow::Result<Arc<SharedProducer>> {
        Ok(BrokerClient::new(self.broker.clone()).shared_producer(None).await?)
    }

    /// Number of records in a topic, from its partitions' watermarks.
    fn records(&self, topic: &str, partitions: u32) -> anyhow::Result<u64> {
        let mut records = 0;
        for number in 0..partitions {
            let ends = self.watermarks(&Partition::new(topic, number as i32))?;
            records += ends.high - ends.low;
        }
        u64::try_from(records).context("a partition ends before it begins")
    }

    /// Ends of a topic's partitions.
    fn ends(&self, topic: &str, partitions: u32) -> anyhow::Result<Vec<(Partition, i64)>> {
        let end = |number: u32| {
            let partition = Partition::new(topic, number as i32);
            let ends = self.watermarks(&partition)?;
            Ok((partition, ends.high))
        };
        (0..partitions).map(end).collect()
    }

    /// Reads the ends of a partition. Repeats transient errors: a topic that was just created may have no leader yet.
    fn watermarks(&self, partition: &Partition) -> anyhow::Result<Watermarks> {
        let until = Instant::now() + CALL_DEADLINE;
        loop {
            match self.broker.watermarks(partition, CALL_DEADLINE) {
                Err(error) if error.is_transient() && Instant::now() < until => std::thread::sleep(LEADER_PAUSE),
                ends => return Ok(ends?),
            }
        }
    }

    /// Returns whether a type's workers have committed all records of its topic.
    fn is_committed(&self, task_type: &str) -> anyhow::Result<bool> {
        let topic = self.topology.names.tasks(task_type);
        Ok(self.committed(&self.topology.names.group(task_type), &topic)? >= self.records(&topic, self.partitions)?)
    }

    /// Sum of a group's committed offsets over all partitions.
    fn committed(&self, group: &str, topic: &str) -> anyhow::Result<u64> {
        let topic: Arc<str> = topic.into();
        let partitions: Vec<Partition> =
            (0..self.partitions).map(|number| Partition::new(topic.clone(), number as i32)).collect();
        let mut commit_readers = self.commit_readers.lock();
        let reader = match commit_readers.entry(group.to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.broker.consumer(&ConsumerSpec {
                group: Some(group.to_owned()),
                topics: Vec::new(),
                prefetch_bytes: 1 << 20,
                ..ConsumerSpec::default()
            })?),
        };
        let offsets = reader.committed(&partitions, CALL_DEADLINE)?;
        Ok(offsets.into_iter().flatten().map(|committed| committed.offset.max(0) as u64).sum())
    }
}

impl Drop for BenchTopics {
    fn drop(&mut self) {
        if let Err(error) = self.broker.delete_topics(&self.topology.names.topics(), CALL_DEADLINE) {
            eprintln!("cannot delete the topics `{}*`: {error}", self.topology.names.prefix);
        }
    }
}

fn own_cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let time = |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000);
    usage.map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}

fn micros(cpu: Duration, tasks: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / tasks as f64
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(call).await?
}
