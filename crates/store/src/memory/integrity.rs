//! Integrity checks of a partition in memory.

use std::sync::Arc;

use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::projection::IndexedFields;

use super::Partition;
use crate::integrity::{IndexedTask, IntegrityPage, SIZED, Sizes, is_open};
use crate::{Entry, ErrorLevel, Index, TaskRecord};

impl Partition {
    /// Describes a difference between expected and actual sizes.
    pub(super) fn fault(&self) -> Option<String> {
        let entry_count = |index: &Index| self.indexes.get(index).map_or(0, |entries| entries.len() as i64);
        let sizes = self.actual_sizes(entry_count);
        if sizes != self.sizes {
            return Some(format!("found {sizes:?}, expected {:?}", self.sizes));
        }
        let group = |(task_type, error): &(Arc<str>, Fingerprint)| {
            entry_count(&Index::Failed { task_type: task_type.clone(), error: *error })
        };
        let levels = [ErrorLevel::Message, ErrorLevel::Kind];
        let mut counts = levels.into_iter().flat_map(|level| self.error_counts(level));
        if let Some(((task_type, error), count)) = counts.find(|(key, count)| group(key) != *count) {
            return Some(format!("the index of `{task_type}` tasks with error {error} does not hold {count} entries"));
        }
        let wrong = self.counts.iter().find(|((task_type, state), count)| {
            let members = Index::Members { task_type: task_type.clone(), state: *state };
            **count < 0 || (state.is_indexed() && entry_count(&members) != **count)
        });
        wrong.map(|((task_type, state), count)| {
            format!("the index of `{task_type}/{state}` does not hold {count} entries")
        })
    }

    /// Sizes of the present contents; `entry_count` counts the entries of an index.
    fn actual_sizes(&self, entry_count: impl Fn(&Index) -> i64) -> Sizes {
        let open = self.counts.iter().filter(|((_, state), _)| is_open(*state)).map(|(_, count)| count);
        Sizes {
            entries: SIZED.each_ref().map(entry_count),
            tasks: self.counts.values().sum(),
            open: open.sum(),
            failed: self.errors.values().sum(),
        }
    }

    /// Reads entries in ascending order, as [`PartitionWriter::indexed_tasks`](crate::PartitionWriter::indexed_tasks) does.
    pub(super) fn indexed_tasks(&self, index: &Index, after: Option<&Entry>, limit: usize) -> IntegrityPage {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some(entries) = self.indexes.get(index) else { return IntegrityPage::default() };
        let mut rest = entries.range((after.map_or(Unbounded, Excluded), Unbounded));
        let tasks = rest.by_ref().take(limit).map(|entry| self.related(entry)).collect();
        IntegrityPage { tasks, more: rest.next().is_some() }
    }

    fn related(&self, entry: &Entry) -> IndexedTask {
        let at = |index: &Index, due_ms: Option<i64>| {
            let is_there = |seen_ms: &i64| {
                let entry = Entry { seen_ms: *seen_ms, id: entry.id.clone() };
                self.indexes.get(index).is_some_and(|entries| entries.contains(&entry))
            };
            due_ms.filter(is_there)
        };
        let task = self.records.get(&entry.id).and_then(|record| TaskRecord::decode(record));
        let placed = task.as_ref().map(IndexedFields::of);
        let due = |of: fn(&IndexedFields) -> Option<i64>| placed.as_ref().and_then(of);
        IndexedTask {
            entry: entry.clone(),
            children: self.indexes.get(&Index::Children(entry.id.clone())).map_or(0, |entries| entries.len() as u64),
            timer: at(&Index::Timers, due(|placed| placed.timer)),
            effect: at(&Index::Effects, due(|placed| placed.effect)),
            age: at(&Index::Ages, due(|placed| placed.age)),
            has_deferred: self.deferred.contains_key(&entry.id),
            has_log: self.logs.contains_key(&entry.id),
            has_attachments: self.attachments.contains_key(&entry.id),
            expires: false,
            task,
        }
    }
}
