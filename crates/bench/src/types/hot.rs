//! Rate of a hot type in a shared group with many idle types; baseline: the same in a group of its own.

use anyhow::bail;

use super::{TypesFleet, own_type};
use crate::process::Process;
use crate::round::{self, Round, add_rounds};
use crate::{BenchReport, EVENTS_PARTITIONS};

pub(super) fn measure(fleet: &mut TypesFleet, report: &mut BenchReport) -> anyhow::Result<()> {
    let shared = fleet.shared().to_vec();
    let [hot, idle @ ..] = shared.as_slice() else { bail!("there are no types") };
    let (mut in_shared, mut in_own) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=fleet.bench.rounds {
        eprintln!("hot type: round {round} of {}", fleet.bench.rounds);
        let mut variants = [(hot.clone(), &mut in_shared), (own_type(), &mut in_own)];
        if round % 2 == 1 {
            variants.reverse();
        }
        for (task_type, rounds) in variants {
            let measured = drain(fleet, &task_type, idle)?;
            if round > 0 {
                rounds.push(measured);
            }
        }
    }
    let tasks = fleet.bench.tasks;
    add_rounds(report, "hot type in the shared group", tasks, &in_shared);
    add_rounds(report, "hot type in its own group", tasks, &in_own);
    let ratios = in_shared.iter().zip(&in_own).map(|(shared, separate)| shared.rate / separate.rate).collect();
    report.add("shared to own group", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    Ok(())
}

/// Drains a backlog of the type in a worker that also has idle types.
fn drain(fleet: &mut TypesFleet, hot: &str, idle: &[String]) -> anyhow::Result<Round> {
    let tasks = fleet.bench.tasks;
    fleet.fill(hot, tasks)?;
    let events = fleet.topics.topology.names.events();
    let before = fleet.topics.records(&events, EVENTS_PARTITIONS)?;
    // Connects the commit reader before the measurement.
    fleet.topics.is_committed(hot)?;
    let types: Vec<String> = [hot.to_owned()].into_iter().chain(idle.iter().cloned()).collect();
    let process = Process::start("worker", &fleet.role(&types, None))?;
    round::measure(process, &fleet.topics.kafka, tasks, || {
        let written = fleet.topics.records(&events, EVENTS_PARTITIONS)?.saturating_sub(before);
        Ok((written, written >= tasks && fleet.topics.is_committed(hot)?))
    })
}
