//! What the control topic says, obeyed: tasks that are cancelled or may not begin, pauses and limits.

use std::time::Duration;

use tokio::time::Instant;

use super::limits::Paced;
use super::{Dispatcher, Running};
use crate::control::Verdict;
use crate::model::event::{ErrorInfo, Kind};
use crate::worker::attempt::output::FLUSH_INTERVAL;
use crate::worker::decode::{InFlight, Input};

impl Dispatcher {
    /// Something has changed on the control topic.
    pub(super) async fn apply_control(&mut self) {
        let generation = self.parts.control.generation();
        if generation == self.heeded {
            return;
        }
        self.heeded = generation;
        self.set_limits();
        self.stop_cancelled();
        self.cancel_queued().await;
    }

    pub(super) fn set_limits(&mut self) {
        let was_paused = self.limits.is_paused();
        let parts = &self.parts;
        let released = self.limits.set(&parts.task_type, &parts.registered.policy, &parts.control.orders());
        self.queue.extend(released.into_iter().map(Input::Task));
        self.parts.meter.limits(self.limits.slots(), self.limits.is_paused());
        if was_paused && !self.limits.is_paused() {
            self.reset_circuit();
        }
    }

    /// Attempts whose tasks are cancelled are told to stop, and ended after the grace.
    fn stop_cancelled(&mut self) {
        let orders = self.parts.control.orders();
        if orders.cancels().len() == 0 {
            return;
        }
        for running in self.running.values_mut().filter(|running| running.cancelled.is_none()) {
            running.cancelled = orders.cancels_task(&running.held.task).map(Box::new);
            if running.cancelled.is_some() {
                running.stoppable().cancel();
            }
        }
    }

    /// Ends tasks that are held, do not run, and may not begin.
    pub(super) async fn cancel_queued(&mut self) {
        if !self.parts.control.concerns_tasks() {
            return;
        }
        let board = self.parts.control.clone();
        let mut verdicts = Vec::new();
        let struck = {
            let orders = board.orders();
            self.extract(&mut |held| {
                let verdict = orders.forbids(&held.task);
                let meant = verdict.is_some();
                verdicts.extend(verdict);
                meant
            })
        };
        // Each is asked about once, in the order in which they come out.
        for (held, verdict) in struck.into_iter().zip(verdicts) {
            self.cancel_unstarted(held, verdict).await;
        }
    }

    /// Why a task is not to begin. Costs one look at a number while there is nothing to obey.
    pub(super) fn blocked_by(&self, held: &InFlight) -> Option<Verdict> {
        let control = &self.parts.control;
        if control.concerns_tasks() { control.orders().forbids(&held.task) } else { None }
    }

    pub(super) async fn cancel_unstarted(&mut self, held: Box<InFlight>, verdict: Verdict) {
        self.next_flush.get_or_insert(Instant::now() + FLUSH_INTERVAL);
        self.parts.meter.finished("cancelled", Duration::ZERO);
        let mut event = self.event(Kind::Cancelled, &held);
        event.attempt = held.attempts;
        event.by = verdict.by.map(Into::into);
        event.error = Some(Box::new(ErrorInfo::new(verdict.kind, verdict.message, held.attempts)));
        self.end(held, event).await;
    }

    /// An attempt that was told to stop has.
    pub(super) async fn cancel_running(&mut self, mut running: Running, verdict: Verdict) {
        self.flush_notes(&mut running).await;
        self.parts.meter.finished("cancelled", running.began.elapsed());
        let attempt = running.held.attempts + 1;
        let mut event = self.event(Kind::Cancelled, &running.held);
        event.attempt = attempt;
        event.started_at_ms = Some(running.began_ms);
        event.by = verdict.by.map(Into::into);
        event.error = Some(Box::new(ErrorInfo::new(verdict.kind, verdict.message, attempt)));
        self.end(running.held, event).await;
    }

    /// The task, if the rate lets it begin now; else it waits for its time.
    pub(super) fn paced(&mut self, mut held: Box<InFlight>) -> Option<Box<InFlight>> {
        if std::mem::take(&mut held.paced) {
            return Some(held);
        }
        match self.limits.pace(held) {
            Paced::Go(held) => Some(held),
            Paced::NotYet(held) => {
                self.queue.push_front(Input::Task(held));
                None
            }
            Paced::Kept => None,
        }
    }
}
