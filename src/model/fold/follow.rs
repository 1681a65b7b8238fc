//! What follows a task that has ended: its continuations are there before anything above it is computed.

use super::keep::Keeping;
use super::{Cause, Forest, Slot, announce, begin_run, refresh, standing};
use crate::model::event::{Announcement, Kind};
use crate::model::id::TaskId;
use crate::model::node::{HistoryEntry, Node};
use crate::model::outbox::{Act, Effect};
use crate::model::rollup;
use crate::model::state::State;
use crate::model::then::{self, MAX_THENS, Then};

/// Something follows the state that the task and its other children have.
pub(super) fn is_due(node: &Node) -> bool {
    node.has_thens() && node.announced && node.own.is_terminal() && !due(node).is_empty()
}

/// The continuations that are not made yet in this run and whose time has come.
fn due(node: &Node) -> Vec<(usize, Then)> {
    let ended = rollup::settled(node.own, &node.below, node.tolerated());
    let thens = node.thens().take(MAX_THENS).enumerate();
    thens.filter(|(n, then)| node.thens_made & (1 << n) == 0 && then.on.is(ended)).map(|(n, then)| (n, then.clone())).collect()
}

impl Forest {
    pub(super) fn follow(&mut self, id: &TaskId, cause: Cause<'_>) {
        for (n, then) in self.node(id.as_str()).map(due).unwrap_or_default() {
            let Some(node) = self.touch(id) else { return };
            node.thens_made |= 1 << n;
            let (run, told) = (node.run, format!("follows `{id}`"));
            match id.child(&then::segment(n)) {
                Ok(next) => self.make(id, &next, &then, run, told, cause),
                Err(why) => node.remember(entry(Kind::Warned, run, cause, format!("what is to follow cannot be named: {why}"))),
            }
        }
    }

    fn make(&mut self, id: &TaskId, next: &TaskId, then: &Then, run: u32, told: String, cause: Cause<'_>) {
        let before = self.node(next.as_str()).map(|node| standing(next, node));
        if before.is_none() {
            let node = Some(Node::expected(run, cause.place.log_time_ms));
            self.slots.insert(next.clone(), Slot { node, stored: None, dirty: true, used: true });
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
            node.want(Effect { cause: cause.place.offset, what: Act::Follow { run } });
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
            self.note_kept(next, Keeping::Drop, kept, 0);
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
fn announcement(then: &Then, cause: Cause<'_>) -> Announcement {
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

fn entry(kind: Kind, run: u32, cause: Cause<'_>, message: String) -> HistoryEntry {
    HistoryEntry::of_fold(kind, run, (cause.at_ms, cause.place.offset), message)
}
