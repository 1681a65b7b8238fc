//! A producer that cannot go on: what it still held comes back, and is sent by the one that replaces it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafleet::broker::memory::Memory;
use kafleet::broker::{Broker, BrokerError, Consumer, ConsumerSpec, DeliverySink, OwnedHeaders, Producer, Record, RecordRef};
use kafleet::broker::{Partition, ProducerRecord};
use kafleet::handlers::Child;
use kafleet::model::event::Kind as EventKind;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fleet::{Fleet, memory, until};
use crate::types::{Journal, Kind, counted, ok};

/// A broker in memory whose first producer fails for good: it keeps what is sent to topics whose names contain `held`, and
/// gives it all back once it has so much.
struct Failing {
    inner: Arc<Memory>,
    held: &'static str,
    most: usize,
    opened: AtomicBool,
    /// So many producers cannot be opened after the first.
    unopened: Mutex<usize>,
    failed: Arc<AtomicBool>,
}

struct Mortal {
    inner: Arc<dyn Producer>,
    sink: Arc<dyn DeliverySink>,
    held: &'static str,
    most: usize,
    keeps: Mutex<Vec<(u64, Record)>>,
    failed: Arc<AtomicBool>,
}

impl Mortal {
    /// As librdkafka does: what waits is purged, and nothing is accepted any more.
    fn fail(&self) -> BrokerError {
        self.failed.store(true, Ordering::SeqCst);
        for (token, record) in self.keeps.lock().drain(..) {
            let lent = RecordRef {
                topic: &record.topic,
                partition: record.partition,
                offset: -1,
                timestamp_ms: -1,
                log_append_time: false,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &record.headers,
            };
            self.sink.delivered(token, Err((BrokerError::Purged, &lent)));
        }
        BrokerError::Fatal("out of order sequence number".into())
    }
}

impl Producer for Mortal {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        if self.failed.load(Ordering::SeqCst) || self.keeps.lock().len() >= self.most {
            return Err(self.fail());
        }
        if !record.topic.contains(self.held) {
            return self.inner.send(record, token);
        }
        let headers: OwnedHeaders = record.headers.iter().map(|(name, value)| (name.to_string(), Some(value.to_vec()))).collect();
        let Partition { topic, index } = Partition::new(record.topic, record.partition.unwrap_or(-1));
        let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
        self.keeps.lock().push((token, Record { topic, partition: index, offset: -1, timestamp_ms: -1, key, value, headers }));
        Ok(())
    }

    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        self.inner.flush(deadline)
    }

    fn purge(&self) {
        self.inner.purge();
    }
}

impl Broker for Failing {
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        if !self.opened.swap(true, Ordering::SeqCst) {
            let (inner, keeps) = (self.inner.producer(sink.clone())?, Mutex::default());
            let (held, most, failed) = (self.held, self.most, self.failed.clone());
            return Ok(Arc::new(Mortal { inner, sink, held, most, keeps, failed }));
        }
        let mut unopened = self.unopened.lock();
        if *unopened > 0 {
            *unopened -= 1;
            return Err(BrokerError::Invalid("[kafka]: no thread could be started".into()));
        }
        self.inner.producer(sink)
    }
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        self.inner.consumer(spec)
    }
    through!(atomic_producer, topics, apply_topics, ends, look, group_offsets, set_group_offsets);
}

/// A fleet whose worker's first producer fails when it holds so many records of the topics that are meant.
async fn failing(kinds: &[Kind], held: &'static str, most: usize, unopened: usize) -> (Fleet, Arc<AtomicBool>) {
    let (mut fleet, inner) = memory(2, kinds).await;
    let failed = Arc::new(AtomicBool::new(false));
    let (opened, unopened) = (AtomicBool::new(false), Mutex::new(unopened));
    fleet.broker = Arc::new(Failing { inner, held, most, opened, unopened, failed: failed.clone() });
    (fleet, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_producer_gives_back_is_sent_by_the_next() {
    let journal = Journal::default();
    let (fleet, failed) = failing(&[counted("purged", &journal)], ".events", 40, 0).await;
    fleet.send_many("purged", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert!(results.iter().all(|event| event.kind == EventKind::Succeeded));
    assert_eq!(journal.started(), 300, "what is done is told again, not done again");
    fleet.wait_committed("purged").await;
    worker.stop().await;
    fleet.assert_clean("purged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_wait_for_a_producer_that_cannot_be_replaced_at_once() {
    let journal = Journal::default();
    let (fleet, failed) = failing(&[counted("late", &journal)], ".events", 40, 2).await;
    fleet.send_many("late", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert!(results.iter().all(|event| event.kind == EventKind::Succeeded), "and none fails for it");
    assert_eq!(journal.started(), 300);
    fleet.wait_committed("late").await;
    worker.stop().await;
    fleet.assert_clean("late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_does_not_fail_for_children_that_came_back() {
    let parent = Kind::new("parent", |_: Value, cx| async move {
        (0..5).for_each(|n| cx.spawn_child(Child::new("child", json!(n))));
        ok(json!(null))
    });
    let (fleet, failed) = failing(&[parent, Kind::echo("child")], "tasks.child", 3, 0).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("p").await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert_eq!((end.kind, end.error), (EventKind::Succeeded, None));
    fleet.wait_for_results(6).await;
    until("nothing is wrong any more", || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    fleet.assert_clean("parent").await;
    fleet.assert_clean("child").await;
}
