//! `bench tracker`: one tracker process projects an existing log into Redis. Baseline: plain writes of the same bytes.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kafleet_model::record::state::State;
use kafleet_model::task::partition::events_partition_of;
use kafleet_store::Store;
use kafleet_store::redis::{Redis, Usage};

use super::baseline::plain_write_rate;
use super::child_role::ChildRole;
use super::fleet::partitions;
use super::load::{EventLog, Shape};
use super::process::Process;
use super::round::{Round, add_rounds, measure};
use super::{BenchReport, BenchTopics, Common, EVENTS_PARTITIONS, Services, blocking, check, micros};

#[derive(Clone, Debug, clap::Args)]
pub struct TrackerBench {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub shape: Shape,
    /// Number of tasks submitted before the first of them succeeds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub window: u64,
}

struct TrackerRound {
    projection: Round,
    redis_cpu: Duration,
    redis_bytes: u64,
    plain_rate: f64,
    version: String,
}

pub async fn tracker(bench: &TrackerBench, services: &Services) -> anyhow::Result<BenchReport> {
    let common = &bench.common;
    let services = services.linger(bench.common.linger);
    let settings = [
        ("events", format!("{} a task", bench.shape.events())),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("roots", if bench.shape.roots == 0 { "each task".into() } else { bench.shape.roots.to_string() }),
        ("depth", bench.shape.depth.to_string()),
        ("window", bench.window.to_string()),
        ("batch events", services.tracker.batch_events.to_string()),
    ];
    let mut report = BenchReport::new("tracker", common.settings(&settings));
    eprintln!("warming up");
    one_round(&TrackerBench { common: common.warm_up(), ..bench.clone() }, &services).await?;
    let mut rounds = Vec::new();
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        rounds.push(one_round(bench, &services).await?);
    }
    report.add(
        "projection",
        "events/s",
        rounds.iter().map(|round| bench.shape.events() as f64 * round.projection.rate).collect(),
    );
    let projections: Vec<Round> = rounds.iter().map(|round| round.projection).collect();
    add_rounds(&mut report, "tracker", common.tasks, &projections);
    report.add("redis CPU", "µs/task", rounds.iter().map(|round| micros(round.redis_cpu, common.tasks)).collect());
    let bytes = rounds.iter().map(|round| round.redis_bytes as f64 / common.tasks as f64);
    report.add("redis memory", "B/task", bytes.collect());
    report.add("plain writes to redis", "tasks/s", rounds.iter().map(|round| round.plain_rate).collect());
    report.add(
        "projection to plain writes",
        "",
        rounds.iter().map(|round| round.projection.rate / round.plain_rate).collect(),
    );
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.redis = rounds.last().map(|round| round.version.clone());
    report.checked = true;
    Ok(report)
}

async fn one_round(bench: &TrackerBench, services: &Services) -> anyhow::Result<TrackerRound> {
    let log = EventLog { tasks: bench.common.tasks, window: bench.window, shape: bench.shape };
    let topics = log.prepare(services, bench.common.partitions).await?;
    let store = services.redis(&topics.topology.names.prefix)?;
    let before = store.usage().await?;
    let projection = projection(services, &topics, &store, log).await?;
    let after = store.usage().await?;
    check_all(&store, log).await?;
    let bytes = record_bytes(&store, log).await?;
    let plain_rate = plain_write_rate(&store, log.tasks, bytes).await?;
    store.clear().await?;
    Ok(TrackerRound::of(projection, plain_rate, &before, after))
}

impl TrackerRound {
    fn of(projection: Round, plain_rate: f64, before: &Usage, after: Usage) -> Self {
        Self {
            projection,
            redis_cpu: after.cpu.saturating_sub(before.cpu),
            redis_bytes: after.memory_bytes.saturating_sub(before.memory_bytes),
            plain_rate,
            version: after.version,
        }
    }
}

/// Measures the projection of the log, in tasks with all their events.
async fn projection(services: &Services, topics: &BenchTopics, store: &Redis, log: EventLog) -> anyhow::Result<Round> {
    let role = ChildRole::Tracker {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: EVENTS_PARTITIONS,
    };
    let kafka = topics.kafka.clone();
    let store = store.clone();
    let process = Process::start("tracker", &role)?;
    let runtime = tokio::runtime::Handle::current();
    let extra = log.extra_events();
    let each = log.shape.events();
    let progress = move || {
        let checkpoints = runtime.block_on(store.checkpoints(&partitions()))?;
        let projected: i64 = checkpoints.into_iter().flatten().map(|checkpoint| checkpoint.offset).sum();
        Ok(((projected.max(0) as u64).saturating_sub(extra) / each, true))
    };
    blocking(move || measure(process, &kafka, log.tasks, progress)).await
}

async fn check_all(store: &Redis, log: EventLog) -> anyhow::Result<()> {
    let EventLog { tasks, shape, .. } = log;
    check::exactly_once(store, EVENTS_PARTITIONS, (0..tasks).map(|n| shape.id(n)), tasks + shape.roots).await?;
    let mut below = 0;
    for root in (0..shape.roots).map(Shape::root) {
        let root = root?;
        let roots = store
            .task_records(events_partition_of(root.root(), EVENTS_PARTITIONS), std::slice::from_ref(&root))
            .await?;
        let task = roots.into_iter().next().flatten().with_context(|| format!("the root `{root}` is missing"))?;
        if task.state != State::Succeeded {
            bail!("the root `{root}` is {}", task.state.name());
        }
        below += kafleet_model::record::rollup::children_of(&task.tree.below).2.total();
    }
    if shape.roots > 0 && below != tasks {
        bail!("the roots count {below} descendants instead of {tasks}");
    }
    Ok(())
}

/// Size of a record in the store.
async fn record_bytes(store: &Redis, log: EventLog) -> anyhow::Result<usize> {
    let id = log.shape.id(0)?;
    let partition = events_partition_of(id.root(), EVENTS_PARTITIONS);
    let tasks = store.task_records(partition, &[id]).await?;
    Ok(tasks.into_iter().flatten().next().context("the first task is missing")?.encode()?.len())
}
