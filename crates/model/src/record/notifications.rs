//! Notification log of a task: the states its rules were evaluated on, the pending checks, and the notifications
//! sent.

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::state::State;
use crate::task::Rules;
use crate::task::action::Notification;
use crate::task::id::TaskId;

/// Maximum number of notifications listed in a record; the oldest are dropped first.
pub const MAX_LISTED_DELIVERIES: usize = 32;
/// Length of the hash in a notification's id, in characters.
const HASH_CHARS: usize = 24;

/// Notification state of a task that has actions or checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationLog {
    /// State on which the actions were last evaluated in this run.
    pub state: State,
    /// Number of state changes in this run.
    pub changes: u32,
    /// Time at which the state was reached, epoch milliseconds. Never decreases, although writers' clocks differ.
    pub since_ms: i64,
    /// Due time of each check, epoch milliseconds; `None` once it has run.
    pub checks: Vec<Option<i64>>,
    /// Sent notifications, newest last.
    pub deliveries: Vec<NotificationDelivery>,
    /// Number of older notifications no longer listed.
    pub unlisted: u32,
    /// Number of notifications not sent because too many were pending.
    pub refused: u32,
}

/// Notification, which is sent by a task of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationDelivery {
    pub rule: RuleRef,
    pub run: u32,
    /// Number of the state change within its run.
    pub change: u32,
    pub state: State,
    /// Offset of the event that caused it.
    pub cause: i64,
    /// Time of that event by its writer's clock, epoch milliseconds.
    pub at_ms: i64,
}

/// Rule behind a notification, by its index in the task's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleRef {
    Action(u8),
    Passed(u8),
    Failed(u8),
}

impl NotificationLog {
    /// Creates the log. Checks due after `latest_ms` are dropped.
    pub fn new(rules: &Rules, created_at_ms: i64, latest_ms: i64) -> Self {
        let due = |check: &crate::task::action::Check| check.due_ms(created_at_ms).filter(|due| *due <= latest_ms);
        Self {
            state: State::Expected,
            changes: 0,
            since_ms: created_at_ms,
            checks: rules.checks.iter().map(due).collect(),
            deliveries: Vec::new(),
            unlisted: 0,
            refused: 0,
        }
    }

    /// Resets the states for a new run. Checks belong to a time, not to a run, and stay.
    pub fn begin_run(&mut self) {
        (self.state, self.changes) = (State::Expected, 0);
    }

    /// Due time and index of the next check.
    pub fn next_check(&self) -> Option<(i64, usize)> {
        self.checks.iter().enumerate().filter_map(|(n, due)| Some(((*due)?, n))).min()
    }

    pub fn last_check(&self) -> Option<i64> {
        self.checks.iter().flatten().max().copied()
    }

    pub fn list(&mut self, delivery: NotificationDelivery) {
        if self.deliveries.len() >= MAX_LISTED_DELIVERIES {
            self.deliveries.remove(0);
            self.unlisted = self.unlisted.saturating_add(1);
        }
        self.deliveries.push(delivery);
    }
}

impl NotificationDelivery {
    /// Id of the notification and of its task: the same in every projection of the log.
    pub fn id(&self, task: &TaskId, notification: Notification<'_>) -> String {
        let Self { rule, run, change, cause, .. } = self;
        let digest = Sha256::digest(format!("{task}\0{run}\0{rule}\0{change}\0{cause}"));
        let hash = BASE32_NOPAD.encode(&digest[..15]).to_ascii_lowercase();
        format!("{}-{}", notification.kind(), &hash[..HASH_CHARS])
    }
}

impl RuleRef {
    pub fn notification(self, rules: &Rules) -> Option<Notification<'_>> {
        match self {
            Self::Action(n) => rules.actions.get(usize::from(n))?.notification(),
            Self::Passed(n) => rules.checks.get(usize::from(n))?.notification(true),
            Self::Failed(n) => rules.checks.get(usize::from(n))?.notification(false),
        }
    }

    /// Index of the check and whether it passed; `None` for actions.
    pub const fn check(self) -> Option<(usize, bool)> {
        match self {
            Self::Action(_) => None,
            Self::Passed(n) => Some((n as usize, true)),
            Self::Failed(n) => Some((n as usize, false)),
        }
    }
}

/// Path of the rule in the task: `actions/0`, `checks/1/failed`.
impl std::fmt::Display for RuleRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Action(n) => write!(f, "actions/{n}"),
            Self::Passed(n) => write!(f, "checks/{n}/passed"),
            Self::Failed(n) => write!(f, "checks/{n}/failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::action::Callback;

    #[test]
    fn id_differs_with_every_part_and_is_stable() {
        let task = TaskId::parse("order-42:a").unwrap();
        let callback = Callback::to("https://a");
        let first = NotificationDelivery {
            rule: RuleRef::Action(0),
            run: 1,
            change: 2,
            state: State::Failed,
            cause: 7,
            at_ms: 5,
        };
        let id = |delivery: NotificationDelivery| delivery.id(&task, Notification::Callback(&callback));
        assert_eq!(id(first), "callback-h2cyidu2eweglirmkclmlzku", "ids must never change between builds");
        assert_eq!(id(NotificationDelivery { at_ms: 9, ..first }), id(first));
        for other in [
            NotificationDelivery { rule: RuleRef::Action(1), ..first },
            NotificationDelivery { rule: RuleRef::Passed(0), ..first },
            NotificationDelivery { run: 2, ..first },
            NotificationDelivery { change: 3, ..first },
            NotificationDelivery { cause: 8, ..first },
        ] {
            assert_ne!(id(other), id(first), "{other:?}");
        }
        assert!(TaskId::parse(&id(first)).unwrap().is_root());
    }
}
