//! A fleet with all roles in this process.

use std::sync::Arc;

use kafleet::api::{self, ApiSetup};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Partition, ProducerRecord, TopicInfo, memory};
use kafleet::config::{Config, Names, Topology, WorkerConfig};
use kafleet::control::settings;
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Registry, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet::model::record::TaskRecord;
use kafleet::model::task::TaskSpec;
use kafleet::model::task::id::TaskId;
use kafleet::publish::{PublishedTask, Publisher};
use kafleet::runtime::{Shutdown, now_ms};
use kafleet::store::Store;
use kafleet::store::memory::MemoryStore;
use kafleet::telemetry::{Metrics, Tracer};
use kafleet::tracker::{self, TrackerSetup};
use kafleet::worker::{self, WorkerSetup};
use kafleet_testkit::names::unique;
use kafleet_testkit::oracle::Oracle;
use kafleet_testkit::redis::Server;
use kafleet_testkit::services::connect;
use kafleet_testkit::topics;
use serde_json::Value;

use crate::fleet::task_types::{Branch, CancelLog, Cancellable, FailureGate, Flaky, Gate, Leaf};

pub use kafleet_testkit::wait::{DEADLINE, eventually};

fn task_partitions(broker: &dyn Broker, names: &Names) -> Vec<Partition> {
    let topics = broker.topics(&names.tasks(""), DEADLINE).unwrap();
    let of = |topic: &TopicInfo| {
        (0..topic.partitions).map(|index| Partition::new(topic.name.as_str(), index as i32)).collect()
    };
    topics.iter().flat_map::<Vec<_>, _>(of).collect()
}

/// Bootstrap servers of the test Kafka, or `None` with a skipped test without Kafka or Redis.
pub fn brokers() -> Option<String> {
    kafleet_testkit::services::kafka_and_redis().map(|(brokers, _)| brokers)
}

pub struct Fleet {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    pub names: Names,
    pub publisher: Publisher,
    pub gate: Gate,
    pub failure_gate: FailureGate,
    pub cancel_log: CancelLog,
    pub registry: Registry,
    pub events_partitions: u32,
    pub worker: WorkerConfig,
    /// Source of the spans of all roles.
    tracer: Option<Tracer>,
    /// Base URL, `http://host:port`.
    pub api: String,
    shutdown: Shutdown,
    roles: Vec<tokio::task::JoinHandle<anyhow::Result<()>>>,
    /// Server of the store, if it is Redis.
    pub redis: Option<Server>,
}

impl Fleet {
    pub async fn in_memory() -> Self {
        let broker = memory::MemoryBroker::new(memory::MemoryBrokerOptions::default());
        Self::start(broker, Arc::new(MemoryStore::default()), None, None).await
    }

    /// Starts a fleet in memory whose roles write spans.
    pub async fn traced(tracer: Tracer) -> Self {
        let broker = memory::MemoryBroker::new(memory::MemoryBrokerOptions::default());
        Self::start(broker, Arc::new(MemoryStore::default()), None, Some(tracer)).await
    }

    /// Starts a fleet on Kafka and Redis, or returns `None` where they are missing.
    pub async fn with_services() -> Option<Self> {
        let kafka = connect(brokers()?);
        let redis = Server::start();
        let store = redis.store("kafleet");
        Some(Self::start(kafka, Arc::new(store), Some(redis), None).await)
    }

    /// Creates the topics and starts a tracker and an API; tests start their workers.
    async fn start(
        broker: Arc<dyn Broker>,
        store: Arc<dyn Store>,
        redis: Option<Server>,
        tracer: Option<Tracer>,
    ) -> Self {
        let (gate, failure_gate, cancel_log) = (Gate::closed(), FailureGate(Gate::closed()), CancelLog::default());
        let mut registry = Registry::default();
        registry
            .share(gate.clone())
            .share(failure_gate.clone())
            .share(cancel_log.clone())
            .task::<Cancellable>()
            .task::<Branch>()
            .task::<Leaf>()
            .task::<Flaky>()
            .add("echo", TypeRegistration::new(Echo));
        let mut config = Config::default();
        (config.topics.prefix, config.topics.events_partitions, config.topics.task_partitions) =
            (unique("fleet"), 3, 4);
        topics::make(&broker, &config, &registry).await;
        let names = Names::new(&config.topics.prefix);
        let control = settings::read_control(&broker.client(), &names).await.unwrap();
        let topology = control.topology(&names).unwrap();
        let events_partitions = topology.events_partitions;
        let producer = SharedProducer::open(broker.clone(), None).unwrap();
        let publisher = Publisher::new(producer, topology, "test");
        let (api, shutdown, roles) = (String::new(), Shutdown::new(), Vec::new());
        let mut fleet = Self {
            broker,
            store,
            names,
            publisher,
            gate,
            failure_gate,
            cancel_log,
            registry,
            events_partitions,
            worker: Default::default(),
            tracer,
            api,
            shutdown,
            roles,
            redis,
        };
        fleet.start_tracker();
        fleet.start_api(config).await;
        fleet
    }

    fn start_tracker(&mut self) {
        let setup = TrackerSetup {
            tracer: self.tracer.clone(),
            ..TrackerSetup::new(
                self.broker.clone(),
                self.store.clone(),
                Topology::new(self.names.clone(), self.events_partitions),
                Metrics::new().unwrap(),
            )
        };
        self.roles.push(tokio::spawn(tracker::run(setup, self.shutdown.clone())));
    }

    async fn start_api(&mut self, config: Config) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.api = format!("http://{}", listener.local_addr().unwrap());
        let setup = ApiSetup {
            registry: self.registry.clone(),
            config: config.api,
            max_tree_age: config.topics.max_tree_age,
            tracer: self.tracer.clone(),
            ..ApiSetup::new(
                self.broker.clone(),
                self.store.clone(),
                Topology::new(self.names.clone(), self.events_partitions),
                Metrics::new().unwrap(),
                kafleet::ui::open,
            )
        };
        self.roles.push(tokio::spawn(api::run(setup, listener, self.shutdown.clone())));
    }

    /// Starts another API on the given broker and directs later requests to it.
    pub async fn start_api_on(&mut self, broker: Arc<dyn Broker>) {
        let previous = std::mem::replace(&mut self.broker, broker);
        self.start_api(Config::default()).await;
        self.broker = previous;
    }

    /// Adds a type with its topics, and an API that knows it; later requests go there.
    pub async fn add_type(&mut self, name: &str, registered: TypeRegistration) {
        self.registry.add_reserved(name, registered);
        let mut config = Config::default();
        (config.topics.prefix, config.topics.events_partitions) = (self.names.prefix.clone(), self.events_partitions);
        config.topics.task_partitions = 4;
        topics::make(&self.broker, &config, &self.registry).await;
        self.start_api(config).await;
    }

    pub fn start_worker(&mut self) {
        let setup = WorkerSetup {
            config: self.worker.clone(),
            tracer: self.tracer.clone(),
            ..WorkerSetup::new(
                self.broker.clone(),
                self.registry.clone(),
                Topology::new(self.names.clone(), self.events_partitions),
                Metrics::new().unwrap(),
            )
        };
        self.roles.push(tokio::spawn(worker::run(setup, self.shutdown.clone())));
    }

    pub async fn stop(self) {
        self.shutdown.begin();
        for role in self.roles {
            tokio::time::timeout(DEADLINE, role).await.expect("the role did not stop in time").unwrap().unwrap();
        }
    }

    pub async fn publish(&self, task_type: &str, id: &str, params: &impl serde::Serialize) -> PublishedTask {
        let task = TaskSpec::new(TaskId::parse(id).unwrap(), task_type, RawJson::of(params).unwrap());
        self.publisher.publish(task, now_ms()).await.unwrap()
    }

    /// Publishes a record without kafleet's producer and without an event.
    pub async fn publish_bare(&self, task_type: &str, headers: &[(&str, &[u8])], value: &str) -> (i32, i64) {
        let topic = self.names.tasks(task_type);
        let record =
            ProducerRecord { topic: &topic, partition: None, key: None, value: Some(value.as_bytes()), headers };
        let position = self.publisher.producer().deliver(record, DEADLINE).await.unwrap();
        (position.partition, position.offset)
    }

    pub async fn record(&self, id: &str) -> Option<TaskRecord> {
        let id = TaskId::parse(id).unwrap();
        self.store
            .task_records(self.publisher.topology.partition_of(&id), std::slice::from_ref(&id))
            .await
            .unwrap()
            .remove(0)
    }

    /// Waits until the task has a record.
    pub async fn wait_for_record(&self, id: &str) {
        eventually(&format!("`{id}` is folded"), || async { self.record(id).await }).await;
    }

    /// Record of the task, once it is in a terminal state.
    pub async fn wait_for_end(&self, id: &str) -> TaskRecord {
        eventually(&format!("`{id}` is in a terminal state"), || async {
            self.record(id).await.filter(|task_record| task_record.state.is_terminal())
        })
        .await
    }

    /// Response of the API with any status but `503`, which it gives while the tracker is behind.
    pub async fn response(&self, path: &str) -> (u16, String) {
        let client = kafleet_testkit::http::client();
        eventually(&format!("a response to {path}"), || async {
            let response = client.get(format!("{}{path}", self.api)).send().await.unwrap();
            let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
            (status != 503).then_some((status, text))
        })
        .await
    }

    /// Body of a successful response of the API.
    pub async fn get(&self, path: &str) -> Value {
        let (status, text) = self.response(path).await;
        assert!((200..300).contains(&status), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until no more events are written: the announcer has announced every task, and the tracker has folded all
    /// events.
    async fn wait_until_quiet(&self) {
        let (broker, names, count) = (self.broker.clone(), self.names.clone(), self.events_partitions);
        let announced = move || {
            let partitions = task_partitions(&*broker, &names);
            let committed = broker.group_offsets(&names.announcer_group(), &partitions, DEADLINE).unwrap();
            let done = partitions.iter().zip(committed).all(|(partition, committed)| {
                let ends = broker.watermarks(partition, DEADLINE).unwrap();
                let offset = committed.map_or(ends.low, |committed| committed.offset);
                // The remaining offsets may be transaction markers, which no consumer receives.
                offset >= ends.high || broker.first_visible(partition, offset, DEADLINE).unwrap().offset >= ends.high
            });
            let events = (0..count).map(|index| Partition::new(names.events(), index as i32));
            done.then(|| {
                events.map(|partition| broker.watermarks(&partition, DEADLINE).unwrap().high).collect::<Vec<_>>()
            })
        };
        let announced = Arc::new(announced);
        let ends = eventually("the announcer has read all tasks", || {
            let announced = announced.clone();
            async move { tokio::task::spawn_blocking(move || announced()).await.unwrap() }
        })
        .await;
        eventually("all events are folded", || async {
            let checkpoints = self.store.checkpoints(&(0..count).collect::<Vec<_>>()).await.unwrap();
            let folded = checkpoints
                .iter()
                .zip(&ends)
                .all(|(checkpoint, end)| checkpoint.map_or(0, |checkpoint| checkpoint.offset) >= *end);
            folded.then_some(())
        })
        .await;
    }

    /// Checks that the store equals a fold of the log from its beginning.
    pub async fn assert_store_matches_log(&self) -> Oracle {
        eventually("the log comes to rest", async || {
            self.wait_until_quiet().await;
            let oracle = Oracle::of(self.broker.clone(), &self.names, self.events_partitions).await;
            let is_folded = async |ends: &[i64]| is_folded_up_to(&self.broker, &self.names, &*self.store, ends).await;
            oracle.settles(&*self.store, is_folded).await
        })
        .await
    }
}

/// Whether the log still ends at these offsets and all of it is folded.
pub async fn is_folded_up_to(broker: &Arc<dyn Broker>, names: &Names, store: &dyn Store, ends: &[i64]) -> bool {
    let checkpoints = store.checkpoints(&(0..ends.len() as u32).collect::<Vec<_>>()).await.unwrap_or_default();
    let folded = checkpoints
        .iter()
        .map(|checkpoint| checkpoint.map_or(0, |checkpoint| checkpoint.offset))
        .eq(ends.iter().copied());
    let end = |index: usize| broker.watermarks(&Partition::new(names.events(), index as i32), DEADLINE).unwrap().high;
    folded && (0..ends.len()).map(end).eq(ends.iter().copied())
}
