//! State transitions of a task by the events of workers, producers and trackers.

use super::{LogPosition, Verdict};
use crate::model::event::{Event, Kind, Payload};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;

/// Applies an event. Within a run the first terminal event wins; among the others the latest does.
pub(super) fn advance(node: &mut TaskRecord, event: &Event, position: LogPosition) -> Verdict {
    let Some(next) = target(node, event, position) else { return Verdict::Applied };
    if node.own.is_terminal() {
        if next.is_terminal() {
            node.history.duplicates = node.history.duplicates.saturating_add(1);
        }
        return Verdict::Ignored;
    }
    if event.kind() == Kind::Released {
        node.deferral.released = node.deferral.released.max(Some(event.used()));
    }
    if is_late(node, event) {
        return Verdict::Ignored;
    }
    if event.kind() == Kind::Released {
        node.definition.position = event.payload.position();
    }
    // A repeated `started` of an attempt only adds handler continuations: a warning stays.
    let goes_on = event.kind() == Kind::Started && node.own == State::Warning && event.attempt == node.attempt;
    node.own = if goes_on && event.worker == node.worker { State::Warning } else { next };
    node.silent = false;
    node.times.due_ms = event.payload.due_ms();
    count_used(node, event);
    if event.worker.is_some() {
        node.worker = event.worker.clone();
    }
    let started = if event.kind() == Kind::Started { Some(event.at_ms) } else { event.payload.started_at_ms() };
    node.times.started_at_ms = node.times.started_at_ms.or(started);
    set_result(node, event, next);
    Verdict::Applied
}

/// Returns true if a later event of the run has overtaken this one.
fn is_late(node: &TaskRecord, event: &Event) -> bool {
    match event.kind() {
        Kind::Submitted => node.own != State::Expected,
        // A record that is deferred again, while it already waits or after its release.
        Kind::Scheduled if event.payload.record().is_some() => {
            !matches!(node.own, State::Expected | State::Queued | State::Scheduled)
                || node.attempt > 0
                || node.deferral.is_deferred()
                || is_released(node, event)
        }
        // The released record belongs to an earlier wait, for example before the first attempt; the current wait
        // continues.
        Kind::Released => {
            !matches!(node.own, State::Expected | State::Scheduled | State::Retrying) || event.used() < node.used()
        }
        Kind::Retrying if event.payload.record().is_some() => {
            is_released(node, event) || (node.deferral.is_deferred() && event.used() < node.used())
        }
        // The record of the next attempt is deferred: these events come from a worker that was cut off before.
        Kind::Started | Kind::Warned | Kind::Retrying => node.deferral.is_deferred() && node.own == State::Retrying,
        Kind::Scheduled => node.deferral.is_deferred(),
        _ => false,
    }
}

/// Sets result and error of the task after a transition to `next`.
fn set_result(node: &mut TaskRecord, event: &Event, next: State) {
    match &event.payload {
        Payload::Succeeded { output, .. } => {
            node.outcome.output.clone_from(output);
            node.outcome.error = None;
        }
        // The event only reports that the attempt was stopped; the record knows the reason.
        Payload::Cancelled(_) if next == State::Failed => {}
        // No attempt follows: the failed child ends the task. The attempt's error stays in the history.
        Payload::Retrying { .. } if node.cancelled_by().is_some_and(|cancel| cancel.tripped) => {}
        Payload::Retrying { failure, .. }
        | Payload::Failed(failure)
        | Payload::Cancelled(failure)
        | Payload::Expired(failure) => node.outcome.error.clone_from(&failure.error),
        _ => {}
    }
}

/// Returns true if the wait of the event's record is already over: workers resend events that they consider lost. A
/// low attempt alone proves nothing, because a worker that takes over counts from the attempt in the record.
fn is_released(node: &TaskRecord, event: &Event) -> bool {
    node.deferral.released.is_some_and(|released| event.used() <= released)
}

/// Takes over the event's number of attempts; attempts and waits, if it reports a wait or contains a deferred record. A task
/// may have been published twice: each of its records has its own numbers, and events after the release of one must not
/// look like repetitions of an earlier handover.
fn count_used(node: &mut TaskRecord, event: &Event) {
    if event.payload.waits() > 0 || event.payload.record().is_some() {
        let used = event.used();
        (node.attempt, node.deferral.waits) = (used.attempts, used.waits);
    } else if event.attempt > 0 {
        node.attempt = event.attempt;
    }
}

/// Own state that an event requests, if any.
fn target(node: &TaskRecord, event: &Event, position: LogPosition) -> Option<State> {
    Some(match event.kind() {
        Kind::Submitted => {
            let not_before = node.definition.policy.as_ref().and_then(|policy| policy.not_before_ms);
            if not_before.is_some_and(|at| at > position.log_time_ms) { State::Scheduled } else { State::Queued }
        }
        Kind::Scheduled => State::Scheduled,
        Kind::Released => State::Queued,
        Kind::Started => State::Running,
        Kind::Warned => State::Warning,
        Kind::Retrying => State::Retrying,
        Kind::Succeeded => State::Succeeded,
        Kind::Failed => State::Failed,
        Kind::Cancelled if node.cancelled_by().is_some_and(|cancel| cancel.tripped) => State::Failed,
        Kind::Cancelled => State::Cancelled,
        Kind::Expired => State::Expired,
        _ => return None,
    })
}
