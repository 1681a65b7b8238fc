//! `bench watch`: very many clients that watch one api. What each of them costs while nothing happens, and what a change
//! costs that some of them hear of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::child_role::ChildRole;
use super::process::{Cost, Process};
use super::{BenchTopics, EVENTS_PARTITIONS, ROUND_DEADLINE, Report, Services, blocking, load, mib};
use crate::broker::shared_producer::SharedProducer;
use crate::model::event::{Event, Kind};
use crate::model::task::id::TaskId;
use crate::publish::Publisher;
use crate::runtime::{now_ms, raise_open_files};
use crate::store::Store;

/// Clients that connect at once.
const AT_ONCE: usize = 64;
/// Files of this process besides its connections.
const OTHER_FILES: u64 = 256;
/// Between two changes: watchers are told of them one by one.
const PAUSE: Duration = Duration::from_millis(100);
/// How long everything rests before it is looked at.
const REST: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// Clients that watch tasks, ten each.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub watchers: u64,
    /// Clients that watch the whole fleet.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=5_000))]
    pub fleet: u64,
    /// Changes that are told.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub changes: u64,
}

/// Watchers of one task.
const EACH: u64 = 10;

pub async fn watch(bench: &Watch, site: &Services) -> anyhow::Result<Report> {
    let settings = [
        ("watchers of tasks", format!("{}, {EACH} each", bench.watchers)),
        ("watchers of the fleet", bench.fleet.to_string()),
        ("changes", bench.changes.to_string()),
    ];
    let mut report = Report::new("watch", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let room = raise_open_files(bench.watchers + bench.fleet + OTHER_FILES);
    if room < bench.watchers + bench.fleet + OTHER_FILES {
        bail!("this process may open {room} files: raise the limit (`ulimit -n`), or take fewer watchers");
    }
    let stage = BenchFleet::open(site, bench).await?;
    let empty = stage.api.cost();
    let mut crowd = Crowd::default();
    crowd.watch(&stage.address, bench.watchers, |n| format!("/v1/tasks/watch-{:012}/watch", n / EACH)).await?;
    let tasks_only = stage.rest().await;
    let idle = stage.look(Duration::from_secs(10)).await;
    report.add("api memory without watchers", "MiB", vec![mib(empty.resident_bytes)]);
    report.add("memory of a watcher", "KiB", vec![kib_each(tasks_only.resident_bytes, empty.resident_bytes, bench.watchers)]);
    report.add("api CPU while nothing happens", "% of a core", vec![idle * 100.0]);
    let few = stage.changes(bench, &crowd, EACH).await?;
    report.add(&format!("CPU of a change that {EACH} hear"), "µs", vec![few.0]);
    report.add("until all have heard it", "ms", vec![few.1]);
    if bench.fleet > 0 {
        crowd.watch(&stage.address, bench.fleet, |_| "/v1/watch".to_owned()).await?;
        stage.rest().await;
        let all = stage.changes(bench, &crowd, EACH + bench.fleet).await?;
        report.add(&format!("CPU of a change that {} hear", EACH + bench.fleet), "µs", vec![all.0]);
        report.add("until all have heard that", "ms", vec![all.1]);
    }
    if crowd.ended.load(Relaxed) > 0 {
        bail!("{} streams have ended", crowd.ended.load(Relaxed));
    }
    report.checked = true;
    drop(crowd);
    stage.close().await?;
    Ok(report)
}

fn kib_each(with: u64, without: u64, count: u64) -> f64 {
    with.saturating_sub(without) as f64 / 1024.0 / count as f64
}

/// Clients that read what they are told and count it.
#[derive(Default)]
struct Crowd {
    clients: JoinSet<()>,
    told: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Crowd {
    /// Returns when each of so many more has heard the first event of its stream.
    async fn watch(&mut self, address: &str, count: u64, path: impl Fn(u64) -> String) -> anyhow::Result<()> {
        let have = self.told.load(Relaxed);
        let slots = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        for n in 0..count {
            let slot = slots.clone().acquire_owned().await?;
            let mut stream = TcpStream::connect(address).await.context("a client could not connect")?;
            let request = format!("GET {} HTTP/1.1\r\nhost: {address}\r\n\r\n", path(n));
            stream.write_all(request.as_bytes()).await?;
            let (told, ended) = (self.told.clone(), self.ended.clone());
            self.clients.spawn(async move {
                let (mut slot, mut buffer) = (Some(slot), vec![0; 4_096]);
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    // Each event has one such line; none is cut, because each is written at once.
                    let events = buffer[..length].windows(7).filter(|word| word == b"event: ").count();
                    told.fetch_add(u64::from(events > 0), Relaxed);
                    slot = slot.filter(|_| events == 0);
                }
                ended.fetch_add(1, Relaxed);
            });
        }
        self.until_told(have + count).await
    }

    async fn until_told(&self, count: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        while self.told.load(Relaxed) < count {
            if Instant::now() > until {
                bail!("{} of {count} events were heard", self.told.load(Relaxed));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// An api, a tracker, and tasks to watch.
struct BenchFleet {
    address: String,
    api: Process,
    tracker: Process,
    publisher: Publisher,
    store: crate::store::redis::Redis,
    ground: BenchTopics,
}

impl BenchFleet {
    async fn open(site: &Services, bench: &Watch) -> anyhow::Result<Self> {
        let at = site.linger(1);
        let ground = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
        let prefix = ground.names.prefix.clone();
        let store = site.redis(&prefix)?;
        let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let events_partitions = EVENTS_PARTITIONS;
        let tracker = ChildRole::Tracker { site: site.clone(), prefix: prefix.clone(), events_partitions };
        let tracker = Process::start("tracker", &tracker)?;
        let api = ChildRole::Api { site: site.clone(), prefix, events_partitions, port: free.port() };
        let api = Process::start("api", &api)?;
        let broker = ground.broker.clone();
        let link = blocking(move || Ok(SharedProducer::open(broker, None)?)).await?;
        let publisher = Publisher::new(link, ground.names.clone(), EVENTS_PARTITIONS, "kafleet/bench");
        let mut stage = Self { address: free.to_string(), api, tracker, publisher, store, ground };
        let tasks = bench.watchers.div_ceil(EACH);
        load::publish(&stage.publisher, "watch", 0..tasks).await?;
        stage.until_ready(tasks).await?;
        Ok(stage)
    }

    async fn until_ready(&mut self, tasks: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        loop {
            let shown: u64 = self.store.counts(&super::fleet::partitions()).await?.iter().map(|count| count.count).sum();
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

    async fn rest(&self) -> Cost {
        tokio::time::sleep(REST).await;
        self.api.cost()
    }

    /// How much of a core the api takes.
    async fn look(&self, span: Duration) -> f64 {
        let (from, began) = (self.api.cost(), Instant::now());
        tokio::time::sleep(span).await;
        self.api.cost().cpu.saturating_sub(from.cpu).as_secs_f64() / began.elapsed().as_secs_f64()
    }

    /// Changes of the first task that so many hear of: the api's CPU for each beyond what it takes anyway, in µs, and how
    /// long it takes until all have heard, in ms.
    async fn changes(&self, bench: &Watch, crowd: &Crowd, hear: u64) -> anyhow::Result<(f64, f64)> {
        let idle = self.look(REST).await;
        let (from, began, mut waited) = (self.api.cost(), Instant::now(), Duration::ZERO);
        for n in 0..bench.changes {
            let have = crowd.told.load(Relaxed);
            let mut event = Event::new(Kind::Started, TaskId::parse(&format!("watch-{:012}", 0))?, 1, now_ms());
            event.attempt = n as u32 + 1;
            let at = Instant::now();
            self.publisher.publish_event(&event).await?;
            crowd.until_told(have + hear).await?;
            waited += at.elapsed();
            tokio::time::sleep(PAUSE).await;
        }
        let used = self.api.cost().cpu.saturating_sub(from.cpu).as_secs_f64() - idle * began.elapsed().as_secs_f64();
        let changes = bench.changes as f64;
        Ok((used.max(0.0) * 1e6 / changes, waited.as_secs_f64() * 1e3 / changes))
    }

    async fn close(self) -> anyhow::Result<()> {
        let (api, tracker, ground) = (self.api, self.tracker, self.ground);
        let stop = move || {
            let stopped = api.stop().and(tracker.stop());
            drop(ground);
            stopped
        };
        blocking(stop).await?;
        Ok(self.store.clear().await?)
    }
}
