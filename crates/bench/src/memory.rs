//! `bench memory`: peak memory of a worker with a long backlog, with large params, and with many types.

use std::time::{Duration, Instant};

use anyhow::bail;
use kafleet_broker::{Broker, TopicSpec};
use kafleet_config::Bytes;

use super::child_role::ChildRole;
use super::load::{self, Filler};
use super::process::{Process, ProcessUsage};
use super::{BenchReport, BenchTopics, CALL_DEADLINE, Common, NOOP, ROUND_DEADLINE, Services, mib};

/// Size of the params of large tasks: the maximum.
const LARGE_BYTES: usize = 1 << 20;
/// Concurrent attempts per type, and their duration, chosen so that the worker always buffers tasks.
const SLOTS: u32 = 500;
const SLEEP: Duration = Duration::from_millis(5);
/// Maximum record size of the topics, above the broker's default of 1 MiB.
const TOPIC_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, clap::Args)]
pub struct MemoryBench {
    /// Tasks queued for one type, with params of 200 bytes.
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub tasks: u64,
    /// Tasks with params of 1 MiB.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    pub large: u64,
    /// Types in one worker.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub types: u32,
    /// Tasks queued for each of them, with params of 200 bytes.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub each: u64,
    /// Partitions of each task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Memory limit of the worker [default: from the configuration].
    #[arg(long, value_parser = Bytes::parse)]
    pub memory_limit: Option<Bytes>,
    /// Maximum memory of the process; the benchmark fails above it.
    #[arg(long, value_parser = Bytes::parse, default_value_t = Bytes(512 << 20))]
    pub ceiling: Bytes,
}

/// A backlog to process.
struct BacklogPart {
    name: String,
    types: u32,
    /// Tasks of each type.
    tasks: u64,
    params: String,
}

/// Returns the names of the types of a backlog.
pub(super) fn type_names(types: u32) -> Vec<String> {
    (0..types).map(|n| if n == 0 { NOOP.to_owned() } else { format!("{NOOP}-{n}") }).collect()
}

pub fn memory(bench: &MemoryBench, services: &Services) -> anyhow::Result<BenchReport> {
    let services = services.linger(Common::default().linger).memory_limit(bench.memory_limit);
    let settings = [
        ("partitions", bench.partitions.to_string()),
        ("slots", SLOTS.to_string()),
        ("attempt", format!("{} ms", SLEEP.as_millis())),
        ("memory limit", services.worker.memory_limit.to_string()),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut report = BenchReport::new("memory", settings);
    let large = serde_json::to_string(&"x".repeat(LARGE_BYTES - 2))?;
    let parts = [
        BacklogPart {
            name: format!("{} tasks queued", bench.tasks),
            types: 1,
            tasks: bench.tasks,
            params: load::params(),
        },
        BacklogPart { name: format!("{} tasks of 1 MiB", bench.large), types: 1, tasks: bench.large, params: large },
        BacklogPart {
            name: format!("{} types", bench.types),
            types: bench.types,
            tasks: bench.each,
            params: load::params(),
        },
    ];
    for part in parts {
        eprintln!("{}: filling", part.name);
        let (cost, took) = part.run(bench, &services)?;
        report.add(&format!("{}: peak memory", part.name), "MiB", vec![mib(cost.peak_bytes)]);
        report.add(&format!("{}: rate", part.name), "tasks/s", vec![part.all() as f64 / took.as_secs_f64()]);
        if cost.peak_bytes > bench.ceiling.0 {
            bail!("{}: the worker took {:.0} MiB, more than {}", part.name, mib(cost.peak_bytes), bench.ceiling);
        }
    }
    report.checked = true;
    Ok(report)
}

impl BacklogPart {
    fn all(&self) -> u64 {
        self.tasks * u64::from(self.types)
    }

    /// Runs a worker until all tasks are done and committed; returns its cost and the time from its start.
    fn run(&self, bench: &MemoryBench, services: &Services) -> anyhow::Result<(ProcessUsage, Duration)> {
        let topics = BenchTopics::prepare(services, bench.partitions, bench.partitions)?;
        self.fill(&topics, bench.partitions)?;
        let mut worker = self.start_worker(&topics, bench.partitions, services)?;
        let started = Instant::now();
        while !self.is_done(&topics)? {
            worker.check()?;
            if started.elapsed() > ROUND_DEADLINE {
                bail!("{}: not done after {} s", self.name, ROUND_DEADLINE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let cost = worker.cost();
        let took = started.elapsed();
        worker.stop()?;
        load::check_events(&topics, bench.partitions, self.all())?;
        Ok((cost, took))
    }

    fn start_worker(&self, topics: &BenchTopics, partitions: u32, services: &Services) -> anyhow::Result<Process> {
        let role = ChildRole::Sleeper {
            services: services.clone(),
            prefix: topics.topology.names.prefix.clone(),
            events_partitions: partitions,
            types: self.types,
            slots: SLOTS,
            sleep_ms: SLEEP.as_millis() as u64,
        };
        Process::start("worker", &role)
    }

    fn fill(&self, topics: &BenchTopics, partitions: u32) -> anyhow::Result<()> {
        let spec = |name| {
            let config = vec![("max.message.bytes".to_owned(), TOPIC_BYTES.to_string())];
            TopicSpec { name, partitions, replication: None, config }
        };
        let names = type_names(self.types);
        let of_fleet = &topics.topology.names;
        let specs: Vec<_> =
            names.iter().flat_map(|name| [of_fleet.tasks(name), of_fleet.dead(name)]).map(spec).collect();
        for outcome in topics.broker.apply_topics(&specs, CALL_DEADLINE)? {
            if let kafleet_broker::TopicChange::Failed(error) = outcome.change {
                bail!("cannot create topic `{}`: {error}", outcome.name);
            }
        }
        let filler = Filler::new(topics)?;
        for (number, name) in names.iter().enumerate() {
            let first = number as u64 * self.tasks;
            filler.tasks(of_fleet, name, first..first + self.tasks, &self.params)?;
        }
        filler.end()
    }

    /// Returns whether all tasks are committed.
    fn is_done(&self, topics: &BenchTopics) -> anyhow::Result<bool> {
        for name in type_names(self.types) {
            if !topics.is_committed(&name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
