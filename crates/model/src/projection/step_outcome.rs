//! Effect of one event on the record of its own task.

use super::Verdict;
use crate::record::state::State;

/// Effect of one event on its own task.
pub(super) struct Step {
    pub(super) verdict: Verdict,
    pub(super) in_history: bool,
    pub(super) started: bool,
    pub(super) conflict: Option<String>,
    /// Highest run in use in the tree.
    pub(super) run: u32,
    /// Own states implied by the event but not reported by earlier events, with their times. Empty for tasks without
    /// actions and checks.
    pub(super) passed: Vec<(State, i64)>,
    /// Set for the first `submitted` of a run after other events of that run.
    pub(super) is_late_announcement: bool,
}

impl Step {
    pub(super) fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            in_history: true,
            started: false,
            conflict: None,
            run: 0,
            passed: Vec::new(),
            is_late_announcement: false,
        }
    }
}
