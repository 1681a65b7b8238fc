//! Fleet for one test: topics, workers that can be stopped and killed, and their events.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use kafleet::broker::kafka::Kafka;
use kafleet::broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, CommittedOffset, Partition, ProducerRecord};
use kafleet::config::{Bytes, Config, Names, TopicsConfig, Topology, TypeConfig, WorkerConfig};
use kafleet::control::{self, PolicyUpdates};
use kafleet::handlers::Registry;
use kafleet::model::event::Event;
use kafleet::model::offsets::{Mark, Metadata};
use kafleet::model::task::Position;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::{Health, Shutdown, blocking};
use kafleet::telemetry::Metrics;
use kafleet::worker::child::OwnExecutable;
use kafleet::worker::{self, WorkerSetup};
use kafleet_testkit::faults::FaultRules;
use kafleet_testkit::names::unique;
use tokio::task::JoinHandle;

use super::tail::{Dead, Tail, is_end};
use super::types::Kind;
pub use kafleet_testkit::wait::{DEADLINE, eventually};

const EVENTS_PARTITIONS: u32 = 3;

pub struct Fleet {
    pub broker: Arc<dyn Broker>,
    pub names: Names,
    pub events: Tail,
    /// Configuration of the workers.
    pub config: WorkerConfig,
    pub own_executable: Option<OwnExecutable>,
    /// Adds state and hooks to the registry of each worker.
    pub app: Arc<dyn Fn(&mut Registry) + Send + Sync>,
    partitions: u32,
    kinds: Vec<Kind>,
    pub producer: Arc<SharedProducer>,
}

/// A running worker.
pub struct Worker {
    pub health: Health,
    pub metrics: Metrics,
    pub policies: PolicyUpdates,
    shutdown: Shutdown,
    ended: JoinHandle<anyhow::Result<()>>,
}

/// Creates a fleet on an in-memory broker, with `partitions` partitions per type.
pub async fn memory(partitions: u32, kinds: &[Kind]) -> (Fleet, Arc<MemoryBroker>) {
    memory_with(MemoryBrokerOptions::default(), partitions, kinds).await
}

pub async fn memory_with(options: MemoryBrokerOptions, partitions: u32, kinds: &[Kind]) -> (Fleet, Arc<MemoryBroker>) {
    let broker = MemoryBroker::new(options);
    (Fleet::open(broker.clone(), "kafleet", partitions, kinds).await, broker)
}

/// Creates a fleet on a real Kafka under a unique prefix. Returns `None` and prints `skipped` if there is no Kafka.
pub async fn kafka(partitions: u32, kinds: &[Kind]) -> Option<Fleet> {
    kafka_with(&[], partitions, kinds).await
}

/// Creates a fleet as [`kafka`] does, with additional librdkafka settings.
pub async fn kafka_with(settings: &[(&str, &str)], partitions: u32, kinds: &[Kind]) -> Option<Fleet> {
    let servers = kafleet_testkit::services::kafka()?;
    let mut section = BTreeMap::from([("bootstrap.servers".to_owned(), servers)]);
    section.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Some(Fleet::open(Arc::new(Kafka::new(&section).unwrap()), &unique("worker"), partitions, kinds).await)
}

impl Fleet {
    async fn open(broker: Arc<dyn Broker>, prefix: &str, partitions: u32, kinds: &[Kind]) -> Self {
        let topics = TopicsConfig {
            prefix: prefix.into(),
            events_partitions: EVENTS_PARTITIONS,
            task_partitions: partitions,
            ..TopicsConfig::default()
        };
        let types = kinds.iter().map(|kind| (kind.name.to_owned(), TypeConfig::default())).collect();
        let config = Config { topics, types, ..Config::default() };
        kafleet_testkit::topics::make(&broker, &config, &registry(kinds)).await;
        let names = Names::new(prefix);
        Self {
            events: Tail::new(broker.clone(), &names.events(), EVENTS_PARTITIONS),
            producer: SharedProducer::open(broker.clone(), None).unwrap(),
            broker,
            names,
            config: WorkerConfig {
                commit_interval: Millis(20),
                grace: Millis(200),
                drain_timeout: Millis::secs(20),
                ..WorkerConfig::default()
            },
            own_executable: None,
            app: Arc::new(|_| ()),
            partitions,
            kinds: kinds.to_vec(),
        }
    }

    /// Lets the calls of the broker follow rules from here on.
    pub fn add_faults(&mut self) -> FaultRules {
        let faults = FaultRules::default();
        self.broker = faults.broker(self.broker.clone());
        faults
    }

    /// Starts a worker for all types.
    pub fn worker(&self) -> Worker {
        self.worker_of(&self.kinds)
    }

    pub fn worker_of(&self, kinds: &[Kind]) -> Worker {
        let health = Health::default();
        let metrics = Metrics::new().unwrap();
        let policies = PolicyUpdates::default();
        let shutdown = Shutdown::new();
        // Set here because the worker sets its own reasons only once it runs.
        health.set(control::HEALTH_PART, "not started");
        let mut registry = registry(kinds);
        (self.app)(&mut registry);
        let setup = WorkerSetup {
            policies: policies.clone(),
            config: self.config.clone(),
            health: health.clone(),
            own_executable: self.own_executable.clone(),
            ..WorkerSetup::new(
                self.broker.clone(),
                registry,
                Topology::new(self.names.clone(), EVENTS_PARTITIONS),
                metrics.clone(),
            )
        };
        let ended = tokio::spawn(worker::run(setup, shutdown.clone()));
        Worker { health, metrics, policies, shutdown, ended }
    }

    /// Publishes a minimal task, as any Kafka client could; its id is also its key.
    pub async fn send(&self, task_type: &str, id: &str, params: &str) -> Position {
        self.send_record(task_type, None, Some(id), Some(params.as_bytes()), &[("ce_id", id)]).await
    }

    /// Publishes many tasks of one type with the ids `<prefix>0`, `<prefix>1`, …, spread over the partitions.
    pub async fn send_many(&self, task_type: &str, prefix: &str, count: usize, params: &str) {
        let sends = (0..count).map(|n| async move { self.send(task_type, &format!("{prefix}{n}"), params).await });
        stream::iter(sends).buffered(1_000).collect::<Vec<_>>().await;
    }

    pub async fn send_record(
        &self,
        task_type: &str,
        partition: Option<i32>,
        key: Option<&str>,
        value: Option<&[u8]>,
        headers: &[(&str, &str)],
    ) -> Position {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let topic = self.names.tasks(task_type);
        let record = ProducerRecord { topic: &topic, partition, key: key.map(str::as_bytes), value, headers: &headers };
        self.producer.deliver(record, DEADLINE).await.unwrap()
    }

    /// Publishes to one partition.
    pub async fn send_to(&self, task_type: &str, partition: i32, id: &str, params: &str) -> Position {
        self.send_record(task_type, Some(partition), Some(id), Some(params.as_bytes()), &[("ce_id", id)]).await
    }

    /// Returns the terminal events so far.
    pub fn results(&self) -> Vec<Event> {
        self.events.all().into_iter().filter(is_end).collect()
    }

    /// Waits until `count` different tasks have ended, and returns all terminal events.
    pub async fn wait_for_results(&self, count: usize) -> Vec<Event> {
        let subject = format!("{count} ended tasks");
        self.events.wait(&subject, |events| super::tail::ended_ids(events) >= count).await;
        self.results()
    }

    /// Waits for the terminal event of one task.
    pub async fn result_of(&self, id: &str) -> Event {
        let ends = |event: &&Event| event.id.as_str() == id && is_end(event);
        self.events.wait(&format!("the end of `{id}`"), |events| events.iter().any(|event| ends(&event))).await;
        self.events.all().iter().find(ends).unwrap().clone()
    }

    /// Returns the kinds of all events of one task so far.
    pub fn kinds_of(&self, id: &str) -> Vec<String> {
        self.events
            .all()
            .iter()
            .filter(|event| event.id.as_str() == id)
            .map(|event| event.kind().name().to_owned())
            .collect()
    }

    /// Waits for `count` dead letters of a type.
    pub async fn dead(&self, task_type: &str, count: usize) -> Vec<Dead> {
        let tail = Tail::new(self.broker.clone(), &self.names.dead(task_type), 1);
        tail.wait_records(&format!("{count} dead letters"), |records| records.len() >= count).await;
        tail.records().iter().map(Dead::of).collect()
    }

    /// Waits for `count` records of a topic with `partitions` partitions.
    pub async fn records(&self, topic: &str, partitions: u32, count: usize) -> Vec<kafleet::broker::Record> {
        let tail = Tail::new(self.broker.clone(), topic, partitions);
        tail.wait_records(&format!("{count} records on {topic}"), |records| records.len() >= count).await;
        tail.records()
    }

    pub async fn end_of(&self, topic: &str, partition: i32) -> i64 {
        let broker = self.broker.clone();
        let partition = Partition::new(topic, partition);
        blocking(move || broker.watermarks(&partition, DEADLINE)).await.unwrap().unwrap().high
    }

    /// Returns the commits of a type's group, by partition.
    pub async fn committed(&self, task_type: &str) -> Vec<Option<CommittedOffset>> {
        let topic = self.names.tasks(task_type);
        let partitions: Vec<Partition> =
            (0..self.partitions as i32).map(|index| Partition::new(topic.as_str(), index)).collect();
        let broker = self.broker.clone();
        let group = self.names.group(task_type);
        blocking(move || broker.group_offsets(&group, &partitions, DEADLINE)).await.unwrap().unwrap()
    }

    /// Asserts that all records of a type are committed as complete, with the clean mark.
    pub async fn assert_clean(&self, task_type: &str) {
        for (index, committed) in self.committed(task_type).await.into_iter().enumerate() {
            let end = self.end_of(&self.names.tasks(task_type), index as i32).await;
            let committed = committed.unwrap_or_else(|| panic!("partition {index} has no commit"));
            let metadata = Metadata::decode(committed.offset, &committed.metadata).unwrap();
            assert_eq!(
                (metadata.completed.watermark(), metadata.mark),
                (end, Mark::Clean),
                "partition {index}: {committed:?}"
            );
        }
    }

    /// Waits until the group has committed everything published for a type.
    pub async fn wait_committed(&self, task_type: &str) {
        for index in 0..self.partitions as usize {
            let end = self.end_of(&self.names.tasks(task_type), index as i32).await;
            eventually(&format!("partition {index} of `{task_type}` is committed up to {end}"), async || {
                let committed = self.committed(task_type).await[index].clone();
                if committed.as_ref().is_some_and(|committed| committed.offset == end) {
                    Ok(())
                } else {
                    Err(committed)
                }
            })
            .await;
        }
    }
}

fn registry(kinds: &[Kind]) -> Registry {
    let mut registry = Registry::default();
    for kind in kinds {
        registry.add(kind.name, kind.registered.clone());
    }
    registry
}

impl Worker {
    /// Begins a graceful stop, without waiting for its end.
    pub fn begin_stop(&self) {
        self.shutdown.begin();
    }

    /// Stops the worker and waits for its end.
    pub async fn stop(self) {
        self.shutdown.begin();
        self.wait_ended().await;
    }

    /// Aborts the worker: it does not leave its group.
    pub async fn kill(self) {
        self.shutdown.abort();
        self.wait_ended().await;
    }

    pub async fn wait_ended(self) {
        tokio::time::timeout(DEADLINE, self.ended).await.expect("the worker ends in time").unwrap().unwrap();
    }

    /// Waits for the end and returns the error.
    #[allow(dead_code, reason = "for the tests of crashes")]
    pub async fn failure(self) -> String {
        format!("{:#}", self.ended.await.unwrap().unwrap_err())
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_finished()
    }

    pub async fn ready(&self) {
        eventually("the worker is ready", async || self.health.reasons().is_empty()).await;
    }

    /// Returns the sum of a metric over all series whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics.render();
        let line = |line: &&str| line.split([' ', '{']).next() == Some(name) && line.contains(label);
        text.lines().filter(line).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

pub fn bytes(number: u64) -> Bytes {
    Bytes(number)
}
