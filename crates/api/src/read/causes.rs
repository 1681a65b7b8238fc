//! Descendants through which tasks have failed, for the rows of a list.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_documents::Status;
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::id::TaskId;
use tokio::time::{Instant, timeout_at};

use super::consistency::TaskView;
use super::descendants::Inspection;
use super::statistics::MAX_CONCURRENT_READS;
use super::status::status;
use crate::http::problem::ApiError;
use crate::state::Api;

/// Descendants inspected for a task.
const MAX_INSPECTED: usize = 400;

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
    is_failed(task.state) && !is_failed(task.own_state)
}

async fn cause(api: &Api, id: TaskId) -> Result<Option<TaskView>, ApiError> {
    let mut inspection = Inspection::new(&api.reads, api.topology.partition_of(&id), MAX_INSPECTED);
    let descendant = inspection.deciding_descendant(&id, is_failed).await?;
    Ok(descendant.filter(|task| is_failed(task.record.own)))
}

fn is_failed(state: State) -> bool {
    state.category() == Category::Failed
}
