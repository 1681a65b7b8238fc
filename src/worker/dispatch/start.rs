//! Starting tasks: checks before an attempt, the first poll, and the move to a task of its own.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::control::blocked_by;
use super::failure_policy::time_left;
use super::inline::Clock;
use super::running::Running;
use super::tasks::Tasks;
use super::{Dispatcher, HAND_OUT, retries};
use crate::handlers::context::AttemptStart;
use crate::handlers::task_labels::TaskLabels;
use crate::handlers::{Answer, AnswerFuture, Context, Failure};
use crate::model::event::Announcement;
use crate::runtime;
use crate::worker::attempt::{self, AttemptEnd, TimeLimits};
use crate::worker::decode::{InFlight, Input};

impl Dispatcher {
    /// Starts at most [`HAND_OUT`] inputs. Returns whether more could start now.
    pub(super) async fn start_ready(&mut self) -> bool {
        self.clock = Clock::read();
        let more = self.start_batch().await;
        self.permits.release_unused();
        self.tasks.reporter.send_results().await;
        if more {
            // Lets commands and ended attempts through.
            self.tasks.metrics.flush();
            tokio::task::yield_now().await;
        }
        more
    }

    async fn start_batch(&mut self) -> bool {
        let stuck = self.update_stuck_slots();
        let mut started = 0;
        while self.tasks.circuit.admits(self.clock.now, self.running.len() + stuck)
            && self.running.len() + stuck < self.limits.open_slots()
            && let Some(input) = self.next_input()
        {
            match input {
                Input::Task(in_flight) => self.start_task(in_flight).await,
                Input::Invalid(invalid) => self.tasks.reject(invalid),
            }
            if self.tasks.reporter.results_are_due(self.clock.now) {
                self.tasks.reporter.send_results().await;
                self.clock = Clock::read();
            }
            started += 1;
            if started >= HAND_OUT {
                return true;
            }
        }
        false
    }

    /// Takes the next input, with a permit if its attempt needs one.
    fn next_input(&mut self) -> Option<Input> {
        let queue = &mut self.tasks.queue;
        if let Some(in_flight) = self.quarantine.pop() {
            return Some(Input::Task(in_flight));
        }
        if queue.has_quarantined() && self.permits.acquire_quarantined() {
            return queue.pop_quarantined().map(Input::Task);
        }
        if queue.ready() > 0 && self.permits.acquire() { queue.pop() } else { None }
    }

    /// Counts the slots held by attempts that have ended but do not return.
    fn update_stuck_slots(&mut self) -> usize {
        let stuck = self.registered.handler.stuck() + self.env.blocking_pool.stuck();
        if stuck != self.stuck_slots {
            self.stuck_slots = stuck;
            self.tasks.metrics.set_stuck_slots(stuck);
            if stuck > 0 {
                let task_type = &self.tasks.task_type;
                tracing::warn!(%task_type, stuck, "slots are held by ended attempts whose blocking calls do not return");
            }
        }
        stuck
    }

    /// Starts an attempt, unless a check ends the task or makes it wait.
    async fn start_task(&mut self, in_flight: Box<InFlight>) {
        if self.tasks.assignments.is_closed(in_flight.tag) {
            return self.tasks.release(in_flight);
        }
        if let Some(verdict) = blocked_by(&self.control, &in_flight) {
            return self.tasks.cancel_unstarted(in_flight, verdict).await;
        }
        let Some(mut in_flight) = self.tasks.queue.acquire_key(in_flight) else { return };
        let now = self.clock.now_ms();
        if let Some(wait) = retries::time_left(&self.tasks.assignments, &mut in_flight, now) {
            return self.tasks.queue.delay(in_flight, wait);
        }
        let policy = in_flight.task.policy.as_deref();
        let expires_at_ms = policy.and_then(|policy| policy.expires_at_ms);
        if expires_at_ms.is_some_and(|at| at <= now) && in_flight.is_first_start() {
            return self.tasks.expire(in_flight, now).await;
        }
        if let Some(due_ms) = policy.and_then(|policy| policy.not_before_ms).filter(|at| *at > now) {
            return self.tasks.defer(in_flight, due_ms, now).await;
        }
        if let Some(error) = self.registered.schema.validate(&in_flight.task.params) {
            return self.tasks.refuse(in_flight, error);
        }
        if time_left(&self.tasks.policy, &in_flight, now).is_some_and(|left| left.is_zero()) {
            return self.tasks.time_out(in_flight);
        }
        if in_flight.suspect.is_some() && self.quarantine.is_full() {
            return self.quarantine.waiting.push_back(in_flight);
        }
        if let Some(in_flight) = self.admit_by_rate(in_flight) {
            self.start_attempt(in_flight, now).await;
        }
    }

    async fn start_attempt(&mut self, mut in_flight: Box<InFlight>, now: i64) {
        let started_at = self.clock.now;
        let policy = &self.tasks.policy;
        let timeout = in_flight.task.policy.as_ref().and_then(|policy| policy.timeout).unwrap_or(policy.timeout);
        let left = time_left(policy, &in_flight, now).unwrap_or(Duration::MAX);
        let deadline = started_at + Duration::from(timeout).min(left);
        let span = self.tasks.spans.begin(&mut in_flight, now);
        let cx = Context::begin(AttemptStart {
            id: in_flight.task.id.clone(),
            run: in_flight.task.run,
            number: in_flight.attempts + 1,
            deadline: Some(deadline.into_std()),
            trace: in_flight.attempt_trace(span.as_deref()),
            asof: in_flight.task.asof,
            labels: in_flight.task.policy.as_deref().and_then(TaskLabels::of),
            headers: in_flight.kept_headers.clone(),
            env: self.env.clone(),
        });
        self.tasks.reporter.schedule_flush(started_at);
        self.tasks.metrics.record_start(in_flight.is_first_start().then(|| in_flight.queued_ms(now)));
        let handler = self.permits.take();
        let handler = handler.unwrap_or_else(|| self.quarantine.handler_for(&in_flight, &self.registered.handler));
        let mut running = Running {
            in_flight,
            cx,
            stop: None,
            started_at,
            started_at_ms: now,
            announced_start: false,
            cancelled: None,
            span,
        };
        self.tasks.observers.notify(|observer| observer.on_start(&running.cx));
        let span = attempt::span(&*handler, &running.cx);
        match span.in_scope(|| attempt::start(&*handler, &running.in_flight.task.params, &running.cx)) {
            Err(failure) => self.tasks.finish(running, Err(failure)).await,
            Ok(Err(error)) => {
                self.tasks.reporter.output.close(&running.cx);
                running.end_span(&self.tasks.spans, "failed", Some(("schema", &error.message)));
                self.tasks.observers.notify_failure(&running, &Failure::of_params(&error));
                self.tasks.refuse(running.in_flight, error);
            }
            Ok(Ok(future)) => {
                if let Some((running, answer)) = self.run_attempt(running, future, span, deadline) {
                    self.tasks.finish(running, answer).await;
                    // Finishing may have waited for the producer.
                    self.clock = Clock::read();
                }
            }
        }
    }

    /// Polls an attempt inline, if the type's attempts are short; runs it in a task of its own if it is pending. Returns
    /// an attempt that has ended inline, unless it is complete.
    fn run_attempt(
        &mut self,
        mut running: Running,
        mut future: AnswerFuture,
        span: Span,
        deadline: Instant,
    ) -> Option<(Running, Answer)> {
        self.tasks.circuit.attempt_started(running.started_at);
        if self.inline.admit() {
            let polled = span.in_scope(|| attempt::poll_once(future));
            let took = self.clock.advance();
            self.inline.record(took);
            match polled {
                Ok(answer) => return self.end_inline(running, answer, took),
                Err(pending) => future = pending,
            }
        }
        let cx = running.cx.clone();
        let stop = running.stop_token();
        let publisher = self.tasks.publisher.clone();
        let announcement = Announcement::of(&running.in_flight.task);
        let own = running.in_flight.task.policy.as_deref().and_then(|policy| policy.stall_timeout);
        let stall = own.or(self.tasks.policy.stall_timeout).map(Duration::from);
        let limits = TimeLimits { deadline, stall, grace: self.tasks.config.grace.into() };
        let ends = self.running.end_sender();
        let id = self.insert_running(running);
        runtime::spawn(async move {
            let end = attempt::run(future, cx.clone(), stop.clone(), limits).instrument(span).await;
            let end = publisher.publish(end, &cx, announcement, &stop).await;
            // Fails only after an abort: otherwise the dispatcher waits for every attempt.
            let _ = ends.send((id, end));
        });
        None
    }

    /// Completes an attempt that was answered inline, or returns it. Children are published from a task of its own.
    fn end_inline(&mut self, mut running: Running, answer: Answer, took: Duration) -> Option<(Running, Answer)> {
        if let Ok(output) = &answer {
            // Ended before the check, so that no output is added after it.
            running.cx.end();
            // The common case: nothing to publish but the event.
            let Tasks { publisher, reporter, .. } = &self.tasks;
            let has_more = publisher.has_outputs(&running.cx) || self.tasks.results.has_any(&running.in_flight);
            if publisher.fits(output) && reporter.output.is_idle() && !has_more {
                self.tasks.circuit.answered(running.started_at, &answer, &self.tasks.metrics);
                self.tasks.complete(running, output, took, &self.clock);
                return None;
            }
        }
        if answer.is_err() || !self.tasks.publisher.has_outputs(&running.cx) {
            self.tasks.circuit.answered(running.started_at, &answer, &self.tasks.metrics);
            return Some((running, answer));
        }
        let cx = running.cx.clone();
        let stop = running.stop_token();
        let publisher = self.tasks.publisher.clone();
        let announcement = Announcement::of(&running.in_flight.task);
        let ends = self.running.end_sender();
        let id = self.insert_running(running);
        runtime::spawn(async move {
            let end = publisher.publish(AttemptEnd::Answered(answer), &cx, announcement, &stop).await;
            let _ = ends.send((id, end));
        });
        None
    }

    fn insert_running(&mut self, running: Running) -> u64 {
        self.quarantine.attempt_started(&running.in_flight);
        let announce_at = running.started_at + Duration::from(self.tasks.config.started_delay);
        let id = self.running.insert(running, announce_at);
        self.tasks.metrics.set_in_flight(self.running.len());
        id
    }
}
