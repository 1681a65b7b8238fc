//! A broker that refuses: missing permissions, and consumers that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{
    Broker, BrokerError, Consumer, ConsumerSpec, DeliverySink, GroupEvent, Producer, ProducerRecord, RecordRef,
};
use kafleet::control::heartbeat::HeartbeatState;
use kafleet::handlers::{Child, Failure};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, memory, until};
use crate::worker::heartbeats::last_heartbeat;
use crate::worker::types::{Gate, Journal, Kind, counted, ok};

/// In-memory broker with faults.
struct FaultyBroker {
    inner: Arc<MemoryBroker>,
    /// Topics whose names contain this refuse records while `denying` is set.
    denied: &'static str,
    denying: Arc<AtomicBool>,
    /// Number of group consumers that still fail, each after its first records.
    failing: Arc<AtomicUsize>,
}

struct DenyingProducer {
    inner: Arc<dyn Producer>,
    sink: Arc<dyn DeliverySink>,
    denied: &'static str,
    denying: Arc<AtomicBool>,
}

struct FailingConsumer {
    inner: Box<dyn Consumer>,
    failing: Arc<AtomicUsize>,
    taken: usize,
    broken: bool,
}

impl Producer for DenyingProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        if !self.denying.load(Ordering::SeqCst) || !record.topic.contains(self.denied) {
            return self.inner.send(record, token);
        }
        let headers = Vec::new();
        let refused = RecordRef {
            topic: record.topic,
            partition: record.partition.unwrap_or(-1),
            offset: -1,
            timestamp_ms: -1,
            log_append_time: false,
            key: record.key,
            value: record.value,
            headers: &headers,
        };
        self.sink.delivered(token, Err((BrokerError::Denied("topic authorization failed".into()), &refused)));
        Ok(())
    }

    delegate!(Producer via [inner]: flush, purge);
}

impl Consumer for FailingConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        let left = |failing: usize| failing.checked_sub(1);
        self.broken |= self.taken > 100 && self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
        if self.broken {
            return Err(BrokerError::Fatal("the client instance is fenced".into()));
        }
        let taken = &mut self.taken;
        self.inner.poll(max.min(50), wait, &mut |record| {
            *taken += 1;
            sink(record);
        })
    }
    delegate!(Consumer via [inner]: assign, release, commit, commit_sync, committed, pause, hold, positions, close);
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.consumer(spec)?;
        if spec.group.is_none() {
            return Ok(inner);
        }
        Ok(Box::new(FailingConsumer { inner, failing: self.failing.clone(), taken: 0, broken: false }))
    }
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let inner = self.inner.producer(sink.clone())?;
        Ok(Arc::new(DenyingProducer { inner, sink, denied: self.denied, denying: self.denying.clone() }))
    }
    delegate!(Broker via [inner]: transactional_producer, topics, apply_topics, watermarks, first_visible, group_offsets, set_group_offsets);
}

/// Creates a fleet on the faulty broker.
async fn faulty_fleet(kind: Kind, denied: &'static str, failing: usize) -> (Fleet, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let (mut fleet, inner) = memory(2, &[kind]).await;
    let denying = Arc::new(AtomicBool::new(!denied.is_empty()));
    let failing = Arc::new(AtomicUsize::new(failing));
    let switch = denying.clone();
    let left = failing.clone();
    fleet.broker = Arc::new(FaultyBroker { inner, denied, denying, failing });
    (fleet, switch, left)
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_consumer_is_recreated() {
    let journal = Journal::default();
    let (fleet, _, left) = faulty_fleet(counted("broken", &journal), "", 2).await;
    fleet.send_many("broken", "t", 2_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(2_000).await;
    assert_eq!(left.load(Ordering::SeqCst), 0, "two consumers failed");
    worker.ready().await;
    fleet.wait_committed("broken").await;
    worker.stop().await;
    fleet.assert_clean("broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_dead_letters_hold_back_their_tasks() {
    let kind = Kind::new("dying", |_, _| async move { Err(Failure::dead("no")) });
    let (fleet, denying, _) = faulty_fleet(kind, ".dead.", 0).await;
    fleet.send("dying", "d", "0").await;
    let worker = fleet.worker();
    until("the health report contains the reason", || {
        worker.health.reasons().iter().any(|(part, _)| part == "dead letters of dying")
    })
    .await;
    assert!(fleet.results().is_empty(), "a task is not complete before its dead letter is written");
    denying.store(false, Ordering::SeqCst);
    assert_eq!(fleet.dead("dying", 1).await[0].code, "dead");
    assert_eq!(fleet.result_of("d").await.kind(), EventKind::Failed);
    worker.ready().await;
    worker.stop().await;
    fleet.assert_clean("dying").await;
}

/// The start of the task was published, and its outcome is not.
#[tokio::test(flavor = "multi_thread")]
async fn unwritten_dead_letter_is_unfinished_when_its_worker_stops() {
    let gate = Gate::closed();
    let opened = gate.clone();
    let kind = Kind::new("dying", move |_, _| {
        let gate = gate.clone();
        async move {
            gate.pass("d").await;
            Err(Failure::dead("no"))
        }
    });
    let (mut fleet, _, _) = faulty_fleet(kind, ".dead.", 0).await;
    fleet.config.drain_timeout = Millis(100);
    fleet.send("dying", "d", "0").await;
    let worker = fleet.worker();
    until("the start of the task is published", || fleet.kinds_of("d").iter().any(|kind| kind == "started")).await;
    opened.open();
    until("the health report contains the reason", || {
        worker.health.reasons().iter().any(|(part, _)| part == "dead letters of dying")
    })
    .await;
    worker.stop().await;
    let heartbeat = last_heartbeat(&fleet).await;
    assert_eq!((heartbeat.state, heartbeat.unfinished), (HeartbeatState::Stopped, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_results_are_retried() {
    let journal = Journal::default();
    let (fleet, denying, _) = faulty_fleet(counted("quiet", &journal), ".events", 0).await;
    fleet.send_many("quiet", "t", 300, "0").await;
    let worker = fleet.worker();
    until("the health report contains the reason", || {
        worker.health.reasons().iter().any(|(part, _)| part == "results")
    })
    .await;
    denying.store(false, Ordering::SeqCst);
    fleet.wait_for_results(300).await;
    assert_eq!(journal.started(), 300, "results are sent again; tasks do not run again");
    worker.ready().await;
    worker.stop().await;
    fleet.assert_clean("quiet").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn child_without_a_topic_fails_the_attempt_before_its_siblings_are_published() {
    let parent = Kind::new("parent", |_: Value, cx| async move {
        cx.spawn_child(Child::new("echo", json!(1)));
        cx.spawn_child(Child::new("nowhere", json!(2)));
        ok(json!(null))
    });
    let (fleet, _) = memory(1, &[parent, Kind::echo("echo")]).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    let failed = fleet.result_of("p").await;
    let error = failed.payload.error().unwrap();
    assert_eq!((failed.kind(), &*error.kind), (EventKind::Failed, "bad_child"));
    assert!(error.message.contains("`nowhere`") && error.message.contains("hint: "), "{}", error.message);
    worker.stop().await;
    assert_eq!(fleet.end_of(&fleet.names.tasks("echo"), 0).await, 0, "the other child is not published");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_without_a_partition_is_ready() {
    let (fleet, _) = memory(1, &[Kind::echo("echo")]).await;
    let first = fleet.worker();
    first.ready().await;
    let second = fleet.worker();
    second.ready().await;
    first.ready().await;
    first.stop().await;
    fleet.send("echo", "e", "0").await;
    fleet.result_of("e").await;
    second.stop().await;
}
