//! Descendants through which tasks have failed, for the rows of a list.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_documents::Status;
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};
use tokio::time::{Instant, timeout_at};

use super::consistency::TaskView;
use super::statistics::MAX_CONCURRENT_READS;
use super::status::status;
use crate::http::problem::ApiError;
use crate::state::Api;

/// Descendants inspected for a task.
const MAX_INSPECTED: usize = 400;
/// Children read at a time.
const PAGE: usize = 100;

/// Finds a descendant that failed by itself for each task that failed only through one. Tasks without such a descendant
/// among the first 400 that are inspected, or within the time, are left out.
pub async fn causes(api: &Api, tasks: &[Status], within: Duration) -> BTreeMap<String, Status> {
    let end = Instant::now() + within;
    let failed = tasks.iter().filter(|task| has_failed_below(task)).filter_map(|task| TaskId::parse(&task.id).ok());
    let failed: Vec<TaskId> = failed.collect();
    let found: Vec<Option<(String, Status)>> = stream::iter(failed)
        .map(|id| async move {
            let cause = timeout_at(end, cause(api, id.clone())).await.ok()?.ok()??;
            Some((id.to_string(), status(&cause)))
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .collect()
        .await;
    found.into_iter().flatten().collect()
}

/// Whether a task failed only through a descendant.
pub fn has_failed_below(task: &Status) -> bool {
    let is_failed = |state: State| state.category() == Category::Failed;
    is_failed(task.state) && !is_failed(task.own_state)
}

async fn cause(api: &Api, mut id: TaskId) -> Result<Option<TaskView>, ApiError> {
    let (partition, mut inspected) = (api.topology.partition_of(&id), 0);
    while let Some(child) = failed_child(api, partition, &id, &mut inspected).await? {
        if child.record.own.category() == Category::Failed {
            return Ok(Some(child));
        }
        id = child.id;
    }
    Ok(None)
}

/// Finds the first failed child of a task.
async fn failed_child(
    api: &Api,
    partition: u32,
    parent: &TaskId,
    inspected: &mut usize,
) -> Result<Option<TaskView>, ApiError> {
    let (index, mut after) = (Index::Children(parent.clone()), None::<Entry>);
    while *inspected < MAX_INSPECTED {
        let entries = api.reads.page(partition, &index, after.as_ref(), PAGE).await?;
        let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
        *inspected += ids.len();
        let children = api.reads.read_many(partition, &ids).await?.into_iter().flatten();
        let mut failed =
            children.filter(|child| !child.superseded && child.record.state.category() == Category::Failed);
        if let Some(child) = failed.next() {
            return Ok(Some(child));
        }
        if entries.len() < PAGE {
            break;
        }
        after = entries.into_iter().next_back();
    }
    Ok(None)
}
