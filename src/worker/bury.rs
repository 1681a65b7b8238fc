//! Dead letters: the original record, unchanged, with the reason in its headers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{Broker, BrokerError, Outgoing, Partition, Record};
use crate::model::dead::{DeadLetter, headers};
use crate::model::task::Task;
use crate::publish::{PUBLISH_DEADLINE, task_headers};
use crate::runtime::{Backoff, Health, blocking, now_ms};

use super::intake::{Held, Rejected};
use super::report::Reporter;

const READ_DEADLINE: Duration = Duration::from_secs(10);

/// A record to be kept as a dead letter.
pub struct Burial {
    pub task_type: Arc<str>,
    /// The key of the dead letter: the task's id, or the record's own key where there is none.
    pub key: Vec<u8>,
    pub code: String,
    pub message: String,
    pub pointer: Option<String>,
    pub body: Body,
}

pub enum Body {
    /// The record itself is at hand, and counted for as long.
    Record(Box<Rejected>),
    /// It is read again from where the task came from.
    Task(Box<Held>),
}

/// Publishes dead letters.
#[derive(Clone)]
pub struct Undertaker {
    pub broker: Arc<dyn Broker>,
    pub reporter: Reporter,
    pub health: Health,
}

impl Undertaker {
    /// Returns when the dead letter is acknowledged. Tries for as long as the caller waits: before that the input is not done.
    pub async fn bury(&self, burial: Burial) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let record = loop {
            match self.record(&burial).await {
                Ok(record) => break record,
                Err(error) => {
                    tracing::warn!(task_type = %burial.task_type, %error, "the original of a dead letter cannot be read yet")
                }
            }
            tokio::time::sleep(backoff.next_wait()).await;
        };
        backoff.reset();
        let part = format!("dead letters of {}", burial.task_type);
        while let Err(error) = self.send(&burial, &record).await {
            if matches!(error, BrokerError::TooLarge(_) | BrokerError::Invalid(_)) {
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

    async fn record<'a>(&self, burial: &'a Burial) -> Result<Cow<'a, Record>, BrokerError> {
        let task = match &burial.body {
            Body::Record(rejected) => return Ok(Cow::Borrowed(&rejected.record)),
            Body::Task(held) => &held.task,
        };
        let partition = Partition::new(self.reporter.publisher().names().tasks(&burial.task_type), task.position.partition);
        let (broker, offset, at) = (self.broker.clone(), task.position.offset, partition.clone());
        let read = blocking(move || broker.read_at(&at, offset, READ_DEADLINE)).await.map_err(BrokerError::Unavailable)??;
        Ok(Cow::Owned(read.unwrap_or_else(|| rebuilt(task, &partition))))
    }

    async fn send(&self, burial: &Burial, record: &Record) -> Result<(), BrokerError> {
        let reasons = headers(&DeadLetter {
            code: &burial.code,
            message: &burial.message,
            pointer: burial.pointer.as_deref(),
            topic: &record.topic,
            partition: record.partition,
            offset: record.offset,
            key: record.key.as_deref().filter(|key| *key != burial.key),
            worker: &self.reporter.worker,
            at_ms: now_ms(),
        });
        let own = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
        let all: Vec<(&str, &[u8])> = own.chain(reasons.iter().map(|(name, value)| (*name, value.as_bytes()))).collect();
        let topic = self.reporter.publisher().names().dead(&burial.task_type);
        let dead =
            Outgoing { topic: &topic, partition: None, key: Some(&burial.key), value: record.value.as_deref(), headers: &all };
        self.reporter.link().deliver(dead, PUBLISH_DEADLINE).await.map(drop)
    }
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
