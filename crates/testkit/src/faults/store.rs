//! Store whose calls follow rules.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::projection::changes::Changes;
use kafleet_model::record::TaskRecord;
use kafleet_model::retention::Lifetimes;
use kafleet_model::statistics::StoredStatistics;
use kafleet_model::statistics::aggregate::AggregateKey;
use kafleet_model::statistics::errors::ErrorSummary;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::KeyState;
use kafleet_store::{
    Checkpoint, Entry, ErrorGroups, ErrorLevel, Index, IntegrityPage, LogPage, Notice, Outbox, PartitionStatistics,
    PartitionWriter, Reservation, Store, StoreError, TypeCount,
};

use super::{Call, FaultRules};

type Result<T> = std::result::Result<T, StoreError>;

/// `task_records_with_checkpoint` has its default here: it calls `checkpoints` and `task_records`, whose rules hold for it too.
pub(super) struct FaultyStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) faults: FaultRules,
}

struct FaultyWriter {
    inner: Box<dyn PartitionWriter>,
    faults: FaultRules,
}

impl FaultyStore {
    /// Makes a call that rules match only as one of the store.
    async fn call<T: 'static>(&self, make: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.faults.call_store(Call::OfStore, make).await
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>)> {
        let (inner, checkpoint) = self.faults.call_store(Call::OpenWriter, self.inner.open(partition)).await?;
        Ok((Box::new(FaultyWriter { inner, faults: self.faults.clone() }), checkpoint))
    }

    async fn task_records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>> {
        self.faults.call_store(Call::Nodes(ids), self.inner.task_records(partition, ids)).await
    }

    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>> {
        self.faults.call_store(Call::Checkpoints, self.inner.checkpoints(partitions)).await
    }

    async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>> {
        self.call(self.inner.page(partition, index, after, limit)).await
    }

    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>> {
        self.call(self.inner.done(partition, after_ms, limit)).await
    }

    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox> {
        self.call(self.inner.outbox(partition, limit)).await
    }

    async fn deferred(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>> {
        self.call(self.inner.deferred(partition, ids)).await
    }

    async fn unique_keys(&self, partition: u32, tags: &[String]) -> Result<Vec<Option<KeyState>>> {
        self.call(self.inner.unique_keys(partition, tags)).await
    }

    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>> {
        self.call(self.inner.counts(partitions)).await
    }

    async fn statistics(
        &self,
        partition: u32,
        series: &[Arc<str>],
        aggregates: &[AggregateKey],
    ) -> Result<PartitionStatistics> {
        self.call(self.inner.statistics(partition, series, aggregates)).await
    }

    async fn error_summaries(
        &self,
        partition: u32,
        task_type: &str,
        hours: &[i64],
    ) -> Result<Vec<(i64, ErrorSummary)>> {
        self.call(self.inner.error_summaries(partition, task_type, hours)).await
    }

    async fn error_groups(
        &self,
        partition: u32,
        task_type: &str,
        level: ErrorLevel,
        since_ms: i64,
        limit: usize,
    ) -> Result<ErrorGroups> {
        self.call(self.inner.error_groups(partition, task_type, level, since_ms, limit)).await
    }

    async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>> {
        self.call(self.inner.requests(partition, limit)).await
    }

    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage> {
        self.call(self.inner.log_lines(partition, id, from, limit)).await
    }

    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>> {
        self.call(self.inner.attachment(partition, id, name)).await
    }

    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        reservation: &Reservation,
    ) -> Result<Option<Reservation>> {
        self.faults.call_store(Call::Reserve, self.inner.reserve(partition, id, run, reservation)).await
    }

    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        reservation: Option<&Reservation>,
    ) -> Result<bool> {
        self.call(self.inner.replace_reservation(partition, id, run, held, reservation)).await
    }

    async fn notices(&self) -> Result<BoxStream<'static, Notice>> {
        self.faults.call_store(Call::Notices, self.inner.notices()).await
    }

    async fn check(&self) -> Result<()> {
        self.call(self.inner.check()).await
    }
}

impl FaultyWriter {
    /// Makes a call that rules match only as one of the store.
    async fn call<T: 'static>(faults: &FaultRules, make: impl Future<Output = Result<T>> + Send) -> Result<T> {
        faults.call_store(Call::OfStore, make).await
    }
}

#[async_trait]
impl PartitionWriter for FaultyWriter {
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>> {
        Self::call(&self.faults, self.inner.lifetimes()).await
    }

    async fn statistics(&mut self) -> Result<StoredStatistics> {
        Self::call(&self.faults, self.inner.statistics()).await
    }

    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>> {
        Self::call(&self.faults, self.inner.done(limit)).await
    }

    async fn task_records(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>> {
        self.faults.call_store(Call::WriterNodes, self.inner.task_records(ids)).await
    }

    async fn unique_keys(&mut self, tags: &[String]) -> Result<Vec<Option<KeyState>>> {
        Self::call(&self.faults, self.inner.unique_keys(tags)).await
    }

    async fn check(&mut self) -> Result<()> {
        Self::call(&self.faults, self.inner.check()).await
    }

    async fn verify_totals(&mut self) -> Result<Option<String>> {
        Self::call(&self.faults, self.inner.verify_totals()).await
    }

    async fn indexed_tasks(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<IntegrityPage> {
        Self::call(&self.faults, self.inner.indexed_tasks(index, after, limit)).await
    }

    async fn mark_damaged(&mut self, reason: &str) -> Result<()> {
        Self::call(&self.faults, self.inner.mark_damaged(reason)).await
    }

    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<()> {
        self.faults.call_store(Call::Apply, self.inner.apply(changes, from, to)).await
    }
}
