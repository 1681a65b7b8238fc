//! A small fleet: one worker, one tracker, each in a process of its own, and this process as the one that publishes and looks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::child_role::ChildRole;
use super::process::{Cost, Process};
use super::{BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Report, Services, blocking, load, mib, micros, own_cpu};
use crate::broker::shared_producer::SharedProducer;
use crate::config::{Isolation, Order};
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::publish::Publisher;
use crate::store::Store;
use crate::store::redis::{Redis, Usage};

/// How the id of the task begins that goes through before anything is measured.
const FIRST: &str = "first";

pub struct BenchFleet {
    pub store: Redis,
    pub publisher: Publisher,
    worker: Process,
    tracker: Process,
    ground: BenchTopics,
}

/// What each process has used so far.
#[derive(Clone, Debug)]
pub struct Costs {
    pub publisher: Duration,
    pub worker: Cost,
    pub tracker: Cost,
    pub redis: Usage,
    /// Where it runs on this machine.
    pub kafka: Option<Duration>,
}

impl BenchFleet {
    /// Starts everything; returns when one task is through, so that all are connected and have their partitions.
    pub async fn open(site: &Services, partitions: u32, slots: u32) -> anyhow::Result<Self> {
        let at = site.clone();
        let ground = blocking(move || BenchTopics::prepare(&at, partitions, EVENTS_PARTITIONS)).await?;
        let prefix = ground.names.prefix.clone();
        let store = site.redis(&prefix)?;
        let worker = ChildRole::Worker {
            site: site.clone(),
            prefix: prefix.clone(),
            events_partitions: EVENTS_PARTITIONS,
            slots,
            order: Order::None,
            isolation: Isolation::None,
            fan: true,
        };
        let worker = Process::start("worker", &worker)?;
        let role = ChildRole::Tracker { site: site.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
        let tracker = Process::start("tracker", &role)?;
        let broker = ground.broker.clone();
        let link = blocking(move || Ok(SharedProducer::open(broker, None)?)).await?;
        let publisher = Publisher::new(link, ground.names.clone(), EVENTS_PARTITIONS, "kafleet/bench");
        let mut stage = Self { store, publisher, worker, tracker, ground };
        load::publish(&stage.publisher, FIRST, 0..1).await?;
        stage.wait_for(1).await?;
        Ok(stage)
    }

    pub async fn costs(&self) -> anyhow::Result<Costs> {
        let redis = self.store.usage().await?;
        let (worker, tracker, kafka) = (self.worker.cost(), self.tracker.cost(), self.ground.kafka.cpu());
        Ok(Costs { publisher: own_cpu(), worker, tracker, redis, kafka })
    }

    /// The size of the record in the store of a task that has done nothing.
    pub async fn record_bytes(&self) -> anyhow::Result<usize> {
        let id = TaskId::parse(&format!("{FIRST}-{:012}", 0))?;
        let found = self.store.nodes(self.publisher.partition_of(&id), &[id]).await?;
        Ok(found.into_iter().flatten().next().context("the first task is not there")?.encode().len())
    }

    /// Tasks that the store counts as succeeded.
    pub async fn succeeded(&self) -> anyhow::Result<u64> {
        let counts = self.store.counts(&partitions()).await?;
        Ok(counts.iter().filter(|count| count.state == State::Succeeded).map(|count| count.count).sum())
    }

    /// Waits until the store counts so many succeeded tasks.
    pub async fn wait_for(&mut self, tasks: u64) -> anyhow::Result<()> {
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

    pub fn check_processes(&mut self) -> anyhow::Result<()> {
        self.worker.check()?;
        self.tracker.check()
    }

    /// Stops everything and clears the store.
    pub async fn close(self) -> anyhow::Result<()> {
        let (worker, tracker, ground) = (self.worker, self.tracker, self.ground);
        let stop = move || {
            let stopped = worker.stop().and(tracker.stop());
            drop(ground);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}

pub fn partitions() -> Vec<u32> {
    (0..EVENTS_PARTITIONS).collect()
}

/// From one look to the next.
#[derive(Clone, Debug)]
pub struct Spent {
    pub from: Costs,
    pub to: Costs,
}

/// Adds the CPU per task of every process, and peak memory. `tasks` were done in each.
pub fn add_costs(report: &mut Report, tasks: u64, spent: &[Spent]) {
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
