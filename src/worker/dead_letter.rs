//! Dead letters: the original record, unchanged, with the reason in its headers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{Broker, BrokerError, Partition, ProducerRecord, Record};
use crate::dead_letters::headers::{DeadLetterHeaders, headers};
use crate::model::outbox::KeptRecord;
use crate::model::task::Task;
use crate::model::task::id::TaskId;
use crate::publish::{PUBLISH_DEADLINE, task_headers};
use crate::runtime::{Backoff, Health, now_ms};

use super::decode::{InFlight, Invalid};
use super::events::EventWriter;

const READ_DEADLINE: Duration = Duration::from_secs(10);
/// A longer key is no task's id, and may be what makes a letter too large.
const MAX_REFERENCE_KEY: usize = 1_024;

/// A record to be kept as a dead letter.
pub struct DeadLetter {
    pub task_type: Arc<str>,
    /// The key of the dead letter: the task's id, or the record's own key where there is none.
    pub key: Vec<u8>,
    /// The task and its run, where they could be read.
    pub task: Option<(TaskId, u32)>,
    pub code: String,
    pub message: String,
    pub pointer: Option<String>,
    pub body: Body,
}

pub enum Body {
    /// The record itself is at hand, and counted for as long.
    Record(Box<Invalid>),
    /// It is read again from where the task came from.
    Task(Box<InFlight>),
}

/// Publishes dead letters.
#[derive(Clone)]
pub struct DeadLetterWriter {
    pub broker: Arc<dyn Broker>,
    pub events: EventWriter,
    pub health: Health,
}

/// How a record is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    /// Only where it lies.
    Reference,
}

impl DeadLetterWriter {
    /// Returns when the dead letter is acknowledged. Tries for as long as the caller waits: before that the input is not done.
    pub async fn dead_letter(&self, burial: DeadLetter) {
        let record = match &burial.body {
            Body::Record(rejected) => Cow::Borrowed(&rejected.record),
            Body::Task(held) => Cow::Owned(self.original(&burial.task_type, &held.task).await),
        };
        let part = format!("dead letters of {}", burial.task_type);
        let (mut form, mut backoff) = (Form::Whole, backoff());
        while let Err(error) = self.send(&burial, &record, form).await {
            let hopeless = matches!(error, BrokerError::TooLarge(_) | BrokerError::Invalid(_));
            if hopeless && form == Form::Whole {
                tracing::warn!(task_type = %burial.task_type, partition = record.partition, offset = record.offset, %error, "a dead letter cannot hold its record: it says where that lies");
                form = Form::Reference;
                continue;
            }
            if hopeless {
                // The reason is in the log and in the task's status; holding the partition back would help nobody.
                tracing::error!(task_type = %burial.task_type, partition = record.partition, offset = record.offset, %error, code = burial.code, "a dead letter cannot be written");
                return;
            }
            tracing::warn!(task_type = %burial.task_type, %error, "a dead letter is not acknowledged yet");
            self.health.set(&part, format!("a dead letter cannot be written: {error}"));
            tokio::time::sleep(backoff.next_wait()).await;
        }
        self.health.clear(&part);
    }

    /// The task's record in full, for whoever keeps it until its time has come.
    pub async fn kept(&self, task_type: &str, task: &Task) -> KeptRecord {
        let record = self.original(task_type, task).await;
        let key = record.key.as_deref().filter(|key| *key != task.id.as_str().as_bytes());
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
        self.events.publisher().kept(task, None).with_strangers(key, headers)
    }

    /// The record of a task, read again from where it came from; asks until there is an answer.
    async fn original(&self, task_type: &str, task: &Task) -> Record {
        let partition = Partition::new(self.events.publisher().names().tasks(task_type), task.position.partition);
        let (mut backoff, offset) = (backoff(), task.position.offset);
        loop {
            match self.broker.client().with_deadline(READ_DEADLINE).read_at(&partition, offset).await {
                Ok(record) => return record.unwrap_or_else(|| rebuilt(task, &partition)),
                Err(error) => tracing::warn!(%task_type, %error, "the record of a task cannot be read again yet"),
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    async fn send(&self, burial: &DeadLetter, record: &Record, form: Form) -> Result<(), BrokerError> {
        let whole = form == Form::Whole;
        let reasons = headers(&DeadLetterHeaders {
            code: &burial.code,
            message: &burial.message,
            pointer: burial.pointer.as_deref(),
            topic: &record.topic,
            partition: record.partition,
            offset: record.offset,
            key: record.key.as_deref().filter(|key| whole && *key != burial.key),
            task: burial.task.as_ref().map(|(id, run)| (id, *run)),
            worker: &self.events.worker,
            at_ms: now_ms(),
            reference: !whole,
        });
        let own = record.headers.iter().filter(|_| whole);
        let own = own.map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
        let all: Vec<(&str, &[u8])> = own.chain(reasons.iter().map(|(name, value)| (*name, value.as_bytes()))).collect();
        let topic = self.events.publisher().names().dead(&burial.task_type);
        let key = Some(burial.key.as_slice()).filter(|key| whole || key.len() <= MAX_REFERENCE_KEY);
        let value = record.value.as_deref().filter(|_| whole);
        let dead = ProducerRecord { topic: &topic, partition: None, key, value, headers: &all };
        self.events.link().deliver(dead, PUBLISH_DEADLINE).await.map(drop)
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// The record of a task whose original retention has removed meanwhile.
fn rebuilt(task: &Task, partition: &Partition) -> Record {
    let headers =
        task_headers(task, "kafleet").into_iter().map(|(name, value)| (name.to_owned(), Some(value.into_owned().into_bytes())));
    Record {
        topic: partition.topic.clone(),
        partition: partition.index,
        offset: task.position.offset,
        timestamp_ms: task.created_at_ms,
        key: Some(task.id.as_str().as_bytes().to_vec()),
        value: Some(task.params.text().as_bytes().to_vec()),
        headers: headers.collect(),
    }
}
