//! REST API over the store and Kafka. Stateless: any number of instances can run.
//!
//! A request comes in through [`http`], which reads the arguments of a function of [`service`] and sends its result as
//! a [document](kafleet_documents). The pages of `kafleet-ui`, which the caller hands over as a value ([`OpenPages`]),
//! call the same functions. Services read the projection through [`read`], publish tasks and events through [`write`](mod@write),
//! and write the control topic through `fleet.rs`.
//!
//! Invariant: a change is accepted once Kafka has acknowledged its record or event. The API writes nothing to the store
//! but reservations of ids: the store is a projection, and another write would be lost with the next fold of the log,
//! after the client has seen it succeed.
//!
//! Read next: `http/routes/tasks.rs` (endpoints), `service/create.rs` (one of them), then [`read`] and [`write`](mod@write).

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_fleet::control;
use kafleet_fleet::control::heartbeat;
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::Metrics;
use tokio::net::TcpListener;

mod backends;
mod backlog;
mod fleet;
pub mod http;
pub mod pages;
pub mod read;
pub mod service;
pub mod state;
mod submissions;
pub mod write;

pub use http::auth::LiveAccess;
pub use http::openapi::document as openapi_document;
pub use pages::{OpenPages, Pages};
pub use state::ApiSetup;
pub use submissions::{SubmissionError, Submissions};

use state::Api;

/// Maximum wait for outstanding delivery reports at shutdown.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// API without a listener, for callers that pass requests in themselves. Background tasks end when it is dropped.
pub struct EmbeddedApi {
    pub router: axum::Router,
    api: Arc<Api>,
    producer: Arc<SharedProducer>,
    _listening: [tokio_util::sync::DropGuard; 4],
    _pages: Option<Pages>,
    _following: [control::follow::TopicFollower; 2],
}

impl EmbeddedApi {
    /// Prepares the answers to the first requests.
    pub async fn load(&self) {
        self.api.fleet.load().await;
    }
}

/// Starts the background tasks of the API and returns its router. `address` is the address that the caller listens
/// on: on any but a loopback address tokens are required, unless the configuration waives them.
pub fn open(setup: ApiSetup, address: std::net::SocketAddr, shutdown: &Shutdown) -> anyhow::Result<EmbeddedApi> {
    let store = setup.store.clone();
    let open_pages = setup.pages;
    let api = Arc::new(Api::new(setup, address, shutdown.clone())?);
    let listening = read::notices::listen(api.reads.notices.clone(), store);
    let covering = read::coverage::sample_log(api.reads.clone(), api.ops.metrics.clone());
    // A control topic that cannot be read fails the requests that need it; it is not part of this role's health.
    let state = control::follow_control(
        api.fleet.control.clone(),
        api.reads.broker.broker().clone(),
        &api.topology.names,
        None,
    );
    let beats = heartbeat::listen(api.fleet.workers.clone(), api.reads.broker.broker().clone(), &api.topology.names);
    let pages = open_pages(&api);
    let bulk = service::bulk::start(api.clone());
    let backlog = backlog::measure(api.clone());
    let producer = api.publisher.producer().clone();
    Ok(EmbeddedApi {
        router: http::router::router(&api, &pages),
        api,
        producer,
        _listening: [listening, covering, bulk, backlog],
        _pages: pages,
        _following: [state, beats],
    })
}

/// Rejects a configuration that is not safe to serve on this address.
pub fn check_access(config: &kafleet_config::ApiConfig, address: std::net::SocketAddr) -> anyhow::Result<()> {
    http::auth::Access::new(config, address).map(drop)
}

/// Serves on a bound listener until shutdown. On shutdown it accepts no more connections, ends event streams, answers
/// waiting requests with the current state, and gives requests in flight 30 s to finish.
pub async fn run(setup: ApiSetup, listener: TcpListener, shutdown: Shutdown) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    setup.metrics.set_role("api");
    let api = open(setup, address, &shutdown)?;
    shutdown.drain.run_until_cancelled(api.load()).await;
    tracing::info!(%address, "API listening");
    http::serve::serve(listener, api.router.clone(), &shutdown).await;
    Ok(api.producer.flush(FLUSH_DEADLINE).await?)
}

/// Serves `/healthz`, `/readyz` and `/metrics` for a role that has no API.
pub async fn run_ops(
    listener: TcpListener,
    metrics: Metrics,
    health: Health,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let ops = http::ops::Ops { metrics, health, shutdown: shutdown.clone(), started_ms: kafleet_runtime::now_ms() };
    http::serve::serve(listener, http::router::ops_router(ops), &shutdown).await;
    Ok(())
}
