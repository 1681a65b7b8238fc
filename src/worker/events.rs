//! What the worker says: events to the events topic, results, dead letters. An input is done when its last word is
//! acknowledged, never before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::completions::{Completions, DeliveryTag};
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{BatchRecord, BrokerError, DeliverySink, ProducerRecord, Record, RecordRef};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::task::id::TaskId;
use crate::publish::Publisher;
use crate::runtime::{Backoff, Health};

/// How long to stay away from a producer that has no room or no broker.
const PAUSE: Duration = Duration::from_millis(2);
/// How long to stay away from one that refuses, at first and at most.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Nothing has failed for so long: all is well again.
const QUIET: Duration = Duration::from_secs(1);
const RESENT_AT_ONCE: usize = 4_096;
const HEALTH_PART: &str = "results";

/// A record that was not delivered, and why.
pub struct Undelivered {
    tag: DeliveryTag,
    error: BrokerError,
    record: Record,
}

/// Receives acknowledgements and passes them to the lane that waits for them.
pub struct Deliveries {
    lanes: Vec<Arc<Completions>>,
    /// Bounded by what the producer holds.
    undelivered: mpsc::UnboundedSender<Undelivered>,
}

impl Deliveries {
    pub fn new(lanes: Vec<Arc<Completions>>) -> (Arc<Self>, mpsc::UnboundedReceiver<Undelivered>) {
        let (undelivered, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self { lanes, undelivered }), receiver)
    }
}

impl DeliverySink for Deliveries {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let tag = DeliveryTag::from_token(token);
        match outcome {
            Ok(_) => {
                if let Some(inbox) = self.lanes.get(tag.lane()) {
                    inbox.done(tag);
                }
            }
            Err((error, record)) => {
                // The receiver is gone only when the worker is: then the input is not done, as it should be.
                let _ = self.undelivered.send(Undelivered { tag, error, record: record.to_owned() });
            }
        }
    }
}

/// Writes events. Shared by the dispatchers of all types.
#[derive(Clone)]
pub struct EventWriter {
    link: Arc<SharedProducer>,
    publisher: Publisher,
    events_topic: Arc<str>,
    pub worker: Arc<str>,
    health: Health,
}

impl EventWriter {
    pub fn new(link: Arc<SharedProducer>, publisher: Publisher, worker: Arc<str>, health: Health) -> Self {
        let events_topic = publisher.names().events().into();
        Self { link, publisher, events_topic, worker, health }
    }

    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    pub fn link(&self) -> &Arc<SharedProducer> {
        &self.link
    }

    /// Hands an event to the producer; waits only while that has no room, or is refused. The ticket is done when Kafka has it.
    pub async fn report(&self, event: &Event, tag: DeliveryTag, scratch: &mut Vec<u8>) {
        let mut refusals = RetryWait::new(&self.health);
        while let Err(error) = self.try_report(event, tag, scratch) {
            if is_hopeless(&error) {
                return self.unsendable(event, tag, &error, scratch).await;
            }
            refusals.wait_out(&error).await;
        }
    }

    /// Hands several encoded events for one partition to the producer; never waits. Returns which it did not take.
    pub fn send_batch<'a>(&self, partition: i32, records: impl Iterator<Item = BatchRecord<'a>>) -> Vec<usize> {
        let records: Vec<BatchRecord<'_>> = records.collect();
        self.link.send_batch(&self.events_topic, partition, &records).into_iter().map(|(n, _)| n).collect()
    }

    /// Hands an encoded event to the producer, as [`EventWriter::report`] does.
    pub async fn send_until_accepted(&self, id: &TaskId, value: &[u8], tag: DeliveryTag) {
        let mut refusals = RetryWait::new(&self.health);
        while let Err(error) = self.send(id, value, tag) {
            if is_hopeless(&error) {
                return match Event::decode(value) {
                    Ok(event) => self.unsendable(&event, tag, &error, &mut Vec::new()).await,
                    Err(why) => tracing::error!(task = %id, %error, %why, "an event cannot be sent"),
                };
            }
            refusals.wait_out(&error).await;
        }
    }

    fn try_report(&self, event: &Event, tag: DeliveryTag, scratch: &mut Vec<u8>) -> Result<(), BrokerError> {
        scratch.clear();
        event.encode(scratch);
        self.send(&event.id, scratch, tag)
    }

    /// Hands an encoded event to the producer; never waits.
    pub fn send(&self, id: &TaskId, value: &[u8], tag: DeliveryTag) -> Result<(), BrokerError> {
        let record = ProducerRecord {
            topic: &self.events_topic,
            partition: i32::try_from(self.publisher.partition_of(id)).ok(),
            key: Some(id.root().as_bytes()),
            value: Some(value),
            headers: &[],
        };
        self.link.send(&record, tag.token())
    }

    /// An event that can never be sent as it is: the task fails for it; anything lesser is dropped and told.
    async fn unsendable(&self, event: &Event, tag: DeliveryTag, error: &BrokerError, scratch: &mut Vec<u8>) {
        if tag == DeliveryTag::UNTRACKED {
            tracing::warn!(task = %event.id, kind = ?event.kind, %error, "an event was dropped");
            return;
        }
        let small = fallback_event(event, error);
        let mut refusals = RetryWait::new(&self.health);
        while let Err(error) = self.try_report(&small, tag, scratch) {
            refusals.wait_out(&error).await;
        }
    }

    /// Sends again what was not delivered, until the worker is gone.
    pub async fn resend(self, mut undelivered: mpsc::UnboundedReceiver<Undelivered>) {
        let (mut scratch, mut failed, mut refusals) = (Vec::new(), Vec::new(), RetryWait::new(&self.health));
        loop {
            match tokio::time::timeout(QUIET, undelivered.recv_many(&mut failed, RESENT_AT_ONCE)).await {
                // What was sent again has arrived.
                Err(_) => refusals.forget(),
                Ok(0) => return,
                // Once for all of them: they fail for the same reason.
                Ok(_) => refusals.wait_out_worst(&failed).await,
            }
            for undelivered in failed.drain(..) {
                self.send_again(undelivered, &mut scratch).await;
            }
        }
    }

    async fn send_again(&self, Undelivered { tag, mut error, record }: Undelivered, scratch: &mut Vec<u8>) {
        if !is_hopeless(&error) {
            let Err(hopeless) = self.deliver_again(&record, tag).await else { return };
            error = hopeless;
        }
        match record.value.as_deref().map(Event::decode) {
            Some(Ok(event)) => self.unsendable(&event, tag, &error, scratch).await,
            _ => tracing::error!(topic = %record.topic, %error, "a record cannot be delivered"),
        }
    }

    /// Returns why it will never be taken, if that is so.
    async fn deliver_again(&self, record: &Record, tag: DeliveryTag) -> Result<(), BrokerError> {
        let headers: Vec<(&str, &[u8])> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let again = ProducerRecord {
            topic: &record.topic,
            partition: (record.partition >= 0).then_some(record.partition),
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        let mut refusals = RetryWait::new(&self.health);
        while let Err(error) = self.link.send(&again, tag.token()) {
            if is_hopeless(&error) {
                return Err(error);
            }
            refusals.wait_out(&error).await;
        }
        Ok(())
    }
}

/// However often it is sent, and whoever changes what: it will not be taken as it is.
fn is_hopeless(error: &BrokerError) -> bool {
    matches!(error, BrokerError::TooLarge(_) | BrokerError::Invalid(_))
}

/// Waits before another try: a moment where the broker is busy or away, longer and longer where it refuses. That takes a
/// person to change, so it is told in the health report. The input is not done meanwhile.
struct RetryWait<'a> {
    health: &'a Health,
    backoff: Backoff,
    told: bool,
}

impl<'a> RetryWait<'a> {
    fn new(health: &'a Health) -> Self {
        Self { health, backoff: Backoff::new(REFUSED_PAUSE, LONGEST_PAUSE), told: false }
    }

    async fn wait_out(&mut self, error: &BrokerError) {
        if error.is_passing() {
            return tokio::time::sleep(PAUSE).await;
        }
        let wait = self.backoff.next_wait();
        tracing::error!(%error, wait_ms = wait.as_millis() as u64, "results are refused: what is done cannot be told");
        self.health.set(HEALTH_PART, format!("the broker refuses results: {error}"));
        self.told = true;
        tokio::time::sleep(wait).await;
    }

    async fn wait_out_worst(&mut self, failed: &[Undelivered]) {
        // What is hopeless is not sent again as it is.
        let again = failed.iter().filter(|undelivered| !is_hopeless(&undelivered.error));
        if let Some(worst) = again.max_by_key(|undelivered| !undelivered.error.is_passing()) {
            tracing::warn!(topic = %worst.record.topic, error = %worst.error, records = failed.len(), "not delivered, sending again");
            self.wait_out(&worst.error).await;
        }
    }

    fn forget(&mut self) {
        if std::mem::take(&mut self.told) {
            self.health.clear(HEALTH_PART);
            self.backoff.reset();
        }
    }
}

impl Drop for RetryWait<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The small event that stands for one that was too large, or is refused for something else in it.
fn fallback_event(event: &Event, error: &BrokerError) -> Event {
    let mut small = Event::new(Kind::Failed, event.id.clone(), event.run, event.at_ms);
    small.attempt = event.attempt;
    small.worker = event.worker.clone();
    small.task = event.task.clone();
    small.started_at_ms = event.started_at_ms;
    let (kind, hint) = match error {
        BrokerError::TooLarge(_) => ("result_too_large", "; return a link instead"),
        _ => ("result_refused", ""),
    };
    let message = format!("the result could not be published: {error}{hint}");
    small.error = Some(Box::new(ErrorInfo::new(kind, message, event.attempt)));
    small
}
