//! Fields of a record that are derived from others: rollup input, state, end time and expiry.

use std::sync::atomic::Ordering::Relaxed;

use super::{Change, notifications, requests};
use crate::model::record::rollup::RollupInput;
use crate::model::record::state::State;
use crate::model::record::{Moment, TaskRecord, rollup};
use crate::model::task::OnFailure;
use crate::model::task::continuation::number_of;
use crate::model::task::id::TaskId;

/// Contribution of a task to its parent's rollup.
pub(super) fn rollup_input(id: &TaskId, node: &TaskRecord) -> RollupInput {
    let (_, _, tree) = rollup::children_of(&node.tree.below);
    let then = number_of(id.segment()).is_some();
    let ignored = node.definition.on_failure() == OnFailure::Ignore;
    let restartable = u64::from(node.is_restartable()) + node.restartable_below();
    RollupInput { run: node.run, then, state: node.state, ignored, tree, restartable }
}

/// State of a task: `cancelling` while a cancel applies and its own state is pending, otherwise the rollup.
pub(super) fn state_of(node: &TaskRecord) -> State {
    let cancelling = !node.own.is_terminal() && node.cancelled_by().is_some();
    if cancelling {
        State::Cancelling
    } else {
        rollup::combine(node.own, &node.tree.below, node.definition.tolerated())
    }
}

/// Sets the time at which the task's tree ended, or clears it while the tree has not ended.
pub(super) fn set_end(node: &mut TaskRecord, cause: Change<'_>) {
    let ended = node.state.is_terminal();
    node.times.ended_at_ms = ended.then_some(cause.at_ms);
    node.tree.last_end = ended.then(|| Box::new(Moment { at_ms: cause.at_ms, by: cause.id.to_string() }));
}

/// Recomputes the state and the fields derived from it, withdraws the task's cancel when its tree has ended, and
/// evaluates the notification rules.
pub(super) fn refresh(node: &mut TaskRecord, cause: Change<'_>) {
    let state = state_of(node);
    let had_ended = std::mem::replace(&mut node.state, state).is_terminal();
    if state.is_terminal() != had_ended {
        set_end(node, cause);
    }
    // Workers no longer need a cancel of a tree that has ended.
    if let Some(cancel) = node.requests.cancel.as_deref_mut().filter(|cancel| cancel.named && state.is_terminal()) {
        cancel.named = false;
        requests::withdraw_cancel(node, cause.position);
    }
    notifications::evaluate(node, cause);
    let old_expiry = node.times.expiry;
    node.schedule_expiry(&cause.ages.lifetimes, cause.position.log_time_ms);
    if let Some(expiry) = node.times.expiry.filter(|expiry| Some(*expiry) != old_expiry) {
        cause.ages.soonest_ms.fetch_min(expiry.due_ms, Relaxed);
    }
}
