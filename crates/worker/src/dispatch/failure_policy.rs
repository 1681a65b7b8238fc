//! Decision after a failed attempt: the handler's request first, then the type's policy.

use std::time::Duration;

use kafleet_config::{OnError, TypePolicy};
use kafleet_handlers::{Fail, Failure, TIMEOUT};
use kafleet_model::json::RawJson;
use kafleet_model::retry::RetryPolicy;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::now_ms;

use super::LONGEST_WAIT;
use super::exits::{Exit, Wait};
use crate::decode::InFlight;

/// Decides about a task after its failed attempt `attempt`.
pub(super) fn decide(policy: &TypePolicy, in_flight: &InFlight, attempt: u32, mut failure: Failure) -> Exit {
    let now = now_ms();
    let retry = retry_policy(policy, in_flight);
    let is_in_time = |wait| time_left(policy, in_flight, now).is_none_or(|left| left > wait);
    if let Fail::Wait { after } = failure.then {
        let waits = in_flight.progress.waits.after_another(now);
        let backoff = || retry.wait_backoff(waits.number, fastrand::f64()).into();
        let min = Duration::from(RetryPolicy::min_wait(waits.number));
        let wait = after.unwrap_or_else(backoff).clamp(min, LONGEST_WAIT);
        if is_wait(policy, in_flight, &failure, now) {
            return if is_in_time(wait) {
                Exit::Waiting(Wait::Retry { wait, waits: Some(waits), failure })
            } else {
                run_out_of_time(policy, in_flight, &failure)
            };
        }
        failure.then = Fail::Retry { after: Some(wait) };
    }
    let retry_after = match (policy.is_retried(&failure.kind), failure.then) {
        (_, Fail::Cancelled | Fail::Dead) => None,
        (Some(true), Fail::Retry { after }) => Some(after),
        (Some(true), Fail::Final) => Some(None),
        (None, Fail::Retry { after }) if policy.on_error == OnError::Retry => Some(after),
        _ => None,
    };
    if let Some(after) = retry_after
        && retry.allows(attempt)
    {
        let failures = attempt.saturating_sub(in_flight.progress.backoff_from).max(1);
        let wait = after.unwrap_or_else(|| retry.backoff(failures, fastrand::f64()).into()).min(LONGEST_WAIT);
        return if is_in_time(wait) {
            Exit::Waiting(Wait::Retry { wait, waits: None, failure })
        } else {
            run_out_of_time(policy, in_flight, &failure)
        };
    }
    let code = match failure.then {
        // Params refused by the handler in a child process.
        Fail::Dead if failure.kind == "schema" => Some("schema"),
        Fail::Dead => Some("dead"),
        _ if retry_after.is_some() => Some("exhausted"),
        Fail::Retry { .. } | Fail::Wait { .. } | Fail::Final | Fail::Cancelled => None,
    };
    end(policy, failure, code)
}

/// Returns whether an attempt that ended with a wait is not counted: for `max_wait` from the first one on, and unless
/// errors of its kind are final.
pub(super) fn is_wait(policy: &TypePolicy, in_flight: &InFlight, failure: &Failure, now: i64) -> bool {
    matches!(failure.then, Fail::Wait { .. })
        && policy.is_retried(&failure.kind) != Some(false)
        && !in_flight.progress.waits.are_used_up(max_wait(policy, in_flight), now)
}

/// Maximum time of uncounted waits of a task: its own, else that of its type.
pub(super) fn max_wait(policy: &TypePolicy, in_flight: &InFlight) -> Millis {
    in_flight.task.policy.as_deref().and_then(|of_task| of_task.max_wait).unwrap_or(policy.max_wait)
}

/// Ends a task whose next attempt would start after its total timeout.
fn run_out_of_time(policy: &TypePolicy, in_flight: &InFlight, failure: &Failure) -> Exit {
    let message = format!("{}; its last attempt: {}", total_timeout_message(policy, in_flight), failure.message);
    end(policy, Failure::retry(message).of_kind(TIMEOUT), Some(TIMEOUT))
}

fn end(policy: &TypePolicy, failure: Failure, code: Option<&'static str>) -> Exit {
    match failure.then {
        Fail::Retry { .. } | Fail::Final if policy.on_error == OnError::Skip => {
            Exit::Completed { output: RawJson::null(), skipped: Some(failure) }
        }
        _ => Exit::Failed { failure, code },
    }
}

/// Returns whether the backoff starts again with the failure of an attempt that has taken this time.
pub(super) fn backoff_starts_again(policy: &TypePolicy, in_flight: &InFlight, took: Duration) -> bool {
    retry_policy(policy, in_flight).starts_again(took)
}

fn retry_policy(policy: &TypePolicy, in_flight: &InFlight) -> RetryPolicy {
    let Some(of_task) = in_flight.task.policy.as_deref() else { return policy.retry() };
    // The settings of the type may have changed since the task was accepted: its own count.
    let of_type = policy.retry();
    let min_backoff =
        of_task.min_backoff.unwrap_or(of_type.min_backoff.min(of_task.max_backoff.unwrap_or(of_type.min_backoff)));
    RetryPolicy {
        retries: of_task.retries.unwrap_or(of_type.retries),
        min_backoff,
        max_backoff: of_task.max_backoff.unwrap_or(of_type.max_backoff.max(min_backoff)),
        backoff_reset: of_task.backoff_reset.or(policy.backoff_reset),
    }
}

/// Total timeout of a task: its own, else that of its type.
fn total_timeout(policy: &TypePolicy, in_flight: &InFlight) -> Option<Millis> {
    let of_task = in_flight.task.policy.as_deref().and_then(|policy| policy.total_timeout);
    of_task.or(policy.total_timeout)
}

/// Time left of the total timeout. It counts from the task's creation, at the latest from its record, which the broker has
/// dated, or from its `not before`; for a later run from the publication of its record.
pub(super) fn time_left(policy: &TypePolicy, in_flight: &InFlight, now: i64) -> Option<Duration> {
    let total = total_timeout(policy, in_flight)?;
    let not_before = in_flight.task.policy.as_deref().and_then(|policy| policy.not_before_ms);
    let (record_ms, created_ms) = (in_flight.record.timestamp_ms, in_flight.task.created_at_ms);
    let from = if in_flight.task.run > 1 || created_ms > record_ms { record_ms } else { created_ms };
    let until = from.max(not_before.unwrap_or(from)).saturating_add(total.as_i64());
    Some(Duration::from_millis(u64::try_from(until.saturating_sub(now)).unwrap_or(0)))
}

/// Returns the way out of a task that was not started before its expiry.
pub(super) fn expiry(in_flight: &InFlight, now: i64) -> Option<Exit> {
    let expires_at_ms = in_flight.task.policy.as_deref().and_then(|policy| policy.expires_at_ms);
    let at = expires_at_ms.filter(|at| *at <= now && in_flight.is_first_start())?;
    Some(Exit::Expired { late_ms: now.saturating_sub(at) })
}

/// Returns the way out of a task whose time has passed while it waited with others for a call.
pub(super) fn exit_from_group(policy: &TypePolicy, in_flight: &InFlight, now: i64) -> Option<Exit> {
    expiry(in_flight, now).or_else(|| end_of_time(policy, in_flight, now))
}

/// Returns the way out of a task whose total timeout has expired before an attempt.
pub(super) fn end_of_time(policy: &TypePolicy, in_flight: &InFlight, now: i64) -> Option<Exit> {
    time_left(policy, in_flight, now).filter(Duration::is_zero)?;
    let failure = Failure::dead(total_timeout_message(policy, in_flight)).of_kind(TIMEOUT);
    Some(Exit::Failed { failure, code: Some(TIMEOUT) })
}

fn total_timeout_message(policy: &TypePolicy, in_flight: &InFlight) -> String {
    format!("the task exceeded its total timeout of {}", total_timeout(policy, in_flight).unwrap_or_default())
}
