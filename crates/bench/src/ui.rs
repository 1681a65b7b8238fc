//! `bench ui`: pages of the web UI beside the calls of the API: size, time and CPU of a page, cost of open tabs, and
//! the time after which a tab shows a change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_config::Scalar;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::raise_open_files;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, ETAG, IF_NONE_MATCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::api_fleet::ApiFleet;
use super::latency::percentile;
use super::load;
use super::process::ProcessUsage;
use super::watch::{MAX_CONNECTING, OTHER_FILES, kib_each};
use super::{BenchReport, ROUND_DEADLINE, Services, blocking};

/// Name of the tasks.
const NAME: &str = "ui";
/// Rounds of each figure of a page.
const ROUNDS: u64 = 3;
/// Loads of the first page.
const LOADS: usize = 20;
/// Time between two changes of the task of a tab: longer than the pace of its stream.
const CHANGE_INTERVAL: Duration = Duration::from_millis(700);
/// Maximum duration of a page: its patience of 2 s with Redis and Kafka, and its own work.
const LONGEST_PAGE_MS: f64 = 2_200.0;
/// Number of tasks that change on the busy fleet.
const BUSY_TASKS: u64 = 100;

#[derive(Clone, Debug, clap::Args)]
pub struct Ui {
    /// Number of tasks.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(200..=1_000_000))]
    pub tasks: u64,
    /// Requests per page and round.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    pub reads: u64,
    /// Open tabs, each with its stream.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=5_000))]
    pub tabs: u64,
    /// Tabs among them that show the list of tasks; the others show a task each.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=5_000))]
    pub busy: u64,
    /// Events per second on the busy fleet.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub rate: u64,
    /// Duration of the busy fleet, in seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// Number of changes that a tab shows.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub changes: u64,
}

pub async fn ui(bench: &Ui, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("tasks", bench.tasks.to_string()),
        ("reads", bench.reads.to_string()),
        ("tabs", format!("{}, {} of them of the list of tasks", bench.tabs, bench.busy.min(bench.tabs))),
        ("events", format!("{}/s for {} s", bench.rate, bench.seconds)),
    ];
    let mut report = BenchReport::new("ui", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let files = bench.tabs * 2 + OTHER_FILES;
    let room = raise_open_files(files);
    if room < files {
        bail!("this process may open {room} files: raise the limit (`ulimit -n`), or use fewer tabs");
    }
    let fleet = Arc::new(ApiFleet::open(services, NAME, bench.tasks).await?);
    let client = TabClient::new(&fleet.address)?;
    first_page(&client, &mut report).await?;
    pages(&client, &fleet, bench, &mut report).await?;
    let quiet = changes(&client, &fleet, bench.changes, 1).await?;
    report.budget("change shown, idle fleet: median", "ms", vec![percentile(quiet, 500)], 300.0);
    open_tabs(&client, &fleet, bench, &mut report).await?;
    outages(&fleet, services, &mut report).await?;
    report.checked = true;
    match Arc::into_inner(fleet) {
        Some(fleet) => fleet.close().await?,
        None => bail!("the benchmark still uses its fleet"),
    }
    Ok(report)
}

fn id(number: u64) -> anyhow::Result<TaskId> {
    Ok(TaskId::parse(&load::name_of(NAME, number))?)
}

/// Browser of many tabs.
#[derive(Clone)]
struct TabClient {
    http: reqwest::Client,
    address: String,
}

/// Response to the refresh of a page.
struct PageRead {
    status: u16,
    tag: String,
}

impl TabClient {
    fn new(address: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(ROUND_DEADLINE).build()?;
        Ok(Self { http, address: address.to_owned() })
    }

    /// Requests a path as a browser does; returns the compressed body.
    async fn get(&self, path: &str, media: &str) -> anyhow::Result<Vec<u8>> {
        let request = self.http.get(format!("http://{}{path}", self.address)).header(ACCEPT, media);
        let request = if media == JSON { request } else { request.header(ACCEPT_ENCODING, "gzip") };
        let response = request.send().await?;
        let status = response.status();
        let body = response.bytes().await?;
        if !status.is_success() {
            bail!("GET {path} failed with {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body.into())
    }

    /// Refreshes a page, like the script of an open tab.
    async fn read(&self, path: &str, tag: &str) -> anyhow::Result<PageRead> {
        let request = self.http.get(format!("http://{}{path}", self.address)).header(ACCEPT, HTML);
        let request = request.header(ACCEPT_ENCODING, "gzip").header("kafleet-part", "main").header(IF_NONE_MATCH, tag);
        let response = request.send().await?;
        let tag = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
        let status = response.status().as_u16();
        response.bytes().await?;
        Ok(PageRead { status, tag })
    }

    /// Opens the stream of a topic.
    async fn stream(&self, topic: &str) -> anyhow::Result<Stream> {
        let mut stream = TcpStream::connect(&self.address).await.context("a tab could not connect")?;
        let request = format!("GET /ui/live?on={topic} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await?;
        let mut stream = Stream(stream);
        let begun = stream.next().await?;
        if !begun.starts_with("HTTP/1.1 200") {
            bail!("the stream of `{topic}` was refused: {begun}");
        }
        Ok(stream)
    }
}

const HTML: &str = "text/html";
const JSON: &str = "application/json";

/// Live updates of a tab.
struct Stream(TcpStream);

impl Stream {
    /// Waits for the next text.
    async fn next(&mut self) -> anyhow::Result<String> {
        let mut buffer = vec![0; 4_096];
        match self.0.read(&mut buffer).await? {
            0 => bail!("a stream has ended"),
            length => Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
        }
    }

    /// Waits until the page is stale.
    async fn stale(&mut self) -> anyhow::Result<()> {
        while !self.next().await?.contains("event: ") {}
        Ok(())
    }
}

/// Size and duration of the first page with its style sheet and script.
async fn first_page(client: &TabClient, report: &mut BenchReport) -> anyhow::Result<()> {
    let page = client.http.get(format!("http://{}/", client.address)).header(ACCEPT, HTML).send().await?.text().await?;
    let assets: Vec<&str> = page.split('"').filter(|part| part.starts_with("/ui/app.")).collect();
    if assets.len() != 2 {
        bail!("the page names {} assets, not a style sheet and a script", assets.len());
    }
    let (mut bytes, mut took) = (0, Vec::new());
    for _ in 0..LOADS {
        let client = TabClient::new(&client.address)?;
        let started = Instant::now();
        bytes = client.get("/", HTML).await?.len();
        for asset in &assets {
            bytes += client.get(asset, "*/*").await?.len();
        }
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    report.budget("first page, compressed", "kB", vec![bytes as f64 / 1e3], 60.0);
    report.budget("first page, new connection: median", "ms", vec![percentile(took, 500)], 100.0);
    Ok(())
}

/// CPU of the API for each page, beside the call with the same data.
async fn pages(client: &TabClient, fleet: &ApiFleet, bench: &Ui, report: &mut BenchReport) -> anyhow::Result<()> {
    let task = id(0)?;
    let (of_task, json_of_task) = (format!("/tasks/{task}"), format!("/v1/tasks/{task}"));
    let list = ("list of 50", "/tasks?q=level%3Aany", "/v1/tasks?level=any&limit=50");
    for (name, page, call) in [list, ("task", &of_task, &json_of_task), ("overview", "/", "/v1/types")] {
        for (path, media, label) in [(page, HTML, "page"), (call, JSON, "JSON")] {
            let costs = read_costs(client, fleet, (path, media), bench.reads).await?;
            let label = format!("CPU of a {label}: {name}");
            match (name, media) {
                ("list of 50", HTML) => report.budget(&label, "ms", costs, 2.0),
                _ => report.add(&label, "ms", costs),
            }
        }
    }
    Ok(())
}

/// CPU of the API for a request, in ms, in each round.
async fn read_costs(
    client: &TabClient,
    fleet: &ApiFleet,
    (path, media): (&str, &str),
    reads: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let from = fleet.api.cost().cpu;
        for _ in 0..reads {
            client.get(path, media).await?;
        }
        let cpu = fleet.api.cost().cpu.saturating_sub(from);
        costs.push(cpu.as_secs_f64() * 1e3 / reads as f64);
    }
    Ok(costs)
}

/// Changes a task that a tab shows; returns the times in ms until the tab has the change.
async fn changes(client: &TabClient, fleet: &ApiFleet, changes: u64, task: u64) -> anyhow::Result<Vec<f64>> {
    let task = id(task)?;
    let mut stream = client.stream(&format!("tree:{task}")).await?;
    let mut tag = client.read(&format!("/tasks/{task}"), "").await?.tag;
    let mut took = Vec::new();
    for attempt in 1..=changes {
        tokio::time::sleep(CHANGE_INTERVAL).await;
        let started = Instant::now();
        fleet.start_attempt(&task, attempt as u32).await?;
        tag = changed_tag(client, &mut stream, &task, &tag).await?;
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Waits until a tab shows another content of its task; returns the tag of that content.
async fn changed_tag(client: &TabClient, stream: &mut Stream, task: &TaskId, tag: &str) -> anyhow::Result<String> {
    let (started, path) = (Instant::now(), format!("/tasks/{task}"));
    loop {
        if started.elapsed() > ROUND_DEADLINE {
            bail!("a tab does not show a change of `{task}`");
        }
        stream.stale().await?;
        let page = client.read(&path, tag).await?;
        if page.status == 200 && page.tag != tag {
            return Ok(page.tag);
        }
    }
}

/// Counts of the tabs.
#[derive(Default)]
struct TabCounts {
    /// Tabs that have their page.
    opened: AtomicU64,
    reads: AtomicU64,
    /// Reads that are refused because there are too many.
    refused: AtomicU64,
}

/// Limits of the requests of tabs.
#[derive(Clone)]
struct Gates {
    /// Tabs that connect or read their first page at once.
    slots: Arc<Semaphore>,
    /// Closed when all streams are open.
    pages: Arc<Semaphore>,
}

/// Keeps a page open: opens its stream, reads the page, and refreshes it whenever it is stale.
async fn tab(
    client: TabClient,
    (topic, path): (String, String),
    counts: Arc<TabCounts>,
    gates: Gates,
    slot: OwnedSemaphorePermit,
) -> anyhow::Result<()> {
    let mut stream = client.stream(&topic).await?;
    drop(slot);
    // An error means that the gate is open.
    let _ = gates.pages.acquire().await;
    let slot = gates.slots.acquire().await?;
    let mut tag = client.read(&path, "").await?.tag;
    counts.opened.fetch_add(1, Relaxed);
    drop(slot);
    loop {
        stream.stale().await?;
        let page = client.read(&path, &tag).await?;
        counts.reads.fetch_add(1, Relaxed);
        match page.status {
            200 | 304 => tag = page.tag,
            503 => drop(counts.refused.fetch_add(1, Relaxed)),
            status => bail!("the refresh of {path} failed with {status}"),
        }
    }
}

/// Cost of open tabs while the fleet is idle and while it is busy.
async fn open_tabs(
    client: &TabClient,
    fleet: &Arc<ApiFleet>,
    bench: &Ui,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let empty = fleet.settled_usage().await;
    let counts = Arc::new(TabCounts::default());
    let gates = Gates { slots: Arc::new(Semaphore::new(MAX_CONNECTING)), pages: Arc::new(Semaphore::new(0)) };
    let mut tabs = JoinSet::new();
    for n in 0..bench.tabs {
        let task = id(BUSY_TASKS + n % (bench.tasks - BUSY_TASKS))?;
        let page = if n < bench.busy {
            ("fleet".to_owned(), format!("/tasks?q=level%3Aany&tab={}", n % 8))
        } else {
            (format!("tree:{task}"), format!("/tasks/{task}"))
        };
        let slot = gates.slots.clone().acquire_owned().await?;
        tabs.spawn(tab(client.clone(), page, counts.clone(), gates.clone(), slot));
    }
    drop(gates.slots.acquire_many(MAX_CONNECTING as u32).await?);
    let each = |cost: ProcessUsage| vec![kib_each(cost.resident_bytes, empty.resident_bytes, bench.tabs)];
    report.budget("memory of a stream", "KiB", each(fleet.settled_usage().await), 40.0);
    gates.pages.close();
    let opened = async {
        while counts.opened.load(Relaxed) < bench.tabs {
            if let Some(ended) = tabs.try_join_next() {
                ended?.context("a tab was closed")?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let in_time = tokio::time::timeout(ROUND_DEADLINE, opened).await;
    in_time.with_context(|| format!("not all tabs have their page after {} s", ROUND_DEADLINE.as_secs()))??;
    report.add("memory of a tab, with its page", "KiB", each(fleet.settled_usage().await));
    let span = Duration::from_secs(bench.seconds);
    report.add("API CPU with open tabs, idle fleet", "% of a core", vec![fleet.cpu_share(span).await * 100.0]);
    let load = tokio::spawn(keep_busy(fleet.clone(), bench.rate));
    let before = counts.reads.load(Relaxed);
    let share = fleet.cpu_share(span).await;
    let reads = counts.reads.load(Relaxed) - before;
    let shown = changes(client, fleet, bench.changes, BUSY_TASKS - 1).await;
    load.abort();
    let stopped = load.await;
    if let Ok(Err(error)) = stopped {
        return Err(error);
    }
    let shown = shown?;
    report.budget("API CPU with open tabs, busy fleet", "% of a core", vec![share * 100.0], 50.0);
    report.add("refreshes of the tabs", "1/s", vec![reads as f64 / span.as_secs_f64()]);
    report.add("refreshes refused", "in all", vec![counts.refused.load(Relaxed) as f64]);
    report.budget("change shown, busy fleet: median", "ms", vec![percentile(shown.clone(), 500)], 300.0);
    report.add("change shown, busy fleet: longest", "ms", vec![percentile(shown, 1_000)]);
    match tabs.try_join_next() {
        Some(ended) => ended?.context("a tab was closed"),
        None => Ok(()),
    }
}

/// Longest page of an API whose Redis, or whose Kafka, accepts connections and does not answer.
async fn outages(fleet: &ApiFleet, services: &Services, report: &mut BenchReport) -> anyhow::Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?.to_string();
    let listening = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            open.push(stream);
        }
    });
    let (mut no_redis, mut no_kafka) = (services.clone(), services.clone());
    no_redis.redis.url = format!("redis://{address}");
    no_kafka.kafka.insert("bootstrap.servers".to_owned(), Scalar::Text(address));
    for (name, services) in [("Redis", no_redis), ("Kafka", no_kafka)] {
        let (api, address) = fleet.another_api(&services).await?;
        let client = TabClient::new(&address)?;
        // An API that starts waits for the control topic before it answers, which is no wait of a page.
        client.get("/healthz", JSON).await?;
        let longest = longest_page(&client).await?;
        report.budget(&format!("longest page without an answer of {name}"), "ms", vec![longest], LONGEST_PAGE_MS);
        blocking(move || api.stop()).await?;
    }
    listening.abort();
    Ok(())
}

/// Longest duration of a page in ms, each requested once.
async fn longest_page(client: &TabClient) -> anyhow::Result<f64> {
    let of_task = ["", "/tree", "/timeline", "/log", "/retry"].map(|page| Ok(format!("/tasks/{}{page}", id(0)?)));
    let of_task: Vec<String> = of_task.into_iter().collect::<anyhow::Result<_>>()?;
    let others = ["/", "/tasks", "/failures", "/types", "/workers", "/schedules", "/dead-letters", "/audit", "/system"];
    let mut longest = 0.0_f64;
    for path in others.iter().copied().chain(of_task.iter().map(String::as_str)) {
        let started = Instant::now();
        let request = client.http.get(format!("http://{}{path}", client.address)).header(ACCEPT, HTML);
        let response = request.send().await?;
        let (status, text) = (response.status().as_u16(), response.text().await?);
        if !matches!(status, 200 | 404 | 503) || !text.contains("</main>") {
            bail!("{path} was answered with {status}: {text}");
        }
        longest = longest.max(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(longest)
}

/// Starts attempts of tasks that no tab shows alone, at a steady rate, until it is aborted.
async fn keep_busy(fleet: Arc<ApiFleet>, rate: u64) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    for n in 0_u64.. {
        ticks.tick().await;
        // The last one is that of the tab whose changes are measured.
        fleet.start_attempt(&id(2 + n % (BUSY_TASKS - 3))?, u32::try_from(n / (BUSY_TASKS - 3))? + 1).await?;
    }
    Ok(())
}
