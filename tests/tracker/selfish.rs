//! A broker whose trackers each believe that all partitions are theirs, as one does that its group has given up without
//! its knowledge.

use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::{
    AtomicProducer, Broker, BrokerError, Commit, Committed, Consumer, ConsumerSpec, DeliverySink, Ends, GroupEvent, Partition,
    Producer, Record, RecordRef, Start, TopicInfo, TopicOutcome, TopicSpec,
};

pub struct SelfishBroker {
    pub inner: Arc<dyn Broker>,
    /// Whose members take everything.
    pub group: String,
    pub all: Vec<Partition>,
}

impl Broker for SelfishBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        if spec.group.as_ref() != Some(&self.group) {
            return self.inner.consumer(spec);
        }
        let alone = ConsumerSpec { group: None, topics: Vec::new(), ..spec.clone() };
        Ok(Box::new(Selfish { inner: self.inner.consumer(&alone)?, taken: Some(self.all.clone()) }))
    }
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        self.inner.producer(sink)
    }
    fn atomic_producer(&self, name: &str) -> Result<Box<dyn AtomicProducer>, BrokerError> {
        self.inner.atomic_producer(name)
    }
    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        self.inner.topics(prefix, deadline)
    }
    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        self.inner.apply_topics(topics, deadline)
    }
    fn ends(&self, partition: &Partition, deadline: Duration) -> Result<Ends, BrokerError> {
        self.inner.ends(partition, deadline)
    }
    fn read_at(&self, partition: &Partition, offset: i64, deadline: Duration) -> Result<Option<Record>, BrokerError> {
        self.inner.read_at(partition, offset, deadline)
    }
    fn group_offsets(&self, group: &str, at: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.inner.group_offsets(group, at, deadline)
    }
    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError> {
        self.inner.set_group_offsets(group, commits, deadline)
    }
}

struct Selfish {
    inner: Box<dyn Consumer>,
    taken: Option<Vec<Partition>>,
}

impl Consumer for Selfish {
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError> {
        match self.taken.take() {
            Some(all) => Ok(vec![GroupEvent::Assigned(all)]),
            None => self.inner.poll(max, wait, sink),
        }
    }
    fn assign(&mut self, starts: &[(Partition, Start)]) -> Result<(), BrokerError> {
        self.inner.assign(starts)
    }
    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.inner.release(partitions)
    }
    fn commit(&mut self, _: &[Commit]) -> Result<(), BrokerError> {
        Ok(())
    }
    fn commit_sync(&mut self, _: &[Commit]) -> Result<(), BrokerError> {
        Ok(())
    }
    fn committed(&mut self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.inner.committed(partitions, deadline)
    }
    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        self.inner.pause(partitions, paused)
    }
    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        self.inner.positions()
    }
    fn close(self: Box<Self>, deadline: Duration) {
        self.inner.close(deadline);
    }
}
