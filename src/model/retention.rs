//! What log time brings: finished trees are removed, trees that stay open are ended, what nobody announces is given up.
//!
//! All of it is decided when the log passes a border of [`BORDER_MS`], before the first event behind it is folded, and
//! from nothing but the log: the lifetimes in force are told by an event too. So it does not matter how events are
//! batched, when they are folded, or what the configuration says by then.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::ErrorInfo;
use super::record::TaskRecord;
use super::record::state::State;

/// Log time is looked at in steps of this length.
pub const BORDER_MS: i64 = 10_000;
/// How long a task may be named and not announced.
pub const EXPECTED_MS: i64 = 86_400_000;
/// When a tree that has been ended for its age is looked at again: something in it may have been made since.
pub const AGAIN_MS: i64 = 3_600_000;
/// What is said of a queued task whose record Kafka has removed.
pub const REMOVED: &str = "removed by retention";
/// What is said of a task that nobody announced.
pub const NEVER_ANNOUNCED: &str = "never announced";

const DAY_MS: i64 = 86_400_000;
/// How much longer than until its last check a tree is kept: a check may fire late.
const HOLD_MS: i64 = 3_600_000;
/// Finished trees are removed together, in steps of this part of their retention, and of at most so long.
const STEPS: i64 = 1_000;
const LONGEST_STEP_MS: i64 = 3_600_000;

/// The last border that the log has passed.
pub const fn time_step(log_time_ms: i64) -> i64 {
    log_time_ms - log_time_ms.rem_euclid(BORDER_MS)
}

/// How long trees and their records last, in ms. An event says so, and it holds for what happens behind it in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Lifetimes {
    /// How long a tree is kept after its end.
    pub record_retention_ms: i64,
    /// How long a tree may be open.
    pub max_tree_age_ms: i64,
    /// Instead of `record_retention_ms`, by the type of the root.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<Arc<str>, i64>,
}

impl Default for Lifetimes {
    /// What holds while the log says nothing else.
    fn default() -> Self {
        Self { record_retention_ms: 7 * DAY_MS, max_tree_age_ms: 30 * DAY_MS, types: BTreeMap::new() }
    }
}

impl Lifetimes {
    fn retention(&self, task_type: Option<&str>) -> i64 {
        task_type.and_then(|task_type| self.types.get(task_type)).copied().unwrap_or(self.record_retention_ms)
    }

    /// How long the events topic has to keep its records, so that every tree in the store is whole in the log.
    pub fn log_retention_ms(&self) -> i64 {
        let longest = self.types.values().copied().fold(self.record_retention_ms, i64::max);
        self.max_tree_age_ms.saturating_add(longest).saturating_add(DAY_MS)
    }
}

/// What comes next for a task by log time alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiryKind {
    pub what: Expiry,
    /// Log time, epoch milliseconds.
    pub due_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expiry {
    /// Nobody has announced it: it is given up.
    Expected,
    /// An open root: its tree is ended.
    Open,
    /// A finished root: its tree is removed.
    Done,
}

/// The end of the step in which a tree is due, given its retention.
fn next_step(due_ms: i64, retention_ms: i64) -> i64 {
    let step = time_step((retention_ms / STEPS).clamp(BORDER_MS, LONGEST_STEP_MS));
    due_ms + (-due_ms).rem_euclid(step)
}

impl TaskRecord {
    /// Sets what comes next, after a change at this log time.
    pub(super) fn grow_older(&mut self, lifetimes: &Lifetimes, log_time_ms: i64) {
        let what = match (self.own, self.root) {
            (State::Expected, _) => Expiry::Expected,
            (_, false) => return self.age = None,
            _ if self.state.is_terminal() => Expiry::Done,
            _ => Expiry::Open,
        };
        if self.age.is_some_and(|age| age.what == what) {
            return;
        }
        let reopened = self.age.is_some_and(|age| age.what == Expiry::Done);
        let oldest = self.seen_ms + lifetimes.max_tree_age_ms;
        let retention = lifetimes.retention(self.task_type.as_deref());
        let held_until = if self.hold_ms > 0 { self.hold_ms + HOLD_MS } else { 0 };
        let due_ms = match what {
            Expiry::Expected => log_time_ms + EXPECTED_MS,
            // An old tree that is retried gets a day at most. More, and the log would lose its beginning.
            Expiry::Open if reopened => oldest.max(log_time_ms + DAY_MS.min(lifetimes.max_tree_age_ms)),
            Expiry::Open => oldest,
            Expiry::Done => {
                let due_ms = (log_time_ms + retention).min(oldest + retention).max(held_until).max(log_time_ms + BORDER_MS);
                next_step(due_ms, retention)
            }
        };
        self.age = Some(ExpiryKind { what, due_ms });
    }

    /// Given up, not ended: whoever announces it takes that back.
    pub fn is_given_up(&self) -> bool {
        let told = |error: &ErrorInfo| error.message == NEVER_ANNOUNCED;
        self.own == State::Expired && !self.announced && self.error.as_deref().is_some_and(told)
    }

    /// Cancelled while it was only expected: if it is announced after all, the cancel applies to it then.
    pub fn is_cancelled_ahead(&self) -> bool {
        self.own == State::Cancelled && !self.announced && self.worker.is_none() && self.cancel.is_some()
    }

    pub(super) fn give_up(&mut self) {
        self.own = State::Expired;
        self.error = Some(Box::new(ErrorInfo::new("expired", NEVER_ANNOUNCED, 0)));
    }

    pub(super) fn take_back(&mut self) {
        if self.is_given_up() || self.is_cancelled_ahead() {
            (self.own, self.error) = (State::Expected, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_passed_one_by_one() {
        assert_eq!([0, 9_999, 10_000, 19_999, -1].map(time_step), [0, 0, 10_000, 10_000, -10_000]);
    }

    #[test]
    fn finished_trees_go_in_steps() {
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
    fn the_log_is_kept_for_the_longest_record() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.log_retention_ms(), 38 * DAY_MS);
        lifetimes.types.insert("short".into(), DAY_MS);
        assert_eq!(lifetimes.log_retention_ms(), 38 * DAY_MS);
        lifetimes.types.insert("long".into(), 90 * DAY_MS);
        assert_eq!(lifetimes.log_retention_ms(), 121 * DAY_MS);
        assert_eq!([None, Some("short"), Some("other")].map(|t| lifetimes.retention(t) / DAY_MS), [7, 1, 7]);
    }

    #[test]
    fn what_comes_next_changes_with_the_state_only() {
        let lifetimes = Lifetimes::default();
        let mut node = TaskRecord::expected(1, 1_000);
        let due = |node: &mut TaskRecord, root, at| {
            node.root = root;
            node.grow_older(&lifetimes, at);
            node.age.map(|age| (age.what, age.due_ms))
        };
        assert_eq!(due(&mut node, false, 1_000), Some((Expiry::Expected, 1_000 + DAY_MS)));
        node.own = State::Queued;
        assert_eq!(due(&mut node.clone(), false, 2_000), None, "a child that is announced has its root's age");
        (node.state, node.age) = (State::Queued, None);
        assert_eq!(due(&mut node, true, 2_000), Some((Expiry::Open, 1_000 + 30 * DAY_MS)));
        (node.own, node.state) = (State::Failed, State::Failed);
        let done = Some((Expiry::Done, 600_000 + 7 * DAY_MS));
        assert_eq!(due(&mut node, true, 3_000), done, "a thousandth of a week is ten minutes");
        assert_eq!(due(&mut node, true, 9_000), done, "a duplicate does not prolong it");
        let late = 1_000 + 35 * DAY_MS;
        (node.own, node.state) = (State::Queued, State::Queued);
        assert_eq!(due(&mut node, true, late), Some((Expiry::Open, late + DAY_MS)), "a retry of an old tree has a day");
        (node.own, node.state) = (State::Succeeded, State::Succeeded);
        assert_eq!(due(&mut node, true, late), Some((Expiry::Done, 600_000 + 37 * DAY_MS)), "the log still holds its beginning");
    }
}
