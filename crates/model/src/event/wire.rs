//! JSON form of an event: the fields that every kind has, and those of its kind in `data`.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Announcement, Event, Kind, Payload};
use crate::task::id::TaskId;

/// Event with `data` of its kind, which is omitted if it has no fields.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct Envelope<'a, D> {
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Arc<str>>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    data: Option<D>,
    /// Unknown fields written by newer builds, preserved.
    #[serde(flatten)]
    #[schemars(skip)]
    extra: Cow<'a, Map<String, Value>>,
}

/// Event as it is read: `data` is read after the kind.
pub(super) type ReadEnvelope<'a> = Envelope<'a, &'a RawValue>;

fn none<D>() -> Option<D> {
    None
}

fn first() -> u32 {
    1
}

fn is_first(run: &u32) -> bool {
    *run == 1
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<'a> From<&'a Event> for Envelope<'a, &'a Payload> {
    fn from(event: &'a Event) -> Self {
        let kind = event.kind();
        Self {
            v: event.v,
            kind,
            id: event.id.clone(),
            run: event.run,
            attempt: event.attempt,
            worker: event.worker.clone(),
            at_ms: event.at_ms,
            task: event.task.as_ref().map(Cow::Borrowed),
            message: event.message.as_deref().map(Cow::Borrowed),
            by: event.by.clone(),
            data: Some(&event.payload).filter(|payload| **payload != Payload::from(kind)),
            extra: Cow::Borrowed(&event.extra),
        }
    }
}

impl ReadEnvelope<'_> {
    /// Returns the event. Fields of `data` that do not belong to the kind are ignored.
    pub(super) fn into_event(self) -> serde_json::Result<Event> {
        let payload = match self.data {
            Some(data) if data.get().starts_with('{') || self.kind == Kind::Unknown => {
                Payload::read(self.kind, data.get())?
            }
            // serde would also read an array, as the fields in their order.
            Some(_) => return Err(serde::de::Error::custom("`data` is not an object")),
            None => self.kind.into(),
        };
        Ok(Event {
            v: self.v,
            id: self.id,
            run: self.run,
            attempt: self.attempt,
            worker: self.worker,
            at_ms: self.at_ms,
            task: self.task.map(Cow::into_owned),
            message: self.message.map(Cow::into_owned),
            by: self.by,
            payload,
            extra: self.extra.into_owned(),
        })
    }
}

/// Schema of all events: the envelope, and `data` by kind.
pub(super) fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    use schemars::JsonSchema;
    let mut schema = Envelope::<()>::json_schema(generator);
    let data_of = |(kind, data): (Kind, Option<schemars::Schema>)| {
        let data = data.map_or_else(|| json!(false), Value::from);
        json!({"properties": {"kind": {"const": kind.name()}, "data": data}})
    };
    let kinds: Vec<Value> = Payload::schemas(generator).into_iter().map(data_of).collect();
    schema.insert("oneOf".to_owned(), kinds.into());
    schema
}
