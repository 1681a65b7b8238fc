//! Table of events: kinds, and the fields of each. From it come [`Kind`], [`Payload`], their reading and the published schema.

use serde::{Deserialize, Serialize};

use super::log_line::LogStream;
use super::{AttemptFailure, CancelScope, ErrorInfo};
use crate::json::RawJson;
use crate::omit::is_default;
use crate::outbox::RecordCopy;
use crate::record::attachment::Attachment;
use crate::record::state::State;
use crate::retention::Lifetimes;
use crate::task::Position;
use crate::task::continuation::Continuation;
use crate::task::patch::Patch;

/// Subject of a kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// A task, whose record it creates if the task is unknown.
    NewTask,
    /// A task with a record; without one it changes nothing.
    Task,
    /// The whole partition; the id is a placeholder.
    Partition,
}

/// Defines kinds and payloads. An entry: name on the wire, kind, subject, `outside_history` if the history of the task does not
/// list it, and the fields of `data`, or the type that has them. A new entry is the last one: histories store kinds by
/// their place.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:ident: $subject:ident $(+ $outside:ident)?
        $({ $($(#[$attribute:meta])* $field:ident: $type:ty,)* })? $(($inner:ty))?;
    )*) => {
        /// Kind of an event. A new kind that changes a state raises the event version, so that older builds stop at it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
            /// Kind of a newer build that changes no state.
            #[serde(other)]
            Unknown = u8::MAX,
        }

        /// Fields that belong to one kind of event: `data` on the wire. An optional field that is absent is `None`.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Payload {
            $(
                $(#[$doc])*
                $kind $({ $($(#[$attribute])* #[serde(skip_serializing_if = "is_default")] $field: $type,)* })? $(($inner))?,
            )*
            /// Kind of a newer build, of which only the fields for the history are read.
            Unknown(AttemptFailure),
        }

        /// Objects that are read as `data`.
        mod data {
            use super::*;
            $($(
                #[derive(Default, Deserialize, schemars::JsonSchema)]
                #[serde(default)]
                pub(super) struct $kind { $($(#[$attribute])* pub $field: $type,)* }
            )?)*
        }

        impl Kind {
            /// All kinds that this build writes.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Number in stored histories: the place in the table. A number that this build does not know is of a newer
            /// one.
            pub const fn number(self) -> u8 {
                self as u8
            }

            pub fn of_number(number: u8) -> Self {
                Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Unknown)
            }

            /// Name on the wire.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($name),)*
                    Self::Unknown => "unknown",
                }
            }

            const fn subject(self) -> Subject {
                match self {
                    $(Self::$kind => Subject::$subject,)*
                    Self::Unknown => Subject::Task,
                }
            }

            /// Returns true for kinds that the history of their task lists.
            pub const fn is_in_history(self) -> bool {
                match self {
                    $(Self::$kind => concat!($(stringify!($outside))?).is_empty(),)*
                    Self::Unknown => true,
                }
            }
        }

        /// Payload of a kind with all fields absent.
        impl From<Kind> for Payload {
            fn from(kind: Kind) -> Self {
                match kind {
                    $(Kind::$kind => Self::$kind $({ $($field: <$type>::default(),)* })? $((<$inner>::default()))?,)*
                    Kind::Unknown => Self::Unknown(AttemptFailure::default()),
                }
            }
        }

        impl Payload {
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind { .. } => Kind::$kind,)*
                    Self::Unknown(_) => Kind::Unknown,
                }
            }

            /// Reads the payload of a kind from its `data`.
            pub(super) fn read(kind: Kind, data: &str) -> serde_json::Result<Self> {
                Ok(match kind {
                    $(Kind::$kind => read!(data, $kind $({ $($field)* })? $(($inner))?),)*
                    // A newer build may give a field another form.
                    Kind::Unknown => Self::Unknown(serde_json::from_str(data).unwrap_or_default()),
                })
            }

            /// Schemas of `data`, by kind; `None`: the kind has no fields.
            pub(super) fn schemas(
                generator: &mut schemars::SchemaGenerator,
            ) -> Vec<(Kind, Option<schemars::Schema>)> {
                vec![$((Kind::$kind, schema!(generator, $kind $({ $($field)* })? $(($inner))?)),)*]
            }
        }
    };
}

macro_rules! read {
    ($data:ident, $kind:ident) => {
        Self::$kind
    };
    ($data:ident, $kind:ident { $($field:ident)* }) => {{
        let data::$kind { $($field),* } = serde_json::from_str($data)?;
        Self::$kind { $($field),* }
    }};
    ($data:ident, $kind:ident ($inner:ty)) => {
        Self::$kind(serde_json::from_str::<$inner>($data)?)
    };
}

macro_rules! schema {
    ($generator:ident, $kind:ident) => {
        None
    };
    ($generator:ident, $kind:ident { $($field:ident)* }) => {
        Some(<data::$kind as schemars::JsonSchema>::json_schema($generator))
    };
    ($generator:ident, $kind:ident ($inner:ty)) => {
        Some(<$inner as schemars::JsonSchema>::json_schema($generator))
    };
}

impl Kind {
    /// Returns true for kinds that concern the whole partition, not one task; their id is a placeholder.
    pub const fn is_partition_wide(self) -> bool {
        matches!(self.subject(), Subject::Partition)
    }

    /// Returns true for kinds that create the record of an unknown task. All others require an existing record.
    pub const fn creates(self) -> bool {
        matches!(self.subject(), Subject::NewTask)
    }
}

events! {
    /// The task was published, or an external one created.
    submitted = Submitted: NewTask;
    /// The task waits until it is due.
    scheduled = Scheduled: NewTask {
        /// Time of the release, epoch milliseconds.
        due_ms: Option<i64>,
        /// Task record that the tracker stores until it is due.
        record: Option<Box<RecordCopy>>,
    };
    /// The wait is over.
    released = Released: NewTask {
        /// Position of the task's record from this event on.
        position: Option<Position>,
        /// Waits of the run before the release.
        waits: u32,
        /// Offset of the ask whose record a unique task was released with.
        ask: Option<i64>,
    };
    /// An attempt started.
    started = Started: NewTask {
        /// Continuations added by the handler.
        then: Vec<Continuation>,
    };
    /// Progress of the attempt.
    progress = Progress: Task + outside_history {
        /// Any JSON.
        output: Option<RawJson>,
    };
    /// Lines of the task's log.
    log = Log: Task + outside_history {
        lines: Vec<String>,
        /// Stream of each line in turn, if the process of the attempt wrote it; `null` for other lines, and for those beyond the
        /// end of the list.
        streams: Vec<Option<LogStream>>,
        /// Number of lines dropped by the writer since its last event.
        dropped: u32,
    };
    /// The attempt reported a warning.
    warned = Warned: NewTask;
    /// An attempt failed, or ended with a wait, and another one follows.
    retrying = Retrying: NewTask {
        #[serde(flatten)]
        failure: AttemptFailure,
        /// Time of the next attempt, epoch milliseconds.
        due_ms: Option<i64>,
        /// Task record that the tracker stores until it is due.
        record: Option<Box<RecordCopy>>,
        /// Waits of the run, with this one; 0 if the attempt has failed.
        waits: u32,
    };
    /// An attempt ended without an outcome, and starts again with its number. The error states the
    /// [reason](super::InterruptionReason).
    interrupted = Interrupted: Task (AttemptFailure);
    /// The task's own work is done.
    succeeded = Succeeded: NewTask {
        /// Start of the attempt; its `started` event may be missing or arrive later.
        started_at_ms: Option<i64>,
        /// Result of the task.
        output: Option<RawJson>,
    };
    /// The task failed for good.
    failed = Failed: NewTask (AttemptFailure);
    /// The task was cancelled.
    cancelled = Cancelled: NewTask (AttemptFailure);
    /// The task did not start or end in time, or its record was removed.
    expired = Expired: NewTask (AttemptFailure);
    /// A cancel of the task and, by default, its descendants was requested.
    cancel_requested = CancelRequested: Task (CancelScope);
    /// A new run was requested.
    retry_requested = RetryRequested: Task {
        /// Retries the failed tasks below instead of the task itself.
        only_failed: bool,
        /// Run chosen for a retry of several tasks.
        new_run: Option<u32>,
        /// Task record of a redrive.
        record: Option<Box<RecordCopy>>,
    };
    /// State of an external task, reported by the system that runs it.
    reported = Reported: NewTask {
        /// Reported state; without it the event is ignored.
        state: Option<State>,
        output: Option<RawJson>,
        error: Option<Box<ErrorInfo>>,
    };
    /// Fields of the task were changed.
    patched = Patched: Task {
        /// Changed fields; without them the event is ignored.
        patch: Option<Box<Patch>>,
    };
    /// Adds or replaces a small value stored with the task.
    attached = Attached: Task {
        /// Value to store; an event without one is ignored.
        attachment: Option<Box<Attachment>>,
    };
    /// The attachment is removed.
    detached = Detached: Task {
        /// Attachment of which only the name counts; without it the event is ignored.
        attachment: Option<Box<Attachment>>,
    };
    /// An effect was published.
    effect_done = EffectDone: Task {
        /// Id of the completed effect.
        effect: Option<Box<str>>,
        /// Position of the task's record, if the effect published it.
        position: Option<Position>,
    };
    /// The task's dead letter was dropped.
    dead_dropped = DeadDropped: Task;
    /// The task's worker stopped sending heartbeats.
    worker_silent = WorkerSilent: Task;
    /// A check of the task is due.
    checked = Checked: Task {
        /// Index of the check, from 0; without it the event is ignored.
        check: Option<u32>,
    };
    /// Request of an operator that concerns no task, such as a pause. Without both fields the event is ignored.
    operated = Operated: Partition {
        /// Such as `pause_type`.
        action: Option<Box<str>>,
        /// Type, schedule, kill switch or dead letter; the key of the record.
        target: Option<Box<str>>,
    };
    /// Advances log time only.
    tick = Tick: Partition;
    /// Sets the lifetimes of trees and records from this event on.
    settings = Settings: Partition {
        /// New lifetimes.
        lifetimes: Option<Box<Lifetimes>>,
    };
    /// A unique task was asked for. The projection decides: it starts, it is kept, or another one stands for it.
    asked = Asked: NewTask {
        /// Complete record of the task; without it the event is ignored.
        record: Option<Box<RecordCopy>>,
    };
}
