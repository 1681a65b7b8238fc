//! Records that a batch needs: each task, its ancestors and its possible continuations.

use rustc_hash::FxHashSet;

use super::WorkingSet;
use crate::event::Event;
use crate::task::continuation::{Continuation, ids_below};
use crate::task::id::TaskId;

impl WorkingSet {
    /// Ids of the records needed by these events that are not loaded: each task, its ancestors and its possible
    /// continuations. After they are loaded, [`WorkingSet::missing_records`] may name more.
    pub fn missing<'a>(&self, events: impl IntoIterator<Item = &'a Event>) -> Vec<TaskId> {
        let mut seen = FxHashSet::default();
        let mut ids = Vec::new();
        for event in events.into_iter().filter(|event| !event.kind().is_partition_wide()) {
            self.collect_path(&event.id, &mut seen, &mut ids);
            let policy = event.task.as_ref().and_then(|task| task.policy.as_ref());
            let of_policy = policy.map_or(&[][..], |policy| &policy.rules.then);
            let then = event.payload.continuations();
            if !then.is_empty() || !of_policy.is_empty() {
                let follow = self.possible_continuations(&event.id, of_policy, then).into_iter();
                ids.extend(follow.filter(|id| !self.records.entries.contains_key(id) && seen.insert(id.clone())));
            }
        }
        ids
    }

    /// Ids of the continuations that a policy asks for, and of those of the handler.
    fn possible_continuations(&self, id: &TaskId, of_policy: &[Continuation], then: &[Continuation]) -> Vec<TaskId> {
        let mut follow = Vec::new();
        ids_below(id, of_policy, 0, &mut follow);
        // Handler continuations are numbered after those of the policy, which may be known from an earlier event.
        let earlier_policy = self.task(id.as_str()).and_then(|task| task.definition.policy.as_ref());
        let first = earlier_policy.map_or(0, |policy| policy.rules.then.len());
        ids_below(id, then, first.max(of_policy.len()), &mut follow);
        follow
    }

    /// Ids of these tasks and their ancestors that are not loaded.
    pub fn missing_of<'a>(&self, tasks: impl IntoIterator<Item = &'a TaskId>) -> Vec<TaskId> {
        let mut seen = FxHashSet::default();
        let mut ids = Vec::new();
        tasks.into_iter().for_each(|id| self.collect_path(id, &mut seen, &mut ids));
        ids
    }

    fn collect_path(&self, id: &TaskId, seen: &mut FxHashSet<TaskId>, ids: &mut Vec<TaskId>) {
        let mut next = Some(id.clone());
        while let Some(id) = next {
            // The ancestors of a loaded record are loaded too.
            if self.records.entries.contains_key(&id) || !seen.insert(id.clone()) {
                return;
            }
            next = id.parent_id();
            ids.push(id);
        }
    }

    /// Ids of further records needed after a load; empty once all are loaded.
    pub fn missing_records(&mut self) -> Vec<TaskId> {
        let mut missing = std::mem::take(&mut self.records.missing);
        missing.extend(self.records.keys.take_tasks());
        missing.sort();
        missing.dedup();
        missing.retain(|id| !self.records.entries.contains_key(id));
        missing
    }
}
