//! Reads a topic from its start and follows it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kafleet::broker::{Broker, Consumer, ConsumerSpec, Partition, Record, StartOffset};
use kafleet::model::event::{Event, Kind};
use kafleet_testkit::wait::eventually;
use parking_lot::Mutex;

/// Time that a read waits for records.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

pub struct Tail {
    state: Mutex<TailState>,
}

struct TailState {
    consumer: Box<dyn Consumer>,
    records: Vec<Record>,
    events: Vec<Event>,
}

/// A decoded dead letter.
#[derive(Debug)]
pub struct Dead {
    pub code: String,
    pub error: String,
    pub pointer: Option<String>,
    pub record: Record,
}

impl Dead {
    pub fn of(record: &Record) -> Self {
        let header = |header_name: &str| {
            let found = record.headers.iter().find(|(name, _)| name == header_name)?;
            Some(String::from_utf8(found.1.clone().unwrap()).unwrap())
        };
        Self {
            code: header("kafleet_code").unwrap(),
            error: header("kafleet_error").unwrap(),
            pointer: header("kafleet_pointer"),
            record: record.clone(),
        }
    }
}

impl Tail {
    pub fn new(broker: Arc<dyn Broker>, topic: &str, partitions: u32) -> Self {
        let mut consumer = tokio::task::block_in_place(|| broker.consumer(&ConsumerSpec::default())).unwrap();
        let topic: Arc<str> = topic.into();
        let starts: Vec<_> = (0..partitions as i32)
            .map(|index| (Partition::new(topic.clone(), index), StartOffset::Beginning))
            .collect();
        tokio::task::block_in_place(|| consumer.assign(&starts)).unwrap();
        Self { state: Mutex::new(TailState { consumer, records: Vec::new(), events: Vec::new() }) }
    }

    fn read_more(&self, wait: Duration) {
        tokio::task::block_in_place(|| {
            let TailState { consumer, records, events } = &mut *self.state.lock();
            consumer
                .poll(10_000, wait, &mut |record| {
                    if record.topic.ends_with(".events") {
                        events.push(Event::decode(record.value.unwrap()).unwrap());
                    } else {
                        records.push(record.to_owned());
                    }
                })
                .unwrap();
        });
    }

    /// Reads until the events so far satisfy the condition.
    pub async fn wait(&self, subject: &str, holds: impl Fn(&[Event]) -> bool) {
        eventually(subject, async || {
            self.read_more(READ_TIMEOUT);
            let events = &self.state.lock().events;
            let last: Vec<Event> = events.iter().rev().take(5).cloned().collect();
            if holds(events) { Ok(()) } else { Err((events.len(), last)) }
        })
        .await;
    }

    pub async fn wait_records(&self, subject: &str, holds: impl Fn(&[Record]) -> bool) {
        eventually(subject, async || {
            self.read_more(READ_TIMEOUT);
            let records = &self.state.lock().records;
            if holds(records) { Ok(()) } else { Err(records.len()) }
        })
        .await;
    }

    /// Returns all events so far.
    pub fn all(&self) -> Vec<Event> {
        self.read_more(Duration::ZERO);
        self.state.lock().events.clone()
    }

    /// Returns all records so far.
    pub fn records(&self) -> Vec<Record> {
        self.state.lock().records.clone()
    }
}

/// Number of different tasks with a terminal event.
pub fn ended_ids(events: &[Event]) -> usize {
    let ended = events.iter().filter(|event| is_end(event));
    ended.map(|event| event.id.as_str()).collect::<HashSet<_>>().len()
}

/// Returns whether an event is terminal.
pub fn is_end(event: &Event) -> bool {
    matches!(event.kind(), Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired)
}
