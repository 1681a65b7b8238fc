//! Chaos on real processes: three brokers, Redis with a replica and a sentinel, and a fleet, all of which are killed, frozen and
//! cut off while trees with a known answer go through. A short run is part of all tests; `KAFLEET_CHAOS=15` is one of fifteen
//! minutes, `KAFLEET_SEED=7` repeats its order of faults, and `KAFLEET_RELIABILITY=docs/reliability.md` writes the page.
//! Beside it orders by many clients, whose answers are compared with what is there: `KAFLEET_ORDERS=100` is a run of so many seconds.
//!
//! This binary is also the workers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kafleet::runtime::now_ms;
use libtest_mimic::{Arguments, Trial};
use tokio::time::{Instant, sleep};

use crate::deeds::{Deeds, Troubles};
use crate::faults::{Stage, plans};
use crate::fleet::Fleet;
use crate::kafka::Cluster;
use crate::load::Load;
use crate::oracle::Oracle;
use crate::redis::Stores;
use crate::topics::Topics;
use crate::verdict::Verdict;

mod apis;
mod deeds;
mod faults;
mod fleet;
mod kafka;
mod kept;
mod load;
mod oracle;
mod orders;
mod process;
mod proxy;
mod redis;
mod tasks;
mod topics;
mod trees;
mod verdict;

/// Faults of the short run begin within this time, and within this one since all of it began: a busy machine has fewer.
const SHORT: Duration = Duration::from_secs(40);
const SHORT_IN_ALL: Duration = Duration::from_secs(70);

/// For so long clients give orders in the short run.
const SHORT_ORDERS: Duration = Duration::from_secs(12);

const LOOK: Duration = Duration::from_millis(100);

/// What a run goes by.
struct Settings {
    seed: u64,
    length: Duration,
    is_short: bool,
    /// Trees that are begun in a second.
    rate: f64,
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::var_os(tasks::DEEDS).is_some() {
        return tasks::app().main();
    }
    let everything = Trial::test("everything_that_was_acknowledged_comes_to_its_right_end", || {
        let Some(settings) = Settings::read() else { return Ok(()) };
        verdict_of(run(settings))
    });
    let orders = Trial::test("every_answer_to_an_order_is_kept", || {
        let seconds = kept::seconds("KAFLEET_ORDERS");
        if seconds.is_none() && std::env::var_os("KAFLEET_TEST_KAFKA").is_none() {
            eprintln!("skipped: neither KAFLEET_TEST_KAFKA nor KAFLEET_ORDERS is set");
            return Ok(());
        }
        let seed = std::env::var("KAFLEET_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        verdict_of(kept::run(seed, seconds.unwrap_or(SHORT_ORDERS), seconds.is_none()))
    });
    // One fleet at a time is enough for a machine.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, vec![everything, orders]).exit_code()
}

fn verdict_of(broken: impl Future<Output = Vec<String>>) -> Result<(), libtest_mimic::Failed> {
    match tokio::runtime::Runtime::new().unwrap().block_on(broken)[..] {
        [] => Ok(()),
        ref broken => Err(broken.join("\n").into()),
    }
}

impl Settings {
    /// None: neither the services of the tests nor a long run are wanted.
    fn read() -> Option<Self> {
        let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<f64>().unwrap_or_else(|_| panic!("{name}")));
        let minutes = number("KAFLEET_CHAOS");
        if minutes.is_none() && std::env::var_os("KAFLEET_TEST_KAFKA").is_none() {
            eprintln!("skipped: neither KAFLEET_TEST_KAFKA nor KAFLEET_CHAOS is set");
            return None;
        }
        let seed = number("KAFLEET_SEED").map_or_else(|| fastrand::u64(..1_000_000), |seed| seed as u64);
        let (length, rate) = minutes.map_or((SHORT, 3.0), |minutes| (Duration::from_secs_f64(minutes * 60.0), 6.0));
        let page = std::env::var_os("KAFLEET_RELIABILITY").map(PathBuf::from);
        Some(Self { seed, length, is_short: minutes.is_none(), rate, page })
    }

    /// When the last fault has begun, at the latest.
    fn end(&self, begun: Instant) -> Instant {
        let end = Instant::now() + self.length;
        if self.is_short { end.min(begun + SHORT_IN_ALL) } else { end }
    }
}

/// Waits until there is an answer; fails with what it was about. A look is counted and not the time, which may pass without it:
/// the machine may be busy.
async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> F,
    talk: impl FnOnce() -> String,
) -> T {
    for _ in 0..patience.as_millis() / LOOK.as_millis() {
        if let Some(answer) = ask().await {
            return answer;
        }
        sleep(LOOK).await;
    }
    panic!("not within {patience:?}: {what}\n{}", talk());
}

/// The whole story. What is broken at its end, in lines.
async fn run(settings: Settings) -> Vec<String> {
    println!("chaos: seed {}", settings.seed);
    let mut folder = Folder(tempfile::tempdir().unwrap());
    let begun = Instant::now();
    let (kafka, redis) = tokio::join!(Cluster::start(folder.0.path(), 3), Stores::start(folder.0.path()));
    let fleet = Fleet::start(folder.0.path(), &kafka, &redis.url()).await;
    let mut stage = Stage { kafka, redis, fleet, losses: Vec::new() };
    let load = Load::new(stage.fleet.calls.clone(), &stage.kafka);
    let mut rng = fastrand::Rng::with_seed(settings.seed);
    let trees = tokio::spawn(load.clone().trees(rng.fork(), settings.rate));
    let probes = tokio::spawn(load.clone().probes());
    until(
        "a first round of probes is done",
        Duration::from_secs(120),
        || async { load.rounds.lock().first().copied() },
        || stage.fleet.workers[0].last_words(),
    )
    .await;
    println!("chaos: all of it runs after {:.0} s", begun.elapsed().as_secs_f64());
    let (from_ms, end) = (now_ms(), settings.end(begun));
    let mut rows = Vec::new();
    for plan in plans(rng.fork(), settings.is_short) {
        if Instant::now() >= end && !rows.is_empty() {
            break;
        }
        rows.push(stage.suffer(plan, &load).await);
        let row = &rows[rows.len() - 1];
        println!(
            "chaos: {:4.0} s  {} ({}): {:?} ms",
            begun.elapsed().as_secs_f64(),
            row.kind.words(),
            row.hit,
            row.recovered_in_ms
        );
    }
    let to_ms = now_ms();
    load.end();
    let path = format!("/v1/schedules/{}", fleet::SCHEDULE);
    let over = Instant::now() + load::PATIENCE;
    let ended = stage.fleet.calls.call(reqwest::Method::DELETE, &path, None, over).await;
    load.trouble.lock().extend(ended.err());
    while !trees.is_finished() || !probes.is_finished() {
        stage.rest(Duration::from_millis(250)).await;
    }
    println!("chaos: {:4.0} s  the load has ended", begun.elapsed().as_secs_f64());
    let verdict = judge(&settings, &mut stage, &load, rows, (from_ms, to_ms)).await;
    println!("chaos: {:4.0} s  it is judged", begun.elapsed().as_secs_f64());
    verdict.print();
    if let Some(page) = &settings.page {
        verdict.publish(page);
    }
    let broken = verdict.broken();
    if !broken.is_empty() || !verdict.unexplained.is_empty() {
        folder.keep();
    }
    broken
}

/// Configurations, logs and data; stays where something was found.
struct Folder(tempfile::TempDir);

impl Folder {
    fn keep(&mut self) {
        println!("the logs of it are kept in {}", self.0.path().display());
        self.0.disable_cleanup(true);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep();
        }
    }
}

async fn judge(settings: &Settings, stage: &mut Stage, load: &Load, rows: Vec<faults::Row>, span: (i64, i64)) -> Verdict {
    let calls = stage.fleet.calls.clone();
    let (told, probes) = (load.told.lock().clone(), load.probes.lock().clone());
    let oracle = Oracle { apis: &calls, told: &told, probes: &probes };
    let addresses = stage.kafka.addresses();
    let read = || tokio::task::block_in_place(|| Topics::read(&addresses));
    let found = oracle.answers(&read).await;
    stage.redis.wipe().await;
    let again = oracle.answers(&read).await;
    let topics = read();
    stage.fleet.tend();
    let deeds = Deeds::read(&stage.fleet.deeds);
    let (fired, missing) = oracle::fired(&told, &deeds, &topics);
    let mut lost: Vec<String> = told.iter().filter_map(|told| told.trouble.clone()).collect();
    lost.append(&mut load.trouble.lock());
    lost.extend(found.lost.into_iter().chain(missing));
    let troubles = Troubles { losses: &stage.losses, rows: &rows, from_ms: span.0 };
    let repeats = deeds::repeats(&deeds, &troubles, |id, run| topics.count(id, run, 0));
    let mut duplicates = std::collections::BTreeMap::new();
    for repeat in &repeats {
        *duplicates.entry(repeat.cause.words()).or_default() += 1;
    }
    let (longest_silence_ms, silent_from) = deeds.longest_silence(span.0, span.1);
    let during = rows.iter().rev().find(|row| row.begun_ms <= silent_from + longest_silence_ms);
    let tasks = told.iter().map(|told| told.tree.answers().len()).sum::<usize>() + probes.len() + fired.scheduled;
    Verdict {
        seed: settings.seed,
        date: jiff::Zoned::now().strftime("%Y-%m-%d").to_string(),
        command: command(settings),
        machine: verdict::machine(&stage.kafka.version),
        lasted_s: (span.1 - span.0) as f64 / 1000.0,
        trees: told.len(),
        tasks,
        executions: deeds.count,
        probes: probes.len(),
        lost,
        wrong_rollups: found.rollups,
        wrong_counts: found.counts,
        wrong_when_folded_again: again.lost.into_iter().chain(again.rollups).chain(again.counts).collect(),
        fired,
        beyond_window: oracle::beyond_window(&repeats, &topics),
        again_after_a_stop: oracle::again_after_a_stop(&repeats),
        duplicates,
        unexplained: troubles.riddles(&repeats),
        ended_by_themselves: std::mem::take(&mut stage.fleet.ended),
        longest_silence_ms,
        longest_silence_during: during.map(|row| row.kind),
        rounds_ms: verdict::of_rounds(&load.rounds.lock()),
        faults: rows,
    }
}

/// How this run is made again.
fn command(settings: &Settings) -> String {
    let profile = if cfg!(debug_assertions) { "" } else { " --profile quick" };
    let length = format!("KAFLEET_CHAOS={:.0} ", settings.length.as_secs_f64() / 60.0);
    let length = if settings.is_short { "tests/services run env " } else { &length };
    format!("{length}KAFLEET_SEED={} cargo test{profile} --test chaos -- --nocapture", settings.seed)
}
