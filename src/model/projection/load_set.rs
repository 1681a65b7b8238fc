//! Which records a batch needs: each task, everything above it, and what may follow it.

use rustc_hash::FxHashSet;

use super::WorkingSet;
use crate::model::event::Event;
use crate::model::task::continuation::ids_below;
use crate::model::task::id::TaskId;

impl WorkingSet {
    /// The records that these events need and that are not at hand: each task and everything above it, and what may
    /// follow it. Once they are loaded, [`WorkingSet::wanted`] may name more.
    pub fn missing<'a>(&self, events: impl IntoIterator<Item = &'a Event>) -> Vec<TaskId> {
        let (mut seen, mut ids) = (FxHashSet::default(), Vec::new());
        for event in events.into_iter().filter(|event| !event.kind.is_of_no_task()) {
            self.path_of(&event.id, &mut seen, &mut ids);
            let policy = event.task.as_ref().and_then(|task| task.policy.as_ref());
            if !event.then.is_empty() || policy.is_some_and(|policy| !policy.rules.then.is_empty()) {
                let asked = policy.map_or(&[][..], |policy| &policy.rules.then);
                let mut follow = Vec::new();
                ids_below(&event.id, asked, 0, &mut follow);
                // The task's own policy may be known from before: the numbers of what its handler says go on from there.
                let first = self
                    .node(event.id.as_str())
                    .and_then(|node| node.policy.as_ref())
                    .map_or(0, |policy| policy.rules.then.len());
                ids_below(&event.id, &event.then, first.max(asked.len()), &mut follow);
                ids.extend(follow.into_iter().filter(|id| !self.slots.contains_key(id) && seen.insert(id.clone())));
            }
        }
        ids
    }

    /// The records of these tasks and of everything above them that are not at hand.
    pub fn missing_of<'a>(&self, tasks: impl IntoIterator<Item = &'a TaskId>) -> Vec<TaskId> {
        let (mut seen, mut ids) = (FxHashSet::default(), Vec::new());
        tasks.into_iter().for_each(|id| self.path_of(id, &mut seen, &mut ids));
        ids
    }

    fn path_of(&self, id: &TaskId, seen: &mut FxHashSet<TaskId>, ids: &mut Vec<TaskId>) {
        let mut next = Some(id.clone());
        while let Some(id) = next {
            // What is above a record at hand is at hand too: it was loaded with it.
            if self.slots.contains_key(&id) || !seen.insert(id.clone()) {
                return;
            }
            next = id.parent_id();
            ids.push(id);
        }
    }

    /// More records that are needed, after a load; empty: all are at hand.
    pub fn wanted(&mut self) -> Vec<TaskId> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort();
        wanted.dedup();
        wanted.retain(|id| !self.slots.contains_key(id));
        wanted
    }
}
