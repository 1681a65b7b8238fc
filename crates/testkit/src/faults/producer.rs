//! Producers whose calls follow rules.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{
    BrokerError, DeliverySink, MakeDependents, Producer, ProducerRecord, Record, RecordRef, TransactionalProducer,
};
use parking_lot::Mutex;

use super::rule::{Effect, Rule};
use super::{Call, FaultRules, Verdict};

pub(super) struct FaultyProducer {
    inner: Arc<dyn Producer>,
    sink: Arc<dyn DeliverySink>,
    faults: FaultRules,
    /// Number of producers opened before this one.
    number: usize,
    /// Error after which the producer has to be replaced.
    failed: Mutex<Option<BrokerError>>,
}

/// A record that a rule holds back.
pub(super) struct HeldRecord {
    producer: Arc<dyn Producer>,
    sink: Arc<dyn DeliverySink>,
    number: usize,
    token: u64,
    partition: Option<i32>,
    pub(super) record: Record,
}

impl HeldRecord {
    /// Sends the record after all.
    pub(super) fn send(self) {
        let Record { topic, key, value, headers, .. } = &self.record;
        let headers: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let (key, value) = (key.as_deref(), value.as_deref());
        let record = ProducerRecord { topic, partition: self.partition, key, value, headers: &headers };
        self.producer.send(&record, self.token).expect("the broker accepts a record that was held back");
    }

    fn purge(self) {
        report_undelivered(&*self.sink, self.token, &self.record, BrokerError::Purged);
    }
}

fn owned(record: &ProducerRecord<'_>) -> Record {
    Record {
        topic: record.topic.into(),
        partition: record.partition.unwrap_or(-1),
        offset: -1,
        timestamp_ms: -1,
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: record.headers.iter().map(|(name, value)| ((*name).to_owned(), Some(value.to_vec()))).collect(),
    }
}

fn report_undelivered(sink: &dyn DeliverySink, token: u64, record: &Record, error: BrokerError) {
    let record = RecordRef {
        topic: &record.topic,
        partition: record.partition,
        offset: record.offset,
        timestamp_ms: record.timestamp_ms,
        log_append_time: false,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &record.headers,
    };
    sink.delivered(token, Err((error, &record)));
}

impl FaultyProducer {
    pub(super) fn new(
        inner: Arc<dyn Producer>,
        sink: Arc<dyn DeliverySink>,
        faults: FaultRules,
        number: usize,
    ) -> Self {
        Self { inner, sink, faults, number, failed: Mutex::default() }
    }

    /// Keeps or refuses a record as the rule says.
    fn send_under(&self, rule: &Rule, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        match &rule.effect {
            Effect::Hold => {
                let (producer, sink) = (self.inner.clone(), self.sink.clone());
                let (number, partition, record) = (self.number, record.partition, owned(record));
                rule.hold_record(HeldRecord { producer, sink, number, token, partition, record });
                Ok(())
            }
            Effect::Undelivered(error) => {
                report_undelivered(&*self.sink, token, &owned(record), error.clone());
                Ok(())
            }
            _ => self.inner.send(record, token),
        }
    }

    /// Discards the records that rules hold back.
    fn purge_held(&self) {
        let rules = self.faults.shared.rules.lock().clone();
        let is_own = |held: &mut HeldRecord| held.number == self.number;
        let held: Vec<HeldRecord> =
            rules.iter().flat_map(|rule| rule.held.lock().extract_if(.., is_own).collect::<Vec<_>>()).collect();
        held.into_iter().for_each(HeldRecord::purge);
    }

    /// Fails as librdkafka does: unsent records are purged, and nothing more is accepted.
    fn fail(&self, error: &BrokerError) {
        if matches!(error, BrokerError::Fatal(_)) {
            *self.failed.lock() = Some(error.clone());
            self.purge_held();
        }
    }
}

impl Producer for FaultyProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        if let Some(error) = &*self.failed.lock() {
            return Err(error.clone());
        }
        let call = Call::Send { producer: self.number, record };
        match self.faults.judge(&call).inspect_err(|error| self.fail(error))? {
            Verdict::Answer(value) => {
                let () = Verdict::answer(value);
                Ok(())
            }
            Verdict::Special(rule) => self.send_under(&rule, record, token),
            Verdict::Make | Verdict::LoseReply(_) => self.inner.send(record, token),
        }
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        self.inner.flush(deadline)
    }

    fn purge(&self) {
        self.purge_held();
        self.inner.purge();
    }
}

pub(super) struct FaultyTransactionalProducer {
    pub(super) inner: Box<dyn TransactionalProducer>,
    pub(super) faults: FaultRules,
}

impl TransactionalProducer for FaultyTransactionalProducer {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        make_dependents: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let faults = &self.faults;
        let mut make = |offsets: &[(i32, i64)]| {
            let dependents = make_dependents(offsets)?;
            faults.call(&Call::Dependents(&dependents), || Ok(dependents.clone()))
        };
        faults.call(&Call::Transaction(records), || self.inner.send_with_dependents(records, &mut make, deadline))
    }
}
