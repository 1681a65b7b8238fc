//! The states of a task and what they mean to the tree above it.

use serde::{Deserialize, Serialize};

/// Where a task is. The order is the order in which outcomes outweigh one another (see [`State::severity`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// A child or an event named it; it is not announced yet.
    Expected = 0,
    Scheduled = 1,
    Queued = 2,
    Running = 3,
    Retrying = 4,
    Cancelling = 5,
    /// Running, with a warning that somebody should see.
    Warning = 6,
    /// Its own work is done; some child is still pending.
    WaitingForChildren = 7,
    Succeeded = 8,
    Cancelled = 9,
    Expired = 10,
    Failed = 11,
}

/// What a state means to a parent.
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

    /// Membership is indexed only for these: the states that people list, or that a worker has, and that do not hold the
    /// bulk of the tasks.
    pub const fn is_indexed(self) -> bool {
        matches!(self, Self::Scheduled | Self::Failed | Self::Cancelled) || self.is_at_worker()
    }

    /// A worker may have the task.
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
            format!("`{}` is not a state: use one of {names}", crate::model::task::id::clip(text))
        })
    }
}
