//! `bench batch`: a handler that takes 2 ms a call, with one task in each call and with many, and a batch with one bad task.

use std::collections::BTreeMap;

use kafleet_model::event::Kind;

use super::batch_rows::CALL;
use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, add_rounds, measure};
use super::{BenchReport, BenchTopics, NOOP, Services, load};

/// Tasks in batches for each single one: both take about as long.
const BATCHED_PER_SINGLE: u64 = 50;
/// Tasks of the round with a bad one, and the number of that one.
const TASKS_WITH_BAD: u64 = 10_000;
const BAD: u64 = 5_000;

#[derive(Clone, Debug, clap::Args)]
pub struct BatchBench {
    /// Tasks in batches in each round; a fiftieth of them runs singly.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(50_000..=100_000_000))]
    pub tasks: u64,
    /// Maximum number of tasks in a call.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub max: u32,
    /// Calls at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub slots: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
}

/// Measures calls with one task and with many, and checks that a bad task takes no attempt of another one.
///
/// # Errors
/// Kafka cannot be used, the worker ends, or a task does not end exactly once, at its first attempt.
pub fn batch(bench: &BatchBench, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("tasks", bench.tasks.to_string()),
        ("call", format!("{} ms", CALL.as_millis())),
        ("tasks in a call", bench.max.to_string()),
        ("slots", bench.slots.to_string()),
        ("partitions", bench.partitions.to_string()),
    ];
    let mut report = BenchReport::new("batch", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let singles = bench.tasks / BATCHED_PER_SINGLE;
    let (mut batched, mut single) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        single.push(drain_good(bench, services, singles, None)?);
        batched.push(drain_good(bench, services, bench.tasks, Some(bench.max))?);
    }
    add_rounds(&mut report, "batches", bench.tasks, &batched);
    add_rounds(&mut report, "single calls", singles, &single);
    let ratios = batched.iter().zip(&single).map(|(batched, single)| batched.rate / single.rate).collect();
    report.add("batches to single calls", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    let repeated = with_bad_task(bench, services)?;
    report.budget("further attempts beside a bad task", "attempts", vec![repeated as f64], 0.0);
    report.checked = true;
    Ok(report)
}

/// Drains a backlog, whose tasks all succeed. `max`: tasks in a call; `None`: one.
fn drain_good(bench: &BatchBench, services: &Services, tasks: u64, max: Option<u32>) -> anyhow::Result<Round> {
    let (topics, round) = drain(bench, services, tasks, max, None)?;
    load::check_events(&topics, bench.partitions, tasks)?;
    Ok(round)
}

/// Drains a backlog. Calls with the task `bad` fail.
fn drain(
    bench: &BatchBench,
    services: &Services,
    tasks: u64,
    max: Option<u32>,
    bad: Option<String>,
) -> anyhow::Result<(BenchTopics, Round)> {
    let topics = BenchTopics::prepare(services, bench.partitions, bench.partitions)?;
    load::fill(&topics, tasks)?;
    let process = start(&topics, bench, services, max, bad)?;
    let events = topics.topology.names.events();
    let round = measure(process, &topics.kafka, tasks, || {
        let written = topics.records(&events, bench.partitions)?.min(tasks);
        Ok((written, written >= tasks && topics.is_committed(NOOP)?))
    })?;
    Ok((topics, round))
}

/// Drains a backlog with one bad task, whose calls fail as a whole. Returns the attempts of the others above one for each.
fn with_bad_task(bench: &BatchBench, services: &Services) -> anyhow::Result<u64> {
    eprintln!("with one bad task of {TASKS_WITH_BAD}");
    let bad = load::id(BAD)?.to_string();
    let (topics, _) = drain(bench, services, TASKS_WITH_BAD, Some(bench.max), Some(bad.clone()))?;
    // Ends of each task: whether it has succeeded.
    let (mut ends, mut repeated) = (BTreeMap::<String, Vec<bool>>::new(), 0);
    load::read_events(&topics, bench.partitions, |event| {
        let Some(event) = event.filter(|event| [Kind::Succeeded, Kind::Failed].contains(&event.kind())) else { return };
        if event.id.as_str() != bad {
            repeated += u64::from(event.attempt.saturating_sub(1));
        }
        ends.entry(event.id.to_string()).or_default().push(event.kind() == Kind::Succeeded);
    })?;
    let has_failed = ends.remove(&bad) == Some(vec![false]);
    let succeeded = ends.values().filter(|ends| **ends == [true]).count() as u64;
    if !has_failed || succeeded != TASKS_WITH_BAD - 1 {
        anyhow::bail!("beside a bad task, {succeeded} of {} tasks succeeded once", TASKS_WITH_BAD - 1);
    }
    Ok(repeated)
}

fn start(
    topics: &BenchTopics,
    bench: &BatchBench,
    services: &Services,
    max: Option<u32>,
    bad: Option<String>,
) -> anyhow::Result<Process> {
    // Connects the commit reader before the measurement.
    topics.is_committed(NOOP)?;
    let (services, prefix) = (services.clone(), topics.topology.names.prefix.clone());
    let (events_partitions, slots) = (bench.partitions, bench.slots);
    Process::start("worker", &ChildRole::Batches { services, prefix, events_partitions, slots, max, bad })
}
