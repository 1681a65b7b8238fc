//! `bench fanin`: a parent that spawns its children, and how long it takes from its submission until its success, which is
//! that of all of them, can be read from the store.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt;

use super::baseline::{Baseline, add_ceilings};
use super::fleet::{BenchFleet, Spent, add_costs};
use super::{Common, FAN, ROUND_DEADLINE, Report, Services};
use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::publish::NewTask;
use crate::runtime::now_ms;
use crate::store::Store;

#[derive(Clone, Debug, clap::Args)]
pub struct Fanin {
    /// Children of each parent.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub children: u64,
    /// Parents, one after the other; the median is what counts.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// How long producers gather records (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Fanin {
    fn default() -> Self {
        Self { children: 10_000, rounds: 7, partitions: 4, linger: 1 }
    }
}

/// Records that the ceilings are taken from, and how often.
const CEILING_TASKS: u64 = 200_000;
const CEILING_ROUNDS: u32 = 3;

pub async fn fanin(bench: &Fanin, site: &Services) -> anyhow::Result<Report> {
    let settings = [
        ("children", bench.children.to_string()),
        ("partitions", bench.partitions.to_string()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = Report::new("fanin", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut stage = BenchFleet::open(&site.linger(bench.linger), bench.partitions, 2_000).await?;
    eprintln!("warming up");
    for n in 0..2 {
        one_parent(&mut stage, &format!("warm-{n}"), bench.children).await?;
    }
    let (mut took, mut spent) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        eprintln!("parent {round} of {}", bench.rounds);
        let from = stage.costs().await?;
        took.push(one_parent(&mut stage, &format!("bench-{round}"), bench.children).await?.as_secs_f64() * 1e3);
        spent.push(Spent { from, to: stage.costs().await? });
    }
    let bytes = stage.record_bytes().await?;
    stage.close().await?;
    let common = Common { tasks: CEILING_TASKS, partitions: bench.partitions, linger: bench.linger, ..Common::default() };
    let mut ceilings = Vec::new();
    for _ in 0..CEILING_ROUNDS {
        ceilings.push(Baseline::measure(&common, &site.linger(bench.linger), bytes).await?);
    }
    report.add("submit to visible success of the parent", "ms", took);
    add_costs(&mut report, bench.children, &spent);
    add_ceilings(&mut report, &ceilings);
    let least = ceilings.iter().map(|ceiling| bench.children as f64 / ceiling.together() * 1e3).collect();
    report.add("these three for as many records", "ms", least);
    report.checked = true;
    Ok(report)
}

async fn one_parent(stage: &mut BenchFleet, id: &str, children: u64) -> anyhow::Result<Duration> {
    let id = TaskId::parse(id)?;
    let partition = stage.publisher.partition_of(&id);
    let mut notices = stage.store.notices().await?;
    let mut parent = NewTask::new(FAN, RawJson::of(&children)?);
    parent.id = Some(id.clone());
    let (began, until) = (Instant::now(), Instant::now() + ROUND_DEADLINE);
    stage.publisher.publish(parent, now_ms()).await?;
    loop {
        let found = stage.store.nodes(partition, std::slice::from_ref(&id)).await?.into_iter().flatten().next();
        if let Some(node) = found.filter(|node| node.state.is_terminal()) {
            let took = began.elapsed();
            check(&node, children)?;
            return Ok(took);
        }
        if Instant::now() > until {
            bail!("`{id}` is not done after {} s", ROUND_DEADLINE.as_secs());
        }
        stage.check_processes()?;
        // A notice is a hint; whoever waits looks every second without one.
        if let Ok(notice) = tokio::time::timeout(Duration::from_secs(1), notices.next()).await {
            notice.context("the notices have ended")?;
        }
    }
}

fn check(node: &TaskRecord, children: u64) -> anyhow::Result<()> {
    let (counts, _, tree) = children_of(&node.below);
    let good = node.state == State::Succeeded && counts.get(State::Succeeded) == children;
    if !good || tree.total() != children {
        bail!("the parent is {} with {} children instead of {children}", node.state.name(), tree.total());
    }
    Ok(())
}
