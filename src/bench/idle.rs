//! `bench idle`: what a worker and a tracker hold and use while there is nothing to do.

use std::time::{Duration, Instant};

use super::fleet::BenchFleet;
use super::{Report, Services, mib};

/// From the last task to the first look.
const REST: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub struct Idle {
    /// How long to look on, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
}

pub async fn idle(bench: &Idle, site: &Services) -> anyhow::Result<Report> {
    let settings = [("seconds", bench.seconds.to_string()), ("partitions", "4".into()), ("types", "2".into())];
    let mut report = Report::new("idle", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let stage = BenchFleet::open(&site.linger(5), 4, 2_000).await?;
    tokio::time::sleep(REST).await;
    let (from, began) = (stage.costs().await?, Instant::now());
    tokio::time::sleep(Duration::from_secs(bench.seconds)).await;
    let (to, took) = (stage.costs().await?, began.elapsed());
    stage.close().await?;
    for (name, from, to) in [("worker", from.worker, to.worker), ("tracker", from.tracker, to.tracker)] {
        report.add(&format!("{name} memory"), "MiB", vec![mib(to.resident_bytes)]);
        let used = to.cpu.saturating_sub(from.cpu).as_secs_f64() / took.as_secs_f64();
        report.add(&format!("{name} CPU"), "% of a core", vec![used * 100.0]);
    }
    Ok(report)
}
