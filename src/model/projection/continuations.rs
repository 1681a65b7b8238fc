//! Continuations of a task that has ended. Their records are created before any ancestor's state is computed, so that
//! no ancestor appears finished in between.

use super::records::Records;
use super::refresh::{refresh, rollup_input};
use super::step::{announce, begin_run};
use super::{Change, tally};
use crate::model::event::{Announcement, ErrorInfo, Kind};
use crate::model::outbox::{Effect, EffectKind};
use crate::model::record::rollup;
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, TaskRecord};
use crate::model::task::continuation;
use crate::model::task::continuation::{Continuation, MAX_CONTINUATIONS};
use crate::model::task::id::TaskId;

/// Returns true if a continuation has become due by the state of the task and its regular children.
pub(super) fn has_due(node: &TaskRecord) -> bool {
    node.has_continuations() && node.definition.announced && node.own.is_terminal() && !due(node).is_empty()
}

/// Continuations that are due and not yet created in this run.
fn due(node: &TaskRecord) -> Vec<(usize, Continuation)> {
    let ended = rollup::settled(node.own, &node.tree.below, node.definition.tolerated());
    let continuations = node.continuations().take(MAX_CONTINUATIONS).enumerate();
    continuations
        .filter(|(n, then)| node.continuations.created_mask & (1 << n) == 0 && then.on.is(ended))
        .map(|(n, then)| (n, then.clone()))
        .collect()
}

impl Records {
    /// Creates the due continuations of a task.
    pub(super) fn create_continuations(&mut self, id: &TaskId, cause: Change<'_>) {
        for (n, then) in self.node(id.as_str()).map(due).unwrap_or_default() {
            let Some(node) = self.node_mut(id) else { return };
            node.continuations.created_mask |= 1 << n;
            match id.child(&continuation::segment(n)) {
                Ok(next) => self.create_continuation(id, &next, &then, cause),
                Err(error) => fail(node, cause, format!("the continuation {} has no valid id: {error}", n + 1)),
            }
        }
    }

    /// Creates one continuation in the current run of its task.
    fn create_continuation(&mut self, id: &TaskId, next: &TaskId, then: &Continuation, cause: Change<'_>) {
        let followed = self.node(id.as_str()).map(|node| (node.run, node.definition.trace));
        let Some((run, trace)) = followed else { return };
        let before = self.node(next.as_str()).map(|node| rollup_input(next, node));
        if before.is_none() {
            self.insert(next.clone(), TaskRecord::expected(run, cause.position.log_time_ms));
        }
        let Some(node) = self.node_mut(next) else { return };
        if node.run > run || (node.run == run && node.definition.announced) {
            return;
        }
        let counted_before = tally::Before::of(node);
        node.restore_expected();
        let stored_bytes = node.deferral.clear_record();
        if node.run < run {
            begin_run(node, run);
            node.definition.position = None;
        }
        announce(node, next, &Announcement { trace, ..announcement(then, cause) });
        node.folded_to = cause.position.offset + 1;
        // Events of the continuation may precede its creation: a recorded terminal state is kept.
        if !node.own.is_terminal() {
            node.own = State::Queued;
            node.push_effect(Effect { cause: cause.position.offset, what: EffectKind::PublishContinuation { run } });
        }
        node.history.push(entry(Kind::Submitted, run, cause, format!("follows `{id}`")));
        let observation = tally::compare(counted_before, node, cause.position, None);
        let is_due = has_due(node);
        self.count(observation);
        if is_due {
            // The continuation had ended before, and its own continuations are known only now.
            self.create_continuations(next, cause);
        }
        let Some(node) = self.node_mut(next) else { return };
        refresh(node, cause);
        let now = rollup_input(next, node);
        self.drop_deferred(next, stored_bytes);
        self.mark_outlived(next);
        if let Some(node) = self.node_mut(id) {
            if let Some(before) = before {
                rollup::uncount(&mut node.tree.below, run, &before);
            }
            rollup::count(&mut node.tree.below, run, &now);
            node.tree.has_below = true;
        }
    }
}

/// Fails a task whose continuation cannot be created: it has not done all that was asked of it. Tasks from outside with
/// such a continuation are refused by workers; those of other writers of events get here.
fn fail(node: &mut TaskRecord, cause: Change<'_>, message: String) {
    node.history.push(entry(Kind::Failed, node.run, cause, message.clone()));
    if node.own == State::Succeeded {
        node.own = State::Failed;
        node.outcome.error = Some(Box::new(ErrorInfo::new("bad_then", message, node.attempt)));
    }
}

/// Announcement of a continuation. Cancels up to its creation do not apply to it, including one that ended its task.
fn announcement(then: &Continuation, cause: Change<'_>) -> Announcement {
    Announcement {
        task_type: then.task_type.clone(),
        created_at_ms: cause.at_ms,
        position: None,
        hash: None,
        policy: (then.policy != Default::default()).then(|| Box::new(then.policy.clone())),
        asof: Some(cause.position.offset),
        trace: None,
    }
}

fn entry(kind: Kind, run: u32, cause: Change<'_>, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(kind, run, (cause.at_ms, cause.position.offset), message)
}
