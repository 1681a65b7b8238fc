//! Baselines of the whole path: the underlying operations on the same records, each measured by itself.

use std::time::Instant;

use kafleet_store::redis::Redis;

use super::publish::raw_produce_round;
use super::worker::raw_round;
use super::{BenchReport, BenchTopics, Common, EVENTS_PARTITIONS, Services, blocking};

/// Rates of the baselines, in tasks per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    produce: f64,
    raw_loop: f64,
    writes: f64,
}

impl Baseline {
    /// Measures all baselines; `bytes` is the size of a record in the store.
    pub(super) async fn measure(common: &Common, services: &Services, bytes: usize) -> anyhow::Result<Self> {
        let options = common.clone();
        let at = services.clone();
        let (topics, produce, raw_loop) = blocking(move || {
            let topics = BenchTopics::prepare(&at, options.partitions, options.partitions)?;
            let produce = raw_produce_round(&topics, &options, &at, true)?;
            let raw_loop = raw_round(&topics, &options, &at)?;
            Ok((topics, produce.rate, raw_loop.rate))
        })
        .await?;
        let store = services.redis(&topics.topology.names.prefix)?;
        let writes = plain_write_rate(&store, common.tasks, bytes).await?;
        store.clear().await?;
        blocking(move || {
            drop(topics);
            Ok(())
        })
        .await?;
        Ok(Self { produce, raw_loop, writes })
    }

    /// Combined rate of the baselines one after the other, as on a shared machine.
    pub(super) fn together(&self) -> f64 {
        1.0 / (1.0 / self.produce + 1.0 / self.raw_loop + 1.0 / self.writes)
    }
}

/// Measures plain writes of records of this size, in records per second.
pub(super) async fn plain_write_rate(store: &Redis, records: u64, bytes: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    store.plain_writes(EVENTS_PARTITIONS, records, bytes).await?;
    Ok(records as f64 / started.elapsed().as_secs_f64())
}

/// Adds the figures of the baselines and of their combination.
pub(super) fn add_baselines(report: &mut BenchReport, all: &[Baseline]) {
    let mut add = |name: &str, of: &dyn Fn(&Baseline) -> f64| report.add(name, "tasks/s", all.iter().map(of).collect());
    add("raw produce of the same records", &|baseline| baseline.produce);
    add("raw loop", &|baseline| baseline.raw_loop);
    add("plain writes to redis", &|baseline| baseline.writes);
    add("all baselines in sequence", &Baseline::together);
}
