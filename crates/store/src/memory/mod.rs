//! In-memory store for `kafleet dev`, tests and simulation. Behaves like the Redis store but ends with the process,
//! and rejects batches when it is full.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::retention::Lifetimes;
use kafleet_model::statistics::StoredStatistics;
use kafleet_model::statistics::aggregate::AggregateKey;
use kafleet_model::statistics::errors::ErrorSummary;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;
use rustc_hash::FxHashMap;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use super::integrity::IntegrityPage;
use super::log_tail::LogTail;
use super::{
    Changes, Checkpoint, Entry, Index, LogPage, Notice, Outbox, PartitionWriter, Reservation, Store, StoreError,
    TaskRecord, TypeCount,
};
use super::{ErrorGroups, ErrorLevel, PartitionStatistics};
use super::{LEASE_TTL, MAX_PAGE, NOTICE_BUFFER, RESERVATION_TTL, Stage, closed_writer, decode, decode_keys};
use partition::Partition;

mod integrity;
mod partition;
mod statistics;

#[derive(Clone, Debug)]
pub struct MemoryStoreOptions {
    /// Maximum number of task records over all partitions. Default 1,000,000.
    pub max_records: usize,
    /// Maximum bytes of records, deferred records, log lines and attachments. Default 1 GiB.
    pub max_bytes: usize,
    /// Lifetime of a reservation whose publish has ended. Default [`RESERVATION_TTL`].
    pub reservation_ttl: Duration,
    /// Lifetime of a reservation while its task is published, from the last renewal. Default [`LEASE_TTL`].
    pub lease_ttl: Duration,
}

impl MemoryStoreOptions {
    fn ttl(&self, reservation: &Reservation) -> Duration {
        if matches!(reservation.stage, Stage::Publishing { .. }) { self.lease_ttl } else { self.reservation_ttl }
    }
}

impl Default for MemoryStoreOptions {
    fn default() -> Self {
        Self { max_records: 1_000_000, max_bytes: 1 << 30, reservation_ttl: RESERVATION_TTL, lease_ttl: LEASE_TTL }
    }
}

/// Handle to an in-memory store. Clones share the store.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<StoreState>,
}

struct StoreState {
    options: MemoryStoreOptions,
    state: Mutex<Contents>,
    notices: broadcast::Sender<Notice>,
}

#[derive(Clone, Default)]
struct Contents {
    partitions: FxHashMap<u32, Partition>,
    /// Incremented with every change of a checkpoint, so that a writer detects one that was changed back.
    revision: u64,
    /// Revision of the last wipe or restore: writers opened before it are fenced off, even in an empty partition.
    replaced: u64,
}

/// Contents of a store at some moment.
#[derive(Clone)]
pub struct Snapshot(FxHashMap<u32, Partition>);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryStoreOptions::default())
    }
}

impl MemoryStore {
    pub fn new(options: MemoryStoreOptions) -> Self {
        let (notices, _) = broadcast::channel(NOTICE_BUFFER);
        Self { shared: Arc::new(StoreState { options, state: Mutex::default(), notices }) }
    }

    /// Removes everything, as FLUSHALL does.
    pub fn wipe(&self) {
        self.lock().replace(FxHashMap::default());
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.lock().partitions.clone())
    }

    /// Restores a snapshot, as a failover to a lagging replica does.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.lock().replace(snapshot.0.clone());
    }

    /// Removes the record of a task, as a Redis eviction does.
    pub fn remove_record(&self, partition: u32, id: &TaskId) {
        self.lock().partitions.get_mut(&partition).and_then(|partition| partition.records.remove(id));
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        // A panic elsewhere leaves no partial change: each change is made under one lock without a fallible step.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T: Default>(&self, partition: u32, read: impl FnOnce(&Partition) -> T) -> T {
        self.lock().partitions.get(&partition).map(read).unwrap_or_default()
    }

    fn try_read<T: Default>(
        &self,
        partition: u32,
        read: impl FnOnce(&Partition) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.lock().partitions.get(&partition).map_or_else(|| Ok(T::default()), read)
    }

    fn read_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError> {
        let states = {
            let contents = self.lock();
            let states = contents.partitions.get(&partition).map(|partition| &partition.unique);
            tags.iter().map(|tag| states.and_then(|states| states.get(tag)).cloned()).collect()
        };
        decode_keys(partition, tags, states, "start with an empty store")
    }

    fn read_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        let records: Vec<Option<Vec<u8>>> = {
            let contents = self.lock();
            let records = contents.partitions.get(&partition).map(|partition| &partition.records);
            ids.iter().map(|id| records.and_then(|records| records.get(id)).cloned()).collect()
        };
        decode_records(partition, ids, records)
    }
}

impl Contents {
    fn replace(&mut self, partitions: FxHashMap<u32, Partition>) {
        self.revision += 1;
        (self.partitions, self.replaced) = (partitions, self.revision);
    }

    /// Checkpoint and revision of a partition.
    fn checkpoint(&self, partition: u32) -> (Option<Checkpoint>, u64) {
        let (checkpoint, revision) =
            self.partitions.get(&partition).map_or((None, 0), |data| (data.checkpoint, data.revision));
        (checkpoint, revision.max(self.replaced))
    }

    /// Rejects a batch that may exceed the limits. Replaced records count as new bytes, which is precise enough for a
    /// limit.
    fn check_room(&self, partition: u32, changes: &Changes, options: &MemoryStoreOptions) -> Result<(), StoreError> {
        let here = self.partitions.get(&partition);
        let is_new = |id: &TaskId| here.is_none_or(|here| !here.records.contains_key(id));
        let records: usize = self.partitions.values().map(|partition| partition.records.len()).sum();
        let bytes: usize = self.partitions.values().map(|partition| partition.bytes).sum();
        let new_records = changes.task_records.iter().filter(|(id, _)| is_new(id)).count();
        let new_bytes: usize = changes.task_records.iter().map(|(_, record)| record.len()).sum();
        let new_deferred_bytes: usize = changes.deferred.iter().flat_map(|(_, deferred)| deferred).map(Vec::len).sum();
        let new_log_bytes: usize = changes.logs.iter().flat_map(|(_, lines)| lines).map(String::len).sum();
        let new_keys: usize = changes.unique.iter().flat_map(|(_, state)| state).map(Vec::len).sum();
        let new_attached: usize = changes.attachments.iter().flat_map(|(_, _, data)| data).map(Vec::len).sum();
        if records + new_records > options.max_records {
            return Err(full(&format!("{records} records of at most {}", options.max_records)));
        }
        if bytes + new_bytes + new_deferred_bytes + new_log_bytes + new_attached + new_keys > options.max_bytes {
            return Err(full(&format!("{bytes} bytes of at most {}", options.max_bytes)));
        }
        Ok(())
    }
}

fn decode_records(
    partition: u32,
    ids: &[TaskId],
    records: Vec<Option<Vec<u8>>>,
) -> Result<Vec<Option<TaskRecord>>, StoreError> {
    let remedy = "start with an empty store";
    let record =
        |(id, bytes): (&TaskId, Option<Vec<u8>>)| bytes.map(|bytes| decode(partition, id, &bytes, remedy)).transpose();
    ids.iter().zip(records).map(record).collect()
}

fn full(usage: &str) -> StoreError {
    StoreError::Invalid(format!(
        "the memory store is full: {usage}\n\nhint: it is meant for development; use redis, or raise its limits"
    ))
}

#[async_trait]
impl Store for MemoryStore {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError> {
        let (checkpoint, revision) = self.lock().checkpoint(partition);
        Ok((Box::new(Writer { store: self.clone(), partition, revision: Some(revision) }), checkpoint))
    }

    async fn task_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        self.read_records(partition, ids)
    }

    async fn task_records_with_checkpoint(
        &self,
        partition: u32,
        ids: &[TaskId],
    ) -> Result<(Option<Checkpoint>, Vec<Option<TaskRecord>>), StoreError> {
        let (checkpoint, records) = {
            let contents = self.lock();
            let partition = contents.partitions.get(&partition);
            let record = |id| partition.and_then(|partition| partition.records.get(id)).cloned();
            (partition.and_then(|partition| partition.checkpoint), ids.iter().map(record).collect())
        };
        Ok((checkpoint, decode_records(partition, ids, records)?))
    }

    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError> {
        Ok(partitions.iter().map(|&partition| self.read(partition, |partition| partition.checkpoint)).collect())
    }

    async fn page(
        &self,
        partition: u32,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        Ok(self.read(partition, |partition| partition.page(index, after, limit.min(MAX_PAGE))))
    }

    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(self.read(partition, |partition| partition.first_done(after_ms, limit.min(MAX_PAGE))))
    }

    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError> {
        let limit = limit.min(MAX_PAGE);
        Ok(self.read(partition, |partition| Outbox {
            checkpoint: partition.checkpoint,
            timers: partition.page(&Index::Timers, None, limit),
            effects: partition.page(&Index::Effects, None, limit),
        }))
    }

    async fn deferred(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let contents = self.lock();
        let deferred = contents.partitions.get(&partition).map(|partition| &partition.deferred);
        Ok(ids.iter().map(|id| deferred.and_then(|deferred| deferred.get(id)).cloned()).collect())
    }

    async fn unique_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError> {
        self.read_keys(partition, tags)
    }

    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError> {
        let all = partitions.iter().flat_map(|&partition| self.read(partition, |partition| partition.counts.clone()));
        super::sum_counts(all)
    }

    async fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics, StoreError> {
        self.try_read(partition, |data| data.statistics(partition, series, aggregates))
    }

    async fn error_summaries(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>, StoreError> {
        self.try_read(partition, |data| data.errors_of(partition, task_type, hours))
    }

    async fn error_groups(
        &self,
        partition: u32,
        task_type: &str,
        level: ErrorLevel,
        since_ms: i64,
        limit: usize,
    ) -> Result<ErrorGroups, StoreError> {
        Ok(self.read(partition, |data| data.error_groups(task_type, level, since_ms, limit.min(MAX_PAGE))))
    }

    async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.try_read(partition, |data| data.requests(partition, limit.min(MAX_PAGE)))
    }

    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError> {
        let page = |tail: &LogTail<String>| {
            let (from, lines) = tail.page(from, limit);
            LogPage { from, lines: lines.cloned().collect() }
        };
        Ok(self.read(partition, |partition| partition.logs.get(id).map(page).unwrap_or_default()))
    }

    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read(partition, |partition| partition.attachments.get(id)?.get(name).cloned()))
    }

    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        reservation: &Reservation,
    ) -> Result<Option<Reservation>, StoreError> {
        let (now, key) = (Instant::now(), (id.clone(), run));
        let mut contents = self.lock();
        let partition = contents.partitions.entry(partition).or_default();
        partition.drop_expired(now);
        if let Some(reserved) = partition.reservations.get(&key) {
            return Ok(Some(reserved.reservation.clone()));
        }
        if partition.reservations.len() >= self.shared.options.max_records {
            return Err(full(&format!("{} reservations", partition.reservations.len())));
        }
        partition.insert_reservation(key, reservation, now + self.shared.options.ttl(reservation));
        Ok(None)
    }

    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        reservation: Option<&Reservation>,
    ) -> Result<bool, StoreError> {
        let (now, key) = (Instant::now(), (id.clone(), run));
        let mut contents = self.lock();
        let partition = contents.partitions.entry(partition).or_default();
        partition.drop_expired(now);
        let stored = partition.reservations.get(&key).map(|reserved| &reserved.reservation);
        if stored != Some(held) && stored != reservation {
            return Ok(false);
        }
        match reservation {
            Some(reservation) => {
                partition.insert_reservation(key, reservation, now + self.shared.options.ttl(reservation));
            }
            None => partition.remove_reservation(&key),
        }
        Ok(true)
    }

    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError> {
        // The stream keeps the store alive and therefore ends only when dropped.
        let listening = (self.clone(), self.shared.notices.subscribe());
        let later = stream::unfold(listening, |(store, mut receiver)| async move {
            match receiver.recv().await {
                Ok(notice) => Some((notice, (store, receiver))),
                // After a gap the reader reads everything again, so queued notices are redundant.
                Err(RecvError::Lagged(_)) => Some((Notice::Gap, (store, receiver.resubscribe()))),
                Err(RecvError::Closed) => None,
            }
        });
        Ok(stream::iter([Notice::Gap]).chain(later).boxed())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Writer {
    store: MemoryStore,
    partition: u32,
    /// Revision of the checkpoint at the last read; `None` once closed.
    revision: Option<u64>,
}

#[async_trait]
impl PartitionWriter for Writer {
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError> {
        Ok(self.store.read(self.partition, |partition| partition.lifetimes.clone()))
    }

    async fn statistics(&mut self) -> Result<StoredStatistics, StoreError> {
        self.store.try_read(self.partition, |data| data.stored_statistics(self.partition))
    }

    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(self.store.read(self.partition, |partition| partition.first_done(i64::MIN, limit.min(MAX_PAGE))))
    }

    async fn task_records(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        let revision = self.revision.take().ok_or_else(closed_writer)?;
        let tasks = self.store.read_records(self.partition, ids)?;
        self.revision = Some(revision);
        Ok(tasks)
    }

    async fn unique_keys(&mut self, tags: &[String]) -> Result<Vec<Option<KeyState>>, StoreError> {
        let revision = self.revision.take().ok_or_else(closed_writer)?;
        let keys = self.store.read_keys(self.partition, tags)?;
        self.revision = Some(revision);
        Ok(keys)
    }

    async fn check(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn verify_totals(&mut self) -> Result<Option<String>, StoreError> {
        let revision = self.revision.take().ok_or_else(closed_writer)?;
        let fault = self.store.read(self.partition, Partition::fault);
        self.revision = Some(revision);
        Ok(fault)
    }

    async fn indexed_tasks(
        &mut self,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<IntegrityPage, StoreError> {
        let revision = self.revision.take().ok_or_else(closed_writer)?;
        let page =
            self.store.read(self.partition, |partition| partition.indexed_tasks(index, after, limit.min(MAX_PAGE)));
        self.revision = Some(revision);
        Ok(page)
    }

    async fn mark_damaged(&mut self, _reason: &str) -> Result<(), StoreError> {
        let seen = self.revision.take().ok_or_else(closed_writer)?;
        let mut contents = self.store.lock();
        let (stored, revision) = contents.checkpoint(self.partition);
        if revision != seen {
            return Err(StoreError::Conflict { stored });
        }
        contents.revision += 1;
        let revision = contents.revision;
        if let Some(partition) = contents.partitions.get_mut(&self.partition) {
            let (reservations, ends) =
                (std::mem::take(&mut partition.reservations), std::mem::take(&mut partition.ends));
            *partition = Partition { revision, reservations, ends, ..Partition::default() };
        }
        Ok(())
    }

    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        let seen = self.revision.take().ok_or_else(closed_writer)?;
        let mut contents = self.store.lock();
        let (stored, revision) = contents.checkpoint(self.partition);
        if stored != from || revision != seen {
            return Err(StoreError::Conflict { stored });
        }
        contents.check_room(self.partition, changes, &self.store.shared.options)?;
        contents.revision += 1;
        let revision = contents.revision;
        let partition = contents.partitions.entry(self.partition).or_default();
        partition.apply(changes);
        partition.checkpoint = Some(to);
        partition.revision = revision;
        drop(contents);
        self.revision = Some(revision);
        // An error only means that there is no subscriber.
        let _ = self.store.shared.notices.send(Notice::of(self.partition, to, changes));
        Ok(())
    }
}
