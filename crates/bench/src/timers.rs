//! `bench timers`: delayed tasks. Measures the memory of a tracker while very many of them wait, and the lateness of
//! those that come due.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::{Broker, ConsumerSpec, Partition, StartOffset};
use kafleet_fleet::publish::Publisher;
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::Store;
use kafleet_store::redis::Redis;
use rustc_hash::FxHashMap;

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Services, blocking, load, mib};

/// Tasks per publish call.
const PUBLISH_BATCH: u64 = 5_000;
/// Delay of tasks that do not come due during the benchmark.
const FAR_FUTURE_MS: i64 = 7 * 86_400_000;
/// Time from the last record written to the first due time.
const LEAD_MS: i64 = 3_000;
/// Time for the tracker to settle before its memory is measured.
const SETTLE_TIME: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub struct Timers {
    /// Number of tasks that wait throughout.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pending: u64,
    /// Tasks due per second.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Duration for which tasks come due, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

impl Default for Timers {
    fn default() -> Self {
        Self { pending: 1_000_000, rate: 1_000, seconds: 10 }
    }
}

pub async fn timers(bench: &Timers, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("pending", bench.pending.to_string()),
        ("due", format!("{}/s for {} s", bench.rate, bench.seconds)),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("params", "200 B".into()),
    ];
    let mut report = BenchReport::new("timers", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut fleet = TimersFleet::open(services).await?;
    fleet.wait(0, bench.pending.min(1_000)).await?;
    let before = fleet.tracker.cost().resident_bytes;
    eprintln!("scheduling {} tasks", bench.pending);
    let started = Instant::now();
    fleet.wait(bench.pending.min(1_000), bench.pending).await?;
    let took = started.elapsed();
    tokio::time::sleep(SETTLE_TIME).await;
    let after = fleet.tracker.cost().resident_bytes;
    eprintln!("{} tasks per second come due", bench.rate);
    let late = fleet.due(bench).await?;
    report.add("tracker memory with 1,000 pending", "MiB", vec![mib(before)]);
    report.add("tracker memory with all pending", "MiB", vec![mib(after)]);
    report.add("tracker memory at the end", "MiB", vec![mib(fleet.tracker.cost().resident_bytes)]);
    report.add("scheduled", "tasks/s", vec![bench.pending as f64 / took.as_secs_f64()]);
    for (name, permille) in [("p50", 500), ("p99", 990), ("p99.9", 999), ("max", 1_000)] {
        report.add(&format!("late by, {name}"), "ms", vec![percentile(late.clone(), permille)]);
    }
    report.redis = Some(fleet.store.usage().await?.version);
    report.checked = true;
    fleet.close().await?;
    Ok(report)
}

/// A tracker in a child process; this process publishes tasks and consumes released ones.
struct TimersFleet {
    store: Redis,
    publisher: Publisher,
    tracker: Process,
    topics: BenchTopics,
}

impl TimersFleet {
    async fn open(services: &Services) -> anyhow::Result<Self> {
        let at = services.linger(1);
        let topics = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
        let prefix = topics.topology.names.prefix.clone();
        let store = services.redis(&prefix)?;
        let tracker = ChildRole::Tracker { services: services.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
        let tracker = Process::start("tracker", &tracker)?;
        let producer = topics.producer().await?;
        let publisher = Publisher::new(producer, topics.topology.clone(), "kafleet/bench");
        Ok(Self { store, publisher, tracker, topics })
    }

    async fn publish(
        &self,
        name: &str,
        numbers: std::ops::Range<u64>,
        due_ms: impl Fn(u64) -> i64,
    ) -> anyhow::Result<()> {
        let params = RawJson::parse(load::params().as_bytes())?;
        let mut next = numbers.start;
        while next < numbers.end {
            let end = (next + PUBLISH_BATCH).min(numbers.end);
            let mut tasks = Vec::new();
            for n in next..end {
                let id = TaskId::parse(&format!("{name}-{n:012}"))?;
                tasks.push(TaskSpec::new(id, NOOP, params.clone()).at(due_ms(n)));
            }
            for outcome in self.publisher.publish_all(tasks, now_ms()).await {
                outcome?;
            }
            next = end;
        }
        Ok(())
    }

    /// Schedules tasks `have..want` and waits until the store counts them.
    async fn wait(&mut self, have: u64, want: u64) -> anyhow::Result<()> {
        let due_ms = now_ms() + FAR_FUTURE_MS;
        self.publish("wait", have..want, |_| due_ms).await?;
        self.wait_for_scheduled(want).await
    }

    async fn wait_for_scheduled(&mut self, want: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            let counts = self.store.counts(&partitions()).await?;
            let waiting: u64 =
                counts.iter().filter(|count| count.state == State::Scheduled).map(|count| count.count).sum();
            if waiting == want {
                return Ok(());
            }
            self.tracker.check()?;
            if Instant::now() > until {
                bail!("{waiting} of {want} tasks are scheduled after {} s", ROUND_DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the lateness of tasks with successive due times, measured at a consumer of their topic, in ms.
    async fn due(&mut self, bench: &Timers) -> anyhow::Result<Vec<f64>> {
        let count = u64::from(bench.rate) * u64::from(bench.seconds);
        // Late enough that all are written and projected before the first is due.
        let first = now_ms() + LEAD_MS + i64::try_from(count / 10)?;
        let due_ms = |n: u64| first + (n * 1_000 / u64::from(bench.rate)) as i64;
        let broker = self.topics.broker.clone();
        let topic = self.topics.topology.names.tasks(NOOP);
        let consumer = tokio::task::spawn_blocking(move || consume(&*broker, &topic, count));
        self.publish("due", 0..count, due_ms).await?;
        if now_ms() > first {
            bail!("the tasks were not written before the first was due: use a lower rate");
        }
        let consumed = consumer.await??;
        let mut late = Vec::new();
        for n in 0..count {
            let times = consumed.get(&format!("due-{n:012}")).map_or(&[][..], Vec::as_slice);
            let [at] = times else { bail!("task {n} was released {} times", times.len()) };
            if *at < due_ms(n) {
                bail!("task {n} was released before its due time");
            }
            late.push((*at - due_ms(n)) as f64);
        }
        self.wait_for_scheduled(bench.pending).await?;
        Ok(late)
    }

    async fn close(self) -> anyhow::Result<()> {
        let tracker = self.tracker;
        let topics = self.topics;
        let stop = move || {
            let stopped = tracker.stop();
            drop(topics);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}

/// Consumes `count` tasks, and further ones until the topic is quiet; returns their arrival times (epoch ms) by key.
fn consume(broker: &dyn Broker, topic: &str, count: u64) -> anyhow::Result<FxHashMap<String, Vec<i64>>> {
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    let assignment: Vec<_> =
        (0..EVENTS_PARTITIONS).map(|index| (Partition::new(topic, index as i32), StartOffset::Beginning)).collect();
    consumer.assign(&assignment)?;
    let mut consumed = FxHashMap::<String, Vec<i64>>::default();
    let mut seen = 0;
    let mut last_record = Instant::now();
    while seen < count || last_record.elapsed() < Duration::from_secs(1) {
        consumer.poll(1_000, Duration::from_millis(1), &mut |record| {
            let key = record.key.and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default();
            consumed.entry(key.to_owned()).or_default().push(now_ms());
            seen += 1;
            last_record = Instant::now();
        })?;
        if last_record.elapsed() > ROUND_DEADLINE {
            return Err(anyhow::anyhow!("{seen} of {count} tasks were released")).context("no more tasks are released");
        }
    }
    consumer.close(Duration::from_secs(5));
    Ok(consumed)
}
