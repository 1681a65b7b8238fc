//! `bench reads`: status reads over HTTP from an API in its own process: latency while a tracker projects at full
//! speed, and CPU cost on an idle fleet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_store::Store;
use kafleet_store::redis::Redis;

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::load::{EventLog, Shape};
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Services, blocking, mib, micros};

/// Number of tasks submitted before the first of them succeeds.
const WINDOW: u64 = 1_000;
/// Number of tasks, the first ones, that are read while the tracker is busy.
const SAMPLED_TASKS: u64 = 100;
/// Pause between reads while the tracker is busy, so that they do not compete with it.
const READ_INTERVAL: Duration = Duration::from_millis(2);
const START_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
pub struct StatusReads {
    /// Number of tasks, of two events each, to project and read.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    pub tasks: u64,
    /// Duration of the reads after the projection is complete, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// Concurrent readers, each with a persistent connection.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub readers: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
}

impl Default for StatusReads {
    fn default() -> Self {
        Self { tasks: 300_000, seconds: 10, readers: 8, rounds: 3 }
    }
}

struct ReadsRound {
    /// Events projected per second.
    projected: f64,
    /// Durations of reads in ms.
    busy_reads: Vec<f64>,
    idle_reads: Vec<f64>,
    rate: f64,
    api_cpu: Duration,
    redis_cpu: Duration,
    api_bytes: u64,
    version: String,
}

pub async fn reads(bench: &StatusReads, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("tasks", bench.tasks.to_string()),
        ("readers", bench.readers.to_string()),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("batch events", services.tracker.batch_events.to_string()),
    ];
    let mut report = BenchReport::new("reads", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        rounds.push(one_round(bench, &services.linger(5)).await?);
    }
    let of = |figure: &dyn Fn(&ReadsRound) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    report.add("API CPU", "µs/read", of(&|round| micros(round.api_cpu, round.idle_reads.len() as u64)));
    report.add("redis CPU", "µs/read", of(&|round| micros(round.redis_cpu, round.idle_reads.len() as u64)));
    report.add("reads", "1/s", of(&|round| round.rate));
    for (label, permille) in [("p50", 500), ("p99", 990)] {
        report.add(&format!("read {label}"), "ms", of(&|round| percentile(round.idle_reads.clone(), permille)));
    }
    report.add("projection meanwhile", "events/s", of(&|round| round.projected));
    for (label, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        report.add(
            &format!("read while projecting {label}"),
            "ms",
            of(&|round| percentile(round.busy_reads.clone(), permille)),
        );
    }
    report.add("API peak memory", "MiB", of(&|round| mib(round.api_bytes)));
    report.redis = rounds.last().map(|round| round.version.clone());
    report.checked = true;
    Ok(report)
}

async fn one_round(bench: &StatusReads, services: &Services) -> anyhow::Result<ReadsRound> {
    let log = EventLog { tasks: bench.tasks, window: WINDOW, shape: Shape::default() };
    let topics = log.prepare(services, 1).await?;
    let store = services.redis(&topics.topology.names.prefix)?;
    let (mut api, client) = open_api(services, &topics).await?;
    let role = ChildRole::Tracker {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: EVENTS_PARTITIONS,
    };
    let tracker = Process::start("tracker", &role)?;
    let (projected, busy_reads) = reads_while_projecting(&client, &store, log).await?;
    api.check()?;
    let from = api.cost();
    let before = store.usage().await?;
    let started = Instant::now();
    let idle_reads = idle_reads(&client, bench, log).await?;
    let took = started.elapsed();
    let to = api.cost();
    let after = store.usage().await?;
    blocking(move || {
        let stopped = api.stop().and(tracker.stop());
        drop(topics);
        stopped
    })
    .await?;
    store.clear().await?;
    Ok(ReadsRound {
        projected,
        busy_reads,
        rate: idle_reads.len() as f64 / took.as_secs_f64(),
        idle_reads,
        api_cpu: to.cpu.saturating_sub(from.cpu),
        redis_cpu: after.cpu.saturating_sub(before.cpu),
        api_bytes: to.peak_bytes,
        version: after.version,
    })
}

/// Starts an API and waits until it is ready.
async fn open_api(services: &Services, topics: &BenchTopics) -> anyhow::Result<(Process, ReadClient)> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let prefix = topics.topology.names.prefix.clone();
    let mut process = Process::start(
        "api",
        &ChildRole::Api { services: services.clone(), prefix, events_partitions: EVENTS_PARTITIONS, port },
    )?;
    let client =
        ReadClient { http: reqwest::Client::builder().no_proxy().build()?, base: format!("http://127.0.0.1:{port}") };
    let until = Instant::now() + START_DEADLINE;
    while !client.is_ready().await {
        process.check()?;
        if Instant::now() > until {
            bail!("the API is not ready after {} s", START_DEADLINE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok((process, client))
}

#[derive(Clone)]
struct ReadClient {
    http: reqwest::Client,
    base: String,
}

impl ReadClient {
    async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/readyz", self.base)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Returns the duration of a read in ms; `None` if the task is not yet visible.
    async fn read(&self, log: EventLog, number: u64) -> anyhow::Result<Option<f64>> {
        let id = log.shape.id(number)?;
        let started = Instant::now();
        let answer = self.http.get(format!("{}/v1/tasks/{id}", self.base)).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        match status.as_u16() {
            200 if text.contains(id.as_str()) => Ok(Some(took)),
            404 => Ok(None),
            _ => bail!("reading `{id}` failed with {status}: {text}"),
        }
    }
}

/// Reads the first tasks until the projection is complete; returns the projection rate and the durations of the
/// reads. The first read of each task is not counted: it may wait for the task to become visible.
async fn reads_while_projecting(client: &ReadClient, store: &Redis, log: EventLog) -> anyhow::Result<(f64, Vec<f64>)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Instant::now() + ROUND_DEADLINE;
    let measuring = tokio::spawn(measure_projection(store.clone(), log.events(), is_over.clone(), until));
    for n in 0..SAMPLED_TASKS {
        while client.read(log, n).await?.is_none() && Instant::now() < until {}
    }
    let mut took = Vec::new();
    while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
        took.extend(client.read(log, fastrand::u64(0..SAMPLED_TASKS)).await?);
        tokio::time::sleep(READ_INTERVAL).await;
    }
    let rate = measuring.await??;
    if took.is_empty() {
        bail!("{} tasks were projected before any could be read\n\nhint: use more with `--tasks`", log.tasks);
    }
    Ok((rate, took))
}

/// Measures the projection rate in events per second.
async fn measure_projection(
    store: Redis,
    events: u64,
    is_over: Arc<AtomicBool>,
    until: Instant,
) -> anyhow::Result<f64> {
    let mut first = None;
    loop {
        let checkpoints = store.checkpoints(&partitions()).await;
        let projected = checkpoints.map(|checkpoints| {
            checkpoints.into_iter().flatten().map(|checkpoint| checkpoint.offset as u64).sum::<u64>()
        });
        let projected = projected.inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
        let (started, before) = *first.get_or_insert((Instant::now(), projected));
        if projected == 0 {
            first = None;
        }
        if projected >= events || Instant::now() > until {
            is_over.store(true, Ordering::Relaxed);
            return Ok((projected - before) as f64 / started.elapsed().as_secs_f64().max(1e-3));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads random tasks with all readers at full speed.
async fn idle_reads(client: &ReadClient, bench: &StatusReads, log: EventLog) -> anyhow::Result<Vec<f64>> {
    let until = Instant::now() + Duration::from_secs(bench.seconds);
    let all = Arc::new(Mutex::new(Vec::new()));
    let readers = (0..bench.readers).map(|_| {
        let client = client.clone();
        let all = all.clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                took.push(client.read(log, fastrand::u64(0..log.tasks)).await?.context("a task is missing")?);
            }
            all.lock().unwrap_or_else(PoisonError::into_inner).extend(took);
            anyhow::Ok(())
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await??;
    }
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *all))
}
