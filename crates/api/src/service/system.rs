//! `GET /v1/system`: versions, memory of the store, and the progress of the projection.

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_broker::Watermarks;
use kafleet_documents::{ProjectionDocument, SystemDocument};
use kafleet_model::projection::FOLD_VERSION;
use kafleet_model::units::time::time_text;
use kafleet_store::Checkpoint;

use super::context::RequestContext;
use crate::backends::KAFKA_DEADLINE;
use crate::http::problem::ApiError;
pub use crate::read::reads::store_memory;
use crate::state::Api;

/// Maximum concurrent reads of partitions.
const MAX_CONCURRENT_READS: usize = 16;

pub(crate) async fn system(RequestContext { api, .. }: RequestContext) -> Result<SystemDocument, ApiError> {
    let partitions = stream::iter(api.reads.partitions())
        .map(|partition| {
            let api = &api;
            async move {
                let checkpoint = api.reads.checkpoint(partition).await?;
                let ends = api.reads.event_ends(partition, KAFKA_DEADLINE).await?;
                Ok::<_, ApiError>(projection(partition, checkpoint, ends))
            }
        })
        .buffered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    let stores = store_memory(&api.reads).await?;
    let incomplete = api.reads.incomplete().await?;
    Ok(SystemDocument { partitions, stores, incomplete, ..summary(&api) })
}

/// Properties that this API knows without a read.
pub fn summary(api: &Api) -> SystemDocument {
    let names = &api.topology.names;
    SystemDocument {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: time_text(api.ops.started_ms),
        fold_version: FOLD_VERSION,
        not_ready: api.ops.ready().err().map(|error| error.document().detail),
        events_topic: names.events(),
        control_topic: names.control(),
        control_read_to: api.fleet.control.last_applied() + 1,
        max_tree_age_ms: api.types.limits().max_tree_age.as_i64(),
        stores: Vec::new(),
        partitions: Vec::new(),
        incomplete: Vec::new(),
    }
}

/// Progress of a partition. An empty one is projected to its end.
pub fn projection(partition: u32, checkpoint: Option<Checkpoint>, ends: Watermarks) -> ProjectionDocument {
    let empty = (ends.low == ends.high).then_some(ends.high);
    ProjectionDocument {
        partition,
        projected: checkpoint.map(|checkpoint| checkpoint.offset).or(empty),
        end: ends.high,
        fold_version: checkpoint.map(|checkpoint| checkpoint.version),
        log_time: checkpoint.filter(|it| it.log_time_ms > 0).map(|it| time_text(it.log_time_ms)),
    }
}
