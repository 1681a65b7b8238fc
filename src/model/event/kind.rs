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
    /// An attempt ended without an outcome, and starts again with its number.
    Interrupted,
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
    /// Request of an operator that concerns no task, such as a pause.
    Operated,
    /// Advances log time only.
    Tick,
    /// Sets the lifetimes of trees and records from this event on.
    Settings,
    /// Kind of a newer build that changes no state.
    #[serde(other)]
    Unknown,
}

impl Kind {
    /// Name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Scheduled => "scheduled",
            Self::Released => "released",
            Self::Started => "started",
            Self::Progress => "progress",
            Self::Log => "log",
            Self::Warned => "warned",
            Self::Retrying => "retrying",
            Self::Interrupted => "interrupted",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::CancelRequested => "cancel_requested",
            Self::RetryRequested => "retry_requested",
            Self::Reported => "reported",
            Self::Patched => "patched",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::EffectDone => "effect_done",
            Self::DeadDropped => "dead_dropped",
            Self::WorkerSilent => "worker_silent",
            Self::Checked => "checked",
            Self::Operated => "operated",
            Self::Tick => "tick",
            Self::Settings => "settings",
            Self::Unknown => "unknown",
        }
    }

    /// Returns true for kinds that concern the whole partition, not one task; their id is a placeholder.
    pub const fn is_partition_wide(self) -> bool {
        matches!(self, Self::Operated | Self::Tick | Self::Settings)
    }

    /// Returns true for kinds that create the record of an unknown task. All others require an existing record.
    pub const fn creates(self) -> bool {
        !matches!(
            self,
            Self::Progress
                | Self::Log
                | Self::Interrupted
                | Self::CancelRequested
                | Self::RetryRequested
                | Self::Patched
                | Self::Attached
                | Self::Detached
                | Self::EffectDone
                | Self::DeadDropped
                | Self::WorkerSilent
                | Self::Checked
                | Self::Operated
                | Self::Tick
                | Self::Settings
                | Self::Unknown
        )
    }
}
