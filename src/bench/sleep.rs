//! `bench sleep`: many attempts at once in one worker process, each waiting for the same time.

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, measure};
use super::{BenchTopics, NOOP, Report, Services, load, mib, micros};

/// Events of a task that takes longer than a moment: that it has started, and how it ended.
const EVENTS: u64 = 2;

#[derive(Clone, Debug, clap::Args)]
pub struct Sleep {
    /// Attempts at once: a wave.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: u32,
    /// Waves in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub waves: u64,
    /// How long each task sleeps, in milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub millis: u64,
    /// Rounds; the median is what counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// How long producers gather records (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Sleep {
    fn default() -> Self {
        Self { slots: 10_000, waves: 5, millis: 1_000, rounds: 3, partitions: 4, linger: 5 }
    }
}

pub fn sleep(bench: &Sleep, site: &Services) -> anyhow::Result<Report> {
    let (site, tasks) = (site.linger(bench.linger), bench.waves * u64::from(bench.slots));
    let settings = [
        ("tasks", tasks.to_string()),
        ("at once", bench.slots.to_string()),
        ("each sleeps", format!("{} ms", bench.millis)),
        ("partitions", bench.partitions.to_string()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = Report::new("sleep", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut passes = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        let ground = BenchTopics::prepare(&site, bench.partitions, bench.partitions)?;
        load::fill(&ground, tasks)?;
        passes.push(pass(&ground, bench, tasks, &site)?);
        load::check_events(&ground, bench.partitions, tasks)?;
    }
    let waves = passes.iter().map(|pass| (tasks * EVENTS) as f64 / pass.rate / bench.waves as f64);
    report.add("time of a wave", "s", waves.collect());
    report.add("worker CPU", "µs/task", passes.iter().map(|pass| micros(pass.cost.cpu, tasks)).collect());
    report.add("worker peak memory", "MiB", passes.iter().map(|pass| mib(pass.cost.peak_bytes)).collect());
    report.checked = true;
    Ok(report)
}

/// From the first events to the last one acknowledged and committed.
fn pass(ground: &BenchTopics, bench: &Sleep, tasks: u64, site: &Services) -> anyhow::Result<Round> {
    let role = ChildRole::Napper {
        site: site.clone(),
        prefix: ground.names.prefix.clone(),
        events_partitions: bench.partitions,
        types: 1,
        slots: bench.slots,
        nap_ms: bench.millis,
    };
    let process = Process::start("worker", &role)?;
    let events = ground.names.events();
    measure(process, &ground.kafka, tasks * EVENTS, || {
        let written = ground.records(&events, bench.partitions)?;
        Ok((written, written >= tasks * EVENTS && ground.is_committed(NOOP)?))
    })
}
