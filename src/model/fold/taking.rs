//! What has changed in a forest, as the store takes it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Forest;
use crate::model::changes::{Changes, Entry, Index};
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::state::State;

/// The part of a stored record that indexes and counters depend on.
pub(super) struct Stored {
    task_type: Option<Arc<str>>,
    state: State,
    /// What [`Index::Timers`] and [`Index::Effects`] say.
    timer: Option<i64>,
    effect: Option<i64>,
    kept: bool,
}

impl Stored {
    pub(super) fn of(node: &Node) -> Self {
        Self {
            task_type: node.task_type.clone(),
            state: node.state,
            timer: node.timer().map(|timer| timer.due_ms),
            effect: node.effects.first().map(|effect| effect.cause),
            kept: node.kept > 0,
        }
    }
}

type Counts = FxHashMap<(Arc<str>, State), i64>;

impl Forest {
    /// Takes out what has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes { logs: std::mem::take(&mut self.logs), ..Changes::default() };
        let mut counts = Counts::default();
        for id in std::mem::take(&mut self.dirty) {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            let Some(node) = &slot.node else { continue };
            let stored = slot.stored.take();
            slot.dirty = false;
            if let Some(kept) = self.kept.remove(&id) {
                // What came and went within the batch was never there.
                let was_kept = stored.as_ref().is_some_and(|stored| stored.kept);
                changes.kept.extend((kept.is_some() || was_kept).then(|| (id.clone(), kept)));
            }
            take_node(&mut changes, &mut counts, id, node, stored);
        }
        changes.counts = counts.into_iter().filter(|(_, change)| *change != 0).map(|((t, s), n)| (t, s, n)).collect();
        changes.counts.sort();
        changes
    }
}

fn take_node(changes: &mut Changes, counts: &mut Counts, id: TaskId, node: &Node, stored: Option<Stored>) {
    changes.nodes.push((id.clone(), node.encode()));
    let entry = Entry { seen_ms: node.seen_ms, id };
    if stored.is_none() {
        let index = entry.id.parent_id().map_or(Index::Roots, Index::Children);
        changes.added.push((index, entry.clone()));
    }
    let now = Stored::of(node);
    let (timer, effect) = stored.as_ref().map_or((None, None), |stored| (stored.timer, stored.effect));
    move_entry(changes, &Index::Timers, &entry.id, timer, now.timer);
    move_entry(changes, &Index::Effects, &entry.id, effect, now.effect);
    let was = stored.and_then(|stored| Some((stored.task_type?, stored.state)));
    let is = now.task_type.map(|task_type| (task_type, now.state));
    if was == is {
        return;
    }
    for (member, change, index) in [(was, -1, &mut changes.removed), (is, 1, &mut changes.added)] {
        let Some((task_type, state)) = member else { continue };
        if state.is_indexed() {
            index.push((Index::Members { task_type: task_type.clone(), state }, entry.clone()));
        }
        *counts.entry((task_type, state)).or_default() += change;
    }
}

fn move_entry(changes: &mut Changes, index: &Index, id: &TaskId, was: Option<i64>, is: Option<i64>) {
    if was != is {
        let entry = |seen_ms| (index.clone(), Entry { seen_ms, id: id.clone() });
        changes.removed.extend(was.map(entry));
        changes.added.extend(is.map(entry));
    }
}
