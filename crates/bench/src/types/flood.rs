//! Flood of one type: time from submission to start of the tasks of the other types, before and during the flood.

use std::time::{Duration, Instant};

use anyhow::bail;
use kafleet_fleet::control::{self, CONTROL_VERSION, ControlKey, ControlRecord, Pause};
use tokio::runtime::Handle;

use super::TypesFleet;
use super::steady::Observer;
use crate::latency::percentile;
use crate::{BenchReport, ROUND_DEADLINE};

/// Interval of the checks whether the flood has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn measure(fleet: &mut TypesFleet, report: &mut BenchReport) -> anyhow::Result<()> {
    let shared = fleet.shared().to_vec();
    let [hot, others @ ..] = shared.as_slice() else { bail!("there are no types") };
    // Paused before the worker starts, which reads the control topic first: its tasks are published before the baseline,
    // which their publication would disturb.
    set_paused(fleet, hot, true)?;
    let worker = fleet.worker(&shared)?;
    let length = Duration::from_secs(fleet.bench.seconds);
    eprintln!("flood: warming up");
    Observer::new(fleet)?.run(fleet, others, |_, passed| Ok(passed >= length / 5))?;
    fleet.fill(hot, fleet.bench.flood)?;
    eprintln!("flood: baseline");
    let before = Observer::new(fleet)?.run(fleet, others, |_, passed| Ok(passed >= length))?;
    eprintln!("flood: {} tasks", fleet.bench.flood);
    let observer = Observer::new(fleet)?;
    set_paused(fleet, hot, false)?;
    let mut next_check = CHECK_INTERVAL;
    let begun = Instant::now();
    let during = observer.run(fleet, others, |fleet, passed| {
        if passed < next_check {
            return Ok(false);
        }
        next_check = passed + CHECK_INTERVAL;
        Ok(passed >= length || fleet.topics.is_committed(hot)?)
    })?;
    while !fleet.topics.is_committed(hot)? {
        if begun.elapsed() > ROUND_DEADLINE {
            bail!("the flood has not ended after {} s", ROUND_DEADLINE.as_secs());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    let rate = fleet.bench.flood as f64 / begun.elapsed().as_secs_f64();
    worker.process.stop()?;
    report.add("flood rate", "tasks/s", vec![rate]);
    let mut p99s = Vec::new();
    for (name, observed) in [("without", &before), ("during", &during)] {
        for (label, permille) in [("p50", 500), ("p99", 990)] {
            let value = percentile(observed.latencies.clone(), permille);
            report.add(&format!("submit to start of the others {name} the flood {label}"), "ms", vec![value]);
            p99s.extend((permille == 990).then_some(value));
        }
    }
    report.add("tasks of the others during the flood", "", vec![during.latencies.len() as f64]);
    if let [without, during] = p99s.as_slice() {
        report.add("p99 during to without the flood", "", vec![during / without]);
    }
    Ok(())
}

fn set_paused(fleet: &TypesFleet, task_type: &str, paused: bool) -> anyhow::Result<()> {
    let key = ControlKey::Pause(task_type.to_owned());
    Handle::current().block_on(async {
        let producer = fleet.topics.producer().await?;
        if paused {
            let record = ControlRecord::Pause(Pause { v: CONTROL_VERSION, at_ms: 0, reason: None, by: None });
            control::put_record(&producer, &fleet.topics.topology.names, &key, &record).await?;
        } else {
            control::delete(&producer, &fleet.topics.topology.names, &key).await?;
        }
        Ok(())
    })
}
