//! `bench fanin`: time from the submission of a parent until its success, with all its children, is visible in the
//! store.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt;
use kafleet_model::json::RawJson;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::children_of;
use kafleet_model::record::state::State;
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::Store;

use super::baseline::{Baseline, add_baselines};
use super::fleet::{BenchFleet, SpentCosts, add_costs};
use super::{BenchReport, Common, FAN, ROUND_DEADLINE, Services};

#[derive(Clone, Debug, clap::Args)]
pub struct Fanin {
    /// Children of each parent.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub children: u64,
    /// Number of parents, run one after the other; the median is reported.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Fanin {
    fn default() -> Self {
        Self { children: 10_000, rounds: 7, partitions: 4, linger: 1 }
    }
}

/// Number of records and of rounds of the baselines.
const BASELINE_TASKS: u64 = 200_000;
const BASELINE_ROUNDS: u32 = 3;

pub async fn fanin(bench: &Fanin, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("children", bench.children.to_string()),
        ("partitions", bench.partitions.to_string()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = BenchReport::new("fanin", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut fleet = BenchFleet::open(&services.linger(bench.linger), bench.partitions, 2_000).await?;
    eprintln!("warming up");
    for n in 0..2 {
        one_parent(&mut fleet, &format!("warm-{n}"), bench.children).await?;
    }
    let mut took = Vec::new();
    let mut spent = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("parent {round} of {}", bench.rounds);
        let from = fleet.costs().await?;
        took.push(one_parent(&mut fleet, &format!("bench-{round}"), bench.children).await?.as_secs_f64() * 1e3);
        spent.push(SpentCosts { from, to: fleet.costs().await? });
    }
    let bytes = fleet.record_bytes().await?;
    fleet.close().await?;
    let common =
        Common { tasks: BASELINE_TASKS, partitions: bench.partitions, linger: bench.linger, ..Common::default() };
    let mut baselines = Vec::new();
    for _ in 0..BASELINE_ROUNDS {
        baselines.push(Baseline::measure(&common, &services.linger(bench.linger), bytes).await?);
    }
    report.add("submit to visible success of the parent", "ms", took);
    add_costs(&mut report, bench.children, &spent);
    add_baselines(&mut report, &baselines);
    let expected = baselines.iter().map(|baseline| bench.children as f64 / baseline.together() * 1e3).collect();
    report.add("all baselines for the same number of records", "ms", expected);
    report.checked = true;
    Ok(report)
}

async fn one_parent(fleet: &mut BenchFleet, id: &str, children: u64) -> anyhow::Result<Duration> {
    let id = TaskId::parse(id)?;
    let partition = fleet.publisher.topology.partition_of(&id);
    let mut notices = fleet.store.notices().await?;
    let parent = TaskSpec::new(id.clone(), FAN, RawJson::of(&children)?);
    let started = Instant::now();
    let until = Instant::now() + ROUND_DEADLINE;
    fleet.publisher.publish(parent, now_ms()).await?;
    loop {
        let parent_task =
            fleet.store.task_records(partition, std::slice::from_ref(&id)).await?.into_iter().flatten().next();
        if let Some(task) = parent_task.filter(|task| task.state.is_terminal()) {
            let took = started.elapsed();
            check(&task, children)?;
            return Ok(took);
        }
        if Instant::now() > until {
            bail!("`{id}` has not ended after {} s", ROUND_DEADLINE.as_secs());
        }
        fleet.check_processes()?;
        // Notices may be lost: the record is read at least every second.
        if let Ok(notice) = tokio::time::timeout(Duration::from_secs(1), notices.next()).await {
            notice.context("the notices have ended")?;
        }
    }
}

fn check(task: &TaskRecord, children: u64) -> anyhow::Result<()> {
    let (counts, _, tree) = children_of(&task.tree.below);
    let good = task.state == State::Succeeded && counts.get(State::Succeeded) == children;
    if !good || tree.total() != children {
        bail!("the parent is {} with {} children instead of {children}", task.state.name(), tree.total());
    }
    Ok(())
}
