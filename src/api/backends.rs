//! Calls to the store and Kafka: each has a deadline, and each failure becomes an [`ApiError`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Api;
use super::http::problem::{ApiError, Code};
use crate::broker::{Partition, Watermarks};
use crate::model::event::Event;
use crate::model::record::TaskRecord;
use crate::model::task::Position;
use crate::model::task::id::TaskId;
use crate::runtime;
use crate::store::{Checkpoint, Entry, Index, StoreError};

/// Deadline of a store call.
pub const STORE_DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of a Kafka call other than a publish.
pub const KAFKA_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum records per store read.
const NODES_PER_CALL: usize = 500;

/// Applies the deadline to a store call.
pub async fn stored<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, ApiError> {
    let late = |_| StoreError::Unavailable(format!("no answer within {} s", STORE_DEADLINE.as_secs()));
    Ok(tokio::time::timeout(STORE_DEADLINE, call).await.map_err(late)??)
}

impl Api {
    /// Reads records, one result per id. All ids must lie in this partition.
    pub async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, ApiError> {
        let mut nodes = Vec::with_capacity(ids.len());
        for some in ids.chunks(NODES_PER_CALL) {
            nodes.extend(stored(self.store.nodes(partition, some)).await?);
        }
        Ok(nodes)
    }

    pub async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, ApiError> {
        Ok(stored(self.store.fences(&[partition])).await?.into_iter().next().flatten())
    }

    pub async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>, ApiError> {
        stored(self.store.page(partition, index, after, limit)).await
    }

    /// Lists all events partitions.
    pub fn partitions(&self) -> Vec<u32> {
        (0..self.publisher.events_partitions()).collect()
    }

    /// Returns the Kafka partition of the events topic.
    pub fn events(&self, partition: u32) -> Partition {
        Partition::new(self.publisher.names().events(), i32::try_from(partition).unwrap_or(i32::MAX))
    }

    pub async fn event_ends(&self, partition: u32, deadline: Duration) -> Result<Watermarks, ApiError> {
        Ok(self.broker.with_deadline(deadline).watermarks(&self.events(partition)).await?)
    }
}

/// Publishes an event, even if the client disconnects meanwhile.
pub async fn publish_event(api: &Arc<Api>, event: Event) -> Result<Position, ApiError> {
    let api = api.clone();
    detached(async move { api.publisher.publish_event(&event).await.map_err(ApiError::from_write) }).await
}

/// Runs work that must not be cancelled halfway when the client disconnects, such as a record and its announcement.
pub async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    runtime::spawn(work).await.unwrap_or_else(|why| {
        tracing::error!(%why, "request task failed");
        Err(ApiError::internal())
    })
}

/// Returns a retryable error: the projection has not reached the offset yet.
pub fn not_visible_yet(partition: u32, folded: i64, wanted: i64) -> ApiError {
    let lag = wanted.saturating_sub(folded).max(1);
    ApiError::new(
        Code::NotVisibleYet,
        format!(
            "events partition {partition} is projected up to offset {folded}; the request needs offset {wanted} \
             ({lag} behind)"
        ),
    )
    .hint("retry; if it persists, check that a tracker is running")
}
