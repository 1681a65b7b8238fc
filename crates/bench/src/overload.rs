//! `bench overload`: the web service behind a type becomes unavailable and returns. Counts the attempts and the tasks that
//! this costs, and measures the time until throughput has recovered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_config::{Adaptive, TypePolicy};
use kafleet_handlers::builtin::http::{Call, Http, client};
use kafleet_handlers::{Registry, TypeRegistration};
use kafleet_model::event::Kind;
use kafleet_model::units::duration::Millis;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::child_role::ChildRole;
use super::load::{self, Filler};
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, NOOP, Services, blocking};

/// Time with the service before the outage, and after it.
const TIME_BEFORE: Duration = Duration::from_secs(5);
const TIME_AFTER: Duration = Duration::from_secs(15);
/// Time for the start of the fleet, and for the end of all tasks after the return.
const START_DEADLINE: Duration = Duration::from_secs(60);
const END_DEADLINE: Duration = Duration::from_secs(900);
/// Timeout of an attempt.
pub(super) const TIMEOUT: Millis = Millis::secs(2);
/// Longest outage for which there are budgets, and the budgets.
const BUDGETED_SECONDS: u64 = 60;
const MAX_FAILED: f64 = 60.0;
const MAX_SECONDS_BACK: f64 = 10.0;

#[derive(Clone, Debug, clap::Args)]
pub struct Overload {
    /// Instead: the service takes 40 calls at once and refuses the rest, and the workers learn that
    #[arg(long, conflicts_with_all = ["away", "absence", "rate"])]
    pub adaptive: bool,
    /// Time for which the service is away, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub away: u64,
    /// Behaviour of the service while it is away.
    #[arg(long, value_enum, default_value_t = Absence::Refused)]
    pub absence: Absence,
    /// Tasks per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// Worker processes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub workers: u32,
    /// Concurrent attempts in each worker.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub slots: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
}

/// Behaviour of a service that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Absence {
    /// Refuses connections.
    Refused,
    /// Answers 503.
    Overloaded,
    /// Accepts connections and does not answer.
    Silent,
}

pub async fn overload(bench: &Overload, services: &Services) -> anyhow::Result<BenchReport> {
    if bench.adaptive {
        return super::overload_adaptive::run(bench, services).await;
    }
    let settings = [
        ("away", format!("{} s", bench.away)),
        ("absence", format!("{:?}", bench.absence).to_lowercase()),
        ("rate", format!("{} tasks/s", bench.rate)),
        ("workers", bench.workers.to_string()),
        ("slots", bench.slots.to_string()),
        ("partitions", bench.partitions.to_string()),
    ];
    let mut report = BenchReport::new("overload", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let services = services.linger(1);
    let (at, partitions) = (services.clone(), bench.partitions);
    let topics = Arc::new(blocking(move || BenchTopics::prepare(&at, partitions, EVENTS_PARTITIONS)).await?);
    let store = services.redis(&topics.topology.names.prefix)?;
    let outage = run(bench, &services, &topics).await?;
    let ended = topics.clone();
    let cost = blocking(move || {
        load::check_events(&ended, EVENTS_PARTITIONS, outage.tasks)?;
        cost(&ended)
    });
    let cost = cost.await?;
    store.clear().await?;
    let mut figure = |name: &str, unit, value: f64, budget: f64| {
        if bench.away <= BUDGETED_SECONDS {
            report.budget(name, unit, vec![value], budget);
        } else {
            report.add(name, unit, vec![value]);
        }
    };
    figure("most failed attempts of a worker", "attempts", cost.failed as f64, MAX_FAILED);
    figure("return to first success", "s", outage.first_success.as_secs_f64(), MAX_SECONDS_BACK);
    report.add("return to full rate", "s", vec![outage.full_rate.as_secs_f64()]);
    report.add("return to last success", "s", vec![outage.last_success.as_secs_f64()]);
    report.budget("dead letters", "tasks", vec![cost.dead as f64], 0.0);
    report.checked = true;
    Ok(report)
}

/// Times from the return of the service, and the number of tasks.
struct Outage {
    tasks: u64,
    first_success: Duration,
    /// First second in which as many attempts succeeded as tasks arrive.
    full_rate: Duration,
    last_success: Duration,
}

async fn run(bench: &Overload, services: &Services, topics: &Arc<BenchTopics>) -> anyhow::Result<Outage> {
    let service = WebService::start(bench.absence).await?;
    let mut processes = start_fleet(bench, services, &topics.topology.names.prefix, service.address)?;
    let load = Load::start(topics.clone(), bench.rate);
    service.wait_for(1, START_DEADLINE, &mut processes).await?;
    tokio::time::sleep(TIME_BEFORE).await;
    eprintln!("the service is away for {} s", bench.away);
    service.leave().await;
    tokio::time::sleep(Duration::from_secs(bench.away)).await;
    service.come_back().await?;
    let back = Instant::now();
    eprintln!("the service is back");
    tokio::time::sleep(TIME_AFTER).await;
    let tasks = load.stop().await?;
    service.wait_for(tasks, END_DEADLINE, &mut processes).await?;
    let committed = topics.clone();
    blocking(move || wait_until_committed(&committed)).await?;
    let served = service.served.lock().clone();
    blocking(move || processes.into_iter().try_for_each(Process::stop)).await?;
    let after: Vec<Duration> = served.iter().filter_map(|at| at.checked_duration_since(back)).collect();
    let full = after.windows(bench.rate as usize).find(|run| match run {
        [first, .., last] => *last - *first <= Duration::from_secs(1),
        _ => true,
    });
    Ok(Outage {
        tasks,
        first_success: *after.first().context("nothing has succeeded after the return")?,
        full_rate: full.and_then(|run| run.first()).copied().context("the work has not reached its rate again")?,
        last_success: after.last().copied().unwrap_or_default(),
    })
}

fn start_fleet(
    bench: &Overload,
    services: &Services,
    prefix: &str,
    address: SocketAddr,
) -> anyhow::Result<Vec<Process>> {
    let (services, prefix, events_partitions) = (services.clone(), prefix.to_owned(), EVENTS_PARTITIONS);
    let url = format!("http://{address}/");
    let (slots, timeout_ms) = (bench.slots, TIMEOUT.0);
    let tracker = ChildRole::Tracker { services: services.clone(), prefix: prefix.clone(), events_partitions };
    let worker = ChildRole::Caller { services, prefix, events_partitions, url, slots, timeout_ms, adaptive: false };
    let workers = (0..bench.workers).map(|_| Process::start("worker", &worker));
    std::iter::once(Process::start("tracker", &tracker)).chain(workers).collect()
}

/// Type of the workers: calls the service.
pub(super) fn caller(url: &str, slots: u32, timeout: Millis, adaptive: bool) -> anyhow::Result<Registry> {
    let client = client().map_err(anyhow::Error::msg)?;
    let method = reqwest::Method::POST;
    let headers = reqwest::header::HeaderMap::new();
    let call = Call { url: url.parse()?, method, headers, max_output: 1_024, resend_on_close: true };
    let mut registered = TypeRegistration::new(Http::new(client, call));
    registered.policy.trip_on = TypePolicy::outage_kinds();
    registered.policy.adaptive = adaptive.then(Adaptive::default);
    (registered.policy.concurrency, registered.policy.timeout) = (Some(slots), timeout);
    let mut registry = Registry::default();
    registry.add(NOOP, registered);
    Ok(registry)
}

fn wait_until_committed(topics: &BenchTopics) -> anyhow::Result<()> {
    let until = Instant::now() + START_DEADLINE;
    while !topics.is_committed(NOOP)? {
        if Instant::now() > until {
            bail!("the workers have not committed all tasks within {} s", START_DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

struct OutageCost {
    /// Failed attempts of the worker that had most.
    failed: u64,
    dead: u64,
}

fn cost(topics: &BenchTopics) -> anyhow::Result<OutageCost> {
    let mut failed = BTreeMap::<String, u64>::new();
    load::read_events(topics, EVENTS_PARTITIONS, |event| {
        if let Some(event) = event.filter(|event| [Kind::Retrying, Kind::Failed].contains(&event.kind())) {
            *failed.entry(event.worker.as_deref().unwrap_or_default().to_owned()).or_default() += 1;
        }
    })?;
    let dead = topics.records(&topics.topology.names.dead(NOOP), 1)?;
    Ok(OutageCost { failed: failed.into_values().max().unwrap_or_default(), dead })
}

/// Tasks at a steady rate.
struct Load {
    stop: Arc<AtomicBool>,
    sending: JoinHandle<anyhow::Result<u64>>,
}

impl Load {
    fn start(topics: Arc<BenchTopics>, rate: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let send = move || {
            let filler = Filler::new(&topics)?;
            let (started, params) = (Instant::now(), load::params());
            let mut tasks = 0;
            while !stopped.load(Ordering::Relaxed) {
                let due = started + Duration::from_secs_f64(tasks as f64 / f64::from(rate));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                filler.tasks(&topics.topology.names, NOOP, tasks..tasks + 1, &params)?;
                tasks += 1;
            }
            filler.end()?;
            Ok(tasks)
        };
        Self { stop, sending: tokio::task::spawn_blocking(send) }
    }

    /// Stops the load and returns its number of tasks.
    async fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.sending.await?
    }
}

/// Web service that can be away.
struct WebService {
    absence: Absence,
    address: SocketAddr,
    /// Times of the requests that were answered with 200.
    served: Arc<Mutex<Vec<Instant>>>,
    requests: Arc<AtomicU64>,
    is_away: Arc<AtomicBool>,
    listening: Mutex<Option<ListenerTask>>,
}

/// Accepts connections until the token is cancelled, which also closes them.
struct ListenerTask {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl WebService {
    async fn start(absence: Absence) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = Self {
            absence,
            address: listener.local_addr()?,
            served: Arc::default(),
            requests: Arc::default(),
            is_away: Arc::default(),
            listening: Mutex::default(),
        };
        service.listen(listener);
        Ok(service)
    }

    fn listen(&self, listener: TcpListener) {
        let stop = CancellationToken::new();
        let connection = Connection {
            absence: self.absence,
            is_away: self.is_away.clone(),
            served: self.served.clone(),
            requests: self.requests.clone(),
        };
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let (connection, stopped) = (connection.clone(), stopped.clone());
                tokio::spawn(async move { stopped.run_until_cancelled(connection.serve(stream)).await });
            }
        });
        *self.listening.lock() = Some(ListenerTask { stop, task });
    }

    async fn leave(&self) {
        self.is_away.store(true, Ordering::SeqCst);
        if self.absence == Absence::Refused {
            self.close().await;
        }
    }

    async fn come_back(&self) -> anyhow::Result<()> {
        self.is_away.store(false, Ordering::SeqCst);
        // Calls that hang belong to the outage: they do not end with it.
        if self.absence == Absence::Refused {
            self.listen(TcpListener::bind(self.address).await.context("the port of the service is in use")?);
        }
        Ok(())
    }

    async fn close(&self) {
        let listening = self.listening.lock().take();
        if let Some(ListenerTask { stop, task }) = listening {
            stop.cancel();
            // Its end closes the listener.
            let _ = task.await;
        }
    }

    /// Waits until this number of requests has been answered with 200.
    async fn wait_for(&self, count: u64, deadline: Duration, processes: &mut [Process]) -> anyhow::Result<()> {
        let until = Instant::now() + deadline;
        loop {
            let served = self.served.lock().len() as u64;
            if served >= count {
                return Ok(());
            }
            processes.iter_mut().try_for_each(Process::check)?;
            if Instant::now() > until {
                let requests = self.requests.load(Ordering::Relaxed);
                bail!("{served} of {count} tasks and {requests} requests after {} s", deadline.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[derive(Clone)]
struct Connection {
    absence: Absence,
    is_away: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Instant>>>,
    requests: Arc<AtomicU64>,
}

impl Connection {
    async fn serve(self, mut stream: TcpStream) {
        // An error means that the worker has closed the connection.
        while let Ok(true) = self.answer(&mut stream).await {}
    }

    /// Answers the next request. Returns false at the end of the connection.
    async fn answer(&self, stream: &mut TcpStream) -> std::io::Result<bool> {
        if !read_request(stream).await? {
            return Ok(false);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let status = match self.absence {
            _ if !self.is_away.load(Ordering::SeqCst) => "200 OK",
            Absence::Silent => return std::future::pending().await,
            Absence::Overloaded | Absence::Refused => "503 Service Unavailable",
        };
        if status.starts_with("200") {
            self.served.lock().push(Instant::now());
        }
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nnull").as_bytes()).await?;
        Ok(true)
    }
}

/// Reads a request with its body. Returns false at the end of the connection.
pub(super) async fn read_request(stream: &mut TcpStream) -> std::io::Result<bool> {
    Ok(read_head(stream).await?.is_some())
}

/// Reads a whole request and returns its first lines. Returns `None` at the end of the connection.
pub(super) async fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let (mut request, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            let mut lengths = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length = lengths.next().and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Ok(Some(head.to_owned()));
            }
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
}
