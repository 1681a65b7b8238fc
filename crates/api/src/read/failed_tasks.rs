//! Failed and open tasks of a tree, read from the indexes by state of its partition instead of walking the tree.

use std::time::Duration;

use kafleet_documents::Status;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};
use tokio::time::Instant;

use super::consistency::TaskView;
use super::status::status;
use crate::backends::stored;
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Entries read at a time.
const BATCH: usize = 200;

/// Returns tasks of the tree whose own state is failed, those that began last first, until there are `limit` of them or
/// the time has passed. Superseded tasks are left out.
pub async fn failed_tasks(api: &Api, top: &str, limit: usize, within: Duration) -> Result<Vec<Status>, ApiError> {
    Ok(failed_views(api, top, limit, within).await?.iter().map(status).collect())
}

/// Returns the records of the tasks that [`failed_tasks`] returns.
pub async fn failed_views(api: &Api, top: &str, limit: usize, within: Duration) -> Result<Vec<TaskView>, ApiError> {
    views_in(api, top, |state| state == State::Failed, limit, within).await
}

/// Returns tasks of the tree that have not ended themselves and are in a state with an index ([`State::is_indexed`]): not
/// queued ones. Limits as in [`failed_tasks`].
pub async fn open_views(api: &Api, top: &str, limit: usize, within: Duration) -> Result<Vec<TaskView>, ApiError> {
    views_in(api, top, |state| state.is_indexed() && !state.is_terminal(), limit, within).await
}

async fn views_in(
    api: &Api,
    top: &str,
    is_selected: impl Fn(State) -> bool,
    limit: usize,
    within: Duration,
) -> Result<Vec<TaskView>, ApiError> {
    let top = TaskId::parse(top).map_err(|error| ApiError::new(Code::BadId, error.to_string()))?;
    let partition = api.topology.partition_of(&top);
    let Some(root) = api.reads.read(&top).await? else { return Ok(Vec::new()) };
    let end = Instant::now() + within;
    let mut views = Vec::new();
    for count in stored(api.reads.store.counts(&[partition])).await? {
        if !is_selected(count.state) || count.count == 0 {
            continue;
        }
        let index = Index::Members { task_type: count.task_type.as_ref().into(), state: count.state };
        let mut after: Option<Entry> = None;
        while views.len() < limit && Instant::now() < end {
            let entries = api.reads.page(partition, &index, after.as_ref(), BATCH).await?;
            after = entries.last().cloned();
            let is_last = entries.len() < BATCH;
            let is_older = entries.last().is_some_and(|entry| entry.seen_ms < root.record.times.seen_ms);
            let ids: Vec<TaskId> =
                entries.into_iter().map(|entry| entry.id).filter(|id| id.is_within(top.as_str())).collect();
            let tasks = api.reads.read_many(partition, &ids).await?;
            let is_own = |task: &TaskView| is_selected(task.record.own) && !task.superseded;
            views.extend(tasks.into_iter().flatten().filter(is_own));
            if is_last || is_older {
                break;
            }
        }
    }
    views.sort_by_key(|task| std::cmp::Reverse(task.record.times.seen_ms));
    views.truncate(limit);
    Ok(views)
}
