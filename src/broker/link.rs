//! A producer that outlives its client, and sends that can be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::oneshot;

use super::{Broker, BrokerError, DeliverySink, Outgoing, Plain, Producer, RecordRef};
use crate::model::task::Position;
use crate::runtime::blocking;

/// Tokens with this bit belong to [`Waiters`]; all others are the owner's.
pub const WAITER_BIT: u64 = 1 << 63;

/// How long to stay away from a full queue before the next try.
const FULL_PAUSE: Duration = Duration::from_millis(2);

/// The shared producer of a process. A client that has failed for good is replaced by a new one.
pub struct Link {
    broker: Arc<dyn Broker>,
    sink: Arc<Sink>,
    producer: RwLock<Arc<dyn Producer>>,
    /// Topics that have been seen to exist.
    seen: Mutex<FxHashSet<String>>,
}

struct Sink {
    waiters: Waiters,
    /// Outcomes of the owner's own tokens; none where everything is waited for.
    owner: Option<Arc<dyn DeliverySink>>,
}

#[derive(Default)]
struct Waiters {
    next: AtomicU64,
    waiting: Mutex<FxHashMap<u64, oneshot::Sender<Result<Position, BrokerError>>>>,
}

impl DeliverySink for Sink {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token & WAITER_BIT == 0 {
            if let Some(owner) = &self.owner {
                owner.delivered(token, outcome);
            }
            return;
        }
        let Some(waiter) = self.waiters.waiting.lock().remove(&token) else { return };
        let outcome = outcome.map(|(partition, offset)| Position { partition, offset }).map_err(|(error, _)| error);
        // Whoever has stopped waiting does not need the outcome.
        let _ = waiter.send(outcome);
    }
}

impl Link {
    /// Opens the producer. Outcomes of tokens without [`WAITER_BIT`] go to `owner`.
    pub fn open(broker: Arc<dyn Broker>, owner: Option<Arc<dyn DeliverySink>>) -> Result<Arc<Self>, BrokerError> {
        let sink = Arc::new(Sink { waiters: Waiters::default(), owner });
        let producer = broker.producer(sink.clone())?;
        Ok(Arc::new(Self { broker, sink, producer: RwLock::new(producer), seen: Mutex::default() }))
    }

    /// Whether a topic is there. Asks the broker until it has been seen once, at the latest until the deadline.
    pub async fn has_topic(&self, topic: &str, deadline: Duration) -> Result<bool, BrokerError> {
        if self.seen.lock().contains(topic) {
            return Ok(true);
        }
        let (broker, name) = (self.broker.clone(), topic.to_owned());
        let listed = blocking(move || broker.topics(&name, deadline)).await.map_err(BrokerError::Unavailable)??;
        let found = listed.iter().any(|info| info.name == topic);
        if found {
            self.seen.lock().insert(topic.to_owned());
        }
        Ok(found)
    }

    /// Sends with a token of the owner's. Never waits.
    pub fn send(&self, record: &Outgoing<'_>, token: u64) -> Result<(), BrokerError> {
        let producer = self.producer.read();
        let outcome = producer.send(record, token);
        let Err(BrokerError::Fatal(why)) = outcome else { return outcome };
        let failed = producer.clone();
        drop(producer);
        self.replace(&failed, &why)?;
        self.producer.read().send(record, token)
    }

    /// Sends several records with tokens of the owner's. Never waits; returns which were not accepted, and why.
    pub fn send_batch(&self, topic: &str, partition: i32, records: &[Plain<'_>]) -> Vec<(usize, BrokerError)> {
        let producer = self.producer.read().clone();
        producer.send_batch(topic, partition, records)
    }

    /// Sends and returns the place of the record, or why there is none, at the latest at the deadline. What fails in
    /// passing is sent again until then: a record may so be there twice.
    pub async fn deliver(&self, record: Outgoing<'_>, deadline: Duration) -> Result<Position, BrokerError> {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            let error = match self.enqueue(&record) {
                Ok(waiter) => match tokio::time::timeout_at(end, waiter.outcome).await {
                    Ok(Ok(Err(error))) => error,
                    Ok(Ok(Ok(position))) => return Ok(position),
                    Ok(Err(_)) => BrokerError::Unavailable("the producer was closed".into()),
                    Err(_) => {
                        self.sink.waiters.waiting.lock().remove(&waiter.token);
                        let waited = deadline.as_secs_f32();
                        return Err(BrokerError::InDoubt(format!("no acknowledgement from the broker within {waited} s")));
                    }
                },
                Err(error) => error,
            };
            let again = error.is_transient() || matches!(error, BrokerError::Fatal(_));
            if !again || tokio::time::Instant::now() + FULL_PAUSE >= end {
                return Err(error);
            }
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    fn enqueue(&self, record: &Outgoing<'_>) -> Result<Waiter, BrokerError> {
        let token = WAITER_BIT | self.sink.waiters.next.fetch_add(1, Ordering::Relaxed);
        let (sender, outcome) = oneshot::channel();
        self.sink.waiters.waiting.lock().insert(token, sender);
        self.send(record, token).inspect_err(|_| {
            self.sink.waiters.waiting.lock().remove(&token);
        })?;
        Ok(Waiter { token, outcome })
    }

    /// Blocks until everything sent has its outcome.
    pub fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        let producer = self.producer.read().clone();
        producer.flush(deadline)
    }

    pub fn purge(&self) {
        self.producer.read().clone().purge();
    }

    fn replace(&self, failed: &Arc<dyn Producer>, why: &str) -> Result<(), BrokerError> {
        let mut current = self.producer.write();
        if Arc::ptr_eq(&current, failed) {
            tracing::warn!(reason = why, "the producer cannot go on and is replaced");
            *current = self.broker.producer(self.sink.clone())?;
        }
        Ok(())
    }
}

struct Waiter {
    token: u64,
    outcome: oneshot::Receiver<Result<Position, BrokerError>>,
}
