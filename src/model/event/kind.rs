//! Kinds of events.

use serde::{Deserialize, Serialize};

/// Kind of an event. A new kind that changes a state raises the event version, so that older builds stop at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Submitted,
    Scheduled,
    Released,
    Started,
    Progress,
    Log,
    Warned,
    Retrying,
    Succeeded,
    Failed,
    Cancelled,
    Expired,
    CancelRequested,
    RetryRequested,
    /// State of an external task, reported by the system that runs it.
    Reported,
    Patched,
    /// Adds or replaces a small value stored with the task.
    Attached,
    Detached,
    EffectDone,
    DeadDropped,
    WorkerSilent,
    /// A check of the task is due.
    Checked,
    /// Advances log time only.
    Tick,
    /// Sets the lifetimes of trees and records from this event on.
    Settings,
    /// Kind of a newer build that changes no state.
    #[serde(other)]
    Unknown,
}

impl Kind {
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// Returns true for kinds that concern the whole partition, not one task; their id is a placeholder.
    pub const fn is_partition_wide(self) -> bool {
        matches!(self, Self::Tick | Self::Settings)
    }

    /// Returns true for kinds that create the record of an unknown task. All others require an existing record.
    pub const fn creates(self) -> bool {
        !matches!(
            self,
            Self::Progress
                | Self::Log
                | Self::CancelRequested
                | Self::RetryRequested
                | Self::Patched
                | Self::Attached
                | Self::Detached
                | Self::EffectDone
                | Self::DeadDropped
                | Self::WorkerSilent
                | Self::Checked
                | Self::Tick
                | Self::Settings
                | Self::Unknown
        )
    }
}
