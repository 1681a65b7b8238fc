//! Makes shots: what is due, what tasks want, and what of that has to wait.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Message, OutboxEntry, effect_done, event_message, last_word};
use crate::broker::BrokerError;
use crate::control::{CONTROL_VERSION, Cancel, ControlKey};
use crate::model::event::{Event, Kind};
use crate::model::outbox::{Effect, EffectKind, KeptRecord, TimerKind, withdrawal_cause};
use crate::model::record::TaskRecord;
use crate::model::record::notifications::Delivery;
use crate::model::task::id::TaskId;
use crate::model::task::partition::partition_of;
use crate::store::Entry;
use crate::tracker::TrackerSetup;
use crate::tracker::outbox::notification::delivery_event;
use crate::tracker::outbox::subtree::SubtreeCommand;
use crate::tracker::outbox::task_records::renew;
use crate::tracker::upkeep::withdrawals::{CancelProgress, Withdrawals};

/// How long what has to wait for Kafka is left alone, so that others get their turn.
const DEFERRAL: Duration = Duration::from_secs(3);
/// However many there are, no more than some in a second are looked at again.
const PER_DEFERRED: Duration = Duration::from_millis(20);
/// A partition that took so long not to give a record is asked for no other one in the same pass.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes of continuations in one transaction, about.
const MOST_BYTES: usize = 8 << 20;
/// The control topic has one partition.
const CONTROL_PARTITION: i32 = 0;

/// Type and partition of a task's record.
fn place_of(node: &TaskRecord) -> (Option<Arc<str>>, Option<i32>) {
    (node.task_type.clone(), node.position.map(|position| position.partition))
}

/// Makes shots.
pub struct OutboxPlanner {
    pub(super) setup: Arc<TrackerSetup>,
    pub(super) number: u32,
    pub(super) events: Arc<str>,
    control: Arc<str>,
    /// Topics that are known to exist.
    pub(super) topics: HashSet<String>,
    /// What cannot be sent, and why.
    pub(super) given_up: HashMap<(TaskId, String), String>,
    withdrawals: Arc<Withdrawals>,
    /// Tasks whose effects have to wait, with their turn, and until when.
    deferred: HashMap<(TaskId, i64), Instant>,
}

impl OutboxPlanner {
    pub fn new(setup: Arc<TrackerSetup>, number: u32, withdrawals: Arc<Withdrawals>) -> Self {
        let (events, control) = (setup.names.events().into(), setup.names.control().into());
        Self {
            setup,
            number,
            events,
            control,
            topics: HashSet::new(),
            given_up: HashMap::new(),
            withdrawals,
            deferred: HashMap::new(),
        }
    }

    /// How many tasks have effects that wait for something else.
    pub fn deferred(&self) -> usize {
        self.deferred.len() + self.withdrawals.len()
    }

    /// The next shot for the same becomes a failure.
    pub fn give_up(&mut self, shot: &OutboxEntry, error: &BrokerError) {
        self.topics.clear();
        self.given_up.insert((shot.id.clone(), shot.mark.clone()), error.to_string());
    }

    pub(super) async fn nodes(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, String> {
        self.setup.store.nodes(self.number, ids).await.map_err(|error| error.to_string())
    }

    /// Shots for tasks whose timer is due; what the records say meanwhile counts.
    pub async fn timers(&mut self, ids: &[TaskId], most_bytes: u64, now: i64) -> Result<Vec<OutboxEntry>, String> {
        let mut bytes = 0;
        let mut due: Vec<(TaskId, TaskRecord, TimerKind)> = Vec::new();
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
        let waiting: Vec<TaskId> =
            due.iter().filter(|(_, _, what)| *what == TimerKind::Release).map(|(id, ..)| id.clone()).collect();
        let mut kept = self.setup.store.kept(self.number, &waiting).await.map_err(|error| error.to_string())?.into_iter();
        let mut shots = Vec::with_capacity(due.len());
        for (id, node, what) in due {
            let shot = match what {
                // None: it was released or dropped a moment ago.
                TimerKind::Release => match kept.next().flatten() {
                    Some(bytes) => self.release(&id, &node, &bytes, now).await?,
                    None => continue,
                },
                TimerKind::Check(number) => self.check(&id, &node, number, now),
                TimerKind::Expire => self.end(&id, &node, Kind::Expired, "it was not started in time", "expire", now),
                TimerKind::Cancel => self.end_cancelled(&id, &node, now),
            };
            shots.push(shot);
        }
        // Of a timer that is due no more.
        self.given_up.retain(|(_, mark), _| mark != OutboxEntry::TIMER);
        Ok(shots)
    }

    /// The record that was kept goes to its topic.
    async fn release(&mut self, id: &TaskId, node: &TaskRecord, kept: &[u8], now: i64) -> Result<OutboxEntry, String> {
        let refusal = self.refusal(id, OutboxEntry::TIMER, node).await?;
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
        Ok(OutboxEntry::of_record(id, OutboxEntry::TIMER, "release", task, released))
    }

    /// The fold looks at the state that the task has where this event comes to lie.
    fn check(&self, id: &TaskId, node: &TaskRecord, number: u32, now: i64) -> OutboxEntry {
        let mut event = Event::new(Kind::Checked, id.clone(), node.run, now);
        event.check = Some(number);
        OutboxEntry::plain(id, OutboxEntry::TIMER, "check", vec![self.event(&event)])
    }

    /// The task ends here.
    fn end(&self, id: &TaskId, node: &TaskRecord, kind: Kind, why: &str, name: &'static str, now: i64) -> OutboxEntry {
        let event = self.event(&last_word(id, node.run, kind, why, now));
        OutboxEntry::plain(id, OutboxEntry::TIMER, name, vec![event])
    }

    /// The task ends here, which no worker has: nobody else would say so.
    fn end_cancelled(&self, id: &TaskId, node: &TaskRecord, now: i64) -> OutboxEntry {
        let request = node.cancelled_by().map(|cancel| cancel.request.clone()).unwrap_or_default();
        let why = request.message(", before a worker took it");
        let event = Event { by: request.by, ..last_word(id, node.run, Kind::Cancelled, &why, now) };
        OutboxEntry::plain(id, OutboxEntry::TIMER, "cancel", vec![self.event(&event)])
    }

    /// Shots for the effects of these tasks, in their order, and those of them that ask for a walk: what a task wants behind
    /// a walk waits for its end. What waits for workers holds up nothing behind it.
    pub async fn effects(
        &mut self,
        entries: &[Entry],
        is_fired: impl Fn(&TaskId, &str) -> bool,
        most: usize,
        now: i64,
    ) -> Result<(Vec<OutboxEntry>, Vec<(TaskId, Effect)>), String> {
        let (mut shots, mut walks, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut silent = HashSet::new();
        self.forget_all_but(entries);
        let ids = self.ready(entries, &is_fired, most);
        for (id, node) in ids.iter().zip(self.nodes(&ids).await?) {
            let Some(node) = node else { continue };
            for effect in &node.effects {
                let mark = effect.id();
                if is_fired(id, &mark) || shots.len() >= most {
                    continue;
                }
                match effect.what {
                    EffectKind::Publish { .. } if silent.contains(&place_of(&node)) => self.defer(id, &node),
                    EffectKind::Publish { run } => {
                        let asked = Instant::now();
                        match self.publish(id, &node, *effect, run, now).await? {
                            Some(shot) => shots.push(shot),
                            None => {
                                silent.extend((asked.elapsed() > SILENCE).then(|| place_of(&node)));
                                self.defer(id, &node);
                            }
                        }
                    }
                    EffectKind::Follow { .. } | EffectKind::NotifyAction(_) if bytes > MOST_BYTES => continue,
                    EffectKind::NotifyAction(delivery) => {
                        let shot = self.tell(id, &node, *effect, delivery, now)?;
                        bytes += shot.bytes();
                        shots.push(shot);
                    }
                    EffectKind::Follow { run } => {
                        let shot = self.follow(id, &node, *effect, run, now).await?;
                        bytes += shot.bytes();
                        shots.push(shot);
                    }
                    // What else the task wants comes first; then this one can be left alone.
                    EffectKind::Uncancel { .. } if node.effects.len() > 1 => continue,
                    // Taken back before whoever asked tells the workers, it would stay for ever.
                    EffectKind::Uncancel { due_ms } if due_ms > now => {
                        let wait = Duration::from_millis(due_ms.abs_diff(now)).min(DEFERRAL);
                        self.defer_for(id, &node, wait);
                    }
                    EffectKind::Uncancel { .. } => {
                        let Some(key) = node.turn().map(|turn| (id.clone(), turn)) else { continue };
                        match self.withdrawals.standing(&key) {
                            Some(CancelProgress::Passed) => {
                                self.withdrawals.forget(&key);
                                shots.push(self.uncancel(id, *effect, now));
                            }
                            Some(CancelProgress::Waiting) => {}
                            None => self.withdrawals.ask(key),
                        }
                    }
                    EffectKind::RetryFailed { .. } | EffectKind::End { .. } | EffectKind::Cancel { .. } => {
                        walks.push((id.clone(), *effect));
                        break;
                    }
                }
            }
        }
        Ok((shots, walks))
    }

    /// The tasks whose effects are to be looked at now: not those that wait, nor, where only a cancel is left to be taken
    /// back, more than can be fired.
    fn ready(&self, entries: &[Entry], is_fired: impl Fn(&TaskId, &str) -> bool, most: usize) -> Vec<TaskId> {
        let mut passed = 0;
        let is_ready = |entry: &&Entry| {
            let key = (entry.id.clone(), entry.seen_ms);
            if self.deferred.contains_key(&key) {
                return false;
            }
            let Some(cause) = withdrawal_cause(entry.seen_ms) else { return true };
            match self.withdrawals.standing(&key) {
                Some(CancelProgress::Waiting) => false,
                Some(CancelProgress::Passed) => {
                    passed += 1;
                    passed <= most
                }
                None => !is_fired(&entry.id, &Effect { cause, what: EffectKind::Uncancel { due_ms: 0 } }.id()),
            }
        };
        entries.iter().filter(is_ready).map(|entry| entry.id.clone()).collect()
    }

    /// What is remembered of tasks that want nothing any more.
    fn forget_all_but(&mut self, entries: &[Entry]) {
        let ids: HashSet<&TaskId> = entries.iter().map(|entry| &entry.id).collect();
        self.withdrawals.forget_all_but(entries);
        self.given_up.retain(|(id, mark), _| mark == OutboxEntry::TIMER || ids.contains(id));
        self.deferred.retain(|_, until| *until > Instant::now());
    }

    /// Leaves a task alone for a while, unless it wants something else too. To take a cancel back has its own turn, later.
    fn defer(&mut self, id: &TaskId, node: &TaskRecord) {
        let others = node.effects.iter().filter(|effect| !matches!(effect.what, EffectKind::Uncancel { .. })).count();
        if let 0 | 1 = others {
            let wait = DEFERRAL.max(PER_DEFERRED.saturating_mul(self.deferred.len() as u32));
            self.defer_for(id, node, wait);
        }
    }

    fn defer_for(&mut self, id: &TaskId, node: &TaskRecord, wait: Duration) {
        if let Some(turn) = node.turn() {
            self.deferred.insert((id.clone(), turn), Instant::now() + wait);
        }
    }

    /// The walks that these tasks asked for, in their order, without those that are asked for no more.
    pub async fn walks(&self, asked: &[(TaskId, Effect)], now: i64) -> Result<Vec<SubtreeCommand>, String> {
        let ids: Vec<TaskId> = asked.iter().map(|(id, _)| id.clone()).collect();
        let begun = asked.iter().zip(self.nodes(&ids).await?).filter_map(|((id, effect), node)| {
            let node = node.filter(|node| node.effects.contains(effect))?;
            Some(self.walk(id, &node, *effect, now))
        });
        Ok(begun.collect())
    }

    fn walk(&self, id: &TaskId, node: &TaskRecord, effect: Effect, now: i64) -> SubtreeCommand {
        let first = match effect.what {
            EffectKind::End { asof } => Some(self.cancel(id, node, asof, true, now)),
            EffectKind::Cancel { asof, subtree } => Some(self.cancel(id, node, asof, subtree, now)),
            _ => None,
        };
        SubtreeCommand::new(id, node, effect, first, (&self.events, self.number), now)
    }

    /// What workers are told before anything else is done: what runs is to stop soon. The api may have told them already.
    fn cancel(&self, id: &TaskId, node: &TaskRecord, asof: i64, subtree: bool, now: i64) -> Message {
        let request = node.cancel.as_deref().filter(|cancel| cancel.asof == asof).map(|cancel| &cancel.request);
        let reason = request.and_then(|request| request.reason.as_deref()).map(str::to_owned);
        let by = request.and_then(|request| request.by.as_deref()).map(str::to_owned);
        let cancel = Cancel { v: CONTROL_VERSION, asof, at_ms: now, subtree, reason, by };
        self.control(id, serde_json::to_string(&cancel).ok())
    }

    fn uncancel(&self, id: &TaskId, effect: Effect, now: i64) -> OutboxEntry {
        let messages = vec![self.control(id, None), self.event(&effect_done(id, effect, now))];
        OutboxEntry::plain(id, effect.id(), "uncancel", messages)
    }

    /// What the control topic says of the cancel of a task; None: nothing any more.
    fn control(&self, id: &TaskId, value: Option<String>) -> Message {
        let (topic, partition) = (self.control.clone(), Some(CONTROL_PARTITION));
        let (key, value) = (ControlKey::Cancel(id.to_string()).to_string().into_bytes(), value.map(String::into_bytes));
        Message { topic, partition, key, value, headers: Vec::new() }
    }

    /// The delivery waits at the tracker of its own partition, which publishes it.
    fn tell(
        &mut self,
        id: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        delivery: Delivery,
        now: i64,
    ) -> Result<OutboxEntry, String> {
        let mark = effect.id();
        let lean = self.given_up.remove(&(id.clone(), mark.clone())).is_some();
        let event = delivery_event(id, node, delivery, lean, now)?;
        let told = event.map(|event| {
            let number = partition_of(event.id.root().as_bytes(), self.setup.events_partitions);
            event_message(&self.events, number, &event)
        });
        let messages = told.into_iter().chain([self.event(&effect_done(id, effect, now))]).collect();
        Ok(OutboxEntry::plain(id, mark, "tell", messages))
    }

    pub(super) fn event(&self, event: &Event) -> Message {
        event_message(&self.events, self.number, event)
    }
}
