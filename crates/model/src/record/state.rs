//! States of a task.

use serde::{Deserialize, Serialize};

/// State of a task. Terminal states are ordered by severity of the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// Known from a child or an event that refers to the task; no `submitted` event or attempt yet.
    Expected = 0,
    Scheduled = 1,
    Queued = 2,
    Running = 3,
    Retrying = 4,
    /// Cancelled, but not confirmed by a worker yet.
    Cancelling = 5,
    /// Running; the handler has reported a warning.
    Warning = 6,
    /// The task's own work is done; a descendant is still pending.
    WaitingForChildren = 7,
    Succeeded = 8,
    Cancelled = 9,
    Expired = 10,
    Failed = 11,
}

/// Category of a state, from the parent's view: a parent waits for pending children, and failed ones may fail it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Pending,
    Successful,
    Failed,
}

impl State {
    pub const COUNT: usize = 12;
    pub const ALL: [State; Self::COUNT] = [
        Self::Expected,
        Self::Scheduled,
        Self::Queued,
        Self::Running,
        Self::Retrying,
        Self::Cancelling,
        Self::Warning,
        Self::WaitingForChildren,
        Self::Succeeded,
        Self::Cancelled,
        Self::Expired,
        Self::Failed,
    ];

    pub const fn category(self) -> Category {
        match self {
            Self::Succeeded => Category::Successful,
            Self::Cancelled | Self::Expired | Self::Failed => Category::Failed,
            _ => Category::Pending,
        }
    }

    pub const fn is_terminal(self) -> bool {
        !matches!(self.category(), Category::Pending)
    }

    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns true if the store has an index of the tasks in this state: states that users list, and states in which a
    /// worker may hold the task. The states of most tasks, such as `queued` and `succeeded`, have none.
    pub const fn is_indexed(self) -> bool {
        matches!(self, Self::Scheduled | Self::Failed | Self::Cancelled) || self.is_at_worker()
    }

    /// Returns true if a worker may hold the task.
    pub const fn is_at_worker(self) -> bool {
        matches!(self, Self::Running | Self::Retrying | Self::Cancelling | Self::Warning)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Cancelling => "cancelling",
            Self::Warning => "warning",
            Self::WaitingForChildren => "waiting_for_children",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for State {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{}` is not a state: use one of {names}", crate::task::id::clip(text))
        })
    }
}
