//! What is fired for a timer or an effect: the records of one step, the event that says it is done last.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::TrackerSetup;
use super::consumed::{Consumed, Passed};
use super::join;
use super::telling::delivery_event;
use super::walk::Walk;
use crate::broker::{BrokerError, Follower, Outgoing, Partition, Record};
use crate::control::{CONTROL_VERSION, Cancel, Key};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::outbox::{Act, Due, Effect, KeptRecord};
use crate::model::partition::partition_of;
use crate::model::task::{Policy, Position, Task, header};
use crate::model::then::number_of;
use crate::model::told::Delivery;
use crate::publish::{set_policy, task_headers};
use crate::runtime::blocking;
use crate::store::Entry;

const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How long what has to wait for workers or for Kafka is left alone, so that others get their turn; so many are looked at
/// between two transactions.
const DEFERRAL: Duration = Duration::from_secs(3);
/// However many there are, no more than some in a second are looked at again.
const PER_DEFERRED: Duration = Duration::from_millis(20);
const CHECKS: u32 = 8;
/// No more looks at workers between two transactions, after so long: what is due must not wait for what may.
const LOOKING: Duration = Duration::from_millis(50);
/// No look at them for so long, after one that Kafka did not answer.
const UNSEEN: Duration = Duration::from_secs(30);
/// A partition that took so long not to give a record is asked for no other one in the same pass.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes of continuations in one transaction, about.
const MOST_BYTES: usize = 8 << 20;
/// `ce_source` of what the tracker itself makes.
const SOURCE: &str = "kafleet/tracker";
/// The control topic has one partition.
const CONTROL_PARTITION: i32 = 0;

/// Type and partition of a task's record.
fn place_of(node: &Node) -> (Option<Arc<str>>, Option<i32>) {
    (node.task_type.clone(), node.position.map(|position| position.partition))
}

/// A record to be sent.
pub struct Message {
    topic: Arc<str>,
    partition: Option<i32>,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
}

impl Message {
    /// One without headers.
    pub fn plain(topic: Arc<str>, partition: i32, key: String, value: Option<Vec<u8>>) -> Self {
        Self { topic, partition: Some(partition), key: key.into_bytes(), value, headers: Vec::new() }
    }

    pub fn headers(&self) -> Vec<(&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    pub fn outgoing<'a>(&'a self, headers: &'a [(&'a str, &'a [u8])]) -> Outgoing<'a> {
        let (partition, key) = (self.partition, Some(self.key.as_slice()));
        Outgoing { topic: &self.topic, partition, key, value: self.value.as_deref(), headers }
    }
}

/// What is fired together or not at all.
pub struct Shot {
    pub id: TaskId,
    /// With the id, what it is: the timer, or an effect.
    pub mark: String,
    /// For the metric.
    pub kind: &'static str,
    /// The last one is an event of this partition, unless one follows, or a walk that goes on has nothing to say but to the
    /// workers.
    pub messages: Vec<Message>,
    /// An event behind them that says where the last one of them lies: the task's record.
    pub follower: Option<Event>,
}

impl Shot {
    pub const TIMER: &str = "timer";
    /// The kind of a step of a walk.
    pub const WALK: &str = "walk";

    pub fn is_of_walk(&self) -> bool {
        self.kind == Self::WALK
    }

    pub fn plain(id: &TaskId, mark: impl Into<String>, kind: &'static str, messages: Vec<Message>) -> Self {
        Self { id: id.clone(), mark: mark.into(), kind, messages, follower: None }
    }

    /// Publishes a task's record, and tells it.
    fn of_record(id: &TaskId, mark: impl Into<String>, kind: &'static str, record: Message, event: Event) -> Self {
        Self { id: id.clone(), mark: mark.into(), kind, messages: vec![record], follower: Some(event) }
    }

    pub fn ends_in(&self, topic: &str) -> bool {
        self.messages.last().is_some_and(|last| *last.topic == *topic)
    }

    /// What follows, where its last message lies there.
    pub fn follower(&self, events: &Arc<str>, number: u32, place: (i32, i64)) -> Option<Follower> {
        let (partition, offset) = place;
        let (key, value) = encoded(&Event { position: Some(Position { partition, offset }), ..self.follower.clone()? });
        Some(Follower { topic: events.clone(), partition: number as i32, key, value })
    }

    fn bytes(&self) -> usize {
        self.messages.iter().filter_map(|message| message.value.as_ref()).map(Vec::len).sum()
    }
}

/// Makes shots.
pub struct Gunsmith {
    setup: Arc<TrackerSetup>,
    number: u32,
    events: Arc<str>,
    control: Arc<str>,
    /// Topics that are known to exist.
    topics: HashSet<String>,
    /// What cannot be sent, and why.
    given_up: HashMap<(TaskId, String), String>,
    consumed: Consumed,
    /// When Kafka did not say how far workers are.
    unseen: Option<Instant>,
    /// Tasks whose effects have to wait, with their turn, and until when.
    deferred: HashMap<(TaskId, i64), Instant>,
    /// More is to be looked at before it is known whether one of them has to wait.
    goes_on: bool,
}

impl Gunsmith {
    pub fn new(setup: Arc<TrackerSetup>, number: u32) -> Self {
        let (events, control) = (setup.names.events().into(), setup.names.control().into());
        Self {
            setup,
            number,
            events,
            control,
            topics: HashSet::new(),
            given_up: HashMap::new(),
            consumed: Consumed::default(),
            unseen: None,
            deferred: HashMap::new(),
            goes_on: false,
        }
    }

    /// How many tasks have effects that wait for something else.
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// There is more to do at once, also where there was nothing to fire.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// The next shot for the same becomes a failure.
    pub fn give_up(&mut self, shot: &Shot, error: &BrokerError) {
        self.topics.clear();
        self.given_up.insert((shot.id.clone(), shot.mark.clone()), error.to_string());
    }

    async fn nodes(&self, ids: &[TaskId]) -> Result<Vec<Option<Node>>, String> {
        self.setup.store.nodes(self.number, ids).await.map_err(|error| error.to_string())
    }

    /// Shots for tasks whose timer is due; what the records say meanwhile counts.
    pub async fn timers(&mut self, ids: &[TaskId], most_bytes: u64, now: i64) -> Result<Vec<Shot>, String> {
        let mut bytes = 0;
        let mut due: Vec<(TaskId, Node, Due)> = Vec::new();
        for (id, node) in ids.iter().zip(self.nodes(ids).await?) {
            let Some((node, timer)) = node.and_then(|node| node.timer().map(|timer| (node, timer))) else { continue };
            if timer.due_ms > now {
                continue;
            }
            bytes += u64::from(node.kept);
            if bytes > most_bytes && !due.is_empty() {
                break;
            }
            due.push((id.clone(), node, timer.what));
        }
        let waiting: Vec<TaskId> = due.iter().filter(|(_, _, what)| *what == Due::Release).map(|(id, ..)| id.clone()).collect();
        let mut kept = self.setup.store.kept(self.number, &waiting).await.map_err(|error| error.to_string())?.into_iter();
        let mut shots = Vec::with_capacity(due.len());
        for (id, node, what) in due {
            let shot = match what {
                // None: it was released or dropped a moment ago.
                Due::Release => match kept.next().flatten() {
                    Some(bytes) => self.release(&id, &node, &bytes, now).await?,
                    None => continue,
                },
                Due::Check(number) => self.check(&id, &node, number, now),
                Due::Expire => self.end(&id, &node, Kind::Expired, "it was not started in time", "expire", now),
                Due::Cancel => {
                    self.end(&id, &node, Kind::Cancelled, "cancelled on request, before a worker took it", "cancel", now)
                }
            };
            shots.push(shot);
        }
        // Of a timer that is due no more.
        self.given_up.retain(|(_, mark), _| mark != Shot::TIMER);
        Ok(shots)
    }

    /// The record that was kept goes to its topic.
    async fn release(&mut self, id: &TaskId, node: &Node, kept: &[u8], now: i64) -> Result<Shot, String> {
        let refusal = self.refusal(id, Shot::TIMER, node).await?;
        let Some(record) = KeptRecord::decode(kept).filter(|_| refusal.is_none()) else {
            let why = refusal.unwrap_or_else(|| "its record cannot be read: another version wrote it".to_owned());
            return Ok(self.end(id, node, Kind::Failed, &format!("it could not be released: {why}"), "fail", now));
        };
        let mut headers = record.released(node.attempt);
        renew(&mut headers, node, node.attempt == 0);
        let task = Message {
            topic: self.topic_of(node),
            partition: None,
            key: record.key_bytes().unwrap_or_else(|| id.to_string().into_bytes()),
            value: Some(record.params.text().as_bytes().to_vec()),
            headers,
        };
        let released = Event { attempt: node.attempt, ..Event::new(Kind::Released, id.clone(), node.run, now) };
        Ok(Shot::of_record(id, Shot::TIMER, "release", task, released))
    }

    /// The fold looks at the state that the task has where this event comes to lie.
    fn check(&self, id: &TaskId, node: &Node, number: u32, now: i64) -> Shot {
        let mut event = Event::new(Kind::Checked, id.clone(), node.run, now);
        event.check = Some(number);
        Shot::plain(id, Shot::TIMER, "check", vec![self.event(&event)])
    }

    /// The task ends here.
    fn end(&self, id: &TaskId, node: &Node, kind: Kind, why: &str, name: &'static str, now: i64) -> Shot {
        let event = self.event(&last_word(id, node.run, kind, why, now));
        Shot::plain(id, Shot::TIMER, name, vec![event])
    }

    /// Shots for the effects of these tasks, in their order, and those of them that ask for a walk: what a task wants behind
    /// a walk waits for its end. What waits for workers holds up nothing behind it.
    pub async fn effects(
        &mut self,
        entries: &[Entry],
        is_fired: impl Fn(&TaskId, &str) -> bool,
        most: usize,
        now: i64,
    ) -> Result<(Vec<Shot>, Vec<(TaskId, Effect)>), String> {
        let (mut shots, mut walks, mut checks, mut bytes, mut looking) = (Vec::new(), Vec::new(), 0, 0, Duration::ZERO);
        let mut silent = HashSet::new();
        self.forget_all_but(entries);
        self.goes_on = false;
        let ready = entries.iter().filter(|entry| !self.deferred.contains_key(&(entry.id.clone(), entry.seen_ms)));
        let ids: Vec<TaskId> = ready.map(|entry| entry.id.clone()).collect();
        for (id, node) in ids.iter().zip(self.nodes(&ids).await?) {
            let Some(node) = node else { continue };
            for effect in &node.effects {
                let mark = effect.id();
                if is_fired(id, &mark) || shots.len() >= most {
                    continue;
                }
                match effect.what {
                    Act::Publish { .. } if silent.contains(&place_of(&node)) => self.defer(id, &node),
                    Act::Publish { run } => {
                        let asked = Instant::now();
                        match self.publish(id, &node, *effect, run, now).await? {
                            Some(shot) => shots.push(shot),
                            None => {
                                silent.extend((asked.elapsed() > SILENCE).then(|| place_of(&node)));
                                self.defer(id, &node);
                            }
                        }
                    }
                    Act::Follow { .. } | Act::Tell(_) if bytes > MOST_BYTES => continue,
                    Act::Tell(delivery) => {
                        let shot = self.tell(id, &node, *effect, delivery, now)?;
                        bytes += shot.bytes();
                        shots.push(shot);
                    }
                    Act::Follow { run } => {
                        let shot = self.follow(id, &node, *effect, run, now).await?;
                        bytes += shot.bytes();
                        shots.push(shot);
                    }
                    // What else the task wants comes first; then this one can be left alone.
                    Act::Uncancel { .. } if node.effects.len() > 1 => continue,
                    // Taken back before whoever asked tells the workers, it would stay for ever.
                    Act::Uncancel { due_ms } if due_ms > now => self.defer(id, &node),
                    Act::Uncancel { .. } if self.unseen.is_some_and(|at| at.elapsed() < UNSEEN) => self.defer(id, &node),
                    Act::Uncancel { .. } => {
                        if checks == CHECKS || looking > LOOKING {
                            // Of the others each has its turn, while these are left alone.
                            self.goes_on = true;
                            continue;
                        }
                        checks += 1;
                        let asked = Instant::now();
                        let passed = self.consumed.look(&self.setup, self.number, id, &mark).await?;
                        looking += asked.elapsed();
                        match passed {
                            Passed::Yes => shots.push(self.uncancel(id, *effect, now)),
                            Passed::No => self.defer(id, &node),
                            Passed::Unseen(error) => {
                                tracing::warn!(%error, "how far the workers are cannot be seen; cancels stay as they are for a while");
                                self.unseen = Some(Instant::now());
                                self.defer(id, &node);
                            }
                            // One after the other.
                            Passed::Unknown => (self.goes_on, checks) = (true, CHECKS),
                        }
                    }
                    Act::RetryFailed { .. } | Act::End { .. } | Act::Cancel { .. } => {
                        walks.push((id.clone(), *effect));
                        break;
                    }
                }
            }
        }
        Ok((shots, walks))
    }

    /// What is remembered of tasks that want nothing any more.
    fn forget_all_but(&mut self, entries: &[Entry]) {
        let ids: HashSet<&TaskId> = entries.iter().map(|entry| &entry.id).collect();
        self.consumed.forget_all_but(&ids);
        self.given_up.retain(|(id, mark), _| mark == Shot::TIMER || ids.contains(id));
        self.deferred.retain(|_, until| *until > Instant::now());
    }

    /// Leaves a task alone for a while, unless it wants something else too. To take a cancel back has its own turn, later.
    fn defer(&mut self, id: &TaskId, node: &Node) {
        let others = node.effects.iter().filter(|effect| !matches!(effect.what, Act::Uncancel { .. })).count();
        if let (Some(turn), 0 | 1) = (node.turn(), others) {
            let wait = DEFERRAL.max(PER_DEFERRED.saturating_mul(self.deferred.len() as u32));
            self.deferred.insert((id.clone(), turn), Instant::now() + wait);
        }
    }

    /// The walks that these tasks asked for, in their order, without those that are asked for no more.
    pub async fn walks(&self, asked: &[(TaskId, Effect)], now: i64) -> Result<Vec<Walk>, String> {
        let ids: Vec<TaskId> = asked.iter().map(|(id, _)| id.clone()).collect();
        let begun = asked.iter().zip(self.nodes(&ids).await?).filter_map(|((id, effect), node)| {
            let node = node.filter(|node| node.effects.contains(effect))?;
            Some(self.walk(id, &node, *effect, now))
        });
        Ok(begun.collect())
    }

    fn walk(&self, id: &TaskId, node: &Node, effect: Effect, now: i64) -> Walk {
        let first = match effect.what {
            Act::End { asof } => Some(self.cancel(id, node, asof, true, now)),
            Act::Cancel { asof, subtree } => Some(self.cancel(id, node, asof, subtree, now)),
            _ => None,
        };
        Walk::new(id, node, effect, first, (&self.events, self.number), now)
    }

    /// What workers are told before anything else is done: what runs is to stop soon. The api may have told them already.
    fn cancel(&self, id: &TaskId, node: &Node, asof: i64, subtree: bool, now: i64) -> Message {
        let asks = |kind| matches!(kind, Kind::CancelRequested | Kind::Expired);
        let request = node.history.iter().find(|entry| asks(entry.kind) && entry.offset == asof);
        let reason = request.and_then(|entry| entry.message.clone());
        let cancel = Cancel { v: CONTROL_VERSION, asof, at_ms: now, subtree, reason };
        self.control(id, serde_json::to_string(&cancel).ok())
    }

    fn uncancel(&self, id: &TaskId, effect: Effect, now: i64) -> Shot {
        let messages = vec![self.control(id, None), self.event(&effect_done(id, effect, now))];
        Shot::plain(id, effect.id(), "uncancel", messages)
    }

    /// What the control topic says of the cancel of a task; None: nothing any more.
    fn control(&self, id: &TaskId, value: Option<String>) -> Message {
        let (topic, partition) = (self.control.clone(), Some(CONTROL_PARTITION));
        let (key, value) = (Key::Cancel(id.to_string()).to_string().into_bytes(), value.map(String::into_bytes));
        Message { topic, partition, key, value, headers: Vec::new() }
    }

    /// The task's record once more, for a new run; where it is gone, the run fails. None: it cannot be read at present.
    async fn publish(&mut self, id: &TaskId, node: &Node, effect: Effect, run: u32, now: i64) -> Result<Option<Shot>, String> {
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
    async fn follow(&mut self, id: &TaskId, node: &Node, effect: Effect, run: u32, now: i64) -> Result<Shot, String> {
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
    async fn refusal(&mut self, id: &TaskId, mark: &str, node: &Node) -> Result<Option<String>, String> {
        match self.given_up.remove(&(id.clone(), mark.to_owned())) {
            Some(why) => Ok(Some(why)),
            None => self.missing_topic(node).await,
        }
    }

    /// The record of a run, or the end of the run where there is none; and why.
    fn out(&self, id: &TaskId, effect: Effect, kind: &'static str, run: u32, record: Result<Message, String>, now: i64) -> Shot {
        match record {
            Ok(record) => Shot::of_record(id, effect.id(), kind, record, effect_done(id, effect, now)),
            Err(why) => {
                let mut shot = self.done(id, effect, kind, now);
                shot.messages.insert(0, self.event(&last_word(id, run, Kind::Failed, &why, now)));
                shot
            }
        }
    }

    /// Nothing but that it is done.
    fn done(&self, id: &TaskId, effect: Effect, kind: &'static str, now: i64) -> Shot {
        Shot::plain(id, effect.id(), kind, vec![self.event(&effect_done(id, effect, now))])
    }

    /// The delivery waits at the tracker of its own partition, which publishes it.
    fn tell(&mut self, id: &TaskId, node: &Node, effect: Effect, delivery: Delivery, now: i64) -> Result<Shot, String> {
        let mark = effect.id();
        let lean = self.given_up.remove(&(id.clone(), mark.clone())).is_some();
        let event = delivery_event(id, node, delivery, lean, now)?;
        let told = event.map(|event| {
            let number = partition_of(event.id.root().as_bytes(), self.setup.events_partitions);
            event_message(&self.events, number, &event)
        });
        let messages = told.into_iter().chain([self.event(&effect_done(id, effect, now))]).collect();
        Ok(Shot::plain(id, mark, "tell", messages))
    }

    async fn continuation(&self, id: &TaskId, node: &Node) -> Result<Result<Message, String>, String> {
        let Some(parent) = id.parent_id() else { return Ok(Err("it follows nothing".to_owned())) };
        let followed = self.nodes(std::slice::from_ref(&parent)).await?.pop().flatten();
        let then = followed.and_then(|found| {
            let then = found.thens().nth(number_of(id.segment())?).cloned()?;
            Some((found, then))
        });
        let Some((followed, then)) = then else { return Ok(Err(format!("`{parent}` no longer says what follows it"))) };
        let params = match join::params(&self.setup, self.number, &parent, &followed, &then).await? {
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
            has_strangers: false,
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

    fn again(&self, id: &TaskId, node: &Node, found: Found, run: u32, asof: i64) -> Message {
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
    async fn record_of(&self, id: &TaskId, node: &Node) -> Result<Option<Found>, BrokerError> {
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
    async fn missing_topic(&mut self, node: &Node) -> Result<Option<String>, String> {
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

    fn topic_of(&self, node: &Node) -> Arc<str> {
        self.setup.names.tasks(node.task_type.as_deref().unwrap_or_default()).into()
    }

    fn event(&self, event: &Event) -> Message {
        event_message(&self.events, self.number, event)
    }
}

/// A record that is published again says what its task was changed to since. Only a first attempt can be too late.
fn renew(headers: &mut Vec<(String, Vec<u8>)>, node: &Node, expires: bool) {
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

pub fn event_message(events: &Arc<str>, number: u32, event: &Event) -> Message {
    let ((key, value), partition) = (encoded(event), i32::try_from(number).ok());
    Message { topic: events.clone(), partition, key, value: Some(value), headers: Vec::new() }
}

/// The key and the value of an event's record.
fn encoded(event: &Event) -> (Vec<u8>, Vec<u8>) {
    let mut value = Vec::with_capacity(256);
    event.encode(&mut value);
    (event.id.root().as_bytes().to_vec(), value)
}

pub fn effect_done(id: &TaskId, effect: Effect, now: i64) -> Event {
    let mut event = Event::new(Kind::EffectDone, id.clone(), 1, now);
    event.effect = Some(effect.id().into());
    event
}

fn last_word(id: &TaskId, run: u32, kind: Kind, why: &str, now: i64) -> Event {
    let mut event = Event::new(kind, id.clone(), run, now);
    event.error = Some(Box::new(ErrorInfo::new(&kind.name(), why, 0)));
    event
}
