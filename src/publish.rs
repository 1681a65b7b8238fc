//! Publishing tasks: the record first, then its `submitted` event; done when both are acknowledged.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use crate::broker::link::Link;
use crate::broker::{BrokerError, Outgoing};
use crate::config::Names;
use crate::model::event::{Event, Kind};
use crate::model::hash::spawn_hash;
use crate::model::id::{IdError, TaskId, check_type};
use crate::model::json::RawJson;
use crate::model::outbox::KeptRecord;
use crate::model::partition::partition_of;
use crate::model::task::{OnFailure, Policy, Position, Rules, Task, Trace, header};
use crate::runtime::now_ms;

/// How long a publish may take.
pub const PUBLISH_DEADLINE: Duration = Duration::from_secs(30);
/// Publishes of one call under way at once.
const PIPELINE: usize = 1_000;

/// A task to be published.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub task_type: Arc<str>,
    pub params: RawJson,
    /// Default: a UUIDv7.
    pub id: Option<TaskId>,
    /// The ordering key; default: the id.
    pub key: Option<String>,
    pub run: u32,
    pub policy: Policy,
    pub asof: Option<i64>,
    pub trace: Option<Box<Trace>>,
}

impl NewTask {
    pub fn new(task_type: &str, params: RawJson) -> Self {
        let (id, key, asof, trace) = (None, None, None, None);
        Self { task_type: task_type.into(), params, id, key, run: 1, policy: Policy::default(), asof, trace }
    }

    /// Not to be started before this time, epoch milliseconds.
    pub fn at(mut self, at_ms: i64) -> Self {
        self.policy.not_before_ms = Some(at_ms);
        self
    }

    /// Not to be started before this span from now is over.
    pub fn delay(self, span: Duration) -> Self {
        let span_ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        self.at(now_ms().saturating_add(span_ms))
    }
}

/// A task that is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub id: TaskId,
    /// The place of its `submitted` event: a read that names it sees the task.
    pub position: Position,
}

/// Why a publish is not known to be done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    #[error("{0}")]
    Invalid(String),
    /// Nothing is out, or (`InDoubt`) the record may be.
    #[error("the task was not published: {0}")]
    NotOut(BrokerError),
    /// The task is out and will run; only its announcement is missing. Send [`Publisher::announce`] again, not the task.
    #[error("the task is published, but its announcement is not acknowledged: {error}")]
    Out { task: Box<Task>, error: BrokerError },
}

impl From<IdError> for PublishError {
    fn from(error: IdError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Publishes tasks and events. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    link: Arc<Link>,
    names: Arc<Names>,
    events_topic: Arc<str>,
    events_partitions: u32,
    /// `ce_source`.
    source: Arc<str>,
}

impl Publisher {
    pub fn new(link: Arc<Link>, names: Names, events_partitions: u32, source: &str) -> Self {
        let events_topic = names.events().into();
        Self { link, names: Arc::new(names), events_topic, events_partitions, source: source.into() }
    }

    /// The events partition of a tree.
    pub fn partition_of(&self, id: &TaskId) -> u32 {
        partition_of(id.root().as_bytes(), self.events_partitions)
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn events_partitions(&self) -> u32 {
        self.events_partitions
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Publishes one task. External tasks have no record, only the event; one that starts later waits at the tracker with
    /// its record in its `scheduled` event.
    pub async fn publish(&self, new: NewTask, now_ms: i64) -> Result<Published, PublishError> {
        let mut task = self.prepare(&new, now_ms)?;
        if let Some(due_ms) = new.policy.not_before_ms.filter(|at| *at > now_ms && !new.policy.rules.external) {
            return self.schedule(task, new.key, due_ms, now_ms).await;
        }
        if !new.policy.rules.external {
            task.position = self.send_task(&task, new.key.as_deref()).await.map_err(PublishError::NotOut)?;
        }
        self.announce(task, now_ms).await
    }

    /// Publishes many, each for itself, in two round trips for any number. One outcome per task, in order.
    pub async fn publish_all(&self, tasks: Vec<NewTask>, now_ms: i64) -> Vec<Result<Published, PublishError>> {
        stream::iter(tasks).map(|task| self.publish(task, now_ms)).buffered(PIPELINE).collect().await
    }

    /// Writes the `submitted` event of a task whose record is out.
    pub async fn announce(&self, task: Task, now_ms: i64) -> Result<Published, PublishError> {
        match self.publish_event(&Event::submitted(&task, now_ms)).await {
            Ok(position) => Ok(Published { id: task.id, position }),
            Err(error) => Err(PublishError::Out { task: Box::new(task), error }),
        }
    }

    async fn schedule(&self, task: Task, key: Option<String>, due_ms: i64, now_ms: i64) -> Result<Published, PublishError> {
        let mut event = Event::submitted(&task, now_ms);
        event.kind = Kind::Scheduled;
        event.due_ms = Some(due_ms);
        event.record = Some(Box::new(self.kept(&task, key)));
        let position = self.publish_event(&event).await.map_err(PublishError::NotOut)?;
        Ok(Published { id: task.id, position })
    }

    /// The task's record, to be kept until its time has come.
    pub fn kept(&self, task: &Task, key: Option<String>) -> KeptRecord {
        KeptRecord::new(task, key, task_headers(task, &self.source))
    }

    /// Writes one event and waits for its place.
    pub async fn publish_event(&self, event: &Event) -> Result<Position, BrokerError> {
        let mut value = Vec::with_capacity(256);
        event.encode(&mut value);
        let record = Outgoing {
            topic: &self.events_topic,
            partition: i32::try_from(self.partition_of(&event.id)).ok(),
            key: Some(event.id.root().as_bytes()),
            value: Some(&value),
            headers: &[],
        };
        self.link.deliver(record, PUBLISH_DEADLINE).await
    }

    fn prepare(&self, new: &NewTask, now_ms: i64) -> Result<Task, PublishError> {
        check_type(&new.task_type).map_err(PublishError::Invalid)?;
        let id = match &new.id {
            Some(id) => id.clone(),
            None => TaskId::parse(&uuid::Uuid::now_v7().to_string())?,
        };
        let params = new.params.value().map_err(|why| PublishError::Invalid(format!("the params cannot be read: {why}")))?;
        let hash = spawn_hash(&new.task_type, &params);
        let policy = (new.policy != Policy::default()).then(|| Box::new(new.policy.clone()));
        Ok(Task {
            id,
            task_type: new.task_type.clone(),
            run: new.run,
            attempts_used: 0,
            created_at_ms: now_ms,
            position: Position { partition: -1, offset: -1 },
            asof: new.asof,
            announced: true,
            hash: Some(hash.into()),
            policy,
            trace: new.trace.clone(),
            params: new.params.clone(),
        })
    }

    async fn send_task(&self, task: &Task, key: Option<&str>) -> Result<Position, BrokerError> {
        let headers = task_headers(task, &self.source);
        let borrowed: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let record = Outgoing {
            topic: &self.names.tasks(&task.task_type),
            partition: None,
            key: Some(key.unwrap_or(task.id.as_str()).as_bytes()),
            value: Some(task.params.text().as_bytes()),
            headers: &borrowed,
        };
        self.link.deliver(record, PUBLISH_DEADLINE).await
    }
}

/// The headers that say of a task what is not a default.
pub fn task_headers(task: &Task, source: &str) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        (header::SPEC_VERSION, "1.0".to_owned()),
        (header::ID, task.id.to_string()),
        (header::TYPE, task.task_type.to_string()),
        (header::SOURCE, source.to_owned()),
        (header::TIME, time_text(task.created_at_ms)),
    ];
    let mut set = |name, value: Option<String>| headers.extend(value.map(|value| (name, value)));
    set(header::PARENT, task.id.parent().map(str::to_owned));
    set(header::RUN, (task.run > 1).then(|| task.run.to_string()));
    set(header::ATTEMPT, (task.attempts_used > 0).then(|| task.attempts_used.to_string()));
    set(header::AS_OF, task.asof.map(|asof| asof.to_string()));
    set(header::ANNOUNCED, task.announced.then(|| "1".to_owned()));
    set(header::HASH, task.hash.as_deref().map(str::to_owned));
    if let Some(trace) = &task.trace {
        set(header::TRACE_PARENT, Some(trace.parent.clone()));
        set(header::TRACE_STATE, trace.state.clone());
    }
    if let Some(policy) = &task.policy {
        policy_headers(policy, &mut set);
    }
    headers
}

fn policy_headers(policy: &Policy, set: &mut impl FnMut(&'static str, Option<String>)) {
    set(header::NOT_BEFORE, policy.not_before_ms.map(time_text));
    set(header::EXPIRES, policy.expires_at_ms.map(time_text));
    set(header::RETRIES, policy.retries.map(|retries| retries.to_string()));
    set(header::MIN_BACKOFF, policy.min_backoff.map(|span| span.to_string()));
    set(header::MAX_BACKOFF, policy.max_backoff.map(|span| span.to_string()));
    set(header::TIMEOUT, policy.timeout.map(|span| span.to_string()));
    set(header::ON_FAILURE, (policy.on_failure == OnFailure::Ignore).then(|| "ignore".to_owned()));
    set(header::NAME, policy.name.clone());
    set(header::CREATOR, policy.creator.clone());
    set(header::TAGS, (!policy.tags.is_empty()).then(|| policy.tags.join(",")));
    set(header::LINK, policy.link.clone());
    let rules = (policy.rules != Rules::default()).then(|| serde_json::to_string(&policy.rules).ok()).flatten();
    set(header::POLICY, rules);
}

/// RFC 3339 in UTC with milliseconds.
pub fn time_text(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => at_ms.to_string(),
    }
}
