//! Topics to which the outbox cannot write now. Their entries wait, so that they hold up no others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::BrokerError;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::Backoff;
use kafleet_store::Entry;
use tokio::time::Instant;

use super::entry::OutboxEntry;

const FIRST_WAIT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(60);

struct UnwritableTopic {
    /// End of the wait; `None` while the topic is tried again.
    until: Option<Instant>,
    backoff: Backoff,
    error: BrokerError,
}

#[derive(Default)]
pub(super) struct UnwritableTopics {
    topics: HashMap<String, UnwritableTopic>,
    /// Due timers that wait for a topic: task and due time.
    held: HashMap<(TaskId, i64), Arc<str>>,
}

impl UnwritableTopics {
    /// Records that a transaction of this entry alone has failed. The topic of its task record waits longer with each
    /// failure in a row; an entry without one is only repeated.
    pub(super) fn add(&mut self, entry: &OutboxEntry, error: &BrokerError) {
        let Some(topic) = entry.task_topic() else { return };
        let first =
            || UnwritableTopic { until: None, backoff: Backoff::new(FIRST_WAIT, MAX_WAIT), error: error.clone() };
        let state = self.topics.entry(topic.to_owned()).or_insert_with(first);
        let wait = state.backoff.next_wait();
        (state.until, state.error) = (Some(Instant::now() + wait), error.clone());
        tracing::warn!(topic, %error, wait_ms = wait.as_millis(), "cannot publish task records to a topic; they wait");
    }

    pub(super) fn contains(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|state| state.until.is_some())
    }

    /// Reason why tasks wait, if any do.
    pub(super) fn reason(&self) -> Option<String> {
        let mut waiting = self.topics.iter().filter(|(_, state)| state.until.is_some());
        let (topic, UnwritableTopic { error, .. }) = waiting.next()?;
        let more = waiting.count();
        let others = if more == 0 { String::new() } else { format!(", and to {more} more topics") };
        Some(format!("tasks cannot be published to `{topic}`{others}: {error}"))
    }

    /// Holds a due timer back until the wait of its topic ends.
    pub(super) fn hold_timer(&mut self, id: &TaskId, due_ms: i64, topic: Arc<str>) {
        self.held.insert((id.clone(), due_ms), topic);
    }

    pub(super) fn holds_timer(&self, timer: &Entry) -> bool {
        !self.held.is_empty() && self.held.contains_key(&(timer.id.clone(), timer.seen_ms))
    }

    /// Number of timers that are held back.
    pub(super) fn held_timers(&self) -> usize {
        self.held.len()
    }

    /// Ends the waits that are over. Returns true if there were any: these topics are to be tried again.
    pub(super) fn end_waits(&mut self) -> bool {
        let now = Instant::now();
        let mut any = false;
        for topic in self.topics.values_mut().filter(|topic| topic.until.is_some_and(|until| until <= now)) {
            (topic.until, any) = (None, true);
        }
        if any {
            let topics = &self.topics;
            self.held.retain(|_, topic| topics.get(&**topic).is_some_and(|state| state.until.is_some()));
        }
        any
    }

    /// Records that an entry was published.
    pub(super) fn remove_topic_of(&mut self, entry: &OutboxEntry) {
        if let Some(topic) = entry.task_topic().filter(|_| !self.topics.is_empty()) {
            self.topics.remove(topic);
        }
    }
}
