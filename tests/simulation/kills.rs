//! Kill switches on params: a switch on two params of a root's script cancels tasks of the type with both, and no others.

use std::time::Duration;

use axum::http::Method;
use fastrand::Rng;
use serde_json::json;

use crate::fleet::Fleet;
use crate::requests::Client;
use crate::scenario::Scenario;
use crate::step::Step;
use crate::task_types::{Script, task_type};
use crate::tree_oracle::within;

/// Sets switches in some scenarios whose tasks are those of the roots. Not from the generator of the rest, so that the other
/// seeds keep it.
pub fn add_kills(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x4b49_4c4c);
    let has_schedules = scenario.steps.iter().any(|timed| matches!(timed.step, Step::CreateSchedule { .. }));
    if rng.u8(..4) > 0 || has_schedules || !scenario.batches.is_empty() {
        return;
    }
    for _ in 0..rng.usize(1..3) {
        let step = Step::KillParams { root: rng.usize(..scenario.roots.len()), ms: rng.u64(1_000..10_000) };
        scenario.add(rng.u64(..scenario.fault_ms), step);
    }
    scenario.steps.sort_by_key(|step| step.at_ms);
}

/// Params that a switch on a root's script compares.
fn compared(script: &Script) -> (u64, u32) {
    (script.ms, script.fails)
}

/// Sets a kill switch on the params of a root, and removes it.
pub async fn kill_params(client: &Client<'_>, root: usize, ms: u64) {
    let fleet = client.fleet;
    let (unordered, script) = &fleet.scenario.roots[root];
    let (duration_ms, fails) = compared(script);
    fleet.requests.killed_params.borrow_mut().push((duration_ms, fails));
    let path = format!("/v1/kill-switches/params-{root}");
    // Written in another way than in the params of the tasks.
    let params = json!({"/ms": duration_ms as f64, "/fails": fails});
    client.call(Method::PUT, &path, Some(json!({"type": task_type(*unordered), "params": params}))).await;
    fleet.sleep_during_faults(ms).await;
    // Another switch of the root may have removed it; a removal without an answer is repeated.
    for _ in 0..200 {
        match client.call(Method::DELETE, &path, None).await {
            Some((200 | 404, _)) => return,
            _ => tokio::time::sleep(Duration::from_millis(700)).await,
        }
    }
    fleet.violation(format!("no response from {path}"));
}

/// Returns whether a kill switch on params may have cancelled a task or one above it.
pub fn may_have_killed(fleet: &Fleet, id: &str) -> bool {
    let killed = fleet.requests.killed_params.borrow();
    let mut above = fleet.scripted_tasks.iter().filter(|(above, _)| within(id, above));
    !killed.is_empty() && above.any(|(_, task)| killed.contains(&compared(&task.script)))
}
