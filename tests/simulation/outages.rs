//! Outages of a service that tasks call: the circuits of their type open and close again, and no task fails. Limits and
//! circuits set by an operator apply to all types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use fastrand::Rng;
use kafleet::handlers::{Context, Failure, Task, TaskResult};
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fleet::Fleet;
use crate::journal::{Execution, Journal};
use crate::requests::Client;
use crate::scenario::{FaultMode, Scenario};
use crate::step::Step;
use crate::verdict::Records;

/// Error kind that opens the circuits of callers.
const AWAY: &str = "unreachable";
/// More than fail before the circuits of all workers are open.
const RETRIES: u32 = 100;
/// Number of failed attempts that opens a circuit, if not more attempts have succeeded before.
const OPENING: usize = 5;
/// Minimum pause between two probes: a second, less 20 %.
const MIN_PAUSE_MS: i64 = 800;
/// Maximum time, after the service has returned and for as long as it was away, until its callers have ended.
const MAX_RETURN_MS: i64 = 20_000;

/// Task that calls the service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Caller {
    /// Duration of a call.
    ms: u64,
}

impl Task for Caller {
    const TYPE: &'static str = "caller";
    const CONCURRENCY: u32 = 2;
    const RETRIES: u32 = RETRIES;
    const MIN_BACKOFF: Duration = Duration::from_millis(50);
    const MAX_BACKOFF: Duration = Duration::from_millis(200);
    const TRIP_ON: &'static [&'static str] = &[AWAY];
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let journal = cx.state::<Arc<Journal>>();
        let _running = journal.record_start(&Execution::of::<Self>(&cx));
        journal.service.calls.lock().push(now_ms());
        if self.ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.ms)).await;
        }
        let is_away = *journal.service.outages_in_progress.lock() > 0;
        if is_away { Err(Failure::retry("no answer").of_kind(AWAY)) } else { Ok(()) }
    }
}

/// The service that callers call.
#[derive(Default)]
pub struct Service {
    outages_in_progress: Mutex<u32>,
    /// Start and end of each outage, epoch milliseconds.
    outages: Mutex<Vec<(i64, i64)>>,
    /// Starts of calls, epoch milliseconds.
    calls: Mutex<Vec<i64>>,
    /// Number of started workers, each with a circuit of its own.
    pub worker_starts: Mutex<usize>,
}

// ---- scenarios

fn call_id(call: usize) -> String {
    format!("x{call}")
}

/// Adds an outage with callers to some of the scenarios, and limits to others. Not from the generator of the rest, so that
/// seeds keep it.
pub fn add_outages(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x4f55_5441);
    let fault_ms = scenario.fault_ms;
    if rng.u8(..5) == 0 {
        for _ in 0..rng.usize(1..3) {
            scenario.add(rng.u64(..fault_ms / 2), Step::Outage { ms: rng.u64(2_000..fault_ms) });
        }
        for call in 0..rng.usize(1..12) {
            let ms = if rng.bool() { 0 } else { rng.u64(1..600) };
            scenario.add(rng.u64(..fault_ms), Step::Call { call, ms });
        }
    }
    if rng.u8(..8) == 0 {
        let (unordered, ms) = (rng.u8(..3) > 0, rng.u64(1_000..fault_ms));
        let step = match rng.u8(..3) {
            0 => Step::OpenCircuit { unordered, ms },
            _ => Step::Limit { unordered, slots: rng.u32(1..3), ms },
        };
        scenario.add(rng.u64(..fault_ms / 2), step);
    }
}

impl Client<'_> {
    pub async fn outage(&self, ms: u64) {
        let service = &self.fleet.journal.service;
        let begin_ms = now_ms();
        *service.outages_in_progress.lock() += 1;
        self.fleet.sleep_during_faults(ms).await;
        *service.outages_in_progress.lock() -= 1;
        service.outages.lock().push((begin_ms, now_ms()));
    }

    pub async fn call_service(&self, call: usize, ms: u64) {
        let body = json!({"type": Caller::TYPE, "id": call_id(call), "params": Caller { ms }});
        let response = self.repeat_call(Method::POST, "/v1/tasks", Some(body)).await;
        if response.as_ref().is_none_or(|response| response.0 >= 300) {
            self.fleet.violation(format!("call {call} was not accepted: {response:?}"));
        }
        self.fleet.requests.calls.borrow_mut().insert(call, now_ms());
    }
}

// ---- verdict

/// Checks that all calls succeed in the end, and what their attempts cost. Returns the number of their records.
pub fn judge(fleet: &Fleet, records: &Records, log: &[Event], violations: &mut Vec<String>) -> usize {
    let calls = fleet.requests.calls.borrow();
    for call in calls.keys() {
        let id = call_id(*call);
        let is =
            records.get(&id).map(|task_record| (task_record.own, task_record.run, task_record.task_type.as_deref()));
        if is != Some((State::Succeeded, 1, Some(Caller::TYPE))) {
            violations.push(format!("`{id}` must be succeeded in spite of an outage and is {is:?}"));
        }
    }
    let log: Vec<&Event> = log.iter().filter(|event| is_call(event.id.as_str())).collect();
    bounded(fleet, &log, violations);
    spared(fleet, &log, violations);
    if fleet.scenario.fault_mode == FaultMode::None {
        soon_over(fleet, &calls, &log, violations);
    }
    calls.len()
}

fn is_call(id: &str) -> bool {
    id.strip_prefix('x').is_some_and(|number| number.parse::<usize>().is_ok())
}

/// Checks that few calls are made during an outage: those that open the circuits of all workers that ran, and the probes.
fn bounded(fleet: &Fleet, log: &[&Event], violations: &mut Vec<String>) {
    let service = &fleet.journal.service;
    let (calls, starts) = (service.calls.lock(), *service.worker_starts.lock());
    let good = log.iter().filter(|event| event.kind() == Kind::Succeeded).count();
    for (begin_ms, end_ms) in service.outages.lock().iter() {
        let made = calls.iter().filter(|at| (begin_ms..=end_ms).contains(at)).count();
        let probes = 2 + ((end_ms - begin_ms) / MIN_PAUSE_MS) as usize;
        // Each worker may lose a probe with its partition, and then makes another one.
        let bound = starts * (OPENING.max(good) + Caller::CONCURRENCY as usize) + 2 * fleet.scenario.workers * probes;
        if made > bound {
            violations.push(format!(
                "{made} calls were made in an outage of {} ms; {starts} workers may make {bound}",
                end_ms - begin_ms
            ));
        }
    }
}

/// Checks that failures count as attempts only until the circuit of their worker is open.
fn spared(fleet: &Fleet, log: &[&Event], violations: &mut Vec<String>) {
    let mut by_worker: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for event in log {
        let Some(worker) = event.worker.as_deref() else { continue };
        // Events whose acknowledgement is lost are written again.
        if !known.insert((event.id.as_str(), worker, event.attempt, event.at_ms)) {
            continue;
        }
        let (good, bad) = by_worker.entry(worker).or_default();
        *good += usize::from(event.kind() == Kind::Succeeded);
        *bad += usize::from(event.kind() == Kind::Retrying && !event.payload.is_wait() || event.kind() == Kind::Failed);
    }
    let outages = fleet.journal.service.outages.lock().len();
    for (worker, (good, bad)) in by_worker {
        let bound = outages * (OPENING.max(good) + Caller::CONCURRENCY as usize);
        if bad > bound {
            violations.push(format!(
                "{bad} failures of {outages} outages count as attempts at {worker}, at most {bound} may"
            ));
        }
    }
}

/// Checks that work goes on soon after an outage.
fn soon_over(fleet: &Fleet, calls: &BTreeMap<usize, i64>, log: &[&Event], violations: &mut Vec<String>) {
    let outages = fleet.journal.service.outages.lock();
    let away_ms: i64 = outages.iter().map(|(begin_ms, end_ms)| end_ms - begin_ms).sum();
    let over_ms = outages.iter().map(|(_, end_ms)| *end_ms).max().unwrap_or_default();
    let accepted_ms = calls.values().max().copied().unwrap_or_default();
    let last_ms = log.iter().map(|event| event.at_ms).max().unwrap_or_default();
    if last_ms > over_ms.max(accepted_ms) + away_ms + MAX_RETURN_MS {
        violations
            .push(format!("the last call was answered {} ms after the outage of {away_ms} ms", last_ms - over_ms));
    }
}
