//! Outcomes of attempts: success, retry, skip, failure, or release to the next owner.

use std::time::Duration;

use tokio::time::Instant;

use super::failure_policy::{self, Disposition};
use super::inline::Clock;
use super::running::Running;
use super::tasks::{Tasks, waits_at_tracker};
use super::{Dispatcher, retries};
use crate::handlers::context::Restart;
use crate::handlers::{Answer, Fail, Failure, TIMEOUT};
use crate::model::event::{InterruptionReason, Payload};
use crate::model::json::RawJson;
use crate::model::retry::Waits;
use crate::runtime::now_ms;
use crate::worker::attempt::{self, AttemptEnd, STALLED};
use crate::worker::child::CRASHED;
use crate::worker::decode::Restarts;

/// Maximum number of repetitions of an attempt whose process has ended.
const MAX_RESTARTS: u8 = 3;

impl Dispatcher {
    pub(super) async fn attempt_ended(&mut self, id: u64, end: AttemptEnd) {
        let Some(mut running) = self.running.remove(id) else { return };
        self.tasks.metrics.set_in_flight(self.running.len());
        self.quarantine.attempt_ended(&running.in_flight);
        // The partition has another owner, or the worker has left the group.
        let cancelled = self.tasks.assignments.cancelled(running.in_flight.tag);
        let late = cancelled.or((!self.open).then_some(InterruptionReason::WorkerStopped));
        self.tasks.circuit.attempt_ended(&running, &end, late.is_some(), &self.tasks.metrics);
        if let Some(why) = late {
            return self.tasks.interrupt(running, why).await;
        }
        match end {
            AttemptEnd::Interrupted => match running.cancelled.take() {
                Some(verdict) => self.tasks.cancel_running(running, *verdict).await,
                None => self.tasks.interrupt(running, InterruptionReason::WorkerStopped).await,
            },
            AttemptEnd::Answered(answer) => self.tasks.finish(running, answer).await,
            AttemptEnd::TimedOut => {
                let took = duration_text(running.started_at.elapsed());
                let failure = Failure::retry(format!("the attempt timed out after {took}")).of_kind(TIMEOUT);
                self.tasks.finish(running, Err(failure)).await;
            }
            AttemptEnd::Stalled(limit) => {
                let message = format!("the attempt showed no sign of life for {}", duration_text(limit));
                self.tasks.finish(running, Err(Failure::retry(message).of_kind(STALLED))).await;
            }
        }
    }
}

impl Tasks {
    /// Ends an attempt whose outcome does not count; the next owner of its partition starts it again.
    async fn interrupt(&mut self, mut running: Running, why: InterruptionReason) {
        running.end_span(&self.spans, "interrupted", None);
        self.metrics.record_outcome("interrupted", running.started_at.elapsed());
        self.reporter.output.close(&running.cx);
        self.reporter.publish_interruption(&mut running, why, why.message()).await;
        self.release(running.in_flight);
    }

    pub(super) async fn finish(&mut self, mut running: Running, answer: Answer) {
        self.reporter.publish_last_output(&mut running).await;
        match answer.and_then(|output| self.publisher.check_size(output)) {
            Ok(output) => self.succeed(running, output).await,
            Err(failure) => self.fail(running, failure).await,
        }
    }

    async fn succeed(&mut self, mut running: Running, output: RawJson) {
        let clock = Clock::read();
        let took = clock.now.duration_since(running.started_at);
        if !self.results.has_any(&running.in_flight) {
            return self.complete(running, &output, took, &clock);
        }
        running.end_span(&self.spans, "succeeded", None);
        self.metrics.record_outcome("succeeded", took);
        self.observers.notify(|observer| observer.on_success(&running.cx, took));
        let payload = Payload::Succeeded { started_at_ms: Some(running.started_at_ms), output: Some(output) };
        let event = self.reporter.event_of_attempt(payload, &running);
        self.end(running.in_flight, event).await;
    }

    async fn fail(&mut self, mut running: Running, failure: Failure) {
        if let Some(verdict) = running.cancelled.take() {
            return self.cancel_running(running, *verdict).await;
        }
        if running.in_flight.suspect.is_some() && self.has_quarantine && failure.kind == CRASHED {
            return self.suspect_crashed(running, failure).await;
        }
        if failure.kind == CRASHED
            && let Some(restart) = running.cx.interruption.restart()
            && (!Restarts::counts(restart) || running.in_flight.restarts.number < MAX_RESTARTS)
        {
            return restart_attempt(self, running, restart, &failure).await;
        }
        let failure = self.circuit.spare(failure);
        if !failure_policy::is_wait(&self.policy, &running.in_flight, &failure, now_ms()) {
            self.log_failure(&running, &failure);
            self.circuit.attempt_failed(&failure, &self.metrics);
        }
        if failure_policy::backoff_starts_again(&self.policy, &running.in_flight, running.started_at.elapsed()) {
            running.in_flight.backoff_from = running.in_flight.attempts;
        }
        match failure_policy::decide(&self.policy, &running.in_flight, running.attempt(), failure) {
            Disposition::Retry { wait, failure } => self.retry(running, wait, None, failure).await,
            Disposition::Wait { wait, waits, failure } => self.retry(running, wait, Some(waits), failure).await,
            Disposition::Skip { failure } => self.skip(running, failure).await,
            Disposition::End { code, failure } => self.give_up(running, code, failure).await,
        }
    }

    /// Delays the next attempt, here without a slot, or at the tracker if the task would be held here for long.
    /// `waits`: waits of the run with this one, if the attempt is not counted.
    async fn retry(&mut self, mut running: Running, wait: Duration, waits: Option<Waits>, failure: Failure) {
        let event = self.reporter.retrying(&running, &failure, wait, waits.map_or(0, |waits| waits.number));
        let run_time = running.started_at.elapsed();
        let mut held = wait;
        let outcome = if waits.is_some() { "waited" } else { "retried" };
        running.end_span(&self.spans, outcome, Some((&failure.kind, &failure.message)));
        if let Some(waits) = waits {
            self.metrics.record_wait(run_time);
            self.observers.notify(|observer| observer.on_wait(&running.cx, &failure, wait));
            running.in_flight.waits = waits;
            // Short waits in a row would hold back the commits of the partition for as long as a long one.
            held = held.saturating_add(running.in_flight.waited);
            running.in_flight.waited = held;
        } else {
            self.metrics.record_outcome("retried", run_time);
            self.observers.notify(|observer| observer.on_retry(&running.cx, &failure, wait));
            running.in_flight.attempts = running.attempt();
        }
        let mut in_flight = running.in_flight;
        let task = &in_flight.task;
        let is_elsewhere =
            waits_at_tracker(&self.policy, &self.config, held) || retries::is_without_room(self, &in_flight);
        // Only this worker has recorded the children published by `spawn_now`, so such a task is delayed here.
        if is_elsewhere && !self.reporter.output.has_spawned(&task.id, task.run) {
            return self.hand_over(in_flight, event).await;
        }
        let due_ms = event.payload.due_ms();
        self.reporter.publish(&mut in_flight, event).await;
        retries::record(self, &mut in_flight, due_ms);
        if self.assignments.is_closed(in_flight.tag) {
            // The next owner of the partition makes the next attempt.
            return self.release(in_flight);
        }
        in_flight.restarts = Restarts::default();
        self.queue.delay(in_flight, wait);
    }

    /// Ends a failed task as a success with a warning.
    async fn skip(&mut self, mut running: Running, failure: Failure) {
        running.end_span(&self.spans, "skipped", Some((&failure.kind, &failure.message)));
        let mut event = self.reporter.event_of_attempt(Payload::Warned, &running);
        event.message = Some(format!("skipped ({}): {}", failure.kind, failure.message));
        self.reporter.publish_started(&mut running).await;
        self.reporter.publish(&mut running.in_flight, event).await;
        self.succeed(running, RawJson::null()).await;
    }

    /// Ends a task as failed or cancelled. `code`: it is also kept as a dead letter.
    async fn give_up(&mut self, mut running: Running, code: Option<&'static str>, failure: Failure) {
        let ended = running.failure(&failure.kind, failure.message.clone());
        let (outcome, payload) = match failure.then {
            Fail::Cancelled => ("cancelled", Payload::Cancelled(ended)),
            _ => ("failed", Payload::Failed(ended)),
        };
        self.metrics.record_outcome(outcome, running.started_at.elapsed());
        running.end_span(&self.spans, outcome, Some((&failure.kind, &failure.message)));
        if failure.then != Fail::Cancelled {
            self.observers.notify_failure(&running, &failure);
        }
        let event = self.reporter.event_of_attempt(payload, &running);
        match code {
            Some(code) => self.dead_letter_task(running.in_flight, event, code, failure.message),
            None => self.end(running.in_flight, event).await,
        }
    }

    /// Logs a failed attempt, at a limited rate; the events contain all of them.
    pub(super) fn log_failure(&mut self, running: &Running, failure: &Failure) {
        if let Some(suppressed) = self.failure_log.admit() {
            let task = &running.in_flight.task.id;
            let task_type = &self.task_type;
            let attempt = running.cx.number;
            let (trace_id, span_id) = attempt::trace_ids(&running.cx);
            tracing::warn!(%task, %task_type, attempt, kind = %failure.kind, reason = %failure.message, suppressed, trace_id, span_id, "an attempt failed");
        }
    }
}

/// Logs the number of failures that were not logged, once no further ones follow.
pub(super) fn report_suppressed_failures(tasks: &mut Tasks, now: Instant) {
    if let Some(suppressed) = tasks.failure_log.take_report(now) {
        let task_type = &tasks.task_type;
        tracing::warn!(%task_type, suppressed, "further attempts failed; the events of their tasks have the reasons");
    }
}

/// Runs an attempt again that ended with its process through no fault of its own. It keeps its number.
async fn restart_attempt(tasks: &mut Tasks, mut running: Running, restart: Restart, failure: &Failure) {
    running.end_span(&tasks.spans, "restarted", Some((&failure.kind, &failure.message)));
    tasks.metrics.record_outcome("restarted", running.started_at.elapsed());
    if restart != Restart::Unsent
        && let Some(suppressed) = tasks.failure_log.admit()
    {
        let task = &running.in_flight.task.id;
        let task_type = &tasks.task_type;
        let is_alone = restart == Restart::Alone;
        tracing::warn!(%task, %task_type, is_alone, reason = %failure.message, suppressed, "an attempt starts again: its process has ended");
    }
    // An attempt that was not sent has not run, but people may have seen its start.
    if restart != Restart::Unsent || running.announced_start {
        let is_ended = restart == Restart::Shared;
        let why = if is_ended { InterruptionReason::ProcessEnded } else { InterruptionReason::ProcessDied };
        tasks.reporter.publish_interruption(&mut running, why, &failure.message).await;
    }
    let mut in_flight = running.in_flight;
    if tasks.assignments.is_closed(in_flight.tag) {
        return tasks.release(in_flight);
    }
    // The rate limit has counted the start.
    in_flight.admitted = true;
    in_flight.restarts.add(restart);
    match in_flight.restarts.is_alone {
        true => tasks.queue.quarantine(in_flight),
        false => tasks.queue.push_front(in_flight),
    }
}

/// Formats a duration for messages: in milliseconds below a second.
fn duration_text(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", duration.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_duration_is_in_milliseconds() {
        let texts = [10, 999, 1_000, 1_540].map(|ms| duration_text(Duration::from_millis(ms)));
        assert_eq!(texts, ["10 ms", "999 ms", "1.0 s", "1.5 s"]);
    }
}
