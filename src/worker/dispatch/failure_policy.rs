//! What a failed attempt leads to: the handler's word, then the type's policy.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Dispatcher, LONGEST_WAIT};
use crate::config::{Alarm, OnError};
use crate::handlers::{Fail, Failure, TIMEOUT};
use crate::model::event::{ErrorInfo, Kind};
use crate::model::task::id::clip;
use crate::model::units::duration::Millis;
use crate::runtime::now_ms;
use crate::worker::decode::InFlight;

/// What becomes of the task.
pub(super) enum Disposition {
    Retry {
        wait: Duration,
        failure: Failure,
    },
    /// It is passed over.
    Skip {
        failure: Failure,
    },
    /// Code: kept as a dead letter.
    End {
        code: Option<&'static str>,
        failure: Failure,
    },
}

/// The failed attempts of late.
#[derive(Default)]
pub(super) struct Failures {
    recent: VecDeque<Instant>,
    /// Too many: nothing is started any more.
    pub stopped: Option<String>,
}

impl Failures {
    /// Counts one more. True: that is too many.
    fn count(&mut self, alarm: &Alarm, now: Instant) -> bool {
        self.recent.push_back(now);
        let period = Duration::from(alarm.period);
        while self.recent.front().is_some_and(|first| now.duration_since(*first) > period) {
            self.recent.pop_front();
        }
        self.recent.len() > alarm.max_failures as usize
    }
}

impl Dispatcher {
    pub(super) fn judge(&self, held: &InFlight, attempt: u32, failure: Failure) -> Disposition {
        let policy = &self.parts.registered.policy;
        let again = match (policy.kinds.verdict(&failure.kind), failure.then) {
            (_, Fail::Cancelled | Fail::Dead) => None,
            (Some(true), Fail::Retry { after }) => Some(after),
            (Some(true), Fail::Final) => Some(None),
            (None, Fail::Retry { after }) if policy.on_error == OnError::Retry => Some(after),
            _ => None,
        };
        let retry = self.retry_policy(held);
        if let Some(after) = again
            && retry.allows(attempt)
        {
            let wait = after.unwrap_or_else(|| retry.backoff(attempt, fastrand::f64()).into()).min(LONGEST_WAIT);
            if self.left(held, now_ms()).is_none_or(|left| left > wait) {
                return Disposition::Retry { wait, failure };
            }
            let message = format!("{}; its last attempt: {}", self.told_out_of_time(held), failure.message);
            return self.end_of(Failure::retry(message).of_kind(TIMEOUT), Some(TIMEOUT));
        }
        let code = match failure.then {
            // Refused by the handler, in a process of its own.
            Fail::Dead if failure.kind == "schema" => Some("schema"),
            Fail::Dead => Some("dead"),
            _ if again.is_some() => Some("exhausted"),
            Fail::Retry { .. } | Fail::Final | Fail::Cancelled => None,
        };
        self.end_of(failure, code)
    }

    fn end_of(&self, failure: Failure, code: Option<&'static str>) -> Disposition {
        let passed_over = self.parts.registered.policy.on_error == OnError::Skip;
        match failure.then {
            Fail::Retry { .. } | Fail::Final if passed_over => Disposition::Skip { failure },
            _ => Disposition::End { code, failure },
        }
    }

    /// How long a task may take in total: as it says itself, else as its type does.
    fn total_timeout(&self, held: &InFlight) -> Option<Millis> {
        let own = held.task.policy.as_deref().and_then(|policy| policy.total_timeout);
        own.or(self.parts.registered.policy.total_timeout)
    }

    /// What is left of the time that a task has in total. It counts from the task's creation, or from when it may start; for a
    /// later run from when that was published.
    pub(super) fn left(&self, held: &InFlight, now: i64) -> Option<Duration> {
        let total = self.total_timeout(held)?;
        let not_before = held.task.policy.as_deref().and_then(|policy| policy.not_before_ms);
        let from = if held.task.run > 1 { held.record_timestamp_ms } else { held.task.created_at_ms };
        let until = from.max(not_before.unwrap_or(from)).saturating_add(total.as_i64());
        Some(Duration::from_millis(u64::try_from(until.saturating_sub(now)).unwrap_or(0)))
    }

    fn told_out_of_time(&self, held: &InFlight) -> String {
        format!("the task had not ended after {} in total", self.total_timeout(held).unwrap_or_default())
    }

    /// Its time was over before it came to this attempt.
    pub(super) fn out_of_time(&mut self, held: Box<InFlight>) {
        self.parts.meter.finished("failed", Duration::ZERO);
        let message = self.told_out_of_time(&held);
        let mut event = self.event(Kind::Failed, &held);
        event.error = Some(Box::new(ErrorInfo::new(TIMEOUT, message.clone(), 0)));
        self.dead_letter_task(held, event, TIMEOUT, message);
    }

    /// More failures than the type may have in a period stop it, with an alarm: what runs goes on, what waits stays.
    pub(super) fn count_failure(&mut self, failure: &Failure) {
        let Some(alarm) = self.parts.registered.policy.alarm else { return };
        if failure.then == Fail::Cancelled || self.failures.stopped.is_some() || !self.failures.count(&alarm, Instant::now()) {
            return;
        }
        let task_type = &self.parts.task_type;
        let told = format!(
            "more than {} attempts failed within {}, the last one with `{}`: {}",
            alarm.max_failures,
            alarm.period,
            failure.kind,
            clip(&failure.message)
        );
        tracing::error!(%task_type, hint = "find the cause, then pause and resume the type, or restart the worker", "stopped: {told}");
        self.parts.health.set(&format!("failures of {task_type}"), format!("stopped: {told}"));
        self.parts.meter.stopped(true);
        self.failures.stopped = Some(told);
    }

    /// Somebody has looked after the type: it may try again.
    pub(super) fn reset_circuit(&mut self) {
        if std::mem::take(&mut self.failures).stopped.is_some() {
            self.parts.health.clear(&format!("failures of {}", self.parts.task_type));
            self.parts.meter.stopped(false);
        }
    }
}
