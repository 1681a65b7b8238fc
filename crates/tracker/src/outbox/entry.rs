//! Outbox entries: the Kafka records published for a timer or an effect, ending with the event that marks it as done.

use std::sync::Arc;

use kafleet_broker::{DependentRecord, ProducerRecord};
use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{AttemptFailure, Event, Payload};
use kafleet_model::outbox::Effect;
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_telemetry::otel::Span;

/// A record to be produced.
pub(crate) struct OutboxMessage {
    pub(super) topic: Arc<str>,
    pub(super) partition: Option<i32>,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Vec<u8>)>,
}

impl OutboxMessage {
    /// Creates a record without headers.
    pub(crate) fn plain(topic: Arc<str>, partition: i32, key: String, value: Option<Vec<u8>>) -> Self {
        Self { topic, partition: Some(partition), key: key.into_bytes(), value, headers: Vec::new() }
    }

    pub(crate) fn headers(&self) -> Vec<(&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    pub(crate) fn producer_record<'a>(&'a self, headers: &'a [(&'a str, &'a [u8])]) -> ProducerRecord<'a> {
        let (partition, key) = (self.partition, Some(self.key.as_slice()));
        ProducerRecord { topic: &self.topic, partition, key, value: self.value.as_deref(), headers }
    }
}

/// Records that are published atomically.
pub(crate) struct OutboxEntry {
    pub id: TaskId,
    /// Identifies the timer or effect within the task, for deduplication.
    pub dedup_key: String,
    /// Label of the metric.
    pub kind: &'static str,
    /// Records in order. The last one is an event of this partition, unless `dependent_event` is set or a step of a
    /// subtree command has only a control record.
    pub messages: Vec<OutboxMessage>,
    /// Event published after the records, with the position of the last one, which is the task's record.
    pub dependent_event: Option<Event>,
    /// Span of the publication of a task, if its trace is sampled.
    pub span: Option<Box<Span>>,
}

impl OutboxEntry {
    pub(crate) const TIMER: &str = "timer";
    /// Kind of the record of a continuation.
    pub(crate) const CONTINUATION: &str = "continuation";
    /// Kind of a subtree command's step.
    pub(crate) const SUBTREE: &str = "subtree_command";

    pub(crate) fn is_subtree_step(&self) -> bool {
        self.kind == Self::SUBTREE
    }

    pub(crate) fn plain(
        id: &TaskId,
        dedup_key: impl Into<String>,
        kind: &'static str,
        messages: Vec<OutboxMessage>,
    ) -> Self {
        Self { id: id.clone(), dedup_key: dedup_key.into(), kind, messages, dependent_event: None, span: None }
    }

    /// Publishes a task's record and the event that refers to it.
    pub(super) fn record_and_event(
        id: &TaskId,
        dedup_key: impl Into<String>,
        kind: &'static str,
        record: OutboxMessage,
        event: Event,
    ) -> Self {
        let dependent_event = Some(event);
        Self { dependent_event, ..Self::plain(id, dedup_key, kind, vec![record]) }
    }

    pub(super) fn with_span(self, span: Option<Box<Span>>) -> Self {
        Self { span, ..self }
    }

    pub(crate) fn ends_in_topic(&self, topic: &str) -> bool {
        self.messages.last().is_some_and(|last| *last.topic == *topic)
    }

    /// Topic of the entry's task record, if it has one. Only these have no fixed partition.
    pub(super) fn task_topic(&self) -> Option<&str> {
        self.messages.iter().find(|message| message.partition.is_none()).map(|message| &*message.topic)
    }

    /// Builds the dependent event, given the position of the last record.
    pub(crate) fn dependent_event(
        &self,
        events: &Arc<str>,
        number: u32,
        (partition, offset): (i32, i64),
    ) -> Option<Result<DependentRecord, EncodeError>> {
        let mut event = self.dependent_event.clone()?;
        event.payload.set_position(Position { partition, offset });
        let record = |(key, value)| DependentRecord { topic: events.clone(), partition: number as i32, key, value };
        Some(encoded(&event).map(record))
    }

    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().filter_map(|message| message.value.as_ref()).map(Vec::len).sum()
    }
}

pub(crate) fn event_message(events: &Arc<str>, number: u32, event: &Event) -> Result<OutboxMessage, EncodeError> {
    let (key, value) = encoded(event)?;
    let partition = i32::try_from(number).ok();
    Ok(OutboxMessage { topic: events.clone(), partition, key, value: Some(value), headers: Vec::new() })
}

/// Encodes key and value of an event's record.
fn encoded(event: &Event) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
    let mut value = Vec::with_capacity(256);
    event.encode(&mut value)?;
    Ok((event.id.root().as_bytes().to_vec(), value))
}

pub(crate) fn effect_done(id: &TaskId, effect: Effect, now: i64) -> Event {
    let payload = Payload::EffectDone { effect: Some(effect.id().into()), position: None };
    Event::new(payload, id.clone(), 1, now)
}

/// Event of a task that ends without a worker. `ended`: the kind of its end, as a constructor of the payload.
pub(super) fn terminal_event(
    id: &TaskId,
    run: u32,
    ended: fn(AttemptFailure) -> Payload,
    reason: &str,
    now: i64,
) -> Event {
    let code = ended(AttemptFailure::default()).kind().name();
    Event::new(ended(AttemptFailure::new(code, reason, 0)), id.clone(), run, now)
}
