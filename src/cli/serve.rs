//! `worker`, `tracker`, `api`: run one role in this process, on Kafka and Redis. `all`: runs all three.

use std::sync::Arc;

use clap::Args;
use kafleet_api::ApiSetup;
use kafleet_config::{TaskLogCopy, Topology};
use kafleet_handlers::Registry;
use kafleet_model::units::duration::Millis;
use kafleet_store::Store;
use kafleet_telemetry::{init_logs, set_log_filter};

use super::app_target::TargetArgs;
use super::apps;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::reload::{self, Role};
use super::reload_trigger::{ReloadArgs, Triggers};
use super::setup::{Setup, SetupOptions};
use super::task_lines::TaskLogs;
use super::{topics, traces};

#[derive(Clone, Debug, Args)]
pub(super) struct StartArgs {
    /// Time to wait for the services and topics that the role needs
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub start_timeout: Millis,
}

#[derive(Clone, Debug, Args)]
pub(super) struct OpsArgs {
    /// Address for /healthz, /readyz and /metrics; overrides the configuration
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_OPS_LISTEN")]
    pub ops_listen: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    /// Types to consume [default: all]. Apps that serve none of them are not started
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Concurrent attempts per type; overrides the configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: Option<u32>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
    #[command(flatten)]
    pub reload: ReloadArgs,
    #[command(flatten)]
    pub app: TargetArgs,
}

pub(super) async fn worker(args: WorkerArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let options = SetupOptions {
        ops_listen: args.ops.ops_listen,
        unused: &["redis", "api", "outbox", "schedules"],
        app: args.app.app()?,
        slots: args.slots.map(|slots| (slots, args.types.clone())),
        types: args.types.clone(),
        ..SetupOptions::default()
    };
    let mut setup = Setup::load(globals, registry, options)?;
    set_log_filter(setup.config.log.filter.as_deref());
    let triggers = Triggers::register(globals, args.reload)?;
    traces::start(&mut setup)?;
    apps::open(&mut setup, &[], false).await?;
    apps::capacity_text(&setup.apps).iter().for_each(|capacity| tracing::info!("{capacity}"));
    setup.register()?;
    check_types(&setup.registry, &args.types)?;
    if setup.config.log.tasks == TaskLogCopy::Stderr {
        setup.registry.observe(TaskLogs);
    }
    let broker = setup.kafka()?;
    let mut running = setup.start_ops().await?;
    let topology = setup.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    setup.start_worker(&mut running, setup.worker(broker, args.types.clone(), topology));
    apps::watch(&setup, &mut running);
    reload::watch(&setup, Role::Worker(args.types), triggers, &mut running);
    setup.run_until_stopped(running).await?;
    Ok(Code::Ok)
}

/// Refuses types that this binary has no handler for.
fn check_types(registry: &Registry, types: &[String]) -> Result<(), Failure> {
    let Some(unknown) = types.iter().find(|name| registry.get(name).is_none()) else { return Ok(()) };
    let registered: Vec<String> = registry.types().map(|(name, _)| format!("`{name}`")).collect();
    Err(Failure::new(Code::NotFound, format_args!("this worker has no type `{unknown}`")).hint(format_args!(
        "it has {}; others come from `[types]` and `[apps]` in the configuration",
        registered.join(", ")
    )))
}

#[derive(Debug, Args)]
pub(super) struct TrackerArgs {
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
    #[command(flatten)]
    pub reload: ReloadArgs,
}

pub(super) async fn tracker(args: TrackerArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let options = SetupOptions {
        ops_listen: args.ops.ops_listen,
        unused: &["api", "outbox", "apps", "types", "schedules", "callbacks", "email"],
        ..SetupOptions::default()
    };
    let mut setup = Setup::load(globals, registry, options)?;
    set_log_filter(setup.config.log.filter.as_deref());
    let triggers = Triggers::register(globals, args.reload)?;
    traces::start(&mut setup)?;
    let broker = setup.kafka()?;
    let store = setup.redis()?;
    let mut running = setup.start_ops().await?;
    let topology = setup.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    setup.wait_for_store(&store, args.start.start_timeout.into()).await?;
    setup.start_tracker(&mut running, setup.tracker(broker, store, topology));
    reload::watch(&setup, Role::Tracker, triggers, &mut running);
    setup.run_until_stopped(running).await?;
    Ok(Code::Ok)
}

#[derive(Debug, Args)]
pub(super) struct ApiArgs {
    /// Address to listen on; overrides the configuration
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_API_LISTEN")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
    #[command(flatten)]
    pub reload: ReloadArgs,
}

pub(super) async fn api(args: ApiArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let options = SetupOptions {
        api_listen: args.listen,
        ops_listen: args.ops.ops_listen,
        unused: &["outbox", "apps", "types", "schedules", "callbacks", "email"],
        handlers: true,
        ..SetupOptions::default()
    };
    let mut setup = Setup::load(globals, registry, options)?;
    set_log_filter(setup.config.log.filter.as_deref());
    let triggers = Triggers::register(globals, args.reload)?;
    traces::start(&mut setup)?;
    setup.prefer_latency();
    let broker = setup.kafka()?;
    let store = setup.redis()?;
    let listener = setup.bind_api(0).await?;
    let mut running = setup.start_ops().await?;
    let topology = setup.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    setup.wait_for_store(&store, args.start.start_timeout.into()).await?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    setup.start_api(&mut running, setup.api(broker, store, topology), listener);
    reload::watch(&setup, Role::Api(address), triggers, &mut running);
    setup.run_until_stopped(running).await?;
    Ok(Code::Ok)
}

#[derive(Debug, Args)]
pub(super) struct AllArgs {
    /// Address of the API; overrides the configuration
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_API_LISTEN")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
    #[command(flatten)]
    pub reload: ReloadArgs,
    #[command(flatten)]
    pub app: TargetArgs,
}

/// Runs a worker, a tracker and the API in this process, after it has created missing topics and declared the types.
pub(super) async fn all(args: AllArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let options = SetupOptions {
        api_listen: args.listen,
        ops_listen: args.ops.ops_listen,
        unused: &["outbox", "schedules"],
        app: args.app.app()?,
        ..SetupOptions::default()
    };
    let mut setup = Setup::load(globals, registry, options)?;
    set_log_filter(setup.config.log.filter.as_deref());
    let triggers = Triggers::register(globals, args.reload)?;
    traces::start(&mut setup)?;
    let listener = setup.bind_api(0).await?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    apps::open(&mut setup, &[("KAFLEET_API", format!("http://{address}"))], false).await?;
    setup.register()?;
    if setup.config.log.tasks == TaskLogCopy::Stderr {
        setup.registry.observe(TaskLogs);
    }
    let (broker, store) = (setup.kafka()?, setup.redis()?);
    let timeout = args.start.start_timeout.into();
    let mut running = setup.start_ops().await?;
    topics::create(&setup, &broker.client(), timeout).await?;
    let topology = setup.wait_for_kafka(&broker, timeout).await?;
    setup.wait_for_store(&store, timeout).await?;
    setup.start_tracker(&mut running, setup.tracker(broker.clone(), store.clone(), topology.clone()));
    setup.start_api(&mut running, latency_api(&setup, store, topology.clone())?, listener);
    setup.start_worker(&mut running, setup.worker(broker, Vec::new(), topology));
    apps::watch(&setup, &mut running);
    reload::watch(&setup, Role::All(address), triggers, &mut running);
    setup.run_until_stopped(running).await?;
    Ok(Code::Ok)
}

/// Returns the setup of an API beside a worker: with a producer of its own, since the worker's prefers throughput.
fn latency_api(setup: &Setup, store: Arc<dyn Store>, topology: Topology) -> Result<ApiSetup, Failure> {
    let mut own = setup.clone();
    own.prefer_latency();
    let broker = own.kafka()?;
    // The API learns from declarations what apps declare.
    Ok(ApiSetup { registry: setup.registry.without_apps(), ..setup.api(broker, store, topology) })
}
