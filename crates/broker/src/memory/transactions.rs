//! Transactions of the in-memory broker. A transaction appends its records, then a marker to each of their partitions.
//! As in Kafka, other producers may write between the first records and their dependents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::faults::{SendFault, injected};
use super::log::{RecordContents, cost_of};
use super::{BrokerState, Core, topics};
use crate::{BrokerError, DependentRecord, MakeDependents, Partition, ProducerRecord, TransactionalProducer};

/// State of a transactional id.
#[derive(Default)]
pub(super) struct TransactionalId {
    /// Epoch of the producer that may send.
    epoch: u64,
    /// Leaves transactions open instead of committing them; set by tests.
    pub hold: bool,
    open: Option<OpenTransaction>,
}

struct OpenTransaction {
    transaction: u64,
    partitions: Vec<Partition>,
}

pub(super) struct MemoryTransactionalProducer {
    core: Arc<Core>,
    name: String,
    epoch: u64,
}

impl MemoryTransactionalProducer {
    pub(super) fn open(core: Arc<Core>, name: &str) -> Self {
        let mut state = core.lock();
        state.end_transaction(name, false);
        let id_state = state.transactional_ids.entry(name.to_owned()).or_default();
        id_state.epoch += 1;
        let epoch = id_state.epoch;
        drop(state);
        Self { core, name: name.to_owned(), epoch }
    }
}

impl BrokerState {
    /// Commits or aborts the open transaction of a transactional id. Returns whether there was one.
    pub(super) fn end_transaction(&mut self, name: &str, committed: bool) -> bool {
        let open = self.transactional_ids.get_mut(name).and_then(|id_state| id_state.open.take());
        if let Some(OpenTransaction { transaction, partitions }) = &open {
            self.end(*transaction, partitions, committed);
        }
        open.is_some()
    }

    fn end(&mut self, transaction: u64, partitions: &[Partition], committed: bool) {
        for at in partitions {
            if let Ok(log) = topics::log_mut(&mut self.topics, at) {
                log.end_transaction(transaction, committed);
            }
        }
    }

    fn check_epoch(&self, name: &str, epoch: u64) -> Result<(), BrokerError> {
        match self.transactional_ids.get(name) {
            Some(id_state) if id_state.epoch != epoch => Err(BrokerError::Fenced(format!("`{name}` was opened again"))),
            Some(TransactionalId { open: Some(_), .. }) => Err(BrokerError::InDoubt(format!(
                "the previous transaction of `{name}` is still open; hint: open `{name}` again"
            ))),
            _ => Ok(()),
        }
    }

    /// Takes the partitions of an open transaction, to continue it. Fails if it was ended because another producer was
    /// opened with the same transactional id.
    fn take_open(&mut self, name: &str, transaction: u64) -> Result<Vec<Partition>, BrokerError> {
        let open = self
            .transactional_ids
            .get_mut(name)
            .and_then(|id_state| id_state.open.take_if(|open| open.transaction == transaction));
        open.map(|open| open.partitions).ok_or_else(|| BrokerError::Fenced(format!("`{name}` was opened again")))
    }

    /// Chooses each record's partition and checks that all records will be accepted.
    fn plan(
        &mut self,
        core: &Core,
        records: &[ProducerRecord<'_>],
        now_ms: i64,
    ) -> Result<Vec<(Partition, Arc<RecordContents>)>, BrokerError> {
        let mut plan = Vec::with_capacity(records.len());
        let mut needs: BTreeMap<Partition, u64> = BTreeMap::new();
        for record in records {
            let payload = Arc::new(RecordContents::new(record, now_ms));
            let topic = topics::topic_mut(&mut self.topics, record.topic)?;
            let at = Partition::new(record.topic, topic.choose_partition(record.topic, record.partition, record.key)?);
            topic.check_record(record.topic, &payload)?;
            *needs.entry(at.clone()).or_default() += cost_of(&payload);
            plan.push((at, payload));
        }
        for (at, bytes) in &needs {
            core.has_room(&mut self.topics, at, *bytes, now_ms)?;
        }
        Ok(plan)
    }

    /// Writes all records or none, and adds their partitions to `partitions`.
    fn add(
        &mut self,
        core: &Core,
        transaction: u64,
        records: &[ProducerRecord<'_>],
        partitions: &mut Vec<Partition>,
        now_ms: i64,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let plan = self.plan(core, records, now_ms)?;
        partitions.extend(plan.iter().map(|(at, _)| at.clone()));
        partitions.sort_unstable();
        partitions.dedup();
        self.write(transaction, plan, now_ms)
    }

    fn write(
        &mut self,
        transaction: u64,
        plan: Vec<(Partition, Arc<RecordContents>)>,
        now_ms: i64,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let mut offsets = Vec::with_capacity(plan.len());
        for (at, payload) in plan {
            let topic = topics::topic_mut(&mut self.topics, &at.topic)?;
            offsets.push((at.index, topic.append(at.index, payload, now_ms, transaction)));
        }
        Ok(offsets)
    }
}

impl TransactionalProducer for MemoryTransactionalProducer {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        make_dependents: &mut MakeDependents<'_>,
        _deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        state.check_epoch(&self.name, self.epoch)?;
        let fault = state.faults.send();
        if fault == SendFault::Unavailable {
            return Err(injected());
        }
        let (transaction, mut partitions) = (state.new_id(), Vec::new());
        let mut offsets = state.add(&self.core, transaction, records, &mut partitions, now_ms)?;
        state.transactional_ids.entry(self.name.clone()).or_default().open =
            Some(OpenTransaction { transaction, partitions });
        let dependents = MutexGuard::unlocked(&mut state, || make_dependents(&offsets));
        let mut partitions = state.take_open(&self.name, transaction)?;
        let added = dependents.and_then(|dependents| {
            let dependents: Vec<ProducerRecord<'_>> = dependents.iter().map(DependentRecord::outgoing).collect();
            state.add(&self.core, transaction, &dependents, &mut partitions, now_ms)
        });
        match added {
            Ok(more) => offsets.extend(more),
            Err(error) => {
                // As in Kafka, written records stay in the log, invisible to read-committed consumers.
                state.end(transaction, &partitions, false);
                return Err(error);
            }
        }
        let id_state = state.transactional_ids.entry(self.name.clone()).or_default();
        if id_state.hold && !partitions.is_empty() {
            id_state.open = Some(OpenTransaction { transaction, partitions });
            return Err(BrokerError::InDoubt(format!("the transaction of `{}` is held open", self.name)));
        }
        state.end(transaction, &partitions, true);
        if fault == SendFault::LostAcknowledgement {
            return Err(BrokerError::InDoubt("injected fault".to_owned()));
        }
        Ok(offsets)
    }
}
