//! All ways out of a dispatcher, on one page.
//!
//! A task leaves in one of the ways of [`Exit`], and so does an attempt whose task stays. To decide and to act are apart: the
//! checks before a start and the policy of failures decide, without effects, and [`Exits::carry_out`] alone acts. It
//! therefore reports every exit in the same order: the last output of the attempt, its span, metrics and observers, its event.
//!
//! Invariant: an input leaves once. It is complete when Kafka has acknowledged the record that ends it here: its terminal event,
//! its dead letter and event, or the event that hands it over to the tracker. A release writes none, so that the next owner of
//! the partition runs the task. An input that left twice could be committed before its result is written, and a crash
//! would lose the task; one that never left would hold back the commits of its partition.
//!
//! Work for the queue is returned as a value, [`Onward`]: this module uses neither the queue nor the slots.

use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::Cancellation;
use kafleet_handlers::context::Restart;
use kafleet_handlers::{Fail, Failure, ParamsError};
use kafleet_model::event::{AttemptFailure, Event, InterruptionReason, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::retry::Waits;
use tokio::time::Instant;

use super::DispatcherDeps;
use super::background::{BackgroundWriter, Reason};
use super::inline::Clock;
use super::reporter::EventReporter;
use super::reports::Reports;
use super::running::RunningAttempt;
use crate::attempt::output::OutputBuffer;
use crate::completions::Completions;
use crate::decode::{InFlight, Invalid, Restarts};
use crate::events::RESULT_REFUSED;
use crate::unique::ForeignAsk;

/// Way out of a dispatcher, or of one attempt.
pub(super) enum Exit {
    /// The task succeeds. `skipped`: the failure of its attempt, if the policy of the type ignores it.
    Completed { output: RawJson, skipped: Option<Failure> },
    /// The task fails, or its handler has stopped because of a cancellation. `code`: it is also kept as a dead letter.
    Failed { failure: Failure, code: Option<&'static str> },
    /// The task continues in this worker after a wait.
    Waiting(Wait),
    /// The tracker keeps the task during its wait.
    HandedOver(Wait),
    /// The tracker decides about the unique task of a foreign producer.
    Asked(Box<ForeignAsk>),
    /// The attempt starts again with its number, because its process has ended or its batch has failed.
    Restarted { restart: Restart, failure: Failure },
    /// The next owner of the partition continues the task. The value is the reason for interrupting its attempt.
    Released(Option<InterruptionReason>),
    /// The params do not fit the type.
    Rejected(ParamsError),
    /// The task was cancelled or killed.
    Cancelled(Cancellation),
    /// The task was not started before its expiry.
    Expired { late_ms: i64 },
}

/// Wait before the next attempt of a task.
pub(super) enum Wait {
    /// Until the `not before` of the task.
    Start { due_ms: i64, wait: Duration },
    /// After an attempt. `waits`: those of the run with this one, if the attempt is not counted.
    Retry { wait: Duration, waits: Option<Waits>, failure: Failure },
}

/// Task that leaves: before an attempt, or with the one that has run.
pub(super) enum LeavingTask {
    Queued(Box<InFlight>),
    Running(RunningAttempt),
}

/// Work that an exit leaves to the queue.
pub(super) enum Onward {
    /// The task has left. Its ordering key, or 0, is free for the next task.
    Left { key: u64 },
    /// The task stays for an attempt after a wait. `due_ms`: of another attempt; the commits first record what the task has
    /// used.
    Waits { in_flight: Box<InFlight>, wait: Duration, due_ms: Option<i64> },
    /// The task stays for the same attempt, at once.
    Restarts(Box<InFlight>),
}

/// Carries out exits.
pub(super) struct Exits {
    pub reporter: EventReporter,
    pub reports: Reports,
    pub background: BackgroundWriter,
    completions: Arc<Completions>,
    /// Set once this worker leaves a task that it has announced in an event to another worker.
    pub unfinished: bool,
}

impl Exits {
    pub(super) fn new(deps: &DispatcherDeps, output: Arc<OutputBuffer>) -> Self {
        Self {
            reporter: EventReporter::new(deps.events.clone(), output),
            reports: Reports::new(deps),
            background: BackgroundWriter::new(deps),
            completions: deps.completions.clone(),
            unfinished: false,
        }
    }

    /// Carries out an exit. Returns what is left to the queue.
    pub(super) async fn carry_out(&mut self, mut leaving: LeavingTask, exit: Exit) -> Onward {
        self.end_output(&mut leaving, &exit).await;
        self.reports.ended(&mut leaving, &exit);
        match (exit, leaving) {
            (Exit::Completed { output, skipped }, LeavingTask::Running(running)) => {
                self.complete(running, output, skipped).await
            }
            (Exit::Failed { failure, code }, leaving) => {
                let ended = leaving.failure(&failure.kind, failure.message.clone());
                let is_cancelled = failure.then == Fail::Cancelled;
                let payload = if is_cancelled { Payload::Cancelled(ended) } else { Payload::Failed(ended) };
                let event = leaving.event(&self.reporter, payload);
                match code {
                    Some(code) => {
                        let reason = Reason { code, message: failure.message, pointer: None };
                        self.dead_letter(leaving.into_task(), event, reason)
                    }
                    None => self.end(leaving.into_task(), event).await,
                }
            }
            (Exit::Rejected(error), leaving) => self.reject(leaving.into_task(), error),
            (Exit::Cancelled(verdict), leaving) => {
                let event = leaving.cancelled_event(&self.reporter, verdict);
                self.end(leaving.into_task(), event).await
            }
            (Exit::Expired { late_ms }, leaving) => {
                let message = format!("it was not started before its expiry, which passed {late_ms} ms ago");
                let event = leaving.event(&self.reporter, Payload::Expired(leaving.failure("expired", message)));
                self.end(leaving.into_task(), event).await
            }
            (Exit::Waiting(wait), leaving) => self.wait(leaving, &wait).await,
            (Exit::HandedOver(wait), leaving) => self.defer_to_tracker(leaving, &wait).await,
            (Exit::Asked(ask), leaving) => self.hand_over_ask(leaving.into_task(), *ask).await,
            (Exit::Restarted { restart, failure }, LeavingTask::Running(running)) => {
                self.restart(running, restart, &failure).await
            }
            (Exit::Released(Some(reason)), LeavingTask::Running(mut running)) => {
                self.reporter.publish_interruption(&mut running, reason, reason.message()).await;
                self.release(running.in_flight)
            }
            // Only an attempt has a result, or starts again.
            (Exit::Released(_) | Exit::Completed { .. } | Exit::Restarted { .. }, leaving) => {
                self.release(leaving.into_task())
            }
        }
    }

    /// Keeps an invalid record as a dead letter.
    pub(super) fn keep_invalid(&mut self, invalid: Box<Invalid>) {
        self.reports.metrics.record_dead_letter(invalid.reject.code);
        self.background.write_invalid(invalid);
        self.reporter.schedule_flush(Instant::now());
        self.reports.metrics.record_outcome("rejected", Duration::ZERO);
    }

    /// Returns whether a success of an attempt is published in its event alone, without output or a result before it.
    pub(super) fn is_event_only(&self, running: &RunningAttempt) -> bool {
        self.reporter.output.is_idle() && !self.background.has_result(&running.in_flight)
    }

    /// Completes a task whose attempt has succeeded and whose result is in the events only: the common case.
    pub(super) fn complete_in_batch(
        &mut self,
        mut running: RunningAttempt,
        output: &RawJson,
        took: Duration,
        clock: &Clock,
    ) -> Onward {
        self.reports.succeeded(&mut running, took);
        let RunningAttempt { in_flight, started_at_ms, cx, .. } = running;
        let onward = Onward::left(&in_flight);
        match self.reporter.add_success(in_flight, started_at_ms, output, clock) {
            Ok(()) => self.reports.notify(|observer| observer.on_success(&cx, took)),
            Err((in_flight, error)) => {
                let message = format!("the result could not be published: {error}");
                let refused = Failure::dead(message.as_str()).of_kind(RESULT_REFUSED);
                self.reports.notify(|observer| observer.on_failure(&cx, &refused, Duration::ZERO));
                let failure = AttemptFailure::new(RESULT_REFUSED, message.clone(), in_flight.progress.attempts + 1);
                let event = self.reporter.event(Payload::Failed(failure), &in_flight);
                self.dead_letter(in_flight, event, Reason { code: RESULT_REFUSED, message, pointer: None });
            }
        }
        onward
    }

    async fn complete(&mut self, mut running: RunningAttempt, output: RawJson, skipped: Option<Failure>) -> Onward {
        if let Some(failure) = skipped {
            let mut event = self.reporter.event_of_attempt(Payload::Warned, &running);
            event.message = Some(format!("skipped ({}): {}", failure.kind, failure.message));
            self.reporter.publish_started(&mut running).await;
            self.reporter.publish(&mut running.in_flight, event).await;
        }
        let clock = Clock::read();
        let took = clock.now.duration_since(running.started_at);
        if !self.background.has_result(&running.in_flight) {
            return self.complete_in_batch(running, &output, took, &clock);
        }
        self.reports.succeeded(&mut running, took);
        self.reports.notify(|observer| observer.on_success(&running.cx, took));
        let payload = Payload::Succeeded { started_at_ms: Some(running.started_at_ms), output: Some(output) };
        let event = self.reporter.event_of_attempt(payload, &running);
        self.end(running.in_flight, event).await
    }

    /// Ends a task with its terminal event, and with its result before it if the task has one for other systems.
    async fn end(&mut self, in_flight: Box<InFlight>, event: Event) -> Onward {
        let onward = Onward::left(&in_flight);
        if self.background.has_result(&in_flight) {
            self.reporter.forget_children(&in_flight);
            self.background.end(in_flight, event);
        } else {
            self.reporter.publish_terminal(&in_flight, &event).await;
        }
        onward
    }

    /// Ends a task as failed and keeps it as a dead letter.
    fn dead_letter(&mut self, in_flight: Box<InFlight>, event: Event, reason: Reason<'_>) -> Onward {
        let onward = Onward::left(&in_flight);
        self.reporter.forget_children(&in_flight);
        self.reports.metrics.record_dead_letter(reason.code);
        self.background.write_dead_letter(in_flight, event, reason);
        onward
    }

    fn reject(&mut self, in_flight: Box<InFlight>, error: ParamsError) -> Onward {
        let at = if error.pointer.is_empty() { "the params".to_owned() } else { format!("`{}`", error.pointer) };
        let message = format!("{at} do not fit the type: {}", error.message);
        let failure = AttemptFailure::new("schema", message.clone(), 0);
        let event = self.reporter.event(Payload::Failed(failure), &in_flight);
        self.dead_letter(in_flight, event, Reason { code: "schema", message, pointer: Some(error.pointer) })
    }

    async fn wait(&mut self, leaving: LeavingTask, wait: &Wait) -> Onward {
        let event = leaving.wait_event(&self.reporter, wait);
        let mut in_flight = leaving.use_up(wait);
        let due_ms = event.payload.due_ms().filter(|_| matches!(wait, Wait::Retry { .. }));
        // A task that has been announced is known to wait for its start.
        if due_ms.is_some() || !in_flight.announced {
            self.reporter.publish(&mut in_flight, event).await;
        }
        in_flight.restarts = Restarts::default();
        Onward::Waits { in_flight, wait: wait.time(), due_ms }
    }

    /// Hands a task over to the tracker, which keeps it until it is due; the event completes the input.
    async fn defer_to_tracker(&mut self, leaving: LeavingTask, wait: &Wait) -> Onward {
        let event = leaving.wait_event(&self.reporter, wait);
        self.write_with_record(leaving.use_up(wait), event).await
    }

    /// Hands a unique task over to the tracker, which decides about it; the event completes the input.
    async fn hand_over_ask(&mut self, mut in_flight: Box<InFlight>, ask: ForeignAsk) -> Onward {
        ask.apply(&mut in_flight.task);
        let event = self.reporter.event(Payload::Asked { record: None }, &in_flight);
        self.write_with_record(in_flight, event).await
    }

    /// Completes an input with an event that contains its record.
    async fn write_with_record(&mut self, in_flight: Box<InFlight>, mut event: Event) -> Onward {
        let onward = Onward::left(&in_flight);
        if in_flight.record.has_foreign_headers || in_flight.record.has_own_key {
            // The event needs the whole record, which is read again in the background.
            self.reporter.forget_children(&in_flight);
            self.background.write_deferred_task(in_flight, event);
        } else {
            let publisher = self.reporter.events.publisher();
            event.payload.set_record(publisher.record_copy(&in_flight.task, &in_flight.progress_of_copy()));
            self.reporter.publish_terminal(&in_flight, &event).await;
        }
        onward
    }

    async fn restart(&mut self, mut running: RunningAttempt, restart: Restart, failure: &Failure) -> Onward {
        let reason = match restart {
            Restart::Shared => InterruptionReason::ProcessEnded,
            Restart::Split => InterruptionReason::BatchSplit,
            Restart::Unsent | Restart::Blameless | Restart::Alone => InterruptionReason::ProcessDied,
        };
        // An attempt that was not sent has not run, and one whose batch is split goes on, but people may have seen its start.
        if !matches!(restart, Restart::Unsent | Restart::Split) || running.announced_start {
            self.reporter.publish_interruption(&mut running, reason, &failure.message).await;
        }
        let mut in_flight = running.in_flight;
        in_flight.restarts.add(restart);
        Onward::Restarts(in_flight)
    }

    fn release(&mut self, in_flight: Box<InFlight>) -> Onward {
        self.unfinished |= in_flight.announced;
        self.completions.release(in_flight.tag);
        self.reporter.forget_children(&in_flight);
        Onward::left(&in_flight)
    }

    /// Publishes the last output of an attempt. That of one without an outcome is dropped: the attempt runs again.
    async fn end_output(&mut self, leaving: &mut LeavingTask, exit: &Exit) {
        match (leaving, exit) {
            (LeavingTask::Queued(_), _) => self.reporter.schedule_flush(Instant::now()),
            (LeavingTask::Running(running), Exit::Released(_) | Exit::Rejected(_)) => {
                self.reporter.output.close(&running.cx);
            }
            (LeavingTask::Running(running), _) => self.reporter.publish_last_output(running).await,
        }
    }
}

impl Exit {
    /// Value of the label `outcome` in metrics; `None`: no attempt ends, and the task does not either.
    pub(super) fn outcome(&self) -> Option<&'static str> {
        Some(match self {
            Self::Completed { .. } => "succeeded",
            Self::Failed { failure, .. } if failure.then == Fail::Cancelled => "cancelled",
            Self::Failed { .. } => "failed",
            Self::Waiting(Wait::Retry { waits, .. }) | Self::HandedOver(Wait::Retry { waits, .. }) => match waits {
                Some(_) => "waited",
                None => "retried",
            },
            Self::Restarted { .. } => "restarted",
            Self::Released(Some(_)) => "interrupted",
            Self::Rejected(_) => "rejected",
            Self::Cancelled(_) => "cancelled",
            Self::Expired { .. } => "expired",
            Self::Asked(_)
            | Self::Waiting(Wait::Start { .. })
            | Self::HandedOver(Wait::Start { .. })
            | Self::Released(None) => return None,
        })
    }

    /// Failure of the attempt, if it has one.
    pub(super) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Completed { skipped, .. } => skipped.as_ref(),
            Self::Failed { failure, .. } | Self::Restarted { failure, .. } => Some(failure),
            Self::Waiting(Wait::Retry { failure, .. }) | Self::HandedOver(Wait::Retry { failure, .. }) => Some(failure),
            _ => None,
        }
    }
}

impl Wait {
    pub(super) fn time(&self) -> Duration {
        match self {
            Self::Start { wait, .. } | Self::Retry { wait, .. } => *wait,
        }
    }
}

impl LeavingTask {
    pub(super) fn into_task(self) -> Box<InFlight> {
        match self {
            Self::Queued(in_flight) => in_flight,
            Self::Running(running) => running.in_flight,
        }
    }

    /// Failure of the task, or of its attempt.
    fn failure(&self, kind: &str, message: String) -> AttemptFailure {
        match self {
            Self::Queued(_) => AttemptFailure::new(kind, message, 0),
            Self::Running(running) => running.failure(kind, message),
        }
    }

    fn event(&self, reporter: &EventReporter, payload: Payload) -> Event {
        match self {
            Self::Queued(in_flight) => reporter.event(payload, in_flight),
            Self::Running(running) => reporter.event_of_attempt(payload, running),
        }
    }

    fn cancelled_event(&self, reporter: &EventReporter, Cancellation { kind, message, by }: Cancellation) -> Event {
        let (attempt, failure) = match self {
            Self::Queued(in_flight) => {
                (in_flight.progress.attempts, AttemptFailure::new(kind, message, in_flight.progress.attempts))
            }
            Self::Running(running) => (running.attempt(), running.failure(kind, message)),
        };
        Event { attempt, by: by.map(Into::into), ..self.event(reporter, Payload::Cancelled(failure)) }
    }

    fn wait_event(&self, reporter: &EventReporter, wait: &Wait) -> Event {
        match wait {
            Wait::Start { due_ms, .. } => {
                self.event(reporter, Payload::Scheduled { due_ms: Some(*due_ms), record: None })
            }
            Wait::Retry { wait, waits, failure } => {
                let failure = self.failure(&failure.kind, failure.message.clone());
                let waits = waits.map_or(0, |waits| waits.number);
                let mut event = self.event(reporter, Payload::Retrying { failure, due_ms: None, record: None, waits });
                if let Self::Queued(in_flight) = self {
                    // A wait without an attempt counts those before it, as a wait of an attempt does.
                    event.attempt = in_flight.progress.attempts + 1;
                }
                let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                event.payload.set_due(event.at_ms.saturating_add(wait_ms));
                event
            }
        }
    }

    /// Counts the attempt that ends with a wait, or the wait.
    fn use_up(self, wait: &Wait) -> Box<InFlight> {
        let mut in_flight = self.into_task();
        if let Wait::Retry { waits, .. } = wait {
            in_flight.progress.use_up(*waits);
        }
        in_flight
    }
}

impl From<Box<InFlight>> for LeavingTask {
    fn from(in_flight: Box<InFlight>) -> Self {
        Self::Queued(in_flight)
    }
}

impl From<RunningAttempt> for LeavingTask {
    fn from(running: RunningAttempt) -> Self {
        Self::Running(running)
    }
}

impl Onward {
    pub(super) fn left(in_flight: &InFlight) -> Self {
        Self::Left { key: if in_flight.holds_key { in_flight.key } else { 0 } }
    }
}
