//! `bench watch`: very many clients that watch one API. Measures the cost of an idle client, and of a change that
//! some of them receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_model::task::id::TaskId;
use kafleet_runtime::raise_open_files;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::api_fleet::{ApiFleet, SETTLE_TIME};
use super::{BenchReport, ROUND_DEADLINE, Services, mib};

/// Maximum number of clients that connect at once.
pub(super) const MAX_CONNECTING: usize = 64;
/// Open files of this process besides its connections.
pub(super) const OTHER_FILES: u64 = 256;
/// Pause between changes, so that each is delivered separately.
const CHANGE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// Clients that watch tasks, ten each.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub watchers: u64,
    /// Clients that watch the whole fleet.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=5_000))]
    pub fleet: u64,
    /// Number of changes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub changes: u64,
}

/// Watchers of one task.
const WATCHERS_PER_TASK: u64 = 10;

pub async fn watch(bench: &Watch, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("watchers of tasks", format!("{}, {WATCHERS_PER_TASK} each", bench.watchers)),
        ("watchers of the fleet", bench.fleet.to_string()),
        ("changes", bench.changes.to_string()),
    ];
    let mut report = BenchReport::new("watch", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let room = raise_open_files(bench.watchers + bench.fleet + OTHER_FILES);
    if room < bench.watchers + bench.fleet + OTHER_FILES {
        bail!("this process may open {room} files: raise the limit (`ulimit -n`), or use fewer watchers");
    }
    let tasks = bench.watchers.div_ceil(WATCHERS_PER_TASK);
    let fleet = ApiFleet::open(services, "watch", tasks).await?;
    let empty = fleet.api.cost();
    let mut watchers = Watchers::default();
    watchers
        .watch(&fleet.address, bench.watchers, |n| format!("/v1/tasks/watch-{:012}/watch", n / WATCHERS_PER_TASK))
        .await?;
    let tasks_only = fleet.settled_usage().await;
    let idle = fleet.cpu_share(Duration::from_secs(10)).await;
    report.add("API memory without watchers", "MiB", vec![mib(empty.resident_bytes)]);
    report.add(
        "memory of a watcher",
        "KiB",
        vec![kib_each(tasks_only.resident_bytes, empty.resident_bytes, bench.watchers)],
    );
    report.add("API CPU while nothing happens", "% of a core", vec![idle * 100.0]);
    let few = changes(&fleet, bench, &watchers, WATCHERS_PER_TASK).await?;
    report.add(&format!("CPU of a change with {WATCHERS_PER_TASK} receivers"), "µs", vec![few.0]);
    report.add("delivery of such a change", "ms", vec![few.1]);
    if bench.fleet > 0 {
        watchers.watch(&fleet.address, bench.fleet, |_| "/v1/watch".to_owned()).await?;
        fleet.settled_usage().await;
        let all = changes(&fleet, bench, &watchers, WATCHERS_PER_TASK + bench.fleet).await?;
        report.add(&format!("CPU of a change with {} receivers", WATCHERS_PER_TASK + bench.fleet), "µs", vec![all.0]);
        report.add("delivery of that change", "ms", vec![all.1]);
    }
    if watchers.ended.load(Relaxed) > 0 {
        bail!("{} streams have ended", watchers.ended.load(Relaxed));
    }
    report.checked = true;
    drop(watchers);
    fleet.close().await?;
    Ok(report)
}

pub(super) fn kib_each(with: u64, without: u64, count: u64) -> f64 {
    with.saturating_sub(without) as f64 / 1024.0 / count as f64
}

/// Clients that read event streams and count events.
#[derive(Default)]
struct Watchers {
    clients: JoinSet<()>,
    received: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Watchers {
    /// Connects `count` more clients and waits until each has received its first event.
    async fn watch(&mut self, address: &str, count: u64, path: impl Fn(u64) -> String) -> anyhow::Result<()> {
        let have = self.received.load(Relaxed);
        let slots = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTING));
        for n in 0..count {
            let slot = slots.clone().acquire_owned().await?;
            let mut stream = TcpStream::connect(address).await.context("a client could not connect")?;
            let request = format!("GET {} HTTP/1.1\r\nhost: {address}\r\n\r\n", path(n));
            stream.write_all(request.as_bytes()).await?;
            let (received, ended) = (self.received.clone(), self.ended.clone());
            self.clients.spawn(async move {
                count_events(stream, slot, &received).await;
                ended.fetch_add(1, Relaxed);
            });
        }
        self.wait_for_events(have + count).await
    }

    async fn wait_for_events(&self, count: u64) -> anyhow::Result<()> {
        let until = Instant::now() + ROUND_DEADLINE;
        while self.received.load(Relaxed) < count {
            if Instant::now() > until {
                bail!("{} of {count} events were received", self.received.load(Relaxed));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// Counts the events that a client receives; its slot is free once the first has arrived.
async fn count_events(mut stream: TcpStream, slot: OwnedSemaphorePermit, received: &AtomicU64) {
    let mut slot = Some(slot);
    let mut buffer = vec![0; 4_096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        // Each event has one such line, and is not split, because it is written at once.
        let events = buffer[..length].windows(7).filter(|word| word == b"event: ").count();
        received.fetch_add(u64::from(events > 0), Relaxed);
        slot = slot.filter(|_| events == 0);
    }
}

/// Publishes changes of the first task; returns the API's additional CPU per change in µs, and the time until all
/// receivers have the change in ms.
async fn changes(fleet: &ApiFleet, bench: &Watch, watchers: &Watchers, receivers: u64) -> anyhow::Result<(f64, f64)> {
    let idle = fleet.cpu_share(SETTLE_TIME).await;
    let from = fleet.api.cost();
    let started = Instant::now();
    let mut waited = Duration::ZERO;
    for n in 0..bench.changes {
        let have = watchers.received.load(Relaxed);
        let id = TaskId::parse(&format!("watch-{:012}", 0))?;
        let at = Instant::now();
        fleet.start_attempt(&id, n as u32 + 1).await?;
        watchers.wait_for_events(have + receivers).await?;
        waited += at.elapsed();
        tokio::time::sleep(CHANGE_INTERVAL).await;
    }
    let used = fleet.api.cost().cpu.saturating_sub(from.cpu).as_secs_f64() - idle * started.elapsed().as_secs_f64();
    let changes = bench.changes as f64;
    Ok((used.max(0.0) * 1e6 / changes, waited.as_secs_f64() * 1e3 / changes))
}
