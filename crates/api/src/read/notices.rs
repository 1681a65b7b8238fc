//! Change notices: one store subscription per process, distributed to waiting requests. Notices are only hints;
//! waiting requests also poll every second, so that a lost notice only delays them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{Backoff, watch};
use kafleet_store::{Notice, Store};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};
use tokio_util::sync::DropGuard;

use super::fleet_feed::{FleetChanges, FleetFeed, too_many};
use crate::backends::stored;
use crate::http::problem::ApiError;

/// Maximum concurrent waiters and watchers of single tasks.
pub(crate) const MAX_WATCHERS: usize = 10_000;
/// Poll interval without notices.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum polls per second over all waiters.
const MAX_POLLS_PER_SECOND: u64 = 1_000;
/// Minimum time between two reads, however many notices arrive.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(20);

pub struct Notices {
    /// Queues by events partition.
    partitions: Vec<NoticeQueue>,
    pub(crate) feed: FleetFeed,
    slots: Arc<Semaphore>,
}

struct NoticeQueue {
    waiters_by_task: Mutex<FxHashMap<TaskId, Vec<Arc<Notify>>>>,
    /// Highest projected offset reported by notices.
    projected: watch::Sender<i64>,
}

/// Subscription to the changes of one task; unsubscribes on drop.
pub(crate) struct Subscription {
    notices: Arc<Notices>,
    partition: u32,
    id: TaskId,
    changed: Arc<Notify>,
    _slot: OwnedSemaphorePermit,
}

impl Notices {
    pub(crate) fn new(partitions: u32) -> Self {
        let queue = |_| NoticeQueue { waiters_by_task: Mutex::default(), projected: watch::Sender::new(0) };
        Self {
            partitions: (0..partitions).map(queue).collect(),
            feed: FleetFeed::default(),
            slots: Arc::new(Semaphore::new(MAX_WATCHERS)),
        }
    }

    pub(crate) fn subscribe(self: &Arc<Self>, partition: u32, id: &TaskId) -> Result<Subscription, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_WATCHERS))?;
        let changed = Arc::new(Notify::new());
        if let Some(queue) = self.queue(partition) {
            queue.waiters_by_task.lock().entry(id.clone()).or_default().push(changed.clone());
        }
        Ok(Subscription { notices: self.clone(), partition, id: id.clone(), changed, _slot: slot })
    }

    /// Waits until a notice reports that the projection has reached `target`, or until it is time to poll.
    pub(crate) async fn projected(&self, partition: u32, target: i64) {
        let Some(queue) = self.queue(partition) else { return tokio::time::sleep(POLL_INTERVAL).await };
        let mut projected = queue.projected.subscribe();
        if projected.get_and_mark() >= target {
            // The store has fallen behind a notice received earlier, for example after a failover.
            return tokio::time::sleep(POLL_INTERVAL / 10).await;
        }
        let _ = tokio::time::timeout(POLL_INTERVAL, projected.wait_for(|&offset| offset >= target)).await;
    }

    /// Offset of the last notice of a partition; 0 before the first one.
    pub(crate) fn last_offset(&self, partition: u32) -> i64 {
        self.queue(partition).map_or(0, |queue| queue.projected.get())
    }

    /// Receives all further notices.
    pub fn listen(&self) -> broadcast::Receiver<Arc<FleetChanges>> {
        self.feed.listen()
    }

    /// Poll interval of a waiter: longer when there are many, with jitter.
    fn poll_interval(&self) -> Duration {
        let waiting = MAX_WATCHERS.saturating_sub(self.slots.available_permits()) as u64;
        let poll_interval = POLL_INTERVAL.max(Duration::from_millis(waiting * 1_000 / MAX_POLLS_PER_SECOND));
        poll_interval + poll_interval.mul_f32(fastrand::f32() / 4.0)
    }

    fn queue(&self, partition: u32) -> Option<&NoticeQueue> {
        self.partitions.get(partition as usize)
    }

    fn dispatch(&self, notice: Notice) {
        match &notice {
            Notice::Changed { partition, offset, ids, .. } => {
                let Some(queue) = self.queue(*partition) else { return };
                queue.projected.send(*offset);
                queue.wake(ids.as_deref());
            }
            Notice::Gap => self.partitions.iter().for_each(|queue| queue.wake(None)),
        }
        self.feed.publish(notice);
    }
}

impl NoticeQueue {
    /// Wakes the waiters of these tasks; `None` wakes all.
    fn wake(&self, ids: Option<&[TaskId]>) {
        let waiters_by_task = self.waiters_by_task.lock();
        match ids {
            Some(ids) => {
                ids.iter().filter_map(|id| waiters_by_task.get(id)).flatten().for_each(|waiter| waiter.notify_one());
            }
            None => waiters_by_task.values().flatten().for_each(|waiter| waiter.notify_one()),
        }
    }
}

impl Subscription {
    /// Waits until the task should be read again.
    pub(crate) async fn changed(&self) {
        tokio::time::sleep(MIN_READ_INTERVAL).await;
        let _ = tokio::time::timeout(self.notices.poll_interval(), self.changed.notified()).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(queue) = self.notices.queue(self.partition) else { return };
        let mut waiters_by_task = queue.waiters_by_task.lock();
        let Some(waiters) = waiters_by_task.get_mut(&self.id) else { return };
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.changed));
        if waiters.is_empty() {
            waiters_by_task.remove(&self.id);
        }
    }
}

/// Subscribes to the store, and resubscribes after errors, until the guard is dropped.
pub(crate) fn listen(notices: Arc<Notices>, store: Arc<dyn Store>) -> DropGuard {
    kafleet_runtime::spawn_guarded(async move { subscribe(&notices, &*store).await })
}

async fn subscribe(notices: &Notices, store: &dyn Store) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        if let Ok(mut received) = stored(store.notices()).await {
            backoff.reset();
            notices.dispatch(Notice::Gap);
            while let Some(notice) = received.next().await {
                notices.dispatch(notice);
            }
            tracing::warn!("store notifications ended; subscribing again");
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
        Notice::Changed {
            partition: 0,
            offset: 5,
            ids: ids.map(|ids| ids.iter().map(|text| id(text)).collect()),
            types: None,
        }
    }

    async fn wakes(subscribe: &Subscription) -> bool {
        tokio::time::timeout(Duration::from_millis(100), subscribe.changed.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn notice_wakes_matching_subscriptions() {
        let notices = Arc::new(Notices::new(2));
        let (a, b, other) = (
            notices.subscribe(0, &id("a")).unwrap(),
            notices.subscribe(0, &id("b")).unwrap(),
            notices.subscribe(1, &id("a")).unwrap(),
        );
        notices.dispatch(changed(Some(&["a"])));
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, false, false));
        notices.dispatch(changed(None));
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, true, false));
        notices.dispatch(Notice::Gap);
        assert_eq!((wakes(&a).await, wakes(&b).await, wakes(&other).await), (true, true, true));
    }

    #[tokio::test]
    async fn dropped_subscription_is_unregistered() {
        let notices = Arc::new(Notices::new(1));
        drop((notices.subscribe(0, &id("a")).unwrap(), notices.subscribe(0, &id("a")).unwrap()));
        assert!(notices.partitions[0].waiters_by_task.lock().is_empty());
        assert_eq!(notices.slots.available_permits(), MAX_WATCHERS);
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_polls_after_a_second_without_notices() {
        let notices = Arc::new(Notices::new(1));
        let subscribe = notices.subscribe(0, &id("a")).unwrap();
        let begun = tokio::time::Instant::now();
        subscribe.changed().await;
        notices.projected(0, 7).await;
        let waited = begun.elapsed();
        assert!(waited >= POLL_INTERVAL * 2 && waited < POLL_INTERVAL * 3, "{waited:?}");
    }
}
