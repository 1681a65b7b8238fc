//! What changes in the fleet, for whoever follows more than one task. The last of it is kept, so that a watch that was cut
//! goes on where it was, at the same process; elsewhere, or too late, it begins with: look at everything.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, broadcast};

use super::watch::{Events, stream};
use crate::api::Api;
use crate::api::documents::{EndReason, FleetChange};
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::read::notices::too_many;
use crate::model::task::id::{TaskId, check_type};
use crate::store::Notice;

/// Clients that may watch the fleet, a tree or a type at once.
pub const MAX_FLEET_WATCHERS: usize = 5_000;
/// Notices that are kept for those who come back, and that a watcher may be behind.
const KEPT: usize = 1_024;

pub struct FleetFeed {
    /// Of this process: numbers of another mean nothing here.
    name: String,
    told: Mutex<Kept>,
    live: broadcast::Sender<Arc<FleetChanges>>,
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    /// Of the last one; the first is 1.
    number: u64,
    last: VecDeque<Arc<FleetChanges>>,
}

/// A notice with its number.
pub struct FleetChanges {
    number: u64,
    notice: Notice,
    /// The types of its tasks, looked up once for all who ask. None: they could not be.
    types: OnceCell<Option<Vec<Option<Arc<str>>>>>,
}

/// A place in the feed.
struct Watch {
    /// What came between the place named by the client and now.
    missed: VecDeque<Arc<FleetChanges>>,
    live: broadcast::Receiver<Arc<FleetChanges>>,
    /// The number of the last notice before `live`.
    from: u64,
    resumed: bool,
    _slot: OwnedSemaphorePermit,
}

impl Default for FleetFeed {
    fn default() -> Self {
        Self {
            name: format!("{:08x}", fastrand::u32(..)),
            told: Mutex::default(),
            live: broadcast::Sender::new(KEPT),
            slots: Arc::new(Semaphore::new(MAX_FLEET_WATCHERS)),
        }
    }
}

impl FleetFeed {
    pub fn tell(&self, notice: Notice) {
        // Some events change no task, such as those that only move log time.
        if matches!(&notice, Notice::Changed { ids: Some(ids), .. } if ids.is_empty()) {
            return;
        }
        let mut kept = self.told.lock();
        kept.number += 1;
        let told = Arc::new(FleetChanges { number: kept.number, notice, types: OnceCell::new() });
        if kept.last.len() == KEPT {
            kept.last.pop_front();
        }
        kept.last.push_back(told.clone());
        // An error only says that nobody watches.
        let _ = self.live.send(told);
    }

    /// Goes on behind the event with this id, where it is known.
    fn watch(&self, last: Option<&str>) -> Result<Watch, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_FLEET_WATCHERS))?;
        let kept = self.told.lock();
        let known = last.and_then(|id| self.number_of(id)).filter(|number| {
            let oldest = kept.last.front().map_or(kept.number + 1, |told| told.number);
            (oldest - 1..=kept.number).contains(number)
        });
        let missed = known.map(|known| kept.last.iter().filter(|told| told.number > known).cloned().collect());
        let resumed = missed.is_some();
        Ok(Watch { missed: missed.unwrap_or_default(), live: self.live.subscribe(), from: kept.number, resumed, _slot: slot })
    }

    /// Begins anew at the present.
    fn skip(&self, watch: &mut Watch) {
        let kept = self.told.lock();
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
    /// Of each of its tasks; a task without a record has none.
    async fn types(&self, api: &Api, partition: u32, ids: &[TaskId]) -> Option<&Vec<Option<Arc<str>>>> {
        let look = async || {
            let nodes = api.nodes(partition, ids).await.ok()?;
            Some(nodes.into_iter().map(|node| node?.task_type).collect())
        };
        self.types.get_or_init(look).await.as_ref()
    }
}

/// What a client wants to hear of.
struct Scope {
    root: Option<TaskId>,
    task_type: Option<String>,
}

impl Scope {
    fn read(call: &ApiRequest) -> Result<Self, ApiError> {
        let root = call.query.text("root").map(TaskId::parse).transpose();
        let task_type = call.query.text("type").map(str::to_owned);
        if let Some(name) = &task_type {
            check_type(name).map_err(|why| bad_parameter("type", &why))?;
        }
        Ok(Self { root: root.map_err(|why| bad_parameter("root", &why.to_string()))?, task_type })
    }

    /// What a notice says of it; None: nothing.
    async fn change(&self, api: &Api, told: &FleetChanges) -> Option<FleetChange> {
        let Notice::Changed { partition, offset, ids } = &told.notice else { return Some(anything()) };
        if self.root.as_ref().is_some_and(|root| api.publisher.partition_of(root) != *partition) {
            return None;
        }
        let ids = match ids {
            None => None,
            Some(ids) => Some(self.those(api, told, *partition, ids).await?),
        };
        let position = Some(format!("{partition}:{}", (offset - 1).max(0)));
        Some(FleetChange { ids, partition: Some(*partition), position })
    }

    /// Its tasks among these; None: there are none.
    async fn those(&self, api: &Api, told: &FleetChanges, partition: u32, ids: &[TaskId]) -> Option<Vec<String>> {
        let within = |id: &TaskId| self.root.as_ref().is_none_or(|root| id.is_within(root.as_str()));
        if !ids.iter().any(within) {
            return None;
        }
        let types = match self.task_type {
            Some(_) => told.types(api, partition, ids).await,
            None => None,
        };
        // What has no record any more, or cannot be looked up, may be of any type.
        let fits = |at: usize| match types.and_then(|types| types.get(at)?.as_deref()) {
            Some(task_type) => self.task_type.as_deref().is_none_or(|wanted| wanted == task_type),
            None => true,
        };
        let those: Vec<String> =
            ids.iter().enumerate().filter(|(at, id)| within(id) && fits(*at)).map(|(_, id)| id.to_string()).collect();
        (!those.is_empty()).then_some(those)
    }
}

fn anything() -> FleetChange {
    FleetChange { ids: None, partition: None, position: None }
}

/// `GET /v1/watch`.
pub async fn watch(call: ApiRequest) -> Result<Response, ApiError> {
    let scope = Scope::read(&call)?;
    let watch = call.api.hub.feed.watch(call.last_event_id())?;
    let api = call.api.clone();
    Ok(stream(|events| async move { follow(&api, &scope, watch, events).await }))
}

async fn follow(api: &Arc<Api>, scope: &Scope, mut watch: Watch, mut events: Events) {
    let feed = &api.hub.feed;
    // The present state of a fleet is what the client reads now.
    let mut news = (!watch.resumed).then(|| (watch.from, anything()));
    loop {
        if let Some((number, change)) = news.take()
            && events.send("changed", Some(&feed.id_of(number)), &change).await.is_err()
        {
            return;
        }
        let told = match watch.missed.pop_front() {
            Some(told) => Ok(told),
            None => tokio::select! {
                biased;
                () = events.closed() => return,
                () = api.shutdown.drain.cancelled() => return events.end(EndReason::Shutdown),
                told = watch.live.recv() => told,
            },
        };
        news = match told {
            Ok(told) => scope.change(api, &told).await.map(|change| (told.number, change)),
            Err(RecvError::Lagged(_)) => {
                feed.skip(&mut watch);
                Some((watch.from, anything()))
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
        watch.resumed.then(|| watch.missed.iter().map(|told| told.number).collect())
    }

    #[test]
    fn a_watch_goes_on_where_it_was_as_long_as_that_is_known() {
        let feed = FleetFeed::default();
        assert_eq!(missed(&feed, &feed.id_of(0)), Some(vec![]));
        (1..=3).for_each(|n| feed.tell(notice(n)));
        feed.tell(Notice::Changed { partition: 0, offset: 4, ids: Some(vec![]) });
        assert_eq!(missed(&feed, &feed.id_of(1)), Some(vec![2, 3]), "what names nothing is not told");
        assert_eq!(missed(&feed, &feed.id_of(3)), Some(vec![]));
        for unknown in [feed.id_of(4), "00-1".into(), "0:7".into(), format!("{}-", feed.name), String::new()] {
            assert_eq!(missed(&feed, &unknown), None, "{unknown}");
        }
        (4..=KEPT as i64 + 2).for_each(|n| feed.tell(notice(n)));
        assert_eq!(missed(&feed, &feed.id_of(1)), None, "too long ago");
        assert_eq!(missed(&feed, &feed.id_of(2)).map(|missed| missed.len()), Some(KEPT));
    }
}
