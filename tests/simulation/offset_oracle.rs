//! Invariants of offsets: a commit covers only tasks whose final event is in the log, and an attempt starts only
//! within a committed window. Reads the topics independently of the workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{Broker, Commit, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use kafleet::model::event::{Event, Kind};
use kafleet::model::offsets::Metadata;
use kafleet::model::task::{header, parse_time};
use parking_lot::Mutex;

const NO_WAIT: Duration = Duration::ZERO;
/// Tolerance for starts after the expiry of a task: a worker's clock reading may be this old, ms.
const SLACK_MS: i64 = 500;

/// Task id and run.
pub type Run = (String, u32);

pub struct OffsetOracle {
    broker: Arc<MemoryBroker>,
    names: Names,
    state: Mutex<OffsetState>,
}

struct OffsetState {
    /// Reader of the events topic.
    events: Box<dyn Consumer>,
    /// Reader of the task topics.
    tasks: Box<dyn Consumer>,
    /// Runs with a final event of a worker.
    ended: BTreeSet<Run>,
    /// Positions of the records of each run.
    positions: BTreeMap<Run, Vec<(Partition, i64)>>,
    run_at: BTreeMap<(Partition, i64), Run>,
    /// Number of records that may start at once, per run. The record that releases a delayed task is one of them.
    ready: BTreeMap<Run, usize>,
    /// Positions that a commit has declared complete, and that passed the check.
    done: BTreeSet<(Partition, i64)>,
    /// Highest committed end of a window per partition.
    windows: BTreeMap<Partition, i64>,
    /// Time until which the task of a record must start, epoch milliseconds.
    deadlines: BTreeMap<(Partition, i64), i64>,
    /// Pairs of a type and a root (empty: any) of which no attempt may start now.
    blocked: BTreeSet<(String, String)>,
    violations: Vec<String>,
}

impl OffsetOracle {
    pub fn new(broker: Arc<MemoryBroker>, names: &Names, events: &[Partition], tasks: &[Partition]) -> Arc<Self> {
        let reader = |partitions: &[Partition], read_uncommitted| {
            let mut reader = broker.consumer(&ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() }).unwrap();
            let starts: Vec<_> =
                partitions.iter().map(|partition| (partition.clone(), StartOffset::Beginning)).collect();
            reader.assign(&starts).unwrap();
            reader
        };
        let state = OffsetState {
            // An event behind another producer's open transaction is in the log as well.
            events: reader(events, true),
            // Records of aborted transactions are not tasks.
            tasks: reader(tasks, false),
            ended: BTreeSet::new(),
            positions: BTreeMap::new(),
            run_at: BTreeMap::new(),
            ready: BTreeMap::new(),
            done: BTreeSet::new(),
            windows: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            blocked: BTreeSet::new(),
            violations: Vec::new(),
        };
        Arc::new(Self { broker, names: names.clone(), state: Mutex::new(state) })
    }

    /// Starts reading a partition that was added to a task topic.
    pub fn watch(&self, partition: &Partition) {
        let mut state = self.state.lock();
        let known = state.tasks.positions().unwrap().iter().any(|(at, _)| at == partition);
        if !known {
            state.tasks.assign(&[(partition.clone(), StartOffset::Beginning)]).unwrap();
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    /// Number of records that may start at once, per run.
    pub fn ready(&self) -> Vec<(Run, usize)> {
        let state = &mut *self.state.lock();
        state.read();
        state.ready.clone().into_iter().collect()
    }

    /// Checks commits when a worker sends them: the final event of each task that they declare complete must be in the
    /// log.
    pub fn check_commits(&self, commits: &[Commit]) {
        let state = &mut *self.state.lock();
        state.read();
        for commit in commits {
            let Some(metadata) = Metadata::decode(commit.offset, &commit.metadata) else {
                state.violations.push(format!("cannot decode a commit of {}: {commit:?}", commit.partition));
                continue;
            };
            let end = self.broker.watermarks(&commit.partition, NO_WAIT).unwrap().high.min(metadata.completed.next());
            for offset in (0..end).filter(|offset| metadata.completed.is_done(*offset)) {
                let position = (commit.partition.clone(), offset);
                if state.done.contains(&position) {
                    continue;
                }
                match state.run_at.get(&position) {
                    Some(run) if !state.ended.contains(run) => {
                        let (partition, offset) = &position;
                        let violation = format!(
                            "{partition} is committed past offset {offset}: the final event of {run:?} is not in the log"
                        );
                        state.violations.push(violation);
                    }
                    _ => drop(state.done.insert(position)),
                }
            }
        }
    }

    /// Blocks or unblocks the attempts of a type in the tree of a root (empty: in all trees).
    pub fn set_blocked(&self, task_type: &str, tree: &str, on: bool) {
        let (blocked, key) = (&mut self.state.lock().blocked, (task_type.to_owned(), tree.to_owned()));
        if on {
            blocked.insert(key)
        } else {
            blocked.remove(&key)
        };
    }

    /// Checks that an attempt starts within a committed window, before its task expires, and not while it is blocked.
    /// `is_first`: nothing of the run has started before, so that the task may still expire.
    pub fn attempt_started(&self, id: &str, run: u32, attempt: u32, is_first: bool) {
        let state = &mut *self.state.lock();
        state.read();
        let positions = state.positions.get(&(id.to_owned(), run)).cloned().unwrap_or_default();
        let mut is_in_window = false;
        for (partition, offset) in &positions {
            let group = self.names.group(self.names.type_of(&partition.topic).unwrap_or_default());
            let committed =
                self.broker.group_offsets(&group, std::slice::from_ref(partition), NO_WAIT).unwrap().pop().flatten();
            let window_end = committed
                .and_then(|committed| Some(Metadata::decode(committed.offset, &committed.metadata)?.window_end));
            let highest = state.windows.entry(partition.clone()).or_default();
            *highest = window_end.unwrap_or_default().max(*highest);
            is_in_window |= *offset < *highest;
        }
        state.check_start(id, run, (attempt, is_first), &positions);
        if !is_in_window {
            state
                .violations
                .push(format!("run {run} of `{id}` starts outside of the committed windows: {positions:?}"));
        }
    }

    /// Records the window ends of commits that the broker has accepted.
    pub fn committed(&self, commits: &[Commit]) {
        let mut state = self.state.lock();
        for commit in commits {
            let end = Metadata::decode(commit.offset, &commit.metadata).map_or(0, |metadata| metadata.window_end);
            let highest = state.windows.entry(commit.partition.clone()).or_default();
            *highest = end.max(*highest);
        }
    }
}

impl OffsetState {
    fn check_start(&mut self, id: &str, run: u32, (attempt, is_first): (u32, bool), positions: &[(Partition, i64)]) {
        let now = kafleet::runtime::now_ms();
        let blocked = |(task_type, tree): &&(String, String)| {
            positions.iter().any(|(partition, _)| partition.topic.ends_with(task_type.as_str()))
                && (id == tree || id.starts_with(&format!("{tree}:")) || tree.is_empty())
        };
        if let Some(blocked) = self.blocked.iter().find(blocked) {
            self.violations
                .push(format!("attempt {attempt} of run {run} of `{id}` starts while {blocked:?} is blocked"));
        }
        let deadlines: Option<Vec<i64>> =
            positions.iter().map(|position| self.deadlines.get(position).copied()).collect();
        // A run may have several records: the last of them to expire counts.
        let expiry = deadlines.and_then(|all| all.into_iter().max());
        if let Some(at) = expiry.filter(|at| is_first && *at + SLACK_MS < now) {
            self.violations.push(format!("run {run} of `{id}` starts {} ms after it has expired", now - at));
        }
    }

    /// Reads all new records of both readers.
    fn read(&mut self) {
        let Self { events, tasks, ended, positions, run_at, ready, deadlines, .. } = self;
        let mut received = true;
        while std::mem::take(&mut received) {
            let read = events.poll(10_000, NO_WAIT, &mut |record| {
                received = true;
                let Ok(event) = Event::decode(record.value.unwrap_or_default()) else { return };
                if is_final_event(&event) {
                    // The ask of a foreign record has an id that ends with that of the record.
                    let asked = event.id.as_str().split_once("~~").filter(|_| event.kind() == Kind::Asked);
                    let id = asked.map_or(event.id.as_str(), |(_, of_record)| of_record);
                    ended.insert((id.to_owned(), event.run));
                }
            });
            read.unwrap();
            let read = tasks.poll(10_000, NO_WAIT, &mut |record| {
                received = true;
                let text = |header_name: &str| {
                    let found = record.headers().find(|(name, _)| *name == header_name)?.1?;
                    std::str::from_utf8(found).ok()
                };
                let Some(id) = text(header::ID) else { return };
                let run = (id.to_owned(), text(header::RUN).and_then(|run| run.parse().ok()).unwrap_or(1));
                let position = (Partition::new(record.topic, record.partition), record.offset);
                positions.entry(run.clone()).or_default().push(position.clone());
                *ready.entry(run.clone()).or_default() += usize::from(text(header::NOT_BEFORE).is_none());
                if let Some(expires) = text(header::EXPIRES) {
                    let duration = expires.strip_suffix("ms").and_then(|ms| ms.parse::<i64>().ok());
                    let at = duration
                        .map_or_else(|| parse_time(expires).unwrap(), |duration| record.timestamp_ms + duration);
                    deadlines.insert(position.clone(), at);
                }
                run_at.insert(position, run);
            });
            read.unwrap();
        }
    }
}

/// Returns true if the event ends a worker's work on a run: a terminal event, or the handover to the tracker.
fn is_final_event(event: &Event) -> bool {
    let ends = matches!(event.kind(), Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired);
    event.worker.is_some() && (ends || event.payload.record().is_some())
}
