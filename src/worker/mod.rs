//! stub
use std::sync::Arc;

use crate::broker::Broker;
use crate::config::{Names, WorkerConfig};
use crate::handlers::Registry;
use crate::runtime::{Health, Shutdown};
use crate::telemetry::Metrics;

/// What a worker needs.
pub struct WorkerSetup {
    pub broker: Arc<dyn Broker>,
    pub registry: Registry,
    /// The types to work on; empty: all registered.
    pub types: Vec<String>,
    pub config: WorkerConfig,
    pub names: Names,
    pub events_partitions: u32,
    pub metrics: Metrics,
    pub health: Health,
}

/// Works until told to stop; returns when everything is drained and left.
pub async fn run(_setup: WorkerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    shutdown.drain.cancelled().await;
    Ok(())
}
