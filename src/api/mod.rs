//! REST and JSON API over the store and Kafka. The only folder that may use axum. Stateless: any number of instances
//! can run.
//!
//! Reading order: [`documents`] (requests and responses) → [`http`] (the route table, the request dispatcher,
//! problems) → [`write`] and [`read`] (shared by handlers) → [`handlers`] (one file per endpoint or group of
//! endpoints).

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, Client};
use crate::config::{ApiConfig, Names};
use crate::control::heartbeat;
use crate::control::heartbeat::WorkerRegistry;
use crate::control::{self, ControlState, ControlWatch};
use crate::handlers::Registry;
use crate::model::units::duration::Millis;
use crate::publish::Publisher;
use crate::runtime::{Health, Shutdown};
use crate::store::Store;
use crate::telemetry::Metrics;

mod backends;
pub mod documents;
pub mod handlers;
pub mod http;
pub mod read;
pub mod write;

pub use http::openapi::document as openapi_document;

/// Memory for request bodies at once, in KiB.
const BODY_BUDGET_KIB: usize = 256 << 10;
/// Maximum concurrent blocking calls to Kafka.
const BROKER_CALLS: usize = 64;
/// Maximum wait for outstanding delivery reports at shutdown.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// Dependencies and settings of the API.
pub struct ApiSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    /// Source of the params schemas.
    pub registry: Registry,
    pub config: ApiConfig,
    pub names: Names,
    pub events_partitions: u32,
    /// Longest time a tree may stay open; no task may start later than this from now.
    pub max_tree_age: Millis,
    pub metrics: Metrics,
    pub health: Health,
}

/// State shared by all requests.
pub(crate) struct Api {
    broker: Client,
    store: Arc<dyn Store>,
    registry: Registry,
    publisher: Publisher,
    access: http::auth::Access,
    ops: http::ops::Ops,
    topics: handlers::types::Topics,
    /// Pauses, limits, kill switches and schedules, read from the control topic.
    control: Arc<ControlWatch>,
    /// Latest heartbeat of each worker.
    workers: Arc<WorkerRegistry>,
    notices: Arc<read::notices::Notices>,
    dead_letters: Arc<crate::dead_letters::DeadLetterIndex>,
    /// Serializes dead-letter resolutions, so that concurrent requests do not fence each other's transactional
    /// producer.
    dead_letter_lock: Arc<tokio::sync::Mutex<()>>,
    max_body: usize,
    max_attachment: usize,
    max_tree_age: Millis,
    body_memory: Arc<Semaphore>,
    producer: write::transaction::BatchProducer,
    /// Transactional id of this process.
    transactional_id: String,
    shutdown: Shutdown,
}

impl Api {
    fn new(setup: ApiSetup, address: std::net::SocketAddr, shutdown: Shutdown) -> anyhow::Result<Self> {
        let link = SharedProducer::open(setup.broker.clone(), None)?;
        let transactional_id = setup.names.api_sender(&uuid::Uuid::now_v7().to_string());
        Ok(Self {
            access: http::auth::Access::new(&setup.config, address)?,
            publisher: Publisher::new(link, setup.names, setup.events_partitions, "kafleet/api"),
            broker: setup.broker.client().with_deadline(backends::KAFKA_DEADLINE).with_limit(BROKER_CALLS),
            store: setup.store,
            registry: setup.registry,
            ops: http::ops::Ops { metrics: setup.metrics, health: setup.health, shutdown: shutdown.clone() },
            topics: handlers::types::Topics::default(),
            control: ControlWatch::new(ControlState::without_cancels().with_plan()),
            workers: Arc::default(),
            notices: Arc::new(read::notices::Notices::new(setup.events_partitions)),
            dead_letters: Arc::default(),
            dead_letter_lock: Arc::default(),
            max_body: setup.config.max_body.as_usize(),
            max_attachment: setup.config.max_attachment.as_usize(),
            max_tree_age: setup.max_tree_age,
            body_memory: Arc::new(Semaphore::new(BODY_BUDGET_KIB)),
            producer: write::transaction::BatchProducer::default(),
            transactional_id,
            shutdown,
        })
    }
}

/// API without a listener, for callers that pass requests in themselves. Background tasks end when it is dropped.
pub struct Open {
    pub router: axum::Router,
    link: Arc<SharedProducer>,
    _listening: tokio_util::sync::DropGuard,
    _following: [control::follow::TopicFollower; 2],
}

/// Starts the background tasks. `address` is where requests arrive; it decides whether tokens are required.
pub fn open(setup: ApiSetup, address: std::net::SocketAddr, shutdown: &Shutdown) -> anyhow::Result<Open> {
    let api = Arc::new(Api::new(setup, address, shutdown.clone())?);
    let listening = read::notices::listen(api.notices.clone(), api.store.clone());
    // A control topic that cannot be read fails the requests that need it; it is not part of this role's health.
    let orders = control::keep(api.control.clone(), api.broker.broker().clone(), api.publisher.names(), None);
    let beats = heartbeat::listen(api.workers.clone(), api.broker.broker().clone(), api.publisher.names());
    let link = api.publisher.link().clone();
    Ok(Open { router: http::router::router(api), link, _listening: listening, _following: [orders, beats] })
}

/// Rejects a configuration that is not safe to serve on this address.
pub fn check_access(config: &crate::config::ApiConfig, address: std::net::SocketAddr) -> anyhow::Result<()> {
    http::auth::Access::new(config, address).map(drop)
}

/// Serves on a bound listener until shutdown. It then accepts no more connections, ends streams and waits, and
/// finishes requests in flight within 30 s.
pub async fn run(setup: ApiSetup, listener: TcpListener, shutdown: Shutdown) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    let api = open(setup, address, &shutdown)?;
    tracing::info!(%address, "API listening");
    http::serve::serve(listener, api.router.clone(), &shutdown).await;
    Ok(api.link.flush(FLUSH_DEADLINE).await?)
}

/// Serves `/healthz`, `/readyz` and `/metrics` for a role that has no API.
pub async fn run_ops(listener: TcpListener, metrics: Metrics, health: Health, shutdown: Shutdown) -> anyhow::Result<()> {
    let ops = http::ops::Ops { metrics, health, shutdown: shutdown.clone() };
    http::serve::serve(listener, http::ops::router(ops), &shutdown).await;
    Ok(())
}
