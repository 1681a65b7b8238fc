//! Fleet of a benchmark of the API: an API and a tracker in child processes, and tasks that no worker runs.

use std::time::{Duration, Instant};

use anyhow::bail;
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::{Event, Payload};
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::Store;
use tokio::net::{TcpListener, TcpStream};

use super::child_role::ChildRole;
use super::process::{Process, ProcessUsage};
use super::{BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Services, blocking, load};

/// Time to settle before a measurement.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(3);

pub(super) struct ApiFleet {
    pub address: String,
    pub api: Process,
    publisher: Publisher,
    tracker: Process,
    store: kafleet_store::redis::Redis,
    topics: BenchTopics,
}

impl ApiFleet {
    /// Starts the processes, and submits tasks whose ids begin with a name.
    pub(super) async fn open(services: &Services, name: &str, tasks: u64) -> anyhow::Result<Self> {
        let at = services.linger(1);
        let topics = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
        let prefix = topics.topology.names.prefix.clone();
        let store = services.redis(&prefix)?;
        let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let events_partitions = EVENTS_PARTITIONS;
        let tracker = ChildRole::Tracker { services: services.clone(), prefix: prefix.clone(), events_partitions };
        let tracker = Process::start("tracker", &tracker)?;
        let api = ChildRole::Api { services: services.clone(), prefix, events_partitions, port: free.port() };
        let api = Process::start("api", &api)?;
        let producer = topics.producer().await?;
        let publisher = Publisher::new(producer, topics.topology.clone(), "kafleet/bench");
        let mut fleet = Self { address: free.to_string(), api, tracker, publisher, store, topics };
        load::publish(&fleet.publisher, name, 0..tasks).await?;
        fleet.wait_until_ready(tasks).await?;
        Ok(fleet)
    }

    async fn wait_until_ready(&mut self, tasks: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            let shown: u64 =
                self.store.counts(&super::fleet::partitions()).await?.iter().map(|count| count.count).sum();
            if shown >= tasks && TcpStream::connect(&self.address).await.is_ok() {
                return Ok(());
            }
            self.tracker.check()?;
            self.api.check()?;
            if Instant::now() > until {
                bail!("{shown} of {tasks} tasks show after {} s", ROUND_DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts another API of the fleet, with other services.
    pub(super) async fn another_api(&self, services: &Services) -> anyhow::Result<(Process, String)> {
        let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let (prefix, events_partitions) = (self.topics.topology.names.prefix.clone(), EVENTS_PARTITIONS);
        let role = ChildRole::Api { services: services.clone(), prefix, events_partitions, port: free.port() };
        let mut api = Process::start("another api", &role)?;
        let until = Instant::now() + ROUND_DEADLINE;
        while TcpStream::connect(free).await.is_err() {
            api.check()?;
            if Instant::now() > until {
                bail!("another API does not listen after {} s", ROUND_DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok((api, free.to_string()))
    }

    /// Publishes the start of an attempt.
    pub(super) async fn start_attempt(&self, id: &TaskId, attempt: u32) -> anyhow::Result<()> {
        let mut event = Event::new(Payload::Started { then: Vec::new() }, id.clone(), 1, now_ms());
        event.attempt = attempt;
        self.publisher.publish_event(&event).await?;
        Ok(())
    }

    /// Waits for a time; returns the API's cost afterwards.
    pub(super) async fn settled_usage(&self) -> ProcessUsage {
        tokio::time::sleep(SETTLE_TIME).await;
        self.api.cost()
    }

    /// Measures the API's CPU use, as a fraction of a core.
    pub(super) async fn cpu_share(&self, span: Duration) -> f64 {
        let from = self.api.cost();
        let started = Instant::now();
        tokio::time::sleep(span).await;
        self.api.cost().cpu.saturating_sub(from.cpu).as_secs_f64() / started.elapsed().as_secs_f64()
    }

    /// Stops all processes and clears the store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        let api = self.api;
        let tracker = self.tracker;
        let topics = self.topics;
        let stop = move || {
            let stopped = api.stop().and(tracker.stop());
            drop(topics);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}
