//! stub
use std::sync::Arc;

use crate::broker::Broker;
use crate::config::{Names, TrackerConfig};
use crate::runtime::{Health, Shutdown};
use crate::store::Store;
use crate::telemetry::Metrics;

/// What a tracker needs.
pub struct TrackerSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    pub config: TrackerConfig,
    pub names: Names,
    pub events_partitions: u32,
    pub metrics: Metrics,
    pub health: Health,
}

/// Tracks until told to stop.
pub async fn run(_setup: TrackerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    shutdown.drain.cancelled().await;
    Ok(())
}
