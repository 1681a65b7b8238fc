//! The real worker, tracker, api and fold on a broker and a store in memory, on one thread, under a clock of their own:
//! everything that happens comes from a seed. See CONTRIBUTING.md for how to run more of it.

#[macro_use]
#[path = "../through/mod.rs"]
mod through;

mod asks;
mod deliveries;
mod family;
mod fleet;
mod host;
mod ledger;
#[allow(dead_code, reason = "the tracker's tests use more of it")]
#[path = "../tracker/oracle.rs"]
mod oracle;
mod orders;
mod plans;
mod retries;
mod run;
mod story;
mod trees;
mod uplink;
mod verdict;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use run::{Outcome, play, play_story, shrink};
use serde::{Deserialize, Serialize};
use story::Story;

/// How many new seeds are played, unless `KAFLEET_SIMULATION` says it, and how long at most.
const SEEDS: u64 = 1_000;
const CEILING: Duration = Duration::from_secs(120);
/// Plays that the search for a smaller story may take, unless `KAFLEET_SHRINKING` says it.
const SHRINKING: u64 = 300;
/// Stories that have found something, one a line.
const REGRESSIONS: &str = include_str!("regressions.jsonl");

#[derive(Serialize, Deserialize)]
struct Regression {
    /// What it was.
    found: String,
    story: Story,
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|why| panic!("{name}: `{text}` is not a number: {why}")))
}

fn told(outcome: &Outcome) -> String {
    let minimal = shrink(outcome, variable("KAFLEET_SHRINKING").unwrap_or(SHRINKING));
    let mut text = format!("\nseed {} (run it alone: KAFLEET_SEED={0} cargo test --test simulation seeds)\n", outcome.seed);
    for wrong in minimal.wrong.iter().take(10) {
        text += &format!("  {wrong}\n");
    }
    text += &format!("what happens, of {} things only:\n{}", minimal.story.items.len(), minimal.story);
    let kept = Regression { found: "…".into(), story: (*minimal.story).clone() };
    text + &format!("to be kept in tests/simulation/regressions.jsonl:\n{}\n", serde_json::to_string(&kept).unwrap_or_default())
}

/// Plays seeds on all cores until there are enough of them, or the time is over, or one finds something.
fn search(first: u64, count: u64, budget: Duration) -> (u64, Option<Outcome>) {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let found = parking_lot::Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while begun.elapsed() < budget && found.lock().is_none() {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let outcome = play(first.wrapping_add(n));
                    if !outcome.wrong.is_empty() {
                        found.lock().get_or_insert(outcome);
                    }
                }
            });
        }
    });
    (next.into_inner().min(count), found.into_inner())
}

#[test]
fn seeds() {
    let of_now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let single = variable("KAFLEET_SEED");
    if single.is_some() {
        kafleet::telemetry::init_logs("off");
    }
    let first = single.unwrap_or(of_now << 20);
    let count = variable("KAFLEET_SIMULATION");
    let budget = if count.is_some() { Duration::MAX } else { CEILING };
    let begun = Instant::now();
    let (played, found) = search(first, count.or(single.map(|_| 1)).unwrap_or(SEEDS), budget);
    let took = begun.elapsed().as_secs_f64();
    // Past the test runner, which keeps what a test prints to itself.
    let line = format!("{played} seeds from {first} on in {took:.1} s, {:.1} a second\n", played as f64 / took);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(outcome) = found {
        panic!("{}", told(&outcome));
    }
}

#[test]
fn what_was_found_before_stays_mended() {
    for line in REGRESSIONS.lines() {
        let Regression { found, story } = serde_json::from_str(line).unwrap();
        let outcome = play_story(story);
        assert!(outcome.wrong.is_empty(), "{}\n{found}", told(&outcome));
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let traces: BTreeSet<u64> = (1..=6).map(|seed| play(seed).trace).collect();
    assert_eq!(traces.len(), 6, "different seeds are different stories");
    for seed in 1..=6 {
        assert!(traces.contains(&play(seed).trace), "seed {seed} went another way the second time");
    }
}

/// Whoever changes the code takes the faults along that are put into it, to see that a seed finds each.
#[test]
fn faults_have_their_places() {
    #[derive(Deserialize)]
    struct Faults {
        mutation: Vec<Fault>,
    }
    #[derive(Deserialize)]
    struct Fault {
        name: String,
        file: String,
        old: String,
        new: String,
    }
    let faults: Faults = toml::from_str(include_str!("mutations/list.toml")).unwrap();
    assert!(faults.mutation.len() >= 10);
    for Fault { name, file, old, new } in faults.mutation {
        let text = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(&file)).unwrap();
        assert_eq!(
            text.matches(&old).count(),
            1,
            "`{name}` has no one place in {file}: mend tests/simulation/mutations/list.toml"
        );
        assert!(new.contains(&format!("crate::mutant(\"{name}\")")), "`{name}` cannot be switched on");
    }
}
