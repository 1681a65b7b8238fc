//! Fleet fixture without workers: tests write the events of workers themselves.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use kafleet::api::{self, ApiSetup, LiveAccess};
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, BrokerError, Partition, Record, TopicSpec, memory as broker};
use kafleet::config::{ApiConfig, Names, Topology};
use kafleet::handlers::{Context, Registry, Task, TaskResult};
use kafleet::model::event::{Announcement, AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::task::Position;
use kafleet::model::task::id::TaskId;
use kafleet::model::units::duration::Millis;
use kafleet::publish::Publisher;
use kafleet::runtime::{Health, Shutdown, now_ms};
use kafleet::store::{Store, memory as store};
use kafleet::telemetry::Metrics;
use kafleet::tracker::{self, TrackerSetup};
use kafleet_testkit::faults::{Call, FaultRules, Rule, watermarks};
use kafleet_testkit::records::committed_record;
use serde_json::Value;

use crate::api::client::Client;
pub use kafleet_testkit::wait::{DEADLINE, eventually};

pub const PARTITIONS: u32 = 4;
/// Room for the events of a tree of 1,000,000 tasks, which are in one partition.
const LOG_BYTES: u64 = 2 << 30;
/// Differs from the default.
pub const MAX_TREE_AGE: Millis = Millis::secs(40 * 86_400);

/// Type with a params schema.
#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Resize {
    pub url: String,
    pub width: u32,
}

impl Task for Resize {
    const TYPE: &'static str = "resize";
    type Output = ();
    async fn run(self, _: Context) -> TaskResult<()> {
        Ok(())
    }
}

/// Clock of the log: that of the system, or behind it, so that statistics have a past.
#[derive(Clone, Default)]
pub struct LogClock {
    behind_ms: Arc<AtomicI64>,
    /// Time at which the clock stands; 0: it goes.
    stopped_at_ms: Arc<AtomicI64>,
}

impl LogClock {
    /// Sets the age of the records that are written from now on. Ages may only fall: the time of a log never runs back.
    pub fn set_age(&self, age: Millis) {
        self.behind_ms.store(age.as_i64(), SeqCst);
    }

    /// Stops the clock, so that all records that are written from now on have this time.
    pub fn stop_at(&self, at_ms: i64) {
        self.stopped_at_ms.store(at_ms, SeqCst);
    }

    fn clock(&self) -> broker::Clock {
        let Self { behind_ms, stopped_at_ms } = self.clone();
        Arc::new(move || match stopped_at_ms.load(SeqCst) {
            0 => now_ms() - behind_ms.load(SeqCst),
            stopped_at_ms => stopped_at_ms,
        })
    }
}

pub struct Fleet {
    pub log_clock: LogClock,
    pub log: Arc<broker::MemoryBroker>,
    pub memory: store::MemoryStore,
    /// Faults of the broker and the store of the API; the tracker has none.
    pub faults: FaultRules,
    /// Counts subscriptions of the API to change notices.
    pub subscriptions: Rule,
    broker: Arc<dyn Broker>,
    store: Arc<dyn Store>,
    pub names: Names,
    pub publisher: Publisher,
    client: Client,
    pub shutdown: Shutdown,
    pub health: Health,
    pub metrics: Metrics,
    /// Access rules of the API.
    pub access: LiveAccess,
    pub ended: tokio::task::JoinHandle<anyhow::Result<()>>,
    tracking: parking_lot::Mutex<Option<(Shutdown, tokio::task::JoinHandle<anyhow::Result<()>>)>>,
}

/// A fleet is used like the client of its API.
impl Deref for Fleet {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shutdown.abort();
        if let Some((tracking, _)) = self.tracking.lock().take() {
            tracking.abort();
        }
    }
}

/// API on threads of its own.
pub struct KillableApi {
    pub base: String,
    /// Faults of its broker.
    pub faults: FaultRules,
    runtime: Option<tokio::runtime::Runtime>,
}

impl KillableApi {
    /// Starts an API of a fleet at an address, such as that of a killed one.
    pub fn start(fleet: &Fleet, address: &str) -> Self {
        let address = address.to_owned();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let faults = FaultRules::default();
        let setup = ApiSetup { broker: faults.broker(fleet.log.clone()), ..fleet.second_setup() };
        let shutdown = fleet.shutdown.clone();
        let (send, receive) = std::sync::mpsc::channel();
        runtime.spawn(async move { send.send(serve_at(&address, setup, &shutdown).await.0).unwrap() });
        Self { base: receive.recv_timeout(DEADLINE).unwrap(), faults, runtime: Some(runtime) }
    }

    /// Ends all its work at once, like a killed process.
    pub fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// A runtime must not be dropped inside of another one.
impl Drop for KillableApi {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fleet {
    /// Record at an offset as a read-committed reader sees it.
    pub fn record(&self, at: &Partition, offset: i64) -> Option<Record> {
        committed_record(&*self.log, at, offset)
    }
}

/// Fleet with a running tracker.
pub async fn fleet() -> Fleet {
    let fleet = unfolded(ApiConfig::default()).await;
    fleet.track();
    fleet
}

/// Fleet with a running tracker on the given store.
pub async fn fleet_on(store: store::MemoryStore) -> Fleet {
    let fleet = unfolded_on(ApiConfig::default(), store).await;
    fleet.track();
    fleet
}

/// Fleet with a running tracker, whose API belongs to an application.
pub async fn fleet_with(app: impl FnOnce(&mut Registry)) -> Fleet {
    let fleet = open(ApiConfig::default(), store::MemoryStore::default(), app).await;
    fleet.track();
    fleet
}

/// Fleet whose API belongs to an application. Its events are not projected until [`Fleet::track`].
pub async fn unfolded_with(config: ApiConfig, app: impl FnOnce(&mut Registry)) -> Fleet {
    open(config, store::MemoryStore::default(), app).await
}

/// Fleet whose events are not projected until [`Fleet::track`].
pub async fn unfolded(config: ApiConfig) -> Fleet {
    unfolded_on(config, store::MemoryStore::default()).await
}

async fn unfolded_on(config: ApiConfig, store: store::MemoryStore) -> Fleet {
    open(config, store, |_| ()).await
}

async fn open(config: ApiConfig, memory: store::MemoryStore, app: impl FnOnce(&mut Registry)) -> Fleet {
    let names = Names::new("t");
    let log_clock = LogClock::default();
    let options = broker::MemoryBrokerOptions {
        log_bytes_per_partition: LOG_BYTES,
        clock: log_clock.clock(),
        ..broker::MemoryBrokerOptions::default()
    };
    let log = broker::MemoryBroker::new(options);
    log.apply_topics(&topics(&names), DEADLINE).unwrap();
    let faults = FaultRules::default();
    let subscriptions = faults.count(|call| matches!(call, Call::Notices));
    let (broker, store) = (faults.broker(log.clone()), faults.store(Arc::new(memory.clone())));
    let mut registry = Registry::default();
    registry.task::<Resize>();
    app(&mut registry);
    let (metrics, health, shutdown) = (Metrics::new().unwrap(), Health::default(), Shutdown::new());
    let access = LiveAccess::default();
    let setup = ApiSetup {
        access: access.clone(),
        registry,
        config,
        max_tree_age: MAX_TREE_AGE,
        health: health.clone(),
        ..ApiSetup::new(
            broker.clone(),
            store.clone(),
            Topology::new(names.clone(), PARTITIONS),
            metrics.clone(),
            kafleet::ui::open,
        )
    };
    let (base, ended) = serve(setup, &shutdown).await;
    let producer = SharedProducer::open(log.clone(), None).unwrap();
    let publisher = Publisher::new(producer, Topology::new(names.clone(), PARTITIONS), "test");
    let client = Client::new(base);
    let tracking = parking_lot::Mutex::new(None);
    Fleet {
        log_clock,
        log,
        memory,
        faults,
        subscriptions,
        broker,
        store,
        names,
        publisher,
        client,
        shutdown,
        health,
        metrics,
        access,
        ended,
        tracking,
    }
}

fn topics(names: &Names) -> [TopicSpec; 5] {
    let topic = |name: String, partitions| TopicSpec { name, partitions, replication: None, config: Vec::new() };
    let size = ("max.message.bytes", "4194304");
    let log_append_time = [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1"), size]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec();
    [
        TopicSpec { config: log_append_time, ..topic(names.events(), PARTITIONS) },
        topic(names.control(), 1),
        topic(names.workers(), 1),
        topic(names.tasks("echo"), 2),
        topic(names.tasks("resize"), 2),
    ]
}

/// Starts another API on the log and store of a fleet, which cannot read the control topic until the returned outage is lifted.
pub async fn api_without_control(fleet: &Fleet, config: ApiConfig) -> (Client, Rule) {
    let faults = FaultRules::default();
    let outage = faults.on(watermarks(".control")).fail(BrokerError::Unavailable("on purpose".into()));
    let setup = ApiSetup { broker: faults.broker(fleet.log.clone()), config, ..fleet.second_setup() };
    (Client::new(serve(setup, &fleet.shutdown).await.0), outage)
}

/// Starts an API and returns its address.
async fn serve(setup: ApiSetup, shutdown: &Shutdown) -> (String, tokio::task::JoinHandle<anyhow::Result<()>>) {
    serve_at("127.0.0.1:0", setup, shutdown).await
}

async fn serve_at(
    address: &str,
    setup: ApiSetup,
    shutdown: &Shutdown,
) -> (String, tokio::task::JoinHandle<anyhow::Result<()>>) {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    (base, tokio::spawn(api::run(setup, listener, shutdown.clone())))
}

impl Fleet {
    /// Starts another API on the same log and store and returns its address.
    pub async fn second_api(&self) -> String {
        serve(self.second_setup(), &self.shutdown).await.0
    }

    fn second_setup(&self) -> ApiSetup {
        ApiSetup {
            max_tree_age: MAX_TREE_AGE,
            ..ApiSetup::new(
                self.broker.clone(),
                self.store.clone(),
                Topology::new(self.names.clone(), PARTITIONS),
                Metrics::new().unwrap(),
                kafleet::ui::open,
            )
        }
    }

    /// Starts another API on the same log and store that can be killed.
    pub fn killable_api(&self) -> KillableApi {
        KillableApi::start(self, "127.0.0.1:0")
    }

    pub fn track(&self) {
        let mut tracking = self.tracking.lock();
        let setup = TrackerSetup::new(
            self.log.clone(),
            Arc::new(self.memory.clone()),
            Topology::new(self.names.clone(), PARTITIONS),
            self.metrics.clone(),
        );
        let stop = Shutdown::new();
        let running = tokio::spawn(tracker::run(setup, stop.clone()));
        *tracking = Some((stop, running));
    }

    /// Stops the tracker.
    pub async fn untrack(&self) {
        let tracking = self.tracking.lock().take();
        if let Some((stop, running)) = tracking {
            stop.begin();
            running.await.unwrap().unwrap();
        }
    }

    /// Publishes an event like a worker.
    pub async fn publish_event(
        &self,
        id: &str,
        payload: impl Into<Payload>,
        change: impl FnOnce(&mut Event),
    ) -> Position {
        let mut event = Event::new(payload, TaskId::parse(id).unwrap(), 1, now_ms());
        change(&mut event);
        self.publisher.publish_event(&event).await.unwrap()
    }

    pub async fn succeed(&self, id: &str, output: Value) -> Position {
        let output = RawJson::of(&output).ok();
        self.publish_event(id, Kind::Succeeded, |event| {
            event.attempt = 1;
            event.worker = Some("w-1".into());
            event.payload = Payload::Succeeded { started_at_ms: Some(event.at_ms - 5), output };
        })
        .await
    }

    pub async fn fail(&self, id: &str, message: &str) -> Position {
        self.publish_event(id, Payload::Failed(AttemptFailure::new("error", message, 1)), |_| {}).await
    }

    /// Announces a task like the announcer of foreign producers, with a record position of the test's choice.
    pub async fn announce(&self, id: &str, task_type: &str, position: Option<Position>) -> Position {
        self.publish_event(id, Kind::Submitted, |event| {
            event.task = Some(Box::new(Announcement {
                task_type: task_type.into(),
                created_at_ms: event.at_ms,
                position,
                hash: None,
                policy: None,
                asof: None,
                trace: None,
            }));
        })
        .await
    }

    pub async fn announce_owned(&self, id: String) -> Position {
        self.announce(&id, "echo", None).await
    }

    pub fn events(&self, position: Position) -> Partition {
        Partition::new(self.names.events(), position.partition)
    }

    /// Number of task records of a type visible to a reader.
    pub fn published(&self, task_type: &str) -> usize {
        let in_partition = |number: i32| {
            let partition = Partition::new(self.names.tasks(task_type), number);
            let ends = self.log.watermarks(&partition, DEADLINE).unwrap();
            (ends.low..ends.high).filter(|offset| self.record(&partition, *offset).is_some()).count()
        };
        (0..2).map(in_partition).sum()
    }

    /// Waits until the current end of the log is projected.
    pub async fn folded(&self) {
        for number in 0..PARTITIONS {
            let end = self.log.watermarks(&Partition::new(self.names.events(), number as i32), DEADLINE).unwrap().high;
            eventually("the fold", async || {
                let checkpoint = self.memory.checkpoints(&[number]).await.unwrap()[0];
                end == 0 || checkpoint.is_some_and(|checkpoint| checkpoint.offset >= end)
            })
            .await;
        }
    }
}
