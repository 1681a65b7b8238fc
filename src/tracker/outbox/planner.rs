//! Plans outbox entries for due timers and pending effects, and defers those that have to wait.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Message, OutboxEntry, effect_done, event_message, terminal_event};
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
use crate::tracker::outbox::task_records::apply_patch;
use crate::tracker::upkeep::withdrawals::{CancelProgress, Withdrawals};

/// Minimum deferral of an effect that waits for Kafka, so that others get their turn.
const DEFERRAL: Duration = Duration::from_secs(3);
/// Deferral per deferred task, which bounds the rate of repeated attempts.
const DEFERRAL_PER_TASK: Duration = Duration::from_millis(20);
/// Duration after which a failed read excludes its partition from further reads in the same pass.
const MAX_READ_TIME: Duration = Duration::from_secs(1);
/// Approximate maximum bytes of continuations per transaction.
const MAX_BYTES: usize = 8 << 20;
/// Partition of the control topic, which has only one.
const CONTROL_PARTITION: i32 = 0;

/// Type and partition of a task's record.
fn location(node: &TaskRecord) -> (Option<Arc<str>>, Option<i32>) {
    (node.task_type.clone(), node.position.map(|position| position.partition))
}

/// Plans outbox entries of one events partition.
pub struct OutboxPlanner {
    pub(super) setup: Arc<TrackerSetup>,
    pub(super) number: u32,
    pub(super) events: Arc<str>,
    control: Arc<str>,
    /// Topics known to exist.
    pub(super) topics: HashSet<String>,
    /// Timers and effects whose records cannot be sent, with the reason.
    pub(super) unsendable: HashMap<(TaskId, String), String>,
    withdrawals: Arc<Withdrawals>,
    /// Deferred tasks with their turn, and the end of the deferral.
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
            unsendable: HashMap::new(),
            withdrawals,
            deferred: HashMap::new(),
        }
    }

    /// Number of tasks whose effects are deferred.
    pub fn deferred(&self) -> usize {
        self.deferred.len() + self.withdrawals.len()
    }

    /// Records that an entry cannot be sent; its next plan becomes a failure event.
    pub fn mark_unsendable(&mut self, entry: &OutboxEntry, error: &BrokerError) {
        self.topics.clear();
        self.unsendable.insert((entry.id.clone(), entry.dedup_key.clone()), error.to_string());
    }

    pub(super) async fn nodes(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, String> {
        self.setup.store.nodes(self.number, ids).await.map_err(|error| error.to_string())
    }

    /// Plans entries for tasks with a due timer, according to their current records.
    pub async fn timers(&mut self, ids: &[TaskId], max_bytes: u64, now: i64) -> Result<Vec<OutboxEntry>, String> {
        let mut bytes = 0;
        let mut due: Vec<(TaskId, TaskRecord, TimerKind)> = Vec::new();
        for (id, node) in ids.iter().zip(self.nodes(ids).await?) {
            let Some((node, timer)) = node.and_then(|node| node.timer().map(|timer| (node, timer))) else { continue };
            if timer.due_ms > now {
                continue;
            }
            bytes += u64::from(node.kept);
            if bytes > max_bytes && !due.is_empty() {
                break;
            }
            due.push((id.clone(), node, timer.what));
        }
        let waiting: Vec<TaskId> =
            due.iter().filter(|(_, _, what)| *what == TimerKind::Release).map(|(id, ..)| id.clone()).collect();
        let mut kept = self.setup.store.kept(self.number, &waiting).await.map_err(|error| error.to_string())?.into_iter();
        let mut planned = Vec::with_capacity(due.len());
        for (id, node, what) in due {
            let entry = match what {
                // The record is missing if the task was released or dropped a moment ago.
                TimerKind::Release => match kept.next().flatten() {
                    Some(bytes) => self.release(&id, &node, &bytes, now).await?,
                    None => continue,
                },
                TimerKind::Check(number) => self.check(&id, &node, number, now),
                TimerKind::Expire => self.end(&id, &node, Kind::Expired, "it was not started in time", "expire", now),
                TimerKind::Cancel => self.end_cancelled(&id, &node, now),
            };
            planned.push(entry);
        }
        // Forget timers that are no longer due.
        self.unsendable.retain(|(_, dedup_key), _| dedup_key != OutboxEntry::TIMER);
        Ok(planned)
    }

    /// Publishes the deferred record to its topic.
    async fn release(&mut self, id: &TaskId, node: &TaskRecord, kept: &[u8], now: i64) -> Result<OutboxEntry, String> {
        let unsendable_reason = self.unsendable_reason(id, OutboxEntry::TIMER, node).await?;
        let Some(record) = KeptRecord::decode(kept).filter(|_| unsendable_reason.is_none()) else {
            let why = unsendable_reason.unwrap_or_else(|| "its record cannot be read: another version wrote it".to_owned());
            return Ok(self.end(id, node, Kind::Failed, &format!("it could not be released: {why}"), "fail", now));
        };
        let mut headers = record.released(node.attempt);
        apply_patch(&mut headers, node, node.attempt == 0);
        let task = Message {
            topic: self.topic_of(node),
            partition: None,
            key: record.key_bytes().unwrap_or_else(|| id.to_string().into_bytes()),
            value: Some(record.params.text().as_bytes().to_vec()),
            headers,
        };
        let released = Event { attempt: node.attempt, ..Event::new(Kind::Released, id.clone(), node.run, now) };
        Ok(OutboxEntry::record_and_event(id, OutboxEntry::TIMER, "release", task, released))
    }

    /// Publishes a state check. The fold evaluates the task's state at the offset of this event.
    fn check(&self, id: &TaskId, node: &TaskRecord, number: u32, now: i64) -> OutboxEntry {
        let mut event = Event::new(Kind::Checked, id.clone(), node.run, now);
        event.check = Some(number);
        OutboxEntry::plain(id, OutboxEntry::TIMER, "check", vec![self.event(&event)])
    }

    /// Ends the task.
    fn end(&self, id: &TaskId, node: &TaskRecord, kind: Kind, why: &str, name: &'static str, now: i64) -> OutboxEntry {
        let event = self.event(&terminal_event(id, node.run, kind, why, now));
        OutboxEntry::plain(id, OutboxEntry::TIMER, name, vec![event])
    }

    /// Ends a cancelled task that no worker holds, and whose end no worker reports.
    fn end_cancelled(&self, id: &TaskId, node: &TaskRecord, now: i64) -> OutboxEntry {
        let request = node.cancelled_by().map(|cancel| cancel.request.clone()).unwrap_or_default();
        let why = request.message(", before a worker took it");
        let event = Event { by: request.by, ..terminal_event(id, node.run, Kind::Cancelled, &why, now) };
        OutboxEntry::plain(id, OutboxEntry::TIMER, "cancel", vec![self.event(&event)])
    }

    /// Plans entries for the effects of these tasks, in order, and collects subtree commands: effects behind a
    /// subtree command wait for its end. Effects that wait for workers do not block those behind them.
    pub async fn effects(
        &mut self,
        entries: &[Entry],
        is_published: impl Fn(&TaskId, &str) -> bool,
        limit: usize,
        now: i64,
    ) -> Result<(Vec<OutboxEntry>, Vec<(TaskId, Effect)>), String> {
        let (mut planned, mut subtree_commands, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut unresponsive = HashSet::new();
        self.retain_only(entries);
        let ids = self.ready(entries, &is_published, limit);
        for (id, node) in ids.iter().zip(self.nodes(&ids).await?) {
            let Some(node) = node else { continue };
            for effect in &node.effects {
                let dedup_key = effect.id();
                if is_published(id, &dedup_key) || planned.len() >= limit {
                    continue;
                }
                match effect.what {
                    EffectKind::Publish { .. } if unresponsive.contains(&location(&node)) => self.defer(id, &node),
                    EffectKind::Publish { run } => {
                        let asked = Instant::now();
                        match self.republish(id, &node, *effect, run, now).await? {
                            Some(entry) => planned.push(entry),
                            None => {
                                unresponsive.extend((asked.elapsed() > MAX_READ_TIME).then(|| location(&node)));
                                self.defer(id, &node);
                            }
                        }
                    }
                    EffectKind::Follow { .. } | EffectKind::NotifyAction(_) if bytes > MAX_BYTES => continue,
                    EffectKind::NotifyAction(delivery) => {
                        let entry = self.notify(id, &node, *effect, delivery, now)?;
                        bytes += entry.bytes();
                        planned.push(entry);
                    }
                    EffectKind::Follow { run } => {
                        let entry = self.start_continuation(id, &node, *effect, run, now).await?;
                        bytes += entry.bytes();
                        planned.push(entry);
                    }
                    // Other effects go first, so that the task can then be deferred.
                    EffectKind::Uncancel { .. } if node.effects.len() > 1 => continue,
                    // Withdrawn before the api has written the cancel, the late control record would stay forever.
                    EffectKind::Uncancel { due_ms } if due_ms > now => {
                        let wait = Duration::from_millis(due_ms.abs_diff(now)).min(DEFERRAL);
                        self.defer_for(id, &node, wait);
                    }
                    EffectKind::Uncancel { .. } => {
                        let Some(key) = node.turn().map(|turn| (id.clone(), turn)) else { continue };
                        match self.withdrawals.progress(&key) {
                            Some(CancelProgress::Passed) => {
                                self.withdrawals.forget(&key);
                                planned.push(self.uncancel(id, *effect, now));
                            }
                            Some(CancelProgress::Waiting) => {}
                            None => self.withdrawals.request(key),
                        }
                    }
                    EffectKind::RetryFailed { .. } | EffectKind::End { .. } | EffectKind::Cancel { .. } => {
                        subtree_commands.push((id.clone(), *effect));
                        break;
                    }
                }
            }
        }
        Ok((planned, subtree_commands))
    }

    /// Selects the tasks to plan now: neither deferred ones nor, if only the withdrawal of a cancel is left, more
    /// than can be published.
    fn ready(&self, entries: &[Entry], is_published: impl Fn(&TaskId, &str) -> bool, limit: usize) -> Vec<TaskId> {
        let mut withdrawn = 0;
        let is_ready = |entry: &&Entry| {
            let key = (entry.id.clone(), entry.seen_ms);
            if self.deferred.contains_key(&key) {
                return false;
            }
            let Some(cause) = withdrawal_cause(entry.seen_ms) else { return true };
            match self.withdrawals.progress(&key) {
                Some(CancelProgress::Waiting) => false,
                Some(CancelProgress::Passed) => {
                    withdrawn += 1;
                    withdrawn <= limit
                }
                None => !is_published(&entry.id, &Effect { cause, what: EffectKind::Uncancel { due_ms: 0 } }.id()),
            }
        };
        entries.iter().filter(is_ready).map(|entry| entry.id.clone()).collect()
    }

    /// Drops state of tasks without pending effects.
    fn retain_only(&mut self, entries: &[Entry]) {
        let ids: HashSet<&TaskId> = entries.iter().map(|entry| &entry.id).collect();
        self.withdrawals.retain_only(entries);
        self.unsendable.retain(|(id, dedup_key), _| dedup_key == OutboxEntry::TIMER || ids.contains(id));
        self.deferred.retain(|_, until| *until > Instant::now());
    }

    /// Defers a task unless it has other effects. The withdrawal of a cancel has a turn of its own and does not
    /// count.
    fn defer(&mut self, id: &TaskId, node: &TaskRecord) {
        let others = node.effects.iter().filter(|effect| !matches!(effect.what, EffectKind::Uncancel { .. })).count();
        if let 0 | 1 = others {
            let wait = DEFERRAL.max(DEFERRAL_PER_TASK.saturating_mul(self.deferred.len() as u32));
            self.defer_for(id, node, wait);
        }
    }

    fn defer_for(&mut self, id: &TaskId, node: &TaskRecord, wait: Duration) {
        if let Some(turn) = node.turn() {
            self.deferred.insert((id.clone(), turn), Instant::now() + wait);
        }
    }

    /// Builds the requested subtree commands, in order, without those that are no longer pending.
    pub async fn subtree_commands(&self, asked: &[(TaskId, Effect)], now: i64) -> Result<Vec<SubtreeCommand>, String> {
        let ids: Vec<TaskId> = asked.iter().map(|(id, _)| id.clone()).collect();
        let begun = asked.iter().zip(self.nodes(&ids).await?).filter_map(|((id, effect), node)| {
            let node = node.filter(|node| node.effects.contains(effect))?;
            Some(self.subtree_command(id, &node, *effect, now))
        });
        Ok(begun.collect())
    }

    fn subtree_command(&self, id: &TaskId, node: &TaskRecord, effect: Effect, now: i64) -> SubtreeCommand {
        let first = match effect.what {
            EffectKind::End { asof } => Some(self.cancel(id, node, asof, true, now)),
            EffectKind::Cancel { asof, subtree } => Some(self.cancel(id, node, asof, subtree, now)),
            _ => None,
        };
        SubtreeCommand::new(id, node, effect, first, (&self.events, self.number), now)
    }

    /// Builds the cancel record for workers, published before the subtree command starts so that running tasks stop
    /// soon. The api may have published it already.
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

    /// Builds the control record of a task's cancel; `None` deletes it.
    fn control(&self, id: &TaskId, value: Option<String>) -> Message {
        let (topic, partition) = (self.control.clone(), Some(CONTROL_PARTITION));
        let (key, value) = (ControlKey::Cancel(id.to_string()).to_string().into_bytes(), value.map(String::into_bytes));
        Message { topic, partition, key, value, headers: Vec::new() }
    }

    /// Publishes a delivery to its own partition, whose tracker releases it.
    fn notify(
        &mut self,
        id: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        delivery: Delivery,
        now: i64,
    ) -> Result<OutboxEntry, String> {
        let dedup_key = effect.id();
        let lean = self.unsendable.remove(&(id.clone(), dedup_key.clone())).is_some();
        let event = delivery_event(id, node, delivery, lean, now)?;
        let message = event.map(|event| {
            let number = partition_of(event.id.root().as_bytes(), self.setup.events_partitions);
            event_message(&self.events, number, &event)
        });
        let messages = message.into_iter().chain([self.event(&effect_done(id, effect, now))]).collect();
        Ok(OutboxEntry::plain(id, dedup_key, "tell", messages))
    }

    pub(super) fn event(&self, event: &Event) -> Message {
        event_message(&self.events, self.number, event)
    }
}
