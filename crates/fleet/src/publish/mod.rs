//! Publishing of tasks: first the record, then its `submitted` event; complete once both are acknowledged.
//!
//! The record on the task topic makes a task run, the event makes it visible. In goes a [`TaskSpec`]; out comes
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

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{BrokerError, ProducerRecord};
use kafleet_config::{Names, Topology};
use kafleet_model::event::log_line::lines_of;
use kafleet_model::event::{Event, Payload, submitted};
use kafleet_model::outbox::RecordCopy;
use kafleet_model::record::attachment::Attachment;
use kafleet_model::retry::RunProgress;
use kafleet_model::task::hash::spawn_hash;
use kafleet_model::task::id::{TaskId, check_type};
use kafleet_model::task::{Position, TaskSpec};
use kafleet_model::trace::Sampler;
use kafleet_runtime::now_ms;
use kafleet_telemetry::Tracer;
use kafleet_telemetry::otel::Span;
use prometheus::IntCounterVec;

mod batch;
mod headers;
mod transactional;

pub use headers::{TextHeader, record_headers, set_policy, task_headers};
use headers::{bytes_of, task_record};

/// Deadline of each of the two sends of a publish.
pub const PUBLISH_DEADLINE: Duration = Duration::from_secs(30);

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
    pub task: TaskSpec,
    /// Position of its record. An external task has none.
    pub position: Option<Position>,
}

/// Steps of publishing a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishStep {
    /// The record, then the event.
    Record,
    /// The event alone: the task has no record, or its record is published already, at this position.
    Announce(Option<Position>),
    /// The `scheduled` event with the record, which the tracker stores until it is due.
    Later { due_ms: i64 },
    /// The `asked` event of a unique task, with the record. The projection decides about it.
    Ask,
}

impl PublishStep {
    fn of(task: &TaskSpec, now_ms: i64) -> Self {
        match task.policy.as_ref().and_then(|policy| policy.not_before_ms) {
            _ if task.is_external() => Self::Announce(None),
            _ if task.ask_rule().is_some() => Self::Ask,
            Some(due_ms) if due_ms > now_ms => Self::Later { due_ms },
            _ => Self::Record,
        }
    }

    fn is_announcement(self) -> bool {
        matches!(self, Self::Announce(_))
    }
}

/// Task that is checked and complete, with the next step of its publication.
struct PreparedTask {
    task: TaskSpec,
    step: PublishStep,
    /// Span of the publication, if the trace is sampled.
    span: Option<Box<Span>>,
}

impl PreparedTask {
    fn new(
        mut task: TaskSpec,
        source: &str,
        now_ms: i64,
        tracer: Option<(&Tracer, &Names)>,
    ) -> Result<Self, PublishError> {
        check_type(&task.task_type).map_err(PublishError::Invalid)?;
        if task.hash.is_none() {
            let hash = spawn_hash(&task.task_type, &task.params);
            let invalid = |error| PublishError::Invalid(format!("the params cannot be read: {error}"));
            task.hash = Some(hash.map_err(invalid)?.into());
        }
        (task.created_at_ms, task.announced) = (now_ms, true);
        let step = PublishStep::of(&task, now_ms);
        let span = tracer.and_then(|(tracer, names)| tracer.begin_send(&mut task, names, source, now_ms));
        Ok(Self { task, step, span })
    }
}

/// Publishes tasks and events. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    producer: Arc<SharedProducer>,
    pub topology: Arc<Topology>,
    events_topic: Arc<str>,
    /// Value of `ce_source`.
    source: Arc<str>,
    /// Deadline of each send.
    deadline: Duration,
    /// Counts the tasks that were accepted, by type.
    submitted: Option<IntCounterVec>,
    tracer: Option<Tracer>,
}

impl Publisher {
    pub fn new(producer: Arc<SharedProducer>, topology: Topology, source: &str) -> Self {
        Self {
            producer,
            events_topic: topology.names.events().into(),
            topology: Arc::new(topology),
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
    pub fn sampler(&self) -> Sampler {
        self.tracer.as_ref().map_or(Sampler::NEVER, Tracer::sampler)
    }

    pub(crate) fn count(&self, task_type: &str, tasks: u64) {
        if let Some(submitted) = &self.submitted
            && tasks > 0
        {
            submitted.with_label_values(&[task_type]).inc_by(tasks);
        }
    }

    pub fn producer(&self) -> &Arc<SharedProducer> {
        &self.producer
    }

    /// Publishes one task. An external task has no record, only the event. A task that starts later is deferred at
    /// the tracker, with its record in the `scheduled` event.
    pub async fn publish(&self, task: TaskSpec, now_ms: i64) -> Result<PublishedTask, PublishError> {
        let PreparedTask { task, step, span } = self.prepare(task, now_ms)?;
        let published = self.publish_prepared(task, step, now_ms).await;
        finish(self.tracer.as_ref(), span, published.as_ref().err());
        published
    }

    async fn publish_prepared(
        &self,
        task: TaskSpec,
        step: PublishStep,
        now_ms: i64,
    ) -> Result<PublishedTask, PublishError> {
        let position = match step {
            PublishStep::Later { due_ms } => {
                let event = scheduled(&task, &self.source, due_ms, now_ms);
                return self.publish_deferred(task, &event).await;
            }
            PublishStep::Ask => {
                let event = asked(&task, &self.source, now_ms);
                return self.publish_deferred(task, &event).await;
            }
            PublishStep::Announce(position) => position,
            PublishStep::Record => {
                let topic = self.topology.names.tasks(&task.task_type);
                let headers = task_headers(&task, &self.source);
                let headers = bytes_of(&headers);
                let record = task_record(&task, &topic, &headers);
                Some(self.producer.deliver(record, self.deadline).await.map_err(PublishError::NotPublished)?)
            }
        };
        self.announce(UnannouncedTask { task, position }, now_ms).await
    }

    /// Publishes many tasks independently. Returns one outcome per task, in order.
    pub async fn publish_all(&self, tasks: Vec<TaskSpec>, now_ms: i64) -> Vec<Result<PublishedTask, PublishError>> {
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

    /// Publishes the event that contains the record of a task.
    async fn publish_deferred(&self, task: TaskSpec, event: &Event) -> Result<PublishedTask, PublishError> {
        let position = self.publish_event(event).await.map_err(PublishError::NotPublished)?;
        self.count(&task.task_type, 1);
        Ok(PublishedTask { id: task.id, position })
    }

    /// Record of a task to be deferred.
    pub fn record_copy(&self, task: &TaskSpec, progress: &RunProgress) -> RecordCopy {
        RecordCopy::new(task, record_headers(task, progress, &self.source))
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
        let event = Event::new(Payload::log(lines), id.clone(), 1, now_ms());
        self.publish_event(&event).await.map_err(PublishError::NotPublished)
    }

    /// Attaches a small value to an existing task. Handlers use `cx.attach` instead.
    pub async fn attach(&self, id: &TaskId, attachment: Attachment) -> Result<Position, PublishError> {
        attachment.check().map_err(PublishError::Invalid)?;
        let payload = Payload::Attached { attachment: Some(Box::new(attachment)) };
        let event = Event::new(payload, id.clone(), 1, now_ms());
        self.publish_event(&event).await.map_err(PublishError::NotPublished)
    }

    fn prepare(&self, task: TaskSpec, now_ms: i64) -> Result<PreparedTask, PublishError> {
        let tracer = self.tracer.as_ref().map(|tracer| (tracer, &self.topology.names));
        PreparedTask::new(task, &self.source, now_ms, tracer)
    }

    fn event_record<'a>(&'a self, key: &'a str, value: &'a [u8]) -> ProducerRecord<'a> {
        ProducerRecord {
            topic: &self.events_topic,
            partition: i32::try_from(self.topology.partition_of_key(key)).ok(),
            key: Some(key.as_bytes()),
            value: Some(value),
            headers: &[],
        }
    }
}

/// Ends the span of a publication. A task that is certainly not published has none, because the call may be repeated.
pub fn finish(tracer: Option<&Tracer>, span: Option<Box<Span>>, error: Option<&PublishError>) {
    let is_published = match error {
        None | Some(PublishError::NotAnnounced { .. } | PublishError::NotPublished(BrokerError::InDoubt(_))) => true,
        Some(PublishError::Invalid(_) | PublishError::NotPublished(_)) => false,
    };
    if let Some((tracer, span)) = tracer.zip(span).filter(|_| is_published) {
        tracer.finish(span);
    }
}

/// `scheduled` event, and the span of the task's publication if its trace is sampled.
pub type TracedEvent = (Event, Option<Box<Span>>);

/// Builds the `scheduled` event of a task that the tracker creates, which publishes the record next.
pub fn traced_event(
    task: TaskSpec,
    source: &str,
    now_ms: i64,
    tracer: Option<(&Tracer, &Names)>,
) -> Result<TracedEvent, PublishError> {
    let PreparedTask { task, span, .. } = PreparedTask::new(task, source, now_ms, tracer)?;
    Ok((scheduled(&task, source, now_ms, now_ms), span))
}

fn scheduled(task: &TaskSpec, source: &str, due_ms: i64, now_ms: i64) -> Event {
    let record_copy = RecordCopy::new(task, task_headers(task, source));
    let payload = Payload::Scheduled { due_ms: Some(due_ms), record: Some(Box::new(record_copy)) };
    Event::announcing(payload, task, None, now_ms)
}

/// `asked` event of a unique task, with its record.
fn asked(task: &TaskSpec, source: &str, now_ms: i64) -> Event {
    let record_copy = RecordCopy::new(task, task_headers(task, source));
    Event::announcing(Payload::Asked { record: Some(Box::new(record_copy)) }, task, None, now_ms)
}

#[cfg(test)]
mod tests;
