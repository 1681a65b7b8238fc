//! `bench idle`: memory and CPU of an idle worker and an idle tracker.

use std::time::{Duration, Instant};

use super::fleet::BenchFleet;
use super::{BenchReport, Services, mib};

/// Wait between the task with which `BenchFleet::open` checks that all processes are connected, and the measurement.
const SETTLE_TIME: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub struct Idle {
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
}

pub async fn idle(bench: &Idle, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [("seconds", bench.seconds.to_string()), ("partitions", "4".into()), ("types", "2".into())];
    let mut report = BenchReport::new("idle", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let fleet = BenchFleet::open(&services.linger(5), 4, 2_000).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let from = fleet.costs().await?;
    let started = Instant::now();
    tokio::time::sleep(Duration::from_secs(bench.seconds)).await;
    let to = fleet.costs().await?;
    let took = started.elapsed();
    fleet.close().await?;
    for (name, from, to) in [("worker", from.worker, to.worker), ("tracker", from.tracker, to.tracker)] {
        report.add(&format!("{name} memory"), "MiB", vec![mib(to.resident_bytes)]);
        let used = to.cpu.saturating_sub(from.cpu).as_secs_f64() / took.as_secs_f64();
        report.add(&format!("{name} CPU"), "% of a core", vec![used * 100.0]);
    }
    Ok(report)
}
