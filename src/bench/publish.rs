//! `bench publish`: one process publishes tasks with tracking, each acknowledged twice, beside raw produce.

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, add_passes, measure};
use super::{BenchTopics, Common, NOOP, Report, Services, load};

#[derive(Clone, Debug, clap::Args)]
pub struct PublishBench {
    #[command(flatten)]
    pub common: Common,
}

/// What writes the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tracked,
    /// The same records, without waiting for the task before its event.
    Raw,
    /// The records of tasks alone.
    RawTasks,
}

pub fn publish(bench: &PublishBench, site: &Services) -> anyhow::Result<Report> {
    let (common, site) = (&bench.common, site.linger(bench.common.linger));
    let mut report = Report::new("publish", common.settings(&[]));
    eprintln!("warming up");
    for way in [Way::RawTasks, Way::Raw, Way::Tracked] {
        one_pass(way, &common.warm_up(), &site)?;
    }
    let (mut tracked, mut raw, mut raw_tasks) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        tracked.push(one_pass(Way::Tracked, common, &site)?);
        raw.push(one_pass(Way::Raw, common, &site)?);
        raw_tasks.push(one_pass(Way::RawTasks, common, &site)?);
    }
    add_passes(&mut report, "publish with tracking", common.tasks, &tracked);
    add_passes(&mut report, "raw produce of the same records", common.tasks, &raw);
    add_passes(&mut report, "raw produce of the tasks alone", common.tasks, &raw_tasks);
    let ratios = |ceiling: &[Round]| tracked.iter().zip(ceiling).map(|(pass, ceiling)| pass.rate / ceiling.rate).collect();
    report.add("tracked to raw tasks alone", "", ratios(&raw_tasks));
    report.add("tracked to raw of the same records", "", ratios(&raw));
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

/// The records of tasks, and where they are wanted those of their events, written into the topics of a round.
pub(super) fn raw_produce_pass(ground: &BenchTopics, common: &Common, site: &Services, events: bool) -> anyhow::Result<Round> {
    let (site, prefix) = (site.clone(), ground.names.prefix.clone());
    let process = Process::start("raw producer", &ChildRole::RawProduce { site, prefix, records: common.tasks, events })?;
    let (tasks, told) = (ground.names.tasks(NOOP), ground.names.events());
    measure(process, &ground.kafka, common.tasks, || {
        let written = ground.records(&tasks, common.partitions)?;
        // Whichever of the two is behind.
        Ok((if events { written.min(ground.records(&told, common.partitions)?) } else { written }, true))
    })
}

fn one_pass(way: Way, common: &Common, site: &Services) -> anyhow::Result<Round> {
    let ground = BenchTopics::prepare(site, common.partitions, common.partitions)?;
    if way != Way::Tracked {
        return raw_produce_pass(&ground, common, site, way == Way::Raw);
    }
    let (prefix, tasks) = (ground.names.prefix.clone(), common.tasks);
    let role = ChildRole::Publish { site: site.clone(), prefix, events_partitions: common.partitions, tasks };
    let (process, last) = (Process::start("publisher", &role)?, ground.names.events());
    let pass = measure(process, &ground.kafka, tasks, || Ok((ground.records(&last, common.partitions)?, true)))?;
    load::check_published(&ground, tasks)?;
    Ok(pass)
}
