//! Bulk actions of this process: the queue of new ones, the running ones, and the rate of their requests.

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet_model::task::id::TaskId;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Time per request of a process, 2,000 a second; the requests of one transaction go together.
const REQUEST_INTERVAL: Duration = Duration::from_micros(500);

/// Bulk actions that this process runs or watches.
pub(crate) struct BulkRuns {
    /// Ids of actions that were created by this process.
    new_actions: mpsc::UnboundedSender<TaskId>,
    pub(super) new_actions_receiver: Mutex<Option<mpsc::UnboundedReceiver<TaskId>>>,
    pub(super) running: Mutex<BTreeSet<TaskId>>,
    /// Earliest time of the next request, shared by all actions.
    next: Mutex<Option<Instant>>,
}

impl Default for BulkRuns {
    fn default() -> Self {
        let (new_actions, receiver) = mpsc::unbounded_channel();
        Self {
            new_actions,
            new_actions_receiver: Mutex::new(Some(receiver)),
            running: Mutex::default(),
            next: Mutex::default(),
        }
    }
}

impl BulkRuns {
    /// Notifies the runner of an action that was just created. With too many running, it starts when the runner next looks for actions.
    pub(super) fn wake(&self, id: &TaskId) {
        // Without a receiver, another API server runs it.
        let _ = self.new_actions.send(id.clone());
    }

    /// Delays requests to the permitted rate.
    pub(super) async fn pace(&self, requests: usize) {
        let turn = {
            let (mut next, now) = (self.next.lock(), Instant::now());
            let turn = next.map_or(now, |next| next.max(now));
            *next = Some(turn + REQUEST_INTERVAL * u32::try_from(requests).unwrap_or(u32::MAX));
            turn
        };
        tokio::time::sleep_until(turn).await;
    }
}
