//! Each role on a Kafka with an authorizer, as a user that has exactly the permissions of the table in
//! `docs/production.md`: everything works, and each row is needed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use kafleet::api::{self, ApiSetup, Submissions};
use kafleet::broker::kafka::Kafka;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Broker, Commit, Partition, ProducerRecord, TopicChange};
use kafleet::config::{Config, Names, OutboxConfig, Topology, TypeConfig};
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Child, Context, Failure, Registry, Task, TaskResult, TypeRegistration};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::partition::partition_of;
use kafleet::model::units::duration::Millis;
use kafleet::outbox::memory::{MemoryOutbox, NewRow};
use kafleet::outbox::{Relay, RelayMetrics, RelayTimes};
use kafleet::publish::Publisher;
use kafleet::runtime::{Health, Shutdown, blocking};
use kafleet::store::Store;
use kafleet::store::memory::MemoryStore;
use kafleet::telemetry::Metrics;
use kafleet::topics::acls::{ACLS, Acl, roles};
use kafleet::topics::{RequiredTopics, TopicWatch};
use kafleet::tracker::{self, TrackerSetup};
use kafleet::worker::{self, WorkerSetup};
use kafleet_testkit::names::unique;
use kafleet_testkit::records::committed_record;
use kafleet_testkit::services::{address, connect};
use serde_json::{Value, json};

use crate::fleet::kafka_acls::{Permission, allow};

const DEADLINE: Duration = Duration::from_secs(60);
/// Time in which a step succeeds if nothing is missing; used where it should not.
const MISSING: Duration = Duration::from_secs(12);
const CALL: Duration = Duration::from_secs(10);
/// Fleets that run at once.
const AT_ONCE: usize = 5;
const EVENTS_PARTITIONS: u32 = 2;

/// Spawns a child.
#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Parent {}

impl Task for Parent {
    const TYPE: &'static str = "parent";
    type Output = ();
    async fn run(self, cx: Context) -> TaskResult<()> {
        cx.spawn_child(Child::new("echo", json!("child")).id("child"));
        Ok(())
    }
}

/// Becomes a dead letter in its first run.
#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct BrokenTask {}

impl Task for BrokenTask {
    const TYPE: &'static str = "broken";
    type Output = ();
    async fn run(self, cx: Context) -> TaskResult<()> {
        if cx.run == 1 { Err(Failure::dead("broken")) } else { Ok(()) }
    }
}

/// A fleet whose roles have users of their own.
struct GuardedFleet {
    config: Config,
    names: Names,
    registry: Registry,
    store: Arc<MemoryStore>,
    /// Client without limits, for the test's own reads.
    free: Arc<dyn Broker>,
    health: Vec<(&'static str, Health)>,
    shutdown: Shutdown,
    roles: Vec<tokio::task::JoinHandle<anyhow::Result<()>>>,
    api: String,
    step_timeout: Duration,
}

/// Client of a role's user.
fn broker_of(user: &str) -> Arc<dyn Broker> {
    let var = |name: &str| std::env::var(name).unwrap();
    let section = [
        ("bootstrap.servers", var("KAFLEET_TEST_KAFKA_SASL")),
        ("security.protocol", "SASL_SSL".to_owned()),
        ("ssl.ca.location", var("KAFLEET_TEST_KAFKA_CA")),
        ("sasl.mechanism", "PLAIN".to_owned()),
        ("sasl.username", user.to_owned()),
        ("sasl.password", var("KAFLEET_TEST_KAFKA_PASSWORD")),
    ];
    Arc::new(Kafka::new(&section.map(|(key, value)| (key.to_owned(), value)).into()).unwrap())
}

impl GuardedFleet {
    /// Creates a fleet with all permissions of the table except one.
    fn new(servers: &str, without: Option<&Acl>) -> Self {
        let prefix = unique("acl");
        let allowed = ACLS.iter().filter(|acl| Some(*acl) != without).flat_map(|acl| {
            acl.operations.iter().map(|operation| Permission {
                user: acl.role,
                resource: acl.resource,
                name: acl.name(&prefix),
                is_prefix: acl.is_prefix,
                operation: *operation,
            })
        });
        allow(servers, &allowed.collect::<Vec<_>>());
        let mut config = Config::default();
        config.topics.prefix = prefix;
        (config.topics.events_partitions, config.topics.task_partitions) = (EVENTS_PARTITIONS, 1);
        config.outbox = Some(OutboxConfig::default());
        let shared = TypeConfig { group: Some("small".to_owned()), ..TypeConfig::default() };
        config.types = [("shared".to_owned(), shared)].into();
        let mut echo = TypeRegistration::new(Echo);
        echo.policy.publish_results = true;
        let mut registry = Registry::default();
        registry.task::<Parent>().task::<BrokenTask>().add("echo", echo);
        registry.add("shared", TypeRegistration::new(Echo)).add("idle", TypeRegistration::new(Echo));
        Self {
            names: Names::of(&config),
            config,
            registry,
            store: Arc::new(MemoryStore::default()),
            free: connect(servers),
            health: Vec::new(),
            shutdown: Shutdown::new(),
            roles: Vec::new(),
            api: String::new(),
            step_timeout: if without.is_some() { MISSING } else { DEADLINE },
        }
    }

    /// Waits until a step succeeds.
    async fn step<T>(&self, subject: &str, mut done: impl AsyncFnMut(&Self) -> Option<T>) -> Result<T, String> {
        let end = Instant::now() + self.step_timeout;
        loop {
            if let Some(result) = done(self).await {
                return Ok(result);
            }
            if Instant::now() > end {
                let reasons = self.health.iter().flat_map(|(role, health)| {
                    health.reasons().into_iter().map(move |(part, reason)| format!("{role}: {part}: {reason}"))
                });
                return Err(format!("{subject}; {:?}", reasons.collect::<Vec<_>>()));
            }
            // Interval of the attempts, whose deadline depends on the case.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates and changes the topics, and commits an offset.
    async fn administrate(&mut self) -> Result<(), String> {
        let admin = broker_of("admin");
        let apply = async |fleet: &Self| {
            let outcomes = kafleet::topics::apply(&admin.client(), &fleet.config, &fleet.registry, CALL).await.ok()?;
            outcomes.iter().all(|outcome| !matches!(outcome.change, TopicChange::Failed(_))).then_some(())
        };
        self.step("topics are created", apply).await?;
        self.config.topics.task_partitions = 2;
        self.config.topics.dead_retention = Millis::secs(86_400 * 100);
        self.step("topics are changed", apply).await?;
        let check = async |fleet: &Self| {
            let findings = kafleet::topics::check(&admin.client(), &fleet.config, &fleet.registry, CALL).await.ok()?;
            findings.iter().all(|finding| finding.severity != kafleet::topics::Severity::Error).then_some(())
        };
        self.step("topics are checked", check).await?;
        let commit = async |fleet: &Self| {
            let (admin, group) = (admin.clone(), fleet.names.group("idle"));
            let partition = Partition::new(fleet.names.tasks("idle"), 0);
            let moved = move || {
                admin.first_visible(&partition, 0, CALL)?;
                let commit = Commit { partition: partition.clone(), offset: 0, metadata: String::new() };
                admin.set_group_offsets(&group, &[commit], CALL)?;
                admin.group_offsets(&group, &[partition], CALL)
            };
            blocking(moved).await.ok()?.ok().map(drop)
        };
        self.step("an offset is committed", commit).await
    }

    async fn start(&mut self) {
        let of_role = |role| (role, Health::default());
        self.health = ["worker", "tracker", "api"].map(of_role).into();
        let health = |n: usize| self.health[n].1.clone();
        let types = ["echo", "parent", "broken", "shared"].map(str::to_owned);
        let worker = WorkerSetup {
            types: types.into(),
            max_tree_age: self.config.topics.max_tree_age,
            health: health(0),
            ..WorkerSetup::new(
                broker_of("worker"),
                self.registry.clone(),
                Topology::new(self.names.clone(), EVENTS_PARTITIONS),
                Metrics::new().unwrap(),
            )
        };
        let tracker = TrackerSetup {
            lifetimes: self.config.lifetimes(),
            task_retention: self.config.topics.task_retention,
            topic_check: self.config.topics.check_interval,
            health: health(1),
            ..TrackerSetup::new(
                broker_of("tracker"),
                self.store.clone(),
                Topology::new(self.names.clone(), EVENTS_PARTITIONS),
                Metrics::new().unwrap(),
            )
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.api = format!("http://{}", listener.local_addr().unwrap());
        let api = ApiSetup {
            registry: self.registry.clone(),
            max_tree_age: self.config.topics.max_tree_age,
            health: health(2),
            ..ApiSetup::new(
                broker_of("api"),
                self.store.clone(),
                Topology::new(self.names.clone(), EVENTS_PARTITIONS),
                Metrics::new().unwrap(),
                kafleet::ui::open,
            )
        };
        self.roles.push(tokio::spawn(worker::run(worker, self.shutdown.clone())));
        self.roles.push(tokio::spawn(tracker::run(tracker, self.shutdown.clone())));
        self.roles.push(tokio::spawn(api::run(api, listener, self.shutdown.clone())));
    }

    async fn task_record(&self, id: &str) -> Option<TaskRecord> {
        let id = TaskId::parse(id).unwrap();
        let partition = partition_of(id.root().as_bytes(), EVENTS_PARTITIONS);
        self.store.task_records(partition, &[id]).await.unwrap().remove(0)
    }

    async fn until(&self, id: &str, state: State) -> Result<(), String> {
        let is =
            async |fleet: &Self| fleet.task_record(id).await.filter(|task_record| task_record.state == state).map(drop);
        self.step(&format!("`{id}` is {state}"), is).await
    }

    /// Sends a request until it succeeds, and returns its body.
    async fn call(&self, method: reqwest::Method, path: &str, body: Value) -> Result<Value, String> {
        let client = kafleet_testkit::http::client();
        let url = format!("{}{path}", self.api);
        let send = async |_: &Self| {
            let request = client.request(method.clone(), &url).timeout(CALL);
            let request = if body.is_null() { request } else { request.json(&body) };
            let response = request.send().await.ok().filter(|response| response.status().is_success())?;
            Some(serde_json::from_str(&response.text().await.ok()?).unwrap_or(Value::Null))
        };
        self.step(&format!("{method} {path}"), send).await
    }

    async fn get(&self, path: &str) -> Result<Value, String> {
        self.call(reqwest::Method::GET, path, Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, String> {
        self.call(reqwest::Method::POST, path, body).await
    }

    async fn end_of(&self, topic: String) -> i64 {
        let free = self.free.clone();
        let end =
            move |index| free.watermarks(&Partition::new(topic.as_str(), index), CALL).map_or(0, |ends| ends.high);
        blocking(move || (0..2).map(end).sum()).await.unwrap_or_default()
    }

    /// Publishes tasks as a producer without kafleet.
    async fn produce(&self) -> Result<(), String> {
        let link = SharedProducer::open(broker_of("producer"), None).unwrap();
        for (task_type, id) in [("echo", "foreign"), ("idle", "waiting"), ("shared", "in-group")] {
            let topic = self.names.tasks(task_type);
            let put = async |_: &Self| {
                let headers: [(&str, &[u8]); 1] = [("ce_id", id.as_bytes())];
                let key = Some(id.as_bytes());
                let record =
                    ProducerRecord { topic: &topic, partition: None, key, value: Some(b"1"), headers: &headers };
                link.deliver(record, CALL).await.ok()
            };
            self.step(&format!("a record on {topic}"), put).await?;
        }
        self.until("foreign", State::Succeeded).await?;
        self.until("in-group", State::Succeeded).await?;
        // No worker runs the type: the tracker announces the task.
        self.until("waiting", State::Queued).await
    }

    /// Children, continuations, delays, results and schedules.
    async fn run_tasks(&self) -> Result<(), String> {
        let task = json!({"type": "parent", "id": "p", "params": {}, "then": [{"type": "echo", "params": "then"}]});
        self.post("/v1/tasks", task).await?;
        self.until("p:child", State::Succeeded).await?;
        self.until("p:then", State::Succeeded).await?;
        self.post("/v1/tasks", json!({"type": "echo", "id": "later", "delay": "1s"})).await?;
        self.until("later", State::Succeeded).await?;
        let published = async |fleet: &Self| (fleet.end_of(fleet.names.results("echo")).await >= 4).then_some(());
        self.step("results are published", published).await?;
        let batch = json!([{"type": "echo", "id": "b"}, {"type": "echo", "id": "c", "parent": "b"}]);
        self.post("/v1/batches?atomic=true", batch).await?;
        self.until("b:c", State::Succeeded).await?;
        let spec = json!({"every": "1h", "task": {"type": "echo"}});
        self.call(reqwest::Method::PUT, "/v1/schedules/often", spec).await?;
        self.post("/v1/schedules/often/trigger", json!({})).await?;
        let before = self.end_of(self.names.results("echo")).await;
        let fired = async |fleet: &Self| (fleet.end_of(fleet.names.results("echo")).await > before).then_some(());
        self.step("the schedule has fired", fired).await
    }

    /// Publishes a row of an outbox.
    async fn relay(&self) -> Result<(), String> {
        let (topology, broker) = (Topology::new(self.names.clone(), EVENTS_PARTITIONS), broker_of("outbox"));
        let relay = outbox_relay(&broker, &self.registry, topology.clone(), self.config.topics.max_tree_age).await?;
        let (health, shutdown, table) = (relay.health.clone(), relay.shutdown.clone(), MemoryOutbox::new(1));
        let needs = RequiredTopics::outbox(&topology);
        let watch = TopicWatch::start(&broker.client(), needs, health.clone(), "outbox's topics", CALL);
        let running = tokio::spawn(Relay { table: table.clone(), ..relay }.run());
        let transaction = table.begin();
        let (id, task_type) = ("of-outbox".to_owned(), "echo".to_owned());
        transaction.submit(NewRow { id, task_type, params: "1".to_owned(), ..NewRow::default() });
        transaction.commit();
        let outcome = self.until("of-outbox", State::Succeeded).await;
        let ready = async |_: &Self| health.reasons().is_empty().then_some(());
        let outcome = match outcome {
            Ok(()) => self.step("the relay is ready", ready).await,
            Err(error) => Err(format!("{error}; {:?}", health.reasons())),
        };
        shutdown.begin();
        let _ = tokio::time::timeout(DEADLINE, running).await;
        drop(watch);
        outcome
    }

    /// Reads and actions of the API.
    async fn operate(&self) -> Result<(), String> {
        self.get("/v1/tasks/foreign/params").await?;
        let workers =
            async |fleet: &Self| fleet.get("/v1/workers").await.ok()?["workers"].as_array()?.first().map(drop);
        self.step("the worker is listed", workers).await?;
        self.post("/v1/tasks", json!({"type": "broken", "id": "dead", "params": {}})).await?;
        self.until("dead", State::Failed).await?;
        let letters = async |fleet: &Self| {
            let page = fleet.get("/v1/dead-letters?type=broken").await.ok()?;
            page["letters"].as_array()?.first()?["id"].as_str().map(str::to_owned)
        };
        let letter = self.step("the dead letter is listed", letters).await?;
        self.post(&format!("/v1/dead-letters/{letter}/redrive"), json!({})).await?;
        self.until("dead", State::Succeeded).await?;
        for (task_type, id) in [("echo", "stop"), ("shared", "stop-2")] {
            self.post(&format!("/v1/types/{task_type}/pause"), json!({})).await?;
            let is_paused = async |fleet: &Self| {
                let workers = fleet.get("/v1/workers").await.ok()?;
                let types =
                    workers["workers"].as_array()?.iter().filter_map(|worker| worker["types"].as_array()).flatten();
                types.clone().any(|document| document["type"] == task_type && document["paused"] == true).then_some(())
            };
            self.step(&format!("`{task_type}` is paused"), is_paused).await?;
            self.post("/v1/tasks", json!({"type": task_type, "id": id})).await?;
            self.get(&format!("/v1/tasks/{id}/why")).await?;
            self.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await?;
            self.until(id, State::Cancelled).await?;
            // Workers have passed the task, which the tracker reads from the commits of their group.
            let withdrawn = async |fleet: &Self| fleet.is_withdrawn(id).await.then_some(());
            self.step(&format!("the cancel of `{id}` is withdrawn"), withdrawn).await?;
        }
        let ready =
            async |fleet: &Self| fleet.health.iter().all(|(_, health)| health.reasons().is_empty()).then_some(());
        self.step("all roles are ready", ready).await
    }

    /// Returns whether the control record of a cancel has been removed.
    async fn is_withdrawn(&self, id: &str) -> bool {
        let (free, control) = (self.free.clone(), Partition::new(self.names.control(), 0));
        let key = format!("cancel/{id}");
        let removed = move || {
            let ends = free.watermarks(&control, CALL).unwrap();
            let records = (ends.low..ends.high).filter_map(|offset| committed_record(&*free, &control, offset));
            let mut of_key = records.filter(|record| record.key.as_deref() == Some(key.as_bytes()));
            of_key.any(|record| record.value.is_none())
        };
        blocking(removed).await.unwrap_or_default()
    }

    /// Runs every role and does what needs its permissions.
    async fn work(&mut self) -> Result<(), String> {
        self.administrate().await?;
        self.start().await;
        self.produce().await?;
        self.run_tasks().await?;
        self.relay().await?;
        self.operate().await
    }

    async fn stop(self) {
        self.shutdown.abort();
        for role in self.roles {
            let _ = tokio::time::timeout(DEADLINE, role).await;
        }
    }
}

/// Relay of the role's user, on an empty table.
async fn outbox_relay(
    broker: &Arc<dyn Broker>,
    registry: &Registry,
    topology: Topology,
    max_tree_age: Millis,
) -> Result<Relay, String> {
    let client = broker.client();
    let producer = client.shared_producer(None).await.map_err(|error| error.to_string())?;
    Ok(Relay {
        table: MemoryOutbox::new(0),
        client,
        checks: Arc::new(Submissions::open(broker, registry.clone(), topology.clone(), max_tree_age)),
        publisher: Publisher::new(producer, topology, "test"),
        metrics: RelayMetrics::of(&Metrics::new().unwrap()),
        health: Health::default(),
        shutdown: Shutdown::new(),
        holder: "relay".to_owned(),
        times: RelayTimes::default(),
    })
}

fn services() -> Option<String> {
    address("KAFLEET_TEST_KAFKA_SASL")?;
    address("KAFLEET_TEST_KAFKA")
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_work_with_the_permissions_of_the_table() {
    let Some(servers) = services() else { return };
    let mut fleet = GuardedFleet::new(&servers, None);
    let outcome = fleet.work().await;
    fleet.stop().await;
    assert_eq!(outcome, Ok(()));
}

/// Checks one row of each role; with `KAFLEET_ALL_ACLS` set, every row but that of the workers topic for trackers, which
/// they need only once a worker has died.
#[tokio::test(flavor = "multi_thread")]
async fn no_role_works_without_a_row_of_the_table() {
    let Some(servers) = services() else { return };
    let first = |role: &str| ACLS.iter().find(|acl| acl.role == role).unwrap();
    let rows: Vec<&'static Acl> = match std::env::var_os("KAFLEET_ALL_ACLS") {
        Some(_) => ACLS.iter().filter(|acl| (acl.role, acl.name) != ("tracker", ".workers")).collect(),
        None => roles().into_iter().map(first).collect(),
    };
    let without = |row: &'static Acl| {
        let servers = servers.clone();
        async move {
            let mut fleet = GuardedFleet::new(&servers, Some(row));
            let outcome = fleet.work().await;
            fleet.stop().await;
            println!("without {row:?}: {outcome:?}");
            outcome.is_ok().then_some(row)
        }
    };
    let useless: Vec<_> = stream::iter(rows).map(without).buffer_unordered(AT_ONCE).collect().await;
    let useless: Vec<&Acl> = useless.into_iter().flatten().collect();
    assert!(useless.is_empty(), "everything works without {useless:?}");
}
