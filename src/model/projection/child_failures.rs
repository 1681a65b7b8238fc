//! What a task does about children that failed: `fail_fast`, `max_failed`.

use super::{Change, WorkingSet, continuations, refresh, requests};
use crate::model::event::{ErrorInfo, Kind};
use crate::model::outbox::{CANCEL_GRACE_MS, Cancel, CancelRequest, EffectKind};
use crate::model::record::rollup;
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, MAX_MESSAGE_CHARS, TaskRecord};
use crate::model::task::id::TaskId;

/// The error of a task that its children failed.
const CHILD_FAILED: &str = "child_failed";

/// It fails fast, and its children have failed it.
pub(super) fn is_lost(node: &TaskRecord) -> bool {
    node.policy.as_ref().is_some_and(|policy| policy.rules.fail_fast) && rollup::is_lost(&node.below, node.tolerated())
}

/// What is open below is to be cancelled, unless somebody has asked for that before.
pub(super) fn trips(node: &TaskRecord) -> bool {
    let asked = |cancel: &Cancel| !cancel.tripped && (cancel.named || !node.own.is_terminal());
    let cancelled = match node.own.is_terminal() {
        true => node.cancel.as_deref().filter(|cancel| cancel.subtree),
        false => node.cancelled_by(),
    };
    is_lost(node) && !cancelled.is_some_and(asked)
}

impl WorkingSet {
    /// A child has failed, and its parent does not wait for the others.
    pub(super) fn fail_fast(&mut self, id: &TaskId, child: Option<&TaskId>, cause: Change<'_>) {
        let told = child.and_then(|child| Some(told(child, self.node(child.as_str())?)));
        let Some(node) = self.touch(id) else { return };
        trip(node, told, cause);
        // An external task has ended with it.
        if continuations::is_due(node) {
            self.follow(id, cause);
        }
        self.touch(id).into_iter().for_each(|node| refresh(node, cause));
    }
}

/// What a parent says of the child that failed it.
fn told(child: &TaskId, node: &TaskRecord) -> String {
    let why = node.error.as_ref().map_or(String::new(), |error| format!(": {}", error.message));
    format!("child `{child}` is {}{why}", node.state)
}

/// Cancels what is open, the task itself included, as a request does. Its state is to be computed again.
fn trip(node: &mut TaskRecord, told: Option<String>, cause: Change<'_>) {
    let told = told.unwrap_or_else(|| "children had failed before the task was announced".to_owned());
    let (asof, open) = (cause.place.offset, !node.state.is_terminal());
    let due_ms = cause.place.log_time_ms + CANCEL_GRACE_MS;
    let message: String =
        format!("{told} (fail_fast: what was open below is cancelled)").chars().take(MAX_MESSAGE_CHARS).collect();
    let request = CancelRequest { reason: Some(message.as_str().into()), ..CancelRequest::default() };
    node.cancel = Some(Box::new(Cancel { asof, due_ms, named: open, subtree: true, tripped: true, outlived: false, request }));
    if open {
        requests::replace(node, cause.place, EffectKind::Cancel { asof, subtree: true });
    }
    if !matches!(node.own, State::Failed | State::Expired | State::Cancelled) {
        node.error = Some(Box::new(ErrorInfo::new(CHILD_FAILED, message.clone(), 0)));
    }
    if node.is_external() && !node.own.is_terminal() && node.kept == 0 {
        node.own = State::Failed;
    }
    node.remember(HistoryEntry::of_fold(Kind::CancelRequested, node.run, (cause.at_ms, asof), message));
}

/// A retry below has made good what failed the task.
pub(super) fn heal(node: &mut TaskRecord) {
    let blamed = node.error.as_ref().is_some_and(|error| error.kind == CHILD_FAILED);
    if blamed && node.own == State::Succeeded && !is_lost(node) {
        node.error = None;
    }
}
