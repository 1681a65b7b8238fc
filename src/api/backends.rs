//! The store and Kafka as the api calls them: every call has a deadline, and what goes wrong becomes a refusal.

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

/// How long the store may take over an answer.
pub const STORE_DEADLINE: Duration = Duration::from_secs(5);
/// How long Kafka may take over an answer that is no publish.
pub const KAFKA_DEADLINE: Duration = Duration::from_secs(5);
/// Records read from the store in one call.
const NODES_PER_CALL: usize = 500;

/// Bounds a call to the store.
pub async fn stored<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, ApiError> {
    let late = |_| StoreError::Unavailable(format!("no answer within {} s", STORE_DEADLINE.as_secs()));
    Ok(tokio::time::timeout(STORE_DEADLINE, call).await.map_err(late)??)
}

impl Api {
    /// Records, one answer per id. All ids lie in this partition.
    pub async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, ApiError> {
        let mut nodes = Vec::with_capacity(ids.len());
        for some in ids.chunks(NODES_PER_CALL) {
            nodes.extend(stored(self.store.nodes(partition, some)).await?);
        }
        Ok(nodes)
    }

    pub async fn fence(&self, partition: u32) -> Result<Option<Checkpoint>, ApiError> {
        Ok(stored(self.store.fences(&[partition])).await?.into_iter().next().flatten())
    }

    pub async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>, ApiError> {
        stored(self.store.page(partition, index, after, limit)).await
    }

    /// All events partitions.
    pub fn partitions(&self) -> Vec<u32> {
        (0..self.publisher.events_partitions()).collect()
    }

    /// The partition of the events topic as Kafka names it.
    pub fn events(&self, partition: u32) -> Partition {
        Partition::new(self.publisher.names().events(), i32::try_from(partition).unwrap_or(i32::MAX))
    }

    pub async fn event_ends(&self, partition: u32, deadline: Duration) -> Result<Watermarks, ApiError> {
        Ok(self.broker.with_deadline(deadline).watermarks(&self.events(partition)).await?)
    }
}

/// Publishes an event, also when the client goes meanwhile.
pub async fn publish_event(api: &Arc<Api>, event: Event) -> Result<Position, ApiError> {
    let api = api.clone();
    detached(async move { api.publisher.publish_event(&event).await.map_err(ApiError::of_write) }).await
}

/// Runs what must not be broken off half-way when the client goes: a record without its announcement, for one.
pub async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    runtime::spawn(work).await.unwrap_or_else(|why| {
        tracing::error!(%why, "a request failed");
        Err(ApiError::internal())
    })
}

/// A refusal that asks for patience: the fold has not got so far.
pub fn behind(partition: u32, folded: i64, wanted: i64) -> ApiError {
    let lag = wanted.saturating_sub(folded).max(1);
    ApiError::new(
        Code::Behind,
        format!("partition {partition} of the events is folded up to offset {folded}, wanted is {wanted}: {lag} behind"),
    )
    .hint("try again; if it stays so, see that a tracker is running")
}
