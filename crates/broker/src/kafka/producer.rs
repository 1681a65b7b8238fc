//! Kafka producers: individual sends with outcomes delivered to a sink, and transactions.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaError};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders, Timestamp};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;

use super::polled_producer::PolledProducer;
use super::settings::Settings;
use super::{error, native, with_record};
use crate::{
    BatchRecord, BrokerError, DeliverySink, DependentRecord, MakeDependents, Producer, ProducerRecord,
    TransactionalProducer,
};

/// Maximum time for opening a transactional producer, including the abort of its predecessor's transaction.
const INIT_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum time for aborting a transaction.
const ABORT_DEADLINE: Duration = Duration::from_secs(10);
/// Poll interval while waiting for outstanding deliveries.
const OUTSTANDING_POLL_INTERVAL: Duration = Duration::from_micros(200);

pub(super) struct KafkaProducer {
    /// Topic handles used by batches, which save a lookup by name per batch. Declared before the client: they must be
    /// dropped first.
    topics: Mutex<BTreeMap<String, Arc<native::TopicHandle>>>,
    client: PolledProducer<ToSink>,
}

impl KafkaProducer {
    pub(super) fn new(settings: &Settings, sink: Arc<dyn DeliverySink>) -> Result<Self, BrokerError> {
        let client = PolledProducer::new(&settings.producer(), ToSink(sink))?;
        Ok(Self { topics: Mutex::default(), client })
    }

    fn topic(&self, name: &str) -> Result<Arc<native::TopicHandle>, BrokerError> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(name) {
            return Ok(topic.clone());
        }
        let topic = native::TopicHandle::new(self.client.client(), name).map_err(|code| error::of_code(code, name))?;
        let topic = Arc::new(topic);
        topics.insert(name.to_owned(), topic.clone());
        Ok(topic)
    }

    /// Converts an error code, or the fatal error of the client if there is one.
    fn rejection(&self, code: RDKafkaErrorCode, topic: &str) -> BrokerError {
        match self.client.client().fatal_error() {
            Some((code, reason)) => fenced_as_fatal(fatal(code, reason)),
            None => rejected(code, topic),
        }
    }
}

impl Producer for KafkaProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        send(&self.client, record, token).map_err(fenced_as_fatal)
    }

    fn send_batch(&self, topic: &str, partition: i32, records: &[BatchRecord<'_>]) -> Vec<(usize, BrokerError)> {
        match self.topic(topic) {
            Ok(native) => {
                let rejected = native.produce(partition, records).into_iter();
                rejected.map(|(n, code)| (n, self.rejection(code, topic))).collect()
            }
            Err(error) => (0..records.len()).map(|n| (n, error.clone())).collect(),
        }
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        match await_deliveries(&self.client, Instant::now() + deadline) {
            0 => Ok(()),
            open => {
                Err(BrokerError::Unavailable(format!("{open} sent records still without an answer after {deadline:?}")))
            }
        }
    }

    fn purge(&self) {
        self.client.purge(PurgeConfig::default().queue());
    }
}

/// Passes outcomes to the sink. The token travels in librdkafka's opaque pointer, without an allocation.
struct ToSink(Arc<dyn DeliverySink>);

impl ClientContext for ToSink {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ProducerContext for ToSink {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        match result {
            Ok(message) => {
                if let Timestamp::LogAppendTime(append_ms) = message.timestamp() {
                    self.0.appended(token as u64, append_ms);
                }
                self.0.delivered(token as u64, Ok((message.partition(), message.offset())));
            }
            Err((error, message)) => {
                let error = fenced_as_fatal(delivery_error(error, message.topic()));
                with_record(message, |record| self.0.delivered(token as u64, Err((error, record))));
            }
        }
    }
}

fn log_error(error: &KafkaError, reason: &str) {
    tracing::warn!(target: "kafleet::kafka", "producer: {}: {reason}", error::of(error, "trouble"));
}

fn delivery_error(error: &KafkaError, topic: &str) -> BrokerError {
    error::code_of(error).map_or_else(|| error::of(error, topic), |code| error::of_delivery(code, topic))
}

/// Waits until every record has its outcome and returns the number of outstanding ones. rdkafka's own flush, which
/// starts every commit, checks only every 100 ms.
fn await_deliveries<C: ProducerContext + 'static>(client: &PolledProducer<C>, until: Instant) -> i32 {
    loop {
        match client.in_flight_count() {
            0 => return 0,
            open if Instant::now() >= until => return open,
            _ => std::thread::sleep(OUTSTANDING_POLL_INTERVAL),
        }
    }
}

fn send<C>(client: &PolledProducer<C>, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError>
where
    C: ProducerContext<DeliveryOpaque = usize> + 'static,
{
    super::check_topic(record.topic)?;
    let token = usize::try_from(token).map_err(|_| BrokerError::Invalid(format!("token {token} is too large")))?;
    let record_to_send = BaseRecord::<[u8], [u8], usize> {
        topic: record.topic,
        partition: record.partition,
        payload: record.value,
        key: record.key,
        timestamp: None,
        headers: headers(record.headers)?,
        delivery_opaque: token,
    };
    client.send(record_to_send).map_err(|(error, _)| send_error(client, &error, record.topic))
}

fn send_error<C>(client: &PolledProducer<C>, error: &KafkaError, topic: &str) -> BrokerError
where
    C: ProducerContext<DeliveryOpaque = usize> + 'static,
{
    if let Some((code, reason)) = client.client().fatal_error() {
        return fatal(code, reason);
    }
    match error::code_of(error) {
        Some(code) => rejected(code, topic),
        None => error::of(error, &format!("sending to `{topic}`")),
    }
}

fn rejected(code: RDKafkaErrorCode, topic: &str) -> BrokerError {
    error::of_record(code, format!("sending to `{topic}`: {}", error::describe(code)))
}

fn headers(headers: &[(&str, &[u8])]) -> Result<Option<OwnedHeaders>, BrokerError> {
    if headers.is_empty() {
        return Ok(None);
    }
    let mut owned = OwnedHeaders::new_with_capacity(headers.len());
    for (key, value) in headers {
        if key.contains('\0') {
            return Err(BrokerError::Invalid(format!("invalid header name `{}`", key.escape_debug())));
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

/// Converts `Fenced` to `Fatal` for a producer without a transactional id: no other producer can take over from it.
/// The cluster has lost its state, so the producer must be replaced.
fn fenced_as_fatal(error: BrokerError) -> BrokerError {
    match error {
        BrokerError::Fenced(text) => BrokerError::Fatal(text),
        other => other,
    }
}

/// A producer with a transactional id.
pub(super) struct KafkaTransactionalProducer {
    client: PolledProducer<TransactionBatch>,
    /// The error that made this producer unusable.
    broken: Option<BrokerError>,
}

impl KafkaTransactionalProducer {
    pub(super) fn new(settings: &Settings, name: &str) -> Result<Self, BrokerError> {
        if name.is_empty() || name.contains('\0') {
            return Err(BrokerError::Invalid(format!(
                "invalid name `{}` for a transactional producer",
                name.escape_debug()
            )));
        }
        let client = PolledProducer::new(&settings.transactional(name), TransactionBatch::default())?;
        client.init_transactions(INIT_DEADLINE).map_err(|error| transaction_error(&error, "opening"))?;
        Ok(Self { client, broken: None })
    }

    /// Sends all records and waits for their offsets.
    fn send_batch_and_wait(
        &self,
        records: &[ProducerRecord<'_>],
        until: Instant,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let batch = self.client.context();
        let first = batch.begin(records.len());
        for (token, record) in (first..).zip(records) {
            send(&self.client, record, token)?;
        }
        batch.wait(until)
    }

    fn commit(&mut self, until: Instant) -> Result<(), BrokerError> {
        // All records are acknowledged; the client releases them a moment later.
        await_deliveries(&self.client, until);
        loop {
            let Err(error) = self.client.commit_transaction(left(until)) else { return Ok(()) };
            match &error {
                KafkaError::Transaction(error) if error.txn_requires_abort() => {
                    return Err(self.abort(of_transaction(error, "commit")));
                }
                // A retried commit is safe: the coordinator has recorded the decision.
                KafkaError::Transaction(error) if error.is_retriable() && Instant::now() < until => {}
                other => return Err(self.mark_broken(unknown_outcome(other))),
            }
        }
    }

    /// Aborts the transaction. Returns the error to report.
    fn abort(&mut self, cause: BrokerError) -> BrokerError {
        match (&cause, self.client.abort_transaction(ABORT_DEADLINE)) {
            (BrokerError::Fenced(_) | BrokerError::Fatal(_), _) => self.mark_broken(cause),
            (_, Ok(())) => cause,
            // Nothing was committed. The next producer of this name, or the transaction timeout, aborts it.
            (_, Err(error)) => match transaction_error(&error, "abort") {
                fenced @ BrokerError::Fenced(_) => self.mark_broken(fenced),
                _ => {
                    self.broken = Some(BrokerError::Fatal("an abort did not end; open a new producer".to_owned()));
                    cause
                }
            },
        }
    }

    fn mark_broken(&mut self, error: BrokerError) -> BrokerError {
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
        make_dependents: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        // Without first records, the dependents can be built before the transaction is started.
        let early = if records.is_empty() { make_dependents(&[])? } else { Vec::new() };
        if records.is_empty() && early.is_empty() {
            return Ok(Vec::new());
        }
        let until = Instant::now() + deadline;
        self.client.begin_transaction().map_err(|error| {
            let error = transaction_error(&error, "begin");
            self.mark_broken(error)
        })?;
        let sent = self.send_batch_and_wait(records, until).and_then(|mut offsets| {
            let dependents = if records.is_empty() { early } else { make_dependents(&offsets)? };
            let dependents: Vec<ProducerRecord<'_>> = dependents.iter().map(DependentRecord::outgoing).collect();
            offsets.extend(self.send_batch_and_wait(&dependents, until)?);
            Ok(offsets)
        });
        let offsets = match sent {
            Ok(offsets) => offsets,
            Err(error) => {
                // Discard records without an outcome together with the transaction.
                self.client.purge(PurgeConfig::default().queue().inflight());
                let cause = self.client.client().fatal_error().map_or(error, |(code, reason)| fatal(code, reason));
                return Err(self.abort(cause));
            }
        };
        self.commit(until)?;
        Ok(offsets)
    }
}

fn left(until: Instant) -> Duration {
    // Allow for at least one round trip.
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}

fn transaction_error(error: &KafkaError, operation: &str) -> BrokerError {
    match error {
        KafkaError::Transaction(error) => of_transaction(error, operation),
        other => error::of(other, operation),
    }
}

fn of_transaction(error: &RDKafkaError, operation: &str) -> BrokerError {
    match error::classified(error.code(), format!("transaction {operation}: {}", error.string())) {
        fatal @ (BrokerError::Fenced(_) | BrokerError::Denied(_)) => fatal,
        other if error.is_fatal() => BrokerError::Fatal(other.to_string()),
        other if error.is_retriable() || error.txn_requires_abort() => match other {
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

type Acknowledgement = Result<(i32, i64), BrokerError>;

/// Collects the outcomes of one transaction's records.
#[derive(Default)]
struct TransactionBatch {
    outcomes: Mutex<Outcomes>,
    complete: Condvar,
}

#[derive(Default)]
struct Outcomes {
    /// Number of the batch that the outcomes belong to. Outcomes of an abandoned batch may arrive late.
    number: u32,
    offsets: Vec<Option<Acknowledgement>>,
    missing: usize,
}

impl TransactionBatch {
    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a batch and returns the token of its first record.
    fn begin(&self, count: usize) -> u64 {
        let mut outcomes = self.lock();
        outcomes.number = outcomes.number.wrapping_add(1);
        outcomes.offsets = vec![None; count];
        outcomes.missing = count;
        u64::from(outcomes.number) << 32
    }

    fn set(&self, token: u64, acknowledgement: Acknowledgement) {
        let mut outcomes = self.lock();
        if (token >> 32) as u32 != outcomes.number {
            return;
        }
        if let Some(slot @ None) = outcomes.offsets.get_mut(token as u32 as usize) {
            *slot = Some(acknowledgement);
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
                return Err(BrokerError::Unavailable(format!(
                    "{} records were not acknowledged in time",
                    outcomes.missing
                )));
            }
            outcomes = self.complete.wait_timeout(outcomes, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        outcomes.offsets.drain(..).flatten().collect()
    }
}

impl ClientContext for TransactionBatch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}
    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ProducerContext for TransactionBatch {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        let acknowledgement = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, message)) => Err(delivery_error(error, message.topic())),
        };
        self.set(token as u64, acknowledgement);
    }
}
