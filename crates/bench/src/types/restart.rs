//! Restart of one of several workers of a shared group, under a steady load: the partitions that move, and the attempts
//! that are repeated; baseline: the same load before the restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_fleet::control::follow::TopicFollower;
use kafleet_fleet::control::heartbeat::{HeartbeatState, WorkerRegistry, listen};

use super::steady::Observer;
use super::{TypesFleet, TypesWorker};
use crate::latency::percentile;
use crate::{BenchReport, ROUND_DEADLINE};

/// Worker of each partition, by type.
type Owners = BTreeMap<(String, i32), String>;

pub(super) fn measure(fleet: &mut TypesFleet, report: &mut BenchReport) -> anyhow::Result<()> {
    let shared = fleet.shared().to_vec();
    let count = fleet.bench.workers as usize;
    let ownership = Ownership::observe(fleet);
    eprintln!("restart: starting {count} workers");
    let mut workers: Vec<TypesWorker> = (0..count).map(|_| fleet.worker(&shared)).collect::<Result<_, _>>()?;
    ownership.wait(fleet, count)?;
    let length = Duration::from_secs(fleet.bench.seconds);
    let without = Observer::new(fleet)?.run(fleet, &shared, |_, passed| Ok(passed >= length))?;
    eprintln!("restart: restarting one worker");
    let before = ownership.wait(fleet, count)?;
    let restarted = workers.pop().context("there is no worker")?;
    let start = fleet.worker_start(&shared);
    let restarting = std::thread::spawn(move || -> anyhow::Result<(Duration, TypesWorker)> {
        let begun = Instant::now();
        restarted.process.stop()?;
        let successor = start.run()?;
        Ok((begun.elapsed(), successor))
    });
    let during =
        Observer::new(fleet)?.run(fleet, &shared, |_, passed| Ok(passed >= length && restarting.is_finished()))?;
    let Ok(joined) = restarting.join() else { bail!("the restart has panicked") };
    let (took, successor) = joined?;
    workers.push(successor);
    let after = ownership.wait(fleet, count)?;
    for worker in workers {
        worker.process.stop()?;
    }
    report.add("stop and start of one worker", "s", vec![took.as_secs_f64()]);
    add_moves(report, &before, &after);
    report.add("repeated attempts", "", vec![(without.repeated + during.repeated) as f64]);
    for (name, observed) in [("before", without), ("during", during)] {
        report.add(&format!("submit to start {name} the restart p99"), "ms", vec![percentile(observed.latencies, 990)]);
    }
    Ok(())
}

/// Adds the numbers of partitions that had to move, and of those that moved between other workers.
fn add_moves(report: &mut BenchReport, before: &Owners, after: &Owners) {
    let is_gone = |worker: &String| !after.values().any(|owner| owner == worker);
    let is_new = |worker: &String| !before.values().any(|owner| owner == worker);
    let moves = before.iter().filter_map(|(partition, from)| Some((from, after.get(partition)?)));
    let moves: Vec<(&String, &String)> = moves.filter(|(from, to)| from != to).collect();
    let (had_to, others): (Vec<_>, Vec<_>) = moves.into_iter().partition(|(from, to)| is_gone(from) || is_new(to));
    let of_restarted = before.values().filter(|worker| is_gone(worker)).count();
    report.add("partitions of the restarted worker", "", vec![of_restarted as f64]);
    report.add("partitions that left it or went to its successor", "", vec![had_to.len() as f64]);
    report.add("partitions that moved between other workers", "", vec![others.len() as f64]);
}

/// Heartbeats of the workers.
struct Ownership {
    workers: Arc<WorkerRegistry>,
    #[expect(dead_code, reason = "stops following the topic when dropped")]
    follower: TopicFollower,
}

impl Ownership {
    fn observe(fleet: &TypesFleet) -> Self {
        let workers = Arc::new(WorkerRegistry::default());
        let follower = listen(workers.clone(), fleet.topics.broker.clone(), &fleet.topics.topology.names);
        Self { workers, follower }
    }

    /// Waits until this number of workers report, after the call, that each partition has one owner.
    fn wait(&self, fleet: &TypesFleet, count: usize) -> anyhow::Result<Owners> {
        let since_ms = kafleet_runtime::now_ms();
        let expected = fleet.shared().len() * fleet.bench.partitions as usize;
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            if let Some(owners) = self.owners(since_ms, count).filter(|owners| owners.len() == expected) {
                return Ok(owners);
            }
            if Instant::now() > until {
                bail!("not all partitions have an owner after {} s", ROUND_DEADLINE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the owners; `None` if heartbeats are missing, or if two workers report the same partition.
    fn owners(&self, since_ms: i64, count: usize) -> Option<Owners> {
        let heartbeats = self.workers.heartbeats();
        let running = || heartbeats.iter().filter(|(_, heartbeat)| heartbeat.state == HeartbeatState::Running);
        if running().count() != count || running().any(|(_, heartbeat)| heartbeat.at_ms < since_ms) {
            return None;
        }
        let mut owners = Owners::new();
        for (_, heartbeat) in running() {
            for status in &heartbeat.types {
                for partition in &status.partitions {
                    if owners.insert((status.task_type.clone(), *partition), heartbeat.id.clone()).is_some() {
                        return None;
                    }
                }
            }
        }
        Some(owners)
    }
}
