//! Repetitions of attempts: none without a fault of a worker, and at most one attempt of a run for each of those, for each record of the task.

use std::collections::BTreeMap;

use kafleet::model::event::Event;

use crate::fleet::Fleet;
use crate::journal::Attempt;
use crate::request_oracle;
use crate::scenario::FaultMode;
use crate::step::Step;

/// Checks that no attempt runs twice without a fault of a worker, and that each of those repeats one attempt of a run.
pub fn judge(fleet: &Fleet, log: &[Event], violations: &mut Vec<String>) {
    let scenario = &fleet.scenario;
    let single_worker = scenario.workers == 1;
    // A continuation that fails again in a later run creates its failed children again.
    let is_recreated = |attempt: &Attempt| attempt.run > 1 && attempt.id.contains(":then");
    let mut repeated: BTreeMap<(String, u32), u32> = BTreeMap::new();
    let attempts = fleet.journal.repeated_attempts();
    // A parent creates its children again in each repetition, and each record may be repeated.
    let mut repetitions: BTreeMap<&str, u32> = BTreeMap::new();
    attempts.iter().for_each(|(attempt, excess)| *repetitions.entry(&attempt.id).or_default() += excess);
    let records =
        |id: &str| 1 + id.rsplit_once(':').and_then(|(parent, _)| repetitions.get(parent)).copied().unwrap_or(0);
    let faults = scenario.steps.iter().filter(|timed| timed.step.disturbs_worker()).count() as u32;
    let hung = fleet.journal.hung.lock();
    for (attempt, excess) in attempts.iter().filter(|(one, _)| !is_recreated(one)) {
        // A worker that stops waits neither for repetitions after deaths nor for an attempt that hangs.
        let is_interrupted = scenario.fault_mode == FaultMode::Restarts && hung.contains(attempt) && *excess <= faults;
        let is_certain = fleet.journal.deaths.count(attempt) == 0 && !is_interrupted;
        match scenario.fault_mode {
            FaultMode::All if is_certain => *repeated.entry((attempt.id.clone(), attempt.run)).or_default() += excess,
            FaultMode::All => {}
            FaultMode::None | FaultMode::Restarts
                if is_certain || (scenario.fault_mode == FaultMode::None && single_worker) =>
            {
                violations.push(format!("{attempt:?} ran {excess} times more than without a fault"));
            }
            FaultMode::None | FaultMode::Restarts => {}
        }
    }
    // Failed calls end consumers and lose results, without a bound.
    let has_failed_calls = scenario.steps.iter().any(|timed| matches!(timed.step, Step::FailCalls { .. }));
    for ((id, run), excess) in repeated {
        let allowed = records(&id) * (1 + faults) - 1;
        if excess > allowed && !has_failed_calls && !has_several_records(fleet, log, &id) {
            violations.push(format!("run {run} of `{id}` repeated {excess} attempts after {faults} faults of workers"));
        }
    }
}

/// Whether the task may have several records, each of which runs: by requests, or because its worker died with the event that
/// handed it over to the tracker.
fn has_several_records(fleet: &Fleet, log: &[Event], id: &str) -> bool {
    let is_handed_over = |event: &Event| event.id.as_str() == id && event.payload.record().is_some();
    fleet.requests.retried.get() || request_oracle::is_batch_task(id) || log.iter().any(is_handed_over)
}
