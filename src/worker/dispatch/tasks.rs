//! Tasks in a dispatcher, and their ways out of it: a terminal event, a delay, the tracker, or the next owner of
//! their partition.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::assignments::AssignmentStates;
use super::circuit::CircuitBreaker;
use super::dead_letters::BackgroundWriter;
use super::inline::Clock;
use super::observers::Observers;
use super::queue::TaskQueue;
use super::reporter::EventReporter;
use super::running::Running;
use super::{DispatcherDeps, LONGEST_WAIT};
use crate::config::{Order, TypePolicy, WorkerConfig};
use crate::control::Cancellation;
use crate::model::event::{AttemptFailure, Event, Payload};
use crate::model::json::RawJson;
use crate::worker::attempt::output::OutputBuffer;
use crate::worker::attempt::publish_children::OutputPublisher;
use crate::worker::completions::Completions;
use crate::worker::decode::InFlight;
use crate::worker::log_throttle::LogThrottle;
use crate::worker::results::ResultTargets;
use crate::worker::spans::AttemptSpans;
use crate::worker::type_metrics::TypeMetrics;

pub(super) struct Tasks {
    pub task_type: Arc<str>,
    pub policy: TypePolicy,
    pub config: WorkerConfig,
    pub queue: TaskQueue,
    pub assignments: AssignmentStates,
    pub reporter: EventReporter,
    pub publisher: Arc<OutputPublisher>,
    pub background: BackgroundWriter,
    pub results: ResultTargets,
    pub circuit: CircuitBreaker,
    pub observers: Observers,
    pub spans: AttemptSpans,
    pub metrics: TypeMetrics,
    pub completions: Arc<Completions>,
    pub(super) failure_log: LogThrottle,
    /// Suspects run in a quarantine of child processes.
    pub(super) has_quarantine: bool,
    /// Set once this worker leaves a task that it has announced in an event to another worker.
    pub unfinished: bool,
}

impl Tasks {
    pub(super) fn new(deps: &DispatcherDeps, output: Arc<OutputBuffer>, has_quarantine: bool) -> Self {
        let policy = deps.registered.policy.clone();
        Self {
            task_type: deps.task_type.clone(),
            config: deps.config.clone(),
            queue: TaskQueue::default(),
            assignments: AssignmentStates::default(),
            reporter: EventReporter::new(deps.events.clone(), output),
            publisher: Arc::new(OutputPublisher {
                publisher: deps.events.publisher().clone(),
                max_output: deps.config.max_output,
            }),
            results: ResultTargets { task_type: deps.task_type.clone(), publish: policy.publish_results },
            background: BackgroundWriter::new(deps.dead_letters.clone(), deps.completions.clone()),
            circuit: CircuitBreaker::new(deps.task_type.clone(), deps.health.clone()),
            observers: Observers::new(&deps.state.hooks.observers, &deps.metrics),
            spans: deps.spans.clone(),
            metrics: TypeMetrics::new(&deps.metrics, &deps.task_type),
            completions: deps.completions.clone(),
            failure_log: LogThrottle::new(),
            has_quarantine,
            unfinished: false,
            policy,
        }
    }

    /// Completes a task whose attempt has succeeded and whose result is in the events only.
    pub(super) fn complete(&mut self, mut running: Running, output: &RawJson, took: Duration, clock: &Clock) {
        running.end_span(&self.spans, "succeeded", None);
        let Running { in_flight, started_at_ms, cx, .. } = running;
        self.metrics.record_success(took);
        self.queue.release_key(&in_flight);
        match self.reporter.add_success(in_flight, started_at_ms, output, clock) {
            Ok(()) => self.observers.notify(|observer| observer.on_success(&cx, took)),
            Err((in_flight, error)) => self.refuse_result(in_flight, &cx, &error),
        }
    }

    /// Ends a task with its terminal event. Its offset can be committed once Kafka has acknowledged the event.
    pub(super) async fn end(&mut self, in_flight: Box<InFlight>, event: Event) {
        match self.results.of_task(&in_flight, None) {
            None => {
                self.reporter.publish_terminal(&in_flight, &event).await;
                self.queue.release_key(&in_flight);
            }
            Some(target) => {
                self.reporter.output.forget(&in_flight.task.id, in_flight.task.run);
                self.queue.release_key(&in_flight);
                self.background.end(in_flight, event, target);
            }
        }
    }

    /// Gives up a task without a terminal event; the next owner of its partition runs it.
    pub(super) fn release(&mut self, in_flight: Box<InFlight>) {
        self.unfinished |= in_flight.announced;
        self.completions.release(in_flight.tag);
        self.reporter.output.forget(&in_flight.task.id, in_flight.task.run);
        self.queue.release_key(&in_flight);
    }

    /// Ends a task that was not started before its expiry.
    pub(super) async fn expire(&mut self, in_flight: Box<InFlight>, now: i64) {
        self.metrics.record_outcome("expired", Duration::ZERO);
        self.spans.never_started(&in_flight);
        let late =
            now.saturating_sub(in_flight.task.policy.as_ref().and_then(|policy| policy.expires_at_ms).unwrap_or(now));
        let failure = AttemptFailure::new(
            "expired",
            format!("it was not started before its expiry, which passed {late} ms ago"),
            0,
        );
        let event = self.reporter.event(Payload::Expired(failure), &in_flight);
        self.end(in_flight, event).await;
    }

    /// Delays a task until its `not before`, here without a slot, or at the tracker.
    pub(super) async fn defer(&mut self, mut in_flight: Box<InFlight>, due_ms: i64, now: i64) {
        let wait = Duration::from_millis((due_ms - now).max(0) as u64).min(LONGEST_WAIT);
        let at_tracker = waits_at_tracker(&self.policy, &self.config, wait);
        if at_tracker || !in_flight.announced {
            let payload = Payload::Scheduled { due_ms: Some(due_ms), record: None };
            let event = self.reporter.event(payload, &in_flight);
            if at_tracker {
                return self.hand_over(in_flight, event).await;
            }
            self.reporter.publish(&mut in_flight, event).await;
        }
        self.queue.delay(in_flight, wait);
    }

    /// Hands a task over to the tracker, which keeps it until it is due; the event completes the input.
    pub(super) async fn hand_over(&mut self, mut in_flight: Box<InFlight>, mut event: Event) {
        in_flight.task.waits = in_flight.waits;
        in_flight.task.backoff_from = in_flight.backoff_from;
        if in_flight.task.has_foreign_headers || in_flight.has_own_key {
            // The event needs the whole record, which is read again in the background.
            self.reporter.output.forget(&in_flight.task.id, in_flight.task.run);
            self.background.hand_over(&self.task_type, in_flight, event);
            return;
        }
        event.payload.set_record(self.reporter.events.publisher().record_copy(&in_flight.task, None));
        self.reporter.publish_terminal(&in_flight, &event).await;
        self.queue.release_key(&in_flight);
    }

    /// Ends a task that was cancelled or killed while no attempt was running.
    pub(super) async fn cancel_unstarted(&mut self, in_flight: Box<InFlight>, verdict: Cancellation) {
        self.reporter.schedule_flush(Instant::now());
        self.metrics.record_outcome("cancelled", Duration::ZERO);
        self.spans.never_started(&in_flight);
        let failure = AttemptFailure::new(verdict.kind, verdict.message, in_flight.attempts);
        let mut event = self.reporter.event(Payload::Cancelled(failure), &in_flight);
        event.attempt = in_flight.attempts;
        event.by = verdict.by.map(Into::into);
        self.end(in_flight, event).await;
    }

    /// Ends a cancelled task after its running attempt has actually stopped.
    pub(super) async fn cancel_running(&mut self, mut running: Running, verdict: Cancellation) {
        self.reporter.publish_last_output(&mut running).await;
        self.metrics.record_outcome("cancelled", running.started_at.elapsed());
        running.end_span(&self.spans, "cancelled", None);
        let payload = Payload::Cancelled(running.failure(verdict.kind, verdict.message));
        let mut event = self.reporter.event_of_attempt(payload, &running);
        event.by = verdict.by.map(Into::into);
        self.end(running.in_flight, event).await;
    }
}

/// Returns whether a wait is long enough for the tracker. Tasks of ordered types wait here, where they hold their
/// key.
pub(super) fn waits_at_tracker(policy: &TypePolicy, config: &WorkerConfig, wait: Duration) -> bool {
    policy.order == Order::None && wait > config.inline_retry_max.into()
}
