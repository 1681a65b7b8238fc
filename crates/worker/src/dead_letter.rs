//! Dead letters: the original record, unchanged, with the reason in added headers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition, ProducerRecord, Record};
use kafleet_fleet::dead_letters::headers::{DeadLetterHeaders, headers};
use kafleet_fleet::publish::{PUBLISH_DEADLINE, record_headers};
use kafleet_model::outbox::RecordCopy;
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{Backoff, Health, now_ms};

use super::decode::{InFlight, Invalid};
use super::events::EventWriter;

const READ_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum key size of a dead letter that only references its record, in bytes. No task id is longer, and a longer
/// key may be the reason why the dead letter is too large.
const MAX_REFERENCE_KEY: usize = 1_024;

/// Code of a poison pill.
pub(super) const POISON: &str = "crashed_worker";

/// A dead letter to be written.
pub(super) struct DeadLetter {
    pub task_type: Arc<str>,
    /// Key of the dead letter: the task's id, or the record's own key if the record has no readable id.
    pub key: Vec<u8>,
    /// Id and run of the task, if they could be read.
    pub task: Option<(TaskId, u32)>,
    pub code: String,
    pub message: String,
    pub pointer: Option<String>,
    pub body: Body,
}

/// Source of the original record.
pub(super) enum Body {
    /// The record itself, which stays in memory and counts against the memory budget.
    Record(Box<Invalid>),
    /// The task, whose record is read again from the task topic.
    Task(Box<InFlight>),
}

/// Publishes dead letters.
#[derive(Clone)]
pub(super) struct DeadLetterWriter {
    pub broker: Arc<dyn Broker>,
    pub events: EventWriter,
    pub health: Health,
}

/// Contents of a dead letter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The whole record.
    Whole,
    /// Only its topic, partition and offset.
    Reference,
}

impl DeadLetterWriter {
    /// Publishes a dead letter. Retries until it is acknowledged, because only then is the input complete. If Kafka
    /// rejects even a dead letter that only references its record, the error is logged and the dead letter given up.
    pub(super) async fn write(&self, letter: DeadLetter) {
        let record = match &letter.body {
            Body::Record(invalid) => Cow::Borrowed(&invalid.record),
            Body::Task(in_flight) => Cow::Owned(self.read_original(&letter.task_type, in_flight).await),
        };
        let part = format!("dead letters of {}", letter.task_type);
        let mut form = Form::Whole;
        let mut backoff = backoff();
        while let Err(error) = self.send(&letter, &record, form).await {
            let task_type = &letter.task_type;
            let code = &letter.code;
            let Record { partition, offset, .. } = &*record;
            let permanent = matches!(error, BrokerError::TooLarge(_) | BrokerError::Invalid(_));
            if permanent && form == Form::Whole {
                tracing::warn!(%task_type, partition, offset, %error, "a dead letter cannot contain its record; writing a reference");
                form = Form::Reference;
                continue;
            }
            if permanent {
                // The reason is in the log and in the task's status; blocking the partition would not help.
                tracing::error!(%task_type, partition, offset, %error, code, "a dead letter cannot be written");
                return;
            }
            tracing::warn!(%task_type, %error, "a dead letter is not acknowledged; retrying");
            self.health.set(&part, format!("a dead letter cannot be written: {error}"));
            tokio::time::sleep(backoff.next_wait()).await;
        }
        self.health.clear(&part);
    }

    /// Returns the task's full record in the form in which the tracker keeps it until it is due.
    pub(super) async fn deferred_record(&self, task_type: &str, in_flight: &InFlight) -> RecordCopy {
        let task = &in_flight.task;
        let record = self.read_original(task_type, in_flight).await;
        let key = record.key.as_deref().filter(|key| *key != task.id.as_str().as_bytes());
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
        self.events.publisher().record_copy(task, &in_flight.progress_of_copy()).with_foreign_headers(key, headers)
    }

    /// Reads the record of a task again from its topic; retries until the broker answers.
    async fn read_original(&self, task_type: &str, in_flight: &InFlight) -> Record {
        let Position { partition, offset } = in_flight.record.position;
        let partition = Partition::new(self.events.publisher().topology.names.tasks(task_type), partition);
        let mut backoff = backoff();
        loop {
            match self.broker.client().with_deadline(READ_DEADLINE).read_at(&partition, offset).await {
                Ok(record) => return record.unwrap_or_else(|| rebuild_record(in_flight, &partition)),
                Err(error) => tracing::warn!(%task_type, %error, "the record of a task cannot be read again; retrying"),
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    async fn send(&self, letter: &DeadLetter, record: &Record, form: Form) -> Result<(), BrokerError> {
        let is_whole = form == Form::Whole;
        let added = headers(&DeadLetterHeaders {
            code: &letter.code,
            message: &letter.message,
            pointer: letter.pointer.as_deref(),
            topic: &record.topic,
            partition: record.partition,
            offset: record.offset,
            key: record.key.as_deref().filter(|key| is_whole && *key != letter.key),
            task: letter.task.as_ref().map(|(id, run)| (id, *run)),
            worker: &self.events.worker,
            at_ms: now_ms(),
            reference: !is_whole,
        });
        let original_headers = record.headers.iter().filter(|_| is_whole);
        let original_headers =
            original_headers.map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
        let all: Vec<(&str, &[u8])> =
            original_headers.chain(added.iter().map(|(name, value)| (*name, value.as_bytes()))).collect();
        let topic = self.events.publisher().topology.names.dead(&letter.task_type);
        let key = Some(letter.key.as_slice()).filter(|key| is_whole || key.len() <= MAX_REFERENCE_KEY);
        let value = record.value.as_deref().filter(|_| is_whole);
        let dead = ProducerRecord { topic: &topic, partition: None, key, value, headers: &all };
        self.events.producer().deliver(dead, PUBLISH_DEADLINE).await.map(drop)
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// Rebuilds a record that retention has removed from its topic.
fn rebuild_record(in_flight: &InFlight, partition: &Partition) -> Record {
    let InFlight { task, record, .. } = in_flight;
    let headers = record_headers(task, &record.progress, "kafleet")
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Some(value.into_owned().into_bytes())));
    Record {
        topic: partition.topic.clone(),
        partition: partition.index,
        offset: record.position.offset,
        timestamp_ms: task.created_at_ms,
        key: Some(task.id.as_str().as_bytes().to_vec()),
        value: Some(task.params.text().as_bytes().to_vec()),
        headers: headers.collect(),
    }
}
