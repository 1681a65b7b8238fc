//! `bench reads`: statuses read over HTTP, one api in a process of its own: how long a read takes while a tracker folds as fast
//! as it can, and what one costs when nothing else happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::load::{Log, Shape};
use super::process::Process;
use super::{BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Report, Services, blocking, mib, micros};
use crate::store::Store;
use crate::store::redis::Redis;

/// Events of so many tasks lie between a submission and its success.
const WINDOW: u64 = 1_000;
/// Of the first tasks, those that are read while the tracker folds.
const SAMPLE: u64 = 100;
/// Between two reads while the tracker folds: they are there to be measured, not to compete.
const PAUSE: Duration = Duration::from_millis(2);
const START: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
pub struct Reads {
    /// Tasks to fold, of two events each, and to read.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    pub tasks: u64,
    /// How long to read when everything is folded, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// Readers at once, each with a connection that is kept.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub readers: u32,
    /// Rounds; the median is what counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
}

impl Default for Reads {
    fn default() -> Self {
        Self { tasks: 300_000, seconds: 10, readers: 8, rounds: 3 }
    }
}

struct ReadsRound {
    /// Per second.
    folded: f64,
    /// How long each read took, ms.
    folding: Vec<f64>,
    resting: Vec<f64>,
    rate: f64,
    api_cpu: Duration,
    redis_cpu: Duration,
    api_bytes: u64,
    version: String,
}

pub async fn reads(bench: &Reads, site: &Services) -> anyhow::Result<Report> {
    let settings = [
        ("tasks", bench.tasks.to_string()),
        ("readers", bench.readers.to_string()),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("batch events", site.tracker.batch_events.to_string()),
    ];
    let mut report = Report::new("reads", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        rounds.push(one_round(bench, &site.linger(5)).await?);
    }
    let of = |figure: &dyn Fn(&ReadsRound) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    report.add("api CPU", "µs/read", of(&|round| micros(round.api_cpu, round.resting.len() as u64)));
    report.add("redis CPU", "µs/read", of(&|round| micros(round.redis_cpu, round.resting.len() as u64)));
    report.add("reads", "1/s", of(&|round| round.rate));
    for (place, permille) in [("p50", 500), ("p99", 990)] {
        report.add(&format!("read {place}"), "ms", of(&|round| percentile(round.resting.clone(), permille)));
    }
    report.add("fold meanwhile", "events/s", of(&|round| round.folded));
    for (place, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        report.add(&format!("read while folding {place}"), "ms", of(&|round| percentile(round.folding.clone(), permille)));
    }
    report.add("api peak memory", "MiB", of(&|round| mib(round.api_bytes)));
    report.redis = rounds.last().map(|round| round.version.clone());
    report.checked = true;
    Ok(report)
}

async fn one_round(bench: &Reads, site: &Services) -> anyhow::Result<ReadsRound> {
    let log = Log { tasks: bench.tasks, window: WINDOW, shape: Shape::default() };
    let at = site.clone();
    let ground = blocking(move || {
        let ground = BenchTopics::prepare(&at, 1, EVENTS_PARTITIONS)?;
        log.fill(&ground)?;
        Ok(ground)
    });
    let ground = ground.await?;
    let store = site.redis(&ground.names.prefix)?;
    let (mut api, client) = open_api(site, &ground).await?;
    let role =
        ChildRole::Tracker { site: site.clone(), prefix: ground.names.prefix.clone(), events_partitions: EVENTS_PARTITIONS };
    let tracker = Process::start("tracker", &role)?;
    let (folded, folding) = while_folding(&client, &store, log).await?;
    api.check()?;
    let (from, before, began) = (api.cost(), store.usage().await?, Instant::now());
    let resting = at_rest(&client, bench, log).await?;
    let (took, to, after) = (began.elapsed(), api.cost(), store.usage().await?);
    blocking(move || {
        let stopped = api.stop().and(tracker.stop());
        drop(ground);
        stopped
    })
    .await?;
    store.clear().await?;
    Ok(ReadsRound {
        folded,
        folding,
        rate: resting.len() as f64 / took.as_secs_f64(),
        resting,
        api_cpu: to.cpu.saturating_sub(from.cpu),
        redis_cpu: after.cpu.saturating_sub(before.cpu),
        api_bytes: to.peak_bytes,
        version: after.version,
    })
}

/// The api, once it answers.
async fn open_api(site: &Services, ground: &BenchTopics) -> anyhow::Result<(Process, Client)> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let prefix = ground.names.prefix.clone();
    let mut process =
        Process::start("api", &ChildRole::Api { site: site.clone(), prefix, events_partitions: EVENTS_PARTITIONS, port })?;
    let client = Client { http: reqwest::Client::builder().no_proxy().build()?, base: format!("http://127.0.0.1:{port}") };
    let until = Instant::now() + START;
    let is_ready = async || {
        let answer = client.http.get(format!("{}/readyz", client.base)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    };
    while !is_ready().await {
        process.check()?;
        if Instant::now() > until {
            bail!("the api is not ready after {} s", START.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok((process, client))
}

#[derive(Clone)]
struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    /// How long a read takes, ms; None for a task that is not there yet.
    async fn read(&self, log: Log, number: u64) -> anyhow::Result<Option<f64>> {
        let id = log.shape.id(number)?;
        let began = Instant::now();
        let answer = self.http.get(format!("{}/v1/tasks/{id}", self.base)).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        match status.as_u16() {
            200 if text.contains(id.as_str()) => Ok(Some(took)),
            404 => Ok(None),
            _ => bail!("a read of `{id}` was answered with {status}: {text}"),
        }
    }
}

/// Reads what was folded first, one after the other, until all is folded; and how many events a second that were. What the
/// first read of each takes does not count: it may wait for the task to be there.
async fn while_folding(client: &Client, store: &Redis, log: Log) -> anyhow::Result<(f64, Vec<f64>)> {
    let (is_over, until) = (Arc::new(AtomicBool::new(false)), Instant::now() + ROUND_DEADLINE);
    let looking = tokio::spawn(look_on(store.clone(), log.events(), is_over.clone(), until));
    for n in 0..SAMPLE {
        while client.read(log, n).await?.is_none() && Instant::now() < until {}
    }
    let mut took = Vec::new();
    while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
        took.extend(client.read(log, fastrand::u64(0..SAMPLE)).await?);
        tokio::time::sleep(PAUSE).await;
    }
    let rate = looking.await??;
    if took.is_empty() {
        bail!("{} tasks are folded before they can be read\n\nhint: give more with `--tasks`", log.tasks);
    }
    Ok((rate, took))
}

/// Events folded per second, from the first to the last.
async fn look_on(store: Redis, events: u64, is_over: Arc<AtomicBool>, until: Instant) -> anyhow::Result<f64> {
    let mut first = None;
    loop {
        let fences = store.fences(&partitions()).await;
        let folded = fences.map(|fences| fences.into_iter().flatten().map(|fence| fence.offset as u64).sum::<u64>());
        let folded = folded.inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
        let (began, before) = *first.get_or_insert((Instant::now(), folded));
        if folded == 0 {
            first = None;
        }
        if folded >= events || Instant::now() > until {
            is_over.store(true, Ordering::Relaxed);
            return Ok((folded - before) as f64 / began.elapsed().as_secs_f64().max(1e-3));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads any of the tasks, as fast as so many readers can.
async fn at_rest(client: &Client, bench: &Reads, log: Log) -> anyhow::Result<Vec<f64>> {
    let until = Instant::now() + Duration::from_secs(bench.seconds);
    let all = Arc::new(Mutex::new(Vec::new()));
    let readers = (0..bench.readers).map(|_| {
        let (client, all) = (client.clone(), all.clone());
        tokio::spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                took.push(client.read(log, fastrand::u64(0..log.tasks)).await?.context("a task is not there")?);
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
