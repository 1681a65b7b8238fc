//! Starts of batches: the admission gives tasks, which join groups, and groups that are ready, which start in one call.

use kafleet_handlers::permit::Permit;

use super::admission::{SlotLoad, StartDecision};
use super::failure_policy::exit_from_group;
use super::inline::Clock;
use super::{Dispatcher, HAND_OUT};
use crate::decode::{InFlight, Input};

impl Dispatcher {
    /// Adds tasks to groups that start together, at most [`HAND_OUT`], and starts the groups that are ready. Returns whether more
    /// tasks could be added now.
    pub(super) async fn start_groups(&mut self) -> bool {
        let more = fill_groups(self).await;
        while let Some((group, permit)) = self.admission.next_group(self.attempts.load(), self.clock.now) {
            start_group(self, group, permit).await;
            self.clock = Clock::read();
            if self.exits.reporter.results_are_due(self.clock.now) {
                self.exits.reporter.send_results().await;
            }
        }
        more
    }
}

async fn fill_groups(dispatcher: &mut Dispatcher) -> bool {
    for _ in 0..HAND_OUT {
        let running = dispatcher.attempts.load();
        let in_groups = dispatcher.admission.batches.as_ref().map_or(0, |batches| batches.suspects());
        let load = SlotLoad { suspects: running.suspects + in_groups, ..running };
        let in_flight = match dispatcher.admission.next_for_group(load) {
            Some(Input::Task(in_flight)) => in_flight,
            Some(Input::Invalid(invalid)) => {
                dispatcher.exits.keep_invalid(invalid);
                continue;
            }
            None => return false,
        };
        let (now, now_ms) = (dispatcher.clock.now, dispatcher.clock.now_ms());
        match dispatcher.admission.check(in_flight, load, now_ms) {
            StartDecision::Start(in_flight, _) => {
                if let Some(batches) = &mut dispatcher.admission.batches {
                    batches.add(&dispatcher.settings.policy, in_flight, now, now_ms);
                }
            }
            StartDecision::Waits => {}
            StartDecision::Leaves(in_flight, exit) => dispatcher.leave(in_flight, exit).await,
        }
    }
    true
}

/// Starts the tasks of a group that may still start: in one call, or a single one as an attempt of its own.
#[expect(clippy::vec_box, reason = "tasks move between queues as boxes")]
async fn start_group(dispatcher: &mut Dispatcher, group: Vec<Box<InFlight>>, permit: Option<Permit>) {
    let (started_at, now) = (dispatcher.clock.now, dispatcher.clock.now_ms());
    let mut tasks = Vec::with_capacity(group.len());
    for in_flight in group {
        match exit_from_group(&dispatcher.settings.policy, &in_flight, now) {
            Some(exit) => dispatcher.leave(in_flight, exit).await,
            None => tasks.push(in_flight),
        }
    }
    if tasks.is_empty() {
        return;
    }
    dispatcher.exits.reports.metrics.record_batch(tasks.len());
    if tasks.len() == 1 {
        for in_flight in tasks {
            dispatcher.start_attempt(in_flight, permit.clone()).await;
        }
        return;
    }
    dispatcher.exits.reporter.schedule_flush(started_at);
    let mut prepared = Vec::with_capacity(tasks.len());
    for mut in_flight in tasks {
        let span = dispatcher.exits.reports.begin(&mut in_flight, now);
        let attempt = dispatcher.attempts.prepare(in_flight, None, span, &dispatcher.clock);
        dispatcher.exits.reports.notify(|observer| observer.on_start(&attempt.running.cx));
        prepared.push(attempt);
    }
    dispatcher.attempts.start_call(prepared, permit, started_at);
    let running = dispatcher.attempts.load().attempts.saturating_sub(1);
    dispatcher.admission.adaptive.attempt_started(running);
    dispatcher.admission.circuit.attempt_started(started_at);
}
