//! What people ask for: a cancel, a retry, a change. Decided by where the request lies in the log.

use super::{Change, Place, Step, Verdict, WorkingSet, begin_run};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::{CANCEL_GRACE_MS, Cancel, CancelRequest, Effect, EffectKind, MAX_EFFECTS};
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, TaskRecord};
use crate::model::task::MAX_RUN;
use crate::model::task::id::TaskId;

/// A cancel stays on the record and applies to everything below that was made before it.
pub(super) fn cancel(node: &mut TaskRecord, event: &Event, place: Place) -> Step {
    let (asof, named) = (event.asof.unwrap_or(place.offset), event.asof.is_none());
    let known = if named { node.asked(event.subtree) } else { node.cancelled_by() }.is_some();
    let later_retry = asof <= node.asof;
    let ended = if event.subtree { node.state.is_terminal() } else { node.own.is_terminal() };
    if ended || known || later_retry || node.requests() >= MAX_EFFECTS {
        if named && !node.cancel.as_deref().is_some_and(|cancel| cancel.named) {
            // Whoever asked tells the workers of it all the same.
            uncancel(node, place);
        }
        return Step::of(Verdict::Ignored);
    }
    let with = event.with.as_ref().map(|with| with.as_str().into());
    let request = CancelRequest { with, by: event.by.clone(), reason: event.message.as_deref().map(Into::into) };
    apply_cancel(node, asof, place, named, event.subtree, request);
    if named {
        replace(node, place, EffectKind::Cancel { asof, subtree: event.subtree });
    }
    Step::of(Verdict::Applied)
}

/// What an earlier one cancels, this one covers, and taken back it would take this one back.
pub(super) fn replace(node: &mut TaskRecord, place: Place, what: EffectKind) {
    let narrow = matches!(what, EffectKind::Cancel { subtree: false, .. });
    node.effects.retain(|effect| match effect.what {
        EffectKind::Cancel { subtree, .. } => subtree && narrow,
        EffectKind::Uncancel { .. } => false,
        _ => true,
    });
    node.want(Effect { cause: place.offset, what });
}

/// Workers need not know of a cancel any more, once whoever asked for it last has told them.
pub(super) fn uncancel(node: &mut TaskRecord, place: Place) {
    node.effects.retain(|effect| !matches!(effect.what, EffectKind::Uncancel { .. }));
    node.want(Effect { cause: place.offset, what: EffectKind::Uncancel { due_ms: place.log_time_ms + CANCEL_GRACE_MS } });
}

fn apply_cancel(node: &mut TaskRecord, asof: i64, place: Place, named: bool, subtree: bool, request: CancelRequest) {
    let begun_ms = node.cancelled_by().map(|cancel| cancel.due_ms);
    let due_ms = begun_ms.unwrap_or(place.log_time_ms + CANCEL_GRACE_MS);
    // What a child has failed stays failed.
    let tripped = node.cancelled_by().is_some_and(|cancel| cancel.tripped);
    if node.is_external() && !node.own.is_terminal() {
        // Nobody of ours runs it: there is nothing to wait for.
        node.own = State::Cancelled;
        node.error = Some(Box::new(ErrorInfo::new("cancelled", request.message(""), 0)));
    }
    node.cancel = Some(Box::new(Cancel { asof, due_ms, named, subtree, tripped, outlived: false, request }));
}

/// A task that was cancelled while it was only expected is there now: workers, who need not know of the cancel any more, are
/// told again.
pub(super) fn cancel_again(node: &mut TaskRecord, place: Place) {
    if node.own.is_terminal() || node.cancelled_by().is_none() {
        return;
    }
    let Some(cancel) = node.cancel.as_deref_mut().filter(|cancel| cancel.request.with.is_none()) else { return };
    cancel.named = true;
    let (asof, subtree) = (cancel.asof, cancel.subtree);
    replace(node, place, EffectKind::Cancel { asof, subtree });
}

/// A cancel of a task, as it applies to those below.
pub(super) struct Above {
    asof: i64,
    request: CancelRequest,
}

impl WorkingSet {
    /// The latest cancel of anything above.
    pub(super) fn cancel_above(&self, id: &TaskId) -> Option<Above> {
        let cancels = id.ancestors().filter_map(|above| Some((above, self.node(above)?.cancel.as_deref()?)));
        let (above, cancel) = cancels.filter(|(_, cancel)| cancel.subtree).max_by_key(|(_, cancel)| cancel.asof)?;
        Some(Above { asof: cancel.asof, request: cancel.request.below(above) })
    }
}

/// What appears below a cancelled task is cancelled too, unless it was made later on purpose. Returns what its history says.
pub(super) fn inherit(node: &mut TaskRecord, above: Option<Above>, cause: Change<'_>) -> Option<HistoryEntry> {
    let above = above.filter(|above| above.asof > node.asof && !node.own.is_terminal() && node.cancelled_by().is_none())?;
    let told = asked_message(above.request.with.as_deref(), above.request.reason.as_deref()).unwrap_or_default();
    let entry = HistoryEntry::of_fold(Kind::CancelRequested, node.run, (cause.at_ms, cause.place.offset), told);
    let entry = HistoryEntry { by: above.request.by.clone(), ..entry };
    apply_cancel(node, above.asof, cause.place, false, true, above.request);
    Some(entry)
}

/// What the history of a task says of a request to cancel it.
pub(super) fn asked_message(with: Option<&str>, reason: Option<&str>) -> Option<String> {
    match (with, reason) {
        (Some(with), Some(reason)) => Some(format!("with `{with}`: {reason}")),
        (Some(with), None) => Some(format!("with `{with}`")),
        (None, reason) => reason.map(str::to_owned),
    }
}

/// The task starts anew in `next_run`, or those below it do; its record is published again by an effect.
pub(super) fn retry(node: &mut TaskRecord, event: &Event, place: Place, next_run: u32) -> Step {
    // One of several: what is above it may be pending already because of another one.
    let ended = if event.new_run.is_some() { node.own.is_terminal() } else { node.state.is_terminal() };
    if event.run != node.run || !ended || next_run <= node.run || next_run > MAX_RUN || node.requests() >= MAX_EFFECTS {
        return Step::of(Verdict::Ignored);
    }
    let what = if event.only_failed {
        // No run is used up where there is nothing to start again.
        if !node.is_restartable() && node.restartable_below() == 0 {
            return Step::of(Verdict::Ignored);
        }
        EffectKind::RetryFailed { run: next_run }
    } else {
        if node.is_external() || !node.announced {
            return Step::of(Verdict::Ignored);
        }
        let hash = node.hash.take();
        begin_run(node, next_run);
        (node.own, node.announced, node.hash, node.asof) = (State::Queued, true, hash, place.offset);
        if event.record.is_some() {
            // A redrive brings the record along: the task's own may be gone by now.
            node.told_at = Some(place.offset);
        }
        EffectKind::Publish { run: next_run }
    };
    node.want(Effect { cause: place.offset, what });
    Step { run: next_run, ..Step::of(Verdict::Applied) }
}

/// Changes what the task was made with, whichever run it is in: all that is asked, or nothing.
pub(super) fn patch(node: &mut TaskRecord, event: &Event) -> Step {
    let Some(patch) = event.patch.as_deref().filter(|patch| patch.misfit(node).is_none()) else {
        return Step::of(Verdict::Ignored);
    };
    patch.apply(node.policy.get_or_insert_default());
    node.patched = true;
    node.due_ms = patch.not_before_ms.or(node.due_ms);
    Step::of(Verdict::Applied)
}

pub(super) fn effect_done(node: &mut TaskRecord, event: &Event) -> Step {
    let done = node.effects.iter().position(|effect| event.effect.as_deref() == Some(&*effect.id()));
    let done = done.map(|at| node.effects.remove(at));
    if let Some(Effect { what: EffectKind::Publish { run } | EffectKind::Follow { run }, .. }) = done
        && run == node.run
        && event.position.is_some()
    {
        node.position = event.position;
    }
    Step { in_history: false, ..Step::of(if done.is_some() { Verdict::Applied } else { Verdict::Ignored }) }
}
