//! `bench worker`: one worker process works off a backlog of no-op tasks, beside the raw loop over the same records.

use clap::builder::TypedValueParser as _;

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, add_passes, measure};
use super::{BenchTopics, Common, NOOP, Report, Services, load};
use crate::broker::{Broker, TopicSpec};
use crate::config::{Bytes, Isolation, Order};

#[derive(Clone, Debug, clap::Args)]
pub struct WorkerBench {
    #[command(flatten)]
    pub common: Common,
    /// The worker's memory limit; by default the configuration's.
    #[arg(long, value_parser = Bytes::parse)]
    pub memory_limit: Option<Bytes>,
    /// In which order the tasks run; each has a key of its own.
    #[arg(long, value_parser = order_parser(), default_value = "none")]
    pub order: Order,
    /// Run the attempts in child processes. Choose few `--slots`: each is a process.
    #[arg(long)]
    pub isolation: bool,
}

fn order_parser() -> impl clap::builder::TypedValueParser<Value = Order> {
    clap::builder::PossibleValuesParser::new(["none", "key", "partition"]).map(|name| match name.as_str() {
        "key" => Order::Key,
        "partition" => Order::Partition,
        _ => Order::None,
    })
}

pub fn worker(bench: &WorkerBench, site: &Services) -> anyhow::Result<Report> {
    let (common, site) = (&bench.common, site.linger(bench.common.linger).memory_limit(bench.memory_limit));
    let settings = [
        ("slots", common.slots.to_string()),
        ("order", format!("{:?}", bench.order).to_lowercase()),
        ("commit", site.worker.commit_interval.to_string()),
        ("memory limit", site.worker.memory_limit.to_string()),
        ("isolation", if bench.isolation { "process" } else { "none" }.into()),
    ];
    let mut report = Report::new("worker", common.settings(&settings));
    let (mut raw, mut work) = (Vec::new(), Vec::new());
    warm_up(bench, &site)?;
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        // One backlog, worked off by both; which one begins changes from round to round.
        let ground = BenchTopics::prepare(&site, common.partitions, common.partitions)?;
        load::fill(&ground, common.tasks)?;
        if round % 2 == 1 {
            raw.push(raw_pass(&ground, common, &site)?);
            work.push(worker_pass(&ground, bench, &site)?);
        } else {
            work.push(worker_pass(&ground, bench, &site)?);
            raw.push(raw_pass(&ground, common, &site)?);
        }
        load::check_events(&ground, common.partitions, common.tasks)?;
    }
    add_passes(&mut report, "worker", common.tasks, &work);
    add_passes(&mut report, "raw loop", common.tasks, &raw);
    let ratios = work.iter().zip(&raw).map(|(work, raw)| work.rate / raw.rate).collect();
    report.add("worker to raw loop", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

/// Both loops, uncounted.
fn warm_up(bench: &WorkerBench, site: &Services) -> anyhow::Result<()> {
    eprintln!("warming up");
    let bench = WorkerBench { common: bench.common.warm_up(), ..bench.clone() };
    let ground = BenchTopics::prepare(site, bench.common.partitions, bench.common.partitions)?;
    load::fill(&ground, bench.common.tasks)?;
    raw_pass(&ground, &bench.common, site)?;
    worker_pass(&ground, &bench, site)?;
    Ok(())
}

/// The raw loop over the records of tasks that a round holds.
pub(super) fn raw_pass(ground: &BenchTopics, common: &Common, site: &Services) -> anyhow::Result<Round> {
    let to = format!("{}.raw", ground.names.prefix);
    let config = vec![("message.timestamp.type".into(), "LogAppendTime".into())];
    let topic = TopicSpec { name: to.clone(), partitions: common.partitions, replication: None, config };
    ground.broker.apply_topics(&[topic], super::CALL_DEADLINE)?;
    let group = format!("{}.raw", ground.names.prefix);
    let role = ChildRole::Raw {
        site: site.clone(),
        prefix: ground.names.prefix.clone(),
        group: group.clone(),
        to: to.clone(),
        records: common.tasks,
        output_bytes: load::event_bytes()?,
    };
    // The topic may hold more than it is to take.
    let tasks = ground.names.tasks(NOOP);
    let committed = || ground.committed(&group, &tasks);
    committed()?;
    let process = Process::start("raw loop", &role)?;
    measure(process, &ground.kafka, common.tasks, || {
        let written = ground.records(&to, common.partitions)?;
        Ok((written, written >= common.tasks && committed()? >= common.tasks))
    })
}

fn worker_pass(ground: &BenchTopics, bench: &WorkerBench, site: &Services) -> anyhow::Result<Round> {
    let common = &bench.common;
    let role = ChildRole::Worker {
        site: site.clone(),
        prefix: ground.names.prefix.clone(),
        events_partitions: common.partitions,
        slots: common.slots,
        order: bench.order,
        isolation: if bench.isolation { Isolation::Process } else { Isolation::None },
        fan: false,
    };
    // So that whoever is asked knows where.
    ground.is_committed(NOOP)?;
    let process = Process::start("worker", &role)?;
    let events = ground.names.events();
    measure(process, &ground.kafka, common.tasks, || {
        let written = ground.records(&events, common.partitions)?;
        // Done is done when it is committed too; asked for only at the end.
        Ok((written, written >= common.tasks && ground.is_committed(NOOP)?))
    })
}
