//! `worker`, `tracker`, `api`: one role in this process, on Kafka and Redis.

use clap::Args;

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::setup::{Setup, SetupOptions};
use crate::handlers::Registry;
use crate::model::units::duration::Millis;
use crate::telemetry::init_logs;

#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// How long Kafka, Redis and the topics may take to be there
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub start_timeout: Millis,
}

#[derive(Clone, Debug, Args)]
pub struct OpsArgs {
    /// Where to serve /healthz, /readyz and /metrics; wins over the configuration
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_OPS_LISTEN")]
    pub ops_listen: Option<String>,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The types to work on [default: all]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Attempts at once, per type; wins over the configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: Option<u32>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
}

pub async fn worker(args: WorkerArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let wants = SetupOptions {
        ops_listen: args.ops.ops_listen,
        unused: &["redis", "api", "schedules"],
        handlers: true,
        slots: args.slots.map(|slots| (slots, args.types.clone())),
        ..SetupOptions::default()
    };
    let parts = Setup::load(globals, registry, wants)?;
    check_types(&parts.registry, &args.types)?;
    let broker = parts.kafka()?;
    let mut running = parts.enter().await?;
    let partitions = parts.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    parts.start_worker(&mut running, parts.worker(broker, args.types, partitions));
    parts.until_stopped(running).await?;
    Ok(Code::Ok)
}

/// A type that this binary does not know would never be worked on.
fn check_types(registry: &Registry, types: &[String]) -> Result<(), Failure> {
    let Some(unknown) = types.iter().find(|name| registry.get(name).is_none()) else { return Ok(()) };
    let known: Vec<String> = registry.types().map(|(name, _)| format!("`{name}`")).collect();
    Err(Failure::new(Code::NotFound, format_args!("this worker has no type `{unknown}`"))
        .hint(format_args!("it has {}; others come from `[types]` in the configuration", known.join(", "))))
}

#[derive(Debug, Args)]
pub struct TrackerArgs {
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
}

pub async fn tracker(args: TrackerArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let wants = SetupOptions {
        ops_listen: args.ops.ops_listen,
        unused: &["api", "types", "schedules", "callbacks", "email"],
        ..SetupOptions::default()
    };
    let parts = Setup::load(globals, registry, wants)?;
    let (broker, store) = (parts.kafka()?, parts.redis()?);
    let mut running = parts.enter().await?;
    let partitions = parts.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    parts.wait_for_store(&store, args.start.start_timeout.into()).await?;
    parts.start_tracker(&mut running, parts.tracker(broker, store, partitions));
    parts.until_stopped(running).await?;
    Ok(Code::Ok)
}

#[derive(Debug, Args)]
pub struct ApiArgs {
    /// Address to listen on; wins over the configuration
    #[arg(long, value_name = "HOST:PORT", env = "KAFLEET_API_LISTEN")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
}

pub async fn api(args: ApiArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let wants = SetupOptions {
        api_listen: args.listen,
        ops_listen: args.ops.ops_listen,
        unused: &["types", "schedules", "callbacks", "email"],
        handlers: true,
        ..SetupOptions::default()
    };
    let mut parts = Setup::load(globals, registry, wants)?;
    parts.prefer_latency();
    let (broker, store) = (parts.kafka()?, parts.redis()?);
    let listener = parts.bind_api().await?;
    let mut running = parts.enter().await?;
    let partitions = parts.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    parts.wait_for_store(&store, args.start.start_timeout.into()).await?;
    parts.start_api(&mut running, parts.api(broker, store, partitions), listener);
    parts.until_stopped(running).await?;
    Ok(Code::Ok)
}
