//! Store as seen by a simulated process: calls take time, fail, and fail after they took effect.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet::model::projection::audit::AuditEntry;
use kafleet::model::projection::changes::{Changes, Entry, Index};
use kafleet::model::record::TaskRecord;
use kafleet::model::retention::Lifetimes;
use kafleet::model::statistics::StoredStatistics;
use kafleet::model::statistics::aggregate::AggregateKey;
use kafleet::model::statistics::errors::ErrorSummary;
use kafleet::model::task::id::TaskId;
use kafleet::model::unique::KeyState;
use kafleet::store::{
    Checkpoint, ErrorGroups, ErrorLevel, IntegrityPage, LogPage, Notice, Outbox, PartitionStatistics, PartitionWriter,
    Reservation, Store, StoreError, TypeCount, memory,
};

use crate::faulty_broker::FaultRng;

type Result<T> = std::result::Result<T, StoreError>;

pub struct FaultyStore {
    pub inner: memory::MemoryStore,
    pub fault_rng: Arc<FaultRng>,
    /// The process folds with the next fold version and sees the current one as older.
    pub newer: bool,
}

impl FaultyStore {
    async fn reached(&self) -> Result<&memory::MemoryStore> {
        reach(&self.fault_rng).await?;
        Ok(&self.inner)
    }

    fn read(&self, checkpoint: Option<Checkpoint>) -> Option<Checkpoint> {
        checkpoint.map(|checkpoint| Checkpoint { version: checkpoint.version - u32::from(self.newer), ..checkpoint })
    }
}

async fn reach(fault_rng: &FaultRng) -> Result<()> {
    tokio::time::sleep(fault_rng.latency()).await;
    if fault_rng.fails() { Err(StoreError::Unavailable("simulated outage".into())) } else { Ok(()) }
}

#[async_trait]
impl Store for FaultyStore {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>)> {
        reach(&self.fault_rng).await?;
        let (inner, checkpoint) = self.inner.open(partition).await?;
        Ok((
            Box::new(FaultyWriter { inner, fault_rng: self.fault_rng.clone(), newer: self.newer }),
            self.read(checkpoint),
        ))
    }
    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>> {
        reach(&self.fault_rng).await?;
        Ok(self.inner.checkpoints(partitions).await?.into_iter().map(|checkpoint| self.read(checkpoint)).collect())
    }
    async fn task_records_with_checkpoint(
        &self,
        partition: u32,
        ids: &[TaskId],
    ) -> Result<(Option<Checkpoint>, Vec<Option<TaskRecord>>)> {
        reach(&self.fault_rng).await?;
        let (checkpoint, nodes) = self.inner.task_records_with_checkpoint(partition, ids).await?;
        Ok((self.read(checkpoint), nodes))
    }
    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox> {
        reach(&self.fault_rng).await?;
        let outbox = self.inner.outbox(partition, limit).await?;
        Ok(Outbox { checkpoint: self.read(outbox.checkpoint), ..outbox })
    }
    async fn task_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>> {
        self.reached().await?.task_records(partition, ids).await
    }
    async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>> {
        self.reached().await?.page(partition, index, after, limit).await
    }
    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>> {
        self.reached().await?.done(partition, after_ms, limit).await
    }
    async fn deferred(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>> {
        self.reached().await?.deferred(partition, ids).await
    }
    async fn unique_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>> {
        self.reached().await?.unique_keys(partition, tags).await
    }
    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>> {
        self.reached().await?.counts(partitions).await
    }
    async fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics> {
        self.reached().await?.statistics(partition, series, aggregates).await
    }
    async fn error_summaries(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>> {
        self.reached().await?.error_summaries(partition, task_type, hours).await
    }
    async fn error_groups(
        &self,
        partition: u32,
        task_type: &str,
        level: ErrorLevel,
        since_ms: i64,
        limit: usize,
    ) -> Result<ErrorGroups> {
        self.reached().await?.error_groups(partition, task_type, level, since_ms, limit).await
    }
    async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>> {
        self.reached().await?.requests(partition, limit).await
    }
    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage> {
        self.reached().await?.log_lines(partition, id, from, limit).await
    }
    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>> {
        self.reached().await?.attachment(partition, id, name).await
    }
    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        reservation: &Reservation,
    ) -> Result<Option<Reservation>> {
        self.reached().await?.reserve(partition, id, run, reservation).await
    }
    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        reservation: Option<&Reservation>,
    ) -> Result<bool> {
        self.reached().await?.replace_reservation(partition, id, run, held, reservation).await
    }
    async fn notices(&self) -> Result<BoxStream<'static, Notice>> {
        self.reached().await?.notices().await
    }
    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }
}

struct FaultyWriter {
    inner: Box<dyn PartitionWriter>,
    fault_rng: Arc<FaultRng>,
    newer: bool,
}

impl FaultyWriter {
    async fn reached(&mut self) -> Result<&mut Box<dyn PartitionWriter>> {
        reach(&self.fault_rng).await?;
        Ok(&mut self.inner)
    }
}

#[async_trait]
impl PartitionWriter for FaultyWriter {
    async fn verify_totals(&mut self) -> Result<Option<String>> {
        reach(&self.fault_rng).await?;
        let fault = self.inner.verify_totals().await?;
        // No keys are lost here.
        self.fault_rng.violations.lock().extend(fault.clone());
        Ok(fault)
    }
    async fn indexed_tasks(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<IntegrityPage> {
        reach(&self.fault_rng).await?;
        let page = self.inner.indexed_tasks(index, after, limit).await?;
        // No records are lost here.
        self.fault_rng.violations.lock().extend(page.tasks.iter().filter_map(kafleet::store::IndexedTask::fault));
        Ok(page)
    }
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<()> {
        reach(&self.fault_rng).await?;
        let encode =
            |checkpoint: Checkpoint| Checkpoint { version: checkpoint.version + u32::from(self.newer), ..checkpoint };
        let (from, to) = (from.map(encode), encode(to));
        if let Some(from) = from.filter(|from| from.version != to.version) {
            self.fault_rng.violations.lock().push(format!("version {} continues from {from:?}", to.version));
        }
        self.inner.apply(changes, from, to).await?;
        self.fault_rng.writes.fetch_add(1, SeqCst);
        // The write took effect, but its response may be lost.
        reach(&self.fault_rng).await
    }
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>> {
        self.reached().await?.lifetimes().await
    }
    async fn statistics(&mut self) -> Result<StoredStatistics> {
        self.reached().await?.statistics().await
    }
    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>> {
        self.reached().await?.done(limit).await
    }
    async fn task_records(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>> {
        self.reached().await?.task_records(ids).await
    }
    async fn unique_keys(&mut self, tags: &[String]) -> Result<Vec<Option<KeyState>>> {
        self.reached().await?.unique_keys(tags).await
    }
    async fn check(&mut self) -> Result<()> {
        self.reached().await?.check().await
    }
    async fn mark_damaged(&mut self, reason: &str) -> Result<()> {
        self.reached().await?.mark_damaged(reason).await
    }
}
