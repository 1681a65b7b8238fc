//! Starting tasks: the admission gives them, the attempts start them, and what ends at once leaves through the exits.

use kafleet_handlers::permit::Permit;

use super::admission::StartDecision;
use super::attempts::AttemptBegin;
use super::exits::Exit;
use super::inline::Clock;
use super::{Dispatcher, HAND_OUT};
use crate::attempt::AttemptEnd;
use crate::decode::{InFlight, Input};

impl Dispatcher {
    /// Starts at most [`HAND_OUT`] inputs. Returns whether more could start now.
    pub(super) async fn start_ready(&mut self) -> bool {
        self.clock = Clock::read();
        let more = self.start_batch().await;
        self.admission.permits.release_unused();
        self.exits.reporter.send_results().await;
        if more {
            // Lets commands and ended attempts through.
            self.exits.reports.metrics.flush();
            tokio::task::yield_now().await;
        }
        more
    }

    async fn start_batch(&mut self) -> bool {
        self.attempts.count_stuck();
        if self.admission.batches.is_some() {
            return self.start_groups().await;
        }
        for _ in 0..HAND_OUT {
            let Some(input) = self.admission.next(self.attempts.load(), self.clock.now) else { return false };
            match input {
                Input::Task(in_flight) => self.start_task(in_flight).await,
                Input::Invalid(invalid) => self.exits.keep_invalid(invalid),
            }
            if self.exits.reporter.results_are_due(self.clock.now) {
                self.exits.reporter.send_results().await;
                self.clock = Clock::read();
            }
        }
        true
    }

    /// Starts an attempt, unless the admission keeps its task or lets it leave.
    async fn start_task(&mut self, in_flight: Box<InFlight>) {
        match self.admission.check(in_flight, self.attempts.load(), self.clock.now_ms()) {
            StartDecision::Start(in_flight, permit) => self.start_attempt(in_flight, permit).await,
            StartDecision::Waits => {}
            StartDecision::Leaves(in_flight, exit) => self.leave(in_flight, exit).await,
        }
    }

    /// Starts an attempt of a task that is admitted.
    pub(super) async fn start_attempt(&mut self, mut in_flight: Box<InFlight>, permit: Option<Permit>) {
        let now = self.clock.now_ms();
        let started_at = self.clock.now;
        let span = self.exits.reports.begin(&mut in_flight, now);
        self.exits.reporter.schedule_flush(started_at);
        let mut prepared = self.attempts.prepare(in_flight, permit, span, &self.clock);
        prepared.running.host = self.admission.hosts.as_mut().and_then(|hosts| hosts.start(started_at));
        self.exits.reports.notify(|observer| observer.on_start(&prepared.running.cx));
        match self.attempts.start(prepared, &mut self.clock) {
            AttemptBegin::Refused(running, mut error) => {
                self.admission.end_host_call(&running, &AttemptEnd::Interrupted, true);
                running.cx.hidden.hide_in(&mut error.message);
                self.leave(running, Exit::Rejected(error)).await;
            }
            AttemptBegin::Panicked(mut running, failure) => {
                self.admission.end_host_call(&running, &AttemptEnd::Interrupted, true);
                let exit = self.judge(&mut running, Err(failure));
                self.leave(running, exit).await;
            }
            AttemptBegin::Pending => {
                self.admission.adaptive.attempt_started(self.attempts.load().attempts.saturating_sub(1));
                self.admission.circuit.attempt_started(started_at);
            }
            AttemptBegin::Ended(mut running, answer, took) => {
                self.admission.circuit.attempt_started(started_at);
                self.admission.circuit.answered(started_at, &answer);
                let answer = self.admission.count_answer(&running, answer, self.attempts.load());
                match &answer {
                    Ok(output) if self.exits.is_event_only(&running) => {
                        let onward = self.exits.complete_in_batch(running, output, took, &self.clock);
                        self.admission.apply_onward(onward);
                    }
                    _ => {
                        let exit = self.judge(&mut running, answer);
                        self.leave(running, exit).await;
                        // The exit may have waited for the producer.
                        self.clock = Clock::read();
                    }
                }
            }
        }
    }

    /// Adds tasks to groups that start together, at most [`HAND_OUT`], and starts the groups that are ready. Returns whether more
    /// tasks could be added now.
    pub(super) async fn start_groups(&mut self) -> bool {
        let more = self.fill_groups().await;
        while let Some((group, permit)) = self.admission.next_group(self.attempts.load(), self.clock.now) {
            self.start_group(group, permit).await;
            self.clock = Clock::read();
            if self.exits.reporter.results_are_due(self.clock.now) {
                self.exits.reporter.send_results().await;
            }
        }
        more
    }

    async fn fill_groups(&mut self) -> bool {
        for _ in 0..HAND_OUT {
            let load = self.attempts.load();
            let in_flight = match self.admission.next_for_group(load) {
                Some(Input::Task(in_flight)) => in_flight,
                Some(Input::Invalid(invalid)) => {
                    self.exits.keep_invalid(invalid);
                    continue;
                }
                None => return false,
            };
            let now = self.clock.now_ms();
            match self.admission.check(in_flight, self.admission.load_with_groups(load), now) {
                StartDecision::Start(in_flight, _) => self.admission.join_group(in_flight, self.clock.now, now),
                StartDecision::Waits => {}
                StartDecision::Leaves(in_flight, exit) => self.leave(in_flight, exit).await,
            }
        }
        true
    }

    /// Starts the tasks of a group that may still start: in one call, or a single one as an attempt of its own.
    async fn start_group(&mut self, group: Vec<Box<InFlight>>, permit: Option<Permit>) {
        let (started_at, now) = (self.clock.now, self.clock.now_ms());
        let mut tasks = Vec::with_capacity(group.len());
        for in_flight in group {
            match self.admission.exit_from_group(&in_flight, now) {
                Some(exit) => self.leave(in_flight, exit).await,
                None => tasks.push(in_flight),
            }
        }
        if tasks.is_empty() {
            return;
        }
        self.exits.reports.metrics.record_batch(tasks.len());
        if tasks.len() == 1 {
            for in_flight in tasks {
                self.start_attempt(in_flight, permit.clone()).await;
            }
            return;
        }
        self.exits.reporter.schedule_flush(started_at);
        let mut prepared = Vec::with_capacity(tasks.len());
        for mut in_flight in tasks {
            let span = self.exits.reports.begin(&mut in_flight, now);
            let attempt = self.attempts.prepare(in_flight, None, span, &self.clock);
            self.exits.reports.notify(|observer| observer.on_start(&attempt.running.cx));
            prepared.push(attempt);
        }
        self.attempts.start_call(prepared, permit, started_at);
        self.admission.adaptive.attempt_started(self.attempts.load().attempts.saturating_sub(1));
        self.admission.circuit.attempt_started(started_at);
    }
}
