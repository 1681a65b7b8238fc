//! Test fixture: a log, a store, and trackers between them.

use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition, ProducerRecord, TopicChange, TopicSpec};
use kafleet::config::{Names, TopicsConfig, Topology, TrackerConfig};
use kafleet::model::event::Event;
use kafleet::model::retention::Lifetimes;
use kafleet::model::task::partition::events_partition_of;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::{Health, Shutdown};
use kafleet::store::Store;
use kafleet::telemetry::Metrics;
use kafleet::tracker::{self, TrackerSetup};
use kafleet_testkit::faults::FaultRules;
use kafleet_testkit::wait::eventually_blocking;

pub use kafleet_testkit::wait::{DEADLINE, eventually};

const CALL: Duration = Duration::from_secs(60);

/// A log with events and a store for their projection.
#[derive(Clone)]
pub struct Fixture {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    pub names: Names,
    pub partitions: u32,
    pub producer: Arc<SharedProducer>,
    /// Interval of the trackers' topic checks.
    pub topic_check: Millis,
}

impl Fixture {
    pub fn new(broker: Arc<dyn Broker>, store: Arc<dyn Store>, partitions: u32) -> Self {
        let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let names = Names::new(&format!("t-{}", tail.to_lowercase()));
        let size = ("max.message.bytes", "4194304");
        let config = [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1"), size]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec();
        let spec = TopicSpec { name: names.events(), partitions, replication: None, config };
        let outcome = broker.apply_topics(&[spec], CALL).unwrap().remove(0);
        assert_eq!(outcome.change, TopicChange::Created);
        until_known(&*broker, &names.events(), partitions);
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        Self { broker, store, names, partitions, producer, topic_check: TopicsConfig::default().check_interval }
    }

    /// Changes a setting of the events topic.
    pub fn configure(&self, key: &str, value: &str) {
        let (name, config) = (self.names.events(), vec![(key.to_owned(), value.to_owned())]);
        let spec = TopicSpec { name, partitions: self.partitions, replication: None, config };
        self.broker.apply_topics(&[spec], CALL).unwrap();
    }

    /// Fixture of the same log through another broker or with another store.
    pub fn with(&self, broker: Arc<dyn Broker>, store: Arc<dyn Store>) -> Self {
        Self { broker, store, ..self.clone() }
    }

    /// Fixture of the same log and store, whose calls follow rules.
    pub fn with_faults(&self) -> (Self, FaultRules) {
        let faults = FaultRules::default();
        (self.with(faults.broker(self.broker.clone()), faults.store(self.store.clone())), faults)
    }

    pub fn all(&self) -> Vec<u32> {
        (0..self.partitions).collect()
    }

    pub fn partition(&self, partition: u32) -> Partition {
        Partition::new(self.names.events(), partition as i32)
    }

    pub fn partition_of(&self, root: &str) -> u32 {
        events_partition_of(root, self.partitions)
    }

    /// Writes events in order.
    pub async fn write(&self, events: &[Event]) {
        for chunk in events.chunks(500) {
            let encoded: Vec<(u32, Vec<u8>)> = chunk
                .iter()
                .map(|event| {
                    let mut value = Vec::new();
                    event.encode(&mut value).unwrap();
                    (self.partition_of(event.id.root()), value)
                })
                .collect();
            futures::future::join_all(encoded.iter().map(|(partition, value)| self.write_raw(*partition, Some(value))))
                .await;
        }
    }

    /// Writes raw bytes and returns their offset.
    pub async fn write_raw(&self, partition: u32, value: Option<&[u8]>) -> i64 {
        let topic = self.names.events();
        let record =
            ProducerRecord { topic: &topic, partition: Some(partition as i32), key: Some(b"k"), value, headers: &[] };
        self.producer.deliver(record, CALL).await.unwrap().offset
    }

    pub async fn tracker(&self) -> Tracker {
        self.tracker_with(TrackerConfig::default()).await
    }

    pub async fn tracker_with(&self, config: TrackerConfig) -> Tracker {
        self.tracker_with_lifetimes(config, Lifetimes::default()).await
    }

    pub async fn tracker_with_lifetimes(&self, config: TrackerConfig, lifetimes: Lifetimes) -> Tracker {
        let (health, metrics, shutdown) = (Health::default(), Metrics::new().unwrap(), Shutdown::new());
        // A tracker reports its state only once it has partitions.
        health.set("tracker", "not begun");
        let setup = TrackerSetup {
            config,
            lifetimes,
            topic_check: self.topic_check,
            health: health.clone(),
            ..TrackerSetup::new(
                self.broker.clone(),
                self.store.clone(),
                Topology::new(self.names.clone(), self.partitions),
                metrics.clone(),
            )
        };
        let running = tokio::spawn(tracker::run(setup, shutdown.clone()));
        Tracker { health, metrics, shutdown, running }
    }

    /// End of a partition's log.
    pub fn end(&self, partition: u32) -> i64 {
        self.broker.watermarks(&self.partition(partition), CALL).unwrap().high
    }

    /// Waits until the current log is folded.
    pub async fn folded(&self) {
        let ends: Vec<i64> = self.all().into_iter().map(|partition| self.end(partition)).collect();
        self.folded_to(&ends).await;
    }

    /// Returns true if the log ends at these offsets and is folded.
    pub async fn is_at(&self, ends: &[i64]) -> bool {
        let partition =
            |checkpoint: &Option<kafleet::store::Checkpoint>| checkpoint.map_or(0, |checkpoint| checkpoint.offset);
        let checkpoints = self.store.checkpoints(&self.all()).await.unwrap_or_default();
        checkpoints.iter().map(partition).eq(ends.iter().copied())
            && self.all().into_iter().map(|number| self.end(number)).eq(ends.iter().copied())
    }

    pub async fn folded_to(&self, ends: &[i64]) {
        eventually(&format!("the log is folded to {ends:?}"), async || {
            let checkpoints = self.store.checkpoints(&self.all()).await.map_err(|error| error.to_string())?;
            let offsets: Vec<i64> = checkpoints.iter().map(|checkpoint| checkpoint.map_or(0, |at| at.offset)).collect();
            let is_folded = offsets.iter().zip(ends).all(|(offset, end)| offset >= end);
            if is_folded { Ok(()) } else { Err(format!("{offsets:?}")) }
        })
        .await;
    }
}

/// Waits until all partitions of a new topic are available.
pub fn until_known(broker: &dyn Broker, topic: &str, partitions: u32) {
    for index in 0..partitions as i32 {
        let partition = Partition::new(topic, index);
        eventually_blocking("a partition is available", || broker.watermarks(&partition, CALL));
    }
}

pub struct Tracker {
    pub health: Health,
    pub metrics: Metrics,
    pub shutdown: Shutdown,
    pub running: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Tracker {
    pub async fn stop(self) {
        self.shutdown.begin();
        tokio::time::timeout(DEADLINE, self.running).await.expect("stops in time").unwrap().unwrap();
    }

    /// Reason why this part is not ready.
    pub fn reason(&self, part: &str) -> Option<String> {
        self.health.reasons().into_iter().find(|(name, _)| name == part).map(|(_, reason)| reason)
    }

    /// Waits for a reason that contains these words.
    pub async fn expect_reason(&self, part: &str, words: &str) {
        let subject = format!("`{part}` is not ready because of `{words}`");
        eventually(&subject, || async { self.reason(part).is_some_and(|reason| reason.contains(words)) }).await;
    }

    pub async fn expect_ready(&self) {
        eventually("the tracker is ready", || async { self.health.reasons().is_empty() }).await;
    }

    pub fn skipped(&self, partition: u32) -> u64 {
        self.metrics.tracker.events_skipped.with_label_values(&[&partition.to_string()]).get()
    }

    pub fn rewinds(&self, partition: u32, reason: &str) -> u64 {
        self.metrics.tracker.rewinds.with_label_values(&[partition.to_string().as_str(), reason]).get()
    }
}

/// Name of a partition in the health report.
pub fn part(partition: u32) -> String {
    format!("events partition {partition}")
}
