//! Roles of a benchmark, each run in a child process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kafleet_api::ApiSetup;
use kafleet_broker::kafka::baseline::RawLoop;
use kafleet_config::{CallbacksConfig, Isolation, Names, Order, Topology, TypePolicy};
use kafleet_handlers::builtin::callback::Callbacks;
use kafleet_handlers::layer::AttemptRequest;
use kafleet_handlers::program_env::WithheldVariables;
use kafleet_handlers::{
    AnswerFuture, Capabilities, Child, Context, Handler, InChild, ParamsError, Registry, TypeRegistration,
};
use kafleet_model::json::RawJson;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::otel::{self, Exporter};
use kafleet_telemetry::{Metrics, Tracer};
use kafleet_tracker::TrackerSetup;
use kafleet_worker::WorkerSetup;
use kafleet_worker::child::OwnExecutable;
use serde::{Deserialize, Serialize};
use tower::util::MapRequestLayer;

use super::app::BenchApp;
use super::{FAN, NOOP, ROUND_DEADLINE, Services, load};

/// A role with its parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildRole {
    Raw {
        services: Services,
        prefix: String,
        group: String,
        to: String,
        records: u64,
        output_bytes: usize,
    },
    RawProduce {
        services: Services,
        prefix: String,
        records: u64,
        events: bool,
    },
    Publish {
        services: Services,
        prefix: String,
        events_partitions: u32,
        tasks: u64,
    },
    Worker {
        services: Services,
        prefix: String,
        events_partitions: u32,
        slots: u32,
        order: Order,
        isolation: Isolation,
        /// Layers around each attempt that change nothing.
        layers: u32,
        fan: bool,
    },
    /// A worker of an app.
    AppWorker {
        services: Services,
        prefix: String,
        events_partitions: u32,
        app: BenchApp,
    },
    /// A process of an app.
    App,
    /// A worker of several types whose attempts sleep.
    Sleeper {
        services: Services,
        prefix: String,
        events_partitions: u32,
        types: u32,
        slots: u32,
        sleep_ms: u64,
    },
    /// A worker whose calls take 2 ms and up to `max` tasks; `None`: one. Calls with the task `bad` fail.
    Batches {
        services: Services,
        prefix: String,
        events_partitions: u32,
        slots: u32,
        max: Option<u32>,
        bad: Option<String>,
    },
    /// A worker whose attempts call a web service.
    Caller {
        services: Services,
        prefix: String,
        events_partitions: u32,
        url: String,
        slots: u32,
        timeout_ms: u64,
        /// The type learns how many calls the service takes at once.
        adaptive: bool,
    },
    /// A worker that delivers callbacks.
    Callbacks {
        services: Services,
        prefix: String,
        events_partitions: u32,
        slots: u32,
    },
    /// A worker of several types, of which some share a group.
    Types {
        services: Services,
        prefix: String,
        events_partitions: u32,
        /// Types of this worker.
        types: Vec<String>,
        /// All types; the first `own` of them have groups of their own.
        all: Vec<String>,
        own: u32,
        slots: u32,
        /// File to create once the worker has its partitions, if any.
        ready: Option<PathBuf>,
    },
    Tracker {
        services: Services,
        prefix: String,
        events_partitions: u32,
    },
    Api {
        services: Services,
        prefix: String,
        events_partitions: u32,
        port: u16,
    },
    /// A relay of the outbox in a schema of a Postgres.
    OutboxRelay {
        services: Services,
        prefix: String,
        events_partitions: u32,
        postgres: String,
        schema: String,
    },
}

/// Runs the role given by the environment variable `KAFLEET_BENCH_ROLE`.
pub fn run() -> anyhow::Result<()> {
    let role = std::env::var(super::process::ROLE).context("this verb is internal to benchmarks")?;
    let role: ChildRole = serde_json::from_str(&role)?;
    kafleet_telemetry::init_logs("warn");
    match role {
        ChildRole::Raw { services, prefix, group, to, records, output_bytes } => {
            let raw = RawLoop {
                group: &group,
                from: &Names::new(&prefix).tasks(NOOP),
                to: &to,
                records,
                output_bytes,
                prefetch_bytes: services.worker.memory_limit.as_usize() / 4,
                commit_interval: services.worker.commit_interval.into(),
            };
            Ok(services.kafka()?.raw_loop(&raw, ROUND_DEADLINE)?)
        }
        ChildRole::RawProduce { services, prefix, records, events } => {
            load::raw_produce(&services, &prefix, records, events)
        }
        ChildRole::App => super::app::serve(),
        role => tokio::runtime::Runtime::new()?.block_on(run_async(role)),
    }
}

async fn run_async(role: ChildRole) -> anyhow::Result<()> {
    let shutdown = Shutdown::new();
    shutdown.on_signals()?;
    match role {
        ChildRole::Worker { services, prefix, events_partitions, slots, order, isolation, layers, fan } => {
            let registry = registry(slots, order, isolation, layers, fan);
            let setup = worker(&services, &prefix, events_partitions, registry)?;
            let own_executable = OwnExecutable::of_this_process(WithheldVariables::default());
            let (tracer, exporter) = start_tracing(&services, &setup.metrics)?.unzip();
            let outcome = kafleet_worker::run(WorkerSetup { own_executable, tracer, ..setup }, shutdown).await;
            if let Some(exporter) = exporter {
                exporter.stop().await;
            }
            outcome
        }
        ChildRole::Sleeper { services, prefix, events_partitions, types, slots, sleep_ms } => {
            let registry = sleepers(types, slots, Duration::from_millis(sleep_ms));
            kafleet_worker::run(worker(&services, &prefix, events_partitions, registry)?, shutdown).await
        }
        ChildRole::Batches { services, prefix, events_partitions, slots, max, bad } => {
            let registry = super::batch_rows::rows(slots, max, bad);
            kafleet_worker::run(worker(&services, &prefix, events_partitions, registry)?, shutdown).await
        }
        ChildRole::Caller { services, prefix, events_partitions, url, slots, timeout_ms, adaptive } => {
            let registry = super::overload::caller(&url, slots, Millis(timeout_ms), adaptive)?;
            kafleet_worker::run(worker(&services, &prefix, events_partitions, registry)?, shutdown).await
        }
        ChildRole::Callbacks { services, prefix, events_partitions, slots } => {
            kafleet_worker::run(worker(&services, &prefix, events_partitions, callbacks(slots)?)?, shutdown).await
        }
        ChildRole::Types { services, prefix, events_partitions, types, all, own, slots, ready } => {
            let mut setup = worker(&services, &prefix, events_partitions, noops(&types, slots))?;
            setup.topology.names = setup.topology.names.with_groups(super::types::groups(&all, own));
            // Set here because the worker sets its own reasons only once it runs.
            setup.health.set(kafleet_fleet::control::HEALTH_PART, "not started");
            let reporting = ready.map(|file| kafleet_runtime::spawn(report_ready(setup.health.clone(), file)));
            let outcome = kafleet_worker::run(setup, shutdown).await;
            reporting.iter().for_each(tokio::task::JoinHandle::abort);
            outcome
        }
        ChildRole::Tracker { services, prefix, events_partitions } => {
            kafleet_tracker::run(tracker(&services, &prefix, events_partitions)?, shutdown).await
        }
        ChildRole::Api { services, prefix, events_partitions, port } => {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
            kafleet_api::run(api(&services, &prefix, events_partitions)?, listener, shutdown).await
        }
        ChildRole::OutboxRelay { services, prefix, events_partitions, postgres, schema } => {
            relay(&services, &prefix, events_partitions, (&postgres, &schema), shutdown).await
        }
        ChildRole::Publish { services, prefix, events_partitions, tasks } => {
            load::publish_tracked(&services, &prefix, events_partitions, tasks).await
        }
        ChildRole::AppWorker { services, prefix, events_partitions, app } => {
            app_worker(&services, &prefix, events_partitions, app, shutdown).await
        }
        ChildRole::App | ChildRole::Raw { .. } | ChildRole::RawProduce { .. } => Ok(()),
    }
}

async fn app_worker(
    services: &Services,
    prefix: &str,
    events_partitions: u32,
    app: BenchApp,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let (pool, registry) = app.open().await?;
    let setup = worker(services, prefix, events_partitions, registry)?;
    pool.serve(setup.health.clone(), &setup.metrics.apps);
    let outcome = kafleet_worker::run(setup, shutdown).await;
    pool.stop().await;
    outcome
}

/// Starts tracing, if the benchmark has an endpoint. The environment is not read: it would change what is measured.
fn start_tracing(services: &Services, metrics: &Metrics) -> anyhow::Result<Option<(Tracer, Exporter)>> {
    let (settings, _) = otel::settings(&services.otel, &|_| None);
    settings.map(|settings| otel::start(settings, &metrics.traces).map_err(anyhow::Error::msg)).transpose()
}

fn worker(
    services: &Services,
    prefix: &str,
    events_partitions: u32,
    registry: Registry,
) -> anyhow::Result<WorkerSetup> {
    Ok(WorkerSetup {
        config: services.worker.clone(),
        ..WorkerSetup::new(
            Arc::new(services.kafka()?),
            registry,
            Topology::new(Names::new(prefix), events_partitions),
            Metrics::new()?,
        )
    })
}

fn tracker(services: &Services, prefix: &str, events_partitions: u32) -> anyhow::Result<TrackerSetup> {
    Ok(TrackerSetup {
        config: services.tracker.clone(),
        ..TrackerSetup::new(
            Arc::new(services.kafka()?),
            Arc::new(services.redis(prefix)?),
            Topology::new(Names::new(prefix), events_partitions),
            Metrics::new()?,
        )
    })
}

fn api(services: &Services, prefix: &str, events_partitions: u32) -> anyhow::Result<ApiSetup> {
    Ok(ApiSetup::new(
        Arc::new(services.kafka()?),
        Arc::new(services.redis(prefix)?),
        Topology::new(Names::new(prefix), events_partitions),
        Metrics::new()?,
        kafleet_ui::open,
    ))
}

/// Runs a relay between the schema of a Postgres and Kafka. `database`: URL and schema.
async fn relay(
    services: &Services,
    prefix: &str,
    events_partitions: u32,
    database: (&str, &str),
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let topology = Topology::new(Names::new(prefix), events_partitions);
    let registry = registry(1, Order::None, Isolation::None, 0, false);
    super::outbox::relay::run(services, topology, registry, database, shutdown).await
}

/// Type whose attempts are callbacks.
fn callbacks(slots: u32) -> anyhow::Result<Registry> {
    let private = vec!["127.0.0.0/8".to_owned()];
    let config = CallbacksConfig { private, plain_http: true, ..CallbacksConfig::default() };
    let mut registry = Registry::default();
    registry.add(NOOP, Callbacks::registered(&config, Some(slots)).map_err(anyhow::Error::msg)?);
    Ok(registry)
}

fn registry(slots: u32, order: Order, isolation: Isolation, layers: u32, fan: bool) -> Registry {
    let mut registry = Registry::default();
    let policy = TypePolicy { concurrency: Some(slots), order, isolation, ..TypePolicy::default() };
    let noop = TypeRegistration { policy: policy.clone(), ..TypeRegistration::new(Noop) };
    let unchanged = MapRequestLayer::new(|request: AttemptRequest| request);
    registry.add(NOOP, (0..layers).fold(noop, |noop, _| noop.with_layer(&unchanged)));
    if fan {
        registry.add(FAN, TypeRegistration { policy, ..TypeRegistration::new(Fan) });
    }
    registry
}

fn noops(types: &[String], slots: u32) -> Registry {
    let mut registry = Registry::default();
    for name in types {
        let policy = TypePolicy { concurrency: Some(slots), ..TypePolicy::default() };
        registry.add(name, TypeRegistration { policy, ..TypeRegistration::new(Noop) });
    }
    registry
}

/// Creates a file as soon as the worker is ready.
async fn report_ready(health: Health, file: PathBuf) {
    while !health.reasons().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if let Err(error) = std::fs::write(&file, "") {
        tracing::error!(%error, file = %file.display(), "cannot report that the worker is ready");
    }
}

fn sleepers(types: u32, slots: u32, duration: Duration) -> Registry {
    let mut registry = Registry::default();
    for name in super::memory::type_names(types) {
        let policy = TypePolicy { concurrency: Some(slots), ..TypePolicy::default() };
        registry.add(&name, TypeRegistration { policy, ..TypeRegistration::new(Sleeper(duration)) });
    }
    registry
}

/// Sleeps for the given time.
struct Sleeper(Duration);

impl Handler for Sleeper {
    fn run(&self, _: &RawJson, _: Context) -> Result<AnswerFuture, ParamsError> {
        let duration = self.0;
        Ok(Box::pin(async move {
            tokio::time::sleep(duration).await;
            Ok(RawJson::null())
        }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { is_silent: true, ..Capabilities::default() }
    }
}

struct Noop;

impl Handler for Noop {
    fn run(&self, _: &RawJson, _: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(Box::pin(std::future::ready(Ok(RawJson::null()))))
    }

    /// Attempts of the type in child processes are those of the built-in type that does almost nothing.
    fn capabilities(&self) -> Capabilities {
        Capabilities { is_silent: true, in_child: InChild::Type("echo"), ..Capabilities::default() }
    }
}

/// Spawns the number of no-op tasks given by its params.
struct Fan;

impl Handler for Fan {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let children = serde_json::from_str(params.text()).unwrap_or(0_u64);
        (0..children).for_each(|n| cx.spawn_child(Child::new(NOOP, serde_json::json!(n))));
        Ok(Box::pin(std::future::ready(Ok(RawJson::null()))))
    }
}
