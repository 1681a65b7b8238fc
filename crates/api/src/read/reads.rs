//! Access to the store and to the offsets of the events topic, shared by the handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerClient, Partition, Watermarks};
use kafleet_config::Topology;
use kafleet_documents::StoreMemory;
use kafleet_fleet::publish::Publisher;
use kafleet_model::projection::audit::AuditEntry;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_model::trace::Sampler;
use kafleet_model::unique::KeyState;
use kafleet_runtime::Shutdown;
use kafleet_store::{Checkpoint, Entry, Index, LogPage, MemoryUse, Store};
use tokio::sync::Semaphore;

use super::consistency::TaskView;
use super::coverage::{Coverage, Gap, baseline};
use super::mask::Masks;
use super::notices::Notices;
use crate::backends::stored;
use crate::http::problem::ApiError;

/// Maximum number of exports at once.
pub(crate) const MAX_EXPORTS: usize = 4;
/// Maximum records per store read.
const NODES_PER_CALL: usize = 500;

/// Read access to the projection. [`super::consistency`] adds reads that wait for the log. Cheap to clone.
#[derive(Clone)]
pub struct Reads {
    /// Reached only through methods, which compare what it has with the log ([`super::coverage`]).
    pub(super) store: Arc<dyn Store>,
    pub(super) coverage: Arc<Coverage>,
    pub broker: BrokerClient,
    /// Provides topic names and the partition of an id; nothing is published here.
    pub topology: Arc<Topology>,
    pub sampler: Sampler,
    /// Masks of types, by which documents are made.
    pub masks: Masks,
    pub notices: Arc<Notices>,
    pub shutdown: Shutdown,
    /// Permits of exports, which read for a long time.
    pub(crate) exports: Arc<Semaphore>,
}

/// Reads the memory of the store's servers that have a limit.
pub async fn store_memory(reads: &Reads) -> Result<Vec<StoreMemory>, ApiError> {
    let document = |memory: MemoryUse| {
        let MemoryUse { server, used_bytes, limit_bytes } = memory;
        StoreMemory { server, used_bytes, limit_bytes }
    };
    Ok(stored(reads.store.memory()).await?.into_iter().map(document).collect())
}

/// Records of a partition.
pub(super) struct JudgedRecords {
    /// Checkpoint of the partition, which may be older than the records.
    pub checkpoint: Option<Checkpoint>,
    pub records: Vec<Option<TaskRecord>>,
    /// Reason why the store does not cover the partition.
    pub gap: Option<Gap>,
}

impl Reads {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        broker: BrokerClient,
        publisher: &Publisher,
        masks: Masks,
        shutdown: Shutdown,
    ) -> Self {
        let (topology, sampler) = (publisher.topology.clone(), publisher.sampler());
        let partitions = topology.events_partitions;
        let (coverage, notices) = (Arc::new(Coverage::new(partitions)), Arc::new(Notices::new(partitions)));
        let exports = Arc::new(Semaphore::new(MAX_EXPORTS));
        Self { store, coverage, broker, topology, sampler, masks, notices, shutdown, exports }
    }

    /// Reads records, one result per id. All ids must lie in this partition. A record that the store lacks may exist
    /// nevertheless: callers report [`Self::incomplete`] partitions.
    pub(crate) async fn records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, ApiError> {
        Ok(judged_records(self, partition, ids).await?.records)
    }

    pub async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, ApiError> {
        let baseline = baseline(self, partition);
        let checkpoint = self.checkpoints(&[partition]).await?.into_iter().next().flatten();
        self.coverage.judge(baseline, checkpoint);
        Ok(checkpoint)
    }

    pub(crate) async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, ApiError> {
        stored(self.store.checkpoints(partitions)).await
    }

    /// Checks that the store is reachable and suitably configured.
    pub(crate) async fn check_store(&self) -> Result<(), ApiError> {
        stored(self.store.check()).await
    }

    /// Reads log lines of a task. Fails if the store does not cover the task's partition.
    pub(crate) async fn log_lines(&self, task: &TaskView, from: u64, limit: usize) -> Result<LogPage, ApiError> {
        let page = stored(self.store.log_lines(task.partition, &task.id, from, limit)).await?;
        self.check_covered(Some(task.partition)).await?;
        Ok(page)
    }

    /// Reads an attachment of a task. Fails if it is missing and the store does not cover the task's partition.
    pub(crate) async fn attachment(&self, task: &TaskView, name: &str) -> Result<Option<Vec<u8>>, ApiError> {
        let attachment = stored(self.store.attachment(task.partition, &task.id, name)).await?;
        if attachment.is_none() {
            self.check_covered(Some(task.partition)).await?;
        }
        Ok(attachment)
    }

    /// Reads the audit log of a partition, newest request first.
    pub(crate) async fn requests(&self, partition: u32, limit: usize) -> Result<Vec<AuditEntry>, ApiError> {
        stored(self.store.requests(partition, limit)).await
    }

    pub(crate) async fn page(
        &self,
        partition: u32,
        index: &Index,
        after: Option<&Entry>,
        limit: usize,
    ) -> Result<Vec<Entry>, ApiError> {
        stored(self.store.page(partition, index, after, limit)).await
    }

    /// Lists the numbers of all events partitions.
    pub fn partitions(&self) -> Vec<u32> {
        self.topology.partitions().collect()
    }

    /// Returns a partition of the events topic.
    pub(crate) fn events(&self, partition: u32) -> Partition {
        Partition::new(self.topology.names.events(), i32::try_from(partition).unwrap_or(i32::MAX))
    }

    /// Reads the first and the end offset of an events partition.
    pub async fn event_ends(&self, partition: u32, deadline: Duration) -> Result<Watermarks, ApiError> {
        Ok(self.broker.with_deadline(deadline).watermarks(&self.events(partition)).await?)
    }

    /// Counts tasks by type and state.
    pub(crate) async fn counts(&self) -> Result<BTreeMap<String, BTreeMap<State, u64>>, ApiError> {
        let mut counts = BTreeMap::<String, BTreeMap<State, u64>>::new();
        for count in stored(self.store.counts(&self.partitions())).await? {
            *counts.entry(count.task_type.to_string()).or_default().entry(count.state).or_default() += count.count;
        }
        Ok(counts)
    }
}

/// Reads the state of a key of unique tasks. Fails if there is none and the store does not cover the partition.
pub(crate) async fn unique_key(reads: &Reads, tag: &str) -> Result<Option<KeyState>, ApiError> {
    let partition = reads.topology.partition_of_key(tag);
    let keys = stored(reads.store.unique_keys(partition, &[tag.to_owned()])).await?;
    let key = keys.into_iter().next().flatten();
    if key.is_none() {
        reads.check_covered(Some(partition)).await?;
    }
    Ok(key)
}

/// Reads records of a partition, and decides whether the store covers it.
pub(super) async fn judged_records(reads: &Reads, partition: u32, ids: &[TaskId]) -> Result<JudgedRecords, ApiError> {
    let mut judged = JudgedRecords { checkpoint: None, records: Vec::with_capacity(ids.len()), gap: None };
    for (n, some) in ids.chunks(NODES_PER_CALL).enumerate() {
        let baseline = baseline(reads, partition);
        let (checkpoint, records) = stored(reads.store.task_records_with_checkpoint(partition, some)).await?;
        judged.gap = judged.gap.or(reads.coverage.judge(baseline, checkpoint));
        judged.records.extend(records);
        if n == 0 {
            judged.checkpoint = checkpoint;
        }
    }
    Ok(judged)
}
