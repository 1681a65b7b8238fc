//! Policies of types from a reloaded configuration, which replace those loaded at the start of a role.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_config::TypePolicy;
use parking_lot::Mutex;

use super::ControlWatch;

/// Policies by type.
pub type Policies = BTreeMap<Arc<str>, TypePolicy>;

/// Replaces policies in a running process. Clones share one state.
#[derive(Clone, Default)]
pub struct PolicyUpdates(Arc<Mutex<PolicyState>>);

#[derive(Default)]
struct PolicyState {
    policies: Policies,
    /// Wakes the types of a worker, which then read their policies.
    control: Option<Arc<ControlWatch>>,
}

impl PolicyUpdates {
    /// Replaces the policies of these types. Attempts that run keep their timeouts.
    pub fn replace(&self, policies: Policies) {
        let mut state = self.0.lock();
        state.policies.extend(policies);
        state.control.iter().for_each(|control| control.notify());
    }

    /// Wakes the types that follow this control state after each replacement.
    pub fn attach(&self, control: Arc<ControlWatch>) {
        self.0.lock().control = Some(control);
    }

    /// Policy that replaces the present one of a type, if it differs.
    pub fn newer(&self, task_type: &str, present: &TypePolicy) -> Option<TypePolicy> {
        self.0.lock().policies.get(task_type).filter(|policy| *policy != present).cloned()
    }
}
