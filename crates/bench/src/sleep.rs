//! `bench sleep`: many concurrent attempts in one worker process, each sleeping for the same time.

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, measure};
use super::{BenchReport, BenchTopics, NOOP, Services, load, mib, micros};

/// Number of events per task: `started` and `succeeded`.
const EVENTS: u64 = 2;

#[derive(Clone, Debug, clap::Args)]
pub struct Sleep {
    /// Concurrent attempts: the size of a wave.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// Waves in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub waves: u64,
    /// Sleep time of each task, in milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub millis: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Sleep {
    fn default() -> Self {
        Self { slots: 10_000, waves: 5, millis: 1_000, rounds: 3, partitions: 4, linger: 5 }
    }
}

pub fn sleep(bench: &Sleep, services: &Services) -> anyhow::Result<BenchReport> {
    let services = services.linger(bench.linger);
    let tasks = bench.waves * u64::from(bench.slots);
    let settings = [
        ("tasks", tasks.to_string()),
        ("at once", bench.slots.to_string()),
        ("each sleeps", format!("{} ms", bench.millis)),
        ("partitions", bench.partitions.to_string()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = BenchReport::new("sleep", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        let topics = BenchTopics::prepare(&services, bench.partitions, bench.partitions)?;
        load::fill(&topics, tasks)?;
        rounds.push(measure_round(&topics, bench, tasks, &services)?);
        load::check_events(&topics, bench.partitions, tasks)?;
    }
    let waves = rounds.iter().map(|round| (tasks * EVENTS) as f64 / round.rate / bench.waves as f64);
    report.add("time of a wave", "s", waves.collect());
    report.add("worker CPU", "µs/task", rounds.iter().map(|round| micros(round.cost.cpu, tasks)).collect());
    report.add("worker peak memory", "MiB", rounds.iter().map(|round| mib(round.cost.peak_bytes)).collect());
    report.checked = true;
    Ok(report)
}

/// Measures from the first events to the last one acknowledged and committed.
fn measure_round(topics: &BenchTopics, bench: &Sleep, tasks: u64, services: &Services) -> anyhow::Result<Round> {
    let role = ChildRole::Sleeper {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: bench.partitions,
        types: 1,
        slots: bench.slots,
        sleep_ms: bench.millis,
    };
    let process = Process::start("worker", &role)?;
    let events = topics.topology.names.events();
    measure(process, &topics.kafka, tasks * EVENTS, || {
        let written = topics.records(&events, bench.partitions)?;
        Ok((written, written >= tasks * EVENTS && topics.is_committed(NOOP)?))
    })
}
