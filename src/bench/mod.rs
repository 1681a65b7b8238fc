//! `kafleet bench`: how fast this build is on this machine, beside what the parts below it do in the same run.
//!
//! Each role runs in a process of its own (the same binary), so that CPU time and memory are its own. Nothing counts
//! before it is acknowledged, and every run ends with a check that all tasks are there exactly once.

mod e2e;
mod load;
mod process;
pub mod role;
mod table;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::broker::kafka::Kafka;
use crate::broker::{Broker, Partition, TopicChange, TopicSpec};
use crate::config::Names;

pub use e2e::{E2e, e2e};
pub use table::{Figure, Report};
pub use worker::{WorkerBench, worker};

/// What every benchmark needs to know.
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
}

/// The task type of benchmarks: does nothing, and does it at once.
pub const NOOP: &str = "noop";
/// How long one round may take.
const ROUND_DEADLINE: Duration = Duration::from_secs(600);
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Topics of one round, under a prefix that no other has.
struct Ground {
    broker: Arc<Kafka>,
    names: Names,
    partitions: u32,
}

impl Ground {
    fn prepare(common: &Common, brokers: &str, events_partitions: u32) -> anyhow::Result<Self> {
        let broker = Arc::new(kafka(brokers)?);
        let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let names = Names::new(&format!("kafleet-bench-{}", tail.to_lowercase()));
        let spec = |name: String, partitions, append_time: bool| TopicSpec {
            name,
            partitions,
            replication: None,
            config: match append_time {
                true => vec![("message.timestamp.type".into(), "LogAppendTime".into())],
                false => Vec::new(),
            },
        };
        let topics = [
            spec(names.tasks(NOOP), common.partitions, false),
            spec(names.dead(NOOP), 1, false),
            spec(names.events(), events_partitions, true),
            spec(names.control(), 1, false),
        ];
        for outcome in broker.apply_topics(&topics, CALL_DEADLINE)? {
            if let TopicChange::Failed(error) = outcome.change {
                bail!("topic `{}` could not be made: {error}", outcome.name);
            }
        }
        Ok(Self { broker, names, partitions: common.partitions })
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

    /// How far the group of workers has committed, over all partitions.
    fn committed(&self) -> anyhow::Result<u64> {
        let topic: Arc<str> = self.names.tasks(NOOP).into();
        let partitions: Vec<Partition> =
            (0..self.partitions).map(|number| Partition::new(topic.clone(), number as i32)).collect();
        let offsets = self.broker.group_offsets(&self.names.group(NOOP), &partitions, CALL_DEADLINE)?;
        Ok(offsets.into_iter().flatten().map(|committed| committed.offset.max(0) as u64).sum())
    }
}

fn kafka(brokers: &str) -> anyhow::Result<Kafka> {
    let section = BTreeMap::from([("bootstrap.servers".to_owned(), brokers.to_owned())]);
    Kafka::new(&section).context("the benchmark cannot use this Kafka")
}
