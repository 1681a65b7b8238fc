//! `bench timers`: tasks that start later. What a tracker holds while very many of them wait, and how late those are whose
//! time comes meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustc_hash::FxHashMap;

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::process::Process;
use super::{BenchTopics, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Report, Services, blocking, load, mib};
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, ConsumerSpec, Partition, StartOffset};
use crate::model::json::RawJson;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::publish::{NewTask, Publisher};
use crate::runtime::now_ms;
use crate::store::Store;
use crate::store::redis::Redis;

/// Published at once.
const BURST: u64 = 5_000;
/// When those are due that are not to be due.
const LATER_MS: i64 = 7 * 86_400_000;
/// From the last one written to the first one due.
const LEAD_MS: i64 = 3_000;
/// How long the tracker may take to settle before its memory is looked at.
const REST: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub struct Timers {
    /// Tasks that wait all the time.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pending: u64,
    /// Tasks due per second.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// For how long some are due, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

impl Default for Timers {
    fn default() -> Self {
        Self { pending: 1_000_000, rate: 1_000, seconds: 10 }
    }
}

pub async fn timers(bench: &Timers, site: &Services) -> anyhow::Result<Report> {
    let settings = [
        ("pending", bench.pending.to_string()),
        ("due", format!("{}/s for {} s", bench.rate, bench.seconds)),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("params", "200 B".into()),
    ];
    let mut report = Report::new("timers", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut stage = BenchFleet::open(site).await?;
    stage.wait(0, bench.pending.min(1_000)).await?;
    let before = stage.tracker.cost().resident_bytes;
    eprintln!("{} tasks are to wait", bench.pending);
    let began = Instant::now();
    stage.wait(bench.pending.min(1_000), bench.pending).await?;
    let took = began.elapsed();
    tokio::time::sleep(REST).await;
    let after = stage.tracker.cost().resident_bytes;
    eprintln!("{} a second are due", bench.rate);
    let late = stage.due(bench).await?;
    report.add("tracker memory with 1,000 pending", "MiB", vec![mib(before)]);
    report.add("tracker memory with all pending", "MiB", vec![mib(after)]);
    report.add("tracker memory at the end", "MiB", vec![mib(stage.tracker.cost().resident_bytes)]);
    report.add("taken up", "tasks/s", vec![bench.pending as f64 / took.as_secs_f64()]);
    for (name, permille) in [("p50", 500), ("p99", 990), ("p99.9", 999), ("max", 1_000)] {
        report.add(&format!("late by, {name}"), "ms", vec![percentile(late.clone(), permille)]);
    }
    report.redis = Some(stage.store.usage().await?.version);
    report.checked = true;
    stage.close().await?;
    Ok(report)
}

/// A tracker, and this process as the one that publishes and as the one that takes what is released.
struct BenchFleet {
    store: Redis,
    publisher: Publisher,
    tracker: Process,
    ground: BenchTopics,
}

impl BenchFleet {
    async fn open(site: &Services) -> anyhow::Result<Self> {
        let at = site.linger(1);
        let ground = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
        let prefix = ground.names.prefix.clone();
        let store = site.redis(&prefix)?;
        let tracker = ChildRole::Tracker { site: site.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
        let tracker = Process::start("tracker", &tracker)?;
        let broker = ground.broker.clone();
        let link = blocking(move || Ok(SharedProducer::open(broker, None)?)).await?;
        let publisher = Publisher::new(link, ground.names.clone(), EVENTS_PARTITIONS, "kafleet/bench");
        Ok(Self { store, publisher, tracker, ground })
    }

    async fn publish(&self, name: &str, numbers: std::ops::Range<u64>, due_ms: impl Fn(u64) -> i64) -> anyhow::Result<()> {
        let params = RawJson::parse(load::params().as_bytes())?;
        let mut next = numbers.start;
        while next < numbers.end {
            let end = (next + BURST).min(numbers.end);
            let mut tasks = Vec::new();
            for n in next..end {
                let id = Some(TaskId::parse(&format!("{name}-{n:012}"))?);
                tasks.push(NewTask { id, ..NewTask::new(NOOP, params.clone()).at(due_ms(n)) });
            }
            for outcome in self.publisher.publish_all(tasks, now_ms()).await {
                outcome?;
            }
            next = end;
        }
        Ok(())
    }

    /// Lets so many wait, until the store has them all.
    async fn wait(&mut self, have: u64, want: u64) -> anyhow::Result<()> {
        let due_ms = now_ms() + LATER_MS;
        self.publish("wait", have..want, |_| due_ms).await?;
        self.until_waiting(want).await
    }

    async fn until_waiting(&mut self, want: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            let counts = self.store.counts(&partitions()).await?;
            let waiting: u64 = counts.iter().filter(|count| count.state == State::Scheduled).map(|count| count.count).sum();
            if waiting == want {
                return Ok(());
            }
            self.tracker.check()?;
            if Instant::now() > until {
                bail!("{waiting} of {want} tasks wait after {} s", ROUND_DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Tasks that are due one after the other: by how much each comes late to whoever reads its topic, in ms.
    async fn due(&mut self, bench: &Timers) -> anyhow::Result<Vec<f64>> {
        let count = u64::from(bench.rate) * u64::from(bench.seconds);
        // Written and folded long before.
        let first = now_ms() + LEAD_MS + i64::try_from(count / 10)?;
        let due_ms = |n: u64| first + (n * 1_000 / u64::from(bench.rate)) as i64;
        let (broker, topic) = (self.ground.broker.clone(), self.ground.names.tasks(NOOP));
        let taking = tokio::task::spawn_blocking(move || take(&*broker, &topic, count));
        self.publish("due", 0..count, due_ms).await?;
        if now_ms() > first {
            bail!("the tasks were not written before the first one was due: take a lower rate");
        }
        let taken = taking.await??;
        let mut late = Vec::new();
        for n in 0..count {
            let times = taken.get(&format!("due-{n:012}")).map_or(&[][..], Vec::as_slice);
            let [at] = times else { bail!("task {n} was released {} times", times.len()) };
            if *at < due_ms(n) {
                bail!("task {n} was released before its time");
            }
            late.push((*at - due_ms(n)) as f64);
        }
        self.until_waiting(bench.pending).await?;
        Ok(late)
    }

    async fn close(self) -> anyhow::Result<()> {
        let (tracker, ground) = (self.tracker, self.ground);
        let stop = move || {
            let stopped = tracker.stop();
            drop(ground);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}

/// When each task came, epoch milliseconds, until so many have and nothing more comes for a moment.
fn take(broker: &dyn Broker, topic: &str, count: u64) -> anyhow::Result<FxHashMap<String, Vec<i64>>> {
    let mut consumer = broker.consumer(&ConsumerSpec::default())?;
    let places: Vec<_> =
        (0..EVENTS_PARTITIONS).map(|index| (Partition::new(topic, index as i32), StartOffset::Beginning)).collect();
    consumer.assign(&places)?;
    let (mut taken, mut seen, mut heard) = (FxHashMap::<String, Vec<i64>>::default(), 0, Instant::now());
    while seen < count || heard.elapsed() < Duration::from_secs(1) {
        consumer.poll(1_000, Duration::from_millis(1), &mut |record| {
            let key = record.key.and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default();
            taken.entry(key.to_owned()).or_default().push(now_ms());
            (seen, heard) = (seen + 1, Instant::now());
        })?;
        if heard.elapsed() > ROUND_DEADLINE {
            return Err(anyhow::anyhow!("{seen} of {count} tasks were released")).context("nothing is released any more");
        }
    }
    consumer.close(Duration::from_secs(5));
    Ok(taken)
}
