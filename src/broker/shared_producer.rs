//! A producer that outlives its client, and sends that can be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::{BatchRecord, Broker, BrokerError, DeliverySink, Producer, ProducerRecord, RecordRef};
use crate::model::task::Position;
use crate::runtime::blocking;

/// Tokens with this bit belong to a [`SendBatch`]; all others are the owner's.
pub const WAITER_BIT: u64 = 1 << 63;

/// How long to stay away from a full queue before the next try.
pub const FULL_PAUSE: Duration = Duration::from_millis(2);
/// The least time between a client and the one that replaces its replacement.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);

/// The shared producer of a process. A client that has failed for good is replaced by a new one.
pub struct SharedProducer {
    broker: Arc<dyn Broker>,
    sink: Arc<Sink>,
    producer: RwLock<Current>,
    /// Topics that have been seen to exist.
    seen: Mutex<FxHashSet<String>>,
}

struct Current {
    client: Arc<dyn Producer>,
    /// When it was last tried to put it in another one's place.
    replaced: Option<Instant>,
}

struct Sink {
    bursts: Mutex<FxHashMap<u32, Arc<Acks>>>,
    next_burst: AtomicU32,
    /// Outcomes of the owner's own tokens; none where everything is waited for.
    owner: Option<Arc<dyn DeliverySink>>,
}

/// The place of a record, or why it has none.
pub type Outcome = Result<Position, BrokerError>;

/// The outcomes of a burst that nobody has taken yet.
#[derive(Default)]
struct Acks {
    outcomes: Mutex<Vec<(u32, Outcome)>>,
    told: Notify,
}

impl DeliverySink for Sink {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token & WAITER_BIT == 0 {
            if let Some(owner) = &self.owner {
                owner.delivered(token, outcome);
            }
            return;
        }
        // Whoever has stopped waiting does not need the outcome.
        let Some(gathered) = self.bursts.lock().get(&burst_of(token)).cloned() else { return };
        let outcome = outcome.map(|(partition, offset)| Position { partition, offset }).map_err(|(error, _)| error);
        let mut outcomes = gathered.outcomes.lock();
        outcomes.push((token as u32, outcome));
        if outcomes.len() == 1 {
            gathered.told.notify_one();
        }
    }
}

fn burst_of(token: u64) -> u32 {
    ((token & !WAITER_BIT) >> 32) as u32
}

impl SharedProducer {
    /// Opens the producer. Outcomes of tokens without [`WAITER_BIT`] go to `owner`.
    pub fn open(broker: Arc<dyn Broker>, owner: Option<Arc<dyn DeliverySink>>) -> Result<Arc<Self>, BrokerError> {
        let sink = Arc::new(Sink { bursts: Mutex::default(), next_burst: AtomicU32::new(0), owner });
        let client = broker.producer(sink.clone())?;
        Ok(Arc::new(Self { broker, sink, producer: RwLock::new(Current { client, replaced: None }), seen: Mutex::default() }))
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
    pub fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let producer = self.producer.read();
        let outcome = producer.client.send(record, token);
        let Err(BrokerError::Fatal(why)) = outcome else { return outcome };
        let failed = producer.client.clone();
        drop(producer);
        self.replace(&failed, &why)?;
        self.producer.read().client.send(record, token)
    }

    /// Sends several records with tokens of the owner's. Never waits; returns which were not accepted, and why.
    pub fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        let producer = self.producer.read().client.clone();
        let refused = producer.send_batch(topic, partition, records);
        let fatal = refused.iter().find_map(|(_, error)| match error {
            BrokerError::Fatal(why) => Some(why),
            _ => None,
        });
        if let Some(why) = fatal
            && let Err(error) = self.replace(&producer, why)
        {
            tracing::debug!(%error, "what a batch did not take has to wait");
        }
        refused
    }

    /// Sends and returns the place of the record, or why there is none, at the latest at the deadline. What fails in
    /// passing is sent again until then: a record may so be there twice. `InDoubt`: one of these may be there.
    pub async fn deliver(&self, record: ProducerRecord<'_>, deadline: Duration) -> Outcome {
        let (end, burst, mut told) = (Instant::now() + deadline, self.burst(), Vec::new());
        let mut in_doubt = false;
        loop {
            let outcome = match burst.send(&record, 0) {
                Ok(()) => match burst.take(&mut told, end).await {
                    true => told.pop().map_or_else(|| Err(unanswered(deadline)), |(_, outcome)| outcome),
                    false => return Err(unanswered(deadline)),
                },
                Err(error) => Err(error),
            };
            match outcome {
                Err(error) if error.is_passing() && Instant::now() + FULL_PAUSE < end => {
                    in_doubt |= matches!(error, BrokerError::InDoubt(_) | BrokerError::Fatal(_));
                    sleep(FULL_PAUSE).await;
                }
                Err(error) if in_doubt => return Err(BrokerError::InDoubt(error.to_string())),
                outcome => return outcome,
            }
        }
    }

    /// Begins sends whose outcomes come to one place.
    pub fn burst(&self) -> SendBatch<'_> {
        let number = self.sink.next_burst.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
        let gathered = Arc::new(Acks::default());
        self.sink.bursts.lock().insert(number, gathered.clone());
        SendBatch { link: self, number, gathered }
    }

    /// Blocks until everything sent has its outcome.
    pub fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        let producer = self.producer.read().client.clone();
        producer.flush(deadline)
    }

    /// What the failed client still held comes back as `Purged`.
    fn replace(&self, failed: &Arc<dyn Producer>, why: &str) -> Result<(), BrokerError> {
        let mut current = self.producer.write();
        if !Arc::ptr_eq(&current.client, failed) {
            return Ok(());
        }
        let now = Instant::now();
        if current.replaced.is_some_and(|at| now.duration_since(at) < REPLACE_PAUSE) {
            return Err(BrokerError::Unavailable(format!("the producer cannot go on and will be replaced: {why}")));
        }
        tracing::warn!(reason = why, "the producer cannot go on and is replaced");
        current.replaced = Some(now);
        current.client = self.broker.producer(self.sink.clone()).map_err(|error| {
            tracing::warn!(%error, "there is no new producer yet");
            BrokerError::Unavailable(format!("the producer cannot be replaced yet: {error}"))
        })?;
        Ok(())
    }
}

/// Sends under numbers of the sender's own, whose outcomes are gathered in one place. Dropped, it forgets what is still
/// under way.
pub struct SendBatch<'a> {
    link: &'a SharedProducer,
    number: u32,
    gathered: Arc<Acks>,
}

impl SendBatch<'_> {
    /// Sends under a number. Never waits.
    pub fn send(&self, record: &ProducerRecord<'_>, number: u32) -> Result<(), BrokerError> {
        self.link.send(record, self.token(number))
    }

    /// The token of a number, for [`SharedProducer::send_batch`].
    pub fn token(&self, number: u32) -> u64 {
        WAITER_BIT | u64::from(self.number) << 32 | u64::from(number)
    }

    /// Puts the outcomes that are there into `told`, which comes empty; waits for the first until `end`. False: none came.
    pub async fn take(&self, told: &mut Vec<(u32, Outcome)>, end: Instant) -> bool {
        loop {
            std::mem::swap(told, &mut *self.gathered.outcomes.lock());
            if !told.is_empty() {
                return true;
            }
            if timeout_at(end, self.gathered.told.notified()).await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        self.link.sink.bursts.lock().remove(&self.number);
    }
}

/// What is to be said of a record without an outcome.
pub fn unanswered(deadline: Duration) -> BrokerError {
    BrokerError::InDoubt(format!("no acknowledgement from the broker within {} s", deadline.as_secs_f32()))
}
