//! Payloads of events: the fields of each kind.

use super::{ErrorInfo, Kind};
use crate::model::json::RawJson;
use crate::model::outbox::RecordCopy;
use crate::model::record::attachment::Attachment;
use crate::model::record::state::State;
use crate::model::retention::Lifetimes;
use crate::model::task::Position;
use crate::model::task::continuation::Continuation;
use crate::model::task::id::TaskId;
use crate::model::task::patch::Patch;

/// Fields that belong to one kind of event. An optional field that is absent from the JSON is `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    Submitted,
    Scheduled {
        /// Time of the release, epoch milliseconds.
        due_ms: Option<i64>,
        /// Task record that the tracker stores until it is due.
        record: Option<Box<RecordCopy>>,
    },
    Released {
        /// Position of the task's record from this event on.
        position: Option<Position>,
        /// Waits of the run before the release.
        waits: u32,
    },
    Started {
        /// Continuations added by the handler.
        then: Vec<Continuation>,
    },
    Progress {
        value: Option<RawJson>,
    },
    Log {
        lines: Vec<String>,
        /// Number of lines dropped by the writer since its last event.
        dropped: u32,
    },
    Warned,
    Retrying {
        failure: AttemptFailure,
        /// Time of the next attempt, epoch milliseconds.
        due_ms: Option<i64>,
        /// Task record that the tracker stores until it is due.
        record: Option<Box<RecordCopy>>,
        /// Waits of the run, with this one; 0 if the attempt has failed.
        waits: u32,
    },
    /// The error states the reason ([`Interruption`](super::Interruption)).
    Interrupted(AttemptFailure),
    Succeeded {
        /// Start of the attempt; its `started` event may be missing or arrive later.
        started_at_ms: Option<i64>,
        output: Option<RawJson>,
    },
    Failed(AttemptFailure),
    Cancelled(AttemptFailure),
    Expired(AttemptFailure),
    CancelRequested(CancelScope),
    RetryRequested {
        /// Retries the failed tasks below instead of the task itself.
        only_failed: bool,
        /// Run chosen for a retry of several tasks.
        new_run: Option<u32>,
        /// Task record of a redrive.
        record: Option<Box<RecordCopy>>,
    },
    Reported {
        /// Reported state; without it the event is ignored.
        state: Option<State>,
        output: Option<RawJson>,
        error: Option<Box<ErrorInfo>>,
    },
    Patched {
        /// Changed fields; without them the event is ignored.
        patch: Option<Box<Patch>>,
    },
    Attached {
        /// Without it the event is ignored.
        attachment: Option<Box<Attachment>>,
    },
    Detached {
        /// Attachment of which only the name counts; without it the event is ignored.
        attachment: Option<Box<Attachment>>,
    },
    EffectDone {
        /// Id of the completed effect.
        effect: Option<Box<str>>,
        /// Position of the task's record, if the effect published it.
        position: Option<Position>,
    },
    DeadDropped,
    WorkerSilent,
    Checked {
        /// Index of the check, from 0; without it the event is ignored.
        check: Option<u32>,
    },
    /// Without both fields the event is ignored.
    Operated {
        /// Such as `pause_type`.
        action: Option<Box<str>>,
        /// Type, schedule, kill switch or dead letter; the key of the record.
        target: Option<Box<str>>,
    },
    Tick,
    Settings {
        /// New lifetimes.
        lifetimes: Option<Box<Lifetimes>>,
    },
    /// Kind of a newer build, of which only the fields for the history are read.
    Unknown(AttemptFailure),
}

/// End of an attempt or a task without a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptFailure {
    /// Start of the attempt; its `started` event may be missing or arrive later.
    pub started_at_ms: Option<i64>,
    pub error: Option<Box<ErrorInfo>>,
}

/// Tasks to which a cancel request applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelScope {
    /// Offset of the ancestor's request that this one derives from.
    pub asof: Option<i64>,
    /// Ancestor named in the original request.
    pub with: Option<TaskId>,
    /// Whether the request covers the descendants too.
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

/// Payload of a kind with all fields absent.
impl From<Kind> for Payload {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Submitted => Self::Submitted,
            Kind::Scheduled => Self::Scheduled { due_ms: None, record: None },
            Kind::Released => Self::Released { position: None, waits: 0 },
            Kind::Started => Self::Started { then: Vec::new() },
            Kind::Progress => Self::Progress { value: None },
            Kind::Log => Self::Log { lines: Vec::new(), dropped: 0 },
            Kind::Warned => Self::Warned,
            Kind::Retrying => {
                Self::Retrying { failure: AttemptFailure::default(), due_ms: None, record: None, waits: 0 }
            }
            Kind::Interrupted => Self::Interrupted(AttemptFailure::default()),
            Kind::Succeeded => Self::Succeeded { started_at_ms: None, output: None },
            Kind::Failed => Self::Failed(AttemptFailure::default()),
            Kind::Cancelled => Self::Cancelled(AttemptFailure::default()),
            Kind::Expired => Self::Expired(AttemptFailure::default()),
            Kind::CancelRequested => Self::CancelRequested(CancelScope::default()),
            Kind::RetryRequested => Self::RetryRequested { only_failed: false, new_run: None, record: None },
            Kind::Reported => Self::Reported { state: None, output: None, error: None },
            Kind::Patched => Self::Patched { patch: None },
            Kind::Attached => Self::Attached { attachment: None },
            Kind::Detached => Self::Detached { attachment: None },
            Kind::EffectDone => Self::EffectDone { effect: None, position: None },
            Kind::DeadDropped => Self::DeadDropped,
            Kind::WorkerSilent => Self::WorkerSilent,
            Kind::Checked => Self::Checked { check: None },
            Kind::Operated => Self::Operated { action: None, target: None },
            Kind::Tick => Self::Tick,
            Kind::Settings => Self::Settings { lifetimes: None },
            Kind::Unknown => Self::Unknown(AttemptFailure::default()),
        }
    }
}

impl Payload {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Submitted => Kind::Submitted,
            Self::Scheduled { .. } => Kind::Scheduled,
            Self::Released { .. } => Kind::Released,
            Self::Started { .. } => Kind::Started,
            Self::Progress { .. } => Kind::Progress,
            Self::Log { .. } => Kind::Log,
            Self::Warned => Kind::Warned,
            Self::Retrying { .. } => Kind::Retrying,
            Self::Interrupted(_) => Kind::Interrupted,
            Self::Succeeded { .. } => Kind::Succeeded,
            Self::Failed(_) => Kind::Failed,
            Self::Cancelled(_) => Kind::Cancelled,
            Self::Expired(_) => Kind::Expired,
            Self::CancelRequested(_) => Kind::CancelRequested,
            Self::RetryRequested { .. } => Kind::RetryRequested,
            Self::Reported { .. } => Kind::Reported,
            Self::Patched { .. } => Kind::Patched,
            Self::Attached { .. } => Kind::Attached,
            Self::Detached { .. } => Kind::Detached,
            Self::EffectDone { .. } => Kind::EffectDone,
            Self::DeadDropped => Kind::DeadDropped,
            Self::WorkerSilent => Kind::WorkerSilent,
            Self::Checked { .. } => Kind::Checked,
            Self::Operated { .. } => Kind::Operated,
            Self::Tick => Kind::Tick,
            Self::Settings { .. } => Kind::Settings,
            Self::Unknown(_) => Kind::Unknown,
        }
    }

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
            Self::Succeeded { output, .. } | Self::Reported { output, .. } | Self::Progress { value: output } => {
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
            Self::Scheduled { record, .. } | Self::Retrying { record, .. } | Self::RetryRequested { record, .. } => {
                record.as_deref()
            }
            _ => None,
        }
    }

    /// Sets the complete record of the task, in kinds that have one.
    pub fn set_record(&mut self, new: RecordCopy) {
        if let Self::Scheduled { record, .. } | Self::Retrying { record, .. } | Self::RetryRequested { record, .. } =
            self
        {
            *record = Some(Box::new(new));
        }
    }

    /// Takes the complete record of the task out of the event.
    pub fn into_record(self) -> Option<Box<RecordCopy>> {
        match self {
            Self::Scheduled { record, .. } | Self::Retrying { record, .. } | Self::RetryRequested { record, .. } => {
                record
            }
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
