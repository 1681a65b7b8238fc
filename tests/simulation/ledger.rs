//! What must hold at every moment: no commit says that a task is done whose last word is not in the log, and nothing begins
//! that no commit has announced. Read from the log itself, by somebody who knows nothing of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::memory::Memory;
use kafleet::broker::{Broker, Commit, Consumer, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use kafleet::model::event::{Event, Kind};
use kafleet::model::offsets::Metadata;
use kafleet::model::task::{header, parse_time};
use parking_lot::Mutex;

const SOON: Duration = Duration::ZERO;
/// How old the time may be that a worker goes by.
const SLACK_MS: i64 = 500;

pub type Run = (String, u32);

pub struct Ledger {
    broker: Arc<Memory>,
    names: Names,
    books: Mutex<Books>,
}

struct Books {
    events: Box<dyn Consumer>,
    tasks: Box<dyn Consumer>,
    /// Tasks that a worker has said its last word on.
    ended: BTreeSet<Run>,
    /// Of each task, where its records lie.
    places: BTreeMap<Run, Vec<(Partition, i64)>>,
    whose: BTreeMap<(Partition, i64), Run>,
    /// Records that name no time to wait for: a task that waited at the tracker is released so.
    ready: BTreeMap<Run, usize>,
    /// Offsets that a commit has called done, and rightly.
    done: BTreeSet<(Partition, i64)>,
    /// The farthest end of a window that a commit has named.
    windows: BTreeMap<Partition, i64>,
    /// When, in epoch milliseconds, a record's task may not begin any more.
    deadlines: BTreeMap<(Partition, i64), i64>,
    /// Types, and how the ids of trees begin, of which nothing is to begin now.
    held_back: BTreeSet<(String, String)>,
    violations: Vec<String>,
}

impl Ledger {
    pub fn new(broker: Arc<Memory>, names: &Names, events: &[Partition], tasks: &[Partition]) -> Arc<Self> {
        let reader = |partitions: &[Partition], read_uncommitted| {
            let mut reader = broker.consumer(&ConsumerSpec { read_uncommitted, ..ConsumerSpec::default() }).unwrap();
            let starts: Vec<_> = partitions.iter().map(|partition| (partition.clone(), StartOffset::Beginning)).collect();
            reader.assign(&starts).unwrap();
            reader
        };
        let books = Books {
            // An open transaction must not hide what workers have written behind it.
            events: reader(events, true),
            // What was aborted is no task.
            tasks: reader(tasks, false),
            ended: BTreeSet::new(),
            places: BTreeMap::new(),
            whose: BTreeMap::new(),
            ready: BTreeMap::new(),
            done: BTreeSet::new(),
            windows: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            held_back: BTreeSet::new(),
            violations: Vec::new(),
        };
        Arc::new(Self { broker, names: names.clone(), books: Mutex::new(books) })
    }

    /// A partition that has been added.
    pub fn watch(&self, partition: &Partition) {
        let mut books = self.books.lock();
        let known = books.tasks.positions().unwrap().iter().any(|(at, _)| at == partition);
        if !known {
            books.tasks.assign(&[(partition.clone(), StartOffset::Beginning)]).unwrap();
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.books.lock().violations.clone()
    }

    /// How many records each run of a task has in its topic that may start at once.
    pub fn ready(&self) -> Vec<(Run, usize)> {
        let books = &mut *self.books.lock();
        books.read();
        books.ready.clone().into_iter().collect()
    }

    /// A worker asks for these commits.
    pub fn committing(&self, commits: &[Commit]) {
        let books = &mut *self.books.lock();
        books.read();
        for commit in commits {
            let Some(metadata) = Metadata::decode(commit.offset, &commit.metadata) else {
                books.violations.push(format!("a commit of {} cannot be read: {commit:?}", commit.partition));
                continue;
            };
            let end = self.broker.ends(&commit.partition, SOON).unwrap().end.min(metadata.completed.next());
            for offset in (0..end).filter(|offset| metadata.completed.is_done(*offset)) {
                let place = (commit.partition.clone(), offset);
                if books.done.contains(&place) {
                    continue;
                }
                match books.whose.get(&place) {
                    Some(run) if !books.ended.contains(run) => {
                        let (partition, offset) = &place;
                        let told =
                            format!("{partition} is committed past offset {offset}: the last word on {run:?} is not in the log");
                        books.violations.push(told);
                    }
                    _ => drop(books.done.insert(place)),
                }
            }
        }
    }

    /// Nothing of a type and of a tree (empty: of all) is to begin from now on, or may again.
    pub fn hold_back(&self, task_type: &str, tree: &str, on: bool) {
        let (held, what) = (&mut self.books.lock().held_back, (task_type.to_owned(), tree.to_owned()));
        if on {
            held.insert(what)
        } else {
            held.remove(&what)
        };
    }

    /// A handler begins.
    pub fn begins(&self, id: &str, run: u32, attempt: u32) {
        let books = &mut *self.books.lock();
        books.read();
        let places = books.places.get(&(id.to_owned(), run)).cloned().unwrap_or_default();
        let mut announced = false;
        for (partition, offset) in &places {
            let group = self.names.group(self.names.type_of(&partition.topic).unwrap_or_default());
            let committed = self.broker.group_offsets(&group, std::slice::from_ref(partition), SOON).unwrap().pop().flatten();
            let end = committed.and_then(|committed| Some(Metadata::decode(committed.offset, &committed.metadata)?.window_end));
            let farthest = books.windows.entry(partition.clone()).or_default();
            *farthest = end.unwrap_or_default().max(*farthest);
            announced |= *offset < *farthest;
        }
        books.may_begin(id, run, attempt, &places);
        if !announced {
            books.violations.push(format!("run {run} of `{id}` begins, which no commit has announced: {places:?}"));
        }
    }

    /// A commit that is in force.
    pub fn committed(&self, commits: &[Commit]) {
        let mut books = self.books.lock();
        for commit in commits {
            let end = Metadata::decode(commit.offset, &commit.metadata).map_or(0, |metadata| metadata.window_end);
            let farthest = books.windows.entry(commit.partition.clone()).or_default();
            *farthest = end.max(*farthest);
        }
    }
}

impl Books {
    fn may_begin(&mut self, id: &str, run: u32, attempt: u32, places: &[(Partition, i64)]) {
        let now = kafleet::runtime::now_ms();
        let held = |(task_type, tree): &&(String, String)| {
            places.iter().any(|(partition, _)| partition.topic.ends_with(task_type.as_str()))
                && (id == tree || id.starts_with(&format!("{tree}:")) || tree.is_empty())
        };
        if let Some(held) = self.held_back.iter().find(held) {
            self.violations.push(format!("attempt {attempt} of run {run} of `{id}` begins, and {held:?} is held back"));
        }
        let deadlines: Option<Vec<i64>> = places.iter().map(|place| self.deadlines.get(place).copied()).collect();
        let latest = deadlines.and_then(|all| all.into_iter().max()).filter(|at| attempt == 1 && *at + SLACK_MS < now);
        if let Some(at) = latest {
            self.violations.push(format!("run {run} of `{id}` begins {} ms after it has expired", now - at));
        }
    }

    fn read(&mut self) {
        let Self { events, tasks, ended, places, whose, ready, deadlines, .. } = self;
        let mut heard = true;
        while std::mem::take(&mut heard) {
            let read = events.poll(10_000, SOON, &mut |record| {
                heard = true;
                let Ok(event) = Event::decode(record.value.unwrap_or_default()) else { return };
                if is_last_word(&event) {
                    ended.insert((event.id.to_string(), event.run));
                }
            });
            read.unwrap();
            let read = tasks.poll(10_000, SOON, &mut |record| {
                heard = true;
                let text = |wanted: &str| {
                    let found = record.headers().find(|(name, _)| *name == wanted)?.1?;
                    std::str::from_utf8(found).ok()
                };
                let Some(id) = text(header::ID) else { return };
                let run = (id.to_owned(), text(header::RUN).and_then(|run| run.parse().ok()).unwrap_or(1));
                let place = (Partition::new(record.topic, record.partition), record.offset);
                places.entry(run.clone()).or_default().push(place.clone());
                *ready.entry(run.clone()).or_default() += usize::from(text(header::NOT_BEFORE).is_none());
                if let Some(expires) = text(header::EXPIRES) {
                    let span = expires.strip_suffix("ms").and_then(|ms| ms.parse::<i64>().ok());
                    let at = span.map_or_else(|| parse_time(expires).unwrap(), |span| record.timestamp_ms + span);
                    deadlines.insert(place.clone(), at);
                }
                whose.insert(place, run);
            });
            read.unwrap();
        }
    }
}

/// Of the worker that has the task: its end, or that the tracker has it now.
fn is_last_word(event: &Event) -> bool {
    let ends = matches!(event.kind, Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired);
    event.worker.is_some() && (ends || event.record.is_some())
}
