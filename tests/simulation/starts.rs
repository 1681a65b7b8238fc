//! Starts of waiting retries on request: an attempt starts before its time only if a request has named its wait, and a task
//! whose waits are longer than a scenario ends because each of them is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::Method;
use fastrand::Rng;
use kafleet::model::event::{Kind, Payload};
use kafleet::model::task::start::NextStart;
use serde_json::Value;

use crate::fleet::Fleet;
use crate::requests::Client;
use crate::scenario::{FaultMode, Scenario};
use crate::step::Step;
use crate::verdict::logged;

/// Wait between the requests of a client.
const REQUEST_INTERVAL: Duration = Duration::from_millis(700);
/// Number of requests after the end of the faults, fewer than a scenario takes to settle.
const MAX_REQUESTS: u32 = 600;
/// Wait that no scenario waits for, in milliseconds.
const LONG_WAIT_MS: u64 = 3_600_000;
/// Wait in scenarios in which a task may be published twice: requests mean only one of its waits.
const SHORT_WAIT_MS: u64 = 20_000;
/// Tolerance of times, in milliseconds.
const SLACK_MS: i64 = 100;

/// Lets some roots wait for long after their failed attempts, and a client start them. Not from the generator of the rest,
/// so that the other seeds keep it.
pub fn add_starts(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x5354_4152);
    if rng.u8(..3) > 0 {
        return;
    }
    let wait_ms = if scenario.fault_mode == FaultMode::All { SHORT_WAIT_MS } else { LONG_WAIT_MS };
    for root in 0..scenario.roots.len() {
        if rng.bool() {
            continue;
        }
        let script = &mut scenario.roots[root].1;
        (script.fails, script.long_wait_ms) = (script.fails.max(1), wait_ms);
        // The next attempt would start after the timeout, so that none would follow.
        script.total_timeout_ms = None;
        scenario.add(rng.u64(..scenario.fault_ms / 2), Step::StartNow { root });
    }
    scenario.steps.sort_by_key(|step| step.at_ms);
}

impl Client<'_> {
    /// Starts a root whenever it waits for its next attempt, until its first run has ended.
    pub async fn start_now(&self, root: usize) {
        let path = format!("/v1/tasks/{}", Scenario::id(root, &[]));
        let mut requests_left = MAX_REQUESTS;
        while requests_left > 0 {
            if let Some((200, task)) = self.call(Method::GET, &path, None).await {
                if task["run"] != 1 || has_ended(&task) {
                    return;
                }
                if task["own_state"] == "retrying" {
                    self.call(Method::POST, &format!("{path}/start"), None).await;
                }
            }
            tokio::time::sleep(REQUEST_INTERVAL).await;
            requests_left -= u32::from(self.fleet.faults_ended());
        }
    }
}

fn has_ended(task: &Value) -> bool {
    ["succeeded", "failed", "cancelled", "expired"].iter().any(|state| task["own_state"] == *state)
}

/// Checks that no attempt starts before its time without a request that names its wait. Not with all kinds of faults, which
/// repeat attempts, or wrong clocks.
pub fn judge(fleet: &Fleet, violations: &mut Vec<String>) {
    if fleet.scenario.fault_mode == FaultMode::All || !fleet.scenario.clocks.is_empty() {
        return;
    }
    for number in 0..fleet.scenario.events_partitions {
        let log: Vec<_> = logged(fleet, number).into_iter().map(|logged| logged.event).collect();
        let requested: BTreeSet<_> = log
            .iter()
            .filter_map(|event| match &event.payload {
                Payload::Patched { patch: Some(patch) } => Some((event.id.as_str(), key(patch.next_start?))),
                _ => None,
            })
            .collect();
        let mut waits = BTreeMap::new();
        for event in log.iter().filter(|event| event.kind() == Kind::Retrying) {
            let used = event.used();
            let waits = waits.entry((event.id.as_str(), event.run)).or_insert(0);
            if event.payload.waits() > 0 || event.payload.record().is_some() {
                *waits = used.waits;
            }
            let next = NextStart { run: event.run, attempts: used.attempts, waits: *waits };
            let due_ms = event.payload.due_ms().unwrap_or_default();
            let early_ms = start_between(fleet, (event.id.as_str(), event.run), event.at_ms, due_ms - SLACK_MS);
            if let Some(at) = early_ms.filter(|_| !requested.contains(&(event.id.as_str(), key(next)))) {
                violations.push(format!(
                    "an attempt of `{}` starts at {at}, {} ms before its time, and nothing has requested {next:?}",
                    event.id,
                    due_ms - at
                ));
            }
        }
    }
}

fn key(next: NextStart) -> (u32, u32, u32) {
    (next.run, next.attempts, next.waits)
}

/// First start of an attempt of a run after one time and before another.
fn start_between(fleet: &Fleet, (id, run): (&str, u32), after_ms: i64, before_ms: i64) -> Option<i64> {
    let times = fleet.journal.start_times.lock();
    let of_run = times.iter().filter(|(other, of, _)| other == id && *of == run).map(|(_, _, at)| *at);
    of_run.filter(|at| *at > after_ms && *at < before_ms).min()
}
