//! Task records that the tracker publishes: the original once more for a retry, or a new one for a continuation.

use std::sync::Arc;

use kafleet_broker::BrokerError;
use kafleet_fleet::publish::{set_policy, task_headers};
use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::Payload;
use kafleet_model::outbox::{Effect, RecordCopy};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::continuation::number_of;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Policy, TaskSpec, header};
use kafleet_model::trace::Origin;
use kafleet_store::StoreError;
use kafleet_telemetry::otel::{SentTask, Span, followed, headers_of};

use super::original_record::{OriginalRecord, original_record};
use super::planner::OutboxPlanner;
use crate::error::{TrackerError, Unpublishable};
use crate::outbox::entry::{OutboxEntry, OutboxMessage, effect_done, terminal_event};
use crate::outbox::fan_in;

/// `ce_source` of records created by the tracker.
const SOURCE: &str = "kafleet/tracker";

impl OutboxPlanner {
    /// Publishes the task's record again for a new run; if the record is gone, the run fails. `None` if it cannot be
    /// read now.
    pub(crate) async fn republish(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        run: u32,
        now: i64,
    ) -> Result<Option<OutboxEntry>, TrackerError> {
        let was_published = task.definition.position.is_some() || task.definition.record_event_offset.is_some();
        if number_of(id.segment()).is_some() && !was_published {
            // A continuation whose record was never published.
            return self.start_continuation(id, task, effect, run, now).await.map(Some);
        }
        let kind = "retry";
        if task.run != run || task.own.is_terminal() {
            return Ok(Some(self.completed(id, effect, kind, now)?));
        }
        let original = match self.unsendable_reason(id, &effect.id(), task).await? {
            Some(reason) => Err(reason),
            None => {
                match original_record(&self.setup, (&self.events, self.number), self.topic_of(task), id, task).await {
                    Err(error) if error.is_transient() => {
                        tracing::warn!(task = %id, %error, "cannot read the record of a task to be retried; retrying");
                        return Ok(None);
                    }
                    original => original?.ok_or(Unpublishable::RecordRemoved),
                }
            }
        };
        let record = original.map(|original| {
            let mut record = retry_record(self.topic_of(task), id, task, original, run, effect.cause);
            let span = self.begin_retry(id, task, run, &mut record, now);
            (record, span)
        });
        let record = record.map_err(|error| format!("the retry is not possible: {error}"));
        Ok(Some(self.record_or_failure(id, effect, kind, run, record, now)?))
    }

    /// Publishes the record of a continuation, as specified by the task that it follows.
    pub(crate) async fn start_continuation(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        run: u32,
        now: i64,
    ) -> Result<OutboxEntry, TrackerError> {
        let kind = OutboxEntry::CONTINUATION;
        if task.run != run || task.own.is_terminal() {
            return Ok(self.completed(id, effect, kind, now)?);
        }
        let record = match self.unsendable_reason(id, &effect.id(), task).await? {
            Some(error) => Err(error),
            None => self.continuation(id, task, now).await?,
        };
        let record = record.map_err(|error| format!("it cannot be started: {error}"));
        Ok(self.record_or_failure(id, effect, kind, run, record, now)?)
    }

    /// Reason why no record can be sent for the task, if any.
    pub(crate) async fn unsendable_reason(
        &mut self,
        id: &TaskId,
        dedup_key: &str,
        task: &TaskRecord,
    ) -> Result<Option<Unpublishable>, BrokerError> {
        match self.unsendable.get(&(id.clone(), dedup_key.to_owned())) {
            Some((error, _)) => Ok(Some(Unpublishable::Rejected(error.clone()))),
            None => self.missing_topic(task).await,
        }
    }

    /// Publishes the record of a run, or ends the run with the reason for the missing record.
    fn record_or_failure(
        &self,
        id: &TaskId,
        effect: Effect,
        kind: &'static str,
        run: u32,
        record: Result<(OutboxMessage, Option<Box<Span>>), String>,
        now: i64,
    ) -> Result<OutboxEntry, EncodeError> {
        match record {
            Ok((record, span)) => {
                let done = effect_done(id, effect, now);
                Ok(OutboxEntry::record_and_event(id, effect.id(), kind, record, done).with_span(span))
            }
            Err(error) => {
                let mut entry = self.completed(id, effect, kind, now)?;
                entry.messages.insert(0, self.event(&terminal_event(id, run, Payload::Failed, &error, now))?);
                Ok(entry)
            }
        }
    }

    /// Publishes only the event that completes the effect.
    fn completed(&self, id: &TaskId, effect: Effect, kind: &'static str, now: i64) -> Result<OutboxEntry, EncodeError> {
        Ok(OutboxEntry::plain(id, effect.id(), kind, vec![self.event(&effect_done(id, effect, now))?]))
    }

    async fn continuation(
        &self,
        id: &TaskId,
        task_record: &TaskRecord,
        now: i64,
    ) -> Result<Result<(OutboxMessage, Option<Box<Span>>), Unpublishable>, StoreError> {
        let Some(parent) = id.parent_id() else { return Ok(Err(Unpublishable::NoParent)) };
        let parent_record = self.task_records(std::slice::from_ref(&parent)).await?.pop().flatten();
        let continuation = parent_record.and_then(|parent_record| {
            let continuation = parent_record.continuations().nth(number_of(id.segment())?).cloned()?;
            Some((parent_record, continuation))
        });
        let Some((followed_task, continuation)) = continuation else {
            return Ok(Err(Unpublishable::Undefined(parent)));
        };
        let params = match fan_in::params(&self.setup, self.number, &parent, &followed_task, &continuation).await? {
            Ok(params) => params,
            Err(error) => return Ok(Err(error)),
        };
        let origin = followed(self.setup.tracer.as_ref(), &parent, followed_task.run, followed_task.definition.trace);
        // A trace that is not sampled by the ids of its tree needs no header.
        let origin = origin.filter(|origin| origin.sampled || followed_task.definition.trace.is_some());
        let mut task = TaskSpec {
            run: task_record.run,
            created_at_ms: task_record.times.created_at_ms.unwrap_or_default(),
            asof: Some(task_record.requests.asof).filter(|asof| *asof >= 0),
            announced: true,
            policy: task_record.definition.policy.clone(),
            trace: origin.map(|context| headers_of(context, None)),
            ..TaskSpec::new(id.clone(), continuation.task_type.clone(), params)
        };
        let tracer = self.setup.tracer.as_ref();
        let span = tracer.and_then(|tracer| tracer.begin_send(&mut task, &self.setup.topology.names, SOURCE, now));
        let headers = task_headers(&task, SOURCE)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into_owned().into_bytes()));
        let message = OutboxMessage {
            topic: self.topic_of(task_record),
            partition: None,
            key: continuation.key.unwrap_or_else(|| id.to_string()).into_bytes(),
            value: Some(task.params.text().as_bytes().to_vec()),
            headers: headers.collect(),
        };
        Ok(Ok((message, span)))
    }

    /// Puts a retried task into a trace of its own, linked to that of the run before, and begins the span of its
    /// publication. A trace that is not sampled leaves the record as it is.
    fn begin_retry(
        &self,
        id: &TaskId,
        task: &TaskRecord,
        run: u32,
        record: &mut OutboxMessage,
        now: i64,
    ) -> Option<Box<Span>> {
        let tracer = self.setup.tracer.as_ref()?;
        let origin = task.definition.trace.map_or(Origin::Unknown, Origin::Retry);
        let sent = tracer.sampler().sent(id, run, origin)?;
        record.headers.retain(|(name, _)| name != header::TRACE_PARENT && name != header::TRACE_STATE);
        record.headers.push((header::TRACE_PARENT.to_owned(), sent.context.to_string().into_bytes()));
        let published = SentTask {
            id,
            task_type: task.task_type.as_deref().unwrap_or_default(),
            run,
            size: record.value.as_ref().map_or(0, Vec::len),
            topic: &record.topic,
            source: SOURCE,
            state: None,
        };
        Some(published.span(&sent, now))
    }

    /// Reports a missing topic, because sending to it would block all other entries.
    async fn missing_topic(&mut self, task: &TaskRecord) -> Result<Option<Unpublishable>, BrokerError> {
        let topic = self.topic_of(task).to_string();
        if self.topics.contains(&topic) {
            return Ok(None);
        }
        let infos = self.setup.broker.client().topics(&topic).await?;
        self.topics.extend(infos.into_iter().map(|info| info.name));
        let missing = !self.topics.contains(&topic);
        Ok(missing.then_some(Unpublishable::MissingTopic(topic)))
    }

    pub(crate) fn topic_of(&self, task: &TaskRecord) -> Arc<str> {
        self.setup.topology.names.tasks(task.task_type.as_deref().unwrap_or_default()).into()
    }
}

/// Applies later changes of a task to a record that is published again. `expires`: only a first attempt can expire.
pub(crate) fn apply_patch(headers: &mut Vec<(String, Vec<u8>)>, task: &TaskRecord, expires: bool) {
    if let Some(policy) = task.definition.policy.as_deref().filter(|_| task.definition.patched) {
        let expires_at_ms = policy.expires_at_ms.filter(|_| expires);
        set_policy(headers, &Policy { not_before_ms: None, expires_at_ms, ..policy.clone() });
    }
}

/// Builds the record of a retry from the original one.
fn retry_record(
    topic: Arc<str>,
    id: &TaskId,
    task: &TaskRecord,
    original: OriginalRecord,
    run: u32,
    asof: i64,
) -> OutboxMessage {
    let set = [
        (header::ID, id.to_string()),
        (header::RUN, run.to_string()),
        (header::AS_OF, asof.to_string()),
        (header::ANNOUNCED, "1".to_owned()),
    ];
    let removed = [header::NOT_BEFORE, header::ATTEMPT, header::WAITS, header::BACKOFF_FROM, header::EXPIRES];
    let mut headers = original.headers;
    headers.retain(|(name, _)| !removed.contains(&name.as_str()) && set.iter().all(|(own, _)| own != name));
    apply_patch(&mut headers, task, false);
    headers.extend(set.map(|(name, value)| (name.to_owned(), value.into_bytes())));
    if task.definition.is_unique() {
        // A retry does not ask again.
        RecordCopy::set_decided(&mut headers, id);
    }
    if let Some(parent) = id.parent().filter(|_| !headers.iter().any(|(name, _)| name == header::PARENT)) {
        headers.push((header::PARENT.to_owned(), parent.as_bytes().to_vec()));
    }
    let key = original.key.unwrap_or_else(|| id.as_str().as_bytes().to_vec());
    OutboxMessage { topic, partition: None, key, value: original.value, headers }
}
