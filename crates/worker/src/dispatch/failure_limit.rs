//! Failures of a type, of any kind: too many within a period hold its circuit open until an operator resumes the type.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kafleet_config::Alarm;
use kafleet_handlers::{Fail, Failure};
use kafleet_model::task::id::clip;
use kafleet_runtime::Health;
use tokio::time::Instant;

use crate::type_metrics::TypeGauges;

pub(super) struct FailureLimit {
    task_type: Arc<str>,
    alarm: Option<Alarm>,
    health: Health,
    gauges: TypeGauges,
    /// Times of the failed attempts within the period.
    recent: VecDeque<Instant>,
    /// Reason, while the type is stopped.
    stopped: Option<String>,
}

impl FailureLimit {
    pub(super) fn new(task_type: Arc<str>, health: Health, gauges: TypeGauges) -> Self {
        Self { task_type, alarm: None, health, gauges, recent: VecDeque::new(), stopped: None }
    }

    /// Returns whether the type is stopped: running attempts continue, nothing new starts.
    pub(super) fn is_exceeded(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns why the type is stopped, if it is.
    pub(super) fn reason(&self) -> Option<&String> {
        self.stopped.as_ref()
    }

    /// Counts a failed attempt; one too many stops the type.
    pub(super) fn record(&mut self, failure: &Failure) {
        let Some(alarm) = self.alarm else { return };
        if failure.then == Fail::Cancelled || self.stopped.is_some() || !self.count(&alarm, Instant::now()) {
            return;
        }
        let task_type = &self.task_type;
        let reason = format!(
            "more than {} attempts failed within {}, the last one with `{}`: {}",
            alarm.max_failures,
            alarm.period,
            failure.kind,
            clip(&failure.message)
        );
        let hint = "find the cause, then pause and resume the type, or restart the worker";
        tracing::error!(%task_type, hint, "type stopped: {reason}");
        self.health.set(&self.health_part(), format!("stopped: {reason}"));
        self.gauges.set_stopped(true);
        self.stopped = Some(reason);
    }

    /// Returns whether there are too many failures in the period.
    fn count(&mut self, alarm: &Alarm, now: Instant) -> bool {
        self.recent.push_back(now);
        let period = Duration::from(alarm.period);
        while self.recent.front().is_some_and(|first| now.duration_since(*first) > period) {
            self.recent.pop_front();
        }
        self.recent.len() > alarm.max_failures as usize
    }

    /// Replaces the limit. A type that is stopped remains so until an operator resumes it.
    pub(super) fn set_alarm(&mut self, alarm: Option<Alarm>) {
        self.alarm = alarm;
    }

    /// Starts the type again: an operator has resumed it.
    pub(super) fn reset(&mut self) {
        self.recent.clear();
        if self.stopped.take().is_some() {
            self.health.clear(&self.health_part());
            self.gauges.set_stopped(false);
        }
    }

    fn health_part(&self) -> String {
        format!("failures of {}", self.task_type)
    }
}
