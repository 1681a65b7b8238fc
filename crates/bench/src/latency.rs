//! `bench latency`: time from submission to start, and to a success visible in the store, of tasks published one by
//! one at a steady rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use futures::StreamExt;
use kafleet_broker::{Broker, ConsumerSpec, Partition, ProducerRecord, StartOffset};
use kafleet_fleet::publish::{PublishError, Publisher};
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::redis::Redis;
use kafleet_store::{Notice, Store};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::task::JoinSet;

use super::fleet::{BenchFleet, SpentCosts, add_costs};
use super::load::Filler;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, NOOP, Services, blocking, check, load};

/// Maximum time until a task's success is visible.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, clap::Args)]
pub struct Latency {
    /// Tasks per second.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Duration of each round, in seconds, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

impl Default for Latency {
    fn default() -> Self {
        Self { rate: 1_000, seconds: 10, rounds: 3, partitions: 4, linger: 1 }
    }
}

/// Selects a figure of a path.
type PathTime = fn(&Path) -> f64;

/// Times of one task, in ms after its submission.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    acknowledged: f64,
    started: f64,
    visible: f64,
}

struct LatencyRound {
    /// Latencies of plain records, in ms.
    plain: Vec<f64>,
    paths: Vec<Path>,
    spent: SpentCosts,
}

pub async fn latency(bench: &Latency, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("rate", format!("{} tasks/s", bench.rate)),
        ("partitions", bench.partitions.to_string()),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("params", "200 B".into()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = BenchReport::new("latency", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        rounds.push(one_round(bench, &services.linger(bench.linger)).await?);
    }
    let parts: [(&str, PathTime); 3] = [
        ("submit to acknowledged", |path| path.acknowledged),
        ("submit to start", |path| path.started),
        ("submit to visible success", |path| path.visible),
    ];
    for (name, part) in parts {
        for (label, permille) in [("p50", 500), ("p99", 990), ("p99.9", 999), ("max", 1_000)] {
            let values = rounds.iter().map(|round| percentile(round.paths.iter().map(part).collect(), permille));
            report.add(&format!("{name} {label}"), "ms", values.collect());
        }
    }
    for (label, permille) in [("p50", 500), ("p99", 990)] {
        let values = rounds.iter().map(|round| percentile(round.plain.clone(), permille));
        report.add(&format!("a plain record through kafka {label}"), "ms", values.collect());
    }
    let tasks = u64::from(bench.rate) * u64::from(bench.seconds);
    add_costs(&mut report, tasks, &rounds.into_iter().map(|round| round.spent).collect::<Vec<_>>());
    report.checked = true;
    Ok(report)
}

/// Returns a percentile, given in thousandths.
pub(super) fn percentile(mut values: Vec<f64>, permille: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * permille).div_ceil(1_000).saturating_sub(1);
    values.get(rank).copied().unwrap_or_default()
}

async fn one_round(bench: &Latency, services: &Services) -> anyhow::Result<LatencyRound> {
    let fleet = BenchFleet::open(services, bench.partitions, 2_000).await?;
    let times = Arc::new(TaskTimes::default());
    let reader = tokio::spawn(record_visible(fleet.store.clone(), times.clone()));
    let tasks = u64::from(bench.rate) * u64::from(bench.seconds);
    submit(&fleet.publisher, &times, "warm", bench.rate, tasks / 5).await?;
    times.wait_until_empty().await?;
    times.done.lock().clear();
    let from = fleet.costs().await?;
    submit(&fleet.publisher, &times, "bench", bench.rate, tasks).await?;
    times.wait_until_empty().await?;
    let to = fleet.costs().await?;
    reader.abort();
    check::exactly_once(&fleet.store, EVENTS_PARTITIONS, (0..tasks).map(load::id), tasks + tasks / 5 + 1).await?;
    fleet.close().await?;
    let bench = bench.clone();
    let services = services.clone();
    let plain = blocking(move || plain(&bench, &services)).await?;
    let paths = std::mem::take(&mut *times.done.lock());
    Ok(LatencyRound { plain, paths, spent: SpentCosts { from, to } })
}

/// Measures the latency of plain records at the same rate, from send to consumption, without the first fifth. It is a
/// lower bound: a task's start is one such trip after its submission, and its visible success at least one more.
fn plain(bench: &Latency, services: &Services) -> anyhow::Result<Vec<f64>> {
    let topics = BenchTopics::prepare(services, bench.partitions, 1)?;
    let records = u64::from(bench.rate) * u64::from(bench.seconds);
    let topic = topics.topology.names.tasks(NOOP);
    let filler = Filler::new(&topics)?;
    let started = Instant::now();
    let mut consumer = topics.broker.consumer(&ConsumerSpec::default())?;
    let starts =
        (0..bench.partitions).map(|number| (Partition::new(topic.as_str(), number as i32), StartOffset::Beginning));
    consumer.assign(&starts.collect::<Vec<_>>())?;
    let mut took = Vec::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_plain(&filler, &topic, bench.rate, records, started));
        let until = started + Duration::from_secs(u64::from(bench.seconds)) + DEADLINE;
        while (took.len() as u64) < records {
            if Instant::now() > until {
                bail!("{} of {records} plain records received after {} s", took.len(), started.elapsed().as_secs());
            }
            consumer.poll(1_000, Duration::from_millis(100), &mut |record| {
                let sent = std::str::from_utf8(record.value.unwrap_or_default()).unwrap_or_default().trim_end();
                took.push(started.elapsed().as_secs_f64() * 1e3 - sent.parse().unwrap_or(0.0));
            })?;
        }
        sending.join().map_err(|_| anyhow!("the sender of plain records has panicked"))?
    })?;
    consumer.close(Duration::from_secs(5));
    filler.end()?;
    Ok(took.split_off(took.len() / 5))
}

/// Sends plain records whose values are their send times in ms, padded to the size of a task's params.
fn send_plain(filler: &Filler, topic: &str, rate: u32, records: u64, started: Instant) -> anyhow::Result<()> {
    let length = load::params().len();
    for n in 0..records {
        let due = started + Duration::from_secs_f64(n as f64 / f64::from(rate));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let key = n.to_string();
        let value = format!("{:<length$}", started.elapsed().as_secs_f64() * 1e3);
        let key = Some(key.as_bytes());
        let value = Some(value.as_bytes());
        filler.send(&ProducerRecord { topic, partition: None, key, value, headers: &[] })?;
    }
    Ok(())
}

/// Times of open and of completed tasks.
#[derive(Default)]
struct TaskTimes {
    open: Mutex<FxHashMap<TaskId, OpenTask>>,
    done: Mutex<Vec<Path>>,
}

struct OpenTask {
    at: Instant,
    /// Epoch milliseconds.
    at_ms: f64,
    acknowledged: Option<f64>,
    seen: Option<(f64, f64)>,
}

impl TaskTimes {
    fn open(&self, id: TaskId) {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let at_ms = since.as_secs_f64() * 1e3;
        self.open.lock().insert(id, OpenTask { at: Instant::now(), at_ms, acknowledged: None, seen: None });
    }

    fn acknowledged(&self, id: &TaskId) {
        self.update(id, |open| open.acknowledged = Some(millis(open.at)));
    }

    /// Records a visible success. The start time is in whole milliseconds of the same clock: half of one is added.
    fn visible(&self, id: &TaskId, started_at_ms: i64) {
        self.update(id, |open| {
            open.seen = open.seen.or(Some((started_at_ms as f64 + 0.5 - open.at_ms, millis(open.at))));
        });
    }

    fn update(&self, id: &TaskId, change: impl FnOnce(&mut OpenTask)) {
        let mut all = self.open.lock();
        let Some(open) = all.get_mut(id) else { return };
        change(open);
        if let (Some(acknowledged), Some((started, visible))) = (open.acknowledged, open.seen) {
            self.done.lock().push(Path { acknowledged, started, visible });
            all.remove(id);
        }
    }

    async fn wait_until_empty(&self) -> anyhow::Result<()> {
        let until = Instant::now() + DEADLINE;
        while !self.open.lock().is_empty() {
            if Instant::now() > until {
                bail!("{} tasks have not ended after {} s", self.open.lock().len(), DEADLINE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Publishes tasks one by one, as requests to an API do.
async fn submit(
    publisher: &Publisher,
    times: &Arc<TaskTimes>,
    name: &str,
    rate: u32,
    tasks: u64,
) -> anyhow::Result<()> {
    let params = RawJson::parse(load::params().as_bytes())?;
    let started = tokio::time::Instant::now();
    let mut calls = JoinSet::<Result<(), PublishError>>::new();
    for n in 0..tasks {
        let at = started + Duration::from_secs_f64(n as f64 / f64::from(rate));
        if at > tokio::time::Instant::now() {
            tokio::time::sleep_until(at).await;
        }
        let id = TaskId::parse(&format!("{name}-{n:012}"))?;
        let task = TaskSpec::new(id.clone(), NOOP, params.clone());
        let publisher = publisher.clone();
        let times = times.clone();
        times.open(id.clone());
        calls.spawn(async move {
            publisher.publish(task, now_ms()).await?;
            times.acknowledged(&id);
            Ok(())
        });
        while let Some(ended) = calls.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended??;
    }
    Ok(())
}

/// Reads the tasks named by notices, as clients that wait for a task do.
async fn record_visible(store: Redis, times: Arc<TaskTimes>) -> anyhow::Result<()> {
    let mut notices = store.notices().await?;
    while let Some(notice) = notices.next().await {
        let Notice::Changed { partition, ids, .. } = notice else { continue };
        let ids = ids.unwrap_or_else(|| times.open.lock().keys().cloned().collect());
        let tasks = store.task_records(partition, &ids).await?;
        for (id, task) in ids.iter().zip(tasks) {
            if let Some(task) = task.filter(|task| task.state == State::Succeeded) {
                times.visible(id, task.times.started_at_ms.unwrap_or_default());
            }
        }
    }
    Ok(())
}
