//! `bench app`: one worker process drains a backlog of no-op tasks through the processes of an app. Baseline: the same app
//! driven without Kafka, at full speed and at a steady rate, its memory, and the time until a death is known.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt;
use kafleet_apps::capacity::SlotKind;
use kafleet_apps::loaded_files::LoadedFiles;
use kafleet_apps::pool::{AppHandler, AppPool, OpenedApp, all_last};
use kafleet_apps::process::AppProgram;
use kafleet_apps::protocol::{Limits, VERSION, Welcome};
use kafleet_apps::register::register;
use kafleet_config::{AppConfig, Config};
use kafleet_handlers::program_env::ProgramEnv;
use kafleet_handlers::resident_memory::{resident_bytes, tree_bytes};
use kafleet_handlers::testing::TestRun;
use kafleet_handlers::{Handler, Registry};
use kafleet_model::json::RawJson;
use kafleet_runtime::Health;
use kafleet_telemetry::Metrics;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::child_role::ChildRole;
use super::process::{Process, ROLE};
use super::round::{Round, add_rounds, measure};
use super::{BenchReport, BenchTopics, NOOP, Services, load, micros, own_cpu};

/// Attempts per second of the measurement of latency.
const LATENCY_RATE: u64 = 1_000;
/// Part of the tasks that is run unmeasured before.
const WARM_UP_PART: u64 = 10;
/// Deaths of processes in each round.
const DEATHS_PER_ROUND: usize = 5;
/// Time for an attempt to be sent to a process that does not answer.
const SENT_AFTER: Duration = Duration::from_millis(50);
/// Maximum time until all processes serve.
const START_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
pub struct AppBench {
    /// Tasks in each round.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub tasks: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
    /// Processes of the app.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub processes: u32,
    /// Concurrent attempts in one process.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub slots: u32,
    /// Duration of the measurement of latency, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// App to measure, which declares the type `noop` [default: a loop in this program].
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// App of a benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchApp {
    /// Empty: the loop in this program.
    command: Vec<String>,
    processes: u32,
    slots: u32,
}

/// Figures of an app that is driven without Kafka.
struct LoopRound {
    rate: f64,
    cpu: Duration,
    /// Durations of attempts at a steady rate, in ascending order.
    latencies: Vec<Duration>,
    /// Times from the kill of a process to the end of its attempt, in ascending order.
    deaths: Vec<Duration>,
    /// Memory per process of the app, here and in the process, in bytes.
    own_bytes: u64,
    app_bytes: u64,
}

pub fn app(bench: &AppBench, services: &Services) -> anyhow::Result<BenchReport> {
    let services = services.linger(bench.linger);
    let app = BenchApp { command: bench.command.clone(), processes: bench.processes, slots: bench.slots };
    let command = if app.command.is_empty() { "a loop in Rust".to_owned() } else { app.command.join(" ") };
    let settings = [
        ("tasks", bench.tasks.to_string()),
        ("partitions", bench.partitions.to_string()),
        ("params", "200 B".to_owned()),
        ("linger", format!("{} ms", bench.linger)),
        ("processes", bench.processes.to_string()),
        ("slots", bench.slots.to_string()),
        ("app", command),
    ];
    let mut report = BenchReport::new("app", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let (mut work, mut loops) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        loops.push(tokio::runtime::Handle::current().block_on(loop_round(bench, &app))?);
        work.push(worker_round(bench, &app, &services)?);
    }
    add_rounds(&mut report, "worker", bench.tasks, &work);
    report.add("loop rate", "attempts/s", loops.iter().map(|round| round.rate).collect());
    report.add("loop CPU", "µs/attempt", loops.iter().map(|round| micros(round.cpu, bench.tasks)).collect());
    for (name, percent) in [("median", 50), ("p99", 99)] {
        let at = |round: &LoopRound| micros(percentile(&round.latencies, percent), 1);
        report.add(&format!("latency at {LATENCY_RATE}/s: {name}"), "µs", loops.iter().map(at).collect());
    }
    for (name, percent) in [("median", 50), ("slowest", 100)] {
        let at = |round: &LoopRound| percentile(&round.deaths, percent).as_secs_f64() * 1e3;
        report.add(&format!("death known after: {name}"), "ms", loops.iter().map(at).collect());
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    report.add("memory per process: worker", "MiB", loops.iter().map(|round| mib(round.own_bytes)).collect());
    report.add("memory per process: app", "MiB", loops.iter().map(|round| mib(round.app_bytes)).collect());
    let ratios = work.iter().zip(&loops).map(|(work, alone)| work.rate / alone.rate).collect();
    report.add("worker to loop", "", ratios);
    report.ratio = report.figures.last().map(|figure| figure.median);
    report.checked = true;
    Ok(report)
}

/// Measures a worker from its first commit to its last.
fn worker_round(bench: &AppBench, app: &BenchApp, services: &Services) -> anyhow::Result<Round> {
    let topics = BenchTopics::prepare(services, bench.partitions, bench.partitions)?;
    load::fill(&topics, bench.tasks)?;
    let role = ChildRole::AppWorker {
        services: services.clone(),
        prefix: topics.topology.names.prefix.clone(),
        events_partitions: bench.partitions,
        app: app.clone(),
    };
    let (group, tasks) = (topics.topology.names.group(NOOP), topics.topology.names.tasks(NOOP));
    // Connects the commit reader before the measurement.
    topics.committed(&group, &tasks)?;
    let process = Process::start("worker", &role)?;
    let round = measure(process, &topics.kafka, bench.tasks, || {
        let committed = topics.committed(&group, &tasks)?;
        Ok((committed, committed >= bench.tasks))
    })?;
    load::check_events(&topics, bench.partitions, bench.tasks)?;
    Ok(round)
}

/// Drives the app from this process.
async fn loop_round(bench: &AppBench, app: &BenchApp) -> anyhow::Result<LoopRound> {
    let before = resident_bytes(std::process::id());
    let (pool, _) = app.open().await?;
    let metrics = Metrics::new()?;
    pool.serve(Health::default(), &metrics.apps);
    let measured = async {
        wait_for_processes(&pool, &metrics).await?;
        let own_bytes = resident_bytes(std::process::id()).saturating_sub(before) / u64::from(bench.processes);
        let handler = AppHandler::new(pool.clone(), SlotKind::General);
        let params = RawJson::parse(load::params().as_bytes())?;
        // As in a worker, attempts start on the runtime of the app.
        pool.runtime().spawn(drive(pool.clone(), params.clone(), bench.tasks / WARM_UP_PART)).await??;
        let (cpu, started) = (own_cpu(), Instant::now());
        pool.runtime().spawn(drive(pool.clone(), params.clone(), bench.tasks)).await??;
        let (rate, cpu) = (bench.tasks as f64 / started.elapsed().as_secs_f64(), own_cpu().saturating_sub(cpu));
        let attempts = bench.seconds * LATENCY_RATE;
        let latencies = pool.runtime().spawn(steadily(pool.clone(), params.clone(), attempts)).await??;
        let app_bytes = pool.pids().iter().map(|pid| tree_bytes(*pid)).sum::<u64>() / u64::from(bench.processes);
        let deaths = deaths(&handler, &params, &pool).await?;
        Ok(LoopRound { rate, cpu, latencies, deaths, own_bytes, app_bytes })
    };
    let measured = measured.await;
    pool.stop().await;
    measured
}

/// Runs attempts. At any time one of them waits for each slot.
async fn drive(pool: Arc<AppPool>, params: RawJson, attempts: u64) -> anyhow::Result<()> {
    let (handler, params) = (&AppHandler::new(pool.clone(), SlotKind::General), &params);
    let at_once = 2 * pool.app_capacity(SlotKind::General).total() as usize;
    let mut answers = futures::stream::iter(0..attempts).map(|_| attempt(handler, params)).buffer_unordered(at_once);
    while let Some(answer) = answers.next().await {
        answer?;
    }
    Ok(())
}

/// Runs attempts at a steady rate; returns their durations in ascending order.
async fn steadily(pool: Arc<AppPool>, params: RawJson, attempts: u64) -> anyhow::Result<Vec<Duration>> {
    let (handler, params) = (&AppHandler::new(pool, SlotKind::General), &params);
    // Late ticks follow at once, so that the rate is kept.
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / LATENCY_RATE as u32);
    let mut running = futures::stream::FuturesUnordered::new();
    let mut latencies = Vec::new();
    let mut started = 0;
    while started < attempts || !running.is_empty() {
        tokio::select! {
            biased;
            Some(latency) = running.next() => latencies.push(latency?),
            _ = ticks.tick(), if started < attempts => {
                started += 1;
                running.push(async {
                    let from = Instant::now();
                    attempt(handler, params).await.map(|()| from.elapsed())
                });
            }
        }
    }
    latencies.sort_unstable();
    Ok(latencies)
}

/// Kills processes that have an attempt and do not answer; returns the times until the attempt ends, in ascending order.
async fn deaths(handler: &AppHandler, params: &RawJson, pool: &AppPool) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..DEATHS_PER_ROUND {
        // Who is to blame for the death of a process that has just started is known later.
        let settled = async {
            while !all_last(pool) {
                tokio::time::sleep(SENT_AFTER).await;
            }
        };
        tokio::time::timeout(START_DEADLINE, settled).await.context("the processes do not last")?;
        let pids = pool.pids();
        let signal_all = |signal| pids.iter().try_for_each(|pid| kill(Pid::from_raw(*pid as i32), signal));
        signal_all(Signal::SIGSTOP)?;
        let stopped = async {
            while !pids.iter().all(|pid| is_stopped(*pid)) {
                tokio::time::sleep(SENT_AFTER).await;
            }
        };
        tokio::time::timeout(START_DEADLINE, stopped).await.context("the processes do not stop")?;
        let (cx, _) = TestRun::new().begin(NOOP);
        let mut running = handler.run(params, cx).map_err(|error| anyhow::anyhow!("{error}"))?;
        if let Ok(answer) = tokio::time::timeout(SENT_AFTER, &mut running).await {
            bail!("a stopped process has answered: {answer:?}");
        }
        let from = Instant::now();
        signal_all(Signal::SIGKILL)?;
        if running.await.is_ok() {
            bail!("a killed process has answered");
        }
        times.push(from.elapsed());
        let replaced = async {
            while pool.pids().iter().any(|pid| pids.contains(pid)) {
                tokio::time::sleep(SENT_AFTER).await;
            }
        };
        tokio::time::timeout(START_DEADLINE, replaced).await.context("the killed processes were not replaced")?;
    }
    times.sort_unstable();
    Ok(times)
}

/// Returns whether all threads of a process are stopped. The kernel stops them one after the other.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
    // The state follows the name of the program, which is in parentheses and may contain some.
    states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
}

async fn attempt(handler: &AppHandler, params: &RawJson) -> anyhow::Result<()> {
    let (cx, _) = TestRun::new().begin(NOOP);
    let started = handler.run(params, cx).map_err(|error| anyhow::anyhow!("{error}"))?;
    match started.await {
        Ok(_) => Ok(()),
        Err(failure) => bail!("an attempt has failed: {failure}"),
    }
}

async fn wait_for_processes(pool: &AppPool, metrics: &Metrics) -> anyhow::Result<()> {
    let serving = metrics.apps.processes.with_label_values(&[pool.name()]);
    let all_serve = async {
        while serving.get() < i64::from(pool.app_capacity(SlotKind::General).processes) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let seconds = START_DEADLINE.as_secs();
    tokio::time::timeout(START_DEADLINE, all_serve)
        .await
        .with_context(|| format!("not all processes serve after {seconds} s"))
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
}

impl BenchApp {
    /// Starts the app for its declaration.
    pub(super) async fn open(&self) -> anyhow::Result<(Arc<AppPool>, Registry)> {
        let section = AppConfig { processes: Some(self.processes), ..AppConfig::default() };
        let types = Some(vec![NOOP.to_owned()]);
        let (mut command, mut env) = (self.command.clone(), ProgramEnv::default());
        if command.is_empty() {
            let binary = std::env::current_exe().context("cannot find this program's executable")?;
            command = vec![binary.to_string_lossy().into_owned(), "bench".to_owned(), "child-role".to_owned()];
            env.variables.own.insert(ROLE.to_owned(), serde_json::to_string(&ChildRole::App)?);
        }
        let program = AppProgram {
            files: LoadedFiles::default(),
            name: "bench".to_owned(),
            command,
            cwd: std::env::current_dir()?,
            env,
            start_timeout: START_DEADLINE,
            types: types.clone(),
            slots: Some(self.slots),
            has_order: false,
            may_block: false,
            launcher: None,
        };
        let welcome = Welcome {
            protocol: VERSION,
            app: program.name.clone(),
            worker: "bench".to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            types,
            slots: program.slots,
            grace_ms: 5_000,
            limits: Limits::new(1 << 20, 256 << 10),
            dev: false,
        };
        let opened = OpenedApp::open(program, welcome).await?;
        let (mut config, mut registry) = (Config::default(), Registry::default());
        let pool = register(opened, &section, &mut config, &mut registry);
        Ok((pool.map_err(|problems| anyhow::anyhow!(problems.join("; ")))?, registry))
    }
}

/// Runs the app: a loop that answers every attempt with `null`.
pub(super) fn serve() -> anyhow::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut writer = BufWriter::new(socket.try_clone()?);
    let mut reader = BufReader::with_capacity(64 << 10, socket);
    writeln!(writer, r#"{{"ready":{{"protocol":1,"types":[{{"name":"{NOOP}"}}]}}}}"#)?;
    writer.flush()?;
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Some(rest) = line.strip_prefix(b"{\"attempt\":{\"n\":") {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            writer.write_all(&[b"{\"ok\":{\"n\":", &rest[..digits], b"}}\n"].concat())?;
        }
        if reader.buffer().is_empty() {
            writer.flush()?;
        }
        line.clear();
    }
    Ok(())
}
