//! Attempts that ended without an outcome, and start again with their number.

use super::history::history_entry;
use super::{LogPosition, Verdict};
use crate::event::{Event, InterruptionReason, Kind};
use crate::record::state::State;
use crate::record::{HistoryEntry, TaskRecord};

/// Applies the report that an attempt was interrupted: the task waits for a worker again. Other reports are late, because
/// another worker has started the attempt.
pub(super) fn interrupt(task: &mut TaskRecord, event: &Event) -> Verdict {
    if event.worker.is_none() || event.worker != task.worker || event.attempt != task.attempt {
        return Verdict::Ignored;
    }
    match task.own {
        State::Running | State::Warning => {
            task.own = State::Queued;
            task.silent = false;
            task.history.interruptions = task.history.interruptions.saturating_add(1);
            Verdict::Applied
        }
        // No attempt was running: the worker has stopped, and the next one waits until the attempt is due.
        State::Retrying | State::Scheduled if task.is_held() => {
            task.silent = true;
            Verdict::Applied
        }
        _ => Verdict::Ignored,
    }
}

/// Adds an interruption that no worker has reported to the history: another worker starts an attempt that was running.
pub(super) fn add_unreported(task: &mut TaskRecord, event: &Event, position: LogPosition) {
    let is_running = matches!(task.own, State::Running | State::Warning) && !task.is_external();
    if event.kind() != Kind::Started || !is_running || event.worker.is_none() || event.worker == task.worker {
        return;
    }
    task.history.interruptions = task.history.interruptions.saturating_add(1);
    let reason = InterruptionReason::WorkerLost;
    let entry = HistoryEntry {
        kind: Kind::Interrupted,
        attempt: task.attempt,
        worker: task.worker.clone(),
        message: Some(reason.message().to_owned()),
        error_kind: Some(reason.code().into()),
        ..history_entry(event, position, Verdict::Applied)
    };
    task.history.push(entry);
}
