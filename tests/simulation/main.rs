//! Deterministic simulation: the real worker, tracker, API and fold on an in-memory broker and store, on one thread,
//! with a simulated clock. All choices follow from a seed. CONTRIBUTING.md describes longer runs.

mod adaptive;
mod apps;
mod deliveries;
mod faults;
mod faulty_broker;
mod faulty_store;
mod fleet;
mod host;
mod journal;
mod kills;
mod offset_oracle;
mod outages;
mod published;
mod repeats;
mod request_oracle;
mod requests;
mod retries;
mod roles;
mod run;
mod scenario;
mod schedules;
mod starts;
mod statistics;
mod step;
mod task_types;
mod tree_oracle;
mod unique;
mod verdict;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use run::{Outcome, play, play_scenario, shrink};
use scenario::Scenario;
use serde::{Deserialize, Serialize};

/// The allocator of the program: a scenario makes millions of small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Default number of new seeds (`KAFLEET_SIMULATION`), and maximum duration.
const DEFAULT_SEEDS: u64 = 1_000;
const MAX_DURATION: Duration = Duration::from_secs(120);
/// Default number of runs to shrink a failing scenario (`KAFLEET_SHRINKING`).
const DEFAULT_SHRINKING: u64 = 300;
/// Scenarios that failed once, one per line.
const REGRESSIONS: &str = include_str!("regressions.jsonl");

#[derive(Serialize, Deserialize)]
struct Regression {
    /// Description of the defect.
    found: String,
    scenario: Scenario,
}

fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}: `{text}` is not a number: {error}")))
}

fn report(outcome: &Outcome) -> String {
    let minimal = shrink(outcome, env_number("KAFLEET_SHRINKING").unwrap_or(DEFAULT_SHRINKING));
    let mut text =
        format!("\nseed {} (to repeat it: KAFLEET_SEED={0} cargo test --test simulation seeds)\n", outcome.seed);
    for violations in minimal.violations.iter().take(10) {
        text += &format!("  {violations}\n");
    }
    text += &format!("shrunken scenario with {} steps:\n{}", minimal.scenario.steps.len(), minimal.scenario);
    let regression = Regression { found: "…".into(), scenario: (*minimal.scenario).clone() };
    text + &format!(
        "line for tests/simulation/regressions.jsonl:\n{}\n",
        serde_json::to_string(&regression).unwrap_or_default()
    )
}

/// Plays seeds on all cores until one fails, all are played or the time is over.
fn search(first: u64, count: u64, time_limit: Duration) -> (u64, Option<Outcome>) {
    let (next, started) = (AtomicU64::new(0), Instant::now());
    let found = parking_lot::Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while started.elapsed() < time_limit && found.lock().is_none() {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let outcome = play(first.wrapping_add(n));
                    if !outcome.violations.is_empty() {
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
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let single = env_number("KAFLEET_SEED");
    if single.is_some() {
        kafleet::telemetry::init_logs("off");
    }
    let first = single.unwrap_or(now_ms << 20);
    let count = env_number("KAFLEET_SIMULATION");
    let time_limit = if count.is_some() { Duration::MAX } else { MAX_DURATION };
    let started = Instant::now();
    let (played, found) = search(first, count.or(single.map(|_| 1)).unwrap_or(DEFAULT_SEEDS), time_limit);
    let took = started.elapsed().as_secs_f64();
    // Written to stderr directly, because the test runner captures printed output.
    let line = format!("{played} seeds from {first} in {took:.1} s, {:.1} per second\n", played as f64 / took);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(outcome) = found {
        panic!("{}", report(&outcome));
    }
}

/// Plays all known regressions, or the line in `KAFLEET_SCENARIO`, with its log.
#[test]
fn regressions_pass() {
    let single = std::env::var("KAFLEET_SCENARIO").ok();
    if single.is_some() {
        kafleet::telemetry::init_logs("off");
    }
    for line in single.as_deref().unwrap_or(REGRESSIONS).lines() {
        let Regression { found, scenario } = serde_json::from_str(line).unwrap();
        let outcome = play_scenario(scenario);
        assert!(outcome.violations.is_empty(), "{}\n{found}", report(&outcome));
    }
}

#[test]
fn same_seed_gives_same_trace() {
    let traces: BTreeSet<u64> = (1..=6).map(|seed| play(seed).trace).collect();
    assert_eq!(traces.len(), 6, "two seeds have the same trace");
    for seed in 1..=6 {
        assert!(traces.contains(&play(seed).trace), "seed {seed} has another trace the second time");
    }
}

/// Each mutation must apply to the current source. Move mutations along with the code they change.
#[test]
fn mutations_match_the_source() {
    #[derive(Deserialize)]
    struct Mutations {
        mutation: Vec<Mutation>,
    }
    #[derive(Deserialize)]
    struct Mutation {
        name: String,
        file: String,
        old: String,
        new: String,
    }
    let faults: Mutations = toml::from_str(include_str!("mutations/list.toml")).unwrap();
    assert!(faults.mutation.len() >= 10);
    for Mutation { name, file, old, new } in faults.mutation {
        let text = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(&file)).unwrap();
        assert_eq!(
            text.matches(&old).count(),
            1,
            "`{name}` does not match exactly once in {file}: update tests/simulation/mutations/list.toml"
        );
        assert!(new.contains(&format!("crate::mutant(\"{name}\")")), "`{name}` has no switch");
    }
}
