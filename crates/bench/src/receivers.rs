//! `bench receivers`: callbacks to several receivers at a steady rate, of which one is dead. Measures the time until the others
//! have theirs, beside the same callbacks without a dead receiver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::ProducerRecord;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::child_role::ChildRole;
use super::latency::percentile;
use super::load::Filler;
use super::overload::{Absence, read_head};
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, Figure, NOOP, Services, blocking};

/// Interval of bursts of callbacks.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(10);
/// Time until the last callback has arrived.
const END_DEADLINE: Duration = Duration::from_secs(120);
const SUCCESS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[derive(Clone, Debug, clap::Args)]
pub struct ReceiversBench {
    /// Number of receivers, of which one is dead in the second half of each round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub receivers: u32,
    /// Behaviour of the dead receiver.
    #[arg(long, value_enum, default_value_t = Absence::Silent)]
    pub absence: Absence,
    /// Callbacks per second, to all receivers in turn.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    pub rate: u32,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Concurrent callbacks of the worker.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub slots: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
}

/// Measures callbacks with and without a dead receiver.
///
/// # Errors
/// Kafka cannot be used, the worker ends, or a callback does not arrive exactly once.
pub async fn receivers(bench: &ReceiversBench, services: &Services) -> anyhow::Result<BenchReport> {
    let absence = format!("{:?}", bench.absence).to_lowercase();
    let settings = [
        ("receivers", bench.receivers.to_string()),
        ("dead one", absence),
        ("callbacks", format!("{}/s for {} s", bench.rate, bench.seconds)),
        ("slots", bench.slots.to_string()),
    ];
    let mut report = BenchReport::new("receivers", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        without.push(measure(bench, &services.linger(1), false).await?);
        with.push(measure(bench, &services.linger(1), true).await?);
    }
    for (label, times) in [("one is dead", &with), ("all are alive", &without)] {
        for (name, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
            let values = times.iter().map(|times| percentile(times.clone(), permille));
            report.add(&format!("delivered to the others, {label}: {name}"), "ms", values.collect());
        }
    }
    let p99 = |times: &[f64]| percentile(times.to_vec(), 990);
    let ratios = with.iter().zip(&without).map(|(with, without)| p99(with) / p99(without)).collect();
    report.ratio = Some(Figure::of("ratio", "", ratios).median);
    report.checked = true;
    Ok(report)
}

/// Delivers callbacks, and returns the times from publication to arrival at the receivers besides the first one, in ms.
async fn measure(bench: &ReceiversBench, services: &Services, is_one_dead: bool) -> anyhow::Result<Vec<f64>> {
    let at = services.clone();
    let topics = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
    let role = ChildRole::Callbacks {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: EVENTS_PARTITIONS,
        slots: bench.slots,
    };
    let mut worker = Process::start("worker", &role)?;
    // Numbers below that of the receivers are those of a first callback to each, which shows that the worker works.
    let first = u64::from(bench.receivers);
    let count = first + u64::from(bench.rate) * u64::from(bench.seconds);
    let mut receivers = Receivers::open(bench, is_one_dead, count).await?;
    let (topics, _) = publish(topics, &receivers.urls, 0..first, first).await?;
    receivers.wait(0..first, &mut worker).await?;
    let (topics, sent) = publish(topics, &receivers.urls, first..count, u64::from(bench.rate)).await?;
    receivers.wait(first..count, &mut worker).await?;
    let times = receivers.times(first, &sent);
    drop(receivers);
    blocking(move || {
        let stopped = worker.stop();
        drop(topics);
        stopped
    })
    .await?;
    times
}

/// Publishes callbacks at an even rate, and returns the time of each.
async fn publish(
    topics: BenchTopics,
    urls: &[String],
    numbers: std::ops::Range<u64>,
    rate: u64,
) -> anyhow::Result<(BenchTopics, Vec<Instant>)> {
    let urls = urls.to_vec();
    blocking(move || {
        let filler = Filler::new(&topics)?;
        let topic = topics.topology.names.tasks(NOOP);
        let (started, mut sent) = (Instant::now(), Vec::new());
        while (sent.len() as u64) < numbers.end - numbers.start {
            let due = (started.elapsed().as_millis() as u64 * rate / 1_000).min(numbers.end - numbers.start);
            for number in numbers.start + sent.len() as u64..numbers.start + due {
                let url = &urls[number as usize % urls.len()];
                let params = json!({ "url": format!("{url}/{number}"), "body": {} }).to_string();
                let id = format!("callback-{number:012}");
                let headers: [(&str, &[u8]); 1] = [("ce_id", id.as_bytes())];
                let (key, value) = (Some(id.as_bytes()), Some(params.as_bytes()));
                sent.push(Instant::now());
                filler.send(&ProducerRecord { topic: &topic, partition: None, key, value, headers: &headers })?;
            }
            std::thread::sleep(PUBLISH_INTERVAL);
        }
        filler.end()?;
        Ok((topics, sent))
    })
    .await
}

/// Times of arrival, by the number of the callback.
type Arrivals = Arc<Mutex<Vec<Vec<Instant>>>>;

/// Receivers on ports of their own.
struct Receivers {
    urls: Vec<String>,
    arrivals: Arrivals,
    /// The first receiver is dead.
    is_one_dead: bool,
    _serving: JoinSet<()>,
}

impl Receivers {
    async fn open(bench: &ReceiversBench, is_one_dead: bool, count: u64) -> anyhow::Result<Self> {
        let arrivals: Arrivals = Arc::new(Mutex::new(vec![Vec::new(); usize::try_from(count)?]));
        let (mut urls, mut serving) = (Vec::new(), JoinSet::new());
        for number in 0..bench.receivers {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            urls.push(format!("http://{}", listener.local_addr()?));
            let absence = (is_one_dead && number == 0).then_some(bench.absence);
            if absence != Some(Absence::Refused) {
                serving.spawn(listen(listener, absence, arrivals.clone()));
            }
        }
        Ok(Self { urls, arrivals, is_one_dead, _serving: serving })
    }

    /// Returns whether a callback is for a receiver that is alive.
    fn is_counted(&self, number: u64) -> bool {
        !self.is_one_dead || !number.is_multiple_of(self.urls.len() as u64)
    }

    /// Waits until the callbacks of all receivers that are alive have arrived.
    async fn wait(&mut self, numbers: std::ops::Range<u64>, worker: &mut Process) -> anyhow::Result<()> {
        let until = Instant::now() + END_DEADLINE;
        loop {
            let missing = {
                let arrivals = self.arrivals.lock();
                let is_missing = |number: &u64| self.is_counted(*number) && arrivals[*number as usize].is_empty();
                numbers.clone().filter(is_missing).count()
            };
            if missing == 0 {
                return Ok(());
            }
            worker.check()?;
            if Instant::now() > until {
                bail!("{missing} callbacks have not arrived after {} s", END_DEADLINE.as_secs());
            }
            tokio::time::sleep(PUBLISH_INTERVAL).await;
        }
    }

    /// Times from publication to arrival at the receivers besides the first one, in ms.
    fn times(&self, first: u64, sent: &[Instant]) -> anyhow::Result<Vec<f64>> {
        let arrivals = self.arrivals.lock();
        let mut times = Vec::new();
        for (number, sent) in (first..).zip(sent).filter(|(number, _)| !number.is_multiple_of(self.urls.len() as u64)) {
            let [arrived] = arrivals[number as usize][..] else {
                bail!("callback {number} has arrived {} times", arrivals[number as usize].len());
            };
            times.push(arrived.saturating_duration_since(*sent).as_secs_f64() * 1e3);
        }
        Ok(times)
    }
}

async fn listen(listener: TcpListener, absence: Option<Absence>, arrivals: Arrivals) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let arrivals = arrivals.clone();
        connections.spawn(async move {
            // An error means that the worker has closed the connection.
            let _ = serve(stream, absence, &arrivals).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, absence: Option<Absence>, arrivals: &Arrivals) -> anyhow::Result<()> {
    while let Some(head) = read_head(&mut stream).await? {
        match absence {
            None => {
                let path = head.split(' ').nth(1).context("a request without a path")?;
                let number: usize = path.trim_start_matches('/').parse()?;
                arrivals.lock().get_mut(number).context("an unknown callback")?.push(Instant::now());
                stream.write_all(SUCCESS).await?;
            }
            Some(Absence::Silent) => return std::future::pending().await,
            Some(Absence::Overloaded | Absence::Refused) => {
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await?;
            }
        }
    }
    Ok(())
}
