//! `bench e2e`: the whole tracked path (publish, run, project into Redis), all at once on this machine.

use std::time::Instant;

use kafleet_fleet::publish::Publisher;

use super::baseline::{Baseline, add_baselines};
use super::fleet::{BenchFleet, SpentCosts, add_costs};
use super::{BenchReport, Common, EVENTS_PARTITIONS, Services, check, load};

/// Tasks per publish call.
const TASKS_PER_CALL: u64 = 20_000;

#[derive(Clone, Debug, clap::Args)]
pub struct E2e {
    #[command(flatten)]
    pub common: Common,
}

struct E2eRound {
    baseline: Baseline,
    rate: f64,
    publish_rate: f64,
    spent: SpentCosts,
}

pub async fn e2e(bench: &E2e, services: &Services) -> anyhow::Result<BenchReport> {
    let common = &bench.common;
    let services = services.linger(bench.common.linger);
    let settings = [("slots", common.slots.to_string()), ("events partitions", EVENTS_PARTITIONS.to_string())];
    let mut report = BenchReport::new("e2e", common.settings(&settings));
    eprintln!("warming up");
    one_round(&common.warm_up(), &services).await?;
    let mut rounds = Vec::new();
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        rounds.push(one_round(common, &services).await?);
    }
    report.add("tracked path", "tasks/s", rounds.iter().map(|round| round.rate).collect());
    report.add("publish with tracking", "tasks/s", rounds.iter().map(|round| round.publish_rate).collect());
    let baselines: Vec<Baseline> = rounds.iter().map(|round| round.baseline).collect();
    let ratios = rounds.iter().map(|round| round.rate / round.baseline.together()).collect();
    add_costs(&mut report, common.tasks, &rounds.into_iter().map(|round| round.spent).collect::<Vec<_>>());
    add_baselines(&mut report, &baselines);
    report.add("tracked path to baselines", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

async fn one_round(common: &Common, services: &Services) -> anyhow::Result<E2eRound> {
    let mut fleet = BenchFleet::open(services, common.partitions, common.slots).await?;
    let from = fleet.costs().await?;
    let started = Instant::now();
    publish_all(&fleet.publisher, common.tasks).await?;
    let published = started.elapsed();
    fleet.wait_for(common.tasks + 1).await?;
    let took = started.elapsed();
    let to = fleet.costs().await?;
    check::exactly_once(&fleet.store, EVENTS_PARTITIONS, (0..common.tasks).map(load::id), common.tasks + 1).await?;
    let bytes = fleet.record_bytes().await?;
    fleet.close().await?;
    Ok(E2eRound {
        baseline: Baseline::measure(common, services, bytes).await?,
        rate: common.tasks as f64 / took.as_secs_f64(),
        publish_rate: common.tasks as f64 / published.as_secs_f64(),
        spent: SpentCosts { from, to },
    })
}

async fn publish_all(publisher: &Publisher, tasks: u64) -> anyhow::Result<()> {
    let mut next = 0;
    while next < tasks {
        let end = (next + TASKS_PER_CALL).min(tasks);
        load::publish(publisher, "bench", next..end).await?;
        next = end;
    }
    Ok(())
}
