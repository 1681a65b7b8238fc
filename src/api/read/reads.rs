//! Access to the store and to the offsets of the events topic, shared by the handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::notices::Notices;
use crate::api::backends::stored;
use crate::api::http::problem::ApiError;
use crate::broker::{BrokerClient, Partition, Watermarks};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::publish::Publisher;
use crate::runtime::Shutdown;
use crate::store::{Checkpoint, Entry, Index, Store};

/// Maximum records per store read.
const NODES_PER_CALL: usize = 500;

/// Read access to the projection. [`super::consistency`] adds reads that wait for the log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reads {
    pub store: Arc<dyn Store>,
    pub broker: BrokerClient,
    /// Provides topic names and the partition of an id; nothing is published here.
    pub publisher: Publisher,
    pub notices: Arc<Notices>,
    pub shutdown: Shutdown,
}

impl Reads {
    /// Reads records, one result per id. All ids must lie in this partition.
    pub(crate) async fn records(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, ApiError> {
        let mut nodes = Vec::with_capacity(ids.len());
        for some in ids.chunks(NODES_PER_CALL) {
            nodes.extend(stored(self.store.nodes(partition, some)).await?);
        }
        Ok(nodes)
    }

    pub(crate) async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, ApiError> {
        Ok(stored(self.store.checkpoints(&[partition])).await?.into_iter().next().flatten())
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
    pub(crate) fn partitions(&self) -> Vec<u32> {
        (0..self.publisher.events_partitions()).collect()
    }

    /// Returns a partition of the events topic.
    pub(crate) fn events(&self, partition: u32) -> Partition {
        Partition::new(self.publisher.names().events(), i32::try_from(partition).unwrap_or(i32::MAX))
    }

    /// Reads the first and the end offset of an events partition.
    pub(crate) async fn event_ends(&self, partition: u32, deadline: Duration) -> Result<Watermarks, ApiError> {
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
