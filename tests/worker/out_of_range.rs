//! Partitions whose next offset is outside their log: retention was faster, or the topic was recreated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{
    Broker, BrokerError, Commit, Consumer, ConsumerSpec, DeliverySink, GroupEvent, OwnedHeaders, ProducerRecord,
    Watermarks,
};
use kafleet::broker::{Partition, Producer, Record, RecordRef};
use kafleet::control::{ControlKey, ControlRecord, Offsets};
use kafleet::model::offsets::Metadata;
use parking_lot::Mutex;
use serde_json::Value;

use crate::worker::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::worker::types::{Gate, Journal, Kind, counted, ok};

/// Faults of the in-memory broker, while they are set.
#[derive(Default)]
struct Faults {
    /// Watermarks of task topics cannot be read.
    silent: AtomicBool,
    /// Task topics look recreated: empty, with their consumers out of range.
    recreated: AtomicBool,
    /// Events are held back until the first one after the fault.
    holding: AtomicBool,
    /// Number of results held back.
    results_held: AtomicUsize,
}

impl Faults {
    fn is_on(switch: &AtomicBool) -> bool {
        switch.load(Ordering::SeqCst)
    }
}

struct FaultyBroker {
    inner: Arc<MemoryBroker>,
    faults: Arc<Faults>,
}

struct FaultyConsumer {
    inner: Box<dyn Consumer>,
    faults: Arc<Faults>,
    reported: bool,
    assigned: Vec<Partition>,
}

struct DelayingProducer {
    inner: Arc<dyn Producer>,
    faults: Arc<Faults>,
    held: Mutex<Vec<(u64, Record)>>,
}

impl Consumer for FaultyConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        let mut events = self.inner.poll(max, wait, sink)?;
        if Faults::is_on(&self.faults.recreated) && !std::mem::replace(&mut self.reported, true) {
            events.extend(self.assigned.iter().cloned().map(GroupEvent::OutOfRange));
        }
        Ok(events)
    }

    fn assign(&mut self, starts: &[(Partition, kafleet::broker::StartOffset)]) -> Result<(), BrokerError> {
        self.assigned.extend(starts.iter().map(|(partition, _)| partition.clone()));
        self.inner.assign(starts)
    }
    delegate!(Consumer via [inner]: release, commit, commit_sync, committed, pause, hold, positions, close);
}

impl DelayingProducer {
    fn keep(&self, record: &ProducerRecord<'_>, token: u64) {
        let headers: OwnedHeaders =
            record.headers.iter().map(|(name, value)| (name.to_string(), Some(value.to_vec()))).collect();
        let key = record.key.map(<[u8]>::to_vec);
        let value = record.value.map(<[u8]>::to_vec);
        let is_result =
            value.as_deref().is_some_and(|value| String::from_utf8_lossy(value).contains(r#""kind":"succeeded""#));
        self.faults.results_held.fetch_add(is_result.into(), Ordering::SeqCst);
        let topic = record.topic.into();
        let partition = record.partition.unwrap_or(-1);
        self.held.lock().push((token, Record { topic, partition, offset: -1, timestamp_ms: -1, key, value, headers }));
    }

    fn send_held(&self) {
        for (token, record) in self.held.lock().drain(..) {
            let key = record.key.as_deref();
            let value = record.value.as_deref();
            let partition = (record.partition >= 0).then_some(record.partition);
            self.inner
                .send(&ProducerRecord { topic: &record.topic, partition, key, value, headers: &[] }, token)
                .unwrap();
        }
    }
}

impl Producer for DelayingProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let is_event = record.topic.ends_with(".events");
        if is_event && Faults::is_on(&self.faults.holding) {
            self.keep(record, token);
            return Ok(());
        }
        if is_event {
            self.send_held();
        }
        self.inner.send(record, token)
    }

    delegate!(Producer via [inner]: flush, purge);
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.consumer(spec)?;
        if spec.group.is_none() {
            return Ok(inner);
        }
        Ok(Box::new(FaultyConsumer { inner, faults: self.faults.clone(), reported: false, assigned: Vec::new() }))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let inner = self.inner.producer(sink)?;
        Ok(Arc::new(DelayingProducer { inner, faults: self.faults.clone(), held: Mutex::default() }))
    }

    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        let of_tasks = partition.topic.contains(".tasks.");
        if of_tasks && Faults::is_on(&self.faults.silent) {
            return Err(BrokerError::Unavailable("no answer in time".into()));
        }
        if of_tasks && Faults::is_on(&self.faults.recreated) {
            return Ok(Watermarks { low: 0, high: 0 });
        }
        self.inner.watermarks(partition, deadline)
    }
    delegate!(Broker via [inner]: transactional_producer, topics, apply_topics, first_visible, group_offsets, set_group_offsets);
}

async fn faulty_fleet(kind: Kind) -> (Fleet, Arc<MemoryBroker>, Arc<Faults>) {
    let (mut fleet, inner) = memory(1, &[kind]).await;
    let faults = Arc::new(Faults::default());
    fleet.broker = Arc::new(FaultyBroker { inner: inner.clone(), faults: faults.clone() });
    (fleet, inner, faults)
}

#[tokio::test(flavor = "multi_thread")]
async fn partition_behind_its_log_continues_at_the_start_once_the_broker_answers() {
    let journal = Journal::default();
    let (fleet, inner, faults) = faulty_fleet(counted("removed", &journal)).await;
    fleet.send_many("removed", "t", 10, "0").await;
    let partition = Partition::new(fleet.names.tasks("removed"), 0);
    let commit = Commit { partition: partition.clone(), offset: 2, metadata: "kf1 clean 2 0 -".into() };
    inner.set_group_offsets(&fleet.names.group("removed"), &[commit], DEADLINE).unwrap();
    inner.truncate_before(&partition, 5).unwrap();
    faults.silent.store(true, Ordering::SeqCst);
    let worker = fleet.worker();
    let is_reported = || {
        worker.health.reasons().into_iter().any(|(part, why)| part.ends_with("/0") && why.contains("outside its log"))
    };
    until("the health names the partition", is_reported).await;
    faults.silent.store(false, Ordering::SeqCst);
    fleet.wait_for_results(5).await;
    until("the worker is healthy", || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    assert_eq!(journal.started(), 5, "remaining tasks: {:?}", journal.starts());
    fleet.assert_clean("removed").await;
}

/// A type whose tasks end at once the first time, and wait at the gate when they run again.
fn gated_on_repeat(journal: &Journal, gate: &Gate) -> Kind {
    let journal = journal.clone();
    let gate = gate.clone();
    Kind::new("recreated", move |_, cx| {
        let journal = journal.clone();
        let gate = gate.clone();
        async move {
            let _run = journal.begin(&cx);
            if journal.counts()[cx.id.as_str()] > 1 {
                gate.pass(cx.id.as_str()).await;
            }
            ok(Value::Null)
        }
    })
}

/// Late results of the old log must not complete records of the new one with the same offsets.
#[tokio::test(flavor = "multi_thread")]
async fn late_results_do_not_complete_offsets_of_a_recreated_topic() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _, faults) = faulty_fleet(gated_on_repeat(&journal, &gate)).await;
    fleet.send_many("recreated", "t", 5, "0").await;
    faults.holding.store(true, Ordering::SeqCst);
    let worker = fleet.worker();
    until("all tasks have run", || faults.results_held.load(Ordering::SeqCst) == 5).await;
    faults.recreated.store(true, Ordering::SeqCst);
    until("the partition is refused", || worker.health.reasons().iter().any(|(_, why)| why.contains("recreated")))
        .await;
    faults.recreated.store(false, Ordering::SeqCst);
    fleet
        .put_control(
            ControlKey::Offsets("recreated".into(), 0),
            ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 0 }),
        )
        .await;
    until("the tasks of the new log run", || journal.started() == 10).await;
    faults.holding.store(false, Ordering::SeqCst);
    // The result of this task releases the held events.
    fleet.send("recreated", "t5", "0").await;
    fleet.wait_for_results(6).await;
    let end = Instant::now() + DEADLINE;
    let mut committed = None;
    while !committed.as_ref().is_some_and(|metadata: &Metadata| metadata.completed.is_done(5)) {
        assert!(Instant::now() < end, "the last task is not committed: {committed:?}");
        pause().await;
        committed = fleet.committed("recreated").await[0]
            .as_ref()
            .and_then(|commit| Metadata::decode(commit.offset, &commit.metadata));
    }
    let completed = committed.unwrap().completed;
    assert_eq!((0..5).find(|offset| completed.is_done(*offset)), None, "running tasks are not committed as complete");
    gate.open();
    worker.stop().await;
    fleet.assert_clean("recreated").await;
}
