//! The ceilings of the whole path: what the parts below it do with the same records, each by itself.

use std::time::Instant;

use super::publish::raw_produce_pass;
use super::worker::raw_pass;
use super::{BenchTopics, Common, EVENTS_PARTITIONS, Report, Services, blocking};

/// Tasks per second of each part.
#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    produce: f64,
    raw_loop: f64,
    writes: f64,
}

impl Baseline {
    /// `bytes`: of a record in the store.
    pub async fn measure(common: &Common, site: &Services, bytes: usize) -> anyhow::Result<Self> {
        let (own, at) = (common.clone(), site.clone());
        let (ground, produce, raw_loop) = blocking(move || {
            let ground = BenchTopics::prepare(&at, own.partitions, own.partitions)?;
            let produce = raw_produce_pass(&ground, &own, &at, true)?;
            let raw_loop = raw_pass(&ground, &own, &at)?;
            Ok((ground, produce.rate, raw_loop.rate))
        })
        .await?;
        let store = site.redis(&ground.names.prefix)?;
        let began = Instant::now();
        store.plain_writes(EVENTS_PARTITIONS, common.tasks, bytes).await?;
        let writes = common.tasks as f64 / began.elapsed().as_secs_f64();
        store.clear().await?;
        blocking(move || {
            drop(ground);
            Ok(())
        })
        .await?;
        Ok(Self { produce, raw_loop, writes })
    }

    /// One after the other, as parts do that share a machine.
    pub fn together(&self) -> f64 {
        1.0 / (1.0 / self.produce + 1.0 / self.raw_loop + 1.0 / self.writes)
    }
}

/// Adds them, and all of them together.
pub fn add_ceilings(report: &mut Report, all: &[Baseline]) {
    let mut add = |name: &str, of: &dyn Fn(&Baseline) -> f64| report.add(name, "tasks/s", all.iter().map(of).collect());
    add("raw produce of the same records", &|ceiling| ceiling.produce);
    add("raw loop", &|ceiling| ceiling.raw_loop);
    add("plain writes to redis", &|ceiling| ceiling.writes);
    add("these three one after the other", &Baseline::together);
}
