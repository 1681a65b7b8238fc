//! Reported data of a task: progress, log lines, and states of external tasks.

use super::Verdict;
use crate::model::event::{Event, Payload};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;

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
