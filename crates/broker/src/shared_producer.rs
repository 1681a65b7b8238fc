//! A producer whose sends can be awaited. A client that has failed is replaced.
//!
//! Kafka's producer reports the outcome of a record later, on its own thread, with a token of 64 bits that was given
//! with the record. One client serves two kinds of senders, distinguished by the highest bit: tokens of the owner (a
//! worker's delivery tags) go to its sink without any look-up, tokens of a [`SendBatch`] wake the future that waits for
//! them.
//!
//! Invariant: each accepted record has exactly one outcome. `InDoubt` means that it may be in the log; a caller that
//! sends it again accepts a duplicate, as [`SharedProducer::deliver`] does until its deadline.
//!
//! Read next: `lib.rs` (the traits `Producer` and `DeliverySink`), `kafka/producer.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kafleet_model::task::Position;
use kafleet_runtime::{blocking, observe_broker_time};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::{BatchRecord, Broker, BrokerError, DeliverySink, Producer, ProducerRecord, RecordRef};

/// Bit that is set in the tokens of a [`SendBatch`]. Tokens without it belong to the owner of the producer.
pub const WAITER_BIT: u64 = 1 << 63;

/// Delay before a retry on a full queue.
pub const FULL_QUEUE_DELAY: Duration = Duration::from_millis(2);
/// Minimum interval between two replacements of the client.
const REPLACE_INTERVAL: Duration = Duration::from_secs(1);

/// The shared producer of a process. A client that has failed for good is replaced.
pub struct SharedProducer {
    broker: Arc<dyn Broker>,
    sink: Arc<Sink>,
    producer: RwLock<CurrentProducer>,
    /// Topics known to exist.
    known_topics: Mutex<FxHashSet<String>>,
}

struct CurrentProducer {
    client: Arc<dyn Producer>,
    /// Time of the last replacement attempt.
    replaced: Option<Instant>,
}

struct Sink {
    batches: Mutex<FxHashMap<u32, Arc<Acks>>>,
    next_batch: AtomicU32,
    /// Receives the outcomes of the owner's tokens; `None` if every send is awaited.
    owner: Option<Arc<dyn DeliverySink>>,
}

/// The partition and offset of a record, or the error.
pub type SendOutcome = Result<Position, BrokerError>;

/// Outcomes of a batch that have arrived and that the sender has not taken yet.
#[derive(Default)]
struct Acks {
    outcomes: Mutex<Vec<(u32, SendOutcome)>>,
    /// Signals the first outcome in an empty list.
    received: Notify,
}

impl DeliverySink for Sink {
    /// Records of the owner are too many to read the clock for each.
    fn appended(&self, token: u64, append_ms: i64) {
        if token & WAITER_BIT != 0 {
            observe_broker_time(append_ms);
        }
    }

    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token & WAITER_BIT == 0 {
            if let Some(owner) = &self.owner {
                owner.delivered(token, outcome);
            }
            return;
        }
        // The batch was dropped, and its outcomes are not needed.
        let Some(acks) = self.batches.lock().get(&batch_of(token)).cloned() else { return };
        let outcome = outcome.map(|(partition, offset)| Position { partition, offset }).map_err(|(error, _)| error);
        let mut outcomes = acks.outcomes.lock();
        outcomes.push((token as u32, outcome));
        if outcomes.len() == 1 {
            acks.received.notify_one();
        }
    }
}

fn batch_of(token: u64) -> u32 {
    ((token & !WAITER_BIT) >> 32) as u32
}

impl SharedProducer {
    /// Opens the producer. Outcomes of tokens without [`WAITER_BIT`] are passed to `owner`.
    pub fn open(broker: Arc<dyn Broker>, owner: Option<Arc<dyn DeliverySink>>) -> Result<Arc<Self>, BrokerError> {
        let sink = Arc::new(Sink { batches: Mutex::default(), next_batch: AtomicU32::new(0), owner });
        let client = broker.producer(sink.clone())?;
        Ok(Arc::new(Self {
            broker,
            sink,
            producer: RwLock::new(CurrentProducer { client, replaced: None }),
            known_topics: Mutex::default(),
        }))
    }

    /// Returns whether a topic exists. Queries the broker, within the deadline; a topic that was found is remembered.
    pub async fn has_topic(&self, topic: &str, deadline: Duration) -> Result<bool, BrokerError> {
        if self.known_topics.lock().contains(topic) {
            return Ok(true);
        }
        let listed = self.broker.client().with_deadline(deadline).topics(topic).await?;
        let exists = listed.iter().any(|info| info.name == topic);
        if exists {
            self.known_topics.lock().insert(topic.to_owned());
        }
        Ok(exists)
    }

    /// Sends a record with a token of the owner. Never waits.
    pub fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let producer = self.producer.read();
        let outcome = producer.client.send(record, token);
        let Err(BrokerError::Fatal(error)) = outcome else { return outcome };
        let failed = producer.client.clone();
        drop(producer);
        self.replace(&failed, &error)?;
        self.producer.read().client.send(record, token)
    }

    /// Sends several records with tokens of the owner. Never waits for an acknowledgement. Returns the index and the
    /// error of each record that was not accepted; a failed client is replaced, and the caller sends them again.
    pub fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        let producer = self.producer.read().client.clone();
        let refused = producer.send_batch(topic, partition, records);
        let fatal = refused.iter().find_map(|(_, error)| match error {
            BrokerError::Fatal(reason) => Some(reason),
            _ => None,
        });
        if let Some(reason) = fatal
            && let Err(error) = self.replace(&producer, reason)
        {
            tracing::debug!(%error, "the failed producer is not replaced yet; records of a batch were rejected");
        }
        refused
    }

    /// Sends a record, waits for its acknowledgement, and returns its partition and offset. Retryable failures are
    /// retried until the deadline, so the record may be written more than once. `InDoubt`: the record may have been
    /// written at least once.
    pub async fn deliver(&self, record: ProducerRecord<'_>, deadline: Duration) -> SendOutcome {
        let (end, batch, mut received) = (Instant::now() + deadline, self.begin_batch(), Vec::new());
        let mut in_doubt = false;
        loop {
            let outcome = match batch.send(&record, 0) {
                Ok(()) => {
                    if batch.take_outcomes(&mut received, end).await {
                        received.pop().map_or_else(|| Err(unanswered(deadline)), |(_, outcome)| outcome)
                    } else {
                        return Err(unanswered(deadline));
                    }
                }
                Err(error) => Err(error),
            };
            match outcome {
                Err(error) if error.is_retryable() && Instant::now() + FULL_QUEUE_DELAY < end => {
                    in_doubt |= matches!(error, BrokerError::InDoubt(_) | BrokerError::Fatal(_));
                    sleep(FULL_QUEUE_DELAY).await;
                }
                Err(error) if in_doubt => return Err(BrokerError::InDoubt(error.to_string())),
                outcome => return outcome,
            }
        }
    }

    /// Starts a batch of sends whose outcomes are received together.
    pub fn begin_batch(&self) -> SendBatch<'_> {
        let number = self.sink.next_batch.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
        let acks = Arc::new(Acks::default());
        self.sink.batches.lock().insert(number, acks.clone());
        SendBatch { producer: self, number, acks }
    }

    /// Waits until every sent record has its outcome.
    pub async fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        let producer = self.producer.read().client.clone();
        blocking(move || producer.flush(deadline)).await.map_err(BrokerError::Unavailable)?
    }

    /// Replaces a failed client, at most once per [`REPLACE_INTERVAL`]. The unsent records of the old client get the
    /// outcome `Purged`.
    fn replace(&self, failed: &Arc<dyn Producer>, cause: &str) -> Result<(), BrokerError> {
        let mut current = self.producer.write();
        if !Arc::ptr_eq(&current.client, failed) {
            return Ok(());
        }
        let now = Instant::now();
        if current.replaced.is_some_and(|at| now.duration_since(at) < REPLACE_INTERVAL) {
            return Err(BrokerError::Unavailable(format!("the producer has failed and will be replaced: {cause}")));
        }
        tracing::warn!(reason = cause, "replacing the failed producer");
        current.replaced = Some(now);
        current.client = self.broker.producer(self.sink.clone()).map_err(|error| {
            tracing::warn!(%error, "the producer cannot be replaced yet");
            BrokerError::Unavailable(format!("the producer cannot be replaced yet: {error}"))
        })?;
        Ok(())
    }
}

/// A batch of sends, which the sender identifies by numbers. Dropping the batch discards outstanding outcomes.
pub struct SendBatch<'a> {
    producer: &'a SharedProducer,
    number: u32,
    acks: Arc<Acks>,
}

impl SendBatch<'_> {
    /// Sends a record under a number. Never waits.
    pub fn send(&self, record: &ProducerRecord<'_>, number: u32) -> Result<(), BrokerError> {
        self.producer.send(record, self.token(number))
    }

    /// Returns the token of a number, for [`SharedProducer::send_batch`].
    pub fn token(&self, number: u32) -> u64 {
        WAITER_BIT | u64::from(self.number) << 32 | u64::from(number)
    }

    /// Moves the outcomes that have arrived to `received`, which must be empty. Waits for the first one until `end`;
    /// returns false on timeout.
    pub async fn take_outcomes(&self, received: &mut Vec<(u32, SendOutcome)>, end: Instant) -> bool {
        loop {
            std::mem::swap(received, &mut *self.acks.outcomes.lock());
            if !received.is_empty() {
                return true;
            }
            if timeout_at(end, self.acks.received.notified()).await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        self.producer.sink.batches.lock().remove(&self.number);
    }
}

/// The error of a record without an acknowledgement.
pub fn unanswered(deadline: Duration) -> BrokerError {
    BrokerError::InDoubt(format!("no acknowledgement from the broker within {} s", deadline.as_secs_f32()))
}
