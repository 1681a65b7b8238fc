//! Reported data of a task: progress, log lines, states of external tasks, and history entries.

use super::requests::request_message;
use super::{LogPosition, Verdict};
use crate::model::event::{CancelScope, Event, Payload};
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, MAX_MESSAGE_CHARS, TaskRecord};
use crate::model::task::id::{TaskId, clip};

/// Records progress or log lines, which change no state.
pub(super) fn attach(node: &mut TaskRecord, event: &Event) -> Verdict {
    if let Payload::Log { lines, dropped } = &event.payload {
        node.log.lines = node.log.lines.saturating_add(lines.len() as u32);
        node.log.dropped = node.log.dropped.saturating_add(*dropped);
        return Verdict::Applied;
    }
    if node.own.is_terminal() {
        return Verdict::Ignored;
    }
    node.outcome.progress = event.payload.output().cloned();
    Verdict::Applied
}

/// Applies a report on an external task, in log order and also back to an earlier state, until the computed state is
/// terminal.
pub(super) fn report(node: &mut TaskRecord, event: &Event) -> Verdict {
    let Payload::Reported { state: Some(state), output, error } = &event.payload else { return Verdict::Ignored };
    let state = *state;
    if !node.is_external() || (node.state.is_terminal() && node.blocks_when_done()) {
        return Verdict::Ignored;
    }
    node.outcome.fault |= state == State::Failed;
    node.own = match state {
        State::Queued | State::Running | State::Warning => state,
        // The reporter's own work is done; the rollup adds the children. A reported failure sticks.
        State::WaitingForChildren | State::Succeeded if node.outcome.fault => State::Failed,
        State::WaitingForChildren | State::Succeeded => State::Succeeded,
        State::Failed => State::Failed,
        _ => return Verdict::Ignored,
    };
    if state == State::Running {
        node.times.started_at_ms = node.times.started_at_ms.or(Some(event.at_ms));
    }
    if output.is_some() {
        node.outcome.output.clone_from(output);
    }
    if error.is_some() {
        node.outcome.error.clone_from(error);
    }
    Verdict::Applied
}

pub(super) fn history_entry(event: &Event, position: LogPosition, verdict: Verdict) -> HistoryEntry {
    let error = event.payload.error();
    HistoryEntry {
        kind: event.kind(),
        at_ms: event.at_ms,
        offset: position.offset,
        run: event.run,
        attempt: event.attempt,
        worker: event.worker.clone(),
        message: message(event).map(|text| text.chars().take(MAX_MESSAGE_CHARS).collect()),
        error_kind: error.map(|error| clip(&error.kind).into()),
        waits: if event.payload.is_wait() { event.payload.waits() } else { 0 },
        took_ms: event.payload.started_at_ms().and_then(|began| u32::try_from(event.at_ms.checked_sub(began)?).ok()),
        by: event.by.clone(),
        ignored: verdict == Verdict::Ignored,
    }
}

fn message(event: &Event) -> Option<String> {
    let message = event.message.as_deref().or(event.payload.error().map(|error| error.message.as_str()));
    match &event.payload {
        Payload::Reported { state: Some(state), .. } => {
            Some(message.map_or(state.name().to_owned(), |message| format!("{state}: {message}")))
        }
        Payload::CancelRequested(CancelScope { with, .. }) => {
            request_message(with.as_ref().map(TaskId::as_str), message)
        }
        _ => message.map(str::to_owned),
    }
}

/// History entry of a `submitted` event that arrives after other events of its run, dated to the task's creation.
pub(super) fn late_announcement(event: &Event, position: LogPosition) -> HistoryEntry {
    let created_ms = event.task.as_ref().map_or(event.at_ms, |task| task.created_at_ms.min(event.at_ms));
    HistoryEntry { at_ms: created_ms, ..history_entry(event, position, Verdict::Applied) }
}
