//! Change notices: one subscription to the store for the whole process, handed to whoever waits. Notices are hints;
//! everybody who waits also looks again every second, so that nothing hangs while they are missing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::backends::stored;
use crate::api::handlers::watch_fleet::FleetFeed;
use crate::api::http::problem::{ApiError, Code};
use crate::model::task::id::TaskId;
use crate::runtime::{self, Backoff};
use crate::store::{Notice, Store};

/// Clients that may wait for or watch tasks at once.
pub const MAX_WATCHERS: usize = 10_000;
/// Without a notice, look again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// However many wait, so often in a second all of them together look again.
const LOOKS_PER_SECOND: u64 = 1_000;
/// However many notices come, not sooner than this.
const NOT_SOONER: Duration = Duration::from_millis(20);

pub struct Notices {
    /// By events partition.
    partitions: Vec<NoticeQueue>,
    pub feed: FleetFeed,
    slots: Arc<Semaphore>,
}

struct NoticeQueue {
    interests: Mutex<FxHashMap<TaskId, Vec<Arc<Notify>>>>,
    /// The place that notices say the partition is folded to.
    folded: watch::Sender<i64>,
}

/// A wish to hear of one task's changes; it ends by being dropped.
pub struct Subscription {
    hub: Arc<Notices>,
    partition: u32,
    id: TaskId,
    changed: Arc<Notify>,
    _slot: OwnedSemaphorePermit,
}

impl Notices {
    pub fn new(partitions: u32) -> Self {
        let lane = |_| NoticeQueue { interests: Mutex::default(), folded: watch::Sender::new(0) };
        Self {
            partitions: (0..partitions).map(lane).collect(),
            feed: FleetFeed::default(),
            slots: Arc::new(Semaphore::new(MAX_WATCHERS)),
        }
    }

    pub fn interest(self: &Arc<Self>, partition: u32, id: &TaskId) -> Result<Subscription, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_WATCHERS))?;
        let changed = Arc::new(Notify::new());
        if let Some(lane) = self.lane(partition) {
            lane.interests.lock().entry(id.clone()).or_default().push(changed.clone());
        }
        Ok(Subscription { hub: self.clone(), partition, id: id.clone(), changed, _slot: slot })
    }

    /// Waits until a notice says that the partition is folded to `target`, at most until it is time to look oneself.
    pub async fn folded(&self, partition: u32, target: i64) {
        let Some(lane) = self.lane(partition) else { return tokio::time::sleep(LOOK_AGAIN).await };
        let mut folded = lane.folded.subscribe();
        if *folded.borrow_and_update() >= target {
            // The notice was there before the store was asked, and the store says otherwise: it has gone back.
            return tokio::time::sleep(LOOK_AGAIN / 10).await;
        }
        let _ = tokio::time::timeout(LOOK_AGAIN, folded.wait_for(|&offset| offset >= target)).await;
    }

    /// How long one of those who wait does without a notice: longer where there are many, and not all the same.
    fn patience(&self) -> Duration {
        let waiting = MAX_WATCHERS.saturating_sub(self.slots.available_permits()) as u64;
        let patience = LOOK_AGAIN.max(Duration::from_millis(waiting * 1_000 / LOOKS_PER_SECOND));
        patience + patience.mul_f32(fastrand::f32() / 4.0)
    }

    fn lane(&self, partition: u32) -> Option<&NoticeQueue> {
        self.partitions.get(partition as usize)
    }

    fn tell(&self, notice: Notice) {
        match &notice {
            Notice::Changed { partition, offset, ids } => {
                let Some(lane) = self.lane(*partition) else { return };
                lane.folded.send_replace(*offset);
                lane.wake(ids.as_deref());
            }
            Notice::Gap => self.partitions.iter().for_each(|lane| lane.wake(None)),
        }
        self.feed.tell(notice);
    }
}

impl NoticeQueue {
    /// None: everybody.
    fn wake(&self, ids: Option<&[TaskId]>) {
        let interests = self.interests.lock();
        match ids {
            Some(ids) => ids.iter().filter_map(|id| interests.get(id)).flatten().for_each(|waiter| waiter.notify_one()),
            None => interests.values().flatten().for_each(|waiter| waiter.notify_one()),
        }
    }
}

impl Subscription {
    /// Waits until it is worth looking at the task again.
    pub async fn changed(&self) {
        tokio::time::sleep(NOT_SOONER).await;
        let _ = tokio::time::timeout(self.hub.patience(), self.changed.notified()).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(lane) = self.hub.lane(self.partition) else { return };
        let mut interests = lane.interests.lock();
        let Some(waiters) = interests.get_mut(&self.id) else { return };
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.changed));
        if waiters.is_empty() {
            interests.remove(&self.id);
        }
    }
}

pub fn too_many(limit: usize) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{limit} clients are waiting already"))
        .hint("try again, at another api if there is one")
}

/// Subscribes to the store, again and again, until the guard is dropped.
pub fn listen(hub: Arc<Notices>, store: Arc<dyn Store>) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    runtime::spawn(async move {
        tokio::select! {
            biased;
            () = stopped.cancelled() => {}
            () = subscribe(&hub, &*store) => {}
        }
    });
    stop.drop_guard()
}

async fn subscribe(hub: &Notices, store: &dyn Store) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        if let Ok(mut notices) = stored(store.notices()).await {
            backoff.reset();
            hub.tell(Notice::Gap);
            while let Some(notice) = notices.next().await {
                hub.tell(notice);
            }
            tracing::warn!("the store's change notices have ended; subscribing again");
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    fn changed(ids: Option<&[&str]>) -> Notice {
        Notice::Changed { partition: 0, offset: 5, ids: ids.map(|ids| ids.iter().map(|text| id(text)).collect()) }
    }

    async fn wakes(interest: &Subscription) -> bool {
        tokio::time::timeout(Duration::from_millis(100), interest.changed.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn a_notice_wakes_those_it_concerns() {
        let hub = Arc::new(Notices::new(2));
        let (a, b, other) =
            (hub.interest(0, &id("a")).unwrap(), hub.interest(0, &id("b")).unwrap(), hub.interest(1, &id("a")).unwrap());
        hub.tell(changed(Some(&["a"])));
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, false, false));
        hub.tell(changed(None));
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, true, false));
        hub.tell(Notice::Gap);
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, true, true));
    }

    #[tokio::test]
    async fn who_has_gone_leaves_nothing_behind() {
        let hub = Arc::new(Notices::new(1));
        drop((hub.interest(0, &id("a")).unwrap(), hub.interest(0, &id("a")).unwrap()));
        assert!(hub.partitions[0].interests.lock().is_empty());
        assert_eq!(hub.slots.available_permits(), MAX_WATCHERS);
    }

    #[tokio::test(start_paused = true)]
    async fn without_notices_one_looks_again_after_a_second() {
        let hub = Arc::new(Notices::new(1));
        let interest = hub.interest(0, &id("a")).unwrap();
        let begun = tokio::time::Instant::now();
        interest.changed().await;
        hub.folded(0, 7).await;
        let waited = begun.elapsed();
        assert!(waited >= LOOK_AGAIN * 2 && waited < LOOK_AGAIN * 3, "{waited:?}");
    }
}
