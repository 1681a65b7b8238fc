//! `GET /v1/watch`: change notices for many tasks. A client that reconnects to the same process resumes from a
//! bounded buffer; otherwise the stream starts with a change of everything.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, broadcast};

use super::watch::{Events, event_stream};
use crate::api::Api;
use crate::api::documents::{EndReason, FleetChange};
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::read::notices::too_many;
use crate::model::task::id::{TaskId, check_type};
use crate::store::Notice;

/// Maximum concurrent watchers of the fleet, a tree or a type.
pub const MAX_FLEET_WATCHERS: usize = 5_000;
/// Notices buffered for reconnecting clients, and the lag at which a watcher skips to the present.
const BUFFERED: usize = 1_024;

pub struct FleetFeed {
    /// Random name of this process: event ids of another process are not valid here.
    name: String,
    notice: Mutex<Buffer>,
    live: broadcast::Sender<Arc<FleetChanges>>,
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct Buffer {
    /// Number of the last notice; the first is 1.
    number: u64,
    last: VecDeque<Arc<FleetChanges>>,
}

/// Numbered notice.
pub struct FleetChanges {
    number: u64,
    notice: Notice,
    /// Types of the tasks, read once for all watchers. `None` if they could not be read.
    types: OnceCell<Option<Vec<Option<Arc<str>>>>>,
}

/// Position of a watcher.
struct Watch {
    /// Notices between the client's last event and now.
    missed: VecDeque<Arc<FleetChanges>>,
    live: broadcast::Receiver<Arc<FleetChanges>>,
    /// Number of the last notice before `live`.
    from: u64,
    resumed: bool,
    _slot: OwnedSemaphorePermit,
}

impl Default for FleetFeed {
    fn default() -> Self {
        Self {
            name: format!("{:08x}", fastrand::u32(..)),
            notice: Mutex::default(),
            live: broadcast::Sender::new(BUFFERED),
            slots: Arc::new(Semaphore::new(MAX_FLEET_WATCHERS)),
        }
    }
}

impl FleetFeed {
    pub fn publish(&self, notice: Notice) {
        // Some events change no task, for example those that only advance log time.
        if matches!(&notice, Notice::Changed { ids: Some(ids), .. } if ids.is_empty()) {
            return;
        }
        let mut kept = self.notice.lock();
        kept.number += 1;
        let notice = Arc::new(FleetChanges { number: kept.number, notice, types: OnceCell::new() });
        if kept.last.len() == BUFFERED {
            kept.last.pop_front();
        }
        kept.last.push_back(notice.clone());
        // Sending fails only if there are no watchers.
        let _ = self.live.send(notice);
    }

    /// Resumes after the event with this id, if it is still buffered.
    fn watch(&self, last: Option<&str>) -> Result<Watch, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_FLEET_WATCHERS))?;
        let kept = self.notice.lock();
        let known = last.and_then(|id| self.number_of(id)).filter(|number| {
            let oldest = kept.last.front().map_or(kept.number + 1, |notice| notice.number);
            (oldest - 1..=kept.number).contains(number)
        });
        let missed = known.map(|known| kept.last.iter().filter(|notice| notice.number > known).cloned().collect());
        let resumed = missed.is_some();
        Ok(Watch { missed: missed.unwrap_or_default(), live: self.live.subscribe(), from: kept.number, resumed, _slot: slot })
    }

    /// Moves a watcher to the present.
    fn skip_to_present(&self, watch: &mut Watch) {
        let kept = self.notice.lock();
        (watch.live, watch.from) = (self.live.subscribe(), kept.number);
    }

    fn number_of(&self, id: &str) -> Option<u64> {
        id.strip_prefix(&self.name)?.strip_prefix('-')?.parse().ok()
    }

    fn id_of(&self, number: u64) -> String {
        format!("{}-{number}", self.name)
    }
}

impl FleetChanges {
    /// Returns the type of each task; `None` for tasks without a record.
    async fn types(&self, api: &Api, partition: u32, ids: &[TaskId]) -> Option<&Vec<Option<Arc<str>>>> {
        let read = async || {
            let nodes = api.nodes(partition, ids).await.ok()?;
            Some(nodes.into_iter().map(|node| node?.task_type).collect())
        };
        self.types.get_or_init(read).await.as_ref()
    }
}

/// Filter of a watcher.
struct Scope {
    root: Option<TaskId>,
    task_type: Option<String>,
}

impl Scope {
    fn read(request: &ApiRequest) -> Result<Self, ApiError> {
        let root = request.query.text("root").map(TaskId::parse).transpose();
        let task_type = request.query.text("type").map(str::to_owned);
        if let Some(name) = &task_type {
            check_type(name).map_err(|why| bad_parameter("type", &why))?;
        }
        Ok(Self { root: root.map_err(|why| bad_parameter("root", &why.to_string()))?, task_type })
    }

    /// Returns the change that a notice means for this filter, if any.
    async fn change(&self, api: &Api, notice: &FleetChanges) -> Option<FleetChange> {
        let Notice::Changed { partition, offset, ids } = &notice.notice else { return Some(unknown_change()) };
        if self.root.as_ref().is_some_and(|root| api.publisher.partition_of(root) != *partition) {
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
    async fn matching_ids(&self, api: &Api, notice: &FleetChanges, partition: u32, ids: &[TaskId]) -> Option<Vec<String>> {
        let within = |id: &TaskId| self.root.as_ref().is_none_or(|root| id.is_within(root.as_str()));
        if !ids.iter().any(within) {
            return None;
        }
        let types = match self.task_type {
            Some(_) => notice.types(api, partition, ids).await,
            None => None,
        };
        // A task without a record, or that could not be read, may be of any type.
        let is_type = |at: usize| match types.and_then(|types| types.get(at)?.as_deref()) {
            Some(task_type) => self.task_type.as_deref().is_none_or(|wanted| wanted == task_type),
            None => true,
        };
        let matching_ids: Vec<String> =
            ids.iter().enumerate().filter(|(at, id)| within(id) && is_type(*at)).map(|(_, id)| id.to_string()).collect();
        (!matching_ids.is_empty()).then_some(matching_ids)
    }
}

fn unknown_change() -> FleetChange {
    FleetChange { ids: None, partition: None, position: None }
}

/// `GET /v1/watch`.
pub async fn watch(request: ApiRequest) -> Result<Response, ApiError> {
    let scope = Scope::read(&request)?;
    let watch = request.api.notices.feed.watch(request.last_event_id())?;
    let api = request.api.clone();
    Ok(event_stream(|events| async move { follow(&api, &scope, watch, events).await }))
}

async fn follow(api: &Arc<Api>, scope: &Scope, mut watch: Watch, mut events: Events) {
    let feed = &api.notices.feed;
    // A new watcher reads the current state by itself.
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
                () = api.shutdown.drain.cancelled() => return events.end(EndReason::Shutdown),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(n: i64) -> Notice {
        Notice::Changed { partition: 0, offset: n, ids: Some(vec![TaskId::parse("a").unwrap()]) }
    }

    fn missed(feed: &FleetFeed, last: &str) -> Option<Vec<u64>> {
        let watch = feed.watch(Some(last)).unwrap();
        watch.resumed.then(|| watch.missed.iter().map(|notice| notice.number).collect())
    }

    #[test]
    fn watch_resumes_while_its_position_is_buffered() {
        let feed = FleetFeed::default();
        assert_eq!(missed(&feed, &feed.id_of(0)), Some(vec![]));
        (1..=3).for_each(|n| feed.publish(notice(n)));
        feed.publish(Notice::Changed { partition: 0, offset: 4, ids: Some(vec![]) });
        assert_eq!(missed(&feed, &feed.id_of(1)), Some(vec![2, 3]), "notices without ids are dropped");
        assert_eq!(missed(&feed, &feed.id_of(3)), Some(vec![]));
        for unknown in [feed.id_of(4), "00-1".into(), "0:7".into(), format!("{}-", feed.name), String::new()] {
            assert_eq!(missed(&feed, &unknown), None, "{unknown}");
        }
        (4..=BUFFERED as i64 + 2).for_each(|n| feed.publish(notice(n)));
        assert_eq!(missed(&feed, &feed.id_of(1)), None, "no longer buffered");
        assert_eq!(missed(&feed, &feed.id_of(2)).map(|missed| missed.len()), Some(BUFFERED));
    }
}
