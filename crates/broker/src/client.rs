//! Async facade over a [`Broker`]: calls run off the async threads, with a default deadline and one error type.
//!
//! Calls of librdkafka block. Each runs on the pool of blocking threads ([`blocking`]), optionally with a limit on
//! concurrent calls, so that slow brokers cannot occupy all of its threads. Poll loops, which block for good reason, use
//! the traits themselves on threads of their own.
//!
//! Invariant: no call blocks an async thread, which would stall all other tasks of the thread, including the timeouts of
//! attempts; and each request to the cluster has a deadline.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kafleet_runtime::{blocking, now_ms};
use tokio::sync::Semaphore;

use super::shared_producer::SharedProducer;
use super::{
    Broker, BrokerError, Commit, CommittedOffset, CommittedProbe, Consumer, ConsumerSpec, DeliverySink,
    OpenTransaction, Partition, Record, RecordListing, TopicInfo, TopicOutcome, TopicSpec, TransactionalProducer,
    Watermarks, open_transactions,
};

/// Default deadline of a call. A broker answers within milliseconds; this leaves time for a change of leadership.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// A broker with a deadline per call. Cheap to clone.
#[derive(Clone)]
pub struct BrokerClient {
    broker: Arc<dyn Broker>,
    deadline: Duration,
    /// Permits for concurrent calls; `None`: unlimited.
    permits: Option<Arc<Semaphore>>,
}

impl dyn Broker {
    /// Returns a client with the default deadline.
    pub fn client(self: &Arc<Self>) -> BrokerClient {
        BrokerClient::new(self.clone())
    }
}

impl BrokerClient {
    pub fn new(broker: Arc<dyn Broker>) -> Self {
        Self { broker, deadline: CALL_DEADLINE, permits: None }
    }

    /// Deadline of a call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns a client with another deadline.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// Limits the concurrent calls of this client and its clones, so that a hanging broker occupies at most that many
    /// threads. Waiting for a permit counts towards the deadline.
    pub fn with_limit(&self, calls: usize) -> Self {
        Self { permits: Some(Arc::new(Semaphore::new(calls))), ..self.clone() }
    }

    /// The broker itself, for blocking calls.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    /// Runs a function that makes several blocking calls. It receives the broker and the client's deadline.
    ///
    /// # Errors
    /// Errors of the function, and `Unavailable` if it panics, or if a client with a limit gets no permit or no answer
    /// within the deadline.
    pub async fn call<T, E>(
        &self,
        call: impl FnOnce(&dyn Broker, Duration) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<BrokerError> + Send + 'static,
    {
        let deadline = self.deadline;
        let broker = self.broker.clone();
        let Some(permits) = self.permits.clone() else {
            return finished(blocking(move || call(&*broker, deadline)).await);
        };
        let limited = tokio::time::timeout(deadline, async {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await;
            // After a timeout the call keeps its permit, because it still occupies a thread.
            finished(blocking(move || (call(&*broker, deadline), drop(permit)).0).await)
        });
        limited.await.unwrap_or_else(|_| Err(E::from(timed_out(deadline))))
    }

    /// Opens a consumer.
    pub async fn consumer(&self, spec: ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        self.call(move |broker, _| broker.consumer(&spec)).await
    }

    /// Opens a shared producer. Outcomes of the owner's own tokens are passed to `owner`.
    pub async fn shared_producer(
        &self,
        owner: Option<Arc<dyn DeliverySink>>,
    ) -> Result<Arc<SharedProducer>, BrokerError> {
        let broker = self.broker.clone();
        finished(blocking(move || SharedProducer::open(broker, owner)).await)
    }

    /// Opens a transactional producer, which fences the previous one of this name.
    pub async fn transactional_producer(&self, name: &str) -> Result<Transactions, BrokerError> {
        let name = name.to_owned();
        self.call(move |broker, _| broker.transactional_producer(&name)).await.map(Transactions)
    }

    /// Lists all topics whose names begin with `prefix`.
    pub async fn topics(&self, prefix: &str) -> Result<Vec<TopicInfo>, BrokerError> {
        let prefix = prefix.to_owned();
        self.call(move |broker, deadline| broker.topics(&prefix, deadline)).await
    }

    /// Creates missing topics and updates settings that differ; see [`Broker::apply_topics`].
    pub async fn apply_topics(&self, topics: Vec<TopicSpec>) -> Result<Vec<TopicOutcome>, BrokerError> {
        self.call(move |broker, deadline| broker.apply_topics(&topics, deadline)).await
    }

    /// Returns the low and high watermark of a partition.
    pub async fn watermarks(&self, partition: &Partition) -> Result<Watermarks, BrokerError> {
        let partition = partition.clone();
        self.call(move |broker, deadline| broker.watermarks(&partition, deadline)).await
    }

    /// Finds the partitions that an open transaction has held back for long; see [`open_transactions()`].
    pub async fn open_transactions(&self, partitions: Vec<Partition>) -> Result<Vec<OpenTransaction>, BrokerError> {
        let now_ms = now_ms();
        self.call(move |broker, deadline| open_transactions(broker, &partitions, now_ms, deadline)).await
    }

    /// Returns the high watermarks of many partitions; `None` for a partition without an answer.
    pub async fn end_offsets(&self, partitions: Vec<Partition>) -> Result<Vec<Option<i64>>, BrokerError> {
        self.call(move |broker, deadline| broker.end_offsets(&partitions, deadline)).await
    }

    /// Returns the first record that a read-committed consumer sees at or after an offset.
    pub async fn first_visible(&self, partition: &Partition, offset: i64) -> Result<CommittedProbe, BrokerError> {
        let partition = partition.clone();
        self.call(move |broker, deadline| broker.first_visible(&partition, offset, deadline)).await
    }

    /// Lists at most `max_records` committed records in a range of offsets.
    pub async fn list_records(
        &self,
        partition: &Partition,
        range: Range<i64>,
        max_records: usize,
    ) -> Result<RecordListing, BrokerError> {
        let partition = partition.clone();
        self.call(move |broker, deadline| broker.list_records(&partition, range, max_records, deadline)).await
    }

    /// Reads the committed record at an offset; see [`Broker::read_at`].
    pub async fn read_at(&self, partition: &Partition, offset: i64) -> Result<Option<Record>, BrokerError> {
        let partition = partition.clone();
        self.call(move |broker, deadline| broker.read_at(&partition, offset, deadline)).await
    }

    /// Returns a group's committed offsets, one entry per partition.
    pub async fn group_offsets(
        &self,
        group: &str,
        partitions: Vec<Partition>,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let group = group.to_owned();
        self.call(move |broker, deadline| broker.group_offsets(&group, &partitions, deadline)).await
    }

    /// Commits offsets for a group from outside it. Refused while the group has members.
    pub async fn set_group_offsets(&self, group: &str, commits: Vec<Commit>) -> Result<(), BrokerError> {
        let group = group.to_owned();
        self.call(move |broker, deadline| broker.set_group_offsets(&group, &commits, deadline)).await
    }
}

/// A transactional producer used from async code.
pub struct Transactions(Box<dyn TransactionalProducer>);

impl Transactions {
    /// Runs `send` off the async threads, and returns the producer with the result. The producer is lost if `send` panics.
    pub async fn run<T: Send + 'static>(
        self,
        send: impl FnOnce(&mut dyn TransactionalProducer) -> T + Send + 'static,
    ) -> Result<(Self, T), BrokerError> {
        let Self(mut producer) = self;
        let ran = blocking(move || {
            let sent = send(&mut *producer);
            (Self(producer), sent)
        });
        ran.await.map_err(BrokerError::Unavailable)
    }
}

/// Converts the panic of a blocking call to an error.
fn finished<T, E: From<BrokerError>>(outcome: Result<Result<T, E>, String>) -> Result<T, E> {
    outcome.unwrap_or_else(|error| {
        tracing::error!(error, "a call to Kafka failed");
        Err(E::from(BrokerError::Unavailable(error)))
    })
}

fn timed_out(deadline: Duration) -> BrokerError {
    BrokerError::Unavailable(format!("no answer within {} s", deadline.as_secs_f32()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::memory::{MemoryBroker, MemoryBrokerOptions};

    const TEST_DEADLINE: Duration = Duration::from_secs(60);

    fn client() -> BrokerClient {
        BrokerClient::new(MemoryBroker::new(MemoryBrokerOptions::default()))
    }

    #[tokio::test]
    async fn errors_of_the_broker_are_returned() {
        let missing = client().watermarks(&Partition::new("missing", 0)).await;
        assert!(matches!(missing, Err(BrokerError::Unknown(_))), "{missing:?}");
    }

    #[tokio::test]
    async fn panic_of_a_call_is_an_error() {
        let panicked = client().call(|_, _| -> Result<(), BrokerError> { panic!("on purpose") }).await;
        assert!(matches!(panicked, Err(BrokerError::Unavailable(_))), "{panicked:?}");
    }

    #[tokio::test]
    async fn limited_client_times_out_while_its_permits_are_taken() {
        let limited = client().with_limit(1);
        let (release, released) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel::<()>();
        let holder = limited.with_deadline(TEST_DEADLINE);
        let holding = tokio::spawn(async move {
            let hold = move |_: &dyn Broker, _| {
                begin.send(()).ok();
                released.recv_timeout(TEST_DEADLINE).map_err(|error| BrokerError::Invalid(error.to_string()))
            };
            holder.call(hold).await
        });
        blocking(move || begun.recv_timeout(TEST_DEADLINE)).await.unwrap().unwrap();
        let late = limited.with_deadline(Duration::from_millis(20)).topics("").await;
        assert!(
            matches!(&late, Err(BrokerError::Unavailable(error)) if error == "no answer within 0.02 s"),
            "{late:?}"
        );
        release.send(()).unwrap();
        assert_eq!(holding.await.unwrap(), Ok(()));
        assert_eq!(limited.with_deadline(TEST_DEADLINE).topics("").await, Ok(vec![]));
    }

    #[tokio::test]
    async fn transactions_return_the_producer_for_the_next_one() {
        let transactions = client().transactional_producer("t").await.unwrap();
        let (transactions, empty) = transactions.run(|producer| producer.send_all(&[], TEST_DEADLINE)).await.unwrap();
        assert_eq!(empty, Ok(vec![]));
        let (_, again) = transactions.run(|producer| producer.send_all(&[], TEST_DEADLINE)).await.unwrap();
        assert_eq!(again, Ok(vec![]));
    }
}
