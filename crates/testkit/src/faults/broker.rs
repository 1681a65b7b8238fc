//! Broker whose calls follow rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kafleet_broker::{
    Broker, BrokerError, Commit, CommittedOffset, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, Partition,
    Producer, TopicInfo, TopicOutcome, TopicSpec, TransactionalProducer, Watermarks,
};
use parking_lot::Mutex;

use super::consumer::FaultyConsumer;
use super::producer::{FaultyProducer, FaultyTransactionalProducer};
use super::{Call, FaultRules};

/// Reads of several partitions at once have their default here: they call `watermarks` and `first_visible`, whose
/// rules hold for them too.
pub(super) struct FaultyBroker {
    inner: Arc<dyn Broker>,
    faults: FaultRules,
    /// Number of consumers opened, by group.
    consumers: Mutex<BTreeMap<Option<String>, usize>>,
    /// Number of producers opened.
    producers: AtomicUsize,
}

impl FaultyBroker {
    pub(super) fn open(inner: Arc<dyn Broker>, faults: FaultRules) -> Arc<Self> {
        Arc::new(Self { inner, faults, consumers: Mutex::default(), producers: AtomicUsize::default() })
    }
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.faults.call(&Call::OpenConsumer(spec), || self.inner.consumer(spec))?;
        let mut consumers = self.consumers.lock();
        let opened = consumers.entry(spec.group.clone()).or_default();
        let consumer = FaultyConsumer::new(inner, self.faults.clone(), spec.clone(), *opened);
        *opened += 1;
        Ok(Box::new(consumer))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let inner = self.faults.call(&Call::OpenProducer, || self.inner.producer(sink.clone()))?;
        let number = self.producers.fetch_add(1, SeqCst);
        Ok(Arc::new(FaultyProducer::new(inner, sink, self.faults.clone(), number)))
    }

    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        let open = || self.inner.transactional_producer(name);
        let inner = self.faults.call(&Call::OpenTransactionalProducer, open)?;
        Ok(Box::new(FaultyTransactionalProducer { inner, faults: self.faults.clone() }))
    }

    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        self.faults.call(&Call::OfBroker, || self.inner.topics(prefix, deadline))
    }

    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        self.faults.call(&Call::OfBroker, || self.inner.apply_topics(topics, deadline))
    }

    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        self.faults.call(&Call::Watermarks(partition), || self.inner.watermarks(partition, deadline))
    }

    fn first_visible(
        &self,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        self.faults.call(&Call::OfBroker, || self.inner.first_visible(partition, offset, deadline))
    }

    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        self.faults.call(&Call::GroupOffsets, || self.inner.group_offsets(group, partitions, deadline))
    }

    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError> {
        self.faults.call(&Call::OfBroker, || self.inner.set_group_offsets(group, commits, deadline))
    }
}
