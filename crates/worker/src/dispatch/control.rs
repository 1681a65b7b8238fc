//! Settings in force: the control topic over the configuration, and their application to a dispatcher.

use std::sync::Arc;

use kafleet_config::TypePolicy;
use kafleet_fleet::control::{ControlWatch, PolicyUpdates};
use kafleet_runtime::Health;

use super::exits::Exit;
use super::{Dispatcher, DispatcherDeps};
use crate::type_metrics::TypeGauges;

/// Sources of a type's settings, and the state that is applied.
pub(super) struct LiveSettings {
    pub task_type: Arc<str>,
    pub policy: Arc<TypePolicy>,
    control: Arc<ControlWatch>,
    policies: PolicyUpdates,
    health: Health,
    gauges: TypeGauges,
    /// Generation of the control state that is applied.
    generation: u64,
    /// Number of times that the type was resumed, as of the applied state.
    resumes: u64,
}

impl LiveSettings {
    pub(super) fn new(deps: &DispatcherDeps, policy: &Arc<TypePolicy>, gauges: &TypeGauges) -> Self {
        Self {
            task_type: deps.task_type.clone(),
            policy: policy.clone(),
            control: deps.control.clone(),
            policies: deps.policies.clone(),
            health: deps.health.clone(),
            gauges: gauges.clone(),
            generation: 0,
            resumes: 0,
        }
    }
}

impl Dispatcher {
    /// Applies the control state if it has changed.
    pub(super) async fn apply_control(&mut self) {
        let generation = self.settings.control.generation();
        if generation == self.settings.generation {
            return;
        }
        self.settings.generation = generation;
        self.apply_limits();
        self.attempts.stop_cancelled(&self.settings.control.state());
        self.cancel_queued().await;
        self.admission.end_requested_delays();
    }

    /// Takes over the policy of a reloaded configuration, and the limits that apply to it now.
    pub(super) fn apply_limits(&mut self) {
        let LiveSettings { task_type, policy, control, policies, health, gauges, resumes, .. } = &mut self.settings;
        if let Some(newer) = policies.newer(task_type, policy) {
            *policy = Arc::new(newer);
            self.attempts.set_policy(policy);
        }
        let before = *resumes;
        {
            let state = control.state();
            self.admission.apply(task_type, policy, &state);
            *resumes = state.resumes(task_type);
        }
        let limits = &self.admission.limits;
        gauges.set_limits(limits.slots(), limits.is_paused());
        let part = format!("limits of {task_type}");
        match limits.too_low() {
            Some(error) => health.set(&part, error),
            None => health.clear(&part),
        }
        if *resumes > before {
            self.admission.circuit.resume();
        }
    }

    /// Ends tasks that do not run and are blocked by a cancel or a kill switch.
    pub(super) async fn cancel_queued(&mut self) {
        let control = self.settings.control.clone();
        if !control.concerns_tasks() {
            return;
        }
        let mut verdicts = Vec::new();
        let blocked = {
            let state = control.state();
            self.admission.extract(&mut |in_flight| {
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
}
