//! Change notices for clients that watch the fleet, a tree or a type. The newest notices are buffered, so that a client
//! that reconnects to the same process misses none.

use std::collections::VecDeque;
use std::sync::Arc;

use kafleet_model::task::id::TaskId;
use kafleet_store::Notice;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, broadcast};

use super::reads::Reads;
use crate::http::problem::{ApiError, Code};

/// Maximum concurrent watchers of the fleet, a tree or a type.
pub(crate) const MAX_FLEET_WATCHERS: usize = 5_000;
/// Notices buffered for reconnecting clients, and the lag at which a watcher skips to the present.
const MAX_BUFFERED: usize = 1_024;

pub(crate) struct FleetFeed {
    /// Random prefix of event ids. Ids issued by another process have another prefix and are not resumed from.
    name: String,
    buffer: Mutex<Buffer>,
    live: broadcast::Sender<Arc<FleetChanges>>,
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct Buffer {
    /// Number of the newest notice, or 0 before the first one.
    number: u64,
    last: VecDeque<Arc<FleetChanges>>,
}

/// Numbered notice.
pub struct FleetChanges {
    pub number: u64,
    pub notice: Notice,
    /// Types of the tasks, read once for all watchers. `None` if they could not be read.
    types: OnceCell<Option<Vec<Option<Arc<str>>>>>,
}

/// Subscription of one client.
pub(crate) struct Watch {
    /// Notices between the client's last event and now.
    pub missed: VecDeque<Arc<FleetChanges>>,
    pub live: broadcast::Receiver<Arc<FleetChanges>>,
    /// Number of the last notice before `live`.
    pub from: u64,
    /// Whether `missed` is complete. If false, the client must reread everything it shows.
    pub resumed: bool,
    _slot: OwnedSemaphorePermit,
}

impl Default for FleetFeed {
    fn default() -> Self {
        Self {
            name: format!("{:08x}", fastrand::u32(..)),
            buffer: Mutex::default(),
            live: broadcast::Sender::new(MAX_BUFFERED),
            slots: Arc::new(Semaphore::new(MAX_FLEET_WATCHERS)),
        }
    }
}

impl FleetFeed {
    pub(crate) fn publish(&self, notice: Notice) {
        // Some events change no task, for example those that only advance log time.
        if matches!(&notice, Notice::Changed { ids: Some(ids), .. } if ids.is_empty()) {
            return;
        }
        let mut buffer = self.buffer.lock();
        buffer.number += 1;
        let notice = Arc::new(FleetChanges { number: buffer.number, notice, types: OnceCell::new() });
        if buffer.last.len() == MAX_BUFFERED {
            buffer.last.pop_front();
        }
        buffer.last.push_back(notice.clone());
        // Sending fails only if there are no watchers.
        let _ = self.live.send(notice);
    }

    /// Subscribes a client, after the event with the id `last` if the events since then are still buffered, otherwise
    /// from now on.
    pub(crate) fn watch(&self, last: Option<&str>) -> Result<Watch, ApiError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| too_many(MAX_FLEET_WATCHERS))?;
        let buffer = self.buffer.lock();
        let number = last.and_then(|id| self.number_of(id)).filter(|number| {
            let oldest = buffer.last.front().map_or(buffer.number + 1, |notice| notice.number);
            (oldest - 1..=buffer.number).contains(number)
        });
        let missed = number.map(|number| buffer.last.iter().filter(|notice| notice.number > number).cloned().collect());
        let resumed = missed.is_some();
        Ok(Watch {
            missed: missed.unwrap_or_default(),
            live: self.live.subscribe(),
            from: buffer.number,
            resumed,
            _slot: slot,
        })
    }

    /// Receives all further notices.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Arc<FleetChanges>> {
        self.live.subscribe()
    }

    /// Resubscribes a client from now on, skipping the notices that it has not read.
    pub(crate) fn skip_to_present(&self, watch: &mut Watch) {
        let buffer = self.buffer.lock();
        (watch.live, watch.from) = (self.live.subscribe(), buffer.number);
    }

    fn number_of(&self, id: &str) -> Option<u64> {
        id.strip_prefix(&self.name)?.strip_prefix('-')?.parse().ok()
    }

    pub(crate) fn id_of(&self, number: u64) -> String {
        format!("{}-{number}", self.name)
    }
}

impl FleetChanges {
    /// Returns the type of each task, `None` for a task without a record. `None` as a whole if the records could not be
    /// read.
    pub(crate) async fn types(&self, reads: &Reads, partition: u32, ids: &[TaskId]) -> Option<&Vec<Option<Arc<str>>>> {
        let read = async || {
            let records = reads.records(partition, ids).await.ok()?;
            Some(records.into_iter().map(|record| record?.task_type).collect())
        };
        self.types.get_or_init(read).await.as_ref()
    }
}

pub fn too_many(limit: usize) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{limit} clients are already waiting"))
        .hint("retry, at another API instance if there is one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(n: i64) -> Notice {
        Notice::Changed { partition: 0, offset: n, ids: Some(vec![TaskId::parse("a").unwrap()]), types: None }
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
        feed.publish(Notice::Changed { partition: 0, offset: 4, ids: Some(vec![]), types: None });
        assert_eq!(missed(&feed, &feed.id_of(1)), Some(vec![2, 3]), "notices without ids are dropped");
        assert_eq!(missed(&feed, &feed.id_of(3)), Some(vec![]));
        for unknown in [feed.id_of(4), "00-1".into(), "0:7".into(), format!("{}-", feed.name), String::new()] {
            assert_eq!(missed(&feed, &unknown), None, "{unknown}");
        }
        (4..=MAX_BUFFERED as i64 + 2).for_each(|n| feed.publish(notice(n)));
        assert_eq!(missed(&feed, &feed.id_of(1)), None, "no longer buffered");
        assert_eq!(missed(&feed, &feed.id_of(2)).map(|missed| missed.len()), Some(MAX_BUFFERED));
    }
}
