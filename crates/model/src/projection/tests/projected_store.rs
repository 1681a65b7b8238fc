//! In-memory store of the projection tests, and the projection of a log into it.

use super::*;
use crate::statistics::StatisticsChanges;
use crate::unique::KeyState;

/// In-memory store: records as bytes, indexes and counters.
#[derive(Default, PartialEq, Debug)]
pub(super) struct ProjectedStore {
    pub(super) task_records: BTreeMap<TaskId, Vec<u8>>,
    pub(super) index: BTreeSet<String>,
    pub(super) counts: BTreeMap<(Arc<str>, State), i64>,
    pub(super) logs: BTreeMap<TaskId, Vec<String>>,
    pub(super) deferred: BTreeMap<TaskId, Vec<u8>>,
    /// Numbers of failed tasks by type and error.
    pub(super) errors: BTreeMap<(Arc<str>, Fingerprint), i64>,
    pub(super) overview: Option<Overview>,
    pub(super) aggregates: BTreeMap<(Arc<str>, AggregateKey), Aggregate>,
    pub(super) error_summaries: BTreeMap<(Arc<str>, i64), ErrorSummary>,
    /// Open tasks by the statistics.
    pub(super) open: i64,
    pub(super) requests: Vec<Vec<u8>>,
    /// Keys of unique tasks.
    pub(super) keys: BTreeMap<String, Vec<u8>>,
}

impl ProjectedStore {
    pub(super) fn apply(&mut self, changes: Changes) {
        self.task_records.extend(changes.task_records);
        for entry in changes.removed {
            assert!(self.index.remove(&format!("{entry:?}")), "removed a missing entry: {entry:?}");
        }
        for entry in changes.added {
            assert!(self.index.insert(format!("{entry:?}")), "added twice: {entry:?}");
        }
        for (task_type, state, change) in changes.counts {
            let count = self.counts.entry((task_type, state)).or_default();
            *count += change;
            assert!(*count >= 0, "a counter is negative");
        }
        self.counts.retain(|_, count| *count != 0);
        for (id, projected) in changes.deferred {
            match projected {
                Some(projected) => drop(self.deferred.insert(id, projected)),
                None => assert!(self.deferred.remove(&id).is_some(), "removed a missing deferred record"),
            }
        }
        for (id, lines) in changes.logs {
            self.logs.entry(id).or_default().extend(lines);
        }
        for (task_type, error, change) in changes.errors {
            *self.errors.entry((task_type, error)).or_default() += change;
        }
        self.errors.retain(|_, count| *count != 0);
        self.apply_statistics(changes.statistics);
        self.requests.extend(changes.audit);
        for (tag, state) in changes.unique {
            match state {
                Some(state) => drop(self.keys.insert(tag, state)),
                None => assert!(self.keys.remove(&tag).is_some(), "removed a missing key: {tag}"),
            }
        }
    }

    pub(super) fn apply_statistics(&mut self, changes: StatisticsChanges) {
        if let Some(overview) = changes.overview {
            self.overview = Overview::decode(&overview);
        }
        for (series, key, aggregate) in changes.aggregates {
            match aggregate {
                Some(aggregate) => drop(self.aggregates.insert((series, key), Aggregate::decode(&aggregate).unwrap())),
                None => drop(self.aggregates.remove(&(series, key))),
            }
        }
        for (series, hour, errors) in changes.errors {
            match errors {
                Some(errors) => {
                    drop(self.error_summaries.insert((series, hour), ErrorSummary::decode(&errors).unwrap()));
                }
                None => drop(self.error_summaries.remove(&(series, hour))),
            }
        }
        self.open += changes.open;
    }

    pub(super) fn key(&self, tag: &str) -> Option<KeyState> {
        self.keys.get(tag).map(|bytes| KeyState::decode(bytes).unwrap())
    }

    pub(super) fn task(&self, id: &str) -> TaskRecord {
        TaskRecord::decode(&self.task_records[&TaskId::parse(id).unwrap()]).unwrap()
    }
}

/// Projects a log as a tracker does: in batches, with loads from the store and a bounded cache.
pub(super) fn fold_log(log: &[Event], batch: usize, cache: usize) -> ProjectedStore {
    fold_paced(log, batch, cache, 1)
}

/// Projects a log in which log time advances by `pace_ms` with each event.
pub(super) fn fold_paced(log: &[Event], batch: usize, cache: usize, pace_ms: i64) -> ProjectedStore {
    fold_cut(log, 0, batch, cache, pace_ms)
}

/// Projects a log whose events before offset `first` have been removed.
pub(super) fn fold_cut(log: &[Event], first: usize, batch: usize, cache: usize, pace_ms: i64) -> ProjectedStore {
    let mut projected = ProjectedStore::default();
    let mut working_set = WorkingSet::default();
    working_set.begin_statistics(first as i64);
    for (number, events) in log[first..].chunks(batch.max(1)).enumerate() {
        load(&mut working_set, &projected, events);
        for (n, event) in events.iter().enumerate() {
            let offset = (first + number * batch.max(1) + n) as i64;
            working_set.fold(event, LogPosition { offset, log_time_ms: 1_000 + offset * pace_ms }).unwrap();
        }
        projected.apply(working_set.take_changes().unwrap());
        assert_eq!(
            working_set.deferred_bytes(),
            projected.deferred.values().map(|projected| projected.len() as u64).sum::<u64>()
        );
        working_set.shrink(cache);
    }
    projected
}

/// Loads the records that these events need.
fn load(working_set: &mut WorkingSet, projected: &ProjectedStore, events: &[Event]) {
    for tag in working_set.keys().missing(events) {
        working_set.keys().load(&tag, projected.key(&tag));
    }
    let mut missing = working_set.missing(events);
    missing.extend(working_set.missing_records().into_iter().filter(|id| !missing.contains(id)).collect::<Vec<_>>());
    while !missing.is_empty() {
        for id in missing {
            let task = projected.task_records.get(&id).map(|bytes| TaskRecord::decode(bytes).unwrap());
            working_set.load(id, task);
        }
        missing = working_set.missing_records();
    }
}
