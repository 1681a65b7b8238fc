//! Reported data of a task: progress, log lines, and states of external tasks.

use super::Verdict;
use crate::event::{Event, Payload};
use crate::record::TaskRecord;
use crate::record::state::State;

/// Records progress or log lines, which change no state.
pub(super) fn attach(task: &mut TaskRecord, event: &Event) -> Verdict {
    if let Payload::Log { lines, dropped, .. } = &event.payload {
        task.log.lines = task.log.lines.saturating_add(lines.len() as u32);
        task.log.dropped = task.log.dropped.saturating_add(*dropped);
        return Verdict::Applied;
    }
    if task.own.is_terminal() {
        return Verdict::Ignored;
    }
    task.outcome.progress = event.payload.output().cloned();
    Verdict::Applied
}

/// Applies a report on an external task, in log order and also back to an earlier state, until the computed state is
/// terminal.
pub(super) fn report(task: &mut TaskRecord, event: &Event) -> Verdict {
    let Payload::Reported { state: Some(state), output, error } = &event.payload else { return Verdict::Ignored };
    let state = *state;
    if !task.is_external() || (task.state.is_terminal() && task.blocks_when_done()) {
        return Verdict::Ignored;
    }
    task.outcome.fault |= state == State::Failed;
    task.own = match state {
        State::Queued | State::Running | State::Warning => state,
        // The reporter's own work is done; the rollup adds the children. A reported failure sticks.
        State::WaitingForChildren | State::Succeeded if task.outcome.fault => State::Failed,
        State::WaitingForChildren | State::Succeeded => State::Succeeded,
        State::Failed => State::Failed,
        _ => return Verdict::Ignored,
    };
    if state == State::Running {
        task.times.started_at_ms = task.times.started_at_ms.or(Some(event.at_ms));
    }
    if output.is_some() {
        task.outcome.output.clone_from(output);
    }
    if error.is_some() {
        task.outcome.error.clone_from(error);
    }
    Verdict::Applied
}
