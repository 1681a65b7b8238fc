//! Projection of one event: the change of its own task, and the consequences for the rest of the tree.
//!
//! The consequences go downwards first (continuations are created, children are stopped after a failure that decides
//! the task) and then upwards: `propagate` replaces the contribution of the changed task in the counts of its parent,
//! derives the parent's state again, and continues with the parent until a contribution is unchanged. The cost is the
//! depth of the tree, however many siblings there are.
//!
//! Invariant: a parent counts exactly the contribution (`RollupInput`) that each child has. Each change of a counted
//! record therefore keeps the contribution from before it. If another one is subtracted, the counts drift, and a parent
//! waits for children that do not exist, or ends too early.
//!
//! Read next: `crates/model/src/record/rollup.rs` (the counts and the table of states).

use super::deferred_record::{DeferredRecord, update_deferred_record};
use super::history::history_entry;
use super::records::Records;
use super::refresh::{refresh, rollup_input, set_end};
use super::requests::AncestorCancel;
use super::step::{add_to_history, step};
use super::step_outcome::Step;
use super::{Cause, Verdict, child_failures, continuations, notifications, requests, tally};
use crate::encode_error::EncodeError;
use crate::event::{Event, Kind};
use crate::outbox::{MAX_DEFERRED_BYTES, StoredCancel};
use crate::record::rollup::RollupInput;
use crate::record::{HistoryEntry, Moment, TaskRecord, rollup};
use crate::statistics::Observation;
use crate::task::id::TaskId;

/// Inputs of an event's change that come from outside its own record.
struct FoldContext {
    /// Cancel of an ancestor that may apply to the task.
    above: Option<AncestorCancel>,
    /// Run started by a retry.
    next_run: u32,
    /// Free bytes in the store for deferred records.
    room: u64,
    /// The record has just been added, and its parent does not count it yet.
    is_new: bool,
}

/// Change of the event's own task, with everything that its consequences depend on.
struct AppliedChange {
    step: Step,
    /// Rollup input before the event; `None` if the parent does not count the task yet.
    before: Option<RollupInput>,
    /// Change of the deferred record, with its size before and after.
    deferred: Option<(DeferredRecord, u32, u32)>,
    observation: Option<Observation>,
    /// The task may be exempt from cancels of its ancestors.
    is_newer: bool,
    /// The policy became known, or a new run began.
    is_fresh: bool,
    /// Continuations are due.
    has_due: bool,
    /// The task is open and has inherited the cancel of an ancestor.
    inherits_cancel: bool,
}

impl Records {
    /// Projects an event of a task. The records it needs must be loaded.
    pub(super) fn fold(&mut self, event: &Event, cause: Cause<'_>) -> Result<Verdict, EncodeError> {
        let is_new = self.task(event.id.as_str()).is_none();
        if is_new {
            if !event.kind().creates() {
                return Ok(Verdict::NoRecord);
            }
            self.insert_expected(&event.id, event.run, cause);
        }
        let context = FoldContext {
            is_new,
            above: if is_new || event.task.is_some() { self.ancestor_cancel(&event.id) } else { None },
            next_run: if event.kind() == Kind::RetryRequested { self.next_run(event) } else { 0 },
            room: MAX_DEFERRED_BYTES.saturating_sub(self.deferred_bytes),
        };
        let Some(task) = self.task_mut(&event.id) else { return Ok(Verdict::NoRecord) };
        let applied = apply(task, event, context, cause)?;
        Ok(self.apply_consequences(event, applied, cause))
    }

    /// Updates continuations, descendants and ancestors after the change of the event's own task.
    fn apply_consequences(&mut self, event: &Event, applied: AppliedChange, cause: Cause<'_>) -> Verdict {
        let AppliedChange { step, before, deferred, observation, is_newer, is_fresh, has_due, inherits_cancel } =
            applied;
        self.count(observation);
        if has_due {
            self.create_continuations(&event.id, cause);
            self.task_mut(&event.id).into_iter().for_each(|task| refresh(task, cause));
        }
        if is_newer {
            self.mark_outlived(&event.id);
        }
        if is_fresh {
            self.extend_retention(&event.id, cause.ages.lifetimes.max_tree_age_ms);
        }
        // The announcement of a policy or a new run applies to failures of children that were recorded before.
        if is_fresh && self.task(event.id.as_str()).is_some_and(child_failures::must_fail_fast) {
            self.fail_fast(&event.id, None, cause);
        }
        if let Some((change, before, now)) = deferred {
            self.record_deferred(&event.id, change, before, now);
        }
        self.propagate(&event.id, before, cause);
        if inherits_cancel {
            self.reissue_inherited_cancel(&event.id, cause.position);
        }
        if step.started {
            self.mark_start(event);
        }
        self.raise_highest_run(&event.id, step.run.max(event.run));
        if let Some(conflict) = step.conflict {
            self.record_conflict(event, cause.position, conflict);
        }
        if step.verdict == Verdict::Applied {
            self.collect_side_data(event);
        }
        step.verdict
    }

    /// Creates records for a task and for its ancestors that have none. The task's own is not yet counted by its
    /// parent: an event that creates and ends a child must not show the parent as waiting in between.
    fn insert_expected(&mut self, id: &TaskId, run: u32, cause: Cause<'_>) {
        let mut missing: Vec<TaskId> = Vec::new();
        let mut next = id.parent_id();
        while let Some(above) = next {
            if self.task(above.as_str()).is_some() {
                break;
            }
            next = above.parent_id();
            missing.push(above);
        }
        // From the root down. Expected ancestors get the lowest run, so that children of any run count.
        for above in missing.into_iter().rev() {
            self.insert(above.clone(), expected(&above, 1, cause));
            self.propagate(&above, None, Cause { id: &above, ..cause });
        }
        self.insert(id.clone(), expected(id, run, cause));
    }

    /// Propagates a change of a task's rollup input up to the root. `before` is the input that the parent counts, or
    /// `None` for a new task.
    pub(super) fn propagate(&mut self, id: &TaskId, before: Option<RollupInput>, cause: Cause<'_>) {
        let mut before = before;
        let grows = before.is_none();
        let mut child = id.clone();
        while let Some(parent_id) = child.parent_id() {
            let Some(now) = self.task(child.as_str()).map(|task| rollup_input(&child, task)) else { return };
            if before.as_ref() == Some(&now) {
                return;
            }
            let Some(parent) = self.task_mut(&parent_id) else { return };
            let parent_before = rollup_input(&parent_id, parent);
            let had_failed_fast = child_failures::has_failed_fast(parent);
            if let Some(before) = &before {
                rollup::uncount(&mut parent.tree.below, parent.run, before);
            }
            rollup::count(&mut parent.tree.below, parent.run, &now);
            parent.tree.has_below = true;
            if continuations::has_due(parent) {
                self.create_continuations(&parent_id, Cause { id, ..cause });
            }
            let Some(parent) = self.task_mut(&parent_id) else { return };
            refresh(parent, Cause { id, ..cause });
            if grows && parent.state.is_terminal() && rollup_input(&parent_id, parent) != parent_before {
                // A tree that had ended, and has a new task that has ended too, ended with that task.
                set_end(parent, Cause { id, ..cause });
            }
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
        let at_ms = event.payload.started_at_ms().unwrap_or(event.at_ms);
        let mut next = Some(event.id.clone());
        while let Some(id) = next {
            if self.task(id.as_str()).is_none_or(|task| task.tree.first_start.is_some()) {
                return;
            }
            if let Some(task) = self.task_mut(&id) {
                task.tree.first_start = Some(Box::new(Moment { at_ms, by: event.id.to_string() }));
            }
            next = id.parent_id();
        }
    }

    fn raise_highest_run(&mut self, id: &TaskId, run: u32) {
        if self.task(id.root()).is_none_or(|task| task.tree.highest_run >= run) {
            return;
        }
        let Ok(root) = TaskId::parse(id.root()) else { return };
        if let Some(task) = self.task_mut(&root) {
            task.tree.highest_run = run;
        }
    }

    /// Run started by a retry: one above the highest in the tree, unless the request names it.
    fn next_run(&self, event: &Event) -> u32 {
        let highest = self.task(event.id.root()).map_or(0, |root| root.tree.highest_run);
        event.payload.new_run().unwrap_or(highest.saturating_add(1))
    }

    /// Marks ancestors' cancels from which this newer task is exempt, so that a repeated cancel includes the task.
    pub(super) fn mark_outlived(&mut self, id: &TaskId) {
        let Some(asof) = self.task(id.as_str()).filter(|task| !task.own.is_terminal()).map(|task| task.requests.asof)
        else {
            return;
        };
        let mut next = id.parent_id();
        while let Some(above) = next {
            let outlived =
                |cancel: &&StoredCancel| cancel.named && cancel.subtree && cancel.asof <= asof && !cancel.outlived;
            let is_new =
                self.task(above.as_str()).and_then(|task| task.requests.cancel.as_deref()).filter(outlived).is_some();
            let task = if is_new { self.task_mut(&above) } else { None };
            if let Some(cancel) = task.and_then(|task| task.requests.cancel.as_deref_mut()) {
                cancel.outlived = true;
            }
            next = above.parent_id();
        }
    }

    /// Records a conflict of two different tasks with one id in the history of the task, and in that of its parent, which
    /// may have created both.
    fn record_conflict(&mut self, event: &Event, position: super::LogPosition, conflict: String) {
        self.id_conflicts += 1;
        let entry = HistoryEntry {
            kind: Kind::Warned,
            message: Some(conflict),
            ..history_entry(event, position, Verdict::Ignored)
        };
        for id in [Some(event.id.clone()), event.id.parent_id()].into_iter().flatten() {
            if let Some(task) = self.task_mut(&id) {
                task.history.push(entry.clone());
            }
        }
    }
}

fn expected(id: &TaskId, run: u32, cause: Cause<'_>) -> TaskRecord {
    let mut task = TaskRecord::expected(run, cause.position.log_time_ms);
    task.tree.root = id.is_root();
    task
}

/// Applies an event to the record of its task. Fails if the event's own record cannot be encoded.
fn apply(
    task: &mut TaskRecord,
    event: &Event,
    context: FoldContext,
    cause: Cause<'_>,
) -> Result<AppliedChange, EncodeError> {
    let position = cause.position;
    let before = (!context.is_new).then(|| rollup_input(&event.id, task));
    let counted_before = tally::CountedState::of(task);
    let (stored_before, was_deferred) = (task.deferral.stored_bytes(), task.deferral.is_deferred());
    let seen = (task.definition.announced, task.run);
    let is_of_run = event.kind().creates() && event.run >= task.run;
    let was_cancelled = is_of_run && event.task.is_some() && task.is_cancelled_unannounced();
    if was_cancelled || (is_of_run && task.is_expired_unannounced()) {
        task.restore_expected();
    }
    let step = step(task, event, position, context.next_run);
    if was_cancelled {
        requests::reissue_cancel(task, position);
    }
    let is_newer = context.above.is_some() || event.kind() == Kind::RetryRequested;
    let inherited = requests::inherit_cancel(task, context.above, cause);
    let inherits_cancel = inherited.is_some() && !task.own.is_terminal();
    let changes_deferred = event.payload.record().is_some() || was_deferred;
    let deferred = if changes_deferred {
        update_deferred_record(task, event, step.verdict, position, stored_before, context.room)?
    } else {
        None
    };
    let deferred = deferred.map(|change| (change, stored_before, task.deferral.stored_bytes()));
    add_to_history(task, event, position, &step);
    inherited.into_iter().for_each(|entry| task.history.push(entry));
    task.folded_to = position.offset + 1;
    notifications::notify_passed_states(task, &step.passed, cause);
    let is_fresh = seen != (task.definition.announced, task.run);
    let has_due = continuations::has_due(task);
    if !has_due {
        refresh(task, cause);
    }
    let observation = tally::compare(counted_before, task, position, Some((event, step.verdict)));
    Ok(AppliedChange { step, before, deferred, observation, is_newer, is_fresh, has_due, inherits_cancel })
}
