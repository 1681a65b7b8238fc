//! Contents of one partition in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::projection::audit::MAX_AUDIT;
use kafleet_model::projection::changes::Changes;
use kafleet_model::record::state::State;
use kafleet_model::retention::Lifetimes;
use kafleet_model::statistics::aggregate::AggregateKey;
use kafleet_model::task::id::TaskId;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::integrity::Sizes;
use crate::log_tail::LogTail;
use crate::{Checkpoint, Entry, Index, Reservation};

#[derive(Clone, Default)]
pub(super) struct Partition {
    pub(super) checkpoint: Option<Checkpoint>,
    /// Revision of the last change of the checkpoint.
    pub(super) revision: u64,
    pub(super) records: FxHashMap<TaskId, Vec<u8>>,
    pub(super) indexes: FxHashMap<Index, BTreeSet<Entry>>,
    pub(super) counts: BTreeMap<(Arc<str>, State), i64>,
    pub(super) logs: FxHashMap<TaskId, LogTail<String>>,
    pub(super) attachments: FxHashMap<TaskId, BTreeMap<String, Vec<u8>>>,
    pub(super) deferred: FxHashMap<TaskId, Vec<u8>>,
    /// Keys of unique tasks by tag.
    pub(super) unique: FxHashMap<String, Vec<u8>>,
    /// Finished roots by the time of their removal.
    pub(super) done: BTreeMap<i64, VecDeque<TaskId>>,
    pub(super) lifetimes: Option<Lifetimes>,
    /// Overview of the statistics.
    pub(super) overview: Option<Vec<u8>>,
    pub(super) aggregates: BTreeMap<(Arc<str>, AggregateKey), Vec<u8>>,
    /// Commonest errors and slowest attempts by type and hour.
    pub(super) error_summaries: BTreeMap<(Arc<str>, i64), Vec<u8>>,
    /// Sizes of the indexes of failed tasks.
    pub(super) errors: BTreeMap<(Arc<str>, Fingerprint), i64>,
    /// Requests of users, newest first.
    pub(super) requests: VecDeque<Vec<u8>>,
    /// Expected sizes, compared with the actual ones by the integrity check.
    pub(super) sizes: Sizes,
    /// Bytes of records, deferred records, log lines and attachments.
    pub(super) bytes: usize,
    /// Reservations by id and run.
    pub(super) reservations: FxHashMap<(TaskId, u32), StoredReservation>,
    /// Keys of `reservations` by expiry.
    pub(super) ends: BTreeSet<(Instant, (TaskId, u32))>,
}

/// Reservation with its expiry.
#[derive(Clone)]
pub(super) struct StoredReservation {
    pub(super) reservation: Reservation,
    pub(super) end: Instant,
}

impl Partition {
    /// Applies the changes of a batch; the caller sets the checkpoint.
    pub(super) fn apply(&mut self, changes: &Changes) {
        for (id, record) in &changes.task_records {
            let old = self.records.insert(id.clone(), record.clone());
            self.bytes = self.bytes + record.len() - old.map_or(0, |old| old.len());
        }
        self.apply_indexes(changes);
        self.apply_done(changes);
        self.apply_counts(changes);
        self.apply_values(changes);
        for id in &changes.deleted {
            let attached = self.attachments.remove(id).map_or(0, |attached| attached.values().map(Vec::len).sum());
            let record = self.records.remove(id).map_or(0, |record| record.len());
            let log = self.logs.remove(id).map_or(0, |tail| tail.bytes());
            self.bytes = self.bytes.saturating_sub(record + log + attached);
        }
        if changes.lifetimes.is_some() {
            self.lifetimes.clone_from(&changes.lifetimes);
        }
        self.apply_statistics(changes);
    }

    fn apply_statistics(&mut self, changes: &Changes) {
        if changes.statistics.overview.is_some() {
            self.overview.clone_from(&changes.statistics.overview);
        }
        for (series, key, aggregate) in &changes.statistics.aggregates {
            let old = replace_value(&mut self.aggregates, (series.clone(), *key), aggregate.as_ref());
            self.bytes = self.bytes + aggregate.as_ref().map_or(0, Vec::len) - old;
        }
        for (series, hour, errors) in &changes.statistics.errors {
            let old = replace_value(&mut self.error_summaries, (series.clone(), *hour), errors.as_ref());
            self.bytes = self.bytes + errors.as_ref().map_or(0, Vec::len) - old;
        }
        for (task_type, error, change) in &changes.errors {
            add(&mut self.errors, (task_type.clone(), *error), *change);
        }
        changes.audit.iter().for_each(|request| self.requests.push_front(request.clone()));
        self.requests.truncate(MAX_AUDIT);
    }

    fn apply_counts(&mut self, changes: &Changes) {
        let added = Sizes::of(changes);
        self.sizes.tasks += added.tasks;
        self.sizes.open += added.open;
        self.sizes.failed += added.failed;
        self.sizes.entries.iter_mut().zip(added.entries).for_each(|(size, added)| *size += added);
        for (task_type, state, change) in &changes.counts {
            add(&mut self.counts, (task_type.clone(), *state), *change);
        }
    }

    /// Applies deferred records, log lines and attachments.
    fn apply_values(&mut self, changes: &Changes) {
        for (id, deferred) in &changes.deferred {
            let old = match deferred {
                Some(deferred) => self.deferred.insert(id.clone(), deferred.clone()),
                None => self.deferred.remove(id),
            };
            self.bytes = self.bytes + deferred.as_ref().map_or(0, Vec::len) - old.map_or(0, |old| old.len());
        }
        for (tag, state) in &changes.unique {
            let old = match state {
                Some(state) => self.unique.insert(tag.clone(), state.clone()),
                None => self.unique.remove(tag),
            };
            self.bytes = self.bytes + state.as_ref().map_or(0, Vec::len) - old.map_or(0, |old| old.len());
        }
        for (id, lines) in &changes.logs {
            let tail = self.logs.entry(id.clone()).or_default();
            let before = tail.bytes();
            lines.iter().for_each(|line| tail.push(line.clone(), line.len()));
            self.bytes = self.bytes + tail.bytes() - before;
        }
        for (id, name, data) in &changes.attachments {
            let attached = self.attachments.entry(id.clone()).or_default();
            let old = match data {
                Some(data) => attached.insert(name.clone(), data.clone()),
                None => attached.remove(name),
            };
            self.bytes = self.bytes + data.as_ref().map_or(0, Vec::len) - old.map_or(0, |old| old.len());
        }
    }

    fn apply_indexes(&mut self, changes: &Changes) {
        for (index, entry) in &changes.removed {
            if let Some(entries) = self.indexes.get_mut(index) {
                entries.remove(entry);
                if entries.is_empty() {
                    self.indexes.remove(index);
                }
            }
        }
        for (index, entry) in &changes.added {
            self.indexes.entry(index.clone()).or_default().insert(entry.clone());
        }
    }

    /// Adds finished roots, and removes those that have been processed.
    fn apply_done(&mut self, changes: &Changes) {
        for entry in &changes.done {
            self.done.entry(entry.seen_ms).or_default().push_back(entry.id.clone());
        }
        let Some((due_ms, count)) = changes.done_with else { return };
        if let Some(done) = self.done.get_mut(&due_ms) {
            done.drain(..count.min(done.len()));
            if done.is_empty() {
                self.done.remove(&due_ms);
            }
        }
    }

    /// Finished roots of the first removal time after `after_ms`.
    pub(super) fn first_done(&self, after_ms: i64, limit: usize) -> Vec<Entry> {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some((seen_ms, ids)) = self.done.range((Excluded(after_ms), Unbounded)).next() else { return Vec::new() };
        ids.iter().take(limit).map(|id| Entry { seen_ms: *seen_ms, id: id.clone() }).collect()
    }

    /// Entries of an index after a position, in the order of the index ([`Index`]).
    pub(super) fn page(&self, index: &Index, after: Option<&Entry>, limit: usize) -> Vec<Entry> {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some(entries) = self.indexes.get(index) else { return Vec::new() };
        let after = after.map_or(Unbounded, Excluded);
        match index {
            Index::Children(_) | Index::Timers | Index::Effects | Index::Ages => {
                entries.range((after, Unbounded)).take(limit).cloned().collect()
            }
            Index::Roots | Index::Members { .. } | Index::Failed { .. } => {
                entries.range((Unbounded, after)).rev().take(limit).cloned().collect()
            }
        }
    }

    /// Removes the reservations that expire at `now` or before.
    pub(super) fn drop_expired(&mut self, now: Instant) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            let Some((_, key)) = self.ends.pop_first() else { return };
            self.reservations.remove(&key);
        }
    }

    /// Sets or replaces a reservation.
    pub(super) fn insert_reservation(&mut self, key: (TaskId, u32), reservation: &Reservation, end: Instant) {
        self.remove_reservation(&key);
        self.ends.insert((end, key.clone()));
        self.reservations.insert(key, StoredReservation { reservation: reservation.clone(), end });
    }

    /// Removes a reservation.
    pub(super) fn remove_reservation(&mut self, key: &(TaskId, u32)) {
        if let Some(reserved) = self.reservations.remove(key) {
            self.ends.remove(&(reserved.end, key.clone()));
        }
    }
}

/// Writes or removes a value. Returns the size of the old one.
fn replace_value<K: Ord>(values: &mut BTreeMap<K, Vec<u8>>, key: K, value: Option<&Vec<u8>>) -> usize {
    let old = match value {
        Some(value) => values.insert(key, value.clone()),
        None => values.remove(&key),
    };
    old.map_or(0, |old| old.len())
}

/// Adds to a count; a count of zero is removed.
fn add<K: Ord + Clone>(counts: &mut BTreeMap<K, i64>, key: K, change: i64) {
    let count = counts.entry(key.clone()).or_default();
    *count += change;
    if *count == 0 {
        counts.remove(&key);
    }
}
