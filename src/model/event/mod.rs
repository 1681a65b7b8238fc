//! Event record on the events topic: one change of one task. The value is compact JSON, the key is the root id.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::json::RawJson;
use super::outbox::KeptRecord;
use super::record::attachment::Attachment;
use super::record::state::State;
use super::retention::Lifetimes;
use super::task::continuation::Continuation;
use super::task::id::TaskId;
use super::task::patch::Patch;
use super::task::{Policy, Position, Task};

mod submitted;
mod succeeded;

pub use submitted::submitted;
pub use succeeded::Success;

/// Version of the events written by this build, and the highest version that it projects.
pub const EVENT_VERSION: u32 = 1;

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

/// Event of a task. Fields that do not belong to the kind are omitted from the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    pub v: u32,
    pub kind: Kind,
    pub id: TaskId,
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub run: u32,
    /// Attempt number; 0 if the event does not concern an attempt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// Writer's clock, epoch milliseconds. For display only: no decision depends on it.
    pub at_ms: i64,
    /// Announcement of the task: in `submitted`, and repeated in a worker's first and last event of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<Announcement>>,
    /// Start of the attempt that has ended; its `started` event may be missing or arrive later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<i64>,
    /// Result of `succeeded`, or value of `progress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorInfo>>,
    /// Time of the next attempt or of the release, epoch milliseconds (`retrying`, `scheduled`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Number of log lines dropped by the writer since its last event.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u32,
    /// Reported state (`reported`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Task record that the tracker stores until it is due (`scheduled`, `retrying`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<KeptRecord>>,
    /// Position of the task's record from this event on (`released`, and `effect_done` of an effect that published
    /// it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Id of the completed effect (`effect_done`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Box<str>>,
    /// Index of the check, from 0 (`checked`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<u32>,
    /// Retries the failed tasks below instead of the task itself (`retry_requested`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_failed: bool,
    /// Run chosen for a retry of several tasks (`retry_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_run: Option<u32>,
    /// Offset of the ancestor's request that this one derives from (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asof: Option<i64>,
    /// Ancestor named in the original request (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<TaskId>,
    /// Whether the request covers the descendants too; default true (`cancel_requested`).
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub subtree: bool,
    /// Continuations added by the handler (`started`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// Changed fields (`patched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Box<Patch>>,
    /// Attachment (`attached`), or only its name (`detached`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Box<Attachment>>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// New lifetimes (`settings`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetimes: Option<Box<Lifetimes>>,
    /// Unknown fields written by newer builds, preserved.
    #[serde(flatten)]
    #[schemars(skip)]
    pub extra: Map<String, Value>,
}

/// Description of a task in events, complete enough for the projection: in `submitted` and in a worker's first event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Announcement {
    #[serde(rename = "type")]
    pub task_type: Arc<str>,
    /// Creation time set by the producer, epoch milliseconds.
    pub created_at_ms: i64,
    /// Position of the task's record; absent for an external task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<Policy>>,
    /// `ce_asof`: offset in the events partition. Requests up to this offset precede the task and do not apply to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asof: Option<i64>,
}

/// Reason for the failure of an attempt or a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ErrorInfo {
    /// Stable error code: `error`, `timeout`, `stalled`, `panic`, `crashed`, `rejected`, `result_too_large`, …
    pub kind: String,
    pub message: String,
    /// Attempt in which the error occurred; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
}

impl ErrorInfo {
    pub fn new(kind: &str, message: impl Into<String>, attempt: u32) -> Self {
        Self { kind: kind.to_owned(), message: message.into(), attempt }
    }

    /// Kind and message for people; the kind is omitted if it is the default or the message begins with it.
    pub fn text(&self) -> Cow<'_, str> {
        let kind = self.kind.replace('_', " ");
        if self.kind == "error" || self.message.to_lowercase().starts_with(&kind) {
            return Cow::Borrowed(&self.message);
        }
        Cow::Owned(format!("{}: {}", self.kind, self.message))
    }
}

fn first() -> u32 {
    1
}

fn is_first(run: &u32) -> bool {
    *run == 1
}

fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Event {
    pub fn new(kind: Kind, id: TaskId, run: u32, at_ms: i64) -> Self {
        Self {
            v: EVENT_VERSION,
            kind,
            id,
            run,
            attempt: 0,
            worker: None,
            at_ms,
            task: None,
            started_at_ms: None,
            output: None,
            error: None,
            due_ms: None,
            message: None,
            lines: Vec::new(),
            dropped: 0,
            state: None,
            record: None,
            position: None,
            effect: None,
            check: None,
            only_failed: false,
            new_run: None,
            asof: None,
            with: None,
            subtree: true,
            then: Vec::new(),
            patch: None,
            attachment: None,
            by: None,
            lifetimes: None,
            extra: Map::new(),
        }
    }

    /// Event that advances log time and concerns no task.
    pub fn tick(at_ms: i64) -> Self {
        Self::new(Kind::Tick, TaskId::of_tracker(), 1, at_ms)
    }

    /// Event that sets the lifetimes of trees and records.
    pub fn settings(lifetimes: Lifetimes, at_ms: i64) -> Self {
        let lifetimes = Some(Box::new(lifetimes));
        Self { lifetimes, ..Self::new(Kind::Settings, TaskId::of_tracker(), 1, at_ms) }
    }

    /// `submitted` event of a task whose record is at `task.position`.
    pub fn submitted(task: &Task, at_ms: i64) -> Self {
        let mut event = Self::new(Kind::Submitted, task.id.clone(), task.run, at_ms);
        event.task = Some(Box::new(Announcement::of(task)));
        event
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        // Serialising into memory fails only for maps with non-string keys, and there are none.
        serde_json::to_writer(out, self).unwrap_or_default();
    }

    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let event = match serde_json::from_slice::<Self>(value) {
            Ok(event) => event,
            Err(why) => {
                return Err(version_of(value).map_or(DecodeError::Malformed(why.to_string()), DecodeError::Newer));
            }
        };
        if event.v > EVENT_VERSION {
            return Err(DecodeError::Newer(event.v));
        }
        if event.kind == Kind::Submitted && event.task.is_none() {
            return Err(DecodeError::Malformed("`task` is missing in a `submitted` event".to_owned()));
        }
        Ok(event)
    }
}

/// Version of an event that cannot be decoded, if it is newer than this build's.
fn version_of(value: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    serde_json::from_slice::<Versioned>(value).ok().map(|event| event.v).filter(|&v| v > EVENT_VERSION)
}

/// Reason why a record of the events topic cannot be projected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the event has version {0}, this build reads up to {EVENT_VERSION}: upgrade trackers first")]
    Newer(u32),
    #[error("not an event: {0}")]
    Malformed(String),
}

impl Announcement {
    pub fn of(task: &Task) -> Self {
        Self {
            task_type: task.task_type.clone(),
            created_at_ms: task.created_at_ms,
            // An external task has no record.
            position: (task.position.offset >= 0).then_some(task.position),
            hash: task.hash.clone(),
            policy: task.policy.clone(),
            asof: task.asof,
        }
    }
}

pub mod log_line;
#[cfg(test)]
mod tests;
