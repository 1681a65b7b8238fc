//! `bench worker`: one worker process works off a backlog of no-op tasks, beside the raw loop over the same records.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::process::{Cost, Process};
use super::role::Role;
use super::{Common, Ground, NOOP, ROUND_DEADLINE, Report, load};
use crate::broker::{Broker, TopicSpec};
use crate::config::{Bytes, Isolation, Order, WorkerConfig};

/// The tasks of the warm-up: one in so many.
const WARM_UP_PART: u64 = 4;

#[derive(Clone, Debug, clap::Args)]
pub struct WorkerBench {
    #[command(flatten)]
    pub common: Common,
    /// The worker's memory limit.
    #[arg(long, value_parser = Bytes::parse, default_value_t = WorkerConfig::default().memory_limit)]
    pub memory_limit: Bytes,
    /// Run the attempts in child processes. Choose few `--slots`: each is a process.
    #[arg(long)]
    pub isolation: bool,
}

/// Rate and cost of one pass over the backlog.
struct Pass {
    rate: f64,
    cost: Cost,
}

pub fn worker(bench: &WorkerBench, brokers: &str) -> anyhow::Result<Report> {
    let common = &bench.common;
    let settings = [
        ("tasks", common.tasks.to_string()),
        ("partitions", common.partitions.to_string()),
        ("slots", common.slots.to_string()),
        ("params", "200 B".into()),
        ("linger", "5 ms".into()),
        ("commit", "200 ms".into()),
        ("memory limit", bench.memory_limit.to_string()),
        ("isolation", if bench.isolation { "process" } else { "none" }.into()),
    ];
    let mut report = Report::new("worker", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let (mut raw, mut work) = (Vec::new(), Vec::new());
    warm_up(bench, brokers)?;
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        // One backlog, worked off by both; which one begins changes from round to round.
        let ground = Ground::prepare(common, brokers, common.partitions)?;
        load::fill(&ground, common.tasks)?;
        if round % 2 == 1 {
            raw.push(raw_pass(&ground, common, brokers)?);
            work.push(worker_pass(&ground, bench, brokers)?);
        } else {
            work.push(worker_pass(&ground, bench, brokers)?);
            raw.push(raw_pass(&ground, common, brokers)?);
        }
        load::check_events(&ground, common.partitions, common.tasks)?;
    }
    let micros = |pass: &Pass| pass.cost.cpu.as_secs_f64() * 1e6 / common.tasks as f64;
    let mib = |pass: &Pass| pass.cost.peak_bytes as f64 / f64::from(1 << 20);
    report.add("worker rate", "tasks/s", work.iter().map(|pass| pass.rate).collect());
    report.add("raw loop rate", "records/s", raw.iter().map(|pass| pass.rate).collect());
    report.add("worker CPU", "µs/task", work.iter().map(micros).collect());
    report.add("raw loop CPU", "µs/record", raw.iter().map(micros).collect());
    report.add("worker peak memory", "MiB", work.iter().map(mib).collect());
    report.add("raw loop peak memory", "MiB", raw.iter().map(mib).collect());
    let ratios = work.iter().zip(&raw).map(|(work, raw)| work.rate / raw.rate).collect();
    report.add("worker to raw loop", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

/// A broker that has just started is slow at first: both loops run once over a part of the tasks, and are not counted.
fn warm_up(bench: &WorkerBench, brokers: &str) -> anyhow::Result<()> {
    eprintln!("warming up");
    let common = Common { tasks: (bench.common.tasks / WARM_UP_PART).max(1), ..bench.common.clone() };
    let bench = WorkerBench { common, ..bench.clone() };
    let ground = Ground::prepare(&bench.common, brokers, bench.common.partitions)?;
    load::fill(&ground, bench.common.tasks)?;
    raw_pass(&ground, &bench.common, brokers)?;
    worker_pass(&ground, &bench, brokers)?;
    Ok(())
}

fn raw_pass(ground: &Ground, common: &Common, brokers: &str) -> anyhow::Result<Pass> {
    let to = format!("{}.raw", ground.names.prefix);
    let config = vec![("message.timestamp.type".into(), "LogAppendTime".into())];
    let topic = TopicSpec { name: to.clone(), partitions: common.partitions, replication: None, config };
    ground.broker.apply_topics(&[topic], super::CALL_DEADLINE)?;
    let role = Role::Raw {
        brokers: brokers.to_owned(),
        prefix: ground.names.prefix.clone(),
        group: format!("{}.raw", ground.names.prefix),
        to: to.clone(),
        records: common.tasks,
        output_bytes: load::event_bytes()?,
    };
    let process = Process::start("raw loop", &role)?;
    measure(process, common.tasks, || Ok((ground.records(&to, common.partitions)?, true)))
}

fn worker_pass(ground: &Ground, bench: &WorkerBench, brokers: &str) -> anyhow::Result<Pass> {
    let common = &bench.common;
    let role = Role::Worker {
        brokers: brokers.to_owned(),
        prefix: ground.names.prefix.clone(),
        events_partitions: common.partitions,
        slots: common.slots,
        memory_limit: bench.memory_limit.0,
        order: Order::None,
        isolation: if bench.isolation { Isolation::Process } else { Isolation::None },
    };
    let process = Process::start("worker", &role)?;
    let events = ground.names.events();
    measure(process, common.tasks, || {
        let written = ground.records(&events, common.partitions)?;
        // Done is done when it is committed too; asked for only at the end.
        let committed =
            written < common.tasks || ground.committed()? >= ground.records(&ground.names.tasks(NOOP), common.partitions)?;
        Ok((written, committed))
    })
}

/// From the first records written to the last one acknowledged and committed: the start of the process does not count.
fn measure(mut process: Process, tasks: u64, mut progress: impl FnMut() -> anyhow::Result<(u64, bool)>) -> anyhow::Result<Pass> {
    let until = Instant::now() + ROUND_DEADLINE;
    let mut first: Option<(Instant, u64, Duration)> = None;
    loop {
        let (written, settled) = progress()?;
        let now = Instant::now();
        match first {
            None if written > 0 => first = Some((now, written, process.cost().cpu)),
            Some((began, before, cpu)) if written >= tasks && settled => {
                let cost = process.cost();
                let rate = (written - before) as f64 / (now - began).as_secs_f64();
                // The CPU of the whole run, scaled to what was counted, leaves the start out.
                let share = tasks as f64 / (written - before) as f64;
                let cost = Cost { cpu: (cost.cpu.saturating_sub(cpu)).mul_f64(share), ..cost };
                process.stop()?;
                return Ok(Pass { rate, cost });
            }
            _ => {}
        }
        if now > until {
            bail!("{written} of {tasks} after {} s", ROUND_DEADLINE.as_secs());
        }
        process.check()?;
        std::thread::sleep(Duration::from_millis(10));
    }
}
