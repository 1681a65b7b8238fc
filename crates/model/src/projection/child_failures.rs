//! Reaction of a task to failed children: `fail_fast` and `max_failed`.

use super::records::Records;
use super::refresh::refresh;
use super::{Cause, continuations, requests, tally};
use crate::event::{ErrorInfo, Kind};
use crate::outbox::{CANCEL_GRACE_MS, CancelRequest, EffectKind, StoredCancel};
use crate::record::rollup;
use crate::record::state::State;
use crate::record::{HistoryEntry, MAX_MESSAGE_CHARS, TaskRecord};
use crate::task::id::TaskId;

/// Error code of a task failed by its children.
const CHILD_FAILED: &str = "child_failed";

/// Returns true if the task fails fast and more children have failed than it tolerates.
pub(super) fn has_failed_fast(task: &TaskRecord) -> bool {
    task.definition.policy.as_ref().is_some_and(|policy| policy.rules.fail_fast)
        && rollup::is_lost(&task.tree.below, task.definition.tolerated())
}

/// Returns true if pending descendants must be cancelled because the task failed fast, and no request has done so
/// before.
pub(super) fn must_fail_fast(task: &TaskRecord) -> bool {
    let is_requested = |cancel: &StoredCancel| !cancel.tripped && (cancel.named || !task.own.is_terminal());
    let cancel = if task.own.is_terminal() {
        task.requests.cancel.as_deref().filter(|cancel| cancel.subtree)
    } else {
        task.cancelled_by()
    };
    has_failed_fast(task) && !cancel.is_some_and(is_requested)
}

impl Records {
    /// Cancels the pending descendants of a task that fails fast after `child` failed, without waiting for the other
    /// children. `child` is `None` if the children failed before the task was announced.
    pub(super) fn fail_fast(&mut self, id: &TaskId, child: Option<&TaskId>, cause: Cause<'_>) {
        let reason = child.and_then(|child| Some(child_failure(child, self.task(child.as_str())?)));
        let Some(task) = self.task_mut(id) else { return };
        let counted_before = tally::CountedState::of(task);
        apply_fail_fast(task, reason, cause);
        let observation = tally::compare(counted_before, task, cause.position, None);
        // An external task ends here, so its continuations may be due.
        let is_due = continuations::has_due(task);
        self.count(observation);
        if is_due {
            self.create_continuations(id, cause);
        }
        self.task_mut(id).into_iter().for_each(|task| refresh(task, cause));
    }
}

/// Failure reason shown on the parent of a failed child.
fn child_failure(child: &TaskId, task: &TaskRecord) -> String {
    let reason = task.outcome.error.as_ref().map_or(String::new(), |error| format!(": {}", error.message));
    format!("child `{child}` is {}{reason}", task.state)
}

/// Cancels the task and its pending descendants as a request would, except that the task then ends as failed. The
/// caller recomputes the state.
fn apply_fail_fast(task: &mut TaskRecord, reason: Option<String>, cause: Cause<'_>) {
    let reason = reason.unwrap_or_else(|| "children failed before the task was announced".to_owned());
    let asof = cause.position.offset;
    let open = !task.state.is_terminal();
    let due_ms = cause.position.log_time_ms + CANCEL_GRACE_MS;
    let message: String =
        format!("{reason} (fail_fast: pending descendants are cancelled)").chars().take(MAX_MESSAGE_CHARS).collect();
    let request = CancelRequest { reason: Some(message.as_str().into()), ..CancelRequest::default() };
    task.requests.cancel = Some(Box::new(StoredCancel {
        asof,
        due_ms,
        named: open,
        subtree: true,
        tripped: true,
        outlived: false,
        request,
    }));
    if open {
        requests::replace_cancel_effect(task, cause.position, EffectKind::Cancel { asof, subtree: true });
    }
    if !matches!(task.own, State::Failed | State::Expired | State::Cancelled) {
        task.outcome.error = Some(Box::new(ErrorInfo::new(CHILD_FAILED, message.clone(), 0)));
    }
    if task.is_external() && !task.own.is_terminal() && !task.deferral.is_deferred() {
        task.own = State::Failed;
    }
    task.history.push(HistoryEntry::of_fold(Kind::CancelRequested, task.run, (cause.at_ms, asof), message));
}

/// Clears the error that failed children left on a task, once retries have reduced their number to `max_failed`.
pub(super) fn clear_child_failure(task: &mut TaskRecord) {
    let failed_by_children = task.outcome.error.as_ref().is_some_and(|error| error.kind == CHILD_FAILED);
    if failed_by_children && task.own == State::Succeeded && !has_failed_fast(task) {
        task.outcome.error = None;
    }
}
