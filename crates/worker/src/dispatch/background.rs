//! Writes that take more than one record, in tasks of their own: dead letters, results for other systems, and events that hand
//! over a record which has to be read again.

use std::sync::Arc;

use kafleet_broker::Record;
use kafleet_model::event::{Announcement, AttemptFailure, Event, Payload};
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::DispatcherDeps;
use crate::completions::{Completions, DeliveryTag};
use crate::dead_letter::{Body, DeadLetter, DeadLetterWriter};
use crate::decode::{InFlight, Invalid};
use crate::results::{ResultTarget, ResultTargets, ResultWriter};

/// Maximum number of concurrent writes of dead letters and handed-over tasks. Results are not limited here.
const MAX_WRITES: usize = 64;

/// Writes dead letters and handed-over tasks in the background, a bounded number at a time. Their total is bounded by the
/// inputs not yet returned; their bytes count against the memory budget.
pub(super) struct BackgroundWriter {
    writer: DeadLetterWriter,
    results: ResultWriter,
    targets: ResultTargets,
    /// Names of headers that are copied to results.
    correlation_headers: Vec<String>,
    completions: Arc<Completions>,
    permits: Arc<Semaphore>,
    /// Cancelled when the dispatcher ends; unwritten dead letters are left to the next owner.
    stop: CancellationToken,
}

/// Reason of a dead letter.
pub(super) struct Reason<'a> {
    pub code: &'a str,
    pub message: String,
    /// JSON pointer to the invalid part of the params.
    pub pointer: Option<String>,
}

impl BackgroundWriter {
    pub(super) fn new(deps: &DispatcherDeps) -> Self {
        let publish = deps.registered.policy.publish_results;
        Self {
            writer: deps.dead_letters.clone(),
            results: ResultWriter { events: deps.events.clone(), health: deps.health.clone() },
            targets: ResultTargets { task_type: deps.task_type.clone(), publish },
            correlation_headers: deps.config.correlation_headers.clone(),
            completions: deps.completions.clone(),
            permits: Arc::new(Semaphore::new(MAX_WRITES)),
            stop: CancellationToken::new(),
        }
    }

    /// Stops all writes.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns whether a task has a result for other systems, which is written before its terminal event.
    pub(super) fn has_result(&self, in_flight: &InFlight) -> bool {
        self.targets.has_any(in_flight)
    }

    /// Writes the result of a task, if it has one, then its terminal event. The number of such tasks is bounded by the inputs
    /// handed out.
    pub(super) fn end(&self, in_flight: Box<InFlight>, event: Event) {
        let (results, target) = (self.results.clone(), self.targets.of_task(&in_flight, None));
        self.spawn(async move {
            end_input(&results, target, event, in_flight.tag).await;
            drop(in_flight);
        });
    }

    /// Writes the event that hands a task over to the tracker, with the task's whole record.
    pub(super) fn write_deferred_task(&self, in_flight: Box<InFlight>, mut event: Event) {
        let (writer, permits) = (self.writer.clone(), self.permits.clone());
        let task_type = self.targets.task_type.clone();
        self.spawn(async move {
            let Ok(permit) = permits.acquire_owned().await else { return };
            let record = writer.deferred_record(&task_type, &in_flight).await;
            event.payload.set_record(record);
            writer.events.write(&event, in_flight.tag, &mut Vec::new()).await;
            drop((permit, in_flight));
        });
    }

    /// Writes a task as a dead letter, then its result and its terminal event.
    pub(super) fn write_dead_letter(&self, in_flight: Box<InFlight>, event: Event, reason: Reason<'_>) {
        let tag = in_flight.tag;
        let target = self.targets.of_task(&in_flight, Some(reason.code));
        let letter = DeadLetter {
            task_type: self.targets.task_type.clone(),
            key: in_flight.task.id.as_str().as_bytes().to_vec(),
            task: Some((in_flight.task.id.clone(), in_flight.task.run)),
            code: reason.code.to_owned(),
            message: reason.message,
            pointer: reason.pointer,
            body: Body::Task(in_flight),
        };
        self.write(letter, Some(event), tag, target);
    }

    /// Writes an invalid record as a dead letter, then the result and the terminal event of its task if its id is readable.
    pub(super) fn write_invalid(&self, invalid: Box<Invalid>) {
        let Invalid { record, reject, tag, .. } = &*invalid;
        let (task_type, tag) = (&self.targets.task_type, *tag);
        let Record { partition, offset, .. } = record;
        tracing::warn!(%task_type, partition, offset, code = reject.code, reason = %reject.message, "invalid record becomes a dead letter");
        let worker = &self.writer.events.worker;
        let event = reject.task.as_ref().map(|(id, run)| rejection(task_type, worker, id, *run, &invalid));
        let names = &self.writer.events.publisher().topology.names;
        let target = self.targets.of_invalid(&invalid, names, &self.correlation_headers);
        let key = match &reject.task {
            Some((id, _)) => id.as_str().as_bytes().to_vec(),
            None => record.key.clone().unwrap_or_default(),
        };
        let letter = DeadLetter {
            task_type: task_type.clone(),
            key,
            task: reject.task.clone(),
            code: reject.code.to_owned(),
            message: reject.message.clone(),
            pointer: reject.pointer.clone(),
            body: Body::Record(invalid),
        };
        self.write(letter, event, tag, target);
    }

    /// Writes a dead letter, then the result and the terminal event; without an event the input is complete with the
    /// dead letter.
    fn write(&self, letter: DeadLetter, event: Option<Event>, tag: DeliveryTag, target: Option<ResultTarget>) {
        let (writer, results) = (self.writer.clone(), self.results.clone());
        let (completions, permits) = (self.completions.clone(), self.permits.clone());
        self.spawn(async move {
            let Ok(permit) = permits.acquire_owned().await else { return };
            writer.write(letter).await;
            match event {
                Some(event) => end_input(&results, target, event, tag).await,
                None => completions.complete(tag),
            }
            drop(permit);
        });
    }

    fn spawn(&self, write: impl Future<Output = ()> + Send + 'static) {
        kafleet_runtime::spawn(self.stop.clone().run_until_cancelled_owned(write));
    }
}

async fn end_input(results: &ResultWriter, target: Option<ResultTarget>, event: Event, tag: DeliveryTag) {
    match target {
        Some(target) => results.end(&target, event, tag).await,
        None => results.events.write(&event, tag, &mut Vec::new()).await,
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
