//! `bench`: how fast this build is on this machine, each figure beside its ceiling from the same run.

use clap::Subcommand;

use super::globals::{Format, Globals};
use super::outcome::{Code, Failure, Outcome};
use crate::bench::{self, Report};

#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// One worker process works off a backlog of no-op tasks, beside the raw librdkafka loop
    Worker(bench::WorkerBench),
    /// The whole tracked path: publish, work, fold into Redis
    E2e(bench::E2e),
    /// A benchmark's own process
    #[command(hide = true)]
    Role,
}

pub async fn bench(verb: BenchVerb, globals: &Globals) -> Outcome {
    let brokers = globals.brokers.clone().unwrap_or_else(|| "127.0.0.1:9092".into());
    let redis = globals.redis.clone().unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let report = match verb {
        BenchVerb::Worker(worker) => blocking(move || bench::worker(&worker, &brokers)).await,
        BenchVerb::E2e(e2e) => bench::e2e(&e2e, &brokers, &redis).await,
        BenchVerb::Role => return blocking(bench::role::run).await.map(|()| Code::Ok).map_err(failed),
    };
    print(&report.map_err(failed)?, globals)
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
        Format::Table => screen.line(&report.table())?,
        Format::Json => screen.json(report)?,
    }
    Ok(Code::Ok)
}
