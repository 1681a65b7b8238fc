//! Events become records: the heart of the tracker, a pure function of the log.
//!
//! A [`WorkingSet`] holds the records that a batch needs. Events are folded into it one by one; what changed is then taken
//! out as [`Changes`] and applied to the store together with the fence. Everything decided here comes from the log
//! (events, offsets, append times), so folding it again gives the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use rustc_hash::{FxHashMap, FxHashSet};

use super::event::{Announcement, Event, Kind};
use super::outbox::{Cancel, MAX_KEPT_BYTES};
use super::record::rollup;
use super::record::rollup::RollupInput;
use super::record::state::State;
use super::record::{HistoryEntry, Moment, TaskRecord};
use super::retention::Lifetimes;
use super::task::continuation::number_of;
use super::task::id::TaskId;
use super::task::{MAX_RUN, OnFailure, Position};
use deferred_record::{DeferredRecord, keep};
pub use diff::Placed;
pub use expiry::Expired;
use reports::{attach, history_entry, late_announcement, report};
use state_machine::advance;

mod attachments;
mod child_failures;
mod continuations;
mod deferred_record;
mod diff;
mod expiry;
mod load_set;
mod notifications;
mod reports;
mod requests;
mod state_machine;

/// The version of this fold. A store written by a higher one is left alone.
pub const FOLD_VERSION: u32 = 9;

/// Where an event lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: i64,
    /// The highest append time seen in the partition, epoch milliseconds.
    pub log_time_ms: i64,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    /// In the history, but it changed nothing: a duplicate, an older run, a report after the end.
    Ignored,
    /// It speaks of a task that has no record, and makes none; or of a run that no task can have.
    NoRecord,
}

/// The records at hand, and what has changed in them.
pub struct WorkingSet {
    slots: FxHashMap<TaskId, WorkingEntry>,
    /// In the order of their first change.
    dirty: Vec<TaskId>,
    logs: Vec<(TaskId, Vec<String>)>,
    attachments: Vec<(TaskId, String, Option<Vec<u8>>)>,
    kept: FxHashMap<TaskId, Option<Vec<u8>>>,
    /// Bytes of the partition's records that wait for their time.
    kept_bytes: u64,
    /// Continuations of records at hand: they are to be at hand too.
    wanted: Vec<TaskId>,
    ages: Arc<Ages>,
    /// An event has told other lifetimes since they were last taken out.
    new_lifetimes: bool,
}

/// How long things last, and what comes first of what has changed.
struct Ages {
    lifetimes: Lifetimes,
    /// When log time brings something first, of what has changed since [`WorkingSet::clear_due`].
    soonest_ms: AtomicI64,
}

impl Ages {
    fn new(lifetimes: Lifetimes, soonest_ms: i64) -> Arc<Self> {
        Arc::new(Self { lifetimes, soonest_ms: soonest_ms.into() })
    }
}

impl Default for WorkingSet {
    fn default() -> Self {
        Self::resume(0, Lifetimes::default())
    }
}

struct WorkingEntry {
    /// None: the store has no record.
    node: Option<TaskRecord>,
    /// As the store has it, once the slot is dirty.
    stored: Option<Placed>,
    dirty: bool,
    used: bool,
}

/// The event that a change comes from.
#[derive(Clone, Copy)]
struct Change<'a> {
    id: &'a TaskId,
    at_ms: i64,
    place: Place,
    ages: &'a Ages,
}

impl WorkingSet {
    /// Goes on with a partition that keeps so many bytes of waiting records, and where these lifetimes are in force.
    pub fn resume(kept_bytes: u64, lifetimes: Lifetimes) -> Self {
        Self {
            slots: FxHashMap::default(),
            dirty: Vec::new(),
            logs: Vec::new(),
            attachments: Vec::new(),
            kept: FxHashMap::default(),
            kept_bytes,
            wanted: Vec::new(),
            ages: Ages::new(lifetimes, i64::MAX),
            new_lifetimes: false,
        }
    }

    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    pub fn load(&mut self, id: TaskId, node: Option<TaskRecord>) {
        if let Some(node) = node.as_ref().filter(|node| node.has_thens()) {
            node.then_ids(&id, &mut self.wanted);
        }
        self.slots.insert(id, WorkingEntry { node, stored: None, dirty: false, used: true });
    }

    pub fn node(&self, id: &str) -> Option<&TaskRecord> {
        self.slots.get(id).and_then(|slot| slot.node.as_ref())
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&TaskId, &TaskRecord)> {
        self.slots.iter().filter_map(|(id, slot)| slot.node.as_ref().map(|node| (id, node)))
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Keeps the cache bounded: beyond `limit` records, those not used since the last call go. Whatever lies above a
    /// record that stays, stays too. Call it between batches only.
    pub fn shrink(&mut self, limit: usize) {
        if self.slots.len() <= limit {
            return;
        }
        let used: Vec<TaskId> = self.slots.iter().filter(|(_, slot)| slot.used).map(|(id, _)| id.clone()).collect();
        if used.len() > limit {
            self.slots.clear();
            return;
        }
        let (mut keep, mut follow) = (FxHashSet::default(), Vec::new());
        for id in used {
            let mut next = Some(id);
            while let Some(id) = next {
                next = id.parent_id();
                if let Some(node) = self.node(id.as_str()).filter(|node| node.has_thens()) {
                    node.then_ids(&id, &mut follow);
                }
                if !keep.insert(id) {
                    break;
                }
            }
        }
        keep.extend(follow);
        self.slots.retain(|id, slot| {
            slot.used = false;
            keep.contains(id)
        });
    }

    /// Folds one event. The records it needs ([`WorkingSet::missing`]) must be at hand.
    pub fn fold(&mut self, event: &Event, place: Place) -> Verdict {
        if event.kind.is_of_no_task() {
            return self.take_settings(event);
        }
        if event.run > MAX_RUN || event.new_run.is_some_and(|run| run > MAX_RUN) {
            return Verdict::NoRecord;
        }
        let ages = self.ages.clone();
        let cause = Change { id: &event.id, at_ms: event.at_ms, place, ages: &ages };
        let grows = self.node(event.id.as_str()).is_none();
        if grows {
            if !event.kind.creates() {
                return Verdict::NoRecord;
            }
            self.ensure_ancestors(&event.id, event.run, cause);
        }
        let above = if grows || event.task.is_some() { self.cancel_above(&event.id) } else { None };
        let next_run = if event.kind == Kind::RetryRequested { self.next_run(event) } else { 0 };
        let room = MAX_KEPT_BYTES.saturating_sub(self.kept_bytes);
        let Some(node) = self.touch(&event.id) else { return Verdict::NoRecord };
        let (before, kept_before) = (standing(&event.id, node), node.kept);
        let seen = (node.announced, node.run);
        let is_of_run = event.kind.creates() && event.run >= node.run;
        let was_cancelled_ahead = is_of_run && event.task.is_some() && node.is_cancelled_ahead();
        if was_cancelled_ahead || (is_of_run && node.is_given_up()) {
            node.take_back();
        }
        let step = step(node, event, place, next_run);
        if was_cancelled_ahead {
            requests::cancel_again(node, place);
        }
        let later = above.is_some() || event.kind == Kind::RetryRequested;
        let inherited = requests::inherit(node, above, cause);
        let kept = (event.record.is_some() || kept_before > 0)
            .then(|| (keep(node, event, step.verdict, place, kept_before, room), node.kept));
        remember(node, event, place, &step);
        inherited.into_iter().for_each(|entry| node.remember(entry));
        node.folded_to = place.offset + 1;
        notifications::pass(node, &step.passed, cause);
        let fresh = seen != (node.announced, node.run);
        if continuations::is_due(node) {
            self.follow(&event.id, cause);
            self.touch(&event.id).into_iter().for_each(|node| refresh(node, cause));
        } else {
            refresh(node, cause);
        }
        if later {
            self.outlive(&event.id);
        }
        if fresh {
            self.hold(&event.id, ages.lifetimes.max_tree_age_ms);
        }
        // With its policy, or with a new run, what its children have reached counts as if it happened now.
        if fresh && self.node(event.id.as_str()).is_some_and(child_failures::trips) {
            self.fail_fast(&event.id, None, cause);
        }
        if let Some((Some(keeping), now)) = kept {
            self.note_kept(&event.id, keeping, kept_before, now);
        }
        self.propagate(&event.id, Some(before), cause);
        if step.started {
            self.mark_start(event);
        }
        self.raise_highest_run(&event.id, step.run.max(event.run));
        if let Some(conflict) = step.conflict {
            self.tell_conflict(event, place, conflict);
        }
        if step.verdict == Verdict::Applied {
            self.note_beside(event);
        }
        step.verdict
    }

    /// Makes a record for a task, and for everything above it that has none.
    fn ensure_ancestors(&mut self, id: &TaskId, run: u32, cause: Change<'_>) {
        let mut missing: Vec<TaskId> = Vec::new();
        let mut next = id.parent_id();
        while let Some(above) = next {
            if self.node(above.as_str()).is_some() {
                break;
            }
            next = above.parent_id();
            missing.push(above);
        }
        // From the top down: an expected parent takes the lowest run, so that whatever comes under it counts.
        for above in missing.into_iter().rev() {
            self.add(above, TaskRecord::expected(1, cause.place.log_time_ms), cause);
        }
        self.add(id.clone(), TaskRecord::expected(run, cause.place.log_time_ms), cause);
    }

    fn add(&mut self, id: TaskId, mut node: TaskRecord, cause: Change<'_>) {
        node.root = id.is_root();
        self.slots.insert(id.clone(), WorkingEntry { node: Some(node), stored: None, dirty: true, used: true });
        self.dirty.push(id.clone());
        self.propagate(&id, None, Change { id: &id, ..cause });
    }

    /// A record about to be changed.
    fn touch(&mut self, id: &TaskId) -> Option<&mut TaskRecord> {
        let slot = self.slots.get_mut(id)?;
        let node = slot.node.as_mut()?;
        slot.used = true;
        if !slot.dirty {
            slot.dirty = true;
            slot.stored = Some(Placed::of(node));
            self.dirty.push(id.clone());
        }
        Some(node)
    }

    /// Carries a change of a task's standing up to the root.
    fn propagate(&mut self, id: &TaskId, before: Option<RollupInput>, cause: Change<'_>) {
        let mut before = before;
        let mut child = id.clone();
        while let Some(parent_id) = child.parent_id() {
            let Some(now) = self.node(child.as_str()).map(|node| standing(&child, node)) else { return };
            if before.as_ref() == Some(&now) {
                return;
            }
            let Some(parent) = self.touch(&parent_id) else { return };
            let (parent_before, was_lost) = (standing(&parent_id, parent), child_failures::is_lost(parent));
            if let Some(before) = &before {
                rollup::uncount(&mut parent.below, parent.run, before);
            }
            rollup::count(&mut parent.below, parent.run, &now);
            parent.has_below = true;
            if continuations::is_due(parent) {
                self.follow(&parent_id, Change { id, ..cause });
            }
            let Some(parent) = self.touch(&parent_id) else { return };
            refresh(parent, Change { id, ..cause });
            match was_lost {
                true => child_failures::heal(parent),
                false if child_failures::trips(parent) => self.fail_fast(&parent_id, Some(&child), cause),
                false => {}
            }
            before = Some(parent_before);
            child = parent_id;
        }
    }

    /// The first start in a tree is remembered by everything above it.
    fn mark_start(&mut self, event: &Event) {
        let at_ms = event.started_at_ms.unwrap_or(event.at_ms);
        let mut next = Some(event.id.clone());
        while let Some(id) = next {
            if self.node(id.as_str()).is_none_or(|node| node.first_start.is_some()) {
                return;
            }
            if let Some(node) = self.touch(&id) {
                node.first_start = Some(Box::new(Moment { at_ms, by: event.id.to_string() }));
            }
            next = id.parent_id();
        }
    }

    fn raise_highest_run(&mut self, id: &TaskId, run: u32) {
        if self.node(id.root()).is_none_or(|node| node.highest_run >= run) {
            return;
        }
        let Ok(root) = TaskId::parse(id.root()) else { return };
        if let Some(node) = self.touch(&root) {
            node.highest_run = run;
        }
    }

    /// The run that a retry gives: the one after the highest in the tree, unless it was decided above.
    fn next_run(&self, event: &Event) -> u32 {
        let highest = self.node(event.id.root()).map_or(0, |root| root.highest_run);
        event.new_run.unwrap_or(highest.saturating_add(1))
    }

    /// A task that was made or started anew after the cancels above it goes on: who asks again means it too.
    fn outlive(&mut self, id: &TaskId) {
        let Some(asof) = self.node(id.as_str()).filter(|node| !node.own.is_terminal()).map(|node| node.asof) else { return };
        let mut next = id.parent_id();
        while let Some(above) = next {
            let outlived = |cancel: &&Cancel| cancel.named && cancel.subtree && cancel.asof <= asof && !cancel.outlived;
            let is_new = self.node(above.as_str()).and_then(|node| node.cancel.as_deref()).filter(outlived).is_some();
            let node = if is_new { self.touch(&above) } else { None };
            if let Some(cancel) = node.and_then(|node| node.cancel.as_deref_mut()) {
                cancel.outlived = true;
            }
            next = above.parent_id();
        }
    }

    fn note_kept(&mut self, id: &TaskId, keeping: DeferredRecord, before: u32, now: u32) {
        self.kept_bytes = (self.kept_bytes + u64::from(now)).saturating_sub(u64::from(before));
        self.kept.insert(
            id.clone(),
            match keeping {
                DeferredRecord::Put(bytes) => Some(bytes),
                DeferredRecord::Drop => None,
            },
        );
    }

    /// What is kept beside the record.
    fn note_beside(&mut self, event: &Event) {
        if event.kind == Kind::Log {
            self.logs.push((event.id.clone(), event.lines.clone()));
        }
        if let Some(given) = event.attachment.as_deref() {
            let data = (event.kind == Kind::Attached).then(|| given.data.clone());
            self.attachments.push((event.id.clone(), given.name.clone(), data));
        }
    }

    /// Two different tasks under one id: told on the parent, or on the root itself.
    fn tell_conflict(&mut self, event: &Event, place: Place, conflict: String) {
        let told_on = event.id.parent_id().unwrap_or_else(|| event.id.clone());
        if let Some(node) = self.touch(&told_on) {
            let entry =
                HistoryEntry { kind: Kind::Warned, message: Some(conflict), ..history_entry(event, place, Verdict::Ignored) };
            node.remember(entry);
        }
    }
}

/// What one event does to its own task.
struct Step {
    verdict: Verdict,
    in_history: bool,
    started: bool,
    conflict: Option<String>,
    /// A run that is taken in the tree.
    run: u32,
    /// Own states that the event implies and that no event of their own has told, with their times. Only for tasks with actions or checks.
    passed: Vec<(State, i64)>,
    /// The first `submitted` of the run, after other events of that run.
    is_late_announcement: bool,
}

impl Step {
    fn of(verdict: Verdict) -> Self {
        let (passed, is_late_announcement) = Default::default();
        Self { verdict, in_history: true, started: false, conflict: None, run: 0, passed, is_late_announcement }
    }
}

fn step(node: &mut TaskRecord, event: &Event, place: Place, next_run: u32) -> Step {
    match event.kind {
        Kind::CancelRequested => return requests::cancel(node, event, place),
        Kind::RetryRequested => return requests::retry(node, event, place, next_run),
        Kind::EffectDone => return requests::effect_done(node, event),
        Kind::Patched => return requests::patch(node, event),
        Kind::Attached | Kind::Detached => return attachments::attach(node, event),
        Kind::WorkerSilent => return silence(node, event),
        // From outside of any attempt: it belongs to the task, whichever run that is in.
        Kind::Log if event.worker.is_none() => return Step { in_history: false, ..Step::of(attach(node, event)) },
        Kind::Checked => return notifications::checked(node, event, place),
        _ => {}
    }
    if event.run < node.run {
        return Step::of(Verdict::Ignored);
    }
    if event.run > node.run {
        if !event.kind.creates() {
            return Step::of(Verdict::Ignored);
        }
        begin_run(node, event.run);
    }
    let conflict = event.task.as_ref().and_then(|task| announce(node, &event.id, task));
    let announces = event.kind == Kind::Submitted || (event.kind == Kind::Scheduled && event.record.is_some());
    if conflict.is_some() && announces {
        return Step { conflict, ..Step::of(Verdict::Ignored) };
    }
    // Their numbers go on from those of its policy, which so has to be known.
    if !event.then.is_empty() && node.announced && !node.own.is_terminal() {
        node.handler_continuations = Some(event.then.clone());
    }
    let was_started = node.started_at_ms.is_some();
    let mut passed = notifications::passed(node, event);
    let verdict = match event.kind {
        Kind::Progress | Kind::Log => attach(node, event),
        Kind::Reported => report(node, event),
        _ => advance(node, event, place),
    };
    if verdict == Verdict::Ignored {
        passed.clear();
    }
    let is_late_announcement = verdict == Verdict::Ignored && event.kind == Kind::Submitted && node.has_unannounced_events();
    let in_history = !matches!(event.kind, Kind::Progress | Kind::Log);
    let started = !was_started && node.started_at_ms.is_some();
    Step { in_history, started, conflict, passed, is_late_announcement, ..Step::of(verdict) }
}

/// What the history says of the event.
fn remember(node: &mut TaskRecord, event: &Event, place: Place, step: &Step) {
    if step.is_late_announcement {
        node.remember_announcement(late_announcement(event, place));
    } else if step.in_history {
        node.remember(history_entry(event, place, step.verdict));
    }
}

/// A new run starts from nothing; the groups of children below it are superseded.
fn begin_run(node: &mut TaskRecord, run: u32) {
    let fresh = TaskRecord::expected(run, node.seen_ms);
    let old = std::mem::replace(node, fresh);
    node.task_type = old.task_type;
    node.position = old.position;
    (node.policy, node.patched) = (old.policy, old.patched);
    node.created_at_ms = old.created_at_ms;
    node.first_start = old.first_start;
    node.highest_run = old.highest_run;
    node.history = old.history;
    node.history_dropped = old.history_dropped;
    node.duplicates = old.duplicates;
    node.log_lines = old.log_lines;
    node.log_dropped = old.log_dropped;
    node.attachments = old.attachments;
    (node.cancel, node.told_at, node.effects) = (old.cancel, old.told_at, old.effects);
    node.below = old.below;
    node.below.retain(|group| group.run >= run);
    (node.age, node.has_below, node.root) = (old.age, old.has_below, old.root);
    (node.told, node.hold_ms) = (old.told, old.hold_ms);
    if let Some(told) = node.told.as_deref_mut() {
        told.begin_run();
    }
}

/// The first announcement of a run counts; another task under the same id and run is a conflict.
fn announce(node: &mut TaskRecord, id: &TaskId, task: &Announcement) -> Option<String> {
    if node.announced {
        let other_type = node.task_type.as_deref() != Some(&*task.task_type);
        let other_hash = node.hash.is_some() && task.hash.is_some() && node.hash != task.hash;
        if !other_type && !other_hash {
            // The same task, published again: after its wait, or for a retry.
            node.position = newest(node.position, task.position);
            return None;
        }
        let have = node.task_type.as_deref().unwrap_or_default();
        return Some(format!(
            "spawn_conflict: `{id}` was submitted again with another type or params (first `{have}`, then `{}`)",
            task.task_type
        ));
    }
    node.announced = true;
    node.task_type = Some(task.task_type.clone());
    node.created_at_ms = Some(task.created_at_ms);
    node.position = task.position;
    node.hash = task.hash.clone();
    (node.policy, node.patched) = (task.policy.clone(), false);
    node.asof = task.asof.unwrap_or(-1);
    None
}

/// Whoever speaks of an earlier record of the task is late.
fn newest(known: Option<Position>, told: Option<Position>) -> Option<Position> {
    match (known, told) {
        (Some(known), Some(told)) if known.partition == told.partition && told.offset < known.offset => Some(known),
        _ => told.or(known),
    }
}

/// The worker that has the task is not heard of any more. It moves nothing, but nobody waits for that worker then.
fn silence(node: &mut TaskRecord, event: &Event) -> Step {
    if event.run != node.run || event.worker.is_none() || event.worker != node.worker || !node.is_held() {
        return Step::of(Verdict::Ignored);
    }
    node.silent = true;
    Step::of(Verdict::Applied)
}

fn standing(id: &TaskId, node: &TaskRecord) -> RollupInput {
    let (_, _, tree) = rollup::children_of(&node.below);
    let then = number_of(id.segment()).is_some();
    let ignored = node.on_failure() == OnFailure::Ignore;
    let restartable = u64::from(node.is_restartable()) + node.restartable_below();
    RollupInput { run: node.run, then, state: node.state, ignored, tree, restartable }
}

fn state_of(node: &TaskRecord) -> State {
    let cancelling = !node.own.is_terminal() && node.cancelled_by().is_some();
    if cancelling { State::Cancelling } else { rollup::combine(node.own, &node.below, node.tolerated()) }
}

/// Computes the state again and keeps the times that hang on it.
fn refresh(node: &mut TaskRecord, cause: Change<'_>) {
    let state = state_of(node);
    if state.is_terminal() != node.state.is_terminal() {
        let ended = state.is_terminal();
        node.ended_at_ms = ended.then_some(cause.at_ms);
        node.last_end = ended.then(|| Box::new(Moment { at_ms: cause.at_ms, by: cause.id.to_string() }));
    }
    node.state = state;
    if let Some(cancel) = node.cancel.as_deref_mut().filter(|cancel| cancel.named && state.is_terminal()) {
        cancel.named = false;
        requests::uncancel(node, cause.place);
    }
    notifications::judge(node, cause);
    let before = node.age;
    node.grow_older(&cause.ages.lifetimes, cause.place.log_time_ms);
    if let Some(age) = node.age.filter(|age| Some(*age) != before) {
        cause.ages.soonest_ms.fetch_min(age.due_ms, Relaxed);
    }
}

pub mod changes;
#[cfg(test)]
pub(crate) mod tests;
