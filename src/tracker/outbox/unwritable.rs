//! Topics to which the outbox cannot write now. Their entries wait, so that they hold up no others.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::entry::OutboxEntry;
use crate::broker::BrokerError;
use crate::model::task::id::TaskId;
use crate::runtime::Backoff;

const FIRST_WAIT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(60);

struct UnwritableTopic {
    /// End of the wait; `None` while the topic is tried again.
    until: Option<Instant>,
    backoff: Backoff,
}

#[derive(Default)]
pub(super) struct UnwritableTopics {
    topics: HashMap<String, UnwritableTopic>,
    /// Tasks with a due timer that wait for a topic.
    held: HashSet<TaskId>,
}

impl UnwritableTopics {
    /// Records that a transaction of this entry alone has failed. The topic of its task record waits longer with each
    /// failure in a row; an entry without one is only repeated.
    pub(super) fn add(&mut self, entry: &OutboxEntry, error: &BrokerError) {
        let Some(topic) = entry.task_topic() else { return };
        let first = || UnwritableTopic { until: None, backoff: Backoff::new(FIRST_WAIT, MAX_WAIT) };
        let found = self.topics.entry(topic.to_owned()).or_insert_with(first);
        let wait = found.backoff.next_wait();
        found.until = Some(Instant::now() + wait);
        tracing::warn!(topic, %error, wait_ms = wait.as_millis(), "cannot publish task records to a topic; they wait");
    }

    pub(super) fn contains(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|found| found.until.is_some())
    }

    /// Holds the due timer of a task back until the waits end.
    pub(super) fn hold(&mut self, id: &TaskId) {
        self.held.insert(id.clone());
    }

    pub(super) fn holds(&self, id: &TaskId) -> bool {
        self.held.contains(id)
    }

    /// Number of timers that are held back.
    pub(super) fn held(&self) -> usize {
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
            self.held.clear();
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
