//! A producer that fails permanently: its unsent records are sent by its replacement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{Broker, BrokerError, DeliverySink, OwnedHeaders, Producer, Record, RecordRef};
use kafleet::broker::{Partition, ProducerRecord};
use kafleet::handlers::Child;
use kafleet::model::event::Kind as EventKind;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, memory, until};
use crate::worker::types::{Journal, Kind, counted, ok};

/// In-memory broker whose first producer fails permanently: it holds the records of topics whose names contain
/// `held`, and returns all of them undelivered once it holds `most`.
struct FailingBroker {
    inner: Arc<MemoryBroker>,
    held: &'static str,
    most: usize,
    opened: AtomicBool,
    /// Number of producers after the first that cannot be opened.
    unopened: Mutex<usize>,
    failed: Arc<AtomicBool>,
}

struct FailingProducer {
    inner: Arc<dyn Producer>,
    sink: Arc<dyn DeliverySink>,
    held: &'static str,
    most: usize,
    holding: Mutex<Vec<(u64, Record)>>,
    failed: Arc<AtomicBool>,
}

impl FailingProducer {
    /// Fails as librdkafka does: unsent records are purged, and nothing more is accepted.
    fn fail(&self) -> BrokerError {
        self.failed.store(true, Ordering::SeqCst);
        for (token, record) in self.holding.lock().drain(..) {
            let purged = RecordRef {
                topic: &record.topic,
                partition: record.partition,
                offset: -1,
                timestamp_ms: -1,
                log_append_time: false,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &record.headers,
            };
            self.sink.delivered(token, Err((BrokerError::Purged, &purged)));
        }
        BrokerError::Fatal("out of order sequence number".into())
    }
}

impl Producer for FailingProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        if self.failed.load(Ordering::SeqCst) || self.holding.lock().len() >= self.most {
            return Err(self.fail());
        }
        if !record.topic.contains(self.held) {
            return self.inner.send(record, token);
        }
        let headers: OwnedHeaders =
            record.headers.iter().map(|(name, value)| (name.to_string(), Some(value.to_vec()))).collect();
        let Partition { topic, index } = Partition::new(record.topic, record.partition.unwrap_or(-1));
        let key = record.key.map(<[u8]>::to_vec);
        let value = record.value.map(<[u8]>::to_vec);
        self.holding
            .lock()
            .push((token, Record { topic, partition: index, offset: -1, timestamp_ms: -1, key, value, headers }));
        Ok(())
    }

    delegate!(Producer via [inner]: flush, purge);
}

impl Broker for FailingBroker {
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        if !self.opened.swap(true, Ordering::SeqCst) {
            let inner = self.inner.producer(sink.clone())?;
            let holding = Mutex::default();
            let held = self.held;
            let most = self.most;
            let failed = self.failed.clone();
            return Ok(Arc::new(FailingProducer { inner, sink, held, most, holding, failed }));
        }
        let mut unopened = self.unopened.lock();
        if *unopened > 0 {
            *unopened -= 1;
            return Err(BrokerError::Invalid("[kafka]: no thread could be started".into()));
        }
        self.inner.producer(sink)
    }
    delegate!(Broker via [inner]: consumer, transactional_producer, topics, apply_topics, watermarks, first_visible, group_offsets, set_group_offsets);
}

/// Creates a fleet whose worker's first producer fails when it holds `most` records of the topics that contain
/// `held`.
async fn failing_fleet(kinds: &[Kind], held: &'static str, most: usize, unopened: usize) -> (Fleet, Arc<AtomicBool>) {
    let (mut fleet, inner) = memory(2, kinds).await;
    let failed = Arc::new(AtomicBool::new(false));
    let opened = AtomicBool::new(false);
    let unopened = Mutex::new(unopened);
    fleet.broker = Arc::new(FailingBroker { inner, held, most, opened, unopened, failed: failed.clone() });
    (fleet, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_failed_producer_are_sent_by_its_replacement() {
    let journal = Journal::default();
    let (fleet, failed) = failing_fleet(&[counted("purged", &journal)], ".events", 40, 0).await;
    fleet.send_many("purged", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded));
    assert_eq!(journal.started(), 300, "results are sent again; tasks do not run again");
    fleet.wait_committed("purged").await;
    worker.stop().await;
    fleet.assert_clean("purged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_wait_until_a_failed_producer_is_replaced() {
    let journal = Journal::default();
    let (fleet, failed) = failing_fleet(&[counted("late", &journal)], ".events", 40, 2).await;
    fleet.send_many("late", "t", 300, "0").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(300).await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "no task fails");
    assert_eq!(journal.started(), 300);
    fleet.wait_committed("late").await;
    worker.stop().await;
    fleet.assert_clean("late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_children_do_not_fail_their_parent() {
    let parent = Kind::new("parent", |_: Value, cx| async move {
        (0..5).for_each(|n| cx.spawn_child(Child::new("child", json!(n))));
        ok(json!(null))
    });
    let (fleet, failed) = failing_fleet(&[parent, Kind::echo("child")], "tasks.child", 3, 0).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("p").await;
    assert!(failed.load(Ordering::SeqCst), "the first producer failed");
    assert_eq!((end.kind(), end.payload.error()), (EventKind::Succeeded, None));
    fleet.wait_for_results(6).await;
    until("the worker is healthy", || worker.health.reasons().is_empty()).await;
    worker.stop().await;
    fleet.assert_clean("parent").await;
    fleet.assert_clean("child").await;
}
