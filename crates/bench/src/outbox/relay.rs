//! Relay of the outbox as a role of a benchmark, with the checks of the API that `kafleet outbox` has.

use std::sync::Arc;

use anyhow::Context as _;
use kafleet_api::Submissions;
use kafleet_broker::Broker;
use kafleet_config::{TopicsConfig, Topology};
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::Registry;
use kafleet_outbox::postgres::PostgresOutbox;
use kafleet_outbox::{Relay, RelayMetrics, RelayTimes};
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::Metrics;

use crate::{CALL_DEADLINE, Services};

/// Publishes rows until the shutdown. `database`: URL and schema.
pub(crate) async fn run(
    services: &Services,
    topology: Topology,
    registry: Registry,
    database: (&str, &str),
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let broker: Arc<dyn Broker> = Arc::new(services.kafka()?);
    let max_tree_age = TopicsConfig::default().max_tree_age;
    let checks = Submissions::open(&broker, registry, topology.clone(), max_tree_age);
    checks.wait_until_read(CALL_DEADLINE).await.context("the declarations of types cannot be read")?;
    let client = broker.client();
    let producer = client.shared_producer(None).await?;
    let relay = Relay {
        table: PostgresOutbox::in_schema(database.0, database.1).map_err(anyhow::Error::msg)?,
        client,
        publisher: Publisher::new(producer, topology, "kafleet/bench"),
        checks: Arc::new(checks),
        metrics: RelayMetrics::of(&Metrics::new()?),
        health: Health::default(),
        shutdown,
        holder: format!("bench/{}", std::process::id()),
        times: RelayTimes::default(),
    };
    relay.run().await;
    Ok(())
}
