//! Fields that several kinds of events have, and access to them whatever the kind.

use serde::{Deserialize, Serialize};

use super::{ErrorInfo, Payload};
use crate::json::RawJson;
use crate::omit::is_true;
use crate::outbox::RecordCopy;
use crate::task::Position;
use crate::task::continuation::Continuation;
use crate::task::id::TaskId;

/// End of an attempt or a task without a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct AttemptFailure {
    /// Start of the attempt; its `started` event may be missing or arrive later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorInfo>>,
}

/// Tasks to which a cancel request applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct CancelScope {
    /// Offset of the ancestor's request that this one derives from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asof: Option<i64>,
    /// Ancestor named in the original request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<TaskId>,
    /// Whether the request covers the descendants too.
    #[serde(skip_serializing_if = "is_true")]
    pub subtree: bool,
}

impl Default for CancelScope {
    fn default() -> Self {
        Self { asof: None, with: None, subtree: true }
    }
}

impl AttemptFailure {
    /// Failure outside an attempt.
    pub fn new(kind: &str, message: impl Into<String>, attempt: u32) -> Self {
        Self { started_at_ms: None, error: Some(Box::new(ErrorInfo::new(kind, message, attempt))) }
    }
}

impl Payload {
    /// Failure of the attempt or task, for kinds that have one.
    pub const fn failure(&self) -> Option<&AttemptFailure> {
        match self {
            Self::Retrying { failure, .. }
            | Self::Interrupted(failure)
            | Self::Failed(failure)
            | Self::Cancelled(failure)
            | Self::Expired(failure)
            | Self::Unknown(failure) => Some(failure),
            _ => None,
        }
    }

    pub fn error(&self) -> Option<&ErrorInfo> {
        match self {
            Self::Reported { error, .. } => error.as_deref(),
            _ => self.failure()?.error.as_deref(),
        }
    }

    /// Start of the attempt that has ended, epoch milliseconds.
    pub fn started_at_ms(&self) -> Option<i64> {
        match self {
            Self::Succeeded { started_at_ms, .. } => *started_at_ms,
            _ => self.failure()?.started_at_ms,
        }
    }

    /// Result of the task, or value of `progress`.
    pub const fn output(&self) -> Option<&RawJson> {
        match self {
            Self::Succeeded { output, .. } | Self::Reported { output, .. } | Self::Progress { output } => {
                output.as_ref()
            }
            _ => None,
        }
    }

    /// Time of the next attempt or of the release, epoch milliseconds.
    pub const fn due_ms(&self) -> Option<i64> {
        match self {
            Self::Scheduled { due_ms, .. } | Self::Retrying { due_ms, .. } => *due_ms,
            _ => None,
        }
    }

    /// Sets the time of the next attempt or of the release, in kinds that have one.
    pub const fn set_due(&mut self, at_ms: i64) {
        if let Self::Scheduled { due_ms, .. } | Self::Retrying { due_ms, .. } = self {
            *due_ms = Some(at_ms);
        }
    }

    /// Complete record of the task, if the event contains it.
    pub fn record(&self) -> Option<&RecordCopy> {
        match self {
            Self::Scheduled { record, .. }
            | Self::Retrying { record, .. }
            | Self::RetryRequested { record, .. }
            | Self::Asked { record } => record.as_deref(),
            _ => None,
        }
    }

    /// Sets the complete record of the task, in kinds that have one.
    pub fn set_record(&mut self, new: RecordCopy) {
        if let Self::Scheduled { record, .. }
        | Self::Retrying { record, .. }
        | Self::RetryRequested { record, .. }
        | Self::Asked { record } = self
        {
            *record = Some(Box::new(new));
        }
    }

    /// Takes the complete record of the task out of the event.
    pub fn into_record(self) -> Option<Box<RecordCopy>> {
        match self {
            Self::Scheduled { record, .. }
            | Self::Retrying { record, .. }
            | Self::RetryRequested { record, .. }
            | Self::Asked { record } => record,
            _ => None,
        }
    }

    /// Position of the task's record from this event on.
    pub const fn position(&self) -> Option<Position> {
        match self {
            Self::Released { position, .. } | Self::EffectDone { position, .. } => *position,
            _ => None,
        }
    }

    /// Sets the position of the task's record, in kinds that have one.
    pub const fn set_position(&mut self, new: Position) {
        if let Self::Released { position, .. } | Self::EffectDone { position, .. } = self {
            *position = Some(new);
        }
    }

    /// Waits of the run, in `released` and in the `retrying` of an attempt that ended with a wait; otherwise 0.
    pub const fn waits(&self) -> u32 {
        match self {
            Self::Released { waits, .. } | Self::Retrying { waits, .. } => *waits,
            _ => 0,
        }
    }

    /// Offset of the ask whose record a unique task was released with.
    pub const fn ask(&self) -> Option<i64> {
        match self {
            Self::Released { ask, .. } => *ask,
            _ => None,
        }
    }

    /// Returns true if the attempt ended with a wait, which does not count as an attempt.
    pub const fn is_wait(&self) -> bool {
        matches!(self, Self::Retrying { waits: 1.., .. })
    }

    /// Continuations added by the handler.
    pub fn continuations(&self) -> &[Continuation] {
        match self {
            Self::Started { then } => then,
            _ => &[],
        }
    }

    /// Lines for the log of a task that no process of an attempt wrote.
    pub const fn log(lines: Vec<String>) -> Self {
        Self::Log { lines, streams: Vec::new(), dropped: 0 }
    }

    /// Log lines.
    pub fn lines(&self) -> &[String] {
        match self {
            Self::Log { lines, .. } => lines,
            _ => &[],
        }
    }

    /// Run chosen for a retry of several tasks.
    pub const fn new_run(&self) -> Option<u32> {
        match self {
            Self::RetryRequested { new_run, .. } => *new_run,
            _ => None,
        }
    }
}
