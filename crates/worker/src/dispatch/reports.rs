//! Reports about attempts besides their events: spans, metrics, observers and the log.

use std::sync::Arc;
use std::time::Duration;

use kafleet_handlers::Failure;
use kafleet_handlers::context::Restart;
use kafleet_handlers::hooks::Observe;
use kafleet_telemetry::otel::AttemptSpan;
use tokio::time::Instant;

use super::DispatcherDeps;
use super::exits::{Exit, LeavingTask, Wait};
use super::running::RunningAttempt;
use crate::attempt;
use crate::decode::InFlight;
use crate::log_throttle::LogThrottle;
use crate::observers::Observers;
use crate::spans::AttemptSpans;
use crate::type_metrics::TypeMetrics;

pub(super) struct Reports {
    task_type: Arc<str>,
    spans: AttemptSpans,
    observers: Observers,
    failure_log: LogThrottle,
    pub metrics: TypeMetrics,
}

impl Reports {
    pub(super) fn new(deps: &DispatcherDeps) -> Self {
        Self {
            task_type: deps.task_type.clone(),
            spans: deps.spans.clone(),
            observers: deps.observers(),
            failure_log: LogThrottle::new(),
            metrics: TypeMetrics::new(&deps.metrics, &deps.task_type),
        }
    }

    /// Counts an attempt that starts, and begins its span.
    pub(super) fn begin(&mut self, in_flight: &mut InFlight, now_ms: i64) -> Option<Box<AttemptSpan>> {
        self.metrics.record_start(in_flight.is_first_start().then(|| in_flight.queued_ms(now_ms)));
        self.spans.begin(in_flight, now_ms)
    }

    /// Reports an exit, except for a success: that is reported with its event.
    pub(super) fn ended(&mut self, leaving: &mut LeavingTask, exit: &Exit) {
        let Some(outcome) = exit.outcome() else { return };
        match leaving {
            LeavingTask::Queued(in_flight) => {
                self.metrics.record_outcome(outcome, Duration::ZERO);
                self.spans.never_started(in_flight);
            }
            LeavingTask::Running(running) => self.attempt_ended(running, exit, outcome),
        }
    }

    fn attempt_ended(&mut self, running: &mut RunningAttempt, exit: &Exit, outcome: &'static str) {
        let failure = exit.failure().map(|failure| (&*failure.kind, &*failure.message));
        match exit {
            Exit::Completed { skipped: None, .. } => return,
            Exit::Completed { .. } => return running.end_span(&self.spans, "skipped", failure),
            Exit::Rejected(error) => running.end_span(&self.spans, "failed", Some(("schema", &error.message))),
            Exit::Restarted { restart, failure } => {
                running.end_span(&self.spans, outcome, Some((&failure.kind, &failure.message)));
                self.log_restart(running, *restart, failure);
            }
            _ => running.end_span(&self.spans, outcome, failure),
        }
        let took = running.started_at.elapsed();
        self.metrics.record_outcome(outcome, took);
        let cx = &running.cx;
        match exit {
            Exit::Failed { failure, .. } if outcome == "failed" => {
                self.notify(|observer| observer.on_failure(cx, failure, took));
            }
            Exit::Rejected(error) => {
                let failure = Failure::of_params(error);
                self.notify(|observer| observer.on_failure(cx, &failure, took));
            }
            Exit::Waiting(Wait::Retry { wait, waits, failure })
            | Exit::HandedOver(Wait::Retry { wait, waits, failure }) => {
                self.notify(|observer| match waits {
                    Some(_) => observer.on_wait(cx, failure, *wait),
                    None => observer.on_retry(cx, failure, *wait),
                });
            }
            _ => {}
        }
    }

    /// Reports a success to the span, if it has not ended, and the metrics.
    pub(super) fn succeeded(&mut self, running: &mut RunningAttempt, took: Duration) {
        running.end_span(&self.spans, "succeeded", None);
        self.metrics.record_success(took);
    }

    /// Calls all observers of the application.
    pub(super) fn notify(&self, call: impl Fn(&dyn Observe)) {
        self.observers.notify(call);
    }

    /// Logs a failed attempt, at a limited rate; the events contain all of them.
    pub(super) fn log_failure(&mut self, running: &RunningAttempt, failure: &Failure) {
        if let Some(suppressed) = self.failure_log.admit() {
            let task = &running.in_flight.task.id;
            let task_type = &self.task_type;
            let attempt = running.cx.number;
            let (trace_id, span_id) = attempt::trace_ids(&running.cx);
            tracing::warn!(%task, %task_type, attempt, kind = %failure.kind, reason = %failure.message, suppressed, trace_id, span_id, "an attempt failed");
        }
    }

    /// Logs a call that has failed as a whole and runs again in parts, at a limited rate.
    pub(super) fn log_split(&mut self, tasks: usize, failure: &Failure) {
        if let Some(suppressed) = self.failure_log.admit() {
            let task_type = &self.task_type;
            tracing::warn!(%task_type, tasks, kind = %failure.kind, reason = %failure.message, suppressed, "a batch failed as a whole; its halves run again");
        }
    }

    fn log_restart(&mut self, running: &RunningAttempt, restart: Restart, failure: &Failure) {
        if !matches!(restart, Restart::Unsent | Restart::Split)
            && let Some(suppressed) = self.failure_log.admit()
        {
            let task = &running.in_flight.task.id;
            let task_type = &self.task_type;
            let is_alone = restart == Restart::Alone;
            tracing::warn!(%task, %task_type, is_alone, reason = %failure.message, suppressed, "restarting an attempt whose process exited");
        }
    }

    /// Time at which suppressed failures are to be logged.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.failure_log.next_report()
    }

    /// Logs the number of failures that were not logged, once no further ones follow.
    pub(super) fn run_due(&mut self, now: Instant) {
        if let Some(suppressed) = self.failure_log.take_report(now) {
            let task_type = &self.task_type;
            tracing::warn!(%task_type, suppressed, "further attempts failed; the events of their tasks have the reasons");
        }
    }
}
