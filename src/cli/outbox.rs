//! `outbox`: publishes the rows of the outbox in Postgres as tasks; `schema`, `list`, `retry`, `drop`.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use kafleet_api::Submissions;
use kafleet_broker::Broker;
use kafleet_config::Topology;
use kafleet_fleet::publish::Publisher;
use kafleet_fleet::topics::RequiredTopics;
use kafleet_handlers::Registry;
use kafleet_model::units::time::time_text;
use kafleet_outbox::postgres::PostgresOutbox;
use kafleet_outbox::schema::{MYSQL_SCHEMA, postgres_schema};
use kafleet_outbox::table::{ListedDeadRow, OutboxTable, TableError};
use kafleet_outbox::{Relay, RelayMetrics, RelayTimes};
use kafleet_runtime::now_ms;
use kafleet_telemetry::{init_logs, set_log_filter};
use serde_json::json;

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows, one_line};
use super::serve::{OpsArgs, StartArgs};
use super::setup::{Setup, SetupOptions};
use super::traces;

/// Sections that only other roles use.
const UNUSED: &[&str] = &["redis", "api", "apps", "types", "schedules", "callbacks", "email"];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct OutboxArgs {
    #[command(subcommand)]
    pub verb: Option<OutboxVerb>,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub ops: OpsArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum OutboxVerb {
    /// Print the SQL that creates the outbox, to be run in the database of your application
    Schema(SchemaArgs),
    /// List rows that are no valid tasks, newest first
    List(ListArgs),
    /// Submit rows again that were no valid tasks
    Retry(RowsArgs),
    /// Drop rows that were no valid tasks
    Drop(RowsArgs),
}

#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// Add a trigger that wakes the relay at each commit; for databases with fewer than 200 commits per second
    #[arg(long)]
    pub notify: bool,
    /// Print the table for MySQL and MariaDB, which Debezium reads
    #[arg(long, conflicts_with = "notify")]
    pub mysql: bool,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Maximum number of rows
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct RowsArgs {
    /// Ids of the tasks, from `outbox list`
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<String>,
    /// All rows that were no valid tasks
    #[arg(long)]
    pub all: bool,
}

pub(super) async fn outbox(args: OutboxArgs, globals: &Globals, registry: Registry) -> Outcome {
    let OutboxArgs { verb, start, ops } = args;
    match verb {
        None => relay(start, ops, globals, registry).await,
        Some(OutboxVerb::Schema(args)) => schema(&args, globals),
        Some(OutboxVerb::List(args)) => list(&args, globals).await,
        Some(OutboxVerb::Retry(args)) => retry(args, globals).await,
        Some(OutboxVerb::Drop(args)) => drop_rows(args, globals).await,
    }
}

fn schema(args: &SchemaArgs, globals: &Globals) -> Outcome {
    let text = if args.mysql { MYSQL_SCHEMA.to_owned() } else { postgres_schema(args.notify) };
    globals.output().line(text.trim_end())?;
    Ok(Code::Ok)
}

async fn list(args: &ListArgs, globals: &Globals) -> Outcome {
    let table = configured(globals)?;
    let rows = table.dead_rows(args.limit as usize).await.map_err(of_table)?;
    globals.output().json_or_list(&rows, |rows| table_of(rows), "no row was given up")?;
    Ok(Code::Ok)
}

fn table_of(rows: &[ListedDeadRow]) -> Rows {
    let mut table = Rows::new(["TASK", "TYPE", "INSERTED", "GIVEN UP", "REASON"]);
    for row in rows {
        table.add([
            Field::Text(row.id.clone()),
            Field::Text(row.task_type.clone()),
            Field::Text(time_text(row.created_at_ms)),
            Field::Text(time_text(row.died_at_ms)),
            Field::Text(one_line(&row.reason)),
        ]);
    }
    table
}

async fn retry(args: RowsArgs, globals: &Globals) -> Outcome {
    let count = configured(globals)?.retry_dead(args.selected()).await.map_err(of_table)?;
    print_count(&args, count, "submitted again", globals)
}

async fn drop_rows(args: RowsArgs, globals: &Globals) -> Outcome {
    let count = configured(globals)?.drop_dead(args.selected()).await.map_err(of_table)?;
    print_count(&args, count, "dropped", globals)
}

impl RowsArgs {
    /// Ids of the rows; `None`: all.
    fn selected(&self) -> Option<&[String]> {
        (!self.all).then_some(self.ids.as_slice())
    }
}

/// Prints the number of rows. Fails if there are none of the given ids.
fn print_count(args: &RowsArgs, count: u64, done: &str, globals: &Globals) -> Outcome {
    globals.output().json_or_line(&json!({ "rows": count }), |_| format!("{count} rows {done}"))?;
    if count == 0 && !args.all {
        let reason = format!("no row of the outbox was given up with the id `{}`", args.ids.join("`, `"));
        return Err(Failure::new(Code::NotFound, reason).hint("`kafleet outbox list` shows the ids"));
    }
    Ok(Code::Ok)
}

/// Outbox of the configuration, for verbs that use nothing else.
fn configured(globals: &Globals) -> Result<Arc<PostgresOutbox>, Failure> {
    init_logs("warn");
    let options = SetupOptions { unused: UNUSED, ..SetupOptions::default() };
    open(&Setup::load(globals, Registry::default(), options)?)
}

/// Outbox of the configuration. Does not connect.
pub(super) fn open(setup: &Setup) -> Result<Arc<PostgresOutbox>, Failure> {
    let url = setup.config.outbox.as_ref().and_then(|outbox| outbox.postgres.as_deref());
    PostgresOutbox::new(url.ok_or_else(no_postgres)?)
        .map_err(|error| Failure::usage(format_args!("`outbox.postgres` is not a valid URL: {error}")))
}

pub(super) fn no_postgres() -> Failure {
    Failure::usage("no Postgres is configured")
        .hint("set --postgres, KAFLEET_POSTGRES, or `postgres` in `[outbox]` of the configuration")
}

fn of_table(error: TableError) -> Failure {
    let code = match &error {
        TableError::Unavailable(_) => Code::Unavailable,
        TableError::Schema(_) => Code::Failed,
        TableError::Denied(_) => Code::Denied,
    };
    Failure::new(code, error)
}

/// Runs the relay until the process is stopped.
async fn relay(start: StartArgs, ops: OpsArgs, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("info");
    let options =
        SetupOptions { ops_listen: ops.ops_listen, unused: UNUSED, handlers: true, ..SetupOptions::default() };
    let mut setup = Setup::load(globals, registry, options)?;
    set_log_filter(setup.config.log.filter.as_deref());
    let table = open(&setup)?;
    traces::start(&mut setup)?;
    setup.prefer_latency();
    setup.metrics.set_role("outbox");
    let broker = setup.kafka()?;
    let mut running = setup.start_ops().await?;
    let timeout = Duration::from(start.start_timeout);
    let topology = setup.wait_for_kafka(&broker, timeout).await?;
    let checks = checks(&setup, &broker, &topology, timeout).await?;
    let relay = wired(&setup, &broker, &topology, table, checks).await?;
    let topics = setup.watch_topics(&broker, RequiredTopics::outbox(&topology), "outbox's topics");
    running.spawn(async move {
        let _topics = topics;
        relay.run().await;
        ("outbox", Ok(()))
    });
    setup.run_until_stopped(running).await?;
    Ok(Code::Ok)
}

/// Opens the checks of submissions, and waits for the declarations of types.
async fn checks(
    setup: &Setup,
    broker: &Arc<dyn Broker>,
    topology: &Topology,
    timeout: Duration,
) -> Result<Submissions, Failure> {
    let max_tree_age = setup.config.topics.max_tree_age;
    let submissions = Submissions::open(broker, setup.registry.clone(), topology.clone(), max_tree_age);
    let read = submissions.wait_until_read(timeout).await;
    read.map_err(|error| Failure::unavailable(error).hint("check --brokers, KAFLEET_BROKERS or `[kafka]`"))?;
    Ok(submissions)
}

async fn wired(
    setup: &Setup,
    broker: &Arc<dyn Broker>,
    topology: &Topology,
    table: Arc<PostgresOutbox>,
    checks: Submissions,
) -> Result<Relay, Failure> {
    let client = broker.client();
    let producer = client.shared_producer(None).await.map_err(|error| Failure::unavailable(error.to_string()))?;
    let publisher = Publisher::new(producer, topology.clone(), "kafleet/outbox")
        .with_counter(&setup.metrics.tasks.submitted)
        .with_tracer(setup.tracing.as_ref().map(|(tracer, _)| tracer));
    Ok(Relay {
        table,
        client,
        publisher,
        checks: Arc::new(checks),
        metrics: RelayMetrics::of(&setup.metrics),
        health: setup.health.clone(),
        shutdown: setup.shutdown.clone(),
        holder: holder(),
        times: RelayTimes::default(),
    })
}

/// Name of this process among the relays of an outbox.
fn holder() -> String {
    let host = nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |host| host.to_string_lossy().into_owned());
    format!("{host}/{}/{}", std::process::id(), now_ms())
}
