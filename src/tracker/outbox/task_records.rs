//! The record of a task that is to run: as it was, or made for one that follows another.

use std::sync::Arc;
use std::time::Duration;

use super::planner::OutboxPlanner;
use crate::broker::{BrokerError, Partition, Record};
use crate::model::event::{Event, Kind};
use crate::model::outbox::{Effect, KeptRecord};
use crate::model::record::TaskRecord;
use crate::model::task::continuation::number_of;
use crate::model::task::id::TaskId;
use crate::model::task::{Policy, Position, Task, header};
use crate::publish::{set_policy, task_headers};
use crate::runtime::blocking;
use crate::tracker::outbox::entry::{Message, OutboxEntry, effect_done, last_word};
use crate::tracker::outbox::fan_in;

const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// `ce_source` of what the tracker itself makes.
const SOURCE: &str = "kafleet/tracker";

impl OutboxPlanner {
    /// The task's record once more, for a new run; where it is gone, the run fails. None: it cannot be read at present.
    pub(crate) async fn publish(
        &mut self,
        id: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        run: u32,
        now: i64,
    ) -> Result<Option<OutboxEntry>, String> {
        let is_out = node.position.is_some() || node.told_at.is_some();
        if number_of(id.segment()).is_some() && !is_out {
            // A continuation of which no record was ever made.
            return self.follow(id, node, effect, run, now).await.map(Some);
        }
        let kind = "retry";
        if node.run != run || node.own.is_terminal() {
            return Ok(Some(self.done(id, effect, kind, now)));
        }
        let found = match self.refusal(id, &effect.id(), node).await? {
            Some(why) => Err(why),
            None => match self.record_of(id, node).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(task = %id, %error, "the record of a task to be retried cannot be read; trying again");
                    return Ok(None);
                }
                found => found.map_err(|error| error.to_string())?.ok_or_else(|| {
                    "the task's record is no longer in Kafka (hint: submit it anew; `topics.task_retention` says how long records are kept)".to_owned()
                }),
            },
        };
        let record = found.map(|found| self.again(id, node, found, run, effect.cause));
        let record = record.map_err(|why| format!("the retry is not possible: {why}"));
        Ok(Some(self.out(id, effect, kind, run, record, now)))
    }

    /// A continuation: its record, from what the task that it follows says of it.
    pub(crate) async fn follow(
        &mut self,
        id: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        run: u32,
        now: i64,
    ) -> Result<OutboxEntry, String> {
        let kind = "follow";
        if node.run != run || node.own.is_terminal() {
            return Ok(self.done(id, effect, kind, now));
        }
        let record = match self.refusal(id, &effect.id(), node).await? {
            Some(why) => Err(why),
            None => self.continuation(id, node).await?,
        };
        let record = record.map_err(|why| format!("it cannot be started: {why}"));
        Ok(self.out(id, effect, kind, run, record, now))
    }

    /// Why nothing can be sent for it, if it is so.
    pub(crate) async fn refusal(&mut self, id: &TaskId, mark: &str, node: &TaskRecord) -> Result<Option<String>, String> {
        match self.given_up.remove(&(id.clone(), mark.to_owned())) {
            Some(why) => Ok(Some(why)),
            None => self.missing_topic(node).await,
        }
    }

    /// The record of a run, or the end of the run where there is none; and why.
    fn out(
        &self,
        id: &TaskId,
        effect: Effect,
        kind: &'static str,
        run: u32,
        record: Result<Message, String>,
        now: i64,
    ) -> OutboxEntry {
        match record {
            Ok(record) => OutboxEntry::of_record(id, effect.id(), kind, record, effect_done(id, effect, now)),
            Err(why) => {
                let mut shot = self.done(id, effect, kind, now);
                shot.messages.insert(0, self.event(&last_word(id, run, Kind::Failed, &why, now)));
                shot
            }
        }
    }

    /// Nothing but that it is done.
    fn done(&self, id: &TaskId, effect: Effect, kind: &'static str, now: i64) -> OutboxEntry {
        OutboxEntry::plain(id, effect.id(), kind, vec![self.event(&effect_done(id, effect, now))])
    }

    async fn continuation(&self, id: &TaskId, node: &TaskRecord) -> Result<Result<Message, String>, String> {
        let Some(parent) = id.parent_id() else { return Ok(Err("it follows nothing".to_owned())) };
        let followed = self.nodes(std::slice::from_ref(&parent)).await?.pop().flatten();
        let then = followed.and_then(|found| {
            let then = found.thens().nth(number_of(id.segment())?).cloned()?;
            Some((found, then))
        });
        let Some((followed, then)) = then else { return Ok(Err(format!("`{parent}` no longer says what follows it"))) };
        let params = match fan_in::params(&self.setup, self.number, &parent, &followed, &then).await? {
            Ok(params) => params,
            Err(why) => return Ok(Err(why)),
        };
        let task = Task {
            id: id.clone(),
            task_type: then.task_type.clone(),
            run: node.run,
            attempts_used: 0,
            created_at_ms: node.created_at_ms.unwrap_or_default(),
            position: Position { partition: -1, offset: -1 },
            asof: Some(node.asof).filter(|asof| *asof >= 0),
            announced: true,
            hash: None,
            policy: node.policy.clone(),
            trace: None,
            has_foreign_headers: false,
            params,
        };
        let headers =
            task_headers(&task, SOURCE).into_iter().map(|(name, value)| (name.to_owned(), value.into_owned().into_bytes()));
        Ok(Ok(Message {
            topic: self.topic_of(node),
            partition: None,
            key: then.key.unwrap_or_else(|| id.to_string()).into_bytes(),
            value: Some(task.params.text().as_bytes().to_vec()),
            headers: headers.collect(),
        }))
    }

    fn again(&self, id: &TaskId, node: &TaskRecord, found: Found, run: u32, asof: i64) -> Message {
        let set = [
            (header::ID, id.to_string()),
            (header::RUN, run.to_string()),
            (header::AS_OF, asof.to_string()),
            (header::ANNOUNCED, "1".to_owned()),
        ];
        let gone = [header::NOT_BEFORE, header::ATTEMPT, header::EXPIRES];
        let mut headers = found.headers;
        headers.retain(|(name, _)| !gone.contains(&name.as_str()) && set.iter().all(|(own, _)| own != name));
        renew(&mut headers, node, false);
        headers.extend(set.map(|(name, value)| (name.to_owned(), value.into_bytes())));
        if let Some(parent) = id.parent().filter(|_| !headers.iter().any(|(name, _)| name == header::PARENT)) {
            headers.push((header::PARENT.to_owned(), parent.as_bytes().to_vec()));
        }
        let key = found.key.unwrap_or_else(|| id.as_str().as_bytes().to_vec());
        Message { topic: self.topic_of(node), partition: None, key, value: found.value, headers }
    }

    /// From its place in its topic, or from the event that carried it.
    async fn record_of(&self, id: &TaskId, node: &TaskRecord) -> Result<Option<Found>, BrokerError> {
        if let Some(position) = node.position {
            let place = Partition::new(self.topic_of(node), position.partition);
            if let Some(record) = self.read(place, position.offset).await? {
                return Ok(Some(Found::of(record)));
            }
        }
        let Some(offset) = node.told_at else { return Ok(None) };
        let place = Partition::new(self.events.clone(), self.number as i32);
        let record = self.read(place, offset).await?;
        let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
        Ok(event.filter(|event| event.id == *id).and_then(|event| event.record).map(|kept| Found::kept(*kept)))
    }

    async fn read(&self, place: Partition, offset: i64) -> Result<Option<Record>, BrokerError> {
        let broker = self.setup.broker.clone();
        match blocking(move || broker.read_at(&place, offset, CALL_DEADLINE)).await.map_err(BrokerError::Unavailable)? {
            Err(BrokerError::Unknown(_)) => Ok(None),
            read => read,
        }
    }

    /// Sending to a topic that is not there would hold up everything else.
    async fn missing_topic(&mut self, node: &TaskRecord) -> Result<Option<String>, String> {
        let topic = self.topic_of(node).to_string();
        if self.topics.contains(&topic) {
            return Ok(None);
        }
        let (broker, prefix) = (self.setup.broker.clone(), topic.clone());
        let known = blocking(move || broker.topics(&prefix, CALL_DEADLINE)).await?.map_err(|error| error.to_string())?;
        self.topics.extend(known.into_iter().map(|info| info.name));
        let missing = !self.topics.contains(&topic);
        Ok(missing.then(|| format!("the topic `{topic}` does not exist (hint: add its type and run `kafleet topics apply`)")))
    }

    pub(crate) fn topic_of(&self, node: &TaskRecord) -> Arc<str> {
        self.setup.names.tasks(node.task_type.as_deref().unwrap_or_default()).into()
    }
}

/// A record that is published again says what its task was changed to since. Only a first attempt can be too late.
pub(crate) fn renew(headers: &mut Vec<(String, Vec<u8>)>, node: &TaskRecord, expires: bool) {
    if let Some(policy) = node.policy.as_deref().filter(|_| node.patched) {
        let expires_at_ms = policy.expires_at_ms.filter(|_| expires);
        set_policy(headers, &Policy { not_before_ms: None, expires_at_ms, ..policy.clone() });
    }
}

/// A task's record as it was.
struct Found {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
}

impl Found {
    fn of(record: Record) -> Self {
        let headers = record.headers.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        Self { key: record.key, value: record.value, headers }
    }

    fn kept(record: KeptRecord) -> Self {
        let value = Some(record.params.text().as_bytes().to_vec());
        Self { key: record.key_bytes(), value, headers: record.header_bytes() }
    }
}
