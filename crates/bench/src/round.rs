//! Measurement of one child process.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::local_kafka::LocalKafka;
use super::process::{Process, ProcessUsage};
use super::{BenchReport, ROUND_DEADLINE, mib, micros};

/// Interval of progress checks: each sends requests to Kafka, which affect the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Rate and cost of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Tasks per second.
    pub rate: f64,
    pub cost: ProcessUsage,
    /// CPU time of Kafka, if it runs on this machine.
    pub kafka: Option<Duration>,
}

/// Adds rate, CPU per task and peak memory of rounds of `tasks` tasks.
pub(super) fn add_rounds(report: &mut BenchReport, name: &str, tasks: u64, rounds: &[Round]) {
    report.add(&format!("{name} rate"), "tasks/s", rounds.iter().map(|round| round.rate).collect());
    report.add(&format!("{name} CPU"), "µs/task", rounds.iter().map(|round| micros(round.cost.cpu, tasks)).collect());
    let kafka: Vec<f64> = rounds.iter().filter_map(|round| Some(micros(round.kafka?, tasks))).collect();
    if !kafka.is_empty() {
        report.add(&format!("{name}: kafka CPU"), "µs/task", kafka);
    }
    report.add(&format!("{name} peak memory"), "MiB", rounds.iter().map(|round| mib(round.cost.peak_bytes)).collect());
}

/// Measures a process from its first written records to the last one, without its start. `progress` returns the number
/// of records written so far, and whether everything else that the round requires, such as a commit, is done.
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
            Some((started, before, cpu, kafka_before)) if written >= tasks && settled => {
                if written == before {
                    bail!("{tasks} tasks were done before they could be measured\n\nhint: use more with `--tasks`");
                }
                let cost = process.cost();
                let rate = (written - before) as f64 / (now - started).as_secs_f64();
                // CPU of the measured records, scaled up to all tasks.
                let share = tasks as f64 / (written - before) as f64;
                let cost = ProcessUsage { cpu: (cost.cpu.saturating_sub(cpu)).mul_f64(share), ..cost };
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
        std::thread::sleep(POLL_INTERVAL);
    }
}
