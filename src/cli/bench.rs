//! `bench`: measures this build on this machine; each figure is shown beside a baseline from the same run.

use clap::Subcommand;
use kafleet_bench::{BenchReport, Common, Services};
use kafleet_config::{Config, Order, OtelConfig};

use super::exit::{Code, Failure, Outcome};
use super::globals::{Format, Globals};
use super::setup::{SetupOptions, load_config};

/// Sections of the configuration that benchmarks do not use.
const UNUSED: [&str; 8] = ["outbox", "api", "apps", "callbacks", "email", "ops", "schedules", "types"];
/// Number of leading sections of [`UNUSED`] that the benchmark of the outbox uses.
const OF_OUTBOX: usize = 1;

#[derive(Debug, Subcommand)]
pub(super) enum BenchVerb {
    /// Publish tracked tasks from one process; baseline: plain Kafka produce
    Publish(kafleet_bench::PublishBench),
    /// Drain a backlog of no-op tasks in one worker process; baseline: a plain librdkafka loop
    Worker(kafleet_bench::WorkerBench),
    /// Drain a backlog of no-op tasks through an app; baseline: the app driven without Kafka
    App(kafleet_bench::AppBench),
    /// Calls of 2 ms with many tasks in each; baseline: one task in each
    Batch(kafleet_bench::BatchBench),
    /// Project an event log into Redis in one tracker process; baseline: plain writes
    Tracker(kafleet_bench::TrackerBench),
    /// The whole tracked path: publish, run, project into Redis
    E2e(kafleet_bench::E2e),
    /// Tasks at a steady rate: time from submission to start, and to a readable success
    Latency(kafleet_bench::Latency),
    /// A parent with many children: time from its submission to its success
    Fanin(kafleet_bench::Fanin),
    /// Status reads over HTTP: CPU cost, and latency while a tracker is busy
    Reads(kafleet_bench::StatusReads),
    /// Memory and CPU of an idle worker and an idle tracker
    Idle(kafleet_bench::Idle),
    /// Many concurrent attempts in one worker, each sleeping for the same time
    Sleep(kafleet_bench::Sleep),
    /// Delayed tasks: tracker memory while many wait, and lateness of their starts
    Timers(kafleet_bench::Timers),
    /// Tasks of producers that send no event: time from the record to `queued`
    Unannounced(kafleet_bench::UnannouncedBench),
    /// Asks for unique tasks at a steady rate: time from the ask to the start, and that no key has two open tasks
    Unique(kafleet_bench::UniqueBench),
    /// Rows that an application commits to an outbox in Postgres: rows relayed per second, and time from a commit to `queued`; baseline: the inserts without a relay
    Outbox(kafleet_bench::OutboxBench),
    /// Very many clients watching one API: cost while idle, and cost of a change
    Watch(kafleet_bench::Watch),
    /// Many types in one group: idle resources, a flood of one type, a hot type, the restart of a worker
    Types(kafleet_bench::TypesBench),
    /// Pages of the web UI: size, CPU beside the API's calls, open tabs, time until a change is shown
    Ui(kafleet_bench::Ui),
    /// Peak memory of a worker: long backlog, large params, many types
    Memory(kafleet_bench::MemoryBench),
    /// The service behind a type goes away and comes back: failed attempts, dead letters, time until work is back
    Overload(kafleet_bench::Overload),
    /// Callbacks to ten receivers, of which one is dead: time until the others have theirs; baseline: all are alive
    Receivers(kafleet_bench::ReceiversBench),
    /// All except `app`, `batch`, `memory`, `outbox`, `overload`, `receivers`, `timers`, `types`, `ui`, `unannounced`, `unique` and `watch`, one after the other
    All(Common),
    /// Run a process of a benchmark (internal)
    #[command(hide = true)]
    ChildRole,
}

pub(super) async fn bench(verb: BenchVerb, globals: &Globals) -> Outcome {
    if let BenchVerb::ChildRole = verb {
        return blocking(kafleet_bench::child_role::run).await.map(|()| Code::Ok).map_err(failed);
    }
    let unused = if matches!(verb, BenchVerb::Outbox(_)) { &UNUSED[OF_OUTBOX..] } else { &UNUSED };
    let config = load_config(globals, &SetupOptions { unused, ..SetupOptions::default() })?.config;
    let Config { kafka, redis, worker, tracker, outbox, .. } = config;
    let otel = OtelConfig::default();
    let services = Services { kafka, redis, worker, tracker, otel, linger: Common::default().linger };
    require_single_server(&services.redis.url)?;
    let postgres = outbox.and_then(|outbox| outbox.postgres);
    if let BenchVerb::Outbox(bench) = verb {
        let postgres = postgres.ok_or_else(super::outbox::no_postgres)?;
        let report = kafleet_bench::outbox(&bench, &services, &postgres).await.map_err(failed)?;
        return print(&BenchReport { kafka: services.kafka_version(), ..report }, globals);
    }
    let verbs = match verb {
        BenchVerb::All(common) => all(&common),
        verb => vec![verb],
    };
    for verb in verbs {
        let report = run(verb, services.clone()).await.map_err(failed)?;
        print(&BenchReport { kafka: services.kafka_version(), ..report }, globals)?;
    }
    Ok(Code::Ok)
}

/// Refuses a Redis cluster: the figures, and the cleanup at the end, are those of one server.
fn require_single_server(url: &str) -> Result<(), Failure> {
    let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
    if !scheme.ends_with("-cluster") {
        return Ok(());
    }
    Err(Failure::usage(format_args!("benchmarks measure one Redis server, and `{scheme}://` names a cluster"))
        .hint("name a standalone server: --redis redis://HOST:PORT"))
}

fn all(common: &Common) -> Vec<BenchVerb> {
    let common = common.clone();
    let tracker = |roots| {
        let shape = kafleet_bench::Shape { roots, ..kafleet_bench::Shape::default() };
        BenchVerb::Tracker(kafleet_bench::TrackerBench { common: common.clone(), shape, window: 1_000 })
    };
    vec![
        BenchVerb::Idle(kafleet_bench::Idle { seconds: 10 }),
        BenchVerb::Latency(kafleet_bench::Latency { rounds: common.rounds, ..kafleet_bench::Latency::default() }),
        BenchVerb::Fanin(kafleet_bench::Fanin::default()),
        BenchVerb::Publish(kafleet_bench::PublishBench { common: common.clone() }),
        BenchVerb::Worker(kafleet_bench::WorkerBench {
            common: common.clone(),
            memory_limit: None,
            order: Order::None,
            isolation: false,
            layers: 0,
            otel_sample: None,
            otel_endpoint: String::new(),
        }),
        BenchVerb::Reads(kafleet_bench::StatusReads { rounds: common.rounds, ..kafleet_bench::StatusReads::default() }),
        BenchVerb::Sleep(kafleet_bench::Sleep { rounds: common.rounds, ..kafleet_bench::Sleep::default() }),
        tracker(0),
        tracker(1),
        BenchVerb::E2e(kafleet_bench::E2e { common }),
    ]
}

async fn run(verb: BenchVerb, services: Services) -> anyhow::Result<BenchReport> {
    match verb {
        BenchVerb::Publish(publish) => blocking(move || kafleet_bench::publish(&publish, &services)).await,
        BenchVerb::Worker(worker) => blocking(move || kafleet_bench::worker(&worker, &services)).await,
        BenchVerb::Batch(batch) => blocking(move || kafleet_bench::batch(&batch, &services)).await,
        BenchVerb::App(app) => blocking(move || kafleet_bench::app(&app, &services)).await,
        BenchVerb::Sleep(sleep) => blocking(move || kafleet_bench::sleep(&sleep, &services)).await,
        BenchVerb::Tracker(tracker) => kafleet_bench::tracker(&tracker, &services).await,
        BenchVerb::E2e(e2e) => kafleet_bench::e2e(&e2e, &services).await,
        BenchVerb::Latency(latency) => kafleet_bench::latency(&latency, &services).await,
        BenchVerb::Fanin(fanin) => kafleet_bench::fanin(&fanin, &services).await,
        BenchVerb::Memory(memory) => blocking(move || kafleet_bench::memory(&memory, &services)).await,
        BenchVerb::Types(types) => blocking(move || kafleet_bench::types(&types, &services)).await,
        BenchVerb::Timers(timers) => kafleet_bench::timers(&timers, &services).await,
        BenchVerb::Reads(reads) => kafleet_bench::reads(&reads, &services).await,
        BenchVerb::Unannounced(unannounced) => kafleet_bench::unannounced(&unannounced, &services).await,
        BenchVerb::Unique(unique) => kafleet_bench::unique(&unique, &services).await,
        BenchVerb::Ui(ui) => kafleet_bench::ui(&ui, &services).await,
        BenchVerb::Watch(watch) => kafleet_bench::watch(&watch, &services).await,
        BenchVerb::Idle(idle) => kafleet_bench::idle(&idle, &services).await,
        BenchVerb::Receivers(receivers) => kafleet_bench::receivers(&receivers, &services).await,
        BenchVerb::Overload(overload) => kafleet_bench::overload(&overload, &services).await,
        BenchVerb::All(_) | BenchVerb::Outbox(_) | BenchVerb::ChildRole => anyhow::bail!("not a single benchmark"),
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(call).await?
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::failed(format_args!("the benchmark did not finish: {error:#}"))
}

fn print(report: &BenchReport, globals: &Globals) -> Outcome {
    let output = globals.output();
    match globals.format {
        Format::Json => output.json(report)?,
        _ => output.line(&format!("{}\n", report.table()))?,
    }
    Ok(Code::Ok)
}
