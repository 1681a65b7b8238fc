//! Workers that die and are started again, as processes on a real Kafka.

use std::collections::{HashMap, HashSet};
use std::process::Child;
use std::time::{Duration, Instant};

use kafleet::config::Isolation;
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::model::task::partition::partition_of;

use crate::fleet::{Fleet, kafka, until};
use crate::isolated::exists;
use crate::risky::{Act, held, params, risky};
use crate::site::Site;
use crate::tail::{ended_ids, is_end};
use crate::{Case, block_on};

pub const CASES: &[Case] = &[
    ("exactly_the_culprit_is_convicted", exactly_the_culprit_is_convicted),
    ("killed_workers_convict_nobody", killed_workers_convict_nobody),
    ("child_processes_die_with_a_killed_worker", child_processes_die_with_a_killed_worker),
];

const PARTITIONS: u32 = 8;
const TASKS: usize = 10_000;
/// Tasks under way at each of three deaths.
const HELD: usize = 4;
/// Sessions last 6 s: so long a dead worker holds up its partitions.
const PATIENCE: Duration = Duration::from_secs(300);

/// Starts workers, one after the other, for as long as they die.
struct Supervisor {
    site: Site,
    child: Option<Child>,
    started: usize,
}

impl Supervisor {
    fn new(fleet: &Fleet, types: &str) -> Self {
        Self { site: Site::new(fleet, PARTITIONS, types), child: None, started: 0 }
    }

    fn start(&mut self) {
        self.child = Some(self.site.start(self.started));
        self.started += 1;
    }

    /// Starts another one where there is none.
    fn tend(&mut self) {
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
            eprintln!("--- workers\n{}", self.site.talk(self.started));
        }
    }
}

/// Tends the worker until the condition holds.
fn tend_until(supervisor: &mut Supervisor, fleet: &Fleet, what: &str, holds: impl Fn(&[Event]) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let events = fleet.events.all();
        if holds(&events) {
            return;
        }
        let ended = ended_ids(&events);
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}; {ended} ended, {} workers", supervisor.started);
        supervisor.tend();
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn outcomes(fleet: &Fleet) -> HashMap<String, Event> {
    let ends = fleet.events.all().into_iter().filter(is_end);
    ends.map(|event| (event.id.to_string(), event)).collect()
}

fn exactly_the_culprit_is_convicted() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[risky(Isolation::None)]).await else { return };
        fleet.send_many("risky", "t", TASKS / 2, &params(Act::Answer)).await;
        fleet.send("risky", "culprit", &params(Act::Abort)).await;
        fleet.send_many("risky", "u", TASKS / 2 - 1, &params(Act::Answer)).await;
        let mut supervisor = Supervisor::new(&fleet, "");
        tokio::task::block_in_place(|| {
            tend_until(&mut supervisor, &fleet, "all are at their end", |events| ended_ids(events) == TASKS);
        });
        let outcomes = outcomes(&fleet);
        let bad: Vec<&Event> = outcomes.values().filter(|event| event.kind != EventKind::Succeeded).collect();
        let [culprit] = bad[..] else { panic!("{bad:#?}") };
        let error = culprit.error.as_ref().unwrap();
        assert_eq!((culprit.id.as_str(), &*error.kind), ("culprit", "crashed_worker"), "{error:?}");
        assert!(error.message.contains("SIGABRT"), "{}", error.message);
        let [dead] = &fleet.dead("risky", 1).await[..] else { panic!("one dead letter") };
        assert_eq!((&*dead.code, dead.record.key.as_deref()), ("crashed_worker", Some(&b"culprit"[..])));
        assert_eq!(supervisor.started, 3, "two workers died of it, the third one has found it");
        repeats_are_within_windows(&fleet, 2);
    });
}

/// Tasks that wait have begun in a worker that is not one of these.
fn begun(events: &[Event], before: &HashSet<String>) -> usize {
    let is_new = |event: &&Event| event.worker.as_deref().is_some_and(|worker| !before.contains(worker));
    let starts = events.iter().filter(|event| event.kind == EventKind::Started && event.id.as_str().starts_with("held-"));
    starts.filter(is_new).map(|event| event.id.as_str()).collect::<HashSet<_>>().len()
}

/// Each time with the same tasks under way; the third time they are suspects, in child processes that are killed with it.
fn killed_workers_convict_nobody() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[risky(Isolation::None)]).await else { return };
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("open");
        for n in 0..HELD {
            fleet.send("risky", &format!("held-{n}"), &held(&gate)).await;
        }
        let (mut supervisor, mut dead) = (Supervisor::new(&fleet, ""), HashSet::new());
        for round in 0..3 {
            fleet.send_many("risky", &format!("r{round}-"), TASKS / 4, &params(Act::Answer)).await;
            tokio::task::block_in_place(|| {
                tend_until(&mut supervisor, &fleet, "they are under way", |events| begun(events, &dead) == HELD);
            });
            if round == 2 {
                let worker = supervisor.child.as_ref().unwrap().id();
                until("they are in child processes", || children_of(worker).len() >= HELD).await;
            }
            supervisor.kill();
            dead.extend(fleet.events.all().iter().filter_map(|event| event.worker.as_deref().map(str::to_owned)));
        }
        std::fs::write(&gate, "").unwrap();
        fleet.send_many("risky", "last-", TASKS / 4 - HELD, &params(Act::Answer)).await;
        tokio::task::block_in_place(|| {
            tend_until(&mut supervisor, &fleet, "all are at their end", |events| ended_ids(events) == TASKS);
        });
        let ends: Vec<Event> = fleet.events.all().into_iter().filter(is_end).collect();
        let bad: Vec<&Event> = ends.iter().filter(|event| event.kind != EventKind::Succeeded).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert_eq!(supervisor.started, 4);
        repeats_are_within_windows(&fleet, 3);
    });
}

fn child_processes_die_with_a_killed_worker() {
    block_on(async {
        let Some(fleet) = kafka(PARTITIONS, &[risky(Isolation::None)]).await else { return };
        let mut supervisor = Supervisor::new(&fleet, "[types.risky]\nisolation = \"process\"\n");
        let tend = |supervisor: &mut Supervisor, what, id: &str, kind| {
            let has = |events: &[Event]| events.iter().any(|event| event.id.as_str() == id && event.kind == kind);
            tokio::task::block_in_place(|| tend_until(supervisor, &fleet, what, has));
        };
        // One has a process, so that the other gets another.
        fleet.send("risky", "busy", &params(Act::Ignore)).await;
        tend(&mut supervisor, "one has begun", "busy", EventKind::Started);
        let worker = supervisor.child.as_ref().unwrap().id();
        until("it has its process", || !children_of(worker).is_empty()).await;
        fleet.send("risky", "idle", &params(Act::Answer)).await;
        tend(&mut supervisor, "the other answers", "idle", EventKind::Succeeded);
        let cells = children_of(worker);
        assert!(cells.len() >= 2, "{cells:?}");
        supervisor.kill();
        until("they are gone", || cells.iter().all(|pid| !exists(*pid))).await;
    });
}

/// The processes that a worker has started, beside the guard.
fn children_of(worker: u32) -> Vec<u64> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let is_cell = |pid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        let named = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(worker) && named.starts_with(b"kafleet-child")
    };
    all.filter(is_cell).collect()
}

/// What was done more than once, in each partition: at most a window for each worker that died.
fn repeats_are_within_windows(fleet: &Fleet, deaths: usize) {
    const WINDOW: usize = 256;
    let (mut seen, mut repeats) = (HashSet::new(), HashMap::<u32, usize>::new());
    for event in fleet.events.all().into_iter().filter(is_end) {
        let id = event.id.to_string();
        if !seen.insert(id.clone()) {
            *repeats.entry(partition_of(id.as_bytes(), PARTITIONS)).or_default() += 1;
        }
    }
    assert!(repeats.values().all(|count| *count <= deaths * WINDOW), "{repeats:?}");
}
