//! Entries of the history of a task.

use super::{LogPosition, Verdict};
use crate::event::{CancelScope, Event, Payload};
use crate::record::{HistoryEntry, MAX_MESSAGE_CHARS};
use crate::task::id::{TaskId, clip};

/// History entry of an event.
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

/// History message of a cancel request.
pub(super) fn request_message(with: Option<&str>, reason: Option<&str>) -> Option<String> {
    match (with, reason) {
        (Some(with), Some(reason)) => Some(format!("with `{with}`: {reason}")),
        (Some(with), None) => Some(format!("with `{with}`")),
        (None, reason) => reason.map(str::to_owned),
    }
}
