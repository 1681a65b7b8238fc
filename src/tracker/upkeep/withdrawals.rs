//! Finds out when the cancels of one events partition can be taken back: a task that was cancelled before a worker took it
//! may lie in its topic yet, and would run if it were taken up by a worker that does not know. So would one that a worker has
//! ended and not committed.
//!
//! Runs beside the firing, so that nothing that is due waits for it, and looks at all cancels together: one measurement of
//! the workers' progress serves every cancel that waits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::broker::BrokerError;
use crate::model::event::Kind;
use crate::model::outbox::withdrawal_cause;
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index, StoreError};
use crate::tracker::TrackerSetup;
use crate::tracker::outbox::worker_progress::{Surveys, WorkerProgress};

const PAGE: usize = 500;
/// Records of one tree looked at before others have their turn; its last page may go beyond, by less than one.
const STEP: usize = 10 * PAGE;
/// Trees looked through at once.
const AT_ONCE: usize = 16;
/// Records looked at between two measurements, about.
const ROUND: usize = 40_000;
/// Between two rounds, so that what is asked meanwhile is looked at together.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two measurements while workers have not passed the rest: it grows while they pass nothing.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How often it is logged that the progress of workers cannot be seen.
const COMPLAINT_EVERY: Duration = Duration::from_secs(60);

/// A cancel to be taken back: its task, and its place in the index of effects ([`TaskRecord::turn`]).
pub type CancelKey = (TaskId, i64);

/// What is known of the cancels of a partition; shared by the firing, which asks, and [`Withdrawals::watch`].
#[derive(Default)]
pub struct Withdrawals {
    known: Mutex<HashMap<CancelKey, CancelProgress>>,
    asked: Notify,
    /// Some have been passed.
    passed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelProgress {
    /// Workers may still meet what it has ended.
    Waiting,
    /// All of that is behind them.
    Passed,
}

impl Withdrawals {
    pub fn standing(&self, key: &CancelKey) -> Option<CancelProgress> {
        self.known.lock().get(key).copied()
    }

    /// How many are known, and not taken back yet.
    pub fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Asks for a cancel whose tree has ended, as the fold knows it.
    pub fn ask(&self, key: CancelKey) {
        self.known.lock().entry(key).or_insert(CancelProgress::Waiting);
        self.asked.notify_one();
    }

    /// What concerned it is done, or nobody asks any more.
    pub fn forget(&self, key: &CancelKey) {
        self.known.lock().remove(key);
    }

    pub fn forget_all_but(&self, entries: &[Entry]) {
        let mut known = self.known.lock();
        if !known.is_empty() {
            let wanted: HashSet<(&TaskId, i64)> = entries.iter().map(|entry| (&entry.id, entry.seen_ms)).collect();
            known.retain(|(id, turn), _| wanted.contains(&(id, *turn)));
        }
    }

    /// Wakes when some were found to be passed.
    pub async fn some_passed(&self) {
        self.passed.notified().await;
    }

    /// Looks after everything that is asked, for as long as it is polled.
    pub async fn watch(&self, setup: &Arc<TrackerSetup>, surveys: &Surveys, number: u32) -> Infallible {
        let mut watch = Watch::new(setup, surveys, number);
        let mut rest = FIRST_REST;
        loop {
            let is_new = watch.take_in(self);
            if watch.is_idle() {
                self.asked.notified().await;
                continue;
            }
            let (passed, goes_on) = watch.round().await;
            let some = !passed.is_empty();
            if some {
                let mut known = self.known.lock();
                for key in passed {
                    known.entry(key).and_modify(|standing| *standing = CancelProgress::Passed);
                }
                drop(known);
                self.passed.notify_one();
            }
            rest = if is_new || some { FIRST_REST } else { (rest * 2).min(LONGEST_REST) };
            if !goes_on {
                tokio::time::sleep(PAUSE).await;
                // Late or asked: both are reasons to look again.
                let _ = tokio::time::timeout(rest, self.asked.notified()).await;
            }
        }
    }
}

/// A cancelled tree that is being looked through.
struct Tree {
    key: CancelKey,
    since: Instant,
    /// The types of those in it that a cancel has ended.
    types: BTreeSet<Arc<str>>,
    /// None: at its beginning. Tasks whose children are looked at, each with the child looked at last.
    open: Option<Vec<(TaskId, Option<Entry>)>>,
}

/// A cancel of which it is known what its workers have to pass.
struct Ended {
    key: CancelKey,
    /// When all of it had ended.
    since: Instant,
    /// By type; None: where its topic ended is not known yet.
    types: BTreeMap<Arc<str>, Option<Arc<WorkerProgress>>>,
}

struct Watch<'a> {
    setup: &'a Arc<TrackerSetup>,
    surveys: &'a Surveys,
    number: u32,
    trees: VecDeque<Tree>,
    ended: Vec<Ended>,
    complained: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn new(setup: &'a Arc<TrackerSetup>, surveys: &'a Surveys, number: u32) -> Self {
        Self { setup, surveys, number, trees: VecDeque::new(), ended: Vec::new(), complained: None }
    }

    fn is_idle(&self) -> bool {
        self.trees.is_empty() && self.ended.is_empty()
    }

    /// Takes in what is asked; says whether something is new.
    fn take_in(&mut self, all: &Withdrawals) -> bool {
        let known = all.known.lock();
        let waits = |key: &CancelKey| known.get(key) == Some(&CancelProgress::Waiting);
        self.trees.retain(|tree| waits(&tree.key));
        self.ended.retain(|ended| waits(&ended.key));
        let mine: HashSet<&CancelKey> =
            self.trees.iter().map(|tree| &tree.key).chain(self.ended.iter().map(|ended| &ended.key)).collect();
        let asked = known.iter().filter(|(key, standing)| **standing == CancelProgress::Waiting && !mine.contains(key));
        // The oldest first, whatever order a map has. One event may end several trees, one within the other.
        let new: BTreeSet<(i64, TaskId)> = asked.map(|((id, turn), _)| (*turn, id.clone())).collect();
        let (is_new, since) = (!new.is_empty(), Instant::now());
        self.trees.extend(new.into_iter().map(|(turn, id)| Tree::new((id, turn), since)));
        is_new
    }

    /// Looks at trees and at the workers; returns what those have passed, and whether there is more to look at at once.
    async fn round(&mut self) -> (Vec<CancelKey>, bool) {
        let walked = self.walk().await;
        if let Err(why) = &walked {
            tracing::debug!(partition = self.number, reason = %why, "cancelled trees cannot be looked at; trying again");
        }
        let passed = self.measure().await.unwrap_or_else(|why| {
            self.complain(&why);
            Vec::new()
        });
        (passed, walked.is_ok() && !self.trees.is_empty())
    }

    /// Looks through trees; those that are done are waited for.
    async fn walk(&mut self) -> Result<(), String> {
        let mut looked = 0;
        while looked < ROUND && !self.trees.is_empty() {
            let fence = self.fence().await?;
            // What the store has lost is folded again: until then a tree may lack some of its tasks.
            let known = |tree: &Tree| withdrawal_cause(tree.key.1).is_none_or(|cause| fence > cause);
            let count = self.trees.len().min(AT_ONCE);
            let (ready, early): (Vec<Tree>, Vec<Tree>) = self.trees.drain(..count).partition(known);
            self.trees.extend(early);
            if ready.is_empty() {
                return Err("the store has not come to where they ended".to_owned());
            }
            let keys: Vec<(CancelKey, Instant)> = ready.iter().map(|tree| (tree.key.clone(), tree.since)).collect();
            let walks = ready.into_iter().map(|tree| tree.step(self.setup, self.number));
            let walked: Vec<_> = stream::iter(walks).buffered(AT_ONCE).collect().await;
            let is_lost = self.fence().await.map_or(true, |now| now < fence);
            let mut failed = is_lost.then(|| "the store has lost what was folded".to_owned());
            for ((key, since), walked) in keys.into_iter().zip(walked) {
                match walked {
                    Ok((tree, count)) if !is_lost => {
                        looked += count;
                        match tree.is_done() {
                            true => self.ended.push(tree.ended()),
                            false => self.trees.push_back(tree),
                        }
                    }
                    walked => {
                        failed = failed.or(walked.err());
                        self.trees.push_back(Tree::new(key, since));
                    }
                }
            }
            if let Some(why) = failed {
                return Err(why);
            }
        }
        Ok(())
    }

    async fn fence(&self) -> Result<i64, String> {
        let found = self.setup.store.fences(&[self.number]).await.map_err(told)?;
        Ok(found.first().copied().flatten().map_or(0, |fence| fence.offset))
    }

    /// Those that the workers have passed.
    async fn measure(&mut self) -> Result<Vec<CancelKey>, String> {
        let types: BTreeSet<Arc<str>> = self.ended.iter().flat_map(|ended| ended.types.keys().cloned()).collect();
        let now = Instant::now();
        let since = match self.ended.iter().filter(|ended| !ended.is_placed()).map(|ended| ended.since).max() {
            Some(since) => since.max(now.checked_sub(FIRST_REST).unwrap_or(since)),
            None => now.checked_sub(FIRST_REST).unwrap_or(now),
        };
        let survey = match types.is_empty() {
            true => BTreeMap::new(),
            false => self.surveys.survey(self.setup, types, since).await?,
        };
        let mut passed = Vec::new();
        self.ended.retain_mut(|ended| {
            let is_over = ended.is_over(&survey);
            passed.extend(is_over.then(|| ended.key.clone()));
            !is_over
        });
        if let Some(error) = survey.values().find_map(|found| found.as_ref().err()) {
            self.complain(&error.to_string());
        }
        Ok(passed)
    }

    fn complain(&mut self, why: &str) {
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAINT_EVERY) {
            self.complained = Some(Instant::now());
            tracing::warn!(
                partition = self.number,
                waiting = self.ended.len(),
                reason = why,
                "how far workers are cannot be seen: cancels stay on the control topic until it can"
            );
        }
    }
}

impl Ended {
    fn is_placed(&self) -> bool {
        self.types.values().all(Option::is_some)
    }

    /// The workers are past all of it; what they are past is left out from now on.
    fn is_over(&mut self, survey: &BTreeMap<Arc<str>, Result<Arc<WorkerProgress>, BrokerError>>) -> bool {
        self.types.retain(|task_type, ends| match survey.get(task_type) {
            Some(Ok(now)) => {
                let known = ends.take().filter(|ends| !is_another(ends, now)).unwrap_or_else(|| now.clone());
                let left = !is_past(&known, now);
                *ends = Some(known);
                left
            }
            // There is another topic of that name by now, or none.
            Some(Err(error)) if !error.is_transient() => {
                *ends = None;
                true
            }
            _ => true,
        });
        self.types.is_empty()
    }
}

/// Everything that the partitions held then is behind the workers now.
fn is_past(then: &WorkerProgress, now: &WorkerProgress) -> bool {
    then.iter().all(|ended| {
        let found = now.iter().find(|found| found.partition == ended.partition);
        // One that holds nothing any more is left out.
        found.is_none_or(|found| found.consumed >= ended.end)
    })
}

/// A partition ends before its own earlier end: the topic was deleted and made anew.
fn is_another(then: &WorkerProgress, now: &WorkerProgress) -> bool {
    then.iter().any(|ended| now.iter().any(|found| found.partition == ended.partition && found.end < ended.end))
}

impl Tree {
    /// At its beginning.
    fn new(key: CancelKey, since: Instant) -> Self {
        Self { key, since, types: BTreeSet::new(), open: None }
    }

    fn is_done(&self) -> bool {
        self.open.as_ref().is_some_and(Vec::is_empty)
    }

    fn ended(self) -> Ended {
        let types = self.types.into_iter().map(|task_type| (task_type, None)).collect();
        Ended { key: self.key, since: self.since, types }
    }

    /// Looks at some more, and says at how many.
    async fn step(mut self, setup: &Arc<TrackerSetup>, number: u32) -> Result<(Self, usize), String> {
        let mut looked = 0;
        if self.open.is_none() {
            let top = self.key.0.clone();
            let node = setup.store.nodes(number, std::slice::from_ref(&top)).await.map_err(told)?.pop().flatten();
            self.open = Some(Vec::new());
            looked += 1;
            node.into_iter().for_each(|node| self.look(top.clone(), &node));
        }
        while looked < STEP
            && let Some((parent, after)) = self.open.as_mut().and_then(Vec::pop)
        {
            let page = setup.store.page(number, &Index::Children(parent.clone()), after.as_ref(), PAGE).await.map_err(told)?;
            if page.len() == PAGE {
                self.open.get_or_insert_default().push((parent, page.last().cloned()));
            }
            looked += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let nodes = setup.store.nodes(number, &ids).await.map_err(told)?;
            for (id, node) in ids.into_iter().zip(nodes) {
                node.into_iter().for_each(|node| self.look(id.clone(), &node));
            }
        }
        Ok((self, looked))
    }

    fn look(&mut self, id: TaskId, node: &TaskRecord) {
        let tree = children_of(&node.below).2;
        // What was cancelled has failed where something below it has. A later run no longer counts what an earlier one had.
        let ended = [State::Cancelled, State::Expired, State::Failed].iter().any(|state| tree.get(*state) > 0);
        if ended || (node.has_below && node.run > 1) {
            self.open.get_or_insert_default().push((id, None));
        }
        let ends = |kind| matches!(kind, Kind::Cancelled | Kind::Expired);
        // Also one that its worker has ended: that may lose its partition before it has committed so much.
        if node.history.iter().any(|entry| ends(entry.kind) && !entry.ignored) && !node.is_external() {
            self.types.extend(node.task_type.clone());
        }
    }
}

fn told(error: StoreError) -> String {
    error.to_string()
}
