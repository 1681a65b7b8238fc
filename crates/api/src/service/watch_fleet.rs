//! `GET /v1/watch`: server-sent events about changes of many tasks. A client that reconnects to the same process resumes
//! from a bounded buffer; otherwise the first event reports that any task may have changed.

use crate::read::fleet_feed::{FleetChanges, Watch};
use std::sync::Arc;

use kafleet_documents::{EndReason, FleetChange};
use kafleet_model::task::id::TaskId;
use kafleet_store::Notice;
use tokio::sync::broadcast::error::RecvError;

use super::context::{LastEventId, RequestContext};
use super::watch::{Events, event_stream};
use crate::http::answer::EventStream;
use crate::http::problem::ApiError;
use crate::state::Api;

/// Tasks that a client watches: those of a tree, of a type, or both; all if neither is given.
pub(crate) struct WatchScope {
    pub root: Option<TaskId>,
    pub task_type: Option<String>,
}

impl WatchScope {
    /// Converts a notice into an event. `None` if it concerns no watched task.
    async fn change(&self, api: &Api, notice: &FleetChanges) -> Option<FleetChange> {
        let Notice::Changed { partition, offset, ids, .. } = &notice.notice else { return Some(unknown_change()) };
        if self.root.as_ref().is_some_and(|root| api.topology.partition_of(root) != *partition) {
            return None;
        }
        let ids = match ids {
            None => None,
            Some(ids) => Some(self.matching_ids(api, notice, *partition, ids).await?),
        };
        let position = Some(format!("{partition}:{}", (offset - 1).max(0)));
        Some(FleetChange { ids, partition: Some(*partition), position })
    }

    /// Selects the matching tasks; `None` if there are none.
    async fn matching_ids(
        &self,
        api: &Api,
        notice: &FleetChanges,
        partition: u32,
        ids: &[TaskId],
    ) -> Option<Vec<String>> {
        let within = |id: &TaskId| self.root.as_ref().is_none_or(|root| id.is_within(root.as_str()));
        if !ids.iter().any(within) {
            return None;
        }
        let types = match self.task_type {
            Some(_) => notice.types(&api.reads, partition, ids).await,
            None => None,
        };
        // A task without a record, or that could not be read, may be of any type.
        let is_type = |at: usize| match types.and_then(|types| types.get(at)?.as_deref()) {
            Some(task_type) => self.task_type.as_deref().is_none_or(|watched| watched == task_type),
            None => true,
        };
        let matching_ids: Vec<String> = ids
            .iter()
            .enumerate()
            .filter(|(at, id)| within(id) && is_type(*at))
            .map(|(_, id)| id.to_string())
            .collect();
        (!matching_ids.is_empty()).then_some(matching_ids)
    }
}

fn unknown_change() -> FleetChange {
    FleetChange { ids: None, partition: None, position: None }
}

/// Follows which tasks change, after the event `last` if this process has sent it.
pub(crate) async fn watch(
    RequestContext { api, .. }: RequestContext,
    scope: WatchScope,
    LastEventId(last): LastEventId,
) -> Result<EventStream, ApiError> {
    let watch = api.reads.notices.feed.watch(last.as_deref())?;
    Ok(event_stream(|events| async move { follow_fleet(&api, &scope, watch, events).await }))
}

async fn follow_fleet(api: &Arc<Api>, scope: &WatchScope, mut watch: Watch, mut events: Events) {
    let feed = &api.reads.notices.feed;
    // A client that cannot resume has to read the current state: its first event reports that any task may have changed.
    let mut news = (!watch.resumed).then(|| (watch.from, unknown_change()));
    loop {
        if let Some((number, change)) = news.take()
            && events.send("changed", Some(&feed.id_of(number)), &change).await.is_err()
        {
            return;
        }
        let notice = match watch.missed.pop_front() {
            Some(notice) => Ok(notice),
            None => tokio::select! {
                biased;
                () = events.closed() => return,
                () = api.reads.shutdown.drain.cancelled() => return events.end(EndReason::Shutdown),
                notice = watch.live.recv() => notice,
            },
        };
        news = match notice {
            Ok(notice) => scope.change(api, &notice).await.map(|change| (notice.number, change)),
            Err(RecvError::Lagged(_)) => {
                feed.skip_to_present(&mut watch);
                Some((watch.from, unknown_change()))
            }
            Err(RecvError::Closed) => return events.end(EndReason::Shutdown),
        };
    }
}
