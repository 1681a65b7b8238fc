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
}
