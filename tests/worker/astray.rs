//! Partitions whose place lies outside their log: retention was faster, or the topic was made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafleet::broker::memory::Memory;
use kafleet::broker::{
    Broker, BrokerError, Commit, Consumer, ConsumerSpec, DeliverySink, GroupEvent, OwnedHeaders, ProducerRecord, Watermarks,
};
use kafleet::broker::{Partition, Producer, Record, RecordRef};
use kafleet::control::{ControlKey, ControlRecord, Offsets};
use kafleet::model::offsets::Metadata;
use parking_lot::Mutex;
use serde_json::Value;

use crate::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::types::{Gate, Journal, Kind, counted, ok};

/// What is in the way of the broker in memory, while it is set.
#[derive(Default)]
struct Switches {
    /// Nobody says where the logs of tasks end.
    silent: AtomicBool,
    /// The logs of tasks look empty, and their readers hear of it.
    anew: AtomicBool,
    /// Events are kept back; the first one after that takes them along.
    holding: AtomicBool,
}

impl Switches {
    fn is_on(switch: &AtomicBool) -> bool {
        switch.load(Ordering::SeqCst)
    }
}

struct Odd {
    inner: Arc<Memory>,
    switches: Arc<Switches>,
}

struct OddConsumer {
    inner: Box<dyn Consumer>,
    switches: Arc<Switches>,
    told: bool,
    held: Vec<Partition>,
}

struct Holding {
    inner: Arc<dyn Producer>,
    switches: Arc<Switches>,
    held: Mutex<Vec<(u64, Record)>>,
}

impl Consumer for OddConsumer {
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError> {
        let mut events = self.inner.poll(max, wait, sink)?;
        if Switches::is_on(&self.switches.anew) && !std::mem::replace(&mut self.told, true) {
            events.extend(self.held.iter().cloned().map(GroupEvent::OutOfRange));
        }
        Ok(events)
    }

    fn assign(&mut self, starts: &[(Partition, kafleet::broker::StartOffset)]) -> Result<(), BrokerError> {
        self.held.extend(starts.iter().map(|(partition, _)| partition.clone()));
        self.inner.assign(starts)
    }
    through!(release, commit, commit_sync, committed, pause, positions, close);
}

impl Holding {
    fn keep(&self, record: &ProducerRecord<'_>, token: u64) {
        let headers: OwnedHeaders = record.headers.iter().map(|(name, value)| (name.to_string(), Some(value.to_vec()))).collect();
        let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
        let (topic, partition) = (record.topic.into(), record.partition.unwrap_or(-1));
        self.held.lock().push((token, Record { topic, partition, offset: -1, timestamp_ms: -1, key, value, headers }));
    }

    fn let_go(&self) {
        for (token, record) in self.held.lock().drain(..) {
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let partition = (record.partition >= 0).then_some(record.partition);
            self.inner.send(&ProducerRecord { topic: &record.topic, partition, key, value, headers: &[] }, token).unwrap();
        }
    }
}

impl Producer for Holding {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let is_event = record.topic.ends_with(".events");
        if is_event && Switches::is_on(&self.switches.holding) {
            self.keep(record, token);
            return Ok(());
        }
        if is_event {
            self.let_go();
        }
        self.inner.send(record, token)
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        self.inner.flush(deadline)
    }

    fn purge(&self) {
        self.inner.purge();
    }
}

impl Broker for Odd {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.consumer(spec)?;
        if spec.group.is_none() {
            return Ok(inner);
        }
        Ok(Box::new(OddConsumer { inner, switches: self.switches.clone(), told: false, held: Vec::new() }))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let inner = self.inner.producer(sink)?;
        Ok(Arc::new(Holding { inner, switches: self.switches.clone(), held: Mutex::default() }))
    }

    fn ends(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        let of_tasks = partition.topic.contains(".tasks.");
        if of_tasks && Switches::is_on(&self.switches.silent) {
            return Err(BrokerError::Unavailable("no answer in time".into()));
        }
        if of_tasks && Switches::is_on(&self.switches.anew) {
            return Ok(Watermarks { first: 0, end: 0 });
        }
        self.inner.ends(partition, deadline)
    }
    through!(atomic_producer, topics, apply_topics, look, group_offsets, set_group_offsets);
}

async fn odd(kind: Kind) -> (Fleet, Arc<Memory>, Arc<Switches>) {
    let (mut fleet, inner) = memory(1, &[kind]).await;
    let switches = Arc::new(Switches::default());
    fleet.broker = Arc::new(Odd { inner: inner.clone(), switches: switches.clone() });
    (fleet, inner, switches)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_place_was_removed_is_read_on_as_soon_as_the_broker_answers() {
    let journal = Journal::default();
    let (fleet, inner, switches) = odd(counted("removed", &journal)).await;
    fleet.send_many("removed", "t", 10, "0").await;
    let partition = Partition::new(fleet.names.tasks("removed"), 0);
    let commit = Commit { partition: partition.clone(), offset: 2, metadata: "kf1 clean 2 0 -".into() };
    inner.set_group_offsets(&fleet.names.group("removed"), &[commit], DEADLINE).unwrap();
    inner.truncate_before(&partition, 5).unwrap();
    switches.silent.store(true, Ordering::SeqCst);
    let worker = fleet.worker();
    let told = || worker.health.reasons().into_iter().any(|(part, why)| part.ends_with("/0") && why.contains("outside its log"));
    until("the health names the partition", told).await;
    switches.silent.store(false, Ordering::SeqCst);
    fleet.wait_for_results(5).await;
    until("all is well", || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    assert_eq!(journal.started(), 5, "what was left: {:?}", journal.starts());
    fleet.assert_clean("removed").await;
}

/// Tasks that end at once the first time, and wait at the gate when they come again.
fn gated_again(journal: &Journal, gate: &Gate) -> Kind {
    let (journal, gate) = (journal.clone(), gate.clone());
    Kind::new("anew", move |_, cx| {
        let (journal, gate) = (journal.clone(), gate.clone());
        async move {
            let _run = journal.begin(&cx);
            if journal.counts()[cx.id.as_str()] > 1 {
                gate.pass(cx.id.as_str()).await;
            }
            ok(Value::Null)
        }
    })
}

/// The late answers of the log before are none for what has their offsets now.
#[tokio::test(flavor = "multi_thread")]
async fn late_answers_say_nothing_of_a_topic_made_anew() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _, switches) = odd(gated_again(&journal, &gate)).await;
    fleet.send_many("anew", "t", 5, "0").await;
    switches.holding.store(true, Ordering::SeqCst);
    let worker = fleet.worker();
    until("all have run", || journal.started() == 5).await;
    switches.anew.store(true, Ordering::SeqCst);
    until("it is refused", || worker.health.reasons().iter().any(|(_, why)| why.contains("made anew"))).await;
    switches.anew.store(false, Ordering::SeqCst);
    fleet.order(ControlKey::Offsets("anew".into(), 0), ControlRecord::Offsets(Offsets { v: 1, at_ms: 0, offset: 0 })).await;
    until("what is there now runs", || journal.started() == 10).await;
    switches.holding.store(false, Ordering::SeqCst);
    // Its answer takes the late ones along.
    fleet.send("anew", "t5", "0").await;
    fleet.wait_for_results(6).await;
    let (end, mut committed) = (Instant::now() + DEADLINE, None);
    while !committed.as_ref().is_some_and(|metadata: &Metadata| metadata.completed.is_done(5)) {
        assert!(Instant::now() < end, "the last one is never committed: {committed:?}");
        pause().await;
        committed = fleet.committed("anew").await[0].as_ref().and_then(|told| Metadata::decode(told.offset, &told.metadata));
    }
    let completed = committed.unwrap().completed;
    assert_eq!((0..5).find(|offset| completed.is_done(*offset)), None, "they still run");
    gate.open();
    worker.stop().await;
    fleet.assert_clean("anew").await;
}
