//! What follows a task that has ended: its continuations are there before anything above it is computed.

use super::deferred_record::DeferredRecord;
use super::{Change, WorkingEntry, WorkingSet, announce, begin_run, refresh, standing};
use crate::model::event::{Announcement, Kind};
use crate::model::outbox::{Effect, EffectKind};
use crate::model::record::rollup;
use crate::model::record::state::State;
use crate::model::record::{HistoryEntry, TaskRecord};
use crate::model::task::continuation;
use crate::model::task::continuation::{Continuation, MAX_THENS};
use crate::model::task::id::TaskId;

/// Something follows the state that the task and its other children have.
pub(super) fn is_due(node: &TaskRecord) -> bool {
    node.has_thens() && node.announced && node.own.is_terminal() && !due(node).is_empty()
}

/// The continuations that are not made yet in this run and whose time has come.
fn due(node: &TaskRecord) -> Vec<(usize, Continuation)> {
    let ended = rollup::settled(node.own, &node.below, node.tolerated());
    let thens = node.thens().take(MAX_THENS).enumerate();
    thens.filter(|(n, then)| node.created_mask & (1 << n) == 0 && then.on.is(ended)).map(|(n, then)| (n, then.clone())).collect()
}

impl WorkingSet {
    pub(super) fn follow(&mut self, id: &TaskId, cause: Change<'_>) {
        for (n, then) in self.node(id.as_str()).map(due).unwrap_or_default() {
            let Some(node) = self.touch(id) else { return };
            node.created_mask |= 1 << n;
            let (run, told) = (node.run, format!("follows `{id}`"));
            match id.child(&continuation::segment(n)) {
                Ok(next) => self.make(id, &next, &then, run, told, cause),
                Err(why) => node.remember(entry(Kind::Warned, run, cause, format!("what is to follow cannot be named: {why}"))),
            }
        }
    }

    fn make(&mut self, id: &TaskId, next: &TaskId, then: &Continuation, run: u32, told: String, cause: Change<'_>) {
        let before = self.node(next.as_str()).map(|node| standing(next, node));
        if before.is_none() {
            let node = Some(TaskRecord::expected(run, cause.place.log_time_ms));
            self.slots.insert(next.clone(), WorkingEntry { node, stored: None, dirty: true, used: true });
            self.dirty.push(next.clone());
        }
        let Some(node) = self.touch(next) else { return };
        if node.run > run || (node.run == run && node.announced) {
            return;
        }
        node.take_back();
        let kept = std::mem::take(&mut node.kept);
        if node.run < run {
            begin_run(node, run);
            node.position = None;
        }
        announce(node, next, &announcement(then, cause));
        node.folded_to = cause.place.offset + 1;
        // Somebody else may have told its end already, which stays.
        if !node.own.is_terminal() {
            node.own = State::Queued;
            node.want(Effect { cause: cause.place.offset, what: EffectKind::Follow { run } });
        }
        node.remember(entry(Kind::Submitted, run, cause, told));
        if is_due(node) {
            // It has ended, and only now it is known what follows it.
            self.follow(next, cause);
        }
        let Some(node) = self.touch(next) else { return };
        refresh(node, cause);
        let now = standing(next, node);
        if kept > 0 {
            self.note_kept(next, DeferredRecord::Drop, kept, 0);
        }
        self.outlive(next);
        if let Some(node) = self.touch(id) {
            if let Some(before) = before {
                rollup::uncount(&mut node.below, run, &before);
            }
            rollup::count(&mut node.below, run, &now);
            node.has_below = true;
        }
    }
}

/// It knows of everything up to here: a cancel that ended the task is none of it.
fn announcement(then: &Continuation, cause: Change<'_>) -> Announcement {
    let policy = then.policy();
    Announcement {
        task_type: then.task_type.clone(),
        created_at_ms: cause.at_ms,
        position: None,
        hash: None,
        policy: (policy != Default::default()).then(|| Box::new(policy)),
        asof: Some(cause.place.offset),
    }
}

fn entry(kind: Kind, run: u32, cause: Change<'_>, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(kind, run, (cause.at_ms, cause.place.offset), message)
}
