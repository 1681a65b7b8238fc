//! The api: REST and JSON over the store and Kafka. The only folder that names axum. It keeps no state of its own: run
//! as many as you like.
//!
//! Reading order: [`documents`] (what goes in and out) → [`problem`] → `routes` (the one table of calls) → `dispatch`
//! (a request becomes a call) → `submit`, `create`, `batch` → `fresh` (how new an answer is) → `tasks`, `tree`, `list` →
//! `report` → `hub` and `watch` (changes as they happen) → `types`, `workers` → `cancel`,
//! `operate` (what workers are told) → `schedules` → `ops` → `serve`.

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

/// Bytes of request bodies held at once, in KiB.
const BODY_BUDGET_KIB: usize = 256 << 10;
/// Blocking calls to Kafka under way at once.
const BROKER_CALLS: usize = 64;
/// How long the last outcomes of sent records are waited for at the end.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// What the api needs.
pub struct ApiSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    /// For the schemas of params.
    pub registry: Registry,
    pub config: ApiConfig,
    pub names: Names,
    pub events_partitions: u32,
    /// Longest time that a tree may be open: no task may start later than that.
    pub max_tree_age: Millis,
    pub metrics: Metrics,
    pub health: Health,
}

/// What every call shares.
pub(crate) struct Api {
    broker: Client,
    store: Arc<dyn Store>,
    registry: Registry,
    publisher: Publisher,
    access: http::auth::Access,
    ops: http::ops::Ops,
    topics: handlers::types::Topics,
    /// What workers are told: pauses, limits, kill switches.
    control: Arc<ControlWatch>,
    /// What workers tell.
    roll: Arc<WorkerRegistry>,
    hub: Arc<read::notices::Notices>,
    ledger: Arc<crate::dead_letters::DeadLetterIndex>,
    /// Dead letters are settled by one call at a time, which so is not fenced by another one of this process.
    settling: Arc<tokio::sync::Mutex<()>>,
    max_body: usize,
    max_attachment: usize,
    max_tree_age: Millis,
    bodies: Arc<Semaphore>,
    sender: write::transaction::Sender,
    /// What Kafka knows it by.
    sender_name: String,
    shutdown: Shutdown,
}

impl Api {
    fn new(setup: ApiSetup, address: std::net::SocketAddr, shutdown: Shutdown) -> anyhow::Result<Self> {
        let link = SharedProducer::open(setup.broker.clone(), None)?;
        let sender_name = setup.names.api_sender(&uuid::Uuid::now_v7().to_string());
        Ok(Self {
            access: http::auth::Access::new(&setup.config, address)?,
            publisher: Publisher::new(link, setup.names, setup.events_partitions, "kafleet/api"),
            broker: setup.broker.client().with_deadline(backends::KAFKA_DEADLINE).with_limit(BROKER_CALLS),
            store: setup.store,
            registry: setup.registry,
            ops: http::ops::Ops { metrics: setup.metrics, health: setup.health, shutdown: shutdown.clone() },
            topics: handlers::types::Topics::default(),
            control: ControlWatch::new(ControlState::without_cancels().with_plan()),
            roll: Arc::default(),
            hub: Arc::new(read::notices::Notices::new(setup.events_partitions)),
            ledger: Arc::default(),
            settling: Arc::default(),
            max_body: setup.config.max_body.as_usize(),
            max_attachment: setup.config.max_attachment.as_usize(),
            max_tree_age: setup.max_tree_age,
            bodies: Arc::new(Semaphore::new(BODY_BUDGET_KIB)),
            sender: write::transaction::Sender::default(),
            sender_name,
            shutdown,
        })
    }
}

/// An api without a listener, for whoever brings requests in another way; its parts end when it is dropped.
pub struct Open {
    pub router: axum::Router,
    link: Arc<SharedProducer>,
    _listening: tokio_util::sync::DropGuard,
    _following: [control::follow::TopicFollower; 2],
}

/// `address` decides whether tokens are needed: it is where requests come in.
pub fn open(setup: ApiSetup, address: std::net::SocketAddr, shutdown: &Shutdown) -> anyhow::Result<Open> {
    let api = Arc::new(Api::new(setup, address, shutdown.clone())?);
    let listening = read::notices::listen(api.hub.clone(), api.store.clone());
    // Whoever cannot be told so answers that Kafka is away; it is no part of this role's health.
    let orders = control::keep(api.control.clone(), api.broker.broker().clone(), api.publisher.names(), None);
    let beats = heartbeat::listen(api.roll.clone(), api.broker.broker().clone(), api.publisher.names());
    let link = api.publisher.link().clone();
    Ok(Open { router: http::router::router(api), link, _listening: listening, _following: [orders, beats] })
}

/// Refuses a configuration under which an api at this address would not serve.
pub fn check_access(config: &crate::config::ApiConfig, address: std::net::SocketAddr) -> anyhow::Result<()> {
    http::auth::Access::new(config, address).map(drop)
}

/// Serves on a listener that the caller has bound, until told to stop. Then it takes no new connections, ends streams
/// and waits, and answers what is under way, for at most 30 s.
pub async fn run(setup: ApiSetup, listener: TcpListener, shutdown: Shutdown) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    let api = open(setup, address, &shutdown)?;
    tracing::info!(%address, "the api listens");
    http::serve::serve(listener, api.router.clone(), &shutdown).await;
    Ok(api.link.flush(FLUSH_DEADLINE).await?)
}

/// Serves `/healthz`, `/readyz` and `/metrics` for a role without an api.
pub async fn run_ops(listener: TcpListener, metrics: Metrics, health: Health, shutdown: Shutdown) -> anyhow::Result<()> {
    let ops = http::ops::Ops { metrics, health, shutdown: shutdown.clone() };
    http::serve::serve(listener, http::ops::router(ops), &shutdown).await;
    Ok(())
}
