//! A broker whose consumers are assigned all partitions regardless of the group, like a member that was evicted
//! without noticing.

use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::{Broker, BrokerError, Commit, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef};

pub struct SelfishBroker {
    pub inner: Arc<dyn Broker>,
    /// Group whose members are assigned everything.
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
    delegate!(Broker via [inner]: producer, transactional_producer, topics, apply_topics, watermarks, first_visible, group_offsets, set_group_offsets);
}

struct Selfish {
    inner: Box<dyn Consumer>,
    taken: Option<Vec<Partition>>,
}

impl Consumer for Selfish {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        match self.taken.take() {
            Some(all) => Ok(vec![GroupEvent::Assigned(all)]),
            None => self.inner.poll(max, wait, sink),
        }
    }
    fn commit(&mut self, _: &[Commit]) -> Result<(), BrokerError> {
        Ok(())
    }
    fn commit_sync(&mut self, _: &[Commit]) -> Result<(), BrokerError> {
        Ok(())
    }
    delegate!(Consumer via [inner]: assign, release, committed, pause, hold, positions, close);
}
