//! Records and tasks that become dead letters, and the background tasks that write them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exits::{Exits, Onward};
use crate::broker::Record;
use crate::model::event::{Announcement, AttemptFailure, Event, Payload};
use crate::model::task::Position;
use crate::model::task::id::TaskId;
use crate::runtime::{self, now_ms};
use crate::worker::completions::{Completions, DeliveryTag};
use crate::worker::dead_letter::{Body, DeadLetter, DeadLetterWriter};
use crate::worker::decode::{InFlight, Invalid};
use crate::worker::results::{ResultTarget, ResultWriter};

/// Maximum number of concurrent background writes.
const MAX_WRITES: usize = 64;

/// Writes dead letters and handed-over tasks in the background, a bounded number at a time. Their total is bounded by
/// the inputs handed out, whose memory is charged.
pub(super) struct BackgroundWriter {
    writer: DeadLetterWriter,
    completions: Arc<Completions>,
    permits: Arc<Semaphore>,
    /// Cancelled when the dispatcher ends; unwritten dead letters are left to the next owner.
    stop: CancellationToken,
}

impl BackgroundWriter {
    pub(super) fn new(writer: DeadLetterWriter, completions: Arc<Completions>) -> Self {
        Self { writer, completions, permits: Arc::new(Semaphore::new(MAX_WRITES)), stop: CancellationToken::new() }
    }

    /// Stops all writes.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Writes a dead letter, then the result and the terminal event; without an event the input is complete with the
    /// dead letter.
    fn write(&self, letter: DeadLetter, event: Option<Event>, tag: DeliveryTag, target: Option<ResultTarget>) {
        let writer = self.writer.clone();
        let results = self.results();
        let completions = self.completions.clone();
        let permits = self.permits.clone();
        runtime::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            let Ok(permit) = permits.acquire_owned().await else { return };
            writer.write(letter).await;
            match (event, target) {
                (Some(event), Some(target)) => results.end(&target, event, tag).await,
                (Some(event), None) => writer.events.write(&event, tag, &mut Vec::new()).await,
                (None, _) => completions.complete(tag),
            }
            drop(permit);
        }));
    }

    /// Publishes the result of a task, then its terminal event. The number of such tasks is bounded by the inputs
    /// handed out.
    pub(super) fn end(&self, in_flight: Box<InFlight>, event: Event, target: ResultTarget) {
        let results = self.results();
        runtime::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            results.end(&target, event, in_flight.tag).await;
            drop(in_flight);
        }));
    }

    fn results(&self) -> ResultWriter {
        ResultWriter { events: self.writer.events.clone(), health: self.writer.health.clone() }
    }

    /// Publishes the event that hands a task over to the tracker, with the task's whole record.
    pub(super) fn hand_over(&self, task_type: &Arc<str>, in_flight: Box<InFlight>, mut event: Event) {
        let writer = self.writer.clone();
        let permits = self.permits.clone();
        let task_type = task_type.clone();
        runtime::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            let Ok(permit) = permits.acquire_owned().await else { return };
            let record = writer.deferred_record(&task_type, &in_flight.task).await;
            event.payload.set_record(record);
            writer.events.write(&event, in_flight.tag, &mut Vec::new()).await;
            drop((permit, in_flight));
        }));
    }
}

/// Reason of a dead letter.
pub(super) struct Reason<'a> {
    pub code: &'a str,
    pub message: String,
    /// JSON pointer to the invalid part of the params.
    pub pointer: Option<String>,
}

impl Exits {
    /// Ends a task as failed and keeps it as a dead letter.
    pub(super) fn write_dead_letter(&mut self, in_flight: Box<InFlight>, event: Event, reason: Reason<'_>) -> Onward {
        let (onward, tag) = (Onward::left(&in_flight), in_flight.tag);
        self.reporter.forget(&in_flight);
        self.reports.metrics.record_dead_letter(reason.code);
        let target = self.results.of_task(&in_flight, Some(reason.code));
        let letter = DeadLetter {
            task_type: self.task_type.clone(),
            key: in_flight.task.id.as_str().as_bytes().to_vec(),
            task: Some((in_flight.task.id.clone(), in_flight.task.run)),
            code: reason.code.to_owned(),
            message: reason.message,
            pointer: reason.pointer,
            body: Body::Task(in_flight),
        };
        self.background.write(letter, Some(event), tag, target);
        onward
    }

    /// Keeps an invalid record as a dead letter.
    pub(super) fn keep_invalid(&mut self, invalid: Box<Invalid>) {
        let tag = invalid.tag;
        let Invalid { record, reject, .. } = &*invalid;
        let task_type = &self.task_type;
        let Record { partition, offset, .. } = record;
        tracing::warn!(%task_type, partition, offset, code = reject.code, reason = %reject.message, "invalid record becomes a dead letter");
        self.reports.metrics.record_dead_letter(reject.code);
        let worker = &self.reporter.events.worker;
        let event = reject.task.as_ref().map(|(id, run)| rejection(task_type, worker, id, *run, &invalid));
        let names = self.reporter.events.publisher().names();
        let target = self.results.of_invalid(&invalid, names, &self.config.correlation_headers);
        let key = match &reject.task {
            Some((id, _)) => id.as_str().as_bytes().to_vec(),
            None => record.key.clone().unwrap_or_default(),
        };
        let letter = DeadLetter {
            task_type: self.task_type.clone(),
            key,
            task: reject.task.clone(),
            code: reject.code.to_owned(),
            message: reject.message.clone(),
            pointer: reject.pointer.clone(),
            body: Body::Record(invalid),
        };
        self.background.write(letter, event, tag, target);
        self.reporter.schedule_flush(Instant::now());
        self.reports.metrics.record_outcome("rejected", Duration::ZERO);
    }
}

/// Terminal event of an invalid record whose task id is readable.
fn rejection(task_type: &Arc<str>, worker: &Arc<str>, id: &TaskId, run: u32, invalid: &Invalid) -> Event {
    let Invalid { record, reject, .. } = invalid;
    let failure = AttemptFailure::new(reject.code, reject.message.clone(), 0);
    let mut event = Event::new(Payload::Failed(failure), id.clone(), run, now_ms());
    event.worker = Some(worker.clone());
    event.task = Some(Box::new(Announcement {
        task_type: task_type.clone(),
        created_at_ms: record.timestamp_ms,
        position: Some(Position { partition: record.partition, offset: record.offset }),
        hash: None,
        policy: None,
        asof: None,
        trace: None,
    }));
    event
}
