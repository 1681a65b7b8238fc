//! Publishing of tasks: first the record, then its `submitted` event; complete once both are acknowledged.
//!
//! The record on the task topic makes a task run, the event makes it visible. In goes an [`OutgoingTask`]; out comes
//! the position of the event, which a read can wait for. A task that starts later has no record yet: its `scheduled`
//! event contains it, and the tracker publishes it when it is due.
//!
//! Invariant: the event is sent after the record is acknowledged, and names its position. The other way round, a lost
//! record would leave a task that is shown as queued and never runs; this way, a lost event only delays the task's
//! visibility until the first event of a worker. A [`PublishError`] says which of the two is certain: after
//! `NotAnnounced` only the announcement is repeated, because another record would run the task twice.
//!
//! Read next: `headers.rs` (a task as a record), `batch.rs` (many tasks), `transactional.rs` (all or none).

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounterVec;

use crate::broker::shared_producer::SharedProducer;
use crate::broker::{BrokerError, ProducerRecord};
use crate::config::Names;
use crate::model::event::log_line::lines_of;
use crate::model::event::{Event, Payload, submitted};
use crate::model::json::RawJson;
use crate::model::outbox::RecordCopy;
use crate::model::record::attachment::Attachment;
use crate::model::retry::RunProgress;
use crate::model::task::hash::spawn_hash;
use crate::model::task::id::{IdError, TaskId, check_type};
use crate::model::task::partition::partition_of;
use crate::model::task::{DecodedTask, Policy, Position, Trace};
use crate::model::trace::{Origin, Sampler};
use crate::runtime::now_ms;
use crate::telemetry::Tracer;
use crate::telemetry::otel::{Span, context_of};

mod batch;
mod headers;
mod transactional;

pub use headers::{TextHeader, record_headers, set_policy, task_headers};
use headers::{bytes_of, task_record};

/// Deadline of each of the two sends of a publish.
pub const PUBLISH_DEADLINE: Duration = Duration::from_secs(30);

/// Task to publish.
#[derive(Clone, Debug)]
pub struct OutgoingTask {
    pub task_type: Arc<str>,
    pub params: RawJson,
    /// Default: a UUIDv7.
    pub id: Option<TaskId>,
    /// Ordering key; default: the id.
    pub key: Option<String>,
    pub run: u32,
    pub policy: Policy,
    pub asof: Option<i64>,
    /// Headers of the creator's trace context.
    pub trace: Option<Box<Trace>>,
    /// The task gets a trace of its own, with a link to `trace`.
    pub has_own_trace: bool,
}

impl OutgoingTask {
    pub fn new(task_type: &str, params: RawJson) -> Self {
        Self {
            task_type: task_type.into(),
            params,
            id: None,
            key: None,
            run: 1,
            policy: Policy::default(),
            asof: None,
            trace: None,
            has_own_trace: false,
        }
    }

    /// Sets the earliest start, epoch milliseconds.
    pub fn at(mut self, at_ms: i64) -> Self {
        self.policy.not_before_ms = Some(at_ms);
        self
    }

    /// Delays the start by a duration from now.
    pub fn delay(self, span: Duration) -> Self {
        let span_ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        self.at(now_ms().saturating_add(span_ms))
    }
}

/// Published task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTask {
    pub id: TaskId,
    /// Position of the `submitted` event: a read that waits for this position includes the task.
    pub position: Position,
}

/// Reason why a publish failed or is in doubt.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    #[error("{0}")]
    Invalid(String),
    /// No record was written; with `InDoubt` one may have been.
    #[error("the task was not published: {0}")]
    NotPublished(BrokerError),
    /// The task is published and will run, but its announcement is not acknowledged. Repeat [`Publisher::announce`],
    /// not the publish.
    #[error("the task is published, but its announcement is not acknowledged: {error}")]
    NotAnnounced { task: Box<UnannouncedTask>, error: BrokerError },
}

/// Published task whose announcement is not acknowledged.
#[derive(Clone, Debug)]
pub struct UnannouncedTask {
    pub task: DecodedTask,
    /// Position of its record. An external task has none.
    pub position: Option<Position>,
}

impl From<IdError> for PublishError {
    fn from(error: IdError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Steps of publishing a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishStep {
    /// The record, then the event.
    Record,
    /// The event alone: the task has no record, or it is published already.
    Announce,
    /// The `scheduled` event with the record, which the tracker stores until it is due.
    Later { due_ms: i64 },
}

impl PublishStep {
    fn of(new: &OutgoingTask, now_ms: i64) -> Self {
        match new.policy.not_before_ms {
            _ if new.policy.rules.external => Self::Announce,
            Some(due_ms) if due_ms > now_ms => Self::Later { due_ms },
            _ => Self::Record,
        }
    }
}

/// Publishes tasks and events. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    producer: Arc<SharedProducer>,
    names: Arc<Names>,
    events_topic: Arc<str>,
    events_partitions: u32,
    /// Value of `ce_source`.
    source: Arc<str>,
    /// Deadline of each send.
    deadline: Duration,
    /// Counts the tasks that were accepted, by type.
    submitted: Option<IntCounterVec>,
    tracer: Option<Tracer>,
}

impl Publisher {
    pub fn new(producer: Arc<SharedProducer>, names: Names, events_partitions: u32, source: &str) -> Self {
        let events_topic = names.events().into();
        Self {
            producer,
            names: Arc::new(names),
            events_topic,
            events_partitions,
            source: source.into(),
            deadline: PUBLISH_DEADLINE,
            submitted: None,
            tracer: None,
        }
    }

    /// Counts published tasks, by type.
    pub fn with_counter(self, submitted: &IntCounterVec) -> Self {
        Self { submitted: Some(submitted.clone()), ..self }
    }

    /// Writes a span for each published task whose trace is sampled.
    pub fn with_tracer(self, tracer: Option<&Tracer>) -> Self {
        Self { tracer: tracer.cloned(), ..self }
    }

    /// Decides about traces; without a tracer nothing is sampled but what a given context marks.
    pub(crate) fn sampler(&self) -> Sampler {
        self.tracer.as_ref().map_or(Sampler::NEVER, Tracer::sampler)
    }

    pub(crate) fn count(&self, task_type: &str, tasks: u64) {
        if let Some(submitted) = &self.submitted
            && tasks > 0
        {
            submitted.with_label_values(&[task_type]).inc_by(tasks);
        }
    }

    /// Events partition of a tree.
    pub fn partition_of(&self, id: &TaskId) -> u32 {
        self.partition_of_key(id.root())
    }

    /// Events partition of a record key.
    pub fn partition_of_key(&self, key: &str) -> u32 {
        partition_of(key.as_bytes(), self.events_partitions)
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn events_partitions(&self) -> u32 {
        self.events_partitions
    }

    pub fn producer(&self) -> &Arc<SharedProducer> {
        &self.producer
    }

    /// Publishes one task. An external task has no record, only the event. A task that starts later is deferred at
    /// the tracker, with its record in the `scheduled` event.
    pub async fn publish(&self, new: OutgoingTask, now_ms: i64) -> Result<PublishedTask, PublishError> {
        let key = new.key.clone();
        let step = PublishStep::of(&new, now_ms);
        let (task, span) = self.prepare(new, now_ms)?;
        let published = self.publish_prepared(task, key, step, now_ms).await;
        finish(self.tracer.as_ref(), span, published.as_ref().err());
        published
    }

    async fn publish_prepared(
        &self,
        task: DecodedTask,
        key: Option<String>,
        step: PublishStep,
        now_ms: i64,
    ) -> Result<PublishedTask, PublishError> {
        if let PublishStep::Later { due_ms } = step {
            return self.schedule(task, key, due_ms, now_ms).await;
        }
        let mut position = None;
        if step == PublishStep::Record {
            let topic = self.names.tasks(&task.task_type);
            let headers = task_headers(&task, &self.source);
            let headers = bytes_of(&headers);
            let record = task_record(&task, key.as_deref(), &topic, &headers);
            position = Some(self.producer.deliver(record, self.deadline).await.map_err(PublishError::NotPublished)?);
        }
        self.announce(UnannouncedTask { task, position }, now_ms).await
    }

    /// Publishes many tasks independently. Returns one outcome per task, in order.
    pub async fn publish_all(&self, tasks: Vec<OutgoingTask>, now_ms: i64) -> Vec<Result<PublishedTask, PublishError>> {
        batch::publish_all(self, tasks, now_ms).await
    }

    /// Writes the `submitted` event of a task whose record is published.
    pub async fn announce(&self, published: UnannouncedTask, now_ms: i64) -> Result<PublishedTask, PublishError> {
        let UnannouncedTask { task, position } = &published;
        let mut value = Vec::with_capacity(256);
        let sent = match submitted(task, *position, now_ms, &mut value) {
            Ok(()) => self.producer.deliver(self.event_record(task.id.root(), &value), self.deadline).await,
            Err(error) => Err(error.into()),
        };
        match sent {
            Ok(position) => {
                self.count(&task.task_type, 1);
                Ok(PublishedTask { id: published.task.id, position })
            }
            Err(error) => Err(PublishError::NotAnnounced { task: Box::new(published), error }),
        }
    }

    async fn schedule(
        &self,
        task: DecodedTask,
        key: Option<String>,
        due_ms: i64,
        now_ms: i64,
    ) -> Result<PublishedTask, PublishError> {
        let event = scheduled(&task, key, &self.source, due_ms, now_ms);
        let position = self.publish_event(&event).await.map_err(PublishError::NotPublished)?;
        self.count(&task.task_type, 1);
        Ok(PublishedTask { id: task.id, position })
    }

    /// Record of a task to be deferred.
    pub fn record_copy(&self, task: &DecodedTask, progress: &RunProgress) -> RecordCopy {
        RecordCopy::new(task, None, record_headers(task, progress, &self.source))
    }

    /// Writes one event and returns its position once acknowledged.
    pub async fn publish_event(&self, event: &Event) -> Result<Position, BrokerError> {
        let mut value = Vec::with_capacity(256);
        event.encode(&mut value)?;
        self.producer.deliver(self.event_record(event.key(), &value), self.deadline).await
    }

    /// Appends lines to the log of an existing task, within the limits of [`lines_of`]. Handlers use `cx.log`
    /// instead.
    pub async fn append_log(&self, id: &TaskId, lines: &[&str]) -> Result<Position, PublishError> {
        let lines = lines_of(lines.iter().copied()).map_err(|(_, error)| PublishError::Invalid(error))?;
        let event = Event::new(Payload::Log { lines, dropped: 0 }, id.clone(), 1, now_ms());
        self.publish_event(&event).await.map_err(PublishError::NotPublished)
    }

    /// Attaches a small value to an existing task. Handlers use `cx.attach` instead.
    pub async fn attach(&self, id: &TaskId, attachment: Attachment) -> Result<Position, PublishError> {
        attachment.check().map_err(PublishError::Invalid)?;
        let payload = Payload::Attached { attachment: Some(Box::new(attachment)) };
        let event = Event::new(payload, id.clone(), 1, now_ms());
        self.publish_event(&event).await.map_err(PublishError::NotPublished)
    }

    /// Checks and completes a task to be published, and begins the span of its publication if its trace is sampled.
    fn prepare(&self, new: OutgoingTask, now_ms: i64) -> Result<(DecodedTask, Option<Box<Span>>), PublishError> {
        let Some(tracer) = &self.tracer else { return Ok((prepare(new, now_ms)?, None)) };
        let origin = origin_of(&new);
        let mut task = prepare(new, now_ms)?;
        let span = tracer.begin_send(&mut task, origin, &self.names, &self.source, now_ms);
        Ok((task, span))
    }

    fn event_record<'a>(&'a self, key: &'a str, value: &'a [u8]) -> ProducerRecord<'a> {
        ProducerRecord {
            topic: &self.events_topic,
            partition: i32::try_from(self.partition_of_key(key)).ok(),
            key: Some(key.as_bytes()),
            value: Some(value),
            headers: &[],
        }
    }
}

/// Ends the span of a publication. A task that is certainly not published has none, because the call may be repeated.
fn finish(tracer: Option<&Tracer>, span: Option<Box<Span>>, error: Option<&PublishError>) {
    let is_published = match error {
        None | Some(PublishError::NotAnnounced { .. } | PublishError::NotPublished(BrokerError::InDoubt(_))) => true,
        Some(PublishError::Invalid(_) | PublishError::NotPublished(_)) => false,
    };
    if let Some((tracer, span)) = tracer.zip(span).filter(|_| is_published) {
        tracer.finish(span);
    }
}

/// Checks and completes a task to be published.
fn prepare(new: OutgoingTask, now_ms: i64) -> Result<DecodedTask, PublishError> {
    check_type(&new.task_type).map_err(PublishError::Invalid)?;
    let id = match new.id {
        Some(id) => id,
        None => TaskId::parse(&uuid::Uuid::now_v7().to_string())?,
    };
    let hash = spawn_hash(&new.task_type, &new.params)
        .map_err(|error| PublishError::Invalid(format!("the params cannot be read: {error}")))?;
    Ok(DecodedTask {
        id,
        task_type: new.task_type,
        run: new.run,
        created_at_ms: now_ms,
        asof: new.asof,
        announced: true,
        hash: Some(hash.into()),
        policy: (new.policy != Policy::default()).then(|| Box::new(new.policy)),
        trace: new.trace,
        params: new.params,
    })
}

/// `scheduled` event, and the span of the task's publication if its trace is sampled.
pub type TracedEvent = (Event, Option<Box<Span>>);

/// Builds the `scheduled` event with which the tracker defers a task until its start.
pub fn traced_event(
    new: OutgoingTask,
    source: &str,
    due_ms: i64,
    now_ms: i64,
    tracer: Option<(&Tracer, &Names)>,
) -> Result<TracedEvent, PublishError> {
    let key = new.key.clone();
    let origin = origin_of(&new);
    let mut task = prepare(new, now_ms)?;
    let span = tracer.and_then(|(tracer, names)| tracer.begin_send(&mut task, origin, names, source, now_ms));
    Ok((scheduled(&task, key, source, due_ms, now_ms), span))
}

/// Origin of a task by the context of its creator.
fn origin_of(new: &OutgoingTask) -> Origin {
    match context_of(new.trace.as_deref()) {
        Some(context) if new.has_own_trace => Origin::Linked(context),
        Some(context) => Origin::Parent(context),
        None => Origin::Unknown,
    }
}

fn scheduled(task: &DecodedTask, key: Option<String>, source: &str, due_ms: i64, now_ms: i64) -> Event {
    let record_copy = RecordCopy::new(task, key, task_headers(task, source));
    let payload = Payload::Scheduled { due_ms: Some(due_ms), record: Some(Box::new(record_copy)) };
    Event::announcing(payload, task, None, now_ms)
}

#[cfg(test)]
mod tests;
