//! Workers that die and are started again, as processes on a real Kafka.

use std::collections::{HashMap, HashSet};
use std::process::Child;

use kafleet::config::Isolation;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::task::partition::partition_of;
use kafleet_testkit::wait::eventually_blocking;

use crate::crashing_handlers::{Act, crashing, held, params};
use crate::fleet::{Fleet, eventually, kafka};
use crate::isolated::exists;
use crate::local_workers::LocalWorkers;
use crate::tail::{ended_ids, is_end};
use crate::{Case, block_on};

pub const CASES: &[Case] = &[
    ("only_the_poison_task_is_declared_poison", only_the_poison_task_is_declared_poison),
    ("killed_workers_declare_no_task_poison", killed_workers_declare_no_task_poison),
    ("child_processes_die_with_a_killed_worker", child_processes_die_with_a_killed_worker),
];

const PARTITIONS: u32 = 8;
const TASKS: usize = 10_000;
/// Number of tasks that run at each of three kills.
const HELD: usize = 4;

/// Starts a new worker whenever one has crashed.
struct Supervisor {
    workers: LocalWorkers,
    child: Option<Child>,
    started: usize,
}

impl Supervisor {
    fn new(fleet: &Fleet, types: &str) -> Self {
        Self { workers: LocalWorkers::new(fleet, PARTITIONS, types), child: None, started: 0 }
    }

    fn start(&mut self) {
        self.child = Some(self.workers.start(self.started));
        self.started += 1;
    }

    /// Starts a worker if none runs.
    fn restart_crashed(&mut self) {
        let ended = self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some());
        if ended {
            self.start();
        }
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("--- workers\n{}", self.workers.log_tails(self.started));
        }
    }
}

/// Restarts crashed workers until the condition holds.
fn supervise_until(supervisor: &mut Supervisor, fleet: &Fleet, subject: &str, holds: impl Fn(&[Event]) -> bool) {
    eventually_blocking(subject, || {
        supervisor.restart_crashed();
        let events = fleet.events.all();
        if holds(&events) { Ok(()) } else { Err((ended_ids(&events), supervisor.started)) }
    });
}

fn outcomes(fleet: &Fleet) -> HashMap<String, Event> {
    let ends = fleet.events.all().into_iter().filter(is_end);
    ends.map(|event| (event.id.to_string(), event)).collect()
}

fn only_the_poison_task_is_declared_poison() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[crashing(Isolation::None)]).await else { return };
        fleet.send_many("crashing", "t", TASKS / 2, &params(Act::Answer)).await;
        fleet.send("crashing", "poison", &params(Act::Abort)).await;
        fleet.send_many("crashing", "u", TASKS / 2 - 1, &params(Act::Answer)).await;
        let mut supervisor = Supervisor::new(&fleet, "");
        tokio::task::block_in_place(|| {
            supervise_until(&mut supervisor, &fleet, "all tasks have ended", |events| ended_ids(events) == TASKS);
        });
        let outcomes = outcomes(&fleet);
        let bad: Vec<&Event> = outcomes.values().filter(|event| event.kind() != EventKind::Succeeded).collect();
        let [poison] = bad[..] else { panic!("{bad:#?}") };
        let error = poison.payload.error().unwrap();
        assert_eq!((poison.id.as_str(), &*error.kind), ("poison", "crashed_worker"), "{error:?}");
        assert!(error.message.contains("SIGABRT"), "{}", error.message);
        let [dead] = &fleet.dead("crashing", 1).await[..] else { panic!("one dead letter") };
        assert_eq!((&*dead.code, dead.record.key.as_deref()), ("crashed_worker", Some(&b"poison"[..])));
        assert_eq!(supervisor.started, 3, "two workers crashed, and the third one found the poison task");
        repeats_are_within_windows(&fleet, 2);
    });
}

/// Number of held tasks that have started in a worker not in `before`.
fn begun(events: &[Event], before: &HashSet<String>) -> usize {
    let is_new = |event: &&Event| event.worker.as_deref().is_some_and(|worker| !before.contains(worker));
    let starts =
        events.iter().filter(|event| event.kind() == EventKind::Started && event.id.as_str().starts_with("held-"));
    starts.filter(is_new).map(|event| event.id.as_str()).collect::<HashSet<_>>().len()
}

/// Kills workers with the same tasks running each time; the third time the tasks are suspects, in child processes
/// that are killed with the worker.
fn killed_workers_declare_no_task_poison() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[crashing(Isolation::None)]).await else { return };
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("open");
        for n in 0..HELD {
            fleet.send("crashing", &format!("held-{n}"), &held(&gate)).await;
        }
        let mut supervisor = Supervisor::new(&fleet, "");
        let mut dead = HashSet::new();
        for round in 0..3 {
            fleet.send_many("crashing", &format!("r{round}-"), TASKS / 4, &params(Act::Answer)).await;
            tokio::task::block_in_place(|| {
                supervise_until(&mut supervisor, &fleet, "the held tasks run", |events| begun(events, &dead) == HELD);
            });
            if round == 2 {
                let worker = supervisor.child.as_ref().unwrap().id();
                eventually("the held tasks run in child processes", async || children_of(worker).len() >= HELD).await;
            }
            supervisor.kill();
            dead.extend(fleet.events.all().iter().filter_map(|event| event.worker.as_deref().map(str::to_owned)));
        }
        std::fs::write(&gate, "").unwrap();
        fleet.send_many("crashing", "last-", TASKS / 4 - HELD, &params(Act::Answer)).await;
        tokio::task::block_in_place(|| {
            supervise_until(&mut supervisor, &fleet, "all tasks have ended", |events| ended_ids(events) == TASKS);
        });
        let ends: Vec<Event> = fleet.events.all().into_iter().filter(is_end).collect();
        let bad: Vec<&Event> = ends.iter().filter(|event| event.kind() != EventKind::Succeeded).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert_eq!(supervisor.started, 4);
        repeats_are_within_windows(&fleet, 3);
    });
}

fn child_processes_die_with_a_killed_worker() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[crashing(Isolation::None)]).await else { return };
        let mut supervisor = Supervisor::new(&fleet, "[types.crashing]\nisolation = \"process\"\n");
        let wait = |supervisor: &mut Supervisor, subject, id: &str, kind| {
            let has = |events: &[Event]| events.iter().any(|event| event.id.as_str() == id && event.kind() == kind);
            tokio::task::block_in_place(|| supervise_until(supervisor, &fleet, subject, has));
        };
        // The first task occupies a process, so the second one gets another.
        fleet.send("crashing", "busy", &params(Act::Ignore)).await;
        wait(&mut supervisor, "the first task has started", "busy", EventKind::Started);
        let worker = supervisor.child.as_ref().unwrap().id();
        eventually("the first task has its process", async || !children_of(worker).is_empty()).await;
        fleet.send("crashing", "idle", &params(Act::Answer)).await;
        wait(&mut supervisor, "the second task has succeeded", "idle", EventKind::Succeeded);
        let children = children_of(worker);
        assert!(children.len() >= 2, "{children:?}");
        supervisor.kill();
        eventually("the child processes have ended", async || children.iter().all(|pid| !exists(*pid))).await;
    });
}

/// Child processes of a worker, without the guard.
fn children_of(worker: u32) -> Vec<u64> {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let is_child = |pid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        let named = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(worker) && named.starts_with(b"kafleet-child")
    };
    all.filter(is_child).collect()
}

/// Checks that each partition has at most one window of repeated tasks for each crash.
fn repeats_are_within_windows(fleet: &Fleet, crashes: usize) {
    const WINDOW: usize = 256;
    let mut seen = HashSet::new();
    let mut repeats = HashMap::<u32, usize>::new();
    for event in fleet.events.all().into_iter().filter(is_end) {
        let id = event.id.to_string();
        if !seen.insert(id.clone()) {
            *repeats.entry(partition_of(id.as_bytes(), PARTITIONS)).or_default() += 1;
        }
    }
    assert!(repeats.values().all(|count| *count <= crashes * WINDOW), "{repeats:?}");
}
