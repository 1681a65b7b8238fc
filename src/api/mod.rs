//! stub
pub mod documents;

use std::sync::Arc;

use crate::broker::Broker;
use crate::config::{ApiConfig, Names};
use crate::handlers::Registry;
use crate::runtime::{Health, Shutdown};
use crate::store::Store;
use crate::telemetry::Metrics;

/// What the api needs.
pub struct ApiSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    /// For the schemas of params.
    pub registry: Registry,
    pub config: ApiConfig,
    pub names: Names,
    pub events_partitions: u32,
    pub metrics: Metrics,
    pub health: Health,
}

/// Serves on a listener that the caller has bound, until told to stop.
pub async fn run(_setup: ApiSetup, _listener: tokio::net::TcpListener, shutdown: Shutdown) -> anyhow::Result<()> {
    shutdown.drain.cancelled().await;
    Ok(())
}

/// Serves `/healthz`, `/readyz` and `/metrics` for a role without an api.
pub async fn run_ops(
    _listener: tokio::net::TcpListener,
    _metrics: Metrics,
    _health: Health,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    shutdown.drain.cancelled().await;
    Ok(())
}
