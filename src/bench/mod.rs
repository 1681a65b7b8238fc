//! `kafleet bench`: how fast this build is on this machine, beside what the parts below it do in the same run.
//!
//! Each role runs in a process of its own (the same binary), so that CPU time and memory are its own. Nothing counts
//! before it is acknowledged, and every run ends with a check that all tasks are there exactly once.

mod baseline;
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
mod process;
mod publish;
mod reads;
mod round;
mod sleep;
mod table;
mod timers;
mod tracker;
mod unannounced;
mod watch;
mod worker;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::broker::kafka::Kafka;
use crate::broker::{Broker, Consumer, ConsumerSpec, Partition, TopicChange, TopicSpec};
use crate::config::{Bytes, Names, RedisConfig, Scalar, TrackerConfig, WorkerConfig};
use crate::store::redis::{Redis, RedisOptions};
use local_kafka::LocalKafka;

pub use e2e::{E2e, e2e};
pub use fanin::{Fanin, fanin};
pub use idle::{Idle, idle};
pub use latency::{Latency, latency};
pub use load::Shape;
pub use memory::{MemoryBench, memory};
pub use publish::{PublishBench, publish};
pub use reads::{Reads, reads};
pub use sleep::{Sleep, sleep};
pub use table::{Figure, Report};
pub use timers::{Timers, timers};
pub use tracker::{TrackerBench, tracker};
pub use unannounced::{Unannounced, unannounced};
pub use watch::{Watch, watch};
pub use worker::{WorkerBench, worker};

/// What every benchmark of throughput needs to know.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Tasks in each round.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub tasks: u64,
    /// Rounds; the median is what counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Attempts at once in the worker.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// How long producers gather records (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Common {
    fn default() -> Self {
        Self { tasks: 1_000_000, rounds: 3, partitions: 4, slots: 2_000, linger: 5 }
    }
}

impl Common {
    /// What a report says of them.
    fn settings(&self, more: &[(&str, String)]) -> Vec<(String, String)> {
        let own = [
            ("tasks", self.tasks.to_string()),
            ("partitions", self.partitions.to_string()),
            ("params", "200 B".into()),
            ("linger", format!("{} ms", self.linger)),
        ];
        own.into_iter().chain(more.iter().cloned()).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// A broker that has just started is slow at first: a part of the tasks, once, uncounted.
    fn warm_up(&self) -> Self {
        Self { tasks: (self.tasks / WARM_UP_PART).max(1), ..self.clone() }
    }
}

/// The services that a benchmark runs against.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Services {
    /// For librdkafka, without what the benchmark sets.
    pub kafka: BTreeMap<String, Scalar>,
    pub redis: RedisConfig,
    pub worker: WorkerConfig,
    pub tracker: TrackerConfig,
    /// Of every producer, ms.
    pub linger: u32,
}

impl Services {
    pub fn linger(&self, linger: u32) -> Self {
        Self { linger, ..self.clone() }
    }

    /// With another limit of the worker's memory, where one is given.
    fn memory_limit(mut self, limit: Option<Bytes>) -> Self {
        self.worker.memory_limit = limit.unwrap_or(self.worker.memory_limit);
        self
    }

    /// Kafka's version, where it runs on this machine and can be found.
    pub fn kafka_version(&self) -> Option<String> {
        self.neighbour().version()
    }

    fn neighbour(&self) -> LocalKafka {
        LocalKafka::listening(&self.kafka.get("bootstrap.servers").map(Scalar::to_string).unwrap_or_default())
    }

    fn redis(&self, prefix: &str) -> anyhow::Result<Redis> {
        let options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::from(&self.redis) };
        Redis::connect(options).context("the benchmark cannot use this Redis")
    }

    fn kafka(&self) -> anyhow::Result<Kafka> {
        let mut section: BTreeMap<String, String> =
            self.kafka.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        section.insert("linger.ms".to_owned(), self.linger.to_string());
        Kafka::new(&section).context("the benchmark cannot use this Kafka")
    }
}

/// The task type of benchmarks: does nothing, and does it at once.
pub const NOOP: &str = "noop";
/// Its parent: spawns as many of them as its params say.
pub const FAN: &str = "fan";
/// The tasks of a warm-up: one in so many.
const WARM_UP_PART: u64 = 4;
/// Partitions of the events topic where the store takes part.
const EVENTS_PARTITIONS: u32 = 4;
/// How long one round may take.
const ROUND_DEADLINE: Duration = Duration::from_secs(600);
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Topics of one round, under a prefix that no other has; deleted at its end.
struct BenchTopics {
    broker: Arc<Kafka>,
    kafka: LocalKafka,
    names: Names,
    partitions: u32,
    events_partitions: u32,
    /// By group, who is asked for its commits: a new client would first have to look for the group's coordinator, and that
    /// time would count as the worker's.
    askers: Mutex<BTreeMap<String, Box<dyn Consumer>>>,
}

impl BenchTopics {
    fn prepare(site: &Services, partitions: u32, events_partitions: u32) -> anyhow::Result<Self> {
        let broker = Arc::new(site.kafka()?);
        let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let names = Names::new(&format!("kafleet-bench-{}", tail.to_lowercase()));
        let spec = |name: String, partitions, append_time: bool| TopicSpec {
            name,
            partitions,
            replication: None,
            config: match append_time {
                true => vec![("message.timestamp.type".into(), "LogAppendTime".into()), ("retention.ms".into(), "-1".into())],
                false => Vec::new(),
            },
        };
        let topics = [
            spec(names.tasks(NOOP), partitions, false),
            spec(names.dead(NOOP), 1, false),
            spec(names.tasks(FAN), 1, false),
            spec(names.dead(FAN), 1, false),
            spec(names.events(), events_partitions, true),
            spec(names.control(), 1, false),
            spec(names.workers(), 1, false),
        ];
        for outcome in broker.apply_topics(&topics, CALL_DEADLINE)? {
            if let TopicChange::Failed(error) = outcome.change {
                bail!("topic `{}` could not be made: {error}", outcome.name);
            }
        }
        Ok(Self { broker, kafka: site.neighbour(), names, partitions, events_partitions, askers: Mutex::default() })
    }

    /// Records in a topic, by the ends of its partitions.
    fn records(&self, topic: &str, partitions: u32) -> anyhow::Result<u64> {
        let mut records = 0;
        for number in 0..partitions {
            let ends = self.broker.ends(&Partition::new(topic, number as i32), CALL_DEADLINE)?;
            records += ends.end - ends.first;
        }
        u64::try_from(records).context("a partition ends before it begins")
    }

    /// A type's workers have committed everything that is in its topic.
    fn is_committed(&self, task_type: &str) -> anyhow::Result<bool> {
        let topic = self.names.tasks(task_type);
        Ok(self.committed(&self.names.group(task_type), &topic)? >= self.records(&topic, self.partitions)?)
    }

    /// How far a group has committed, over all partitions.
    fn committed(&self, group: &str, topic: &str) -> anyhow::Result<u64> {
        let topic: Arc<str> = topic.into();
        let partitions: Vec<Partition> =
            (0..self.partitions).map(|number| Partition::new(topic.clone(), number as i32)).collect();
        let mut askers = self.askers.lock();
        let asker = match askers.entry(group.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.broker.consumer(&ConsumerSpec {
                group: Some(group.to_owned()),
                topics: Vec::new(),
                prefetch_bytes: 1 << 20,
                read_uncommitted: false,
            })?),
        };
        let offsets = asker.committed(&partitions, CALL_DEADLINE)?;
        Ok(offsets.into_iter().flatten().map(|committed| committed.offset.max(0) as u64).sum())
    }
}

impl Drop for BenchTopics {
    fn drop(&mut self) {
        if let Err(error) = self.broker.delete_topics(&self.names.prefix, CALL_DEADLINE) {
            eprintln!("the topics `{}*` stay: {error}", self.names.prefix);
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
