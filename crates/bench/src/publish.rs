//! `bench publish`: one process publishes tracked tasks (two acknowledged records each). Baseline: plain produce.

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, add_rounds, measure};
use super::{BenchReport, BenchTopics, Common, NOOP, Services, load};

#[derive(Clone, Debug, clap::Args)]
pub struct PublishBench {
    #[command(flatten)]
    pub common: Common,
}

/// Manner of writing the records: with tracking, or one of the two baselines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishMode {
    /// Task and event through the publisher.
    Tracked,
    /// Plain produce of the same records, without waiting for the task's acknowledgement before its event.
    Raw,
    /// Plain produce of the task records only.
    RawTasks,
}

pub fn publish(bench: &PublishBench, services: &Services) -> anyhow::Result<BenchReport> {
    let common = &bench.common;
    let services = services.linger(bench.common.linger);
    let mut report = BenchReport::new("publish", common.settings(&[]));
    eprintln!("warming up");
    for mode in [PublishMode::RawTasks, PublishMode::Raw, PublishMode::Tracked] {
        one_round(mode, &common.warm_up(), &services)?;
    }
    let mut tracked = Vec::new();
    let mut raw = Vec::new();
    let mut raw_tasks = Vec::new();
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        tracked.push(one_round(PublishMode::Tracked, common, &services)?);
        raw.push(one_round(PublishMode::Raw, common, &services)?);
        raw_tasks.push(one_round(PublishMode::RawTasks, common, &services)?);
    }
    add_rounds(&mut report, "publish with tracking", common.tasks, &tracked);
    add_rounds(&mut report, "raw produce of the same records", common.tasks, &raw);
    add_rounds(&mut report, "raw produce of the tasks alone", common.tasks, &raw_tasks);
    let ratios =
        |baseline: &[Round]| tracked.iter().zip(baseline).map(|(round, baseline)| round.rate / baseline.rate).collect();
    report.add("tracked to raw tasks alone", "", ratios(&raw_tasks));
    report.add("tracked to raw of the same records", "", ratios(&raw));
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

/// Measures plain produce of task records, and optionally their events, into the topics of a round.
pub(super) fn raw_produce_round(
    topics: &BenchTopics,
    common: &Common,
    services: &Services,
    events: bool,
) -> anyhow::Result<Round> {
    let services = services.clone();
    let prefix = topics.topology.names.prefix.clone();
    let process =
        Process::start("raw producer", &ChildRole::RawProduce { services, prefix, records: common.tasks, events })?;
    let tasks = topics.topology.names.tasks(NOOP);
    let events_topic = topics.topology.names.events();
    measure(process, &topics.kafka, common.tasks, || {
        let written = topics.records(&tasks, common.partitions)?;
        // A task counts once it is in both topics.
        Ok((if events { written.min(topics.records(&events_topic, common.partitions)?) } else { written }, true))
    })
}

fn one_round(mode: PublishMode, common: &Common, services: &Services) -> anyhow::Result<Round> {
    let topics = BenchTopics::prepare(services, common.partitions, common.partitions)?;
    if mode != PublishMode::Tracked {
        return raw_produce_round(&topics, common, services, mode == PublishMode::Raw);
    }
    let prefix = topics.topology.names.prefix.clone();
    let tasks = common.tasks;
    let role = ChildRole::Publish { services: services.clone(), prefix, events_partitions: common.partitions, tasks };
    let process = Process::start("publisher", &role)?;
    let last = topics.topology.names.events();
    let round = measure(process, &topics.kafka, tasks, || Ok((topics.records(&last, common.partitions)?, true)))?;
    load::check_published(&topics, tasks)?;
    Ok(round)
}
