//! Continuations of a task that has ended. Their records are created before any ancestor's state is computed, so that
//! no ancestor appears finished in between.

use super::records::Records;
use super::refresh::{refresh, rollup_input};
use super::step::{announce, begin_run};
use super::{Cause, tally};
use crate::event::{Announcement, ErrorInfo, Kind};
use crate::outbox::{Effect, EffectKind};
use crate::record::rollup;
use crate::record::state::State;
use crate::record::{HistoryEntry, TaskRecord};
use crate::task::continuation;
use crate::task::continuation::{Continuation, MAX_CONTINUATIONS};
use crate::task::id::TaskId;

/// Returns true if a continuation has become due by the state of the task and its regular children.
pub(super) fn has_due(task: &TaskRecord) -> bool {
    task.has_continuations() && task.definition.announced && task.own.is_terminal() && !due(task).is_empty()
}

/// Continuations that are due and not yet created in this run.
fn due(task: &TaskRecord) -> Vec<(usize, Continuation)> {
    let ended = rollup::settled_state(task.own, &task.tree.below, task.definition.tolerated());
    let continuations = task.continuations().take(MAX_CONTINUATIONS).enumerate();
    continuations
        .filter(|(n, then)| task.continuations.created_mask & (1 << n) == 0 && then.on.is(ended))
        .map(|(n, then)| (n, then.clone()))
        .collect()
}

impl Records {
    /// Creates the due continuations of a task.
    pub(super) fn create_continuations(&mut self, id: &TaskId, cause: Cause<'_>) {
        for (n, then) in self.task(id.as_str()).map(due).unwrap_or_default() {
            let Some(task) = self.task_mut(id) else { return };
            task.continuations.created_mask |= 1 << n;
            match id.child(&continuation::segment(n)) {
                Ok(next) => self.create_continuation(id, &next, &then, cause),
                Err(error) => fail(task, cause, format!("the continuation {} has no valid id: {error}", n + 1)),
            }
        }
    }

    /// Creates one continuation in the current run of its task.
    fn create_continuation(&mut self, id: &TaskId, next: &TaskId, then: &Continuation, cause: Cause<'_>) {
        let followed = self.task(id.as_str()).map(|task| (task.run, task.definition.trace));
        let Some((run, trace)) = followed else { return };
        let before = self.task(next.as_str()).map(|task| rollup_input(next, task));
        if before.is_none() {
            self.insert(next.clone(), TaskRecord::expected(run, cause.position.log_time_ms));
        }
        let Some(task) = self.task_mut(next) else { return };
        if task.run > run || (task.run == run && task.definition.announced) {
            return;
        }
        let counted_before = tally::CountedState::of(task);
        task.restore_expected();
        let stored_bytes = task.deferral.clear_record();
        if task.run < run {
            begin_run(task, run);
            task.definition.position = None;
        }
        announce(task, next, &Announcement { trace, ..announcement(then, cause) });
        task.folded_to = cause.position.offset + 1;
        // Events of the continuation may precede its creation: a recorded terminal state is kept.
        if !task.own.is_terminal() {
            task.own = State::Queued;
            task.push_effect(Effect { cause: cause.position.offset, kind: EffectKind::PublishContinuation { run } });
        }
        task.history.push(entry(Kind::Submitted, run, cause, format!("follows `{id}`")));
        let observation = tally::compare(counted_before, task, cause.position, None);
        let is_due = has_due(task);
        self.count(observation);
        if is_due {
            // The continuation had ended before, and its own continuations are known only now.
            self.create_continuations(next, cause);
        }
        let Some(task) = self.task_mut(next) else { return };
        refresh(task, cause);
        let now = rollup_input(next, task);
        self.drop_deferred(next, stored_bytes);
        self.mark_outlived(next);
        if let Some(task) = self.task_mut(id) {
            if let Some(before) = before {
                rollup::uncount(&mut task.tree.below, run, &before);
            }
            rollup::count(&mut task.tree.below, run, &now);
            task.tree.has_below = true;
        }
    }
}

/// Fails a task whose continuation cannot be created: its work is incomplete. Workers reject records with such a
/// continuation, so the task was announced by another writer of events.
fn fail(task: &mut TaskRecord, cause: Cause<'_>, message: String) {
    task.history.push(entry(Kind::Failed, task.run, cause, message.clone()));
    if task.own == State::Succeeded {
        task.own = State::Failed;
        task.outcome.error = Some(Box::new(ErrorInfo::new("bad_then", message, task.attempt)));
    }
}

/// Announcement of a continuation. Cancels up to its creation do not apply to it, including one that ended its task.
fn announcement(then: &Continuation, cause: Cause<'_>) -> Announcement {
    Announcement {
        task_type: then.task_type.clone(),
        created_at_ms: cause.at_ms,
        position: None,
        hash: None,
        policy: (then.policy != Default::default()).then(|| Box::new(then.policy.clone())),
        asof: Some(cause.position.offset),
        trace: None,
    }
}

fn entry(kind: Kind, run: u32, cause: Cause<'_>, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(kind, run, (cause.at_ms, cause.position.offset), message)
}
