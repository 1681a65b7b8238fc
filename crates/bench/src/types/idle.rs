//! Resources of an idle worker of many types in one group; baseline: fewer types in groups of their own.

use std::time::{Duration, Instant};

use super::{SETTLE_TIME, TypesFleet};
use crate::{BenchReport, mib};

pub(super) fn measure(fleet: &mut TypesFleet, report: &mut BenchReport) -> anyhow::Result<()> {
    let shared = fleet.shared().to_vec();
    let name = format!("{} types in one group", shared.len());
    measure_worker(fleet, &shared, &name, report)?;
    let own = fleet.bench.own;
    let mut baseline = TypesFleet::prepare(&fleet.bench, &fleet.services, own, own)?;
    let types = baseline.names.clone();
    measure_worker(&mut baseline, &types, &format!("{own} types in groups of their own"), report)
}

/// Measures two starts: at the first, the commits of all partitions are missing.
fn measure_worker(
    fleet: &mut TypesFleet,
    types: &[String],
    name: &str,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    for start in ["first", "second"] {
        eprintln!("{name}: {start} start");
        let worker = fleet.worker(types)?;
        report.add(&format!("{name}: ready, {start} start"), "s", vec![worker.ready.as_secs_f64()]);
        if start == "second" {
            std::thread::sleep(SETTLE_TIME);
            let (from, since) = (worker.process.cost(), Instant::now());
            std::thread::sleep(Duration::from_secs(fleet.bench.seconds));
            let (to, took) = (worker.process.cost(), since.elapsed());
            let used = to.cpu.saturating_sub(from.cpu).as_secs_f64() / took.as_secs_f64();
            report.add(&format!("{name}: threads"), "", vec![worker.process.threads() as f64]);
            report.add(&format!("{name}: connections"), "", vec![worker.process.connections() as f64]);
            report.add(&format!("{name}: memory"), "MiB", vec![mib(to.resident_bytes)]);
            report.add(&format!("{name}: idle CPU"), "% of a core", vec![used * 100.0]);
        }
        worker.process.stop()?;
    }
    Ok(())
}
