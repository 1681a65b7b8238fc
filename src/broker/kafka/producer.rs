//! Sending: one by one, with the outcome told to a sink, or several at once in a transaction.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaError};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use super::settings::Settings;
use super::{error, native, with_record};
use crate::broker::{
    BatchRecord, BrokerError, DeliverySink, DependentRecord, MakeDependents, Producer, ProducerRecord, TransactionalProducer,
};

/// How long opening an atomic producer waits for the cluster to end what its predecessor left open.
const INIT_DEADLINE: Duration = Duration::from_secs(30);
/// How long the abort of a transaction may take.
const ABORT_DEADLINE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_micros(200);

pub(super) struct KafkaProducer {
    /// Of the topics that batches went to: one that is known needs no look-up by its name. Given back before the client.
    topics: Mutex<BTreeMap<String, Arc<native::Topic>>>,
    client: ThreadedProducer<ToSink>,
}

impl KafkaProducer {
    pub fn new(settings: &Settings, sink: Arc<dyn DeliverySink>) -> Result<Self, BrokerError> {
        let client = settings.producer().create_with_context(ToSink(sink)).map_err(|error| error::of(&error, "[kafka]"))?;
        Ok(Self { topics: Mutex::default(), client })
    }

    fn topic(&self, name: &str) -> Result<Arc<native::Topic>, BrokerError> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(name) {
            return Ok(topic.clone());
        }
        let topic = native::Topic::new(self.client.client(), name).map_err(|code| error::of_code(code, name))?;
        let topic = Arc::new(topic);
        topics.insert(name.to_owned(), topic.clone());
        Ok(topic)
    }

    /// An error of librdkafka's, or the failure of the whole client that is behind it.
    fn refusal(&self, code: RDKafkaErrorCode, topic: &str) -> BrokerError {
        match self.client.client().fatal_error() {
            Some((code, reason)) => unnamed(fatal(code, reason)),
            None => refused(code, topic),
        }
    }
}

impl Producer for KafkaProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        send(&self.client, record, token).map_err(unnamed)
    }

    fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        match self.topic(topic) {
            Ok(native) => {
                let refused = native.produce(partition, records).into_iter();
                refused.map(|(n, code)| (n, self.refusal(code, topic))).collect()
            }
            Err(error) => (0..records.len()).map(|n| (n, error.clone())).collect(),
        }
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        match settle(&self.client, Instant::now() + deadline) {
            0 => Ok(()),
            open => Err(BrokerError::Unavailable(format!("{open} sent records still without an answer after {deadline:?}"))),
        }
    }

    fn purge(&self) {
        self.client.purge(PurgeConfig::default().queue());
    }
}

/// Passes outcomes on. The token travels in librdkafka's pointer for it, without an allocation.
struct ToSink(Arc<dyn DeliverySink>);

impl ClientContext for ToSink {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, error: KafkaError, reason: &str) {
        report(&error, reason);
    }
}

impl ProducerContext for ToSink {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        match result {
            Ok(message) => self.0.delivered(token as u64, Ok((message.partition(), message.offset()))),
            Err((error, message)) => {
                let error = unnamed(delivery_error(error, message.topic()));
                with_record(message, |record| self.0.delivered(token as u64, Err((error, record))));
            }
        }
    }
}

fn report(error: &KafkaError, reason: &str) {
    tracing::warn!(target: "kafleet::kafka", "producer: {}: {reason}", error::of(error, "trouble"));
}

fn delivery_error(error: &KafkaError, topic: &str) -> BrokerError {
    error::code_of(error).map_or_else(|| error::of(error, topic), |code| error::of_delivery(code, topic))
}

/// Waits until every record has its answer; returns how many have none. rdkafka's own flush, which its commit begins with,
/// looks only every 100 ms.
fn settle<C: ProducerContext + 'static>(client: &ThreadedProducer<C>, until: Instant) -> i32 {
    loop {
        match client.in_flight_count() {
            0 => return 0,
            open if Instant::now() >= until => return open,
            _ => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

fn send<C>(client: &ThreadedProducer<C>, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError>
where
    C: ProducerContext<DeliveryOpaque = usize> + 'static,
{
    super::check_topic(record.topic)?;
    let token = usize::try_from(token).map_err(|_| BrokerError::Invalid(format!("token {token} is too large")))?;
    let outgoing = BaseRecord::<[u8], [u8], usize> {
        topic: record.topic,
        partition: record.partition,
        payload: record.value,
        key: record.key,
        timestamp: None,
        headers: headers(record.headers)?,
        delivery_opaque: token,
    };
    client.send(outgoing).map_err(|(error, _)| match client.client().fatal_error() {
        Some((code, reason)) => fatal(code, reason),
        None => match error::code_of(&error) {
            Some(code) => refused(code, record.topic),
            None => error::of(&error, &format!("sending to `{}`", record.topic)),
        },
    })
}

fn refused(code: RDKafkaErrorCode, topic: &str) -> BrokerError {
    error::of_record(code, format!("sending to `{topic}`: {}", error::describe(code)))
}

fn headers(headers: &[(&str, &[u8])]) -> Result<Option<OwnedHeaders>, BrokerError> {
    if headers.is_empty() {
        return Ok(None);
    }
    let mut owned = OwnedHeaders::new_with_capacity(headers.len());
    for (key, value) in headers {
        if key.contains('\0') {
            return Err(BrokerError::Invalid(format!("bad header name `{}`", key.escape_debug())));
        }
        owned = owned.insert(Header { key, value: Some(*value) });
    }
    Ok(Some(owned))
}

fn fatal(code: RDKafkaErrorCode, reason: String) -> BrokerError {
    match error::classified(code, reason) {
        fenced @ BrokerError::Fenced(_) => fenced,
        other => BrokerError::Fatal(other.to_string()),
    }
}

/// Nobody can take over from a producer without a name: the cluster has lost track of it, and it is made anew.
fn unnamed(error: BrokerError) -> BrokerError {
    match error {
        BrokerError::Fenced(text) => BrokerError::Fatal(text),
        other => other,
    }
}

/// A producer with a transactional id.
pub(super) struct KafkaTransactionalProducer {
    client: ThreadedProducer<Burst>,
    /// Why it can no longer be used.
    broken: Option<BrokerError>,
}

impl KafkaTransactionalProducer {
    pub fn new(settings: &Settings, name: &str) -> Result<Self, BrokerError> {
        if name.is_empty() || name.contains('\0') {
            return Err(BrokerError::Invalid(format!("bad name `{}` for an atomic producer", name.escape_debug())));
        }
        let client: ThreadedProducer<Burst> =
            settings.atomic(name).create_with_context(Burst::default()).map_err(|error| error::of(&error, "[kafka]"))?;
        client.init_transactions(INIT_DEADLINE).map_err(|error| transaction_error(&error, "opening"))?;
        Ok(Self { client, broken: None })
    }

    /// Sends all and waits for their places.
    fn send_burst(&self, records: &[ProducerRecord<'_>], until: Instant) -> Result<Vec<(i32, i64)>, BrokerError> {
        let burst = self.client.context();
        let first = burst.begin(records.len());
        for (token, record) in (first..).zip(records) {
            send(&self.client, record, token)?;
        }
        burst.wait(until)
    }

    fn commit(&mut self, until: Instant) -> Result<(), BrokerError> {
        // All have been told; the client lets go of them a moment later.
        settle(&self.client, until);
        loop {
            let Err(error) = self.client.commit_transaction(left(until)) else { return Ok(()) };
            match &error {
                KafkaError::Transaction(told) if told.txn_requires_abort() => {
                    return Err(self.abort(of_transaction(told, "commit")));
                }
                // An answer may still come: asking again is safe, the cluster knows what it has decided.
                KafkaError::Transaction(told) if told.is_retriable() && Instant::now() < until => {}
                other => return Err(self.broken_by(unknown_outcome(other))),
            }
        }
    }

    /// Takes back what was sent. Returns the error to report.
    fn abort(&mut self, cause: BrokerError) -> BrokerError {
        match (&cause, self.client.abort_transaction(ABORT_DEADLINE)) {
            (BrokerError::Fenced(_) | BrokerError::Fatal(_), _) => self.broken_by(cause),
            (_, Ok(())) => cause,
            // Nothing was committed, and the next producer of this name, or the timeout, ends it.
            (_, Err(error)) => match transaction_error(&error, "abort") {
                fenced @ BrokerError::Fenced(_) => self.broken_by(fenced),
                _ => {
                    self.broken = Some(BrokerError::Fatal("an abort did not end; open a new producer".to_owned()));
                    cause
                }
            },
        }
    }

    fn broken_by(&mut self, error: BrokerError) -> BrokerError {
        self.broken = Some(match &error {
            BrokerError::Fenced(_) => error.clone(),
            other => BrokerError::Fatal(format!("an earlier call ended in: {other}; open a new producer")),
        });
        error
    }
}

impl TransactionalProducer for KafkaTransactionalProducer {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        // What follows nothing is known already.
        let early = if records.is_empty() { then(&[]) } else { Vec::new() };
        if records.is_empty() && early.is_empty() {
            return Ok(Vec::new());
        }
        let until = Instant::now() + deadline;
        self.client.begin_transaction().map_err(|error| {
            let error = transaction_error(&error, "begin");
            self.broken_by(error)
        })?;
        let sent = self.send_burst(records, until).and_then(|mut places| {
            let followers = if records.is_empty() { early } else { then(&places) };
            let followers: Vec<ProducerRecord<'_>> = followers.iter().map(DependentRecord::outgoing).collect();
            places.extend(self.send_burst(&followers, until)?);
            Ok(places)
        });
        let places = match sent {
            Ok(places) => places,
            Err(error) => {
                // Whatever has no answer yet is given up with the transaction.
                self.client.purge(PurgeConfig::default().queue().inflight());
                let cause = self.client.client().fatal_error().map_or(error, |(code, reason)| fatal(code, reason));
                return Err(self.abort(cause));
            }
        };
        self.commit(until)?;
        Ok(places)
    }
}

fn left(until: Instant) -> Duration {
    // At least enough for one round trip.
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}

fn transaction_error(error: &KafkaError, what: &str) -> BrokerError {
    match error {
        KafkaError::Transaction(told) => of_transaction(told, what),
        other => error::of(other, what),
    }
}

fn of_transaction(told: &RDKafkaError, what: &str) -> BrokerError {
    let error = error::classified(told.code(), format!("transaction {what}: {}", told.string()));
    match error {
        BrokerError::Fenced(_) | BrokerError::Denied(_) => error,
        other if told.is_fatal() => BrokerError::Fatal(other.to_string()),
        other if told.is_retriable() || told.txn_requires_abort() => match other {
            BrokerError::Fatal(text) | BrokerError::Invalid(text) => BrokerError::Unavailable(text),
            other => other,
        },
        other => other,
    }
}

fn unknown_outcome(error: &KafkaError) -> BrokerError {
    match transaction_error(error, "commit") {
        error @ BrokerError::Fenced(_) => error,
        other => BrokerError::InDoubt(other.to_string()),
    }
}

type Place = Result<(i32, i64), BrokerError>;

/// Collects the outcomes of one transaction's records.
#[derive(Default)]
struct Burst {
    outcomes: Mutex<Outcomes>,
    complete: Condvar,
}

#[derive(Default)]
struct Outcomes {
    /// Which burst the places belong to: outcomes of one given up may come late.
    burst: u32,
    places: Vec<Option<Place>>,
    missing: usize,
}

impl Burst {
    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token of the first record.
    fn begin(&self, count: usize) -> u64 {
        let mut outcomes = self.lock();
        outcomes.burst = outcomes.burst.wrapping_add(1);
        outcomes.places = vec![None; count];
        outcomes.missing = count;
        u64::from(outcomes.burst) << 32
    }

    fn set(&self, token: u64, place: Place) {
        let mut outcomes = self.lock();
        if (token >> 32) as u32 != outcomes.burst {
            return;
        }
        if let Some(slot @ None) = outcomes.places.get_mut(token as u32 as usize) {
            *slot = Some(place);
            outcomes.missing -= 1;
        }
        if outcomes.missing == 0 {
            self.complete.notify_all();
        }
    }

    fn wait(&self, until: Instant) -> Result<Vec<(i32, i64)>, BrokerError> {
        let mut outcomes = self.lock();
        while outcomes.missing > 0 {
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(BrokerError::Unavailable(format!("{} records were not acknowledged in time", outcomes.missing)));
            }
            outcomes = self.complete.wait_timeout(outcomes, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        outcomes.places.drain(..).flatten().collect()
    }
}

impl ClientContext for Burst {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, error: KafkaError, reason: &str) {
        report(&error, reason);
    }
}

impl ProducerContext for Burst {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        let place = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, message)) => Err(delivery_error(error, message.topic())),
        };
        self.set(token as u64, place);
    }
}
