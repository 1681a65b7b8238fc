//! `bench types`: many types in one worker, which share a consumer group. Four measurements, each beside a baseline from
//! the same run: resources while idle, a flood of one type, the rate of a hot type, and the restart of a worker.

mod flood;
mod hot;
mod idle;
mod restart;
mod steady;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;
use kafleet_broker::{Broker, TopicChange, TopicSpec};
use kafleet_config::TypeGroups;

use super::child_role::ChildRole;
use super::load::{self, Filler};
use super::memory::type_names;
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Services};

/// Name of the group that types share.
const SHARED: &str = "small";
/// Maximum time for the creation of all topics.
const TOPICS_DEADLINE: Duration = Duration::from_secs(300);
/// Wait after the start of workers before their idle costs are measured.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// A measurement of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measurement {
    Idle,
    Flood,
    Hot,
    Restart,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TypesBench {
    /// Types that share a group.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    pub types: u32,
    /// Types in groups of their own in the baseline of `idle`.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub own: u32,
    /// Partitions of each task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Duration of the idle measurement, and of each measurement of latency, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// Tasks per second of all other types during a flood or a restart.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Tasks of the flood of one type.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub flood: u64,
    /// Tasks of the hot type in each round.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub tasks: u64,
    /// Rounds of the hot type, in its own and in the shared group; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Workers of which one is restarted.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=50))]
    pub workers: u32,
    /// Concurrent attempts of each type in a worker.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
    /// Measure only this; may be repeated.
    #[arg(long, value_enum)]
    pub only: Vec<Measurement>,
}

impl TypesBench {
    fn measures(&self, part: Measurement) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let settings = [
            ("types", self.types.to_string()),
            ("partitions", self.partitions.to_string()),
            ("slots", self.slots.to_string()),
            ("params", "200 B".into()),
            ("linger", format!("{} ms", self.linger)),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

pub fn types(bench: &TypesBench, services: &Services) -> anyhow::Result<BenchReport> {
    let mut report = BenchReport::new("types", bench.settings());
    let services = services.linger(bench.linger);
    eprintln!("creating the topics of {} types", bench.types);
    // The first type has a group of its own, the others share one.
    let mut fleet = TypesFleet::prepare(bench, &services, bench.types + 1, 1)?;
    if bench.measures(Measurement::Idle) {
        idle::measure(&mut fleet, &mut report)?;
    }
    if bench.measures(Measurement::Flood) {
        flood::measure(&mut fleet, &mut report)?;
    }
    if bench.measures(Measurement::Hot) {
        hot::measure(&mut fleet, &mut report)?;
    }
    if bench.measures(Measurement::Restart) {
        restart::measure(&mut fleet, &mut report)?;
    }
    load::check_events(&fleet.topics, EVENTS_PARTITIONS, fleet.tasks)?;
    report.checked = true;
    Ok(report)
}

/// Topics of many types, and the workers that consume them.
struct TypesFleet {
    bench: TypesBench,
    services: Services,
    topics: BenchTopics,
    names: Vec<String>,
    /// Types with groups of their own, which are the first ones.
    own: u32,
    /// Number of tasks published so far.
    tasks: u64,
    /// Number of workers started so far.
    started: u32,
}

/// A worker process that has joined its groups.
struct TypesWorker {
    process: Process,
    /// Time from its start until it was ready.
    ready: Duration,
}

/// A worker to start, and the file that it creates once it has its partitions.
struct WorkerStart {
    role: ChildRole,
    ready: PathBuf,
}

impl WorkerStart {
    /// Starts the worker and waits until it has its partitions.
    fn run(self) -> anyhow::Result<TypesWorker> {
        let begun = Instant::now();
        let mut process = Process::start("worker", &self.role)?;
        while !self.ready.exists() {
            process.check()?;
            if begun.elapsed() > ROUND_DEADLINE {
                bail!("a worker was not ready after {} s", ROUND_DEADLINE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let ready = begun.elapsed();
        // Nothing else reads the file.
        let _ = std::fs::remove_file(self.ready);
        Ok(TypesWorker { process, ready })
    }
}

impl TypesFleet {
    fn prepare(bench: &TypesBench, services: &Services, types: u32, own: u32) -> anyhow::Result<Self> {
        let mut topics = BenchTopics::prepare(services, bench.partitions, EVENTS_PARTITIONS)?;
        let names = type_names(types);
        topics.topology.names = topics.topology.names.clone().with_groups(groups(&names, own));
        let specs: Vec<TopicSpec> = names
            .iter()
            .map(|name| topics.topology.names.tasks(name))
            .map(|name| TopicSpec { name, partitions: bench.partitions, replication: None, config: Vec::new() })
            .collect();
        for outcome in topics.broker.apply_topics(&specs, TOPICS_DEADLINE)? {
            if let TopicChange::Failed(error) = outcome.change {
                bail!("cannot create topic `{}`: {error}", outcome.name);
            }
        }
        Ok(Self { bench: bench.clone(), services: services.clone(), topics, names, own, tasks: 0, started: 0 })
    }

    /// Types that share the group.
    fn shared(&self) -> &[String] {
        &self.names[self.own as usize..]
    }

    fn role(&self, types: &[String], ready: Option<PathBuf>) -> ChildRole {
        ChildRole::Types {
            services: self.services.clone(),
            prefix: self.topics.topology.names.prefix.clone(),
            events_partitions: EVENTS_PARTITIONS,
            types: types.to_vec(),
            all: self.names.clone(),
            own: self.own,
            slots: self.bench.slots,
            ready,
        }
    }

    /// Returns the start of a worker of these types.
    fn worker_start(&mut self, types: &[String]) -> WorkerStart {
        self.started += 1;
        let ready = std::env::temp_dir().join(format!("{}-{}.ready", self.topics.topology.names.prefix, self.started));
        WorkerStart { role: self.role(types, Some(ready.clone())), ready }
    }

    /// Starts a worker of these types and waits until it has its partitions.
    fn worker(&mut self, types: &[String]) -> anyhow::Result<TypesWorker> {
        self.worker_start(types).run()
    }

    /// Returns the numbers of the next tasks.
    fn take_numbers(&mut self, tasks: u64) -> Range<u64> {
        let first = self.tasks;
        self.tasks += tasks;
        first..self.tasks
    }

    /// Publishes tasks of a type and waits for their acknowledgements.
    fn fill(&mut self, task_type: &str, tasks: u64) -> anyhow::Result<()> {
        let numbers = self.take_numbers(tasks);
        let filler = Filler::new(&self.topics)?;
        filler.tasks(&self.topics.topology.names, task_type, numbers, &load::params())?;
        filler.end()
    }
}

/// Groups of types: the first `own_groups` have groups of their own, the others share one.
pub(super) fn groups(names: &[String], own_groups: u32) -> TypeGroups {
    let own_groups = names.iter().take(own_groups as usize).map(|name| (name.clone(), name.clone()));
    TypeGroups { by_type: own_groups.collect(), default: Some(SHARED.to_owned()) }
}

/// The type with a group of its own.
fn own_type() -> String {
    NOOP.to_owned()
}
