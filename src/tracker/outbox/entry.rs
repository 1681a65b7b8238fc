//! What is fired for a timer or an effect: the records of one step, the event that says it is done last.

use std::sync::Arc;

use crate::broker::{DependentRecord, ProducerRecord};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::Effect;
use crate::model::task::Position;
use crate::model::task::id::TaskId;
pub use crate::tracker::outbox::planner::OutboxPlanner;

/// A record to be sent.
pub struct Message {
    pub(super) topic: Arc<str>,
    pub(super) partition: Option<i32>,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Vec<u8>)>,
}

impl Message {
    /// One without headers.
    pub fn plain(topic: Arc<str>, partition: i32, key: String, value: Option<Vec<u8>>) -> Self {
        Self { topic, partition: Some(partition), key: key.into_bytes(), value, headers: Vec::new() }
    }

    pub fn headers(&self) -> Vec<(&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    pub fn outgoing<'a>(&'a self, headers: &'a [(&'a str, &'a [u8])]) -> ProducerRecord<'a> {
        let (partition, key) = (self.partition, Some(self.key.as_slice()));
        ProducerRecord { topic: &self.topic, partition, key, value: self.value.as_deref(), headers }
    }
}

/// What is fired together or not at all.
pub struct OutboxEntry {
    pub id: TaskId,
    /// With the id, what it is: the timer, or an effect.
    pub mark: String,
    /// For the metric.
    pub kind: &'static str,
    /// The last one is an event of this partition, unless one follows, or a walk that goes on has nothing to say but to the
    /// workers.
    pub messages: Vec<Message>,
    /// An event behind them that says where the last one of them lies: the task's record.
    pub follower: Option<Event>,
}

impl OutboxEntry {
    pub const TIMER: &str = "timer";
    /// The kind of a step of a walk.
    pub const WALK: &str = "walk";

    pub fn is_of_walk(&self) -> bool {
        self.kind == Self::WALK
    }

    pub fn plain(id: &TaskId, mark: impl Into<String>, kind: &'static str, messages: Vec<Message>) -> Self {
        Self { id: id.clone(), mark: mark.into(), kind, messages, follower: None }
    }

    /// Publishes a task's record, and tells it.
    pub(super) fn of_record(id: &TaskId, mark: impl Into<String>, kind: &'static str, record: Message, event: Event) -> Self {
        Self { id: id.clone(), mark: mark.into(), kind, messages: vec![record], follower: Some(event) }
    }

    pub fn ends_in(&self, topic: &str) -> bool {
        self.messages.last().is_some_and(|last| *last.topic == *topic)
    }

    /// What follows, where its last message lies there.
    pub fn follower(&self, events: &Arc<str>, number: u32, place: (i32, i64)) -> Option<DependentRecord> {
        let (partition, offset) = place;
        let (key, value) = encoded(&Event { position: Some(Position { partition, offset }), ..self.follower.clone()? });
        Some(DependentRecord { topic: events.clone(), partition: number as i32, key, value })
    }

    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().filter_map(|message| message.value.as_ref()).map(Vec::len).sum()
    }
}

pub fn event_message(events: &Arc<str>, number: u32, event: &Event) -> Message {
    let ((key, value), partition) = (encoded(event), i32::try_from(number).ok());
    Message { topic: events.clone(), partition, key, value: Some(value), headers: Vec::new() }
}

/// The key and the value of an event's record.
fn encoded(event: &Event) -> (Vec<u8>, Vec<u8>) {
    let mut value = Vec::with_capacity(256);
    event.encode(&mut value);
    (event.id.root().as_bytes().to_vec(), value)
}

pub fn effect_done(id: &TaskId, effect: Effect, now: i64) -> Event {
    let mut event = Event::new(Kind::EffectDone, id.clone(), 1, now);
    event.effect = Some(effect.id().into());
    event
}

pub(super) fn last_word(id: &TaskId, run: u32, kind: Kind, why: &str, now: i64) -> Event {
    let mut event = Event::new(kind, id.clone(), run, now);
    event.error = Some(Box::new(ErrorInfo::new(&kind.name(), why, 0)));
    event
}
