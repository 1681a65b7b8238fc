//! Atomic sends: the records, then one marker in every partition that was touched. Between the first ones and those that
//! follow them others may write, as in Kafka.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::faults::{SendFault, injected};
use super::log::{Payload, cost_of};
use super::{Core, State, topics};
use crate::broker::{BrokerError, DependentRecord, MakeDependents, Partition, ProducerRecord, TransactionalProducer};

/// What the broker knows of one name.
#[derive(Default)]
pub(super) struct Sender {
    /// Which opening of the name may send.
    epoch: u64,
    pub hold: bool,
    open: Option<Open>,
}

struct Open {
    send: u64,
    partitions: Vec<Partition>,
}

pub(super) struct MemoryTransactionalProducer {
    core: Arc<Core>,
    name: String,
    epoch: u64,
}

impl MemoryTransactionalProducer {
    pub fn open(core: Arc<Core>, name: &str) -> Self {
        let mut state = core.lock();
        state.settle_atomic(name, false);
        let sender = state.senders.entry(name.to_owned()).or_default();
        sender.epoch += 1;
        let epoch = sender.epoch;
        drop(state);
        Self { core, name: name.to_owned(), epoch }
    }
}

impl State {
    /// Commits or aborts what is open under a name.
    pub(super) fn settle_atomic(&mut self, name: &str, committed: bool) -> bool {
        let open = self.senders.get_mut(name).and_then(|sender| sender.open.take());
        if let Some(Open { send, partitions }) = &open {
            self.close(*send, partitions, committed);
        }
        open.is_some()
    }

    fn close(&mut self, send: u64, partitions: &[Partition], committed: bool) {
        for at in partitions {
            if let Ok(log) = topics::log_mut(&mut self.topics, at) {
                log.close(send, committed);
            }
        }
    }

    fn may_send(&self, name: &str, epoch: u64) -> Result<(), BrokerError> {
        match self.senders.get(name) {
            Some(sender) if sender.epoch != epoch => Err(BrokerError::Fenced(format!("`{name}` was opened again"))),
            Some(Sender { open: Some(_), .. }) => {
                Err(BrokerError::InDoubt(format!("the send before under `{name}` is still open; hint: open `{name}` again")))
            }
            _ => Ok(()),
        }
    }

    /// The partitions of a send that goes on, unless it was ended meanwhile by another opening of its name.
    fn take_open(&mut self, name: &str, send: u64) -> Result<Vec<Partition>, BrokerError> {
        let open = self.senders.get_mut(name).and_then(|sender| sender.open.take_if(|open| open.send == send));
        open.map(|open| open.partitions).ok_or_else(|| BrokerError::Fenced(format!("`{name}` was opened again")))
    }

    /// Finds each record's partition, and that all of them will be taken.
    fn plan(
        &mut self,
        core: &Core,
        records: &[ProducerRecord<'_>],
        now_ms: i64,
    ) -> Result<Vec<(Partition, Arc<Payload>)>, BrokerError> {
        let mut plan = Vec::with_capacity(records.len());
        let mut needs: BTreeMap<Partition, u64> = BTreeMap::new();
        for record in records {
            let payload = Arc::new(Payload::new(record, now_ms));
            let topic = topics::topic_mut(&mut self.topics, record.topic)?;
            let at = Partition::new(record.topic, topic.choose(record.topic, record.partition, record.key)?);
            topic.admits(record.topic, &payload)?;
            *needs.entry(at.clone()).or_default() += cost_of(&payload);
            plan.push((at, payload));
        }
        for (at, bytes) in &needs {
            core.has_room(&mut self.topics, at, *bytes, now_ms)?;
        }
        Ok(plan)
    }

    /// Writes records, all or none, and notes which partitions they are in.
    fn add(
        &mut self,
        core: &Core,
        send: u64,
        records: &[ProducerRecord<'_>],
        partitions: &mut Vec<Partition>,
        now_ms: i64,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let plan = self.plan(core, records, now_ms)?;
        partitions.extend(plan.iter().map(|(at, _)| at.clone()));
        partitions.sort_unstable();
        partitions.dedup();
        self.write(send, plan, now_ms)
    }

    fn write(&mut self, send: u64, plan: Vec<(Partition, Arc<Payload>)>, now_ms: i64) -> Result<Vec<(i32, i64)>, BrokerError> {
        let mut places = Vec::with_capacity(plan.len());
        for (at, payload) in plan {
            let topic = topics::topic_mut(&mut self.topics, &at.topic)?;
            places.push((at.index, topic.append(at.index, payload, now_ms, send)));
        }
        Ok(places)
    }
}

impl TransactionalProducer for MemoryTransactionalProducer {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        _deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        state.may_send(&self.name, self.epoch)?;
        let fault = state.dice.send();
        if fault == SendFault::Unavailable {
            return Err(injected());
        }
        let (send, mut partitions) = (state.new_id(), Vec::new());
        let mut places = state.add(&self.core, send, records, &mut partitions, now_ms)?;
        state.senders.entry(self.name.clone()).or_default().open = Some(Open { send, partitions });
        let followers = MutexGuard::unlocked(&mut state, || then(&places));
        let mut partitions = state.take_open(&self.name, send)?;
        let followers: Vec<ProducerRecord<'_>> = followers.iter().map(DependentRecord::outgoing).collect();
        match state.add(&self.core, send, &followers, &mut partitions, now_ms) {
            Ok(more) => places.extend(more),
            Err(error) => {
                // As Kafka does: what was written stays, and no reader is given it.
                state.close(send, &partitions, false);
                return Err(error);
            }
        }
        let sender = state.senders.entry(self.name.clone()).or_default();
        if sender.hold && !partitions.is_empty() {
            sender.open = Some(Open { send, partitions });
            return Err(BrokerError::InDoubt(format!("the send under `{}` is held open", self.name)));
        }
        state.close(send, &partitions, true);
        if fault == SendFault::LostAcknowledgement {
            return Err(BrokerError::InDoubt("a fault on purpose".to_owned()));
        }
        Ok(places)
    }
}
