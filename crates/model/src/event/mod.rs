//! Event record on the events topic: one change of one task. The value is compact JSON, the key is the root id.
//!
//! Producers, the API, workers and trackers write events; only trackers project them. The fields that all kinds share
//! are in [`Event`], those of one kind in its [`Payload`]. An event may carry the announcement of its task (type,
//! policy, hash), so that a task whose first event was lost is known from a later one. The hot kinds, `submitted` and
//! `succeeded`, have hand-written encoders beside serde's, and tests that compare the two.
//!
//! Invariant: an event that was valid once stays readable, because stores are rebuilt from the log. A kind that an
//! older build does not know may be ignored by it only if it changes no state; one that changes a state raises
//! [`EVENT_VERSION`], at which older trackers stop.
//!
//! Read next: `table.rs` (all kinds and their fields), `wire.rs` (reading and writing).

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::encode_error::EncodeError;
use super::json::short_reason;
use super::outbox::RecordCopy;
use super::retention::Lifetimes;
use super::retry::RunUsage;
use super::task::id::TaskId;
use super::task::{Policy, Position, TaskSpec};
use super::trace::SpanContext;
use wire::{Envelope, ReadEnvelope};

mod interruption;
mod payload;
pub mod submitted;
mod succeeded;
mod table;
mod wire;

pub use interruption::InterruptionReason;
pub use payload::{AttemptFailure, CancelScope};
pub use submitted::submitted;
pub use succeeded::Success;
pub use table::{Kind, Payload};

/// Version of the events written by this build, and the highest version that it projects.
pub const EVENT_VERSION: u32 = 3;
/// Lowest version that this build projects. It stays when [`EVENT_VERSION`] rises: logs keep events of all released
/// versions.
pub const OLDEST_EVENT_VERSION: u32 = 2;

/// Field of [`Event::extra`] with the id of the bulk action that an event belongs to.
pub const BULK_FIELD: &str = "bulk";

/// Event of a task: the fields of every kind, and the payload of its kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub v: u32,
    pub id: TaskId,
    pub run: u32,
    /// Attempt number; 0 if the event does not concern an attempt.
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    /// Writer's clock, epoch milliseconds. For display only: no decision depends on it.
    pub at_ms: i64,
    /// Announcement of the task: in `submitted`, and repeated in a worker's first and last event of a run.
    pub task: Option<Box<Announcement>>,
    pub message: Option<String>,
    /// Name of the API token that made the request.
    pub by: Option<Arc<str>>,
    pub payload: Payload,
    /// Unknown fields written by newer builds, preserved.
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
    /// W3C `traceparent` of the task.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "valid_context")]
    pub trace: Option<SpanContext>,
}

/// Reads a context; an invalid one counts as none.
fn valid_context<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<SpanContext>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(deserializer)?;
    Ok(text.and_then(|text| SpanContext::parse(&text)))
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

impl Event {
    /// Event without optional fields. `payload`: or a kind, for a payload without any fields.
    pub fn new(payload: impl Into<Payload>, id: TaskId, run: u32, at_ms: i64) -> Self {
        Self {
            v: EVENT_VERSION,
            id,
            run,
            attempt: 0,
            worker: None,
            at_ms,
            task: None,
            message: None,
            by: None,
            payload: payload.into(),
            extra: Map::new(),
        }
    }

    pub const fn kind(&self) -> Kind {
        self.payload.kind()
    }

    /// Attempts and waits that the run has used, according to an event of an attempt or a release. An attempt that ended
    /// with a wait is not counted. An event that hands the task over to the tracker counts the waits of the record that it
    /// contains, even if the attempt had failed.
    pub fn used(&self) -> RunUsage {
        let attempts = if self.payload.is_wait() { self.attempt.saturating_sub(1) } else { self.attempt };
        let of_record = self.payload.record().map_or(0, RecordCopy::waits);
        RunUsage { attempts, waits: self.payload.waits().max(of_record) }
    }

    /// Returns true if the record in the event may be that of a task: its own, or that of a newer ask for the key of a
    /// unique task, which has replaced it.
    pub fn may_have_record_of(&self, id: &TaskId) -> bool {
        let is_of_key = || self.kind() == Kind::Asked && self.id.tag().is_some_and(|tag| id.tag() == Some(tag));
        self.id == *id || is_of_key()
    }

    /// Key of the record: the root id, or the target of an operator's request.
    pub fn key(&self) -> &str {
        match &self.payload {
            Payload::Operated { target: Some(target), .. } => target,
            _ => self.id.root(),
        }
    }

    /// Event that advances log time and concerns no task.
    pub fn tick(at_ms: i64) -> Self {
        Self::new(Kind::Tick, TaskId::of_tracker(), 1, at_ms)
    }

    /// Event that sets the lifetimes of trees and records.
    pub fn settings(lifetimes: Lifetimes, at_ms: i64) -> Self {
        let payload = Payload::Settings { lifetimes: Some(Box::new(lifetimes)) };
        Self::new(payload, TaskId::of_tracker(), 1, at_ms)
    }

    /// Marks the event as part of a bulk action. The audit log omits such events: it contains the bulk action itself.
    pub fn mark_bulk(&mut self, id: &str) {
        self.extra.insert(BULK_FIELD.to_owned(), Value::from(id));
    }

    /// Event that records a request of an operator.
    pub fn operation(action: &str, target: &str, at_ms: i64) -> Self {
        let payload = Payload::Operated { action: Some(action.into()), target: Some(target.into()) };
        Self::new(payload, TaskId::of_tracker(), 1, at_ms)
    }

    /// `submitted` event of a task whose record is at `position`. An external task has no record.
    pub fn submitted(task: &TaskSpec, position: Option<Position>, at_ms: i64) -> Self {
        Self::announcing(Payload::Submitted, task, position, at_ms)
    }

    /// Event of a task that contains its announcement. `position`: of its record, if it has one.
    pub fn announcing(payload: impl Into<Payload>, task: &TaskSpec, position: Option<Position>, at_ms: i64) -> Self {
        let announcement = Some(Box::new(Announcement::of(task, position)));
        Self { task: announcement, ..Self::new(payload, task.id.clone(), task.run, at_ms) }
    }

    /// Appends the JSON of the event.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Ok(serde_json::to_writer(out, &Envelope::from(self))?)
    }

    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let event = match serde_json::from_slice::<ReadEnvelope<'_>>(value).and_then(ReadEnvelope::into_event) {
            Ok(event) => event,
            Err(error) => {
                return Err(version_of(value).map_or(DecodeError::Malformed(short_reason(&error)), DecodeError::Newer));
            }
        };
        if event.v > EVENT_VERSION {
            return Err(DecodeError::Newer(event.v));
        }
        if event.v < OLDEST_EVENT_VERSION {
            return Err(DecodeError::Malformed(format!("version {} was never released", event.v)));
        }
        if event.kind() == Kind::Submitted && event.task.is_none() {
            return Err(DecodeError::Malformed("`task` is missing in a `submitted` event".to_owned()));
        }
        Ok(event)
    }
}

/// Version of an event that cannot be decoded, if it is newer than this build's.
fn version_of(value: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct EventVersion {
        v: u32,
    }
    serde_json::from_slice::<EventVersion>(value).ok().map(|event| event.v).filter(|&v| v > EVENT_VERSION)
}

/// Reason why a record of the events topic cannot be projected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the event has version {0}, this build reads up to {EVENT_VERSION}: upgrade trackers first")]
    Newer(u32),
    #[error("not an event: {0}")]
    Malformed(String),
}

/// The published schema is that of the JSON object.
impl schemars::JsonSchema for Event {
    fn schema_name() -> Cow<'static, str> {
        "Event".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        wire::schema(generator)
    }
}

impl Announcement {
    pub fn of(task: &TaskSpec, position: Option<Position>) -> Self {
        Self {
            task_type: task.task_type.clone(),
            created_at_ms: task.created_at_ms,
            position,
            hash: task.hash.clone(),
            policy: task.policy.clone(),
            asof: task.asof,
            trace: task.trace_context(),
        }
    }
}

pub mod log_line;
#[cfg(test)]
mod tests;
