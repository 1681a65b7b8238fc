//! `bench memory`: the most that a worker takes: before a long backlog, with large params, and with many types.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::child_role::ChildRole;
use super::load::{self, Filler};
use super::process::{Cost, Process};
use super::{BenchTopics, CALL_DEADLINE, Common, NOOP, ROUND_DEADLINE, Report, Services, mib};
use crate::broker::{Broker, TopicSpec};
use crate::config::Bytes;

/// Params of the large tasks: as much as is allowed.
const LARGE_BYTES: usize = 1 << 20;
/// Attempts at once in each type, and how long one takes: so that there is always work that is held.
const SLOTS: u32 = 500;
const NAP: Duration = Duration::from_millis(5);
/// The topics of large tasks take more than the broker's own megabyte.
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
    /// The worker's memory limit; by default the configuration's.
    #[arg(long, value_parser = Bytes::parse)]
    pub memory_limit: Option<Bytes>,
    /// The most that the process may take; with more the benchmark fails.
    #[arg(long, value_parser = Bytes::parse, default_value_t = Bytes(512 << 20))]
    pub ceiling: Bytes,
}

/// One backlog.
struct Part {
    name: String,
    types: u32,
    /// Tasks of each type.
    tasks: u64,
    params: String,
}

/// The types of a part, in the same worker.
pub fn type_names(types: u32) -> Vec<String> {
    (0..types).map(|n| if n == 0 { NOOP.to_owned() } else { format!("{NOOP}-{n}") }).collect()
}

pub fn memory(bench: &MemoryBench, site: &Services) -> anyhow::Result<Report> {
    let site = site.linger(Common::default().linger).memory_limit(bench.memory_limit);
    let settings = [
        ("partitions", bench.partitions.to_string()),
        ("slots", SLOTS.to_string()),
        ("attempt", format!("{} ms", NAP.as_millis())),
        ("memory limit", site.worker.memory_limit.to_string()),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut report = Report::new("memory", settings);
    let large = serde_json::to_string(&"x".repeat(LARGE_BYTES - 2))?;
    let parts = [
        Part { name: format!("{} tasks queued", bench.tasks), types: 1, tasks: bench.tasks, params: load::params() },
        Part { name: format!("{} tasks of 1 MiB", bench.large), types: 1, tasks: bench.large, params: large },
        Part { name: format!("{} types", bench.types), types: bench.types, tasks: bench.each, params: load::params() },
    ];
    for part in parts {
        eprintln!("{}: filling", part.name);
        let (cost, took) = part.run(bench, &site)?;
        report.add(&format!("{}: peak memory", part.name), "MiB", vec![mib(cost.peak_bytes)]);
        report.add(&format!("{}: rate", part.name), "tasks/s", vec![part.all() as f64 / took.as_secs_f64()]);
        if cost.peak_bytes > bench.ceiling.0 {
            bail!("{}: the worker took {:.0} MiB, more than {}", part.name, mib(cost.peak_bytes), bench.ceiling);
        }
    }
    report.checked = true;
    Ok(report)
}

impl Part {
    fn all(&self) -> u64 {
        self.tasks * u64::from(self.types)
    }

    /// What the worker has cost when all is done and committed, and how long it took from its start.
    fn run(&self, bench: &MemoryBench, site: &Services) -> anyhow::Result<(Cost, Duration)> {
        let ground = BenchTopics::prepare(site, bench.partitions, bench.partitions)?;
        self.fill(&ground, bench.partitions)?;
        let role = ChildRole::Napper {
            site: site.clone(),
            prefix: ground.names.prefix.clone(),
            events_partitions: bench.partitions,
            types: self.types,
            slots: SLOTS,
            nap_ms: NAP.as_millis() as u64,
        };
        let (mut worker, begun) = (Process::start("worker", &role)?, Instant::now());
        while !self.is_done(&ground)? {
            worker.check()?;
            if begun.elapsed() > ROUND_DEADLINE {
                bail!("{}: not done after {} s", self.name, ROUND_DEADLINE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let (cost, took) = (worker.cost(), begun.elapsed());
        worker.stop()?;
        load::check_events(&ground, bench.partitions, self.all())?;
        Ok((cost, took))
    }

    fn fill(&self, ground: &BenchTopics, partitions: u32) -> anyhow::Result<()> {
        let spec = |name| {
            let config = vec![("max.message.bytes".to_owned(), TOPIC_BYTES.to_string())];
            TopicSpec { name, partitions, replication: None, config }
        };
        let names = type_names(self.types);
        let topics: Vec<_> =
            names.iter().flat_map(|name| [ground.names.tasks(name), ground.names.dead(name)]).map(spec).collect();
        for outcome in ground.broker.apply_topics(&topics, CALL_DEADLINE)? {
            if let crate::broker::TopicChange::Failed(error) = outcome.change {
                bail!("topic `{}` could not be made: {error}", outcome.name);
            }
        }
        let filler = Filler::new(ground)?;
        for (number, name) in names.iter().enumerate() {
            let first = number as u64 * self.tasks;
            filler.tasks(&ground.names, name, first..first + self.tasks, &self.params)?;
        }
        filler.end()
    }

    /// Every task is committed as done.
    fn is_done(&self, ground: &BenchTopics) -> anyhow::Result<bool> {
        for name in type_names(self.types) {
            if !ground.is_committed(&name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
