//! Retention by log time: removal of finished trees, end of trees open for too long, expiry of tasks never announced.
//!
//! All decisions are made when the log enters a new time step of [`TIME_STEP_MS`], before the first event in it is
//! projected, and from the log alone: the lifetimes in force come from an event too. The result therefore does not
//! depend on the batching of events, the time of projection or the current configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::ErrorInfo;
use super::record::TaskRecord;
use super::record::state::State;

/// Length of a time step of the log, ms.
pub const TIME_STEP_MS: i64 = 10_000;
/// Time until which a named task must be announced, ms.
pub const EXPECTED_MS: i64 = 86_400_000;
/// Interval of rechecking a tree that was ended for its age, since tasks may have been added to it, ms.
pub const RECHECK_MS: i64 = 3_600_000;
/// Error message of a queued task whose record was removed from its topic.
pub const REMOVED: &str = "removed by retention";
/// Error message of a task that was never announced.
pub const NEVER_ANNOUNCED: &str = "never announced";

const DAY_MS: i64 = 86_400_000;
/// Divisor of the retention that gives the length of the steps in which finished trees are removed together.
const REMOVAL_STEPS: i64 = 1_000;
const MAX_STEP_MS: i64 = 3_600_000;

/// Start of the time step that contains `log_time_ms`.
pub const fn time_step(log_time_ms: i64) -> i64 {
    log_time_ms - log_time_ms.rem_euclid(TIME_STEP_MS)
}

/// Lifetimes of trees and their records, ms. An event sets them for everything after it in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Lifetimes {
    /// Retention of a tree after its end.
    pub record_retention_ms: i64,
    /// Maximum age of an open tree.
    pub max_tree_age_ms: i64,
    /// Retention by the type of the root, in place of `record_retention_ms`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<Arc<str>, i64>,
}

impl Default for Lifetimes {
    /// Lifetimes in force before the first event that sets them.
    fn default() -> Self {
        Self { record_retention_ms: 7 * DAY_MS, max_tree_age_ms: 30 * DAY_MS, types: BTreeMap::new() }
    }
}

impl Lifetimes {
    fn retention(&self, task_type: Option<&str>) -> i64 {
        task_type.and_then(|task_type| self.types.get(task_type)).copied().unwrap_or(self.record_retention_ms)
    }

    /// Retention that the events topic needs so that the events of every tree in the store are complete.
    pub fn log_retention_ms(&self) -> i64 {
        let longest = self.types.values().copied().fold(self.record_retention_ms, i64::max);
        self.max_tree_age_ms.saturating_add(longest).saturating_add(DAY_MS)
    }
}

/// Next expiry of a task by log time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expiry {
    pub kind: ExpiryKind,
    /// Log time, epoch milliseconds.
    pub due_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpiryKind {
    /// A task never announced: it expires.
    Expected,
    /// An open root: its tree is ended.
    Open,
    /// A finished root: its tree is removed.
    Done,
}

/// End of the removal step in which a tree is due, given its retention.
fn next_step(due_ms: i64, retention_ms: i64) -> i64 {
    let step = time_step((retention_ms / REMOVAL_STEPS).clamp(TIME_STEP_MS, MAX_STEP_MS));
    due_ms + (-due_ms).rem_euclid(step)
}

impl TaskRecord {
    /// Sets the next expiry after a change at this log time.
    pub(super) fn schedule_expiry(&mut self, lifetimes: &Lifetimes, log_time_ms: i64) {
        let kind = match (self.own, self.tree.root) {
            (State::Expected, _) => ExpiryKind::Expected,
            (_, false) => return self.times.expiry = None,
            _ if self.state.is_terminal() => ExpiryKind::Done,
            _ => ExpiryKind::Open,
        };
        if self.times.expiry.is_some_and(|expiry| expiry.kind == kind) {
            return;
        }
        let reopened = self.times.expiry.is_some_and(|expiry| expiry.kind == ExpiryKind::Done);
        let oldest = self.times.seen_ms + lifetimes.max_tree_age_ms;
        let retention = lifetimes.retention(self.task_type.as_deref());
        let due_ms = match kind {
            ExpiryKind::Expected => log_time_ms + EXPECTED_MS,
            // A retried old tree gets at most one more day, or the log would lose its first events.
            ExpiryKind::Open if reopened => oldest.max(log_time_ms + DAY_MS.min(lifetimes.max_tree_age_ms)),
            ExpiryKind::Open => oldest,
            ExpiryKind::Done => {
                let due_ms = (log_time_ms + retention)
                    .min(oldest + retention)
                    .max(self.tree.hold_ms)
                    .max(log_time_ms + TIME_STEP_MS);
                next_step(due_ms, retention)
            }
        };
        self.times.expiry = Some(Expiry { kind, due_ms });
    }

    /// Returns true if the task expired because it was never announced; an announcement reverts this.
    pub fn is_expired_unannounced(&self) -> bool {
        let never_announced = |error: &ErrorInfo| error.message == NEVER_ANNOUNCED;
        self.own == State::Expired
            && !self.definition.announced
            && self.outcome.error.as_deref().is_some_and(never_announced)
    }

    /// Returns true if the task was cancelled while expected; if it is announced later, the cancel applies to it
    /// then.
    pub fn is_cancelled_unannounced(&self) -> bool {
        self.own == State::Cancelled
            && !self.definition.announced
            && self.worker.is_none()
            && self.requests.cancel.is_some()
    }

    pub(super) fn expire_unannounced(&mut self) {
        self.own = State::Expired;
        self.outcome.error = Some(Box::new(ErrorInfo::new("expired", NEVER_ANNOUNCED, 0)));
    }

    pub(super) fn restore_expected(&mut self) {
        if self.is_expired_unannounced() || self.is_cancelled_unannounced() {
            (self.own, self.outcome.error) = (State::Expected, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_steps_begin_at_multiples_of_their_length() {
        assert_eq!([0, 9_999, 10_000, 19_999, -1].map(time_step), [0, 0, 10_000, 10_000, -10_000]);
    }

    #[test]
    fn finished_trees_are_removed_in_steps() {
        for (due_ms, retention_ms, step) in [
            (1, 0, 10_000),
            (10_000, 3_600_000, 10_000),
            (10_001, 20_000_000, 20_000),
            (1, 29_999_999, 20_000),
            (1, 7 * DAY_MS, 600_000),
            (1, 1_000 * DAY_MS, 3_600_000),
        ] {
            assert_eq!(next_step(due_ms, retention_ms), step, "{due_ms} {retention_ms}");
        }
    }

    #[test]
    fn log_retention_covers_the_longest_lifetime() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.log_retention_ms(), 38 * DAY_MS);
        lifetimes.types.insert("short".into(), DAY_MS);
        assert_eq!(lifetimes.log_retention_ms(), 38 * DAY_MS);
        lifetimes.types.insert("long".into(), 90 * DAY_MS);
        assert_eq!(lifetimes.log_retention_ms(), 121 * DAY_MS);
        assert_eq!([None, Some("short"), Some("other")].map(|t| lifetimes.retention(t) / DAY_MS), [7, 1, 7]);
    }

    #[test]
    fn expiry_changes_only_with_the_state() {
        let lifetimes = Lifetimes::default();
        let mut task = TaskRecord::expected(1, 1_000);
        let due = |task: &mut TaskRecord, root, at| {
            task.tree.root = root;
            task.schedule_expiry(&lifetimes, at);
            task.times.expiry.map(|expiry| (expiry.kind, expiry.due_ms))
        };
        assert_eq!(due(&mut task, false, 1_000), Some((ExpiryKind::Expected, 1_000 + DAY_MS)));
        task.own = State::Queued;
        assert_eq!(due(&mut task.clone(), false, 2_000), None, "an announced child expires with its root");
        (task.state, task.times.expiry) = (State::Queued, None);
        assert_eq!(due(&mut task, true, 2_000), Some((ExpiryKind::Open, 1_000 + 30 * DAY_MS)));
        (task.own, task.state) = (State::Failed, State::Failed);
        let done = Some((ExpiryKind::Done, 600_000 + 7 * DAY_MS));
        assert_eq!(due(&mut task, true, 3_000), done, "a thousandth of a week is ten minutes");
        assert_eq!(due(&mut task, true, 9_000), done, "a duplicate does not extend it");
        let late = 1_000 + 35 * DAY_MS;
        (task.own, task.state) = (State::Queued, State::Queued);
        assert_eq!(
            due(&mut task, true, late),
            Some((ExpiryKind::Open, late + DAY_MS)),
            "a retried old tree gets a day"
        );
        (task.own, task.state) = (State::Succeeded, State::Succeeded);
        assert_eq!(
            due(&mut task, true, late),
            Some((ExpiryKind::Done, 600_000 + 37 * DAY_MS)),
            "the log still contains its first events"
        );
    }
}
