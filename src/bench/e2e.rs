//! `bench e2e`: the whole tracked path. Publish with tracking, work, fold into Redis, all at once on this machine.

use std::time::Instant;

use super::baseline::{Baseline, add_ceilings};
use super::fleet::{BenchFleet, Spent, add_costs};
use super::{Common, EVENTS_PARTITIONS, Report, Services, check, load};

/// Tasks published by one call.
const CALL: u64 = 20_000;

#[derive(Clone, Debug, clap::Args)]
pub struct E2e {
    #[command(flatten)]
    pub common: Common,
}

struct E2eRound {
    ceiling: Baseline,
    rate: f64,
    publish_rate: f64,
    spent: Spent,
}

pub async fn e2e(bench: &E2e, site: &Services) -> anyhow::Result<Report> {
    let (common, site) = (&bench.common, site.linger(bench.common.linger));
    let settings = [("slots", common.slots.to_string()), ("events partitions", EVENTS_PARTITIONS.to_string())];
    let mut report = Report::new("e2e", common.settings(&settings));
    eprintln!("warming up");
    one_round(&common.warm_up(), &site).await?;
    let mut rounds = Vec::new();
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        rounds.push(one_round(common, &site).await?);
    }
    report.add("tracked path", "tasks/s", rounds.iter().map(|round| round.rate).collect());
    report.add("publish with tracking", "tasks/s", rounds.iter().map(|round| round.publish_rate).collect());
    let ceilings: Vec<Baseline> = rounds.iter().map(|round| round.ceiling).collect();
    let ratios = rounds.iter().map(|round| round.rate / round.ceiling.together()).collect();
    add_costs(&mut report, common.tasks, &rounds.into_iter().map(|round| round.spent).collect::<Vec<_>>());
    add_ceilings(&mut report, &ceilings);
    report.add("tracked path to these", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

async fn one_round(common: &Common, site: &Services) -> anyhow::Result<E2eRound> {
    let mut stage = BenchFleet::open(site, common.partitions, common.slots).await?;
    let (from, began, mut next) = (stage.costs().await?, Instant::now(), 0);
    while next < common.tasks {
        let end = (next + CALL).min(common.tasks);
        load::publish(&stage.publisher, "bench", next..end).await?;
        next = end;
    }
    let published = began.elapsed();
    stage.wait_for(common.tasks + 1).await?;
    let took = began.elapsed();
    let to = stage.costs().await?;
    check::exactly_once(&stage.store, EVENTS_PARTITIONS, (0..common.tasks).map(load::id), common.tasks + 1).await?;
    let bytes = stage.record_bytes().await?;
    stage.close().await?;
    Ok(E2eRound {
        ceiling: Baseline::measure(common, site, bytes).await?,
        rate: common.tasks as f64 / took.as_secs_f64(),
        publish_rate: common.tasks as f64 / published.as_secs_f64(),
        spent: Spent { from, to },
    })
}
