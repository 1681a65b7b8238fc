//! Differences between the records in a working set and their stored versions, as changes for the store.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::indexed_fields::{FailedEntry, IndexedFields};
use super::{WorkingSet, tally};
use crate::encode_error::EncodeError;
use crate::error_fingerprint::Fingerprint;
use crate::projection::changes::{Changes, Entry, Index};
use crate::record::TaskRecord;
use crate::record::state::State;
use crate::task::id::TaskId;

/// Differences of counters.
#[derive(Default)]
struct CountChanges {
    states: FxHashMap<(Arc<str>, State), i64>,
    errors: FxHashMap<(Arc<str>, Fingerprint), i64>,
}

impl CountChanges {
    fn write_to(self, changes: &mut Changes) {
        changes.counts = sorted(self.states).map(|((task_type, state), change)| (task_type, state, change)).collect();
        changes.errors = sorted(self.errors).map(|((task_type, error), change)| (task_type, error, change)).collect();
    }
}

impl WorkingSet {
    /// Takes the changes since the last call. Fails if a record cannot be encoded; the changes are then lost.
    pub fn take_changes(&mut self) -> Result<Changes, EncodeError> {
        let logs = std::mem::take(&mut self.records.logs);
        let attachments = std::mem::take(&mut self.records.attachments);
        let mut changes = Changes { logs, attachments, ..Changes::default() };
        let mut counts = CountChanges::default();
        for id in std::mem::take(&mut self.records.dirty) {
            let Some(entry) = self.records.entries.get_mut(&id) else { continue };
            let Some(task) = &entry.task else { continue };
            let stored = entry.stored.take();
            entry.dirty = false;
            if let Some(deferred) = self.records.deferred.remove(&id) {
                // A record deferred and released within one batch was never stored.
                let had_deferred = stored.as_ref().is_some_and(|stored| stored.has_deferred);
                changes.deferred.extend((deferred.is_some() || had_deferred).then(|| (id.clone(), deferred)));
            }
            entry.bytes = add_changes(&mut changes, &mut counts, id, task, stored)?;
        }
        counts.write_to(&mut changes);
        changes.unique = self.records.keys.take_changes()?;
        changes.statistics = self.records.statistics.take_changes()?;
        changes.audit = std::mem::take(&mut self.records.audit);
        changes.lifetimes = std::mem::take(&mut self.new_lifetimes).then(|| self.ages.lifetimes.clone());
        Ok(changes)
    }

    /// Removes stored records at this log time: whole trees, or the deepest tasks of one.
    pub fn remove(&mut self, removed: Vec<(TaskId, TaskRecord)>, log_time_ms: i64) -> Result<Changes, EncodeError> {
        self.records.statistics.advance(log_time_ms);
        let mut changes = Changes::default();
        let mut counts = CountChanges::default();
        for (id, task) in removed {
            self.records.entries.remove(&id);
            self.records.deferred_bytes =
                self.records.deferred_bytes.saturating_sub(u64::from(task.deferral.stored_bytes()));
            self.records.count(tally::removal(&task));
            self.records.keys.forget_removed(&id, log_time_ms);
            add_removal(&mut changes, &mut counts, id, &task);
        }
        counts.write_to(&mut changes);
        changes.unique = self.records.keys.take_changes()?;
        changes.statistics = self.records.statistics.take_changes()?;
        Ok(changes)
    }
}

fn sorted<K: Ord>(counts: FxHashMap<K, i64>) -> impl Iterator<Item = (K, i64)> {
    let mut sorted: Vec<_> = counts.into_iter().filter(|(_, change)| *change != 0).collect();
    sorted.sort();
    sorted.into_iter()
}

fn add_removal(changes: &mut Changes, counts: &mut CountChanges, id: TaskId, task: &TaskRecord) {
    let entry = Entry { seen_ms: task.times.seen_ms, id };
    let stored = IndexedFields::of(task);
    let index = entry.id.parent_id().map_or(Index::Roots, Index::Children);
    changes.removed.push((index, entry.clone()));
    move_entry(changes, &Index::Timers, &entry.id, stored.timer, None);
    move_entry(changes, &Index::Effects, &entry.id, stored.effect, None);
    move_entry(changes, &Index::Ages, &entry.id, stored.age, None);
    changes.deferred.extend(stored.has_deferred.then(|| (entry.id.clone(), None)));
    move_failed(changes, counts, &entry.id, stored.failed(), None);
    if let Some(task_type) = stored.task_type {
        move_member(changes, counts, &entry, Some((task_type, stored.state)), None);
    }
    changes.deleted.push(entry.id);
}

/// Adds the changes of a record. Returns its size as stored, in bytes.
fn add_changes(
    changes: &mut Changes,
    counts: &mut CountChanges,
    id: TaskId,
    task: &TaskRecord,
    stored: Option<IndexedFields>,
) -> Result<usize, EncodeError> {
    let encoded = task.encode()?;
    let bytes = encoded.len();
    changes.task_records.push((id.clone(), encoded));
    let entry = Entry { seen_ms: task.times.seen_ms, id };
    if stored.is_none() {
        let index = entry.id.parent_id().map_or(Index::Roots, Index::Children);
        changes.added.push((index, entry.clone()));
    }
    let now = IndexedFields::of(task);
    let (timer, effect, age) = stored.as_ref().map_or((None, None, None), |was| (was.timer, was.effect, was.age));
    move_entry(changes, &Index::Timers, &entry.id, timer, now.timer);
    move_entry(changes, &Index::Effects, &entry.id, effect, now.effect);
    move_entry(changes, &Index::Ages, &entry.id, age, now.age);
    // Entries are never removed from the list: the tree collection checks each root's record before deleting its
    // tree.
    let done = now.done.filter(|_| stored.as_ref().and_then(|was| was.done) != now.done);
    changes.done.extend(done.map(|seen_ms| Entry { seen_ms, id: entry.id.clone() }));
    move_failed(changes, counts, &entry.id, stored.as_ref().and_then(IndexedFields::failed), now.failed());
    let was = stored.and_then(|stored| Some((stored.task_type?, stored.state)));
    let is = now.task_type.map(|task_type| (task_type, now.state));
    if was != is {
        move_member(changes, counts, &entry, was, is);
    }
    Ok(bytes)
}

type Member = Option<(Arc<str>, State)>;

fn move_member(changes: &mut Changes, counts: &mut CountChanges, entry: &Entry, was: Member, is: Member) {
    for (member, change, index) in [(was, -1, &mut changes.removed), (is, 1, &mut changes.added)] {
        let Some((task_type, state)) = member else { continue };
        if state.is_indexed() {
            index.push((Index::Members { task_type: task_type.clone(), state }, entry.clone()));
        }
        *counts.states.entry((task_type, state)).or_default() += change;
    }
}

fn move_entry(changes: &mut Changes, index: &Index, id: &TaskId, was: Option<i64>, is: Option<i64>) {
    if was != is {
        let entry = |seen_ms| (index.clone(), Entry { seen_ms, id: id.clone() });
        changes.removed.extend(was.map(entry));
        changes.added.extend(is.map(entry));
    }
}

fn move_failed(changes: &mut Changes, counts: &mut CountChanges, id: &TaskId, was: FailedEntry, is: FailedEntry) {
    if was == is {
        return;
    }
    for (entry, change, index) in [(was, -1, &mut changes.removed), (is, 1, &mut changes.added)] {
        let Some((task_type, error, seen_ms)) = entry else { continue };
        for error in [error, error.kind()] {
            let failed = Index::Failed { task_type: task_type.clone(), error };
            index.push((failed, Entry { seen_ms, id: id.clone() }));
        }
        *counts.errors.entry((task_type, error)).or_default() += change;
    }
}
