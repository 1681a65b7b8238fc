//! Control state of a dispatcher: cancels and kill switches, pauses and limits.

use super::Dispatcher;
use super::exits::Exit;
use super::limits::Admission;
use super::tasks::Tasks;
use crate::control::{Cancellation, ControlWatch};
use crate::handlers::context::CancelReason;
use crate::worker::decode::{InFlight, Input};

impl Dispatcher {
    /// Applies the control state if it has changed.
    pub(super) async fn apply_control(&mut self) {
        let generation = self.control.generation();
        if generation == self.control_generation {
            return;
        }
        self.control_generation = generation;
        self.apply_limits();
        self.stop_cancelled();
        self.cancel_queued().await;
    }

    /// Takes over the policy of a reloaded configuration, and the limits that apply to it now.
    pub(super) fn apply_limits(&mut self) {
        if let Some(policy) = self.policies.newer(&self.tasks.task_type, &self.tasks.policy) {
            self.quarantine.set_slots(policy.slots());
            self.tasks.policy = policy;
        }
        let (released, resumes) = {
            let state = self.control.state();
            let released = self.limits.apply(&self.tasks.task_type, &self.tasks.policy, &state);
            let Tasks { task_type, policy, circuit, .. } = &mut self.tasks;
            circuit.set(policy, state.circuits.get(&**task_type), self.limits.slots());
            (released, state.resumes(task_type))
        };
        self.tasks.queue.extend(released.into_iter().map(Input::Task));
        self.gauges.set_limits(self.limits.slots(), self.limits.is_paused());
        let part = format!("limits of {}", self.tasks.task_type);
        match self.limits.too_low() {
            Some(why) => self.health.set(&part, why),
            None => self.health.clear(&part),
        }
        if resumes > self.resumes {
            self.tasks.circuit.resume();
        }
        self.resumes = resumes;
    }

    /// Stops running attempts whose tasks are cancelled; they end within the grace period.
    fn stop_cancelled(&mut self) {
        let state = self.control.state();
        if state.cancels().len() == 0 {
            return;
        }
        for running in self.running.iter_mut().filter(|running| running.cancelled.is_none()) {
            running.cancelled = state.cancels_task(&running.in_flight.task).map(Box::new);
            if running.cancelled.is_some() {
                running.cx.interruption.set_cancel_reason(CancelReason::Cancelled);
                running.stop_token().cancel();
            }
        }
    }

    /// Ends tasks that do not run and are blocked by a cancel or a kill switch.
    pub(super) async fn cancel_queued(&mut self) {
        if !self.control.concerns_tasks() {
            return;
        }
        let control = self.control.clone();
        let mut verdicts = Vec::new();
        let blocked = {
            let state = control.state();
            self.extract(&mut |in_flight| {
                let verdict = state.forbids(&in_flight.task);
                let is_blocked = verdict.is_some();
                verdicts.extend(verdict);
                is_blocked
            })
        };
        // `extract` evaluates each task once and returns the tasks in the order of the verdicts.
        for (in_flight, verdict) in blocked.into_iter().zip(verdicts) {
            self.leave(in_flight, Exit::Cancelled(verdict)).await;
        }
    }

    /// Returns the task if the rate limit admits it now; otherwise the task waits.
    pub(super) fn admit_by_rate(&mut self, mut in_flight: Box<InFlight>) -> Option<Box<InFlight>> {
        if std::mem::take(&mut in_flight.admitted) {
            return Some(in_flight);
        }
        match self.limits.admit(in_flight) {
            Admission::Admitted(in_flight) => Some(in_flight),
            Admission::Refused(in_flight) => {
                self.tasks.queue.push_front(in_flight);
                None
            }
            Admission::Queued => None,
        }
    }
}

/// Returns why a task must not start. Costs one atomic load while there are no cancels and kill switches.
pub(super) fn blocked_by(control: &ControlWatch, in_flight: &InFlight) -> Option<Cancellation> {
    if control.concerns_tasks() { control.state().forbids(&in_flight.task) } else { None }
}
