//! One process doing one piece of work, measured from outside.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::local_kafka::LocalKafka;
use super::process::{Cost, Process};
use super::{ROUND_DEADLINE, Report, mib, micros};

/// Between two looks at how far a process is: each is some requests to Kafka, which take from what is measured.
const LOOK: Duration = Duration::from_millis(20);

/// Rate and cost of one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Per second.
    pub rate: f64,
    pub cost: Cost,
    /// Of Kafka meanwhile, where it runs on this machine.
    pub kafka: Option<Duration>,
}

/// Adds rates, CPU per task and peak memory of passes over so many tasks.
pub(super) fn add_passes(report: &mut Report, name: &str, tasks: u64, passes: &[Round]) {
    report.add(&format!("{name} rate"), "tasks/s", passes.iter().map(|pass| pass.rate).collect());
    report.add(&format!("{name} CPU"), "µs/task", passes.iter().map(|pass| micros(pass.cost.cpu, tasks)).collect());
    let kafka: Vec<f64> = passes.iter().filter_map(|pass| Some(micros(pass.kafka?, tasks))).collect();
    if !kafka.is_empty() {
        report.add(&format!("{name}: kafka CPU"), "µs/task", kafka);
    }
    report.add(&format!("{name} peak memory"), "MiB", passes.iter().map(|pass| mib(pass.cost.peak_bytes)).collect());
}

/// From the first records written to the last one acknowledged and committed: the start of the process does not count.
pub(super) fn measure(
    mut process: Process,
    kafka: &LocalKafka,
    tasks: u64,
    mut progress: impl FnMut() -> anyhow::Result<(u64, bool)>,
) -> anyhow::Result<Round> {
    let until = Instant::now() + ROUND_DEADLINE;
    let mut first: Option<(Instant, u64, Duration, Option<Duration>)> = None;
    loop {
        let (written, settled) = progress()?;
        let now = Instant::now();
        match first {
            None if written > 0 => first = Some((now, written, process.cost().cpu, kafka.cpu())),
            Some((began, before, cpu, kafka_before)) if written >= tasks && settled => {
                if written == before {
                    bail!("{tasks} tasks are done before they can be measured\n\nhint: give more with `--tasks`");
                }
                let cost = process.cost();
                let rate = (written - before) as f64 / (now - began).as_secs_f64();
                // The CPU of the whole run, scaled to what was counted, leaves the start out.
                let share = tasks as f64 / (written - before) as f64;
                let cost = Cost { cpu: (cost.cpu.saturating_sub(cpu)).mul_f64(share), ..cost };
                let kafka = kafka.cpu().zip(kafka_before).map(|(to, from)| to.saturating_sub(from).mul_f64(share));
                process.stop()?;
                return Ok(Round { rate, cost, kafka });
            }
            _ => {}
        }
        if now > until {
            bail!("{written} of {tasks} after {} s", ROUND_DEADLINE.as_secs());
        }
        process.check()?;
        std::thread::sleep(LOOK);
    }
}
