//! State transitions of a task by the events of workers, producers and trackers.

use super::{LogPosition, Verdict};
use crate::event::{Event, Kind, Payload};
use crate::record::TaskRecord;
use crate::record::state::State;

/// Applies an event. Within a run the first terminal event wins; among the others the latest does.
pub(super) fn advance(task: &mut TaskRecord, event: &Event, position: LogPosition) -> Verdict {
    let Some(next) = target(task, event, position) else { return Verdict::Applied };
    if task.own.is_terminal() {
        if next.is_terminal() {
            task.history.duplicates = task.history.duplicates.saturating_add(1);
        }
        return Verdict::Ignored;
    }
    if event.kind() == Kind::Released {
        task.deferral.released = task.deferral.released.max(Some(event.used()));
    }
    if is_late(task, event) {
        return Verdict::Ignored;
    }
    if event.kind() == Kind::Released {
        task.definition.position = event.payload.position();
    }
    // A repeated `started` of an attempt only adds handler continuations: a warning stays.
    let goes_on = event.kind() == Kind::Started && task.own == State::Warning && event.attempt == task.attempt;
    task.own = if goes_on && event.worker == task.worker { State::Warning } else { next };
    task.silent = false;
    task.times.due_ms = event.payload.due_ms();
    count_used(task, event);
    if event.worker.is_some() {
        task.worker = event.worker.clone();
    }
    let started = if event.kind() == Kind::Started { Some(event.at_ms) } else { event.payload.started_at_ms() };
    task.times.started_at_ms = task.times.started_at_ms.or(started);
    set_result(task, event, next);
    Verdict::Applied
}

/// Returns true if a later event of the run has overtaken this one.
fn is_late(task: &TaskRecord, event: &Event) -> bool {
    match event.kind() {
        Kind::Submitted => task.own != State::Expected,
        // A record that is deferred again, while it already waits or after its release.
        Kind::Scheduled if event.payload.record().is_some() => {
            !matches!(task.own, State::Expected | State::Queued | State::Scheduled)
                || task.attempt > 0
                || task.deferral.is_deferred()
                || is_released(task, event)
        }
        // The released record belongs to an earlier wait, for example before the first attempt; the current wait
        // continues.
        Kind::Released => {
            !matches!(task.own, State::Expected | State::Scheduled | State::Retrying) || event.used() < task.used()
        }
        Kind::Retrying if event.payload.record().is_some() => {
            is_released(task, event) || (task.deferral.is_deferred() && event.used() < task.used())
        }
        // The record of the next attempt is deferred: these events come from a worker that was cut off before.
        Kind::Started | Kind::Warned | Kind::Retrying => task.deferral.is_deferred() && task.own == State::Retrying,
        Kind::Scheduled => task.deferral.is_deferred(),
        _ => false,
    }
}

/// Sets result and error of the task after a transition to `next`.
fn set_result(task: &mut TaskRecord, event: &Event, next: State) {
    match &event.payload {
        Payload::Succeeded { output, .. } => {
            task.outcome.output.clone_from(output);
            task.outcome.error = None;
        }
        // The event only reports that the attempt was stopped; the record knows the reason.
        Payload::Cancelled(_) if next == State::Failed => {}
        // No attempt follows: the failed child ends the task. The attempt's error stays in the history.
        Payload::Retrying { .. } if task.cancelled_by().is_some_and(|cancel| cancel.tripped) => {}
        Payload::Retrying { failure, .. }
        | Payload::Failed(failure)
        | Payload::Cancelled(failure)
        | Payload::Expired(failure) => task.outcome.error.clone_from(&failure.error),
        _ => {}
    }
}

/// Returns true if the wait of the event's record is already over: workers resend events that they consider lost. A
/// low attempt alone proves nothing, because a worker that takes over counts from the attempt in the record.
fn is_released(task: &TaskRecord, event: &Event) -> bool {
    task.deferral.released.is_some_and(|released| event.used() <= released)
}

/// Takes over the event's number of attempts; attempts and waits, if it reports a wait or contains a deferred record. A task
/// may have been published twice: each of its records has its own numbers, and events after the release of one must not
/// look like repetitions of an earlier handover.
fn count_used(task: &mut TaskRecord, event: &Event) {
    if event.payload.waits() > 0 || event.payload.record().is_some() {
        let used = event.used();
        (task.attempt, task.deferral.waits) = (used.attempts, used.waits);
    } else if event.attempt > 0 {
        task.attempt = event.attempt;
    }
}

/// Own state that an event requests, if any.
fn target(task: &TaskRecord, event: &Event, position: LogPosition) -> Option<State> {
    Some(match event.kind() {
        Kind::Submitted => {
            let not_before = task.definition.policy.as_ref().and_then(|policy| policy.not_before_ms);
            if not_before.is_some_and(|at| at > position.log_time_ms) { State::Scheduled } else { State::Queued }
        }
        Kind::Scheduled => State::Scheduled,
        Kind::Released => State::Queued,
        Kind::Started => State::Running,
        Kind::Warned => State::Warning,
        Kind::Retrying => State::Retrying,
        Kind::Succeeded => State::Succeeded,
        Kind::Failed => State::Failed,
        Kind::Cancelled if task.cancelled_by().is_some_and(|cancel| cancel.tripped) => State::Failed,
        Kind::Cancelled => State::Cancelled,
        Kind::Expired => State::Expired,
        _ => return None,
    })
}
