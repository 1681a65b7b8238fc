//! Records that a batch of events needs, and their projection.

use rustc_hash::FxHashSet;
use std::sync::atomic::Ordering::Relaxed;

use super::audit::AuditEntry;
use super::records::{Records, WorkingEntry};
use super::{Ages, Cause, LogPosition, UniqueKeys, Verdict, unique};
use crate::encode_error::EncodeError;
use crate::event::{Event, Payload};
use crate::record::TaskRecord;
use crate::retention::Lifetimes;
use crate::statistics::Statistics;
use crate::task::MAX_RUN;
use crate::task::id::TaskId;

/// Maximum size of the records cached between two batches, in bytes as stored. Results may be large.
const MAX_CACHE_BYTES: usize = 8 << 20;

/// Loaded task records of one partition, and their pending changes.
pub struct WorkingSet {
    pub(super) records: Records,
    pub(super) ages: Ages,
    /// Set when an event changed the lifetimes, until the changes are taken.
    pub(super) new_lifetimes: bool,
}

impl Default for WorkingSet {
    fn default() -> Self {
        Self::resume(0, Lifetimes::default(), Statistics::default())
    }
}

impl WorkingSet {
    /// Resumes a partition with its deferred bytes, the lifetimes in force and its statistics.
    pub fn resume(deferred_bytes: u64, lifetimes: Lifetimes, statistics: Statistics) -> Self {
        let records = Records { deferred_bytes, statistics, ..Records::default() };
        Self { records, ages: Ages::new(lifetimes, i64::MAX), new_lifetimes: false }
    }

    /// Begins the statistics of a fold that begins at this offset.
    pub fn begin_statistics(&mut self, offset: i64) {
        self.records.statistics = Statistics::begin(offset);
    }

    pub fn deferred_bytes(&self) -> u64 {
        self.records.deferred_bytes
    }

    /// Takes the number of second tasks with the id of another.
    pub fn take_id_conflicts(&mut self) -> u64 {
        std::mem::take(&mut self.records.id_conflicts)
    }

    /// Keys of unique tasks.
    pub fn keys(&mut self) -> &mut UniqueKeys {
        &mut self.records.keys
    }

    pub fn load(&mut self, id: TaskId, task: Option<TaskRecord>) {
        if let Some(task) = task.as_ref().filter(|task| task.has_continuations()) {
            task.continuation_ids(&id, &mut self.records.missing);
        }
        self.records.entries.insert(id, WorkingEntry::loaded(task));
    }

    pub fn task(&self, id: &str) -> Option<&TaskRecord> {
        self.records.task(id)
    }

    pub fn task_records(&self) -> impl Iterator<Item = (&TaskId, &TaskRecord)> {
        self.records.entries.iter().filter_map(|(id, entry)| entry.task.as_ref().map(|task| (id, task)))
    }

    pub fn len(&self) -> usize {
        self.records.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.entries.is_empty()
    }

    /// Shrinks the cache to at most `limit` records by dropping those not used since the last call. Ancestors of a
    /// record that stays are kept. Drops all if they have more than [`MAX_CACHE_BYTES`]. Call between batches only.
    pub fn shrink(&mut self, limit: usize) {
        self.records.keys.unload();
        if self.records.entries.values().map(|entry| entry.bytes).sum::<usize>() > MAX_CACHE_BYTES {
            self.records.entries.clear();
            return;
        }
        if self.records.entries.len() <= limit {
            return;
        }
        let used: Vec<TaskId> =
            self.records.entries.iter().filter(|(_, entry)| entry.used).map(|(id, _)| id.clone()).collect();
        if used.len() > limit {
            self.records.entries.clear();
            return;
        }
        let keep = with_ancestors(&self.records, used);
        self.records.entries.retain(|id, entry| {
            entry.used = false;
            keep.contains(id)
        });
    }

    /// Folds one event into the working set. The records it needs ([`WorkingSet::missing`]) must be loaded. After an
    /// error the working set is incomplete.
    pub fn fold(&mut self, event: &Event, position: LogPosition) -> Result<Verdict, EncodeError> {
        self.records.statistics.advance(position.log_time_ms);
        if let Some(request) = AuditEntry::of(event, position) {
            self.records.audit.push(request.encode()?);
        }
        if event.kind().is_partition_wide() {
            self.take_settings(event);
            let cause = Cause { id: &event.id, at_ms: event.at_ms, position, ages: &self.ages };
            unique::clear_key(&mut self.records, event, cause);
            return Ok(Verdict::Applied);
        }
        if event.run > MAX_RUN || event.payload.new_run().is_some_and(|run| run > MAX_RUN) {
            return Ok(Verdict::NoRecord);
        }
        let cause = Cause { id: &event.id, at_ms: event.at_ms, position, ages: &self.ages };
        match event.id.tag() {
            None => self.records.fold(event, cause),
            Some(tag) => unique::fold_of_key(&mut self.records, tag, event, cause),
        }
    }

    /// Applies new lifetimes to everything after this event.
    fn take_settings(&mut self, event: &Event) {
        if let Payload::Settings { lifetimes: Some(lifetimes) } = &event.payload
            && **lifetimes != self.ages.lifetimes
        {
            self.ages = Ages::new(Lifetimes::clone(lifetimes), self.ages.soonest_ms.load(Relaxed));
            self.new_lifetimes = true;
        }
    }
}

/// Adds the ancestors of these tasks, and the continuations of all.
fn with_ancestors(records: &Records, ids: Vec<TaskId>) -> FxHashSet<TaskId> {
    let mut all = FxHashSet::default();
    let mut follow = Vec::new();
    for id in ids {
        let mut next = Some(id);
        while let Some(id) = next {
            next = id.parent_id();
            if let Some(task) = records.task(id.as_str()).filter(|task| task.has_continuations()) {
                task.continuation_ids(&id, &mut follow);
            }
            if !all.insert(id) {
                break;
            }
        }
    }
    all.extend(follow);
    all
}
