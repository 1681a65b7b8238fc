//! `bench worker`: one worker process drains a backlog of no-op tasks. Baseline: a plain consumer loop over the same
//! records.

use clap::builder::TypedValueParser as _;
use kafleet_broker::{Broker, TopicSpec};
use kafleet_config::{Bytes, Isolation, Order};

use super::child_role::ChildRole;
use super::process::Process;
use super::round::{Round, add_rounds, measure};
use super::{BenchReport, BenchTopics, Common, NOOP, Services, load};

#[derive(Clone, Debug, clap::Args)]
pub struct WorkerBench {
    #[command(flatten)]
    pub common: Common,
    /// Memory limit of the worker [default: from the configuration].
    #[arg(long, value_parser = Bytes::parse)]
    pub memory_limit: Option<Bytes>,
    /// Order of the tasks, each of which has its own key.
    #[arg(long, value_parser = order_parser(), default_value = "none")]
    pub order: Order,
    /// Run attempts in child processes; use few `--slots`, as each is a process.
    #[arg(long)]
    pub isolation: bool,
    /// Wrap each attempt in this number of layers that change nothing; baseline: the plain worker, too.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    pub layers: u32,
    /// Trace this share of the tasks, from 0 to 1; baseline: the plain worker, too.
    #[arg(long, value_parser = share)]
    pub otel_sample: Option<f64>,
    /// Collector of the traces; nothing answers at the default.
    #[arg(long, default_value = "http://127.0.0.1:9")]
    pub otel_endpoint: String,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "not a number from 0 to 1".to_owned())
}

fn order_parser() -> impl clap::builder::TypedValueParser<Value = Order> {
    clap::builder::PossibleValuesParser::new(["none", "key", "partition"]).map(|name| match name.as_str() {
        "key" => Order::Key,
        "partition" => Order::Partition,
        _ => Order::None,
    })
}

pub fn worker(bench: &WorkerBench, services: &Services) -> anyhow::Result<BenchReport> {
    let common = &bench.common;
    let services = services.linger(bench.common.linger).memory_limit(bench.memory_limit);
    let settings = [
        ("slots", common.slots.to_string()),
        ("order", format!("{:?}", bench.order).to_lowercase()),
        ("commit", services.worker.commit_interval.to_string()),
        ("memory limit", services.worker.memory_limit.to_string()),
        ("isolation", if bench.isolation { "process" } else { "none" }.into()),
        ("layers", bench.layers.to_string()),
        ("traces", bench.otel_sample.map_or_else(|| "off".to_owned(), |share| share.to_string())),
    ];
    let mut report = BenchReport::new("worker", common.settings(&settings));
    let mut raw = Vec::new();
    let mut work = Vec::new();
    let mut plain = Vec::new();
    warm_up(bench, &services)?;
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        // Both drain the same backlog; the one that starts alternates between rounds.
        let topics = BenchTopics::prepare(&services, common.partitions, common.partitions)?;
        load::fill(&topics, common.tasks)?;
        if round % 2 == 1 {
            raw.push(raw_round(&topics, common, &services)?);
            work.push(worker_round(&topics, bench, &services)?);
        } else {
            work.push(worker_round(&topics, bench, &services)?);
            raw.push(raw_round(&topics, common, &services)?);
        }
        load::check_events(&topics, common.partitions, common.tasks)?;
        if bench.otel_sample.is_some() || bench.layers > 0 {
            plain.push(plain_round(bench, &services)?);
        }
    }
    add_rounds(&mut report, "worker", common.tasks, &work);
    add_rounds(&mut report, "raw loop", common.tasks, &raw);
    let ratios = work.iter().zip(&raw).map(|(work, raw)| work.rate / raw.rate).collect();
    report.add("worker to raw loop", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    if !plain.is_empty() {
        add_rounds(&mut report, "plain worker", common.tasks, &plain);
        let ratios = work.iter().zip(&plain).map(|(work, plain)| work.rate / plain.rate).collect();
        report.add("worker to plain worker", "", ratios);
    }
    report.checked = true;
    Ok(report)
}

/// Measures the worker without traces and layers, on a backlog of its own.
fn plain_round(bench: &WorkerBench, services: &Services) -> anyhow::Result<Round> {
    let common = &bench.common;
    let topics = BenchTopics::prepare(services, common.partitions, common.partitions)?;
    load::fill(&topics, common.tasks)?;
    worker_round(&topics, &WorkerBench { otel_sample: None, layers: 0, ..bench.clone() }, services)
}

/// Runs both loops once, unmeasured.
fn warm_up(bench: &WorkerBench, services: &Services) -> anyhow::Result<()> {
    eprintln!("warming up");
    let bench = WorkerBench { common: bench.common.warm_up(), ..bench.clone() };
    let topics = BenchTopics::prepare(services, bench.common.partitions, bench.common.partitions)?;
    load::fill(&topics, bench.common.tasks)?;
    raw_round(&topics, &bench.common, services)?;
    worker_round(&topics, &bench, services)?;
    Ok(())
}

/// Measures the plain loop over the task records of a round.
pub(super) fn raw_round(topics: &BenchTopics, common: &Common, services: &Services) -> anyhow::Result<Round> {
    let to = format!("{}.raw", topics.topology.names.prefix);
    let config = vec![("message.timestamp.type".into(), "LogAppendTime".into())];
    let topic = TopicSpec { name: to.clone(), partitions: common.partitions, replication: None, config };
    topics.broker.apply_topics(&[topic], super::CALL_DEADLINE)?;
    let group = format!("{}.raw", topics.topology.names.prefix);
    let role = ChildRole::Raw {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        group: group.clone(),
        to: to.clone(),
        records: common.tasks,
        output_bytes: load::event_bytes()?,
    };
    // The topic may have more records than the loop consumes.
    let tasks = topics.topology.names.tasks(NOOP);
    let committed = || topics.committed(&group, &tasks);
    committed()?;
    let process = Process::start("raw loop", &role)?;
    measure(process, &topics.kafka, common.tasks, || {
        let written = topics.records(&to, common.partitions)?;
        Ok((written, written >= common.tasks && committed()? >= common.tasks))
    })
}

fn worker_round(topics: &BenchTopics, bench: &WorkerBench, services: &Services) -> anyhow::Result<Round> {
    let common = &bench.common;
    // Connects the commit reader before the measurement.
    topics.is_committed(NOOP)?;
    let process = Process::start("worker", &worker_role(topics, bench, services))?;
    let events = topics.topology.names.events();
    measure(process, &topics.kafka, common.tasks, || {
        let written = topics.records(&events, common.partitions)?;
        // Commits are part of the work, and are read only at the end.
        Ok((written, written >= common.tasks && topics.is_committed(NOOP)?))
    })
}

fn worker_role(topics: &BenchTopics, bench: &WorkerBench, services: &Services) -> ChildRole {
    let mut services = services.clone();
    services.otel.endpoint = bench.otel_sample.map(|_| bench.otel_endpoint.clone());
    services.otel.sample = bench.otel_sample.unwrap_or_default();
    ChildRole::Worker {
        services,
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: bench.common.partitions,
        slots: bench.common.slots,
        order: bench.order,
        isolation: if bench.isolation { Isolation::Process } else { Isolation::None },
        layers: bench.layers,
        fan: false,
    }
}
