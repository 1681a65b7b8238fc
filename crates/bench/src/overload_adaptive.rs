//! `bench overload --adaptive`: a web service takes a fixed number of calls at once and refuses the rest with 429. Compares
//! workers that learn this number with workers whose slots are exactly that many.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kafleet_model::event::Kind;
use kafleet_runtime::now_ms;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::child_role::ChildRole;
use super::overload::{Overload, TIMEOUT, read_request};
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, Services, blocking, load};

/// Calls that the service takes at once, and the time of one.
const SERVERS: u64 = 40;
const CALL: Duration = Duration::from_millis(50);
/// Time for learning, and time that is measured.
const LEARNING: Duration = Duration::from_secs(60);
const MEASURED: Duration = Duration::from_secs(60);
/// Budgets: unused part of the best fixed limit, refused calls, difference of the workers' progress; all in per cent.
const MAX_UNUSED: f64 = 7.0;
const MAX_REFUSED: f64 = 3.0;
const MAX_DIFFERENCE: f64 = 15.0;

/// Calls of the measured time.
#[derive(Default)]
struct Calls {
    is_measured: AtomicBool,
    busy: AtomicU64,
    served: AtomicU64,
    refused: AtomicU64,
}

struct Measurement {
    served: u64,
    refused: u64,
    /// Tasks that each worker has completed.
    completed: Vec<u64>,
}

pub(super) async fn run(bench: &Overload, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("servers", SERVERS.to_string()),
        ("call", format!("{} ms", CALL.as_millis())),
        ("workers", bench.workers.to_string()),
        ("slots", bench.slots.to_string()),
        ("partitions", bench.partitions.to_string()),
    ];
    let mut report = BenchReport::new("overload", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let services = services.linger(1);
    let fixed_slots = u32::try_from(SERVERS)?.div_ceil(bench.workers);
    let fixed = measure(bench, &services, fixed_slots, false).await?;
    let adaptive = measure(bench, &services, bench.slots, true).await?;
    let calls = (adaptive.served + adaptive.refused).max(1) as f64;
    let used = adaptive.served as f64 / fixed.served.max(1) as f64;
    let most = adaptive.completed.iter().max().copied().unwrap_or_default().max(1) as f64;
    let least = adaptive.completed.iter().min().copied().unwrap_or_default() as f64;
    report.add("fixed limit", "calls/s", vec![fixed.served as f64 / MEASURED.as_secs_f64()]);
    report.add("adaptive limit", "calls/s", vec![adaptive.served as f64 / MEASURED.as_secs_f64()]);
    // A budget is a maximum.
    report.budget("unused part of the fixed limit", "%", vec![(1.0 - used) * 100.0], MAX_UNUSED);
    report.budget("refused calls", "%", vec![adaptive.refused as f64 * 100.0 / calls], MAX_REFUSED);
    report.budget("difference of the workers' progress", "%", vec![(1.0 - least / most) * 100.0], MAX_DIFFERENCE);
    report.checked = true;
    Ok(report)
}

async fn measure(bench: &Overload, services: &Services, slots: u32, adaptive: bool) -> anyhow::Result<Measurement> {
    let (at, partitions) = (services.clone(), bench.partitions);
    let topics = Arc::new(blocking(move || BenchTopics::prepare(&at, partitions, EVENTS_PARTITIONS)).await?);
    let store = services.redis(&topics.topology.names.prefix)?;
    let calls = Arc::new(Calls::default());
    let stop = CancellationToken::new();
    let _stops_at_the_end = stop.clone().drop_guard();
    let address = serve(calls.clone(), stop).await?;
    // More than the service can serve, so that tasks always wait.
    let seconds = (LEARNING + MEASURED).as_secs() + 10;
    let tasks = SERVERS * 1_000 / CALL.as_millis() as u64 * seconds;
    let filled = topics.clone();
    blocking(move || load::fill(&filled, tasks)).await?;
    let mut processes = start_fleet(bench, services, &topics.topology.names.prefix, address, slots, adaptive)?;
    tokio::time::sleep(LEARNING).await;
    let from_ms = now_ms();
    calls.is_measured.store(true, Ordering::SeqCst);
    tokio::time::sleep(MEASURED).await;
    calls.is_measured.store(false, Ordering::SeqCst);
    let until_ms = now_ms();
    processes.iter_mut().try_for_each(Process::check)?;
    blocking(move || processes.into_iter().try_for_each(Process::stop)).await?;
    let ended = topics.clone();
    let completed = blocking(move || completed_by_worker(&ended, from_ms, until_ms)).await?;
    store.clear().await?;
    let (served, refused) = (calls.served.load(Ordering::SeqCst), calls.refused.load(Ordering::SeqCst));
    Ok(Measurement { served, refused, completed })
}

fn start_fleet(
    bench: &Overload,
    services: &Services,
    prefix: &str,
    address: SocketAddr,
    slots: u32,
    adaptive: bool,
) -> anyhow::Result<Vec<Process>> {
    let (services, prefix, events_partitions) = (services.clone(), prefix.to_owned(), EVENTS_PARTITIONS);
    let url = format!("http://{address}/");
    let tracker = ChildRole::Tracker { services: services.clone(), prefix: prefix.clone(), events_partitions };
    let worker = ChildRole::Caller { services, prefix, events_partitions, url, slots, timeout_ms: TIMEOUT.0, adaptive };
    let workers = (0..bench.workers).map(|_| Process::start("worker", &worker));
    std::iter::once(Process::start("tracker", &tracker)).chain(workers).collect()
}

fn completed_by_worker(topics: &BenchTopics, from_ms: i64, until_ms: i64) -> anyhow::Result<Vec<u64>> {
    let mut completed = BTreeMap::<String, u64>::new();
    load::read_events(topics, EVENTS_PARTITIONS, |event| {
        let Some(event) = event.filter(|event| event.kind() == Kind::Succeeded) else { return };
        let worker = event.worker.as_deref().unwrap_or_default();
        let count = completed.entry(worker.to_owned()).or_default();
        *count += u64::from((from_ms..until_ms).contains(&event.at_ms));
    })?;
    Ok(completed.into_values().collect())
}

/// Starts the service, which ends with the token.
async fn serve(calls: Arc<Calls>, stop: CancellationToken) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
            let (calls, stop) = (calls.clone(), stop.clone());
            // An error means that the worker has closed the connection.
            tokio::spawn(async move { stop.run_until_cancelled(answer_all(stream, calls)).await });
        }
    });
    Ok(address)
}

async fn answer_all(mut stream: TcpStream, calls: Arc<Calls>) -> std::io::Result<()> {
    while read_request(&mut stream).await? {
        let is_served = calls.busy.fetch_add(1, Ordering::SeqCst) < SERVERS;
        if is_served {
            tokio::time::sleep(CALL).await;
        }
        calls.busy.fetch_sub(1, Ordering::SeqCst);
        if calls.is_measured.load(Ordering::Relaxed) {
            let counter = if is_served { &calls.served } else { &calls.refused };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let status = if is_served { "200 OK" } else { "429 Too Many Requests" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nnull").as_bytes()).await?;
    }
    Ok(())
}
