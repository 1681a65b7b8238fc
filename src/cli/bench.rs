//! `bench`: how fast this build is on this machine, each figure beside its ceiling from the same run.

use clap::Subcommand;

use super::exit::{Code, Failure, Outcome};
use super::globals::{Format, Globals};
use super::setup::{SetupOptions, load_config};
use crate::bench::{self, Common, Report, Services};
use crate::config::{Config, Order};

/// Sections of the configuration that say nothing about where to measure.
const UNUSED: [&str; 6] = ["api", "callbacks", "email", "ops", "schedules", "types"];

#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// One process publishes tasks with tracking, beside raw produce
    Publish(bench::PublishBench),
    /// One worker process works off a backlog of no-op tasks, beside the raw librdkafka loop
    Worker(bench::WorkerBench),
    /// One tracker process folds a log into Redis, beside plain writes
    Tracker(bench::TrackerBench),
    /// The whole tracked path: publish, work, fold into Redis
    E2e(bench::E2e),
    /// Tasks at a steady rate: from submission to start, and to a success that can be read
    Latency(bench::Latency),
    /// A parent and its children, from its submission to its success
    Fanin(bench::Fanin),
    /// Statuses read over HTTP: what one costs, and how long it takes while a tracker folds
    Reads(bench::Reads),
    /// What worker and tracker hold and use while there is nothing to do
    Idle(bench::Idle),
    /// Many attempts at once in one worker, each waiting for the same time
    Sleep(bench::Sleep),
    /// Tasks that start later: what a tracker holds while many wait, and how late they are
    Timers(bench::Timers),
    /// Tasks of producers that announce nothing: how long after its record each shows as queued
    Unannounced(bench::Unannounced),
    /// Very many clients that watch one api: what they cost while nothing happens, and what a change costs
    Watch(bench::Watch),
    /// The most that a worker takes: with a long backlog, with large params, with many types
    Memory(bench::MemoryBench),
    /// All but `memory`, `timers`, `foreign` and `watch`, one after the other
    All(Common),
    /// A benchmark's own process
    #[command(hide = true)]
    Role,
}

pub async fn bench(verb: BenchVerb, globals: &Globals) -> Outcome {
    if let BenchVerb::Role = verb {
        return blocking(bench::child_role::run).await.map(|()| Code::Ok).map_err(failed);
    }
    let config = load_config(globals, &SetupOptions { unused: &UNUSED, ..SetupOptions::default() })?.config;
    let Config { kafka, redis, worker, tracker, .. } = config;
    let site = Services { kafka, redis, worker, tracker, linger: Common::default().linger };
    one_server(&site.redis.url)?;
    let verbs = match verb {
        BenchVerb::All(common) => all(&common),
        verb => vec![verb],
    };
    for verb in verbs {
        let report = run(verb, site.clone()).await.map_err(failed)?;
        print(&Report { kafka: site.kafka_version(), ..report }, globals)?;
    }
    Ok(Code::Ok)
}

/// Costs and figures are those of one Redis server, and so is what is deleted at the end.
fn one_server(url: &str) -> Result<(), Failure> {
    let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
    if !scheme.ends_with("-cluster") {
        return Ok(());
    }
    Err(Failure::usage(format_args!("benchmarks measure one Redis server, and `{scheme}://` names a cluster"))
        .hint("name a server that is no part of one: --redis redis://HOST:PORT"))
}

fn all(common: &Common) -> Vec<BenchVerb> {
    let common = common.clone();
    let fold = |roots| {
        let shape = bench::Shape { roots, ..bench::Shape::default() };
        BenchVerb::Tracker(bench::TrackerBench { common: common.clone(), shape, window: 1_000 })
    };
    vec![
        BenchVerb::Idle(bench::Idle { seconds: 10 }),
        BenchVerb::Latency(bench::Latency { rounds: common.rounds, ..bench::Latency::default() }),
        BenchVerb::Fanin(bench::Fanin::default()),
        BenchVerb::Publish(bench::PublishBench { common: common.clone() }),
        BenchVerb::Worker(bench::WorkerBench {
            common: common.clone(),
            memory_limit: None,
            order: Order::None,
            isolation: false,
        }),
        BenchVerb::Reads(bench::Reads { rounds: common.rounds, ..bench::Reads::default() }),
        BenchVerb::Sleep(bench::Sleep { rounds: common.rounds, ..bench::Sleep::default() }),
        fold(0),
        fold(1),
        BenchVerb::E2e(bench::E2e { common }),
    ]
}

async fn run(verb: BenchVerb, site: Services) -> anyhow::Result<Report> {
    match verb {
        BenchVerb::Publish(publish) => blocking(move || bench::publish(&publish, &site)).await,
        BenchVerb::Worker(worker) => blocking(move || bench::worker(&worker, &site)).await,
        BenchVerb::Sleep(sleep) => blocking(move || bench::sleep(&sleep, &site)).await,
        BenchVerb::Tracker(tracker) => bench::tracker(&tracker, &site).await,
        BenchVerb::E2e(e2e) => bench::e2e(&e2e, &site).await,
        BenchVerb::Latency(latency) => bench::latency(&latency, &site).await,
        BenchVerb::Fanin(fanin) => bench::fanin(&fanin, &site).await,
        BenchVerb::Memory(memory) => blocking(move || bench::memory(&memory, &site)).await,
        BenchVerb::Timers(timers) => bench::timers(&timers, &site).await,
        BenchVerb::Reads(reads) => bench::reads(&reads, &site).await,
        BenchVerb::Unannounced(foreign) => bench::unannounced(&foreign, &site).await,
        BenchVerb::Watch(watch) => bench::watch(&watch, &site).await,
        BenchVerb::Idle(idle) => bench::idle(&idle, &site).await,
        BenchVerb::All(_) | BenchVerb::Role => anyhow::bail!("this is no benchmark by itself"),
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(call).await?
}

fn failed(why: anyhow::Error) -> Failure {
    Failure::failed(format_args!("the benchmark did not finish: {why:#}"))
}

fn print(report: &Report, globals: &Globals) -> Outcome {
    let screen = globals.screen();
    match globals.output {
        Format::Json => screen.json(report)?,
        _ => screen.line(&format!("{}\n", report.table()))?,
    }
    Ok(Code::Ok)
}
