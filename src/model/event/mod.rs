//! The record on the events topic: one thing that happened to one task. The value is compact JSON, the key the root id.

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

/// The version of events that this build writes and the highest it can fold.
pub const EVENT_VERSION: u32 = 1;

/// What happened. A kind that changes a state and is unknown to older builds comes with a higher version.
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
    /// The state of an external task, told by whoever runs it.
    Reported,
    Patched,
    /// A small value is put beside the task, or replaced.
    Attached,
    Detached,
    EffectDone,
    DeadDropped,
    WorkerSilent,
    /// The time of one of its checks has come.
    Checked,
    /// Moves log time only.
    Tick,
    /// How long trees and their records last, from here on.
    Settings,
    /// A kind of a newer build that changes no state.
    #[serde(other)]
    Unknown,
}

impl Kind {
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// The kinds that speak of no task; their id says nothing.
    pub const fn is_of_no_task(self) -> bool {
        matches!(self, Self::Tick | Self::Settings)
    }

    /// The kinds that make a record for a task nobody knows yet. The others speak of a task that must be there.
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

/// One event. Fields that do not belong to the kind are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    pub v: u32,
    pub kind: Kind,
    pub id: TaskId,
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub run: u32,
    /// 0 where no attempt is meant.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// The writer's clock, epoch milliseconds. Shown, never decided on.
    pub at_ms: i64,
    /// What `submitted` says of the task; a worker's first event and its last say it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<Announcement>>,
    /// When the attempt began that has ended: its `started` may not be written, or not have arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<i64>,
    /// The result of `succeeded`, the value of `progress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorInfo>>,
    /// When the next attempt or the release is due (`retrying`, `scheduled`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Log lines that the writer had to drop since its last event.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u32,
    /// What `reported` reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The task's record, which the tracker keeps until it is due (`scheduled`, `retrying`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<KeptRecord>>,
    /// Where the task's record lies from here on (`released`, and `effect_done` of what has published one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// What is done (`effect_done`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Box<str>>,
    /// Which of its checks, from 0 (`checked`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<u32>,
    /// The tasks below that have not succeeded themselves, instead of the task (`retry_requested`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_failed: bool,
    /// The run that a retry of several tasks has (`retry_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_run: Option<u32>,
    /// The place of the request above this task that it comes from (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asof: Option<i64>,
    /// The task above this one that the request named (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<TaskId>,
    /// It applies to what is below as well; true unless said otherwise (`cancel_requested`).
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub subtree: bool,
    /// What its handler wants to follow it (`started`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// What is changed (`patched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Box<Patch>>,
    /// What is attached (`attached`); its name alone (`detached`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Box<Attachment>>,
    /// Who asked for it: the name of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// What holds from here on (`settings`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetimes: Option<Box<Lifetimes>>,
    /// Fields of newer builds, kept.
    #[serde(flatten)]
    #[schemars(skip)]
    pub extra: Map<String, Value>,
}

/// Everything the fold needs to know of a task, carried by `submitted` and by the worker's first event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Announcement {
    #[serde(rename = "type")]
    pub task_type: Arc<str>,
    /// When the producer made it, epoch milliseconds.
    pub created_at_ms: i64,
    /// Where its record is; none for an external task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<Policy>>,
    /// `ce_asof`: requests up to this place in the events partition were made before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asof: Option<i64>,
}

/// Why an attempt or a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ErrorInfo {
    /// Stable word for programs: `error`, `timeout`, `stalled`, `panic`, `crashed`, `rejected`, `result_too_large`, `bad_json`, …
    pub kind: String,
    pub message: String,
    /// The attempt it happened in; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
}

impl ErrorInfo {
    pub fn new(kind: &str, message: impl Into<String>, attempt: u32) -> Self {
        Self { kind: kind.to_owned(), message: message.into(), attempt }
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

    /// An event that speaks of no task: it moves log time.
    pub fn tick(at_ms: i64) -> Self {
        Self::new(Kind::Tick, TaskId::of_tracker(), 1, at_ms)
    }

    /// What trees and records last from here on.
    pub fn settings(lifetimes: Lifetimes, at_ms: i64) -> Self {
        let lifetimes = Some(Box::new(lifetimes));
        Self { lifetimes, ..Self::new(Kind::Settings, TaskId::of_tracker(), 1, at_ms) }
    }

    /// The `submitted` event of a task whose record lies at `task.position`.
    pub fn submitted(task: &Task, at_ms: i64) -> Self {
        let mut event = Self::new(Kind::Submitted, task.id.clone(), task.run, at_ms);
        event.task = Some(Box::new(Announcement::of(task)));
        event
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        // Serialising into memory fails only for maps with keys that are not text, and there are none.
        serde_json::to_writer(out, self).unwrap_or_default();
    }

    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let event = match serde_json::from_slice::<Self>(value) {
            Ok(event) => event,
            Err(why) => return Err(version_of(value).map_or(DecodeError::Malformed(why.to_string()), DecodeError::Newer)),
        };
        if event.v > EVENT_VERSION {
            return Err(DecodeError::Newer(event.v));
        }
        if event.kind == Kind::Submitted && event.task.is_none() {
            return Err(DecodeError::Malformed("`submitted` says nothing of its task: `task` is missing".to_owned()));
        }
        Ok(event)
    }
}

/// The version of an event that cannot be read otherwise, if it is a newer one.
fn version_of(value: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    serde_json::from_slice::<Versioned>(value).ok().map(|event| event.v).filter(|&v| v > EVENT_VERSION)
}

/// Why a record of the events topic cannot be folded.
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
