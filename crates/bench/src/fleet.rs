//! Fleet of a benchmark: a worker and a tracker in child processes; this process publishes and observes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_config::{Isolation, Order};
use kafleet_fleet::publish::Publisher;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_store::Store;
use kafleet_store::redis::{Redis, Usage};

use super::child_role::ChildRole;
use super::process::{Process, ProcessUsage};
use super::{
    BenchReport, BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Services, blocking, load, mib, micros, own_cpu,
};

/// Id prefix of the task that is run before anything is measured.
const FIRST: &str = "first";

pub(super) struct BenchFleet {
    pub store: Redis,
    pub publisher: Publisher,
    worker: Process,
    tracker: Process,
    topics: BenchTopics,
}

/// Resources used so far by each process.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub publisher: Duration,
    pub worker: ProcessUsage,
    pub tracker: ProcessUsage,
    pub redis: Usage,
    /// `None` if Kafka does not run on this machine.
    pub kafka: Option<Duration>,
}

impl BenchFleet {
    /// Starts all processes and runs one task, so that all are connected and have their partitions.
    pub(super) async fn open(services: &Services, partitions: u32, slots: u32) -> anyhow::Result<Self> {
        let at = services.clone();
        let topics = blocking(move || BenchTopics::prepare(&at, partitions, EVENTS_PARTITIONS)).await?;
        let prefix = topics.topology.names.prefix.clone();
        let store = services.redis(&prefix)?;
        let worker = start_worker(services, prefix.clone(), slots)?;
        let role = ChildRole::Tracker { services: services.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
        let tracker = Process::start("tracker", &role)?;
        let producer = topics.producer().await?;
        let publisher = Publisher::new(producer, topics.topology.clone(), "kafleet/bench");
        let mut fleet = Self { store, publisher, worker, tracker, topics };
        load::publish(&fleet.publisher, FIRST, 0..1).await?;
        fleet.wait_for(1).await?;
        Ok(fleet)
    }

    pub(super) async fn costs(&self) -> anyhow::Result<Costs> {
        let redis = self.store.usage().await?;
        let worker = self.worker.cost();
        let tracker = self.tracker.cost();
        let kafka = self.topics.kafka.cpu();
        Ok(Costs { publisher: own_cpu(), worker, tracker, redis, kafka })
    }

    /// Size in the store of the record of a no-op task.
    pub(super) async fn record_bytes(&self) -> anyhow::Result<usize> {
        let id = TaskId::parse(&format!("{FIRST}-{:012}", 0))?;
        let tasks = self.store.task_records(self.publisher.topology.partition_of(&id), &[id]).await?;
        Ok(tasks.into_iter().flatten().next().context("the first task is missing")?.encode()?.len())
    }

    /// Number of succeeded tasks in the store.
    pub(super) async fn succeeded(&self) -> anyhow::Result<u64> {
        let counts = self.store.counts(&partitions()).await?;
        Ok(counts.iter().filter(|count| count.state == State::Succeeded).map(|count| count.count).sum())
    }

    /// Waits until the store counts `tasks` succeeded tasks.
    pub(super) async fn wait_for(&mut self, tasks: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            let done = self.succeeded().await?;
            if done >= tasks {
                return Ok(());
            }
            self.check_processes()?;
            if Instant::now() > until {
                bail!("{done} of {tasks} tasks after {} s", ROUND_DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads the topics of the round, on a thread for blocking calls.
    pub(super) fn read_topics<T>(&self, read: fn(&BenchTopics) -> anyhow::Result<T>) -> anyhow::Result<T> {
        tokio::task::block_in_place(|| read(&self.topics))
    }

    pub(super) fn check_processes(&mut self) -> anyhow::Result<()> {
        self.worker.check()?;
        self.tracker.check()
    }

    /// Stops all processes and clears the store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        let worker = self.worker;
        let tracker = self.tracker;
        let topics = self.topics;
        let stop = move || {
            let stopped = worker.stop().and(tracker.stop());
            drop(topics);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}

fn start_worker(services: &Services, prefix: String, slots: u32) -> anyhow::Result<Process> {
    let role = ChildRole::Worker {
        services: services.clone(),
        prefix,
        events_partitions: EVENTS_PARTITIONS,
        slots,
        order: Order::None,
        isolation: Isolation::None,
        layers: 0,
        fan: true,
    };
    Process::start("worker", &role)
}

pub(super) fn partitions() -> Vec<u32> {
    (0..EVENTS_PARTITIONS).collect()
}

/// Costs at the beginning and the end of a measurement.
#[derive(Clone, Debug)]
pub(super) struct SpentCosts {
    pub from: Costs,
    pub to: Costs,
}

/// Adds CPU per task and peak memory of every process; `tasks` is the number of tasks per measurement.
pub(super) fn add_costs(report: &mut BenchReport, tasks: u64, spent: &[SpentCosts]) {
    let mut cpu = |name: &str, of: &dyn Fn(&Costs) -> Duration| {
        let values = spent.iter().map(|spent| micros(of(&spent.to).saturating_sub(of(&spent.from)), tasks));
        report.add(&format!("{name} CPU"), "µs/task", values.collect());
    };
    cpu("publisher", &|costs| costs.publisher);
    cpu("worker", &|costs| costs.worker.cpu);
    cpu("tracker", &|costs| costs.tracker.cpu);
    cpu("redis", &|costs| costs.redis.cpu);
    if spent.iter().all(|spent| spent.to.kafka.is_some()) {
        cpu("kafka", &|costs| costs.kafka.unwrap_or_default());
    }
    let mut peak = |name: &str, of: &dyn Fn(&Costs) -> u64| {
        report.add(&format!("{name} peak memory"), "MiB", spent.iter().map(|spent| mib(of(&spent.to))).collect());
    };
    peak("worker", &|costs| costs.worker.peak_bytes);
    peak("tracker", &|costs| costs.tracker.peak_bytes);
    report.redis = spent.last().map(|spent| spent.to.redis.version.clone());
}
