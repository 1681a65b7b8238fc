//! Writes events to the events topic. An input is complete when its terminal event is acknowledged, never before.
//!
//! [`EventWriter`] passes encoded events to the producer with the delivery tag of their input, or
//! [`DeliveryTag::UNTRACKED`] if the event ends nothing. It waits only while the producer is full or the broker rejects
//! the event. [`Deliveries`] receives the outcomes: an acknowledgement completes the input, a failed record is sent
//! again.
//!
//! Invariant: a terminal event is sent until it is acknowledged, or replaced by a small failure event if its record can
//! never be accepted (too large, invalid). It is never dropped: its task would stay open, its offset would hold back
//! the partition, and no error would be shown.
//!
//! Read next: `completions.rs`, then `result_batch.rs` (successes, the common case).

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{BatchRecord, BrokerError, DeliverySink, ProducerRecord, Record, RecordRef};
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::{AttemptFailure, ErrorInfo, Event, Payload};
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{Backoff, Health};
use tokio::sync::mpsc;

use super::completions::{Completions, DeliveryTag};

/// Pause before a retry while the producer is full or the broker is unavailable.
const TRANSIENT_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// First and longest pause before a retry after the broker has rejected a record.
const MIN_REJECTED_BACKOFF: Duration = Duration::from_millis(100);
const MAX_REJECTED_BACKOFF: Duration = Duration::from_secs(5);
/// Time without a failed delivery after which resending counts as recovered.
const RECOVERED_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of undelivered records resent in one batch.
const MAX_RESEND_BATCH: usize = 4_096;
const HEALTH_PART: &str = "results";
/// Error code of a task whose result the broker rejects or whose event cannot be encoded.
pub(super) const RESULT_REFUSED: &str = "result_refused";

/// A record that was not delivered, with the reason.
pub(super) struct FailedDelivery {
    tag: DeliveryTag,
    error: BrokerError,
    record: Record,
}

/// Routes acknowledgements of the producer to the consumers whose inputs they complete.
pub(super) struct Deliveries {
    completions: Vec<Arc<Completions>>,
    /// Bounded by the producer's queue.
    undelivered: mpsc::UnboundedSender<FailedDelivery>,
}

impl Deliveries {
    /// `completions`: by type index.
    pub(super) fn new(completions: Vec<Arc<Completions>>) -> (Arc<Self>, mpsc::UnboundedReceiver<FailedDelivery>) {
        let (undelivered, receiver) = mpsc::unbounded_channel();
        (Arc::new(Self { completions, undelivered }), receiver)
    }
}

impl DeliverySink for Deliveries {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let tag = DeliveryTag::from_token(token);
        match outcome {
            Ok(_) => {
                if let Some(completions) = self.completions.get(tag.type_index()) {
                    completions.complete(tag);
                }
            }
            Err((error, record)) => {
                // Fails only when the worker has ended: the input then stays incomplete, as it should.
                let _ = self.undelivered.send(FailedDelivery { tag, error, record: record.to_owned() });
            }
        }
    }
}

/// Writer of events, shared by the dispatchers of all types.
#[derive(Clone)]
pub(super) struct EventWriter {
    producer: Arc<SharedProducer>,
    publisher: Publisher,
    topic: Arc<str>,
    /// Name of this worker in events.
    pub worker: Arc<str>,
    health: Health,
}

impl EventWriter {
    pub(super) fn new(producer: Arc<SharedProducer>, publisher: Publisher, worker: Arc<str>, health: Health) -> Self {
        let topic = publisher.topology.names.events().into();
        Self { producer, publisher, topic, worker, health }
    }

    pub(super) fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    pub(super) fn producer(&self) -> &Arc<SharedProducer> {
        &self.producer
    }

    /// Passes an event to the producer; waits only while the producer is full or the broker rejects the event. The
    /// acknowledgement completes `tag`.
    pub(super) async fn write(&self, event: &Event, tag: DeliveryTag, scratch: &mut Vec<u8>) {
        let mut retry = RetryWait::new(&self.health);
        while let Err(error) = self.try_write(event, tag, scratch) {
            if is_permanent(&error) {
                return self.write_fallback(event, tag, &error, scratch).await;
            }
            retry.wait(&error).await;
        }
    }

    /// Passes several encoded events of one partition to the producer without waiting. Returns the indexes of those
    /// that it did not accept.
    pub(super) fn send_batch<'a>(
        &'a self,
        partition: i32,
        records: impl Iterator<Item = BatchRecord<'a>>,
    ) -> Vec<usize> {
        let records: Vec<BatchRecord<'_>> = records.collect();
        self.producer.send_batch(&self.topic, partition, &records).into_iter().map(|(n, _)| n).collect()
    }

    /// Passes an encoded event to the producer, as [`EventWriter::write`] does.
    pub(super) async fn send_until_accepted(&self, id: &TaskId, value: &[u8], tag: DeliveryTag) {
        let mut retry = RetryWait::new(&self.health);
        while let Err(error) = self.send(id, value, tag) {
            if is_permanent(&error) {
                return match Event::decode(value) {
                    Ok(event) => self.write_fallback(&event, tag, &error, &mut Vec::new()).await,
                    Err(reason) => tracing::error!(task = %id, %error, %reason, "an event cannot be sent"),
                };
            }
            retry.wait(&error).await;
        }
    }

    fn try_write(&self, event: &Event, tag: DeliveryTag, scratch: &mut Vec<u8>) -> Result<(), BrokerError> {
        scratch.clear();
        event.encode(scratch)?;
        self.send(&event.id, scratch, tag)
    }

    /// Passes an encoded event to the producer without waiting.
    pub(super) fn send(&self, id: &TaskId, value: &[u8], tag: DeliveryTag) -> Result<(), BrokerError> {
        let record = ProducerRecord {
            topic: &self.topic,
            partition: i32::try_from(self.publisher.topology.partition_of(id)).ok(),
            key: Some(id.root().as_bytes()),
            value: Some(value),
            headers: &[],
        };
        self.producer.send(&record, tag.token())
    }

    /// Handles an event that can never be sent as it is: a terminal event is replaced by a small failure event, any
    /// other event is dropped and logged.
    async fn write_fallback(&self, event: &Event, tag: DeliveryTag, error: &BrokerError, scratch: &mut Vec<u8>) {
        if tag == DeliveryTag::UNTRACKED {
            tracing::warn!(task = %event.id, kind = ?event.kind(), %error, "an event was dropped");
            return;
        }
        let small = fallback_event(event, error);
        let mut retry = RetryWait::new(&self.health);
        while let Err(error) = self.try_write(&small, tag, scratch) {
            retry.wait(&error).await;
        }
    }

    /// Resends undelivered records until the worker ends.
    pub(super) async fn resend_all(self, mut undelivered: mpsc::UnboundedReceiver<FailedDelivery>) {
        let mut scratch = Vec::new();
        let mut failed = Vec::new();
        let mut retry = RetryWait::new(&self.health);
        loop {
            match tokio::time::timeout(RECOVERED_AFTER, undelivered.recv_many(&mut failed, MAX_RESEND_BATCH)).await {
                // The resent records have arrived.
                Err(_) => retry.reset(),
                Ok(0) => return,
                // One wait for the whole batch: its records failed for the same reason.
                Ok(_) => retry.wait_for_batch(&failed).await,
            }
            for undelivered in failed.drain(..) {
                self.resend(undelivered, &mut scratch).await;
            }
        }
    }

    async fn resend(&self, FailedDelivery { tag, mut error, record }: FailedDelivery, scratch: &mut Vec<u8>) {
        if !is_permanent(&error) {
            let Err(permanent) = self.send_record_until_accepted(&record, tag).await else { return };
            error = permanent;
        }
        match record.value.as_deref().map(Event::decode) {
            Some(Ok(event)) => self.write_fallback(&event, tag, &error, scratch).await,
            _ => tracing::error!(topic = %record.topic, %error, "a record cannot be delivered"),
        }
    }

    /// Passes a record to the producer again. An error is permanent.
    async fn send_record_until_accepted(&self, record: &Record, tag: DeliveryTag) -> Result<(), BrokerError> {
        let headers: Vec<(&str, &[u8])> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let again = ProducerRecord {
            topic: &record.topic,
            partition: (record.partition >= 0).then_some(record.partition),
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        let mut retry = RetryWait::new(&self.health);
        while let Err(error) = self.producer.send(&again, tag.token()) {
            if is_permanent(&error) {
                return Err(error);
            }
            retry.wait(&error).await;
        }
        Ok(())
    }
}

/// Returns whether a record can never be accepted as it is, whatever an operator changes.
pub(super) fn is_permanent(error: &BrokerError) -> bool {
    matches!(error, BrokerError::TooLarge(_) | BrokerError::Invalid(_))
}

/// Pauses between retries: short ones while the broker is busy or unavailable, growing ones while it rejects records.
/// Only an operator can resolve a rejection, so it is also set in the health report. The input stays incomplete
/// meanwhile.
struct RetryWait<'a> {
    health: &'a Health,
    backoff: Backoff,
    reported: bool,
}

impl<'a> RetryWait<'a> {
    fn new(health: &'a Health) -> Self {
        Self { health, backoff: Backoff::new(MIN_REJECTED_BACKOFF, MAX_REJECTED_BACKOFF), reported: false }
    }

    async fn wait(&mut self, error: &BrokerError) {
        if error.is_retryable() {
            return tokio::time::sleep(TRANSIENT_RETRY_INTERVAL).await;
        }
        let wait = self.backoff.next_wait();
        tracing::error!(%error, wait_ms = wait.as_millis() as u64, "broker rejects result events; retrying");
        self.health.set(HEALTH_PART, format!("the broker rejects result events: {error}"));
        self.reported = true;
        tokio::time::sleep(wait).await;
    }

    /// Waits as required by the worst error of a batch. Permanent errors do not count: their records are not resent
    /// unchanged.
    async fn wait_for_batch(&mut self, failed: &[FailedDelivery]) {
        let again = failed.iter().filter(|undelivered| !is_permanent(&undelivered.error));
        if let Some(worst) = again.max_by_key(|undelivered| !undelivered.error.is_retryable()) {
            tracing::warn!(topic = %worst.record.topic, error = %worst.error, records = failed.len(), "records were not delivered; resending");
            self.wait(&worst.error).await;
        }
    }

    fn reset(&mut self) {
        if std::mem::take(&mut self.reported) {
            self.health.clear(HEALTH_PART);
            self.backoff.reset();
        }
    }
}

impl Drop for RetryWait<'_> {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Small failure event that replaces a terminal event which is too large or permanently rejected.
pub(super) fn fallback_event(event: &Event, error: &BrokerError) -> Event {
    let (kind, hint) = match error {
        BrokerError::TooLarge(_) => ("result_too_large", "; return a link instead"),
        _ => (RESULT_REFUSED, ""),
    };
    let message = format!("the result could not be published: {error}{hint}");
    let error = Some(Box::new(ErrorInfo::new(kind, message, event.attempt)));
    let failure = AttemptFailure { started_at_ms: event.payload.started_at_ms(), error };
    Event {
        attempt: event.attempt,
        worker: event.worker.clone(),
        task: event.task.clone(),
        ..Event::new(Payload::Failed(failure), event.id.clone(), event.run, event.at_ms)
    }
}
