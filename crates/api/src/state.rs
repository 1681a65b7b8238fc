//! State shared by all requests.

use std::net::SocketAddr;
use std::sync::Arc;

use kafleet_broker::Broker;
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_config::{ApiConfig, TopicsConfig, Topology, UiConfig};
use kafleet_fleet::control::{ControlState, ControlWatch, PolicyUpdates};
use kafleet_fleet::dead_letters::DeadLetterIndex;
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::Registry;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::{Health, Shutdown};
use kafleet_store::Store;
use kafleet_telemetry::{Metrics, Tracer};
use tokio::sync::{Mutex, Semaphore};

use super::backends::KAFKA_DEADLINE;
use super::fleet::Fleet;
use super::http::auth::LiveAccess;
use super::http::ops::Ops;
use super::pages::OpenPages;
use super::read::mask::Masks;
use super::read::queue_samples::Queues;
use super::read::reads::Reads;
use super::read::suggest::RecentValues;
use super::service::bulk::BulkRuns;
use super::write::declared::DeclaredTypes;
use super::write::lease::Leases;
use super::write::types::{Topics, TypeCatalog};
use super::write::validate::SubmissionChecks;
use super::write::{BatchProducer, Writes};

/// Memory for request bodies at once, in KiB.
pub(super) const BODY_BUDGET_KIB: usize = 256 << 10;
/// Maximum concurrent blocking calls to Kafka.
pub(crate) const BROKER_CALLS: usize = 64;

/// Dependencies and settings of the API.
pub struct ApiSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    /// Source of the params schemas.
    pub registry: Registry,
    pub config: ApiConfig,
    /// Replaces the tokens while the API serves.
    pub access: LiveAccess,
    /// Replaces the policies of types, whose limits are shown, while the API serves.
    pub policies: PolicyUpdates,
    pub topology: Topology,
    /// Longest time a tree may stay open; no task may start later than this from now.
    pub max_tree_age: Millis,
    pub metrics: Metrics,
    /// `None`: nothing is traced.
    pub tracer: Option<Tracer>,
    pub health: Health,
    /// Web UI.
    pub pages: OpenPages,
}

impl ApiSetup {
    /// API with the default configuration, without task types of its own, tokens and traces.
    pub fn new(
        broker: Arc<dyn Broker>,
        store: Arc<dyn Store>,
        topology: Topology,
        metrics: Metrics,
        pages: OpenPages,
    ) -> Self {
        Self {
            broker,
            store,
            registry: Registry::default(),
            config: ApiConfig::default(),
            access: LiveAccess::default(),
            policies: PolicyUpdates::default(),
            topology,
            max_tree_age: TopicsConfig::default().max_tree_age,
            metrics,
            tracer: None,
            health: Health::default(),
            pages,
        }
    }
}

/// State shared by all requests.
pub struct Api {
    pub reads: Reads,
    pub recent_values: RecentValues,
    /// Samples of the queues of types.
    pub(crate) queues: Queues,
    pub types: Arc<TypeCatalog>,
    pub(crate) writes: Writes,
    pub fleet: Fleet,
    pub topology: Arc<Topology>,
    pub publisher: Publisher,
    pub dead_letters: Arc<DeadLetterIndex>,
    /// Serializes dead-letter resolutions, so that concurrent requests do not fence each other's transactional
    /// producer.
    pub dead_letter_lock: Arc<Mutex<()>>,
    pub access: LiveAccess,
    pub ops: Ops,
    pub max_body: usize,
    pub max_attachment: usize,
    pub ui: UiConfig,
    /// Bulk actions run by this process.
    pub(crate) bulk: BulkRuns,
    pub body_memory: Arc<Semaphore>,
}

impl Api {
    pub(crate) fn new(setup: ApiSetup, address: SocketAddr, shutdown: Shutdown) -> anyhow::Result<Self> {
        setup.access.replace(&setup.config, address)?;
        let transactional_id = setup.topology.names.api_sender(&uuid::Uuid::now_v7().to_string());
        let broker = setup.broker.client().with_deadline(KAFKA_DEADLINE).with_limit(BROKER_CALLS);
        let producer = SharedProducer::open(setup.broker, None)?;
        let publisher = Publisher::new(producer, setup.topology, "kafleet/api")
            .with_counter(&setup.metrics.tasks.submitted)
            .with_tracer(setup.tracer.as_ref());
        let control =
            ControlWatch::new(ControlState::without_task_commands().with_schedules().with_types().with_views());
        let types = Arc::new(TypeCatalog {
            registry: setup.registry,
            declared: DeclaredTypes::new(control.clone()),
            policies: setup.policies,
            broker,
            topology: publisher.topology.clone(),
            max_tree_age: setup.max_tree_age,
            topics: Topics::default(),
        });
        let masks = Masks::new(types.clone());
        let reads = Reads::new(setup.store.clone(), types.broker.clone(), &publisher, masks, shutdown.clone());
        let writes = Writes {
            reads: reads.clone(),
            types: types.clone(),
            checks: SubmissionChecks { types: types.clone() },
            publisher: publisher.clone(),
            leases: Leases { store: setup.store, topology: publisher.topology.clone() },
            producer: BatchProducer::default(),
            transactional_id,
        };
        Ok(Self {
            reads,
            recent_values: RecentValues::default(),
            queues: Queues::default(),
            types,
            writes,
            fleet: Fleet {
                control,
                workers: Arc::default(),
                publisher: publisher.clone(),
                schedule_changes: Arc::default(),
            },
            topology: publisher.topology.clone(),
            publisher,
            dead_letters: Arc::default(),
            dead_letter_lock: Arc::default(),
            access: setup.access,
            ops: Ops { metrics: setup.metrics, health: setup.health, shutdown, started_ms: kafleet_runtime::now_ms() },
            max_body: setup.config.max_body.as_usize(),
            max_attachment: setup.config.max_attachment.as_usize(),
            ui: setup.config.ui,
            bulk: BulkRuns::default(),
            body_memory: Arc::new(Semaphore::new(BODY_BUDGET_KIB)),
        })
    }
}
