//! Requests by users: cancels, retries and patches. Their position in the log determines the tasks they apply to.

use super::history::request_message;
use super::records::Records;
use super::step::begin_run;
use super::step_outcome::Step;
use super::{Cause, LogPosition, Verdict};
use crate::event::{CancelScope, ErrorInfo, Event, Kind, Payload};
use crate::outbox::{CANCEL_GRACE_MS, CancelRequest, Effect, EffectKind, MAX_EFFECTS, StoredCancel};
use crate::record::state::State;
use crate::record::{HistoryEntry, TaskRecord};
use crate::task::id::TaskId;
use crate::task::patch::Patch;
use crate::task::{MAX_RUN, Position};

/// Cancels a task. The cancel stays in the record and applies to all descendants created before it.
pub(super) fn cancel(task: &mut TaskRecord, event: &Event, scope: &CancelScope, position: LogPosition) -> Step {
    let asof = scope.asof.unwrap_or(position.offset);
    let named = scope.asof.is_none();
    let is_covered = if named { task.covering_cancel(scope.subtree) } else { task.cancelled_by() }.is_some();
    let later_retry = asof <= task.requests.asof;
    let ended = if scope.subtree { task.state.is_terminal() } else { task.own.is_terminal() };
    if ended || is_covered || later_retry || task.request_effects() >= MAX_EFFECTS {
        if named && !task.requests.cancel.as_deref().is_some_and(|cancel| cancel.named) {
            // The API server publishes every cancel to the workers, so this one must be withdrawn too.
            withdraw_cancel(task, position);
        }
        return Step::of(Verdict::Ignored);
    }
    let with = scope.with.as_ref().map(|with| with.as_str().into());
    let request = CancelRequest { with, by: event.by.clone(), reason: event.message.as_deref().map(Into::into) };
    apply_cancel(task, asof, position, named, scope.subtree, request);
    if named {
        replace_cancel_effect(task, position, EffectKind::Cancel { asof, subtree: scope.subtree });
    }
    Step::of(Verdict::Applied)
}

/// Replaces the effects of earlier cancels that the new one covers, and withdrawals that would withdraw it.
pub(super) fn replace_cancel_effect(task: &mut TaskRecord, position: LogPosition, kind: EffectKind) {
    let narrow = matches!(kind, EffectKind::Cancel { subtree: false, .. });
    task.effects.retain(|effect| match effect.kind {
        EffectKind::Cancel { subtree, .. } => subtree && narrow,
        EffectKind::WithdrawCancel { .. } => false,
        _ => true,
    });
    task.push_effect(Effect { cause: position.offset, kind });
}

/// Schedules the withdrawal of a cancel from the workers, late enough that the requester has published it by then.
pub(super) fn withdraw_cancel(task: &mut TaskRecord, position: LogPosition) {
    task.effects.retain(|effect| !matches!(effect.kind, EffectKind::WithdrawCancel { .. }));
    task.push_effect(Effect {
        cause: position.offset,
        kind: EffectKind::WithdrawCancel { due_ms: position.log_time_ms + CANCEL_GRACE_MS },
    });
}

fn apply_cancel(
    task: &mut TaskRecord,
    asof: i64,
    position: LogPosition,
    named: bool,
    subtree: bool,
    request: CancelRequest,
) {
    let begun_ms = task.cancelled_by().map(|cancel| cancel.due_ms);
    let due_ms = begun_ms.unwrap_or(position.log_time_ms + CANCEL_GRACE_MS);
    // A cancel caused by a failed child still ends as failed.
    let tripped = task.cancelled_by().is_some_and(|cancel| cancel.tripped);
    if task.is_external() && !task.own.is_terminal() {
        // No worker of this fleet runs it, so there is nothing to wait for.
        task.own = State::Cancelled;
        task.outcome.error = Some(Box::new(ErrorInfo::new("cancelled", request.message(""), 0)));
    }
    task.requests.cancel =
        Some(Box::new(StoredCancel { asof, due_ms, named, subtree, tripped, outlived: false, request }));
}

/// Publishes the cancel of a task that was cancelled while expected and is announced only now: the workers' copy may
/// have been withdrawn.
pub(super) fn reissue_cancel(task: &mut TaskRecord, position: LogPosition) {
    if task.own.is_terminal() || task.cancelled_by().is_none() {
        return;
    }
    let Some(cancel) = task.requests.cancel.as_deref_mut().filter(|cancel| cancel.request.with.is_none()) else {
        return;
    };
    cancel.named = true;
    // The workers receive the cancel only now, so the tracker waits for their answer again.
    cancel.due_ms = position.log_time_ms + CANCEL_GRACE_MS;
    let asof = cancel.asof;
    let subtree = cancel.subtree;
    replace_cancel_effect(task, position, EffectKind::Cancel { asof, subtree });
}

/// Cancel of an ancestor that applies to its descendants.
pub(super) struct AncestorCancel {
    asof: i64,
    request: CancelRequest,
}

impl Records {
    /// Latest cancel of any ancestor.
    pub(super) fn ancestor_cancel(&self, id: &TaskId) -> Option<AncestorCancel> {
        let cancels = id.ancestors().filter_map(|above| Some((above, self.task(above)?.requests.cancel.as_deref()?)));
        let (above, cancel) = cancels.filter(|(_, cancel)| cancel.subtree).max_by_key(|(_, cancel)| cancel.asof)?;
        Some(AncestorCancel { asof: cancel.asof, request: cancel.request.below(above) })
    }

    /// Publishes an inherited cancel to the workers again unless it is still published, because the new descendant's
    /// record is already in its topic. A cancel is withdrawn once its tree has ended, and a `fail_fast` cancel is not
    /// published while no descendant is pending.
    pub(super) fn reissue_inherited_cancel(&mut self, id: &TaskId, position: LogPosition) {
        let Some(asof) = self.task(id.as_str()).and_then(TaskRecord::cancelled_by).map(|cancel| cancel.asof) else {
            return;
        };
        let is_source = |cancel: &StoredCancel| cancel.asof == asof && cancel.subtree && cancel.request.with.is_none();
        let cancel_of = |above: &str| self.task(above).and_then(|task| task.requests.cancel.as_deref());
        let source = id.ancestors().find(|above| cancel_of(above).is_some_and(is_source));
        let Some(source) = source.and_then(|source| TaskId::parse(source).ok()) else { return };
        let Some(task) = self.task_mut(&source) else { return };
        let has_ended = task.state.is_terminal();
        let Some(cancel) = task.requests.cancel.as_deref_mut().filter(|cancel| !cancel.named) else { return };
        cancel.named = !has_ended;
        replace_cancel_effect(task, position, EffectKind::Cancel { asof, subtree: true });
        // A superseded descendant does not reopen its ancestors, so no later change of state would withdraw the
        // cancel.
        if has_ended {
            withdraw_cancel(task, position);
        }
    }
}

/// Applies an ancestor's cancel to a new task, unless the task was created after it. Returns the history entry.
pub(super) fn inherit_cancel(
    task: &mut TaskRecord,
    above: Option<AncestorCancel>,
    cause: Cause<'_>,
) -> Option<HistoryEntry> {
    let above = above
        .filter(|above| above.asof > task.requests.asof && !task.own.is_terminal() && task.cancelled_by().is_none())?;
    let message = request_message(above.request.with.as_deref(), above.request.reason.as_deref()).unwrap_or_default();
    let entry = HistoryEntry::of_fold(Kind::CancelRequested, task.run, (cause.at_ms, cause.position.offset), message);
    let entry = HistoryEntry { by: above.request.by.clone(), ..entry };
    apply_cancel(task, above.asof, cause.position, false, true, above.request);
    Some(entry)
}

/// Starts the task, or its failed descendants, in `next_run`. An effect publishes the record again.
pub(super) fn retry(task: &mut TaskRecord, event: &Event, position: LogPosition, next_run: u32) -> Step {
    let Payload::RetryRequested { only_failed, new_run, record } = &event.payload else {
        return Step::of(Verdict::Ignored);
    };
    // In a retry of several tasks, an ancestor may be pending again because of another of them.
    let ended = if new_run.is_some() { task.own.is_terminal() } else { task.state.is_terminal() };
    if event.run != task.run
        || !ended
        || next_run <= task.run
        || next_run > MAX_RUN
        || task.request_effects() >= MAX_EFFECTS
    {
        return Step::of(Verdict::Ignored);
    }
    let kind = if *only_failed {
        // Without a restartable task no run is used up.
        if !task.is_restartable() && task.restartable_below() == 0 {
            return Step::of(Verdict::Ignored);
        }
        EffectKind::RetryFailed { run: next_run }
    } else {
        if task.is_external() || !task.definition.announced {
            return Step::of(Verdict::Ignored);
        }
        let hash = task.definition.hash.take();
        begin_run(task, next_run);
        task.times.ready_ms = Some(event.at_ms);
        (task.own, task.definition.announced, task.definition.hash, task.requests.asof) =
            (State::Queued, true, hash, position.offset);
        if record.is_some() {
            // A redrive carries the record, since the topic may no longer retain it.
            task.definition.record_event_offset = Some(position.offset);
        }
        EffectKind::Publish { run: next_run }
    };
    task.push_effect(Effect { cause: position.offset, kind });
    Step { run: next_run, ..Step::of(Verdict::Applied) }
}

/// Changes fields of a task, whichever run the request names: either all of them or none.
pub(super) fn patch(task: &mut TaskRecord, patch: Option<&Patch>) -> Step {
    let Some(patch) = patch.filter(|patch| patch.rejection(task).is_none()) else {
        return Step::of(Verdict::Ignored);
    };
    if task.own == State::Retrying && patch.next_start.is_some() {
        // Nothing but the time changes: the total timeout of the task counts from its `not before`.
        task.times.due_ms = task.times.due_ms.into_iter().chain(patch.not_before_ms).min();
        return Step::of(Verdict::Applied);
    }
    patch.apply(task.definition.policy.get_or_insert_default());
    task.definition.patched = true;
    task.times.due_ms = patch.not_before_ms.or(task.times.due_ms);
    task.times.ready_ms = task.times.ready_ms.map(|ready_ms| patch.not_before_ms.unwrap_or(ready_ms));
    Step::of(Verdict::Applied)
}

pub(super) fn effect_done(task: &mut TaskRecord, id: Option<&str>, position: Option<Position>) -> Step {
    let done = task.effects.iter().position(|effect| id == Some(&*effect.id()));
    let done = done.map(|at| task.effects.remove(at));
    if let Some(Effect { kind: EffectKind::Publish { run } | EffectKind::PublishContinuation { run }, .. }) = done
        && run == task.run
        && position.is_some()
    {
        task.definition.position = position;
    }
    Step { in_history: false, ..Step::of(if done.is_some() { Verdict::Applied } else { Verdict::Ignored }) }
}
