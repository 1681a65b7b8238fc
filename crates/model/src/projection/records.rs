//! Loaded records of a partition, and their pending changes.

use rustc_hash::FxHashMap;

use super::deferred_record::DeferredRecord;
use super::indexed_fields::IndexedFields;
use super::unique_keys::UniqueKeys;
use crate::event::{Event, Payload};
use crate::record::TaskRecord;
use crate::record::log_line::StoredLine;
use crate::statistics::Statistics;
use crate::task::id::TaskId;

/// Loaded task records with their pending changes and side data.
#[derive(Default)]
pub(super) struct Records {
    pub(super) entries: FxHashMap<TaskId, WorkingEntry>,
    /// Changed records in the order of their first change.
    pub(super) dirty: Vec<TaskId>,
    pub(super) logs: Vec<(TaskId, Vec<String>)>,
    pub(super) attachments: Vec<(TaskId, String, Option<Vec<u8>>)>,
    /// Deferred records (copies with the params of delayed tasks) to store; `None`: to remove.
    pub(super) deferred: FxHashMap<TaskId, Option<Vec<u8>>>,
    /// Bytes of deferred records in the partition.
    pub(super) deferred_bytes: u64,
    /// Continuations of loaded records, which must be loaded too.
    pub(super) missing: Vec<TaskId>,
    pub(super) statistics: Statistics,
    /// Encoded audit entries: requests of users.
    pub(super) audit: Vec<Vec<u8>>,
    /// Keys of unique tasks.
    pub(super) keys: UniqueKeys,
    /// Second tasks with the id of another, since they were last taken.
    pub(super) id_conflicts: u64,
}

pub(super) struct WorkingEntry {
    /// `None`: the store has no record.
    pub(super) task: Option<TaskRecord>,
    /// Indexed fields as stored, once the entry is dirty.
    pub(super) stored: Option<IndexedFields>,
    pub(super) dirty: bool,
    /// Used since the last `shrink`, which drops the others.
    pub(super) used: bool,
    /// Approximate size of the record, in bytes.
    pub(super) bytes: usize,
}

impl WorkingEntry {
    /// Loaded record, unchanged.
    pub(super) fn loaded(task: Option<TaskRecord>) -> Self {
        let bytes = task.as_ref().and_then(|task| task.outcome.output.as_ref()).map_or(0, |output| output.text().len());
        Self { task, stored: None, dirty: false, used: true, bytes }
    }

    /// Record that the store does not have yet.
    fn created(task: TaskRecord) -> Self {
        Self { task: Some(task), stored: None, dirty: true, used: true, bytes: 0 }
    }
}

impl Records {
    pub(super) fn task(&self, id: &str) -> Option<&TaskRecord> {
        self.entries.get(id).and_then(|entry| entry.task.as_ref())
    }

    /// Adds a record that the store does not have yet.
    pub(super) fn insert(&mut self, id: TaskId, task: TaskRecord) {
        self.dirty.push(id.clone());
        self.entries.insert(id, WorkingEntry::created(task));
    }

    /// Returns a record for modification and marks it as changed.
    pub(super) fn task_mut(&mut self, id: &TaskId) -> Option<&mut TaskRecord> {
        let entry = self.entries.get_mut(id)?;
        let task = entry.task.as_mut()?;
        entry.used = true;
        if !entry.dirty {
            entry.dirty = true;
            entry.stored = Some(IndexedFields::of(task));
            self.dirty.push(id.clone());
        }
        Some(task)
    }

    /// Stores or removes the deferred record of a task.
    pub(super) fn record_deferred(&mut self, id: &TaskId, keeping: DeferredRecord, before: u32, now: u32) {
        self.deferred_bytes = (self.deferred_bytes + u64::from(now)).saturating_sub(u64::from(before));
        self.deferred.insert(
            id.clone(),
            match keeping {
                DeferredRecord::Put(bytes) => Some(bytes),
                DeferredRecord::Drop => None,
            },
        );
    }

    /// Removes the deferred record of a task, if the store has one.
    pub(super) fn drop_deferred(&mut self, id: &TaskId, stored_bytes: u32) {
        if stored_bytes > 0 {
            self.record_deferred(id, DeferredRecord::Drop, stored_bytes, 0);
        }
    }

    /// Collects log lines and attachments, which are stored next to the record.
    pub(super) fn collect_side_data(&mut self, event: &Event) {
        let (given, data) = match &event.payload {
            Payload::Log { lines, streams, .. } => {
                let stream = |n: usize| streams.get(n).copied().flatten();
                let stored = |(n, line): (usize, &String)| StoredLine::of(event, stream(n), line).encode();
                let lines = lines.iter().enumerate().map(stored).collect();
                return self.logs.push((event.id.clone(), lines));
            }
            Payload::Attached { attachment: Some(given) } => (given, Some(given.data.clone())),
            Payload::Detached { attachment: Some(given) } => (given, None),
            _ => return,
        };
        self.attachments.push((event.id.clone(), given.name.clone(), data));
    }
}
