//! Determines when the cancels of one events partition can be withdrawn. A task cancelled before a worker received it
//! may still be in its topic, and would run on a worker without the cancel. The same holds for a task whose end a
//! worker has reported but not committed.
//!
//! Runs beside the outbox relay, which never waits for it. Examines all cancels together: one measurement of the
//! workers' progress serves all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_broker::BrokerError;
use kafleet_model::event::Kind;
use kafleet_model::outbox::withdrawal_cause;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::children_of;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index, StoreError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::TrackerError;
use crate::outbox::worker_progress::{Surveys, WorkerProgress};
use crate::setup::TrackerSetup;

const PAGE_RECORDS: usize = 500;
/// Records of one tree visited per turn; its last page may exceed this by less than one page.
const TURN_RECORDS: usize = 10 * PAGE_RECORDS;
/// Trees visited concurrently.
const CONCURRENT_TREES: usize = 16;
/// Approximate number of records visited between two measurements.
const ROUND_RECORDS: usize = 40_000;
/// Pause between two rounds, so that cancels requested meanwhile are examined together.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);
/// Wait between two measurements; doubled while workers make no progress.
const MIN_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Interval of warnings that the progress of workers cannot be measured.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A cancel to be withdrawn: its task and its score in the index of effects ([`TaskRecord::turn`]).
pub(crate) type CancelKey = (TaskId, i64);

/// Progress of the cancels of a partition, shared by the outbox relay and [`Withdrawals::watch`].
#[derive(Default)]
pub(crate) struct Withdrawals {
    progress_of: Mutex<HashMap<CancelKey, CancelProgress>>,
    requested: Notify,
    /// Signals that workers have passed some cancels.
    passed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelProgress {
    /// Workers may still receive tasks that the cancel has ended.
    Waiting,
    /// All tasks that the cancel has ended are before the workers' committed offsets.
    Passed,
}

impl Withdrawals {
    pub(crate) fn progress(&self, key: &CancelKey) -> Option<CancelProgress> {
        self.progress_of.lock().get(key).copied()
    }

    /// Number of cancels that are not withdrawn yet.
    pub(crate) fn len(&self) -> usize {
        self.progress_of.lock().len()
    }

    /// Requests the progress of a cancel whose tree has ended according to the fold.
    pub(crate) fn request(&self, key: CancelKey) {
        self.progress_of.lock().entry(key).or_insert(CancelProgress::Waiting);
        self.requested.notify_one();
    }

    /// Drops a cancel that is withdrawn or no longer requested.
    pub(crate) fn forget(&self, key: &CancelKey) {
        self.progress_of.lock().remove(key);
    }

    pub(crate) fn retain_only(&self, entries: &[Entry]) {
        let mut progress_of = self.progress_of.lock();
        if !progress_of.is_empty() {
            let current: HashSet<(&TaskId, i64)> = entries.iter().map(|entry| (&entry.id, entry.seen_ms)).collect();
            progress_of.retain(|(id, turn), _| current.contains(&(id, *turn)));
        }
    }

    /// Waits until workers have passed some cancels.
    pub(crate) async fn any_passed(&self) {
        self.passed.notified().await;
    }

    /// Tracks all requested cancels for as long as it is polled.
    pub(crate) async fn watch(&self, setup: &Arc<TrackerSetup>, surveys: &Surveys, number: u32) -> Infallible {
        let mut monitor = CancelMonitor::new(setup, surveys, number);
        let mut wait = MIN_WAIT;
        loop {
            let is_new = monitor.accept_requests(self);
            if monitor.is_idle() {
                self.requested.notified().await;
                continue;
            }
            let (passed, has_more) = monitor.round().await;
            let any = !passed.is_empty();
            if any {
                self.record_passed(passed);
            }
            wait = if is_new || any { MIN_WAIT } else { (wait * 2).min(MAX_WAIT) };
            if !has_more {
                tokio::time::sleep(ROUND_INTERVAL).await;
                // Both the timeout and a new request start another round.
                let _ = tokio::time::timeout(wait, self.requested.notified()).await;
            }
        }
    }

    fn record_passed(&self, passed: Vec<CancelKey>) {
        let mut progress_of = self.progress_of.lock();
        for key in passed {
            progress_of.entry(key).and_modify(|progress| *progress = CancelProgress::Passed);
        }
        drop(progress_of);
        self.passed.notify_one();
    }
}

/// A cancelled tree that is being visited.
struct PendingTree {
    key: CancelKey,
    since: Instant,
    /// Types of the tasks in it that were ended by a cancel.
    types: BTreeSet<Arc<str>>,
    /// Tasks whose children are visited, with the last visited child; `None` before the first step.
    pending: Option<Vec<(TaskId, Option<Entry>)>>,
}

/// A cancel whose affected types are known.
struct EndedCancel {
    key: CancelKey,
    /// Time at which the visit started.
    since: Instant,
    /// Progress that workers must reach, by type; `None` until it is measured.
    types: BTreeMap<Arc<str>, Option<Arc<WorkerProgress>>>,
}

struct CancelMonitor<'a> {
    setup: &'a Arc<TrackerSetup>,
    surveys: &'a Surveys,
    number: u32,
    trees: VecDeque<PendingTree>,
    ended: Vec<EndedCancel>,
    last_warning: Option<Instant>,
}

impl<'a> CancelMonitor<'a> {
    fn new(setup: &'a Arc<TrackerSetup>, surveys: &'a Surveys, number: u32) -> Self {
        Self { setup, surveys, number, trees: VecDeque::new(), ended: Vec::new(), last_warning: None }
    }

    fn is_idle(&self) -> bool {
        self.trees.is_empty() && self.ended.is_empty()
    }

    /// Adds newly requested cancels and returns whether there are any.
    fn accept_requests(&mut self, all: &Withdrawals) -> bool {
        let progress_of = all.progress_of.lock();
        let waits = |key: &CancelKey| progress_of.get(key) == Some(&CancelProgress::Waiting);
        self.trees.retain(|tree| waits(&tree.key));
        self.ended.retain(|ended| waits(&ended.key));
        let tracked: HashSet<&CancelKey> =
            self.trees.iter().map(|tree| &tree.key).chain(self.ended.iter().map(|ended| &ended.key)).collect();
        let requested = progress_of
            .iter()
            .filter(|(key, progress)| **progress == CancelProgress::Waiting && !tracked.contains(key));
        // Oldest first, independent of map order. One event may end several nested trees.
        let new: BTreeSet<(i64, TaskId)> = requested.map(|((id, turn), _)| (*turn, id.clone())).collect();
        let (is_new, since) = (!new.is_empty(), Instant::now());
        self.trees.extend(new.into_iter().map(|(turn, id)| PendingTree::new((id, turn), since)));
        is_new
    }

    /// Visits trees and measures workers. Returns the passed cancels, and whether more trees can be visited now.
    async fn round(&mut self) -> (Vec<CancelKey>, bool) {
        let visited = self.visit_trees().await;
        if let Err(error) = &visited {
            tracing::debug!(partition = self.number, reason = %error, "cannot read cancelled trees; retrying");
        }
        let passed = self.measure().await.unwrap_or_else(|error| {
            self.warn_unmeasured(&error.to_string());
            Vec::new()
        });
        (passed, visited.is_ok() && !self.trees.is_empty())
    }

    /// Visits trees; completed ones then wait for workers.
    async fn visit_trees(&mut self) -> Result<(), TrackerError> {
        let mut visited_records = 0;
        while visited_records < ROUND_RECORDS && !self.trees.is_empty() {
            let checkpoint = self.checkpoint().await?;
            // Lost writes are folded again; until then a tree may lack some of its tasks.
            let is_projected = |tree: &PendingTree| withdrawal_cause(tree.key.1).is_none_or(|cause| checkpoint > cause);
            let count = self.trees.len().min(CONCURRENT_TREES);
            let (ready, early): (Vec<PendingTree>, Vec<PendingTree>) =
                self.trees.drain(..count).partition(is_projected);
            self.trees.extend(early);
            if ready.is_empty() {
                return Err(TrackerError::BehindCancels);
            }
            let keys: Vec<(CancelKey, Instant)> = ready.iter().map(|tree| (tree.key.clone(), tree.since)).collect();
            let visits = ready.into_iter().map(|tree| tree.step(self.setup, self.number));
            let visited: Vec<_> = stream::iter(visits).buffered(CONCURRENT_TREES).collect().await;
            let is_lost = self.checkpoint().await.map_or(true, |now| now < checkpoint);
            let mut failed = is_lost.then_some(TrackerError::LostWrites);
            for ((key, since), visited) in keys.into_iter().zip(visited) {
                match visited {
                    Ok((tree, count)) if !is_lost => {
                        visited_records += count;
                        if tree.is_done() { self.ended.push(tree.ended()) } else { self.trees.push_back(tree) }
                    }
                    visited => {
                        failed = failed.or(visited.err().map(TrackerError::from));
                        self.trees.push_back(PendingTree::new(key, since));
                    }
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn checkpoint(&self) -> Result<i64, StoreError> {
        let checkpoints = self.setup.store.checkpoints(&[self.number]).await?;
        Ok(checkpoints.first().copied().flatten().map_or(0, |checkpoint| checkpoint.offset))
    }

    /// Returns the cancels that all workers have passed.
    async fn measure(&mut self) -> Result<Vec<CancelKey>, BrokerError> {
        let types: BTreeSet<Arc<str>> = self.ended.iter().flat_map(|ended| ended.types.keys().cloned()).collect();
        let since = self.begin_of_survey();
        let survey =
            if types.is_empty() { BTreeMap::new() } else { self.surveys.survey(self.setup, types, since).await? };
        let mut passed = Vec::new();
        self.ended.retain_mut(|ended| {
            let update = ended.update(&survey);
            passed.extend(update.then(|| ended.key.clone()));
            !update
        });
        if let Some(error) = survey.values().find_map(|progress| progress.as_ref().err()) {
            self.warn_unmeasured(&error.to_string());
        }
        Ok(passed)
    }

    /// Returns the time from which measurements are recent enough.
    fn begin_of_survey(&self) -> Instant {
        let now = Instant::now();
        match self.ended.iter().filter(|ended| !ended.is_measured()).map(|ended| ended.since).max() {
            Some(since) => since.max(now.checked_sub(MIN_WAIT).unwrap_or(since)),
            None => now.checked_sub(MIN_WAIT).unwrap_or(now),
        }
    }

    fn warn_unmeasured(&mut self, error: &str) {
        if self.last_warning.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.last_warning = Some(Instant::now());
            tracing::warn!(
                partition = self.number,
                waiting = self.ended.len(),
                reason = error,
                "cannot measure the progress of workers: cancels stay on the control topic meanwhile"
            );
        }
    }
}

impl EndedCancel {
    fn is_measured(&self) -> bool {
        self.types.values().all(Option::is_some)
    }

    /// Returns true if workers have passed the cancel in all types; drops the types that they have passed.
    fn update(&mut self, survey: &BTreeMap<Arc<str>, Result<Arc<WorkerProgress>, BrokerError>>) -> bool {
        self.types.retain(|task_type, ends| match survey.get(task_type) {
            Some(Ok(now)) => {
                let awaited = ends.take().filter(|ends| !was_recreated(ends, now)).unwrap_or_else(|| now.clone());
                let left = !has_passed(&awaited, now);
                *ends = Some(awaited);
                left
            }
            // The topic was deleted, or another topic has its name now.
            Some(Err(error)) if !error.is_transient() => {
                *ends = None;
                true
            }
            _ => true,
        });
        self.types.is_empty()
    }
}

/// Returns true if workers have consumed everything that the partitions contained at the time of `then`.
fn has_passed(then: &WorkerProgress, now: &WorkerProgress) -> bool {
    then.iter().all(|ended| {
        let current = now.iter().find(|current| current.partition == ended.partition);
        // Empty partitions are omitted from the measurement.
        current.is_none_or(|current| current.consumed >= ended.end)
    })
}

/// Detects a recreated topic: its end is lower than before.
fn was_recreated(then: &WorkerProgress, now: &WorkerProgress) -> bool {
    then.iter().any(|ended| now.iter().any(|current| current.partition == ended.partition && current.end < ended.end))
}

impl PendingTree {
    /// Creates an unvisited tree.
    fn new(key: CancelKey, since: Instant) -> Self {
        Self { key, since, types: BTreeSet::new(), pending: None }
    }

    fn is_done(&self) -> bool {
        self.pending.as_ref().is_some_and(Vec::is_empty)
    }

    fn ended(self) -> EndedCancel {
        let types = self.types.into_iter().map(|task_type| (task_type, None)).collect();
        EndedCancel { key: self.key, since: self.since, types }
    }

    /// Visits some more records of the tree and returns their number.
    async fn step(mut self, setup: &Arc<TrackerSetup>, number: u32) -> Result<(Self, usize), StoreError> {
        let mut count = 0;
        if self.pending.is_none() {
            let top = self.key.0.clone();
            let task = setup.store.task_records(number, std::slice::from_ref(&top)).await?.pop().flatten();
            self.pending = Some(Vec::new());
            count += 1;
            task.into_iter().for_each(|task| self.visit(top.clone(), &task));
        }
        while count < TURN_RECORDS
            && let Some((parent, after)) = self.pending.as_mut().and_then(Vec::pop)
        {
            let page = setup.store.page(number, &Index::Children(parent.clone()), after.as_ref(), PAGE_RECORDS).await?;
            if page.len() == PAGE_RECORDS {
                self.pending.get_or_insert_default().push((parent, page.last().cloned()));
            }
            count += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let tasks = setup.store.task_records(number, &ids).await?;
            for (id, task) in ids.into_iter().zip(tasks) {
                task.into_iter().for_each(|task| self.visit(id.clone(), &task));
            }
        }
        Ok((self, count))
    }

    fn visit(&mut self, id: TaskId, task: &TaskRecord) {
        let tree = children_of(&task.tree.below).2;
        // A cancelled task counts as failed if a descendant has failed. Later runs do not count the children of
        // earlier ones.
        let ended = [State::Cancelled, State::Expired, State::Failed].iter().any(|state| tree.get(*state) > 0);
        if ended || (task.tree.has_below && task.run > 1) {
            self.pending.get_or_insert_default().push((id, None));
        }
        let ends = |kind| matches!(kind, Kind::Cancelled | Kind::Expired);
        // Includes tasks ended by a worker, which may lose its partition before it has committed them.
        let has_ended = task.history.entries.iter().any(|entry| ends(entry.kind) && !entry.ignored);
        // A superseded task may still be open when its tree has ended.
        let is_ending = !task.own.is_terminal() && task.cancelled_by().is_some();
        if (has_ended || is_ending) && !task.is_external() {
            self.types.extend(task.task_type.clone());
        }
    }
}
