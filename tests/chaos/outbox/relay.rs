//! Relay of the outbox as a process of its own, which the test kills. Its lease is short, so that a standby takes over at once.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use kafleet::api::SubmissionError;
use kafleet::broker::Broker;
use kafleet::config::{Names, Topology};
use kafleet::documents::CreateTask;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::{TaskSpec, Trace};
use kafleet::outbox::checks::RowChecks;
use kafleet::outbox::postgres::PostgresOutbox;
use kafleet::outbox::{Relay, RelayMetrics, RelayTimes};
use kafleet::publish::Publisher;
use kafleet::runtime::{Health, Shutdown};
use kafleet::telemetry::{Metrics, init_logs};
use kafleet_testkit::services::connect;

use super::{EVENTS_PARTITIONS, PREFIX};
use crate::process::Process;

/// Variable with the brokers, which makes this binary a relay.
pub const BROKERS: &str = "KAFLEET_CHAOS_RELAY_BROKERS";
const URL: &str = "KAFLEET_CHAOS_RELAY_URL";
const HOLDER: &str = "KAFLEET_CHAOS_RELAY_HOLDER";

/// Process of a relay. Does not start it.
pub fn process(folder: &Path, number: usize, brokers: &str, url: &str) -> Process {
    let (name, at) = (format!("relay-{number}"), folder.to_owned());
    let (brokers, url, holder) = (brokers.to_owned(), url.to_owned(), name.clone());
    Process::new(&name, folder.join(format!("{name}.log")), move |starts| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.current_dir(&at).env(BROKERS, &brokers).env(URL, &url).env("KAFLEET_LOG", "info");
        command.env(HOLDER, format!("{holder}.{starts}"));
        command
    })
}

/// Runs a relay until the process is killed.
pub fn main() -> ExitCode {
    init_logs("info");
    let variable = |name: &str| std::env::var(name).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let broker: Arc<dyn Broker> = connect(variable(BROKERS));
        let client = broker.client();
        let producer = client.shared_producer(None).await.unwrap();
        let topology = Topology::new(Names::new(PREFIX), EVENTS_PARTITIONS);
        let relay = Relay {
            table: PostgresOutbox::new(&variable(URL)).unwrap(),
            client,
            publisher: Publisher::new(producer, topology, "chaos"),
            checks: Arc::new(AnyType),
            metrics: RelayMetrics::of(&Metrics::new().unwrap()),
            health: Health::default(),
            shutdown: Shutdown::new(),
            holder: variable(HOLDER),
            times: RelayTimes {
                lease: Duration::from_millis(600),
                renewal: Duration::from_millis(100),
                standby: Duration::from_millis(50),
                pause: (Duration::from_millis(20), Duration::from_millis(500)),
                ..RelayTimes::default()
            },
        };
        relay.run().await;
    });
    ExitCode::SUCCESS
}

/// Checks that need no declaration of types.
struct AnyType;

#[async_trait::async_trait]
impl RowChecks for AnyType {
    async fn check(
        &self,
        input: CreateTask,
        _trace: Option<&Trace>,
        _now_ms: i64,
    ) -> Result<TaskSpec, SubmissionError> {
        let id = TaskId::parse(input.id.as_deref().unwrap_or_default());
        let id = id.map_err(|error| SubmissionError::Invalid(error.to_string()))?;
        Ok(TaskSpec::new(id, input.task_type, input.params))
    }
}
