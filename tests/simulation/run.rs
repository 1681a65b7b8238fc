//! Plays one simulation from start to verdict, and shrinks a failing scenario.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kafleet::model::record::state::State;
use kafleet::runtime::simulated::simulate;
use kafleet_testkit::oracle::Oracle;

use crate::fleet::{Fleet, SESSION};
use crate::host::System;
use crate::request_oracle::{MAX_WITHDRAWAL_MS, active_cancels, may_leave_cancels};
use crate::scenario::{FaultMode, Scenario};
use crate::starts;
use crate::verdict;

/// Maximum time after the faults until all tasks have ended.
const MAX_SETTLE_MS: u64 = 600_000;
/// Maximum time after the faults during which the fold is behind the log, shorter than the interval of ticks, which
/// would hide a stall.
const MAX_FOLD_LAG_MS: u64 = 45_000;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum real time of a scenario, which normally takes parts of a second. A loop without waits never ends, because
/// the simulated clock stands still.
const MAX_PLAY_TIME: Duration = Duration::from_secs(300);

pub struct Outcome {
    pub seed: u64,
    pub scenario: Arc<Scenario>,
    pub violations: Vec<String>,
    pub trace: u64,
}

pub fn play(seed: u64) -> Outcome {
    play_scenario(Scenario::from_seed(seed))
}

pub fn play_scenario(scenario: Scenario) -> Outcome {
    let scenario = Arc::new(scenario);
    let seed = scenario.seed;
    let _watchdog = start_watchdog(seed);
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let trace = RefCell::new(0);
    let played = std::panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let system = System::new(seed);
            simulate(Some(system.clone()));
            let fleet = Fleet::new(scenario.clone(), system.clone()).await;
            let violations = run_steps(&fleet).await;
            *trace.borrow_mut() = system.trace();
            violations
        })
    }));
    drop(runtime);
    simulate(None);
    let violations = played.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        vec![format!("panicked: {}", text.unwrap_or_default())]
    });
    Outcome { seed, scenario, violations, trace: trace.into_inner() }
}

/// Ends the test process if the returned sender is not dropped in time: nothing else stops a loop that never waits.
fn start_watchdog(seed: u64) -> mpsc::Sender<()> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        if end.recv_timeout(MAX_PLAY_TIME) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Written to stderr directly, because the test runner captures printed output.
            let line = format!(
                "seed {seed} does not end within {MAX_PLAY_TIME:?} (KAFLEET_SEED={seed} cargo test --test simulation seeds)\n"
            );
            let _ = std::io::stderr().write_all(line.as_bytes());
            std::process::exit(1);
        }
    });
    ended
}

async fn run_steps(fleet: &Rc<Fleet>) -> Vec<String> {
    fleet.all_processes().into_iter().for_each(|process_id| fleet.start(process_id));
    let mut steps = fleet.scenario.steps.clone().into_iter().peekable();
    let (mut ends, fault_ms) = (BTreeMap::new(), fleet.scenario.fault_ms);
    let local = tokio::task::LocalSet::new();
    let violations = local.run_until(async {
        while fleet.system.elapsed_ms() < fault_ms * 3 / 2 || steps.peek().is_some() {
            while let Some(timed) = steps.next_if(|timed| timed.at_ms <= fleet.system.elapsed_ms()) {
                tokio::task::spawn_local(fleet.clone().run_step(timed.step));
            }
            if fleet.system.elapsed_ms() >= fault_ms {
                if !fleet.faults_ended() {
                    fleet.finish_upgrade();
                }
                fleet.end_faults();
                fleet.all_processes().into_iter().for_each(|process_id| fleet.start(process_id));
            }
            check_invariants(fleet, &mut ends).await;
            if !recorded_violations(fleet).is_empty() {
                return recorded_violations(fleet);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        finish(fleet, &mut ends).await
    });
    let violations = violations.await;
    if !violations.is_empty() {
        verdict::log_events(fleet);
    }
    violations
}

fn recorded_violations(fleet: &Fleet) -> Vec<String> {
    let mut all = fleet.offset_oracle.violations();
    all.extend(fleet.fault_rng.violations.lock().iter().cloned());
    all.extend(fleet.journal.excess.lock().iter().cloned());
    all.extend(fleet.violations.borrow().iter().cloned());
    all
}

type Ends = BTreeMap<(String, u32), State>;

/// Checks invariants during the run: a terminal state is final even if the store loses data.
async fn check_invariants(fleet: &Fleet, ends: &mut Ends) {
    fleet.tick().await;
    if fleet.system.elapsed_ms() % 1_000 > 100 {
        return;
    }
    let records = verdict::records(fleet).await;
    let before = fleet.last_checked.replace(records.clone());
    if Rc::ptr_eq(&before, &records) {
        return;
    }
    let must_stay = fleet.scenario.fault_mode != FaultMode::All
        && (fleet.scenario.retention_ms == 0 || fleet.system.elapsed_ms() < fleet.scenario.retention_ms);
    for id in before.keys().filter(|id| must_stay && !records.contains_key(*id)) {
        fleet.violation(format!("the record of `{id}` is gone"));
    }
    verdict::invariant_violations(fleet, &records).into_iter().for_each(|violations| fleet.violation(violations));
    for (id, task_record) in records.iter() {
        if task_record.own.is_terminal() {
            let first = *ends.entry((id.clone(), task_record.run)).or_insert(task_record.own);
            if first != task_record.own {
                fleet.violation(format!("run {} of `{id}` was {first} and is {}", task_record.run, task_record.own));
            }
        }
    }
}

/// Waits after the faults until all work has ended, and judges the result.
async fn finish(fleet: &Rc<Fleet>, ends: &mut Ends) -> Vec<String> {
    fleet.end_faults();
    let start_ms = fleet.system.elapsed_ms();
    let (mut folded_ms, mut open_ms) = (start_ms, start_ms);
    loop {
        fleet.tick().await;
        fleet.all_processes().into_iter().for_each(|process_id| fleet.start(process_id));
        check_invariants(fleet, ends).await;
        if !recorded_violations(fleet).is_empty() {
            return recorded_violations(fleet);
        }
        match verdict::unfolded(fleet).await {
            None => folded_ms = fleet.system.elapsed_ms(),
            Some(reason) if fleet.system.elapsed_ms() > folded_ms + MAX_FOLD_LAG_MS => {
                return vec![format!("not folded: {reason}")];
            }
            Some(_) => {}
        }
        if verdict::unfinished(fleet).await.is_some() || active_cancels(fleet).is_empty() {
            open_ms = fleet.system.elapsed_ms();
        } else if fleet.system.elapsed_ms() > open_ms + MAX_WITHDRAWAL_MS && !may_leave_cancels(fleet) {
            return vec![format!("all tasks have ended, but workers still have cancels: {:?}", active_cancels(fleet))];
        }
        let pending_work = match fleet.running_steps.get() {
            0 => verdict::pending_work(fleet).await,
            steps => Some(format!("{steps} steps are in progress")),
        };
        let Some(pending_work) = pending_work else {
            // The sessions of crashed processes have expired, and others have taken over.
            let may_expire = fleet.scenario.fault_mode == FaultMode::All;
            if !may_expire || fleet.system.elapsed_ms() > fleet.scenario.fault_ms + 3 * SESSION.as_millis() as u64 {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        };
        if fleet.system.elapsed_ms() > start_ms + MAX_SETTLE_MS {
            return vec![format!("stuck: {pending_work}")];
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let mut violations = verdict::judge(fleet).await;
    starts::judge(fleet, &mut violations);
    if violations.is_empty() && fleet.scenario.retention_ms > 0 {
        violations = wait_until_removed(fleet).await;
    }
    stop_all(fleet).await;
    violations.extend(recorded_violations(fleet));
    violations.extend(verdict::final_commit_violations(fleet));
    if violations.is_empty() {
        // Panics if they differ.
        let oracle = Oracle::of(fleet.broker.clone(), &fleet.names, fleet.scenario.events_partitions).await;
        oracle.equals(fleet.store()).await;
    }
    violations
}

async fn stop_all(fleet: &Rc<Fleet>) {
    for process_id in fleet.all_processes() {
        fleet.stop(process_id);
    }
    for process_id in fleet.all_processes() {
        fleet.wait_for_exit(process_id).await;
    }
}

/// Waits until all trees are removed by retention, sometimes after a wipe of the store.
async fn wait_until_removed(fleet: &Rc<Fleet>) -> Vec<String> {
    if fleet.system.chance(0.3) {
        fleet.wipe();
    }
    let end = fleet.system.elapsed_ms() + MAX_SETTLE_MS;
    loop {
        fleet.tick().await;
        tokio::time::sleep(POLL_INTERVAL).await;
        let remaining = verdict::remaining(fleet).await;
        if remaining.is_empty() || !recorded_violations(fleet).is_empty() {
            return recorded_violations(fleet);
        }
        if fleet.system.elapsed_ms() > end {
            return vec![format!(
                "the retention of {} ms has passed, and {remaining:?} remains",
                fleet.scenario.retention_ms
            )];
        }
    }
}

/// Removes steps, and then parts of the scripts, while the scenario still fails. `plays` limits the number of runs.
pub fn shrink(outcome: &Outcome, mut plays: u64) -> Outcome {
    let mut smallest = Outcome {
        seed: outcome.seed,
        scenario: outcome.scenario.clone(),
        violations: outcome.violations.clone(),
        trace: outcome.trace,
    };
    let mut size = smallest.scenario.steps.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < smallest.scenario.steps.len() {
            let mut smaller = (*smallest.scenario).clone();
            smaller.steps.drain(from..(from + size).min(smallest.scenario.steps.len()));
            from += if still_fails(smaller, &mut smallest, &mut plays) { 0 } else { size };
        }
        size /= 2;
    }
    for root in 0..smallest.scenario.roots.len() {
        let mut n = 0;
        while let Some(script) = smallest.scenario.roots[root].1.simpler().into_iter().nth(n) {
            let mut smaller = (*smallest.scenario).clone();
            smaller.roots[root].1 = script;
            n += usize::from(!still_fails(smaller, &mut smallest, &mut plays));
        }
    }
    smallest
}

fn still_fails(smaller: Scenario, smallest: &mut Outcome, plays: &mut u64) -> bool {
    if *plays == 0 {
        return false;
    }
    *plays -= 1;
    let tried = play_scenario(smaller);
    let fails = !tried.violations.is_empty();
    if fails {
        *smallest = tried;
    }
    fails
}
