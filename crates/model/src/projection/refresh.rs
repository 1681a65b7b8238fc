//! Fields of a record that are derived from others: rollup input, state, end time and expiry.

use std::sync::atomic::Ordering::Relaxed;

use super::{Cause, notifications, requests};
use crate::record::rollup::RollupInput;
use crate::record::state::State;
use crate::record::{Moment, TaskRecord, rollup};
use crate::task::OnFailure;
use crate::task::continuation::number_of;
use crate::task::id::TaskId;

/// Contribution of a task to its parent's rollup.
pub(super) fn rollup_input(id: &TaskId, task: &TaskRecord) -> RollupInput {
    let (_, _, tree) = rollup::children_of(&task.tree.below);
    let then = number_of(id.segment()).is_some();
    let ignored = task.definition.on_failure() == OnFailure::Ignore;
    let restartable = u64::from(task.is_restartable()) + task.restartable_below();
    RollupInput { run: task.run, then, state: task.state, ignored, tree, restartable }
}

/// State of a task: `cancelling` while a cancel applies and its own state is pending, otherwise the rollup.
pub(super) fn state_of(task: &TaskRecord) -> State {
    let cancelling = !task.own.is_terminal() && task.cancelled_by().is_some();
    if cancelling {
        State::Cancelling
    } else {
        rollup::combine(task.own, &task.tree.below, task.definition.tolerated())
    }
}

/// Sets the time at which the task's tree ended, or clears it while the tree has not ended.
pub(super) fn set_end(task: &mut TaskRecord, cause: Cause<'_>) {
    let ended = task.state.is_terminal();
    task.times.ended_at_ms = ended.then_some(cause.at_ms);
    task.tree.last_end = ended.then(|| Box::new(Moment { at_ms: cause.at_ms, by: cause.id.to_string() }));
}

/// Recomputes the state and the fields derived from it, withdraws the task's cancel when its tree has ended, and
/// evaluates the notification rules.
pub(super) fn refresh(task: &mut TaskRecord, cause: Cause<'_>) {
    let state = state_of(task);
    let had_ended = std::mem::replace(&mut task.state, state).is_terminal();
    if state.is_terminal() != had_ended {
        set_end(task, cause);
    }
    // Workers no longer need a cancel of a tree that has ended.
    if let Some(cancel) = task.requests.cancel.as_deref_mut().filter(|cancel| cancel.named && state.is_terminal()) {
        cancel.named = false;
        requests::withdraw_cancel(task, cause.position);
    }
    notifications::evaluate(task, cause);
    let old_expiry = task.times.expiry;
    task.schedule_expiry(&cause.ages.lifetimes, cause.position.log_time_ms);
    if let Some(expiry) = task.times.expiry.filter(|expiry| Some(*expiry) != old_expiry) {
        cause.ages.soonest_ms.fetch_min(expiry.due_ms, Relaxed);
    }
}
