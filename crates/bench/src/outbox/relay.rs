//! Relay of the outbox as a role of a benchmark, with the checks of the API that `kafleet outbox` has.

use std::sync::Arc;

use anyhow::Context as _;
use kafleet_api::{SubmissionError, Submissions};
use kafleet_broker::Broker;
use kafleet_config::{TopicsConfig, Topology};
use kafleet_documents::CreateTask;
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::Registry;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_outbox::checks::{CheckError, RowChecks};
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
        checks: Arc::new(ApiChecks(checks)),
        metrics: RelayMetrics::of(&Metrics::new()?),
        health: Health::default(),
        shutdown,
        holder: format!("bench/{}", std::process::id()),
        times: RelayTimes::default(),
    };
    relay.run().await;
    Ok(())
}

/// Checks of the API for the rows of the outbox.
struct ApiChecks(Submissions);

#[async_trait::async_trait]
impl RowChecks for ApiChecks {
    async fn check(&self, input: CreateTask, trace: Option<&Trace>, now_ms: i64) -> Result<TaskSpec, CheckError> {
        self.0.check(input, trace, now_ms).await.map_err(|error| match error {
            SubmissionError::Invalid(reason) => CheckError::Invalid(reason),
            SubmissionError::Unavailable(reason) => CheckError::Unavailable(reason),
        })
    }
}
