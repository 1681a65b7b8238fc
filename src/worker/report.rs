//! What the worker says: events to the events topic, results, dead letters. An input is done when its last word is
//! acknowledged, never before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::ticket::{Inbox, Ticket};
use crate::broker::link::Link;
use crate::broker::{BrokerError, DeliverySink, Outgoing, Plain, Record, RecordRef};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::id::TaskId;
use crate::publish::Publisher;

/// How long to stay away from a producer that has no room or no broker.
const PAUSE: Duration = Duration::from_millis(2);

/// A record that was not delivered, and why.
pub struct Undelivered {
    ticket: Ticket,
    error: BrokerError,
    record: Record,
}

/// Receives acknowledgements and passes them to the lane that waits for them.
pub struct Deliveries {
    lanes: Vec<Arc<Inbox>>,
    /// Bounded by what the producer holds.
    undelivered: mpsc::UnboundedSender<Undelivered>,
}

impl Deliveries {
    pub fn new(lanes: Vec<Arc<Inbox>>) -> (Arc<Self>, mpsc::UnboundedReceiver<Undelivered>) {
        let (undelivered, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self { lanes, undelivered }), receiver)
    }
}

impl DeliverySink for Deliveries {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let ticket = Ticket::from_token(token);
        match outcome {
            Ok(_) => {
                if let Some(inbox) = self.lanes.get(ticket.lane()) {
                    inbox.done(ticket);
                }
            }
            Err((error, record)) => {
                // The receiver is gone only when the worker is: then the input is not done, as it should be.
                let _ = self.undelivered.send(Undelivered { ticket, error, record: record.to_owned() });
            }
        }
    }
}

/// Writes events. Shared by the dispatchers of all types.
#[derive(Clone)]
pub struct Reporter {
    link: Arc<Link>,
    publisher: Publisher,
    events_topic: Arc<str>,
    pub worker: Arc<str>,
}

impl Reporter {
    pub fn new(link: Arc<Link>, publisher: Publisher, worker: Arc<str>) -> Self {
        let events_topic = publisher.names().events().into();
        Self { link, publisher, events_topic, worker }
    }

    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Hands an event to the producer; waits only while that has no room. The ticket is done when Kafka has it.
    pub async fn report(&self, event: &Event, ticket: Ticket, scratch: &mut Vec<u8>) {
        loop {
            let Err(error) = self.try_report(event, ticket, scratch) else { return };
            if !error.is_transient() && !matches!(error, BrokerError::Fatal(_)) {
                self.unsendable(event, ticket, &error, scratch).await;
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Hands several encoded events for one partition to the producer; never waits. Returns which it did not take.
    pub fn send_batch<'a>(&self, partition: i32, records: impl Iterator<Item = Plain<'a>>) -> Vec<usize> {
        let records: Vec<Plain<'_>> = records.collect();
        self.link.send_batch(&self.events_topic, partition, &records).into_iter().map(|(n, _)| n).collect()
    }

    /// Hands an encoded event to the producer, as [`Reporter::report`] does.
    pub async fn insist(&self, id: &TaskId, value: &[u8], ticket: Ticket) {
        while let Err(error) = self.send(id, value, ticket) {
            if !error.is_transient() && !matches!(error, BrokerError::Fatal(_)) {
                return match Event::decode(value) {
                    Ok(event) => self.unsendable(&event, ticket, &error, &mut Vec::new()).await,
                    Err(why) => tracing::error!(task = %id, %error, %why, "an event cannot be sent"),
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn try_report(&self, event: &Event, ticket: Ticket, scratch: &mut Vec<u8>) -> Result<(), BrokerError> {
        scratch.clear();
        event.encode(scratch);
        self.send(&event.id, scratch, ticket)
    }

    /// Hands an encoded event to the producer; never waits.
    pub fn send(&self, id: &TaskId, value: &[u8], ticket: Ticket) -> Result<(), BrokerError> {
        let record = Outgoing {
            topic: &self.events_topic,
            partition: i32::try_from(self.publisher.partition_of(id)).ok(),
            key: Some(id.root().as_bytes()),
            value: Some(value),
            headers: &[],
        };
        self.link.send(&record, ticket.token())
    }

    /// An event that can never be sent as it is: the task fails for its size; anything lesser is dropped and told.
    async fn unsendable(&self, event: &Event, ticket: Ticket, error: &BrokerError, scratch: &mut Vec<u8>) {
        if ticket == Ticket::UNTRACKED {
            tracing::warn!(task = %event.id, kind = ?event.kind, %error, "an event was dropped");
            return;
        }
        let small = too_large(event, error);
        while let Err(error) = self.try_report(&small, ticket, scratch) {
            if !error.is_transient() {
                tracing::error!(task = %event.id, %error, "a result cannot be written: the task will run again");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends again what was not delivered, until the worker is gone.
    pub async fn resend(self, mut undelivered: mpsc::UnboundedReceiver<Undelivered>) {
        let mut scratch = Vec::new();
        while let Some(Undelivered { ticket, error, record }) = undelivered.recv().await {
            match error {
                // Shutdown gave it up: not done, a successor does it.
                BrokerError::Purged => {}
                BrokerError::TooLarge(_) | BrokerError::Invalid(_) => match record.value.as_deref().map(Event::decode) {
                    Some(Ok(event)) => self.unsendable(&event, ticket, &error, &mut scratch).await,
                    _ => tracing::error!(topic = %record.topic, %error, "a record cannot be delivered"),
                },
                error => {
                    tracing::warn!(topic = %record.topic, %error, "not delivered, sending again");
                    tokio::time::sleep(PAUSE).await;
                    self.send_again(&record, ticket).await;
                }
            }
        }
    }

    async fn send_again(&self, record: &Record, ticket: Ticket) {
        let headers: Vec<(&str, &[u8])> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let again = Outgoing {
            topic: &record.topic,
            partition: (record.partition >= 0).then_some(record.partition),
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        while let Err(error) = self.link.send(&again, ticket.token()) {
            if !error.is_transient() {
                tracing::error!(topic = %record.topic, %error, "a record cannot be sent again");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The small event that stands for one that was too large.
fn too_large(event: &Event, error: &BrokerError) -> Event {
    let mut small = Event::new(Kind::Failed, event.id.clone(), event.run, event.at_ms);
    small.attempt = event.attempt;
    small.worker = event.worker.clone();
    small.task = event.task.clone();
    small.started_at_ms = event.started_at_ms;
    let message = format!("the result could not be published: {error}; return a link instead");
    small.error = Some(Box::new(ErrorInfo::new("result_too_large", message, event.attempt)));
    small
}
