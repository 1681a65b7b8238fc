//! JSON form of an event: one flat object, in which fields that do not belong to the kind are absent.

use std::borrow::Cow;
use std::mem::take;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Announcement, AttemptFailure, CancelScope, ErrorInfo, Event, Kind, Payload};
use crate::model::json::RawJson;
use crate::model::outbox::RecordCopy;
use crate::model::record::attachment::Attachment;
use crate::model::record::state::State;
use crate::model::retention::Lifetimes;
use crate::model::task::Position;
use crate::model::task::continuation::Continuation;
use crate::model::task::id::TaskId;
use crate::model::task::patch::Patch;

/// Event of a task. Fields that do not belong to the kind are omitted from the JSON.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct WireEvent<'a> {
    v: u32,
    kind: Kind,
    id: TaskId,
    #[serde(default = "first", skip_serializing_if = "is_first")]
    run: u32,
    /// Attempt number; 0 if the event does not concern an attempt.
    #[serde(default, skip_serializing_if = "is_zero")]
    attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<Arc<str>>,
    /// Writer's clock, epoch milliseconds. For display only: no decision depends on it.
    at_ms: i64,
    /// Announcement of the task: in `submitted`, and repeated in a worker's first and last event of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<Cow<'a, Box<Announcement>>>,
    /// Start of the attempt that has ended; its `started` event may be missing or arrive later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started_at_ms: Option<i64>,
    /// Result of `succeeded`, or value of `progress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<Cow<'a, RawJson>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, Box<ErrorInfo>>>,
    /// Time of the next attempt or of the release, epoch milliseconds (`retrying`, `scheduled`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    lines: Cow<'a, [String]>,
    /// Number of log lines dropped by the writer since its last event.
    #[serde(default, skip_serializing_if = "is_zero")]
    dropped: u32,
    /// Reported state (`reported`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    /// Waits of the run: with this one in the `retrying` of an attempt that is not counted; before the release
    /// (`released`).
    #[serde(default, skip_serializing_if = "is_zero")]
    waits: u32,
    /// Task record that the tracker stores until it is due (`scheduled`, `retrying`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record: Option<Cow<'a, Box<RecordCopy>>>,
    /// Position of the task's record from this event on (`released`, and `effect_done` of an effect that published
    /// it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    position: Option<Position>,
    /// Id of the completed effect (`effect_done`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effect: Option<Cow<'a, str>>,
    /// Index of the check, from 0 (`checked`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<u32>,
    /// Retries the failed tasks below instead of the task itself (`retry_requested`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    only_failed: bool,
    /// Run chosen for a retry of several tasks (`retry_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new_run: Option<u32>,
    /// Offset of the ancestor's request that this one derives from (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asof: Option<i64>,
    /// Ancestor named in the original request (`cancel_requested`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    with: Option<TaskId>,
    /// Whether the request covers the descendants too; default true (`cancel_requested`).
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    subtree: bool,
    /// Continuations added by the handler (`started`).
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    then: Cow<'a, [Continuation]>,
    /// Changed fields (`patched`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    patch: Option<Cow<'a, Box<Patch>>>,
    /// Attachment (`attached`), or only its name (`detached`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attachment: Option<Cow<'a, Box<Attachment>>>,
    /// Action that an operator requested (`operated`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Cow<'a, str>>,
    /// Type, schedule, kill switch or dead letter of the action (`operated`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Cow<'a, str>>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Arc<str>>,
    /// New lifetimes (`settings`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetimes: Option<Cow<'a, Box<Lifetimes>>>,
    /// Unknown fields written by newer builds, preserved.
    #[serde(flatten)]
    #[schemars(skip)]
    extra: Cow<'a, Map<String, Value>>,
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

impl<'a> From<&'a Event> for WireEvent<'a> {
    fn from(event: &'a Event) -> Self {
        let mut wire = Self::envelope(event);
        match &event.payload {
            Payload::Scheduled { due_ms, record } => wire.set_wait(*due_ms, record),
            Payload::Released { position, waits } => (wire.position, wire.waits) = (*position, *waits),
            Payload::Started { then } => wire.then = then.into(),
            Payload::Progress { value } => wire.output = borrowed(value),
            Payload::Log { lines, dropped } => (wire.lines, wire.dropped) = (lines.into(), *dropped),
            Payload::Retrying { failure, due_ms, record, waits } => {
                wire.set_failure(failure);
                wire.set_wait(*due_ms, record);
                wire.waits = *waits;
            }
            Payload::Succeeded { started_at_ms, output } => {
                (wire.started_at_ms, wire.output) = (*started_at_ms, borrowed(output));
            }
            Payload::Interrupted(failure)
            | Payload::Failed(failure)
            | Payload::Cancelled(failure)
            | Payload::Expired(failure)
            | Payload::Unknown(failure) => wire.set_failure(failure),
            Payload::CancelRequested(CancelScope { asof, with, subtree }) => {
                (wire.asof, wire.with, wire.subtree) = (*asof, with.clone(), *subtree);
            }
            Payload::RetryRequested { only_failed, new_run, record } => {
                (wire.only_failed, wire.new_run, wire.record) = (*only_failed, *new_run, borrowed(record));
            }
            Payload::Reported { state, output, error } => {
                (wire.state, wire.output, wire.error) = (*state, borrowed(output), borrowed(error));
            }
            Payload::Patched { patch } => wire.patch = borrowed(patch),
            Payload::Attached { attachment } | Payload::Detached { attachment } => {
                wire.attachment = borrowed(attachment);
            }
            Payload::EffectDone { effect, position } => {
                (wire.effect, wire.position) = (effect.as_deref().map(Cow::Borrowed), *position);
            }
            Payload::Checked { check } => wire.check = *check,
            Payload::Operated { action, target } => {
                (wire.action, wire.target) =
                    (action.as_deref().map(Cow::Borrowed), target.as_deref().map(Cow::Borrowed));
            }
            Payload::Settings { lifetimes } => wire.lifetimes = borrowed(lifetimes),
            Payload::Submitted | Payload::Warned | Payload::DeadDropped | Payload::WorkerSilent | Payload::Tick => {}
        }
        wire
    }
}

impl<'a> WireEvent<'a> {
    /// Creates the object without a payload.
    fn envelope(event: &'a Event) -> Self {
        Self {
            v: event.v,
            kind: event.kind(),
            id: event.id.clone(),
            run: event.run,
            attempt: event.attempt,
            worker: event.worker.clone(),
            at_ms: event.at_ms,
            task: borrowed(&event.task),
            started_at_ms: None,
            output: None,
            error: None,
            due_ms: None,
            message: event.message.as_deref().map(Cow::Borrowed),
            lines: Cow::default(),
            dropped: 0,
            state: None,
            waits: 0,
            record: None,
            position: None,
            effect: None,
            check: None,
            only_failed: false,
            new_run: None,
            asof: None,
            with: None,
            subtree: true,
            then: Cow::default(),
            patch: None,
            attachment: None,
            action: None,
            target: None,
            by: event.by.clone(),
            lifetimes: None,
            extra: Cow::Borrowed(&event.extra),
        }
    }

    fn set_failure(&mut self, failure: &'a AttemptFailure) {
        (self.started_at_ms, self.error) = (failure.started_at_ms, borrowed(&failure.error));
    }

    fn set_wait(&mut self, due_ms: Option<i64>, record: &'a Option<Box<RecordCopy>>) {
        (self.due_ms, self.record) = (due_ms, borrowed(record));
    }
}

fn borrowed<T: Clone>(field: &Option<T>) -> Option<Cow<'_, T>> {
    field.as_ref().map(Cow::Borrowed)
}

/// Fields that do not belong to the kind are dropped.
impl From<WireEvent<'_>> for Event {
    fn from(mut wire: WireEvent<'_>) -> Self {
        let payload = wire.take_payload();
        Self {
            v: wire.v,
            id: wire.id,
            run: wire.run,
            attempt: wire.attempt,
            worker: wire.worker,
            at_ms: wire.at_ms,
            task: wire.task.map(Cow::into_owned),
            message: wire.message.map(Cow::into_owned),
            by: wire.by,
            payload,
            extra: wire.extra.into_owned(),
        }
    }
}

impl WireEvent<'_> {
    fn take_payload(&mut self) -> Payload {
        match self.kind {
            Kind::Submitted => Payload::Submitted,
            Kind::Scheduled => Payload::Scheduled { due_ms: self.due_ms, record: owned(&mut self.record) },
            Kind::Released => Payload::Released { position: self.position, waits: self.waits },
            Kind::Started => Payload::Started { then: take(&mut self.then).into_owned() },
            Kind::Progress => Payload::Progress { value: owned(&mut self.output) },
            Kind::Log => Payload::Log { lines: take(&mut self.lines).into_owned(), dropped: self.dropped },
            Kind::Warned => Payload::Warned,
            Kind::Retrying => {
                let failure = self.take_failure();
                Payload::Retrying { failure, due_ms: self.due_ms, record: owned(&mut self.record), waits: self.waits }
            }
            Kind::Succeeded => {
                Payload::Succeeded { started_at_ms: self.started_at_ms, output: owned(&mut self.output) }
            }
            Kind::Interrupted => Payload::Interrupted(self.take_failure()),
            Kind::Failed => Payload::Failed(self.take_failure()),
            Kind::Cancelled => Payload::Cancelled(self.take_failure()),
            Kind::Expired => Payload::Expired(self.take_failure()),
            Kind::CancelRequested => {
                let with = self.with.take();
                Payload::CancelRequested(CancelScope { asof: self.asof, with, subtree: self.subtree })
            }
            Kind::RetryRequested => {
                let record = owned(&mut self.record);
                Payload::RetryRequested { only_failed: self.only_failed, new_run: self.new_run, record }
            }
            Kind::Reported => {
                let (output, error) = (owned(&mut self.output), owned(&mut self.error));
                Payload::Reported { state: self.state, output, error }
            }
            Kind::Patched => Payload::Patched { patch: owned(&mut self.patch) },
            Kind::Attached => Payload::Attached { attachment: owned(&mut self.attachment) },
            Kind::Detached => Payload::Detached { attachment: owned(&mut self.attachment) },
            Kind::EffectDone => {
                let effect = owned(&mut self.effect).map(String::into_boxed_str);
                Payload::EffectDone { effect, position: self.position }
            }
            Kind::DeadDropped => Payload::DeadDropped,
            Kind::WorkerSilent => Payload::WorkerSilent,
            Kind::Checked => Payload::Checked { check: self.check },
            Kind::Operated => {
                let text = |field: &mut Option<Cow<'_, str>>| owned(field).map(String::into_boxed_str);
                Payload::Operated { action: text(&mut self.action), target: text(&mut self.target) }
            }
            Kind::Tick => Payload::Tick,
            Kind::Settings => Payload::Settings { lifetimes: owned(&mut self.lifetimes) },
            Kind::Unknown => Payload::Unknown(self.take_failure()),
        }
    }

    fn take_failure(&mut self) -> AttemptFailure {
        AttemptFailure { started_at_ms: self.started_at_ms, error: owned(&mut self.error) }
    }
}

fn owned<T: ToOwned + ?Sized>(field: &mut Option<Cow<'_, T>>) -> Option<T::Owned> {
    field.take().map(Cow::into_owned)
}
