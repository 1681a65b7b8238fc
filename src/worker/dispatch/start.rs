//! Starting tasks: checks before an attempt, the first poll, and the move to a task of its own.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::control::blocked_by;
use super::exits::{Exit, Wait};
use super::failure_policy::{time_left, time_out};
use super::inline::Clock;
use super::running::Running;
use super::tasks::waits_at_tracker;
use super::{Dispatcher, HAND_OUT, LONGEST_WAIT, retries};
use crate::handlers::context::AttemptStart;
use crate::handlers::task_labels::TaskLabels;
use crate::handlers::{Answer, AnswerFuture, Context};
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
        self.exits.reporter.send_results().await;
        if more {
            // Lets commands and ended attempts through.
            self.exits.reports.metrics.flush();
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
                Input::Invalid(invalid) if self.tasks.assignments.is_closed(invalid.tag) => {
                    self.tasks.completions.release(invalid.tag);
                }
                Input::Invalid(invalid) => self.exits.keep_invalid(invalid),
            }
            if self.exits.reporter.results_are_due(self.clock.now) {
                self.exits.reporter.send_results().await;
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
            self.gauges.set_stuck_slots(stuck);
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
            return self.leave(in_flight, Exit::Released(None)).await;
        }
        if let Some(verdict) = blocked_by(&self.control, &in_flight) {
            return self.leave(in_flight, Exit::Cancelled(verdict)).await;
        }
        let Some(mut in_flight) = self.tasks.queue.acquire_key(in_flight) else { return };
        let now = self.clock.now_ms();
        if let Some(wait) = retries::time_left(&self.tasks.assignments, &mut in_flight, now) {
            return self.tasks.queue.delay(in_flight, wait);
        }
        let policy = in_flight.task.policy.as_deref();
        let expires_at_ms = policy.and_then(|policy| policy.expires_at_ms);
        if let Some(at) = expires_at_ms.filter(|at| *at <= now && in_flight.is_first_start()) {
            return self.leave(in_flight, Exit::Expired { late_ms: now.saturating_sub(at) }).await;
        }
        if let Some(due_ms) = policy.and_then(|policy| policy.not_before_ms).filter(|at| *at > now) {
            let wait = Duration::from_millis((due_ms - now).max(0) as u64).min(LONGEST_WAIT);
            let start = Wait::Start { due_ms, wait };
            let exit = match waits_at_tracker(&self.tasks.policy, &self.exits.config, wait) {
                true => Exit::HandedOver(start),
                false => Exit::Waiting(start),
            };
            return self.leave(in_flight, exit).await;
        }
        if let Some(error) = self.registered.schema.validate(&in_flight.task.params) {
            return self.leave(in_flight, Exit::Rejected(error)).await;
        }
        if time_left(&self.tasks.policy, &in_flight, now).is_some_and(|left| left.is_zero()) {
            let exit = time_out(&self.tasks.policy, &in_flight);
            return self.leave(in_flight, exit).await;
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
        let span = self.exits.reports.begin(&mut in_flight, now);
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
        self.exits.reporter.schedule_flush(started_at);
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
        self.exits.reports.notify(|observer| observer.on_start(&running.cx));
        let span = attempt::span(&*handler, &running.cx);
        match span.in_scope(|| attempt::start(&*handler, &running.in_flight.task.params, &running.cx)) {
            Err(failure) => {
                let exit = self.judge(&mut running, Err(failure));
                self.leave(running, exit).await;
            }
            Ok(Err(error)) => self.leave(running, Exit::Rejected(error)).await,
            Ok(Ok(future)) => {
                if let Some((mut running, answer)) = self.run_attempt(running, future, span, deadline) {
                    let answer = answer.and_then(|output| self.publisher.check_size(output));
                    let exit = self.judge(&mut running, answer);
                    self.leave(running, exit).await;
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
        let publisher = self.publisher.clone();
        let announcement = Announcement::of(&running.in_flight.task);
        let own = running.in_flight.task.policy.as_deref().and_then(|policy| policy.stall_timeout);
        let stall = own.or(self.tasks.policy.stall_timeout).map(Duration::from);
        let limits = TimeLimits { deadline, stall, grace: self.exits.config.grace.into() };
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
            let has_more = self.publisher.has_outputs(&running.cx) || self.exits.results.has_any(&running.in_flight);
            if self.publisher.fits(output) && self.exits.reporter.output.is_idle() && !has_more {
                self.tasks.circuit.answered(running.started_at, &answer);
                let onward = self.exits.complete_in_batch(running, output, took, &self.clock);
                self.tasks.go_on(onward);
                return None;
            }
        }
        if answer.is_err() || !self.publisher.has_outputs(&running.cx) {
            self.tasks.circuit.answered(running.started_at, &answer);
            return Some((running, answer));
        }
        let cx = running.cx.clone();
        let stop = running.stop_token();
        let publisher = self.publisher.clone();
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
        let announce_at = running.started_at + Duration::from(self.exits.config.started_delay);
        let id = self.running.insert(running, announce_at);
        self.gauges.set_in_flight(self.running.len());
        id
    }
}
