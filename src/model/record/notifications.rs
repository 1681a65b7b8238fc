//! What has been told of a task: on which states its rules have been judged, and what came of it.

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::state::State;
use crate::model::task::Rules;
use crate::model::task::action::Notification;
use crate::model::task::id::TaskId;

/// Deliveries that a record lists; the oldest go first.
pub const MAX_LISTED: usize = 32;
/// Characters of the hash in a delivery's id.
const HASH_CHARS: usize = 24;

/// Kept for tasks with actions or checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationLog {
    /// The state that the actions were last judged on, in this run.
    pub state: State,
    /// Changes of state in this run.
    pub changes: u32,
    /// When that state was reached, epoch milliseconds. Clocks differ, and it never goes back.
    pub since_ms: i64,
    /// When each check is due, epoch milliseconds; None: it is done with.
    pub checks: Vec<Option<i64>>,
    /// The newest last.
    pub deliveries: Vec<Delivery>,
    /// Older ones that are no longer listed.
    pub unlisted: u32,
    /// Not made, because too many were waiting.
    pub refused: u32,
}

/// Something told once: a task of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub rule: RuleRef,
    pub run: u32,
    /// The number of the change of state in its run.
    pub change: u32,
    pub state: State,
    /// The offset of the event that brought it about.
    pub cause: i64,
    /// When that event says it happened, epoch milliseconds.
    pub at_ms: i64,
}

/// What asks for it, by its place in the task's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleRef {
    Action(u8),
    Passed(u8),
    Failed(u8),
}

impl NotificationLog {
    /// `latest_ms`: a check that is due after that is not made.
    pub fn new(rules: &Rules, created_at_ms: i64, latest_ms: i64) -> Self {
        let due = |check: &crate::model::task::action::Check| check.due_ms(created_at_ms).filter(|due| *due <= latest_ms);
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

    /// In a new run every state is reached anew; a check is not for a run, but for a time.
    pub fn begin_run(&mut self) {
        (self.state, self.changes) = (State::Expected, 0);
    }

    /// The next check: when, and its number.
    pub fn next_check(&self) -> Option<(i64, usize)> {
        self.checks.iter().enumerate().filter_map(|(n, due)| Some(((*due)?, n))).min()
    }

    pub fn last_check(&self) -> Option<i64> {
        self.checks.iter().flatten().max().copied()
    }

    pub fn list(&mut self, delivery: Delivery) {
        if self.deliveries.len() >= MAX_LISTED {
            self.deliveries.remove(0);
            self.unlisted = self.unlisted.saturating_add(1);
        }
        self.deliveries.push(delivery);
    }
}

impl Delivery {
    /// The id of its task, and of what is sent: the same whenever the log is folded.
    pub fn id(&self, task: &TaskId, telling: Notification<'_>) -> String {
        let Self { rule, run, change, cause, .. } = self;
        let digest = Sha256::digest(format!("{task}\0{run}\0{rule}\0{change}\0{cause}"));
        let hash = BASE32_NOPAD.encode(&digest[..15]).to_ascii_lowercase();
        format!("{}-{}", telling.kind(), &hash[..HASH_CHARS])
    }
}

impl RuleRef {
    pub fn telling(self, rules: &Rules) -> Option<Notification<'_>> {
        match self {
            Self::Action(n) => rules.actions.get(usize::from(n))?.telling(),
            Self::Passed(n) => rules.checks.get(usize::from(n))?.telling(true),
            Self::Failed(n) => rules.checks.get(usize::from(n))?.telling(false),
        }
    }

    /// The number of the check, and whether it passed.
    pub const fn check(self) -> Option<(usize, bool)> {
        match self {
            Self::Action(_) => None,
            Self::Passed(n) => Some((n as usize, true)),
            Self::Failed(n) => Some((n as usize, false)),
        }
    }
}

/// As people find it in the task: `actions/0`, `checks/1/failed`.
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
    use crate::model::task::action::Callback;

    #[test]
    fn ids_differ_with_everything_that_makes_them() {
        let (task, callback) = (TaskId::parse("order-42:a").unwrap(), Callback::to("https://a"));
        let first = Delivery { rule: RuleRef::Action(0), run: 1, change: 2, state: State::Failed, cause: 7, at_ms: 5 };
        let id = |delivery: Delivery| delivery.id(&task, Notification::Callback(&callback));
        assert_eq!(id(first), "callback-h2cyidu2eweglirmkclmlzku", "never changed");
        assert_eq!(id(Delivery { at_ms: 9, ..first }), id(first));
        for other in [
            Delivery { rule: RuleRef::Action(1), ..first },
            Delivery { rule: RuleRef::Passed(0), ..first },
            Delivery { run: 2, ..first },
            Delivery { change: 3, ..first },
            Delivery { cause: 8, ..first },
        ] {
            assert_ne!(id(other), id(first), "{other:?}");
        }
        assert!(TaskId::parse(&id(first)).unwrap().is_root());
    }
}
