//! Chaos tests on real processes: three brokers, Redis with a replica and a sentinel, and a fleet are killed, frozen
//! and disconnected under a load of trees with known outcomes. A short run is part of all tests; `KAFLEET_CHAOS=15`
//! runs for fifteen minutes, `KAFLEET_SEED=7` repeats a sequence of faults, and
//! `KAFLEET_RELIABILITY=docs/reliability.md` writes the page. A second test sends requests from many clients and
//! compares every response with the final state; `KAFLEET_REQUESTS=100` is its length in seconds. A third test kills the
//! relay of an outbox, its Postgres and brokers; `KAFLEET_OUTBOX_KILLS=100` is the number of kills.
//!
//! This binary also runs the workers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kafleet::runtime::now_ms;
use libtest_mimic::{Arguments, Trial};
use tokio::time::{Instant, sleep};

use crate::executions::{Executions, FaultHistory};
use crate::faults::{Environment, random_faults};
use crate::fleet::Fleet;
use crate::kafka::Cluster;
use crate::load::Load;
use crate::oracle::Oracle;
use crate::redis::Stores;
use crate::topics::Topics;
use crate::verdict::{LoadInfo, RunInfo, Verdict};

mod accepted_requests;
mod apis;
mod executions;
mod faults;
mod fleet;
mod kafka;
mod load;
mod oracle;
mod outbox;
mod process;
mod proxy;
mod redis;
mod requests;
mod tasks;
mod topics;
mod trees;
mod verdict;

/// Period in which the faults of the short run begin, from the first one and from the start of the test: a busy
/// machine gets fewer.
const SHORT: Duration = Duration::from_secs(40);
const SHORT_TOTAL: Duration = Duration::from_secs(70);

/// Length of the short run of requests.
const SHORT_REQUESTS: Duration = Duration::from_secs(12);

/// Number of kills in the short run of the outbox.
const SHORT_KILLS: usize = 9;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Parameters of a run.
struct Settings {
    seed: u64,
    length: Duration,
    is_short: bool,
    /// Trees published per second.
    rate: f64,
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::var_os(tasks::EXECUTIONS_FILE).is_some() {
        return tasks::app().main();
    }
    if std::env::var_os(outbox::relay::BROKERS).is_some() {
        return outbox::relay::main();
    }
    let outcomes = Trial::test("acknowledged_work_reaches_its_expected_outcome", || {
        let Some(settings) = Settings::read() else { return Ok(()) };
        result_of(run(settings))
    });
    let orders = Trial::test("accepted_requests_take_effect_once", || {
        let seconds = accepted_requests::seconds("KAFLEET_REQUESTS");
        if seconds.is_none() && kafleet_testkit::services::kafka().is_none() {
            return Ok(());
        }
        let seed = std::env::var("KAFLEET_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        result_of(accepted_requests::run(seed, seconds.unwrap_or(SHORT_REQUESTS), seconds.is_none()))
    });
    let rows = Trial::test("committed_rows_are_one_task_each_under_kills", || {
        let long = outbox::kills();
        let is_left_out = std::env::var("KAFLEET_TEST_POSTGRES").is_ok_and(|url| url == "none");
        if is_left_out || long.is_none() && kafleet_testkit::services::kafka().is_none() {
            return Ok(());
        }
        let seed = std::env::var("KAFLEET_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        result_of(outbox::run(seed, long.unwrap_or(SHORT_KILLS)))
    });
    // Two fleets at a time would overload the machine.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, vec![outcomes, orders, rows]).exit_code()
}

fn result_of(violations: impl Future<Output = Vec<String>>) -> Result<(), libtest_mimic::Failed> {
    match tokio::runtime::Runtime::new().unwrap().block_on(violations)[..] {
        [] => Ok(()),
        ref violations => Err(violations.join("\n").into()),
    }
}

impl Settings {
    /// Reads the environment. Returns `None` if there are no services and no long run is requested.
    fn read() -> Option<Self> {
        let number = |name| {
            std::env::var(name).ok().map(|text: String| text.parse::<f64>().unwrap_or_else(|_| panic!("{name}")))
        };
        let minutes = number("KAFLEET_CHAOS");
        if minutes.is_none() {
            kafleet_testkit::services::kafka()?;
        }
        let seed = number("KAFLEET_SEED").map_or_else(|| fastrand::u64(..1_000_000), |seed| seed as u64);
        let (length, rate) = minutes.map_or((SHORT, 3.0), |minutes| (Duration::from_secs_f64(minutes * 60.0), 6.0));
        let page = std::env::var_os("KAFLEET_RELIABILITY").map(PathBuf::from);
        Some(Self { seed, length, is_short: minutes.is_none(), rate, page })
    }

    /// Latest start of a fault.
    fn end(&self, begun: Instant) -> Instant {
        let end = Instant::now() + self.length;
        if self.is_short { end.min(begun + SHORT_TOTAL) } else { end }
    }
}

/// Polls until the condition yields a value; panics with its description. Polls are counted instead of time, which
/// passes while a busy machine runs something else.
async fn wait_until<T, F: Future<Output = Option<T>>>(
    subject: &str,
    timeout: Duration,
    mut poll: impl FnMut() -> F,
    diagnostics: impl FnOnce() -> String,
) -> T {
    for _ in 0..timeout.as_millis() / POLL_INTERVAL.as_millis() {
        if let Some(value) = poll().await {
            return value;
        }
        sleep(POLL_INTERVAL).await;
    }
    panic!("not within {timeout:?}: {subject}\n{}", diagnostics());
}

/// Runs the load with faults. Returns the violations, one per line.
async fn run(settings: Settings) -> Vec<String> {
    println!("chaos: seed {}", settings.seed);
    let mut folder = RunFolder(tempfile::tempdir().unwrap());
    let begun = Instant::now();
    let (kafka, redis) = tokio::join!(Cluster::start(folder.0.path(), 3), Stores::start(folder.0.path()));
    let fleet = Fleet::start(folder.0.path(), &kafka, &redis.url(), settings.seed).await;
    let mut environment = Environment { kafka, redis, fleet, losses: Vec::new() };
    let load = Load::new(environment.fleet.calls.clone(), &environment.kafka);
    let mut rng = fastrand::Rng::with_seed(settings.seed);
    let trees = tokio::spawn(load.clone().trees(rng.fork(), settings.rate));
    let probes = tokio::spawn(load.clone().probes());
    wait_until(
        "the first round of probes has completed",
        Duration::from_secs(120),
        || async { load.rounds.lock().first().copied() },
        || environment.fleet.workers[0].log_tail(),
    )
    .await;
    println!("chaos: the fleet runs after {:.0} s", begun.elapsed().as_secs_f64());
    let (from_ms, end) = (now_ms(), settings.end(begun));
    let mut rows = Vec::new();
    for fault in random_faults(rng.fork(), settings.is_short) {
        if Instant::now() >= end && !rows.is_empty() {
            break;
        }
        rows.push(environment.inject(fault, &load).await);
        let row = &rows[rows.len() - 1];
        println!(
            "chaos: {:4.0} s  {} ({}): {:?} ms",
            begun.elapsed().as_secs_f64(),
            row.kind.name(),
            row.target,
            row.recovered_in_ms
        );
    }
    let to_ms = now_ms();
    load.end();
    let path = format!("/v1/schedules/{}", fleet::SCHEDULE);
    let deadline = Instant::now() + load::REPLY_DEADLINE;
    let deleted = environment.fleet.calls.call(reqwest::Method::DELETE, &path, None, deadline).await;
    load.errors.lock().extend(deleted.err());
    while !trees.is_finished() || !probes.is_finished() {
        environment.wait(Duration::from_millis(250)).await;
    }
    println!("chaos: {:4.0} s  the load has ended", begun.elapsed().as_secs_f64());
    let verdict = judge(&settings, &mut environment, &load, rows, (from_ms, to_ms)).await;
    println!("chaos: {:4.0} s  the verdict is complete", begun.elapsed().as_secs_f64());
    verdict.print();
    if let Some(page) = &settings.page {
        verdict.publish(page);
    }
    let violations = verdict.violations();
    if !violations.is_empty() || !verdict.unexplained.is_empty() {
        folder.keep();
    }
    violations
}

/// Folder of configurations, logs and data; kept if the run found something.
struct RunFolder(tempfile::TempDir);

impl RunFolder {
    fn keep(&mut self) {
        println!("the logs are kept in {}", self.0.path().display());
        self.0.disable_cleanup(true);
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep();
        }
    }
}

async fn judge(
    settings: &Settings,
    environment: &mut Environment,
    load: &Load,
    rows: Vec<faults::FaultRecord>,
    span: (i64, i64),
) -> Verdict {
    let calls = environment.fleet.calls.clone();
    let (published, probes) = (load.published.lock().clone(), load.probes.lock().clone());
    let oracle = Oracle { apis: &calls, published: &published, probes: &probes };
    let addresses = environment.kafka.addresses();
    let read = || tokio::task::block_in_place(|| Topics::read(&addresses));
    let violations = oracle.violations(&read).await;
    environment.redis.wipe().await;
    let rebuilt = oracle.violations(&read).await;
    let topics = read();
    environment.fleet.restart_exited();
    let executions = Executions::read(&environment.fleet.executions);
    let (publish_counts, missing) = oracle::publish_counts(&published, &executions, &topics);
    let mut lost: Vec<String> = published.iter().filter_map(|tree| tree.error.clone()).collect();
    lost.append(&mut load.errors.lock());
    lost.extend(violations.lost.into_iter().chain(missing));
    let history = FaultHistory { losses: &environment.losses, rows: &rows, from_ms: span.0 };
    let repeats = executions::repeats(&executions, &history, |id, run| topics.count(id, run, 0));
    let mut duplicates = std::collections::BTreeMap::new();
    for repeat in &repeats {
        *duplicates.entry(repeat.cause.name()).or_default() += 1;
    }
    let (longest_silence_ms, silent_from) = executions.longest_silence(span.0, span.1);
    let during = rows.iter().rev().find(|row| row.begun_ms <= silent_from + longest_silence_ms);
    let tasks = published.iter().map(|tree| tree.tree.expected_tasks().len()).sum::<usize>()
        + probes.len()
        + publish_counts.scheduled;
    let run = RunInfo {
        seed: settings.seed,
        date: jiff::Zoned::now().strftime("%Y-%m-%d").to_string(),
        command: command(settings),
        machine: verdict::machine(&environment.kafka.version),
        lasted_s: (span.1 - span.0) as f64 / 1000.0,
    };
    Verdict {
        run,
        load: LoadInfo { trees: published.len(), tasks, executions: executions.count, probes: probes.len() },
        lost,
        wrong_rollups: violations.rollups,
        wrong_counts: violations.counts,
        wrong_after_rebuild: rebuilt.lost.into_iter().chain(rebuilt.rollups).chain(rebuilt.counts).collect(),
        publish_counts,
        beyond_window: oracle::beyond_window(&repeats, &topics),
        repeated_after_stop: oracle::repeated_after_stop(&repeats),
        duplicates,
        unexplained: history.unexplained(&repeats),
        unexpected_exits: std::mem::take(&mut environment.fleet.unexpected_exits),
        longest_silence_ms,
        longest_silence_during: during.map(|row| row.kind),
        rounds_ms: verdict::round_times(&load.rounds.lock()),
        faults: rows,
    }
}

/// Command that repeats this run.
fn command(settings: &Settings) -> String {
    let profile = if cfg!(debug_assertions) { "" } else { " --profile quick" };
    let length = format!("KAFLEET_CHAOS={:.0} ", settings.length.as_secs_f64() / 60.0);
    let length = if settings.is_short { "tests/services run env " } else { &length };
    format!("{length}KAFLEET_SEED={} cargo test{profile} --test chaos -- --nocapture", settings.seed)
}
