//! Projection of events into task records: a pure function of the log.
//!
//! A [`WorkingSet`] contains the records that a batch needs. Events are folded into it one by one; the resulting
//! [`Changes`](changes::Changes) are applied to the store together with the checkpoint. All decisions derive from the
//! log (events, offsets, append times), so that projecting it again gives the same result.

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

/// Version of the projection and of the stored formats. A store written by a higher version is left alone.
pub const FOLD_VERSION: u32 = 9;

/// Position of an event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: i64,
    /// The highest append time seen in the partition, epoch milliseconds.
    pub log_time_ms: i64,
}

/// Effect of an event on the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    /// Recorded in the history without any change: a duplicate, an event of an older run, a report after the end.
    Ignored,
    /// Ignored: the task has no record and the kind does not create one, or the run is out of range.
    NoRecord,
}

/// Loaded task records of one partition, and their pending changes.
pub struct WorkingSet {
    slots: FxHashMap<TaskId, WorkingEntry>,
    /// Changed records in the order of their first change.
    dirty: Vec<TaskId>,
    logs: Vec<(TaskId, Vec<String>)>,
    attachments: Vec<(TaskId, String, Option<Vec<u8>>)>,
    kept: FxHashMap<TaskId, Option<Vec<u8>>>,
    /// Bytes of deferred records in the partition.
    kept_bytes: u64,
    /// Continuations of loaded records, which must be loaded too.
    wanted: Vec<TaskId>,
    ages: Arc<Ages>,
    /// Set when an event changed the lifetimes, until the changes are taken.
    new_lifetimes: bool,
}

/// Lifetimes in force, and earliest expiry among the changed records.
struct Ages {
    lifetimes: Lifetimes,
    /// Earliest expiry by log time among records changed since [`WorkingSet::clear_due`].
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
    /// `None`: the store has no record.
    node: Option<TaskRecord>,
    /// Indexed fields as stored, once the entry is dirty.
    stored: Option<Placed>,
    dirty: bool,
    used: bool,
}

/// Event that causes a change.
#[derive(Clone, Copy)]
struct Change<'a> {
    id: &'a TaskId,
    at_ms: i64,
    place: Place,
    ages: &'a Ages,
}

impl WorkingSet {
    /// Resumes a partition with its deferred bytes and the lifetimes in force.
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
        if let Some(node) = node.as_ref().filter(|node| node.has_continuations()) {
            node.continuation_ids(&id, &mut self.wanted);
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

    /// Shrinks the cache to at most `limit` records by dropping those not used since the last call. Ancestors of a
    /// record that stays are kept. Call between batches only.
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
                if let Some(node) = self.node(id.as_str()).filter(|node| node.has_continuations()) {
                    node.continuation_ids(&id, &mut follow);
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

    /// Folds one event into the working set. The records it needs ([`WorkingSet::missing`]) must be loaded.
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
        let above = if grows || event.task.is_some() { self.ancestor_cancel(&event.id) } else { None };
        let next_run = if event.kind == Kind::RetryRequested { self.next_run(event) } else { 0 };
        let room = MAX_KEPT_BYTES.saturating_sub(self.kept_bytes);
        let Some(node) = self.node_mut(&event.id) else { return Verdict::NoRecord };
        let (before, kept_before) = (rollup_input(&event.id, node), node.kept);
        let seen = (node.announced, node.run);
        let is_of_run = event.kind.creates() && event.run >= node.run;
        let was_cancelled_ahead = is_of_run && event.task.is_some() && node.is_cancelled_unannounced();
        if was_cancelled_ahead || (is_of_run && node.is_expired_unannounced()) {
            node.restore_expected();
        }
        let step = step(node, event, place, next_run);
        if was_cancelled_ahead {
            requests::reissue_cancel(node, place);
        }
        let later = above.is_some() || event.kind == Kind::RetryRequested;
        let inherited = requests::inherit_cancel(node, above, cause);
        let kept = (event.record.is_some() || kept_before > 0)
            .then(|| (keep(node, event, step.verdict, place, kept_before, room), node.kept));
        add_to_history(node, event, place, &step);
        inherited.into_iter().for_each(|entry| node.push_history(entry));
        node.folded_to = place.offset + 1;
        notifications::notify_passed_states(node, &step.passed, cause);
        let fresh = seen != (node.announced, node.run);
        if continuations::has_due(node) {
            self.create_continuations(&event.id, cause);
            self.node_mut(&event.id).into_iter().for_each(|node| refresh(node, cause));
        } else {
            refresh(node, cause);
        }
        if later {
            self.mark_outlived(&event.id);
        }
        if fresh {
            self.extend_retention(&event.id, ages.lifetimes.max_tree_age_ms);
        }
        // The announcement of a policy or a new run applies to failures of children that were recorded before.
        if fresh && self.node(event.id.as_str()).is_some_and(child_failures::must_fail_fast) {
            self.fail_fast(&event.id, None, cause);
        }
        if let Some((Some(keeping), now)) = kept {
            self.record_deferred(&event.id, keeping, kept_before, now);
        }
        self.propagate(&event.id, Some(before), cause);
        if step.started {
            self.mark_start(event);
        }
        self.raise_highest_run(&event.id, step.run.max(event.run));
        if let Some(conflict) = step.conflict {
            self.record_conflict(event, place, conflict);
        }
        if step.verdict == Verdict::Applied {
            self.collect_side_data(event);
        }
        step.verdict
    }

    /// Creates records for a task and for its ancestors that have none.
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
        // From the top down. Expected ancestors get the lowest run, so that children of any run count.
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

    /// Returns a record for modification and marks it as changed.
    fn node_mut(&mut self, id: &TaskId) -> Option<&mut TaskRecord> {
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

    /// Propagates a change of a task's rollup input up to the root.
    fn propagate(&mut self, id: &TaskId, before: Option<RollupInput>, cause: Change<'_>) {
        let mut before = before;
        let mut child = id.clone();
        while let Some(parent_id) = child.parent_id() {
            let Some(now) = self.node(child.as_str()).map(|node| rollup_input(&child, node)) else { return };
            if before.as_ref() == Some(&now) {
                return;
            }
            let Some(parent) = self.node_mut(&parent_id) else { return };
            let (parent_before, had_failed_fast) = (rollup_input(&parent_id, parent), child_failures::has_failed_fast(parent));
            if let Some(before) = &before {
                rollup::uncount(&mut parent.below, parent.run, before);
            }
            rollup::count(&mut parent.below, parent.run, &now);
            parent.has_below = true;
            if continuations::has_due(parent) {
                self.create_continuations(&parent_id, Change { id, ..cause });
            }
            let Some(parent) = self.node_mut(&parent_id) else { return };
            refresh(parent, Change { id, ..cause });
            match had_failed_fast {
                true => child_failures::clear_child_failure(parent),
                false if child_failures::must_fail_fast(parent) => self.fail_fast(&parent_id, Some(&child), cause),
                false => {}
            }
            before = Some(parent_before);
            child = parent_id;
        }
    }

    /// Records the first start in a tree on all ancestors.
    fn mark_start(&mut self, event: &Event) {
        let at_ms = event.started_at_ms.unwrap_or(event.at_ms);
        let mut next = Some(event.id.clone());
        while let Some(id) = next {
            if self.node(id.as_str()).is_none_or(|node| node.first_start.is_some()) {
                return;
            }
            if let Some(node) = self.node_mut(&id) {
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
        if let Some(node) = self.node_mut(&root) {
            node.highest_run = run;
        }
    }

    /// Run started by a retry: one above the highest in the tree, unless the request names it.
    fn next_run(&self, event: &Event) -> u32 {
        let highest = self.node(event.id.root()).map_or(0, |root| root.highest_run);
        event.new_run.unwrap_or(highest.saturating_add(1))
    }

    /// Marks ancestors' cancels from which this newer task is exempt, so that a repeated cancel includes the task.
    fn mark_outlived(&mut self, id: &TaskId) {
        let Some(asof) = self.node(id.as_str()).filter(|node| !node.own.is_terminal()).map(|node| node.asof) else { return };
        let mut next = id.parent_id();
        while let Some(above) = next {
            let outlived = |cancel: &&Cancel| cancel.named && cancel.subtree && cancel.asof <= asof && !cancel.outlived;
            let is_new = self.node(above.as_str()).and_then(|node| node.cancel.as_deref()).filter(outlived).is_some();
            let node = if is_new { self.node_mut(&above) } else { None };
            if let Some(cancel) = node.and_then(|node| node.cancel.as_deref_mut()) {
                cancel.outlived = true;
            }
            next = above.parent_id();
        }
    }

    fn record_deferred(&mut self, id: &TaskId, keeping: DeferredRecord, before: u32, now: u32) {
        self.kept_bytes = (self.kept_bytes + u64::from(now)).saturating_sub(u64::from(before));
        self.kept.insert(
            id.clone(),
            match keeping {
                DeferredRecord::Put(bytes) => Some(bytes),
                DeferredRecord::Drop => None,
            },
        );
    }

    /// Collects log lines and attachments, which are stored next to the record.
    fn collect_side_data(&mut self, event: &Event) {
        if event.kind == Kind::Log {
            self.logs.push((event.id.clone(), event.lines.clone()));
        }
        if let Some(given) = event.attachment.as_deref() {
            let data = (event.kind == Kind::Attached).then(|| given.data.clone());
            self.attachments.push((event.id.clone(), given.name.clone(), data));
        }
    }

    /// Records a conflict of two different tasks with one id in the parent's history, or in the root's own.
    fn record_conflict(&mut self, event: &Event, place: Place, conflict: String) {
        let reported_on = event.id.parent_id().unwrap_or_else(|| event.id.clone());
        if let Some(node) = self.node_mut(&reported_on) {
            let entry =
                HistoryEntry { kind: Kind::Warned, message: Some(conflict), ..history_entry(event, place, Verdict::Ignored) };
            node.push_history(entry);
        }
    }
}

/// Effect of one event on its own task.
struct Step {
    verdict: Verdict,
    in_history: bool,
    started: bool,
    conflict: Option<String>,
    /// Highest run in use in the tree.
    run: u32,
    /// Own states implied by the event but not reported by earlier events, with their times. Empty for tasks without
    /// actions and checks.
    passed: Vec<(State, i64)>,
    /// Set for the first `submitted` of a run after other events of that run.
    is_late_announcement: bool,
}

impl Step {
    fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            in_history: true,
            started: false,
            conflict: None,
            run: 0,
            passed: Vec::new(),
            is_late_announcement: false,
        }
    }
}

fn step(node: &mut TaskRecord, event: &Event, place: Place, next_run: u32) -> Step {
    match event.kind {
        Kind::CancelRequested => return requests::cancel(node, event, place),
        Kind::RetryRequested => return requests::retry(node, event, place, next_run),
        Kind::EffectDone => return requests::effect_done(node, event),
        Kind::Patched => return requests::patch(node, event),
        Kind::Attached | Kind::Detached => return attachments::attach(node, event),
        Kind::WorkerSilent => return mark_silent(node, event),
        // A line from outside any attempt belongs to the task in whichever run.
        Kind::Log if event.worker.is_none() => return Step { in_history: false, ..Step::of(attach(node, event)) },
        Kind::Checked => return notifications::run_check(node, event, place),
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
    // Handler continuations are numbered after the policy's, so the policy must be known.
    if !event.then.is_empty() && node.announced && !node.own.is_terminal() {
        node.handler_continuations = Some(event.then.clone());
    }
    let was_started = node.started_at_ms.is_some();
    let mut passed = notifications::passed_states(node, event);
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

/// Adds the event to the history.
fn add_to_history(node: &mut TaskRecord, event: &Event, place: Place, step: &Step) {
    if step.is_late_announcement {
        node.insert_announcement(late_announcement(event, place));
    } else if step.in_history {
        node.push_history(history_entry(event, place, step.verdict));
    }
}

/// Resets the record for a new run; groups of children of older runs are superseded.
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

/// Applies an announcement. Within a run the first one counts; another task with the same id and run is a conflict.
fn announce(node: &mut TaskRecord, id: &TaskId, task: &Announcement) -> Option<String> {
    if node.announced {
        let other_type = node.task_type.as_deref() != Some(&*task.task_type);
        let other_hash = node.hash.is_some() && task.hash.is_some() && node.hash != task.hash;
        if !other_type && !other_hash {
            // The same task published again, after a wait or for a retry.
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

/// Newer of two positions in the same partition; a lower offset comes from a late event.
fn newest(known: Option<Position>, new: Option<Position>) -> Option<Position> {
    match (known, new) {
        (Some(known), Some(new)) if known.partition == new.partition && new.offset < known.offset => Some(known),
        _ => new.or(known),
    }
}

/// Marks the worker of a task as silent. No state changes, but a cancel no longer waits for that worker.
fn mark_silent(node: &mut TaskRecord, event: &Event) -> Step {
    if event.run != node.run || event.worker.is_none() || event.worker != node.worker || !node.is_held() {
        return Step::of(Verdict::Ignored);
    }
    node.silent = true;
    Step::of(Verdict::Applied)
}

fn rollup_input(id: &TaskId, node: &TaskRecord) -> RollupInput {
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

/// Recomputes the state and the fields derived from it.
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
        requests::withdraw_cancel(node, cause.place);
    }
    notifications::evaluate(node, cause);
    let before = node.age;
    node.schedule_expiry(&cause.ages.lifetimes, cause.place.log_time_ms);
    if let Some(age) = node.age.filter(|age| Some(*age) != before) {
        cause.ages.soonest_ms.fetch_min(age.due_ms, Relaxed);
    }
}

pub mod changes;
#[cfg(test)]
pub(crate) mod tests;
