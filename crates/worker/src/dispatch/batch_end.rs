//! Ends of calls with several attempts. The answers of the handler are judged one by one, as those of single attempts; a call that
//! fails as a whole says nothing about its tasks, and runs again in halves.

use kafleet_config::TypePolicy;
use kafleet_handlers::context::Restart;
use kafleet_handlers::{Fail, Failure, RATE_LIMITED};
use kafleet_model::batch::halving::{FailedCall, halves};
use kafleet_model::event::InterruptionReason;
use kafleet_model::json::RawJson;

use super::Dispatcher;
use super::exits::{Exit, Onward};
use super::outcome::failure_of_end;
use super::running::RunningAttempt;
use crate::attempt::AttemptEnd;

impl Dispatcher {
    pub(super) async fn call_ended(&mut self, id: u64, end: AttemptEnd<Vec<AttemptEnd>>) {
        let Some((call, attempts)) = self.attempts.remove_call(id) else { return };
        let is_late =
            attempts.iter().all(|running| late_reason(self, running).is_some() || running.cancelled.is_some());
        let counted = end_of_call(&end);
        self.admission.circuit.attempt_ended(call.started_at, &counted, is_late);
        self.admission.adaptive.attempt_ended(call.started_at, &counted, is_late);
        match end {
            AttemptEnd::Answered(Ok(ends)) => {
                for (mut running, end) in attempts.into_iter().zip(ends) {
                    let late = late_reason(self, &running);
                    // The answer of a cancelled task is dropped.
                    let end = if running.cancelled.is_some() { AttemptEnd::Interrupted } else { end };
                    let exit = self.exit_of(&mut running, late, end);
                    self.leave(running, exit).await;
                }
            }
            end => {
                let deadline = attempts.iter().filter_map(|running| running.cx.deadline).min();
                let failure = failure_of_end(call.started_at, deadline, end);
                call_failed(self, attempts, failure).await;
            }
        }
    }
}

fn late_reason(dispatcher: &Dispatcher, running: &RunningAttempt) -> Option<InterruptionReason> {
    dispatcher.admission.assignments.late_reason(running.in_flight.tag, dispatcher.open)
}

/// Ends a call that has failed as a whole. `None`: it was interrupted.
async fn call_failed(dispatcher: &mut Dispatcher, attempts: Vec<RunningAttempt>, failure: Option<Failure>) {
    let number = attempts.len();
    let mut left = Vec::with_capacity(number);
    for mut running in attempts {
        let late = late_reason(dispatcher, &running);
        if late.is_some() || running.cancelled.is_some() || failure.is_none() {
            let exit = dispatcher.exit_of(&mut running, late, AttemptEnd::Interrupted);
            dispatcher.leave(running, exit).await;
        } else {
            left.push(running);
        }
    }
    let Some(mut failure) = failure else { return };
    left.iter().for_each(|running| running.cx.hidden.hide_in(&mut failure.message));
    let policy = &dispatcher.settings.policy;
    let split = policy.batch.as_ref().is_none_or(|batch| batch.split);
    let failed = FailedCall { items: number, split, is_of_service: is_of_service(policy, &failure) };
    if failed.is_halved() {
        run_halves(dispatcher, left, number, failure).await;
        return;
    }
    for mut running in left {
        let exit = dispatcher.judge_failure(&mut running, failure.clone());
        dispatcher.leave(running, exit).await;
    }
}

async fn run_halves(dispatcher: &mut Dispatcher, attempts: Vec<RunningAttempt>, number: usize, failure: Failure) {
    dispatcher.exits.reports.log_split(number, &failure);
    dispatcher.exits.reports.metrics.record_split();
    let message = format!(
        "{}, of {number} tasks ({}): {}",
        InterruptionReason::BatchSplit.message(),
        failure.kind,
        failure.message
    );
    let failure = Failure { message, ..failure };
    let mut tasks = Vec::with_capacity(attempts.len());
    for running in attempts {
        let exit = Exit::Restarted { restart: Restart::Split, failure: failure.clone() };
        match dispatcher.exits.carry_out(running.into(), exit).await {
            Onward::Restarts(in_flight) if dispatcher.admission.assignments.is_closed(in_flight.tag) => {
                dispatcher.leave(in_flight, Exit::Released(None)).await;
            }
            Onward::Restarts(in_flight) => tasks.push(in_flight),
            onward => drop(dispatcher.admission.apply_onward(onward)),
        }
    }
    if let Some(batches) = &mut dispatcher.admission.batches {
        batches.run_parts(halves(tasks));
    }
}

/// Returns whether a failure of a call blames the service behind the type, which would refuse its halves too.
fn is_of_service(policy: &TypePolicy, failure: &Failure) -> bool {
    let kind = &*failure.kind;
    matches!(failure.then, Fail::Wait { .. })
        || kind == RATE_LIMITED
        || policy.trip_on.iter().any(|listed| listed == kind)
        || policy.adaptive.as_ref().is_some_and(|adaptive| adaptive.is_refusal(kind))
}

/// End of a call for the circuit and the adaptive limit: a failure if it has failed as a whole, or if all its tasks have failed with
/// one kind of error.
fn end_of_call(end: &AttemptEnd<Vec<AttemptEnd>>) -> AttemptEnd {
    match end {
        AttemptEnd::Answered(Err(failure)) => AttemptEnd::Answered(Err(failure.clone())),
        AttemptEnd::TimedOut => AttemptEnd::TimedOut,
        AttemptEnd::Stalled(limit) => AttemptEnd::Stalled(*limit),
        AttemptEnd::Interrupted => AttemptEnd::Interrupted,
        AttemptEnd::Answered(Ok(ends)) => {
            let failure = |end: &AttemptEnd| match end {
                AttemptEnd::Answered(Err(failure)) => Some(failure.clone()),
                _ => None,
            };
            let first = ends.first().and_then(failure);
            let is_common =
                |first: &Failure| ends.iter().all(|end| failure(end).is_some_and(|next| next.kind == first.kind));
            AttemptEnd::Answered(first.filter(is_common).map_or_else(|| Ok(RawJson::null()), Err))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_config::Adaptive;

    #[test]
    fn failures_of_the_service_are_not_those_of_tasks() {
        let policy = TypePolicy {
            trip_on: vec!["unreachable".into()],
            adaptive: Some(Adaptive { on: vec!["full".into()], ..Adaptive::default() }),
            ..TypePolicy::default()
        };
        for (failure, expected) in [
            (Failure::retry("a"), false),
            (Failure::fail("a").of_kind("timeout"), false),
            (Failure::wait(None, "a"), true),
            (Failure::retry("a").of_kind("rate_limited"), true),
            (Failure::retry("a").of_kind("unreachable"), true),
            (Failure::retry("a").of_kind("full"), true),
        ] {
            assert_eq!(is_of_service(&policy, &failure), expected, "{failure:?}");
        }
    }

    #[test]
    fn call_fails_for_the_circuit_if_all_tasks_fail_with_one_kind() {
        let failed = |kind: &'static str| AttemptEnd::Answered(Err(Failure::retry("a").of_kind(kind)));
        let is_failure = |ends| matches!(end_of_call(&AttemptEnd::Answered(Ok(ends))), AttemptEnd::Answered(Err(_)));
        assert!(is_failure(vec![failed("a"), failed("a")]));
        assert!(!is_failure(vec![failed("a"), failed("b")]));
        assert!(!is_failure(vec![failed("a"), AttemptEnd::Answered(Ok(RawJson::null()))]));
    }
}
