//! Plans outbox entries for due timers and pending effects, and defers those that must wait.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::BrokerError;
use kafleet_fleet::publish::TracedEvent;
use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{Announcement, Event, Payload};
use kafleet_model::outbox::{Effect, EffectKind, RecordCopy, TimerKind};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::notifications::NotificationDelivery;
use kafleet_model::record::state::State;
use kafleet_model::retry::RunUsage;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, StoreError};
use kafleet_telemetry::otel::followed;
use tokio::time::Instant;

use super::control_records::{cancel_record, first_cancel_record};
use super::deferrals::Deferrals;
use super::entry::{OutboxEntry, OutboxMessage, effect_done, event_message, terminal_event};
use crate::error::TrackerError;
use crate::outbox::deferred_records::{DeferredRecord, deferred_records};
use crate::outbox::notification::{DeliveryOptions, delivery_event};
use crate::outbox::subtree::SubtreeCommand;
use crate::outbox::task_records::apply_patch;
use crate::outbox::unwritable::UnwritableTopics;
use crate::outbox::withdrawals::Withdrawals;
use crate::recorded_groups::RecordedGroups;
use crate::setup::TrackerSetup;

/// Duration of a failed read after which its partition is excluded from further reads in the same pass.
const MAX_READ_TIME: Duration = Duration::from_secs(1);
/// Approximate maximum bytes of retried tasks, continuations and notifications per transaction.
const MAX_BYTES: usize = 8 << 20;

/// Offset of the ask whose record is released; `None`: the task is not unique, or has run before.
fn ask_of(task: &TaskRecord) -> Option<i64> {
    let is_first = task.own == State::Scheduled && task.used() == RunUsage::default();
    task.definition.record_event_offset.filter(|_| task.definition.is_unique() && is_first)
}

/// Announcement of a record that is released: a newer ask may replace it before the event is read.
fn released_announcement(task: &TaskRecord) -> Announcement {
    Announcement {
        task_type: task.task_type.clone().unwrap_or_default(),
        created_at_ms: task.times.created_at_ms.unwrap_or_default(),
        position: None,
        hash: task.definition.hash.clone(),
        policy: task.definition.policy.clone(),
        asof: Some(task.requests.asof).filter(|asof| *asof >= 0),
        trace: task.definition.trace,
    }
}

/// Type and partition of a task's record.
type Location = (Option<Arc<str>>, Option<i32>);

fn location(task: &TaskRecord) -> Location {
    (task.task_type.clone(), task.definition.position.map(|position| position.partition))
}

/// Plans outbox entries of one events partition.
pub(crate) struct OutboxPlanner {
    pub(super) setup: Arc<TrackerSetup>,
    pub(super) number: u32,
    pub(super) events: Arc<str>,
    control: Arc<str>,
    /// Topics known to exist.
    pub(super) topics: HashSet<String>,
    /// Refused entries, with the reason and the number of refusals, until they are published in another form.
    pub(super) unsendable: HashMap<(TaskId, String), (BrokerError, u32)>,
    deferrals: Deferrals,
    pub(super) unwritable: UnwritableTopics,
    /// Masks of types, for notifications.
    groups: Arc<RecordedGroups>,
}

/// Entries and subtree commands planned in one pass over the effects.
#[derive(Default)]
struct Pass {
    entries: Vec<OutboxEntry>,
    commands: Vec<(TaskId, Effect)>,
    /// Bytes of task records and notifications.
    bytes: usize,
    /// Partitions without an answer to a read in this pass.
    unresponsive: HashSet<Location>,
}

impl Pass {
    fn count_bytes(&mut self, entry: OutboxEntry) -> OutboxEntry {
        self.bytes += entry.bytes();
        entry
    }
}

impl OutboxPlanner {
    pub(crate) fn new(
        setup: Arc<TrackerSetup>,
        number: u32,
        withdrawals: Arc<Withdrawals>,
        groups: Arc<RecordedGroups>,
    ) -> Self {
        let (events, control) = (setup.topology.names.events().into(), setup.topology.names.control().into());
        Self {
            setup,
            number,
            events,
            control,
            topics: HashSet::new(),
            unsendable: HashMap::new(),
            deferrals: Deferrals::new(withdrawals),
            unwritable: UnwritableTopics::default(),
            groups,
        }
    }

    /// Number of tasks whose timers or effects are deferred.
    pub(crate) fn deferred(&self) -> usize {
        self.deferrals.len() + self.unwritable.held_timers()
    }

    /// Records that an entry cannot be sent; its next plan becomes a failure event.
    pub(crate) fn mark_unsendable(&mut self, entry: &OutboxEntry, error: &BrokerError) {
        self.topics.clear();
        let key = (entry.id.clone(), entry.dedup_key.clone());
        let refusals = self.unsendable.get(&key).map_or(0, |(_, refusals)| *refusals);
        self.unsendable.insert(key, (error.clone(), refusals + 1));
    }

    pub(super) async fn task_records(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        self.setup.store.task_records(self.number, ids).await
    }

    /// Plans entries for tasks with a due timer, according to their current records.
    pub(crate) async fn timers(
        &mut self,
        ids: &[TaskId],
        max_bytes: u64,
        now: i64,
    ) -> Result<Vec<OutboxEntry>, TrackerError> {
        let mut bytes = 0;
        let mut due: Vec<(TaskId, TaskRecord, TimerKind)> = Vec::new();
        for (id, task) in ids.iter().zip(self.task_records(ids).await?) {
            let Some((task, timer)) = task.and_then(|task| task.timer().map(|timer| (task, timer))) else { continue };
            if timer.due_ms > now {
                continue;
            }
            if timer.kind == TimerKind::Release {
                let topic = self.topic_of(&task);
                if self.unwritable.contains(&topic) {
                    self.unwritable.hold_timer(id, timer.due_ms, topic);
                    continue;
                }
            }
            bytes += u64::from(task.deferral.record_bytes);
            if bytes > max_bytes && !due.is_empty() {
                break;
            }
            due.push((id.clone(), task, timer.kind));
        }
        let mut records = deferred_records(&self.setup, (&self.events, self.number), &due).await?;
        let mut planned = Vec::with_capacity(due.len());
        for (id, task, kind) in due {
            let entry = match kind {
                // The record is missing if the task was released or dropped a moment ago, or if it cannot be read now.
                TimerKind::Release => match records.remove(&id) {
                    Some(record) => self.release(&id, &task, record, now).await?,
                    None => continue,
                },
                TimerKind::Check(number) => self.timer_entry(&id, "check", &checked_event(&id, &task, number, now))?,
                TimerKind::Expire => {
                    let event = terminal_event(&id, task.run, Payload::Expired, "it was not started in time", now);
                    self.timer_entry(&id, "expire", &event)?
                }
                TimerKind::Cancel => self.timer_entry(&id, "cancel", &cancelled_event(&id, &task, now))?,
            };
            planned.push(entry);
        }
        // Drop timers that are no longer due.
        self.unsendable.retain(|(id, dedup_key), _| dedup_key != OutboxEntry::TIMER || ids.contains(id));
        Ok(planned)
    }

    /// Publishes the deferred record to its topic.
    async fn release(
        &mut self,
        id: &TaskId,
        task_record: &TaskRecord,
        deferred: DeferredRecord,
        now: i64,
    ) -> Result<OutboxEntry, TrackerError> {
        let record = match self.unsendable_reason(id, OutboxEntry::TIMER, task_record).await? {
            Some(reason) => Err(reason),
            None => deferred,
        };
        let record = match record {
            Ok(record) => record,
            Err(reason) => {
                let reason = format!("it could not be released: {reason}");
                return Ok(self.timer_entry(
                    id,
                    "fail",
                    &terminal_event(id, task_record.run, Payload::Failed, &reason, now),
                )?);
            }
        };
        let mut headers = record.released(task_record.used());
        apply_patch(&mut headers, task_record, task_record.used() == RunUsage::default());
        let ask = ask_of(task_record);
        if ask.is_some() {
            RecordCopy::set_decided(&mut headers, id);
        }
        let task = OutboxMessage {
            topic: self.topic_of(task_record),
            partition: None,
            key: record.key_bytes().unwrap_or_else(|| id.to_string().into_bytes()),
            value: Some(record.params.text().as_bytes().to_vec()),
            headers,
        };
        let payload = Payload::Released { position: None, waits: task_record.deferral.waits, ask };
        let task_announced = ask.map(|_| Box::new(released_announcement(task_record)));
        let released = Event {
            attempt: task_record.attempt,
            task: task_announced,
            ..Event::new(payload, id.clone(), task_record.run, now)
        };
        Ok(OutboxEntry::record_and_event(id, OutboxEntry::TIMER, "release", task, released))
    }

    /// Publishes the event of a timer.
    fn timer_entry(&self, id: &TaskId, kind: &'static str, event: &Event) -> Result<OutboxEntry, EncodeError> {
        Ok(OutboxEntry::plain(id, OutboxEntry::TIMER, kind, vec![self.event(event)?]))
    }

    /// Plans entries for the effects of these tasks, in order, and collects subtree commands: effects after a subtree
    /// command wait for its end. Effects that wait for workers do not block later ones.
    pub(crate) async fn effects(
        &mut self,
        entries: &[Entry],
        is_published: impl Fn(&TaskId, &str) -> bool,
        limit: usize,
        now: i64,
    ) -> Result<(Vec<OutboxEntry>, Vec<(TaskId, Effect)>), TrackerError> {
        let mut pass = Pass::default();
        self.retain_only(entries);
        let ids = self.deferrals.ready(entries, &is_published, limit);
        for (id, task) in ids.iter().zip(self.task_records(&ids).await?) {
            let Some(task) = task else { continue };
            for effect in &task.effects {
                if is_published(id, &effect.id()) || pass.entries.len() >= limit {
                    continue;
                }
                if is_subtree_command(effect.kind) {
                    pass.commands.push((id.clone(), *effect));
                    break;
                }
                let entry = self.effect(id, &task, *effect, &mut pass, now).await?;
                pass.entries.extend(entry);
            }
        }
        Ok((pass.entries, pass.commands))
    }

    /// Plans the entry of one effect; `None` if it must wait.
    async fn effect(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        pass: &mut Pass,
        now: i64,
    ) -> Result<Option<OutboxEntry>, TrackerError> {
        let is_record = matches!(effect.kind, EffectKind::Publish { .. } | EffectKind::PublishContinuation { .. });
        if (is_record || effect.is_notification()) && pass.bytes > MAX_BYTES {
            return Ok(None);
        }
        if is_record && self.unwritable.contains(&self.topic_of(task)) {
            self.deferrals.defer(id, task);
            return Ok(None);
        }
        match effect.kind {
            EffectKind::Publish { run } => {
                let entry = self.republish_or_defer(id, task, effect, run, pass, now).await?;
                Ok(entry.map(|entry| pass.count_bytes(entry)))
            }
            EffectKind::NotifyAction(delivery) => {
                let Ok(task) = without_masked(&self.groups, task) else {
                    self.deferrals.defer(id, task);
                    return Ok(None);
                };
                Ok(Some(pass.count_bytes(self.notify(id, &task, effect, delivery, now)?)))
            }
            EffectKind::PublishContinuation { run } => {
                Ok(Some(pass.count_bytes(self.start_continuation(id, task, effect, run, now).await?)))
            }
            EffectKind::WithdrawCancel { due_ms } => self.withdraw_cancel(id, task, effect, due_ms, now),
            EffectKind::RetryFailed { .. } | EffectKind::End { .. } | EffectKind::Cancel { .. } => Ok(None),
        }
    }

    /// Plans a retry, or defers it if the task's record cannot be read now.
    async fn republish_or_defer(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        run: u32,
        pass: &mut Pass,
        now: i64,
    ) -> Result<Option<OutboxEntry>, TrackerError> {
        let mut entry = None;
        if !pass.unresponsive.contains(&location(task)) {
            let asked = Instant::now();
            entry = self.republish(id, task, effect, run, now).await?;
            if entry.is_none() && asked.elapsed() > MAX_READ_TIME {
                pass.unresponsive.insert(location(task));
            }
        }
        if entry.is_none() {
            self.deferrals.defer(id, task);
        }
        Ok(entry)
    }

    /// Plans the withdrawal of a cancel once workers have passed it.
    fn withdraw_cancel(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        due_ms: i64,
        now: i64,
    ) -> Result<Option<OutboxEntry>, TrackerError> {
        // Other effects go first, so that the task can then be deferred.
        if task.effects.len() > 1 {
            return Ok(None);
        }
        // If the cancel were withdrawn before the API server has written it, the late control record would stay
        // forever.
        if due_ms > now {
            self.deferrals.defer_until(id, task, Duration::from_millis(due_ms.abs_diff(now)));
            return Ok(None);
        }
        if !self.deferrals.take_passed(id, task) {
            return Ok(None);
        }
        let messages = vec![cancel_record(&self.control, id, None), self.event(&effect_done(id, effect, now))?];
        Ok(Some(OutboxEntry::plain(id, effect.id(), "uncancel", messages)))
    }

    /// Drops state of tasks without pending effects.
    pub(crate) fn retain_only(&mut self, entries: &[Entry]) {
        let ids: HashSet<&TaskId> = entries.iter().map(|entry| &entry.id).collect();
        self.deferrals.retain_only(entries);
        self.unsendable.retain(|(id, dedup_key), _| dedup_key == OutboxEntry::TIMER || ids.contains(id));
    }

    /// Builds the requested subtree commands, in order, without those that are no longer pending.
    pub(crate) async fn subtree_commands(
        &self,
        effects: &[(TaskId, Effect)],
        now: i64,
    ) -> Result<Vec<SubtreeCommand>, TrackerError> {
        let ids: Vec<TaskId> = effects.iter().map(|(id, _)| id.clone()).collect();
        let begun = effects.iter().zip(self.task_records(&ids).await?).filter_map(|((id, effect), task)| {
            let task = task.filter(|task| task.effects.contains(effect))?;
            Some(self.subtree_command(id, &task, *effect, now).map_err(TrackerError::from))
        });
        begun.collect()
    }

    fn subtree_command(
        &self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        now: i64,
    ) -> Result<SubtreeCommand, EncodeError> {
        let scope = match effect.kind {
            EffectKind::End { asof } => Some((asof, true)),
            EffectKind::Cancel { asof, subtree } => Some((asof, subtree)),
            _ => None,
        };
        let first = scope.map(|scope| first_cancel_record(&self.control, id, task, scope, now));
        let first = first.transpose()?;
        SubtreeCommand::new(id, task, effect, first, (&self.events, self.number), now)
    }

    /// Publishes a delivery to its own partition, whose tracker releases it.
    fn notify(
        &mut self,
        id: &TaskId,
        task: &TaskRecord,
        effect: Effect,
        delivery: NotificationDelivery,
        now: i64,
    ) -> Result<OutboxEntry, TrackerError> {
        let dedup_key = effect.id();
        let refusals = self.unsendable.get(&(id.clone(), dedup_key.clone())).map_or(0, |(_, refusals)| *refusals);
        let origin = followed(self.setup.tracer.as_ref(), id, delivery.run, task.definition.trace);
        let traced = self.setup.tracer.as_ref().map(|tracer| (tracer, &self.setup.topology.names));
        let event = if refusals < 2 {
            delivery_or_nothing(id, task, delivery, (refusals > 0, origin, traced), now)
        } else {
            tracing::error!(task = %id, "a notification is refused, even without the result of its task, and is dropped");
            None
        };
        let (event, span) = event.unzip();
        let message =
            event.map(|event| event_message(&self.events, self.setup.topology.partition_of(&event.id), &event));
        let message = message.transpose()?;
        let messages = message.into_iter().chain([self.event(&effect_done(id, effect, now))?]).collect();
        Ok(OutboxEntry::plain(id, dedup_key, "notification", messages).with_span(span.flatten()))
    }

    pub(super) fn event(&self, event: &Event) -> Result<OutboxMessage, EncodeError> {
        event_message(&self.events, self.number, event)
    }
}

/// Builds the event of a delivery. If that is impossible, as for a result that is nested too deeply to be part of another
/// document, leaves out the result and the options. If that is impossible too, the delivery is dropped with an error in the
/// log: no delivery may keep the other effects of its partition from being published.
fn delivery_or_nothing(
    id: &TaskId,
    task: &TaskRecord,
    delivery: NotificationDelivery,
    (lean, origin, traced): DeliveryOptions<'_>,
    now: i64,
) -> Option<TracedEvent> {
    let build = |lean| delivery_event(id, task, delivery, (lean, origin, traced), now);
    let full = if lean {
        build(true)
    } else {
        build(false).or_else(|error| {
            tracing::warn!(task = %id, %error, "a notification is sent without the result and the options of its task");
            build(true)
        })
    };
    full.unwrap_or_else(|error| {
        tracing::error!(task = %id, %error, "a notification cannot be built and is dropped");
        None
    })
}

fn is_subtree_command(kind: EffectKind) -> bool {
    matches!(kind, EffectKind::RetryFailed { .. } | EffectKind::End { .. } | EffectKind::Cancel { .. })
}

/// Event of a state check. The fold evaluates the task's state at the offset of this event.
fn checked_event(id: &TaskId, task: &TaskRecord, number: u32, now: i64) -> Event {
    Event::new(Payload::Checked { check: Some(number) }, id.clone(), task.run, now)
}

/// Terminal event of a cancelled task that no worker holds, so that no worker reports its end.
fn cancelled_event(id: &TaskId, task: &TaskRecord, now: i64) -> Event {
    let request = task.cancelled_by().map(|cancel| cancel.request.clone()).unwrap_or_default();
    let has_started = task.attempt > 0 || task.times.started_at_ms.is_some();
    let when = if has_started { ", before a worker took it again" } else { ", before a worker took it" };
    let error = request.message(when);
    Event { by: request.by, ..terminal_event(id, task.run, Payload::Cancelled, &error, now) }
}

/// Returns a record without the values of its result that its type masks: a notification leaves the fleet.
fn without_masked<'a>(groups: &RecordedGroups, task: &'a TaskRecord) -> Result<Cow<'a, TaskRecord>, BrokerError> {
    let Some((task_type, result)) = task.task_type.as_deref().zip(task.outcome.output.as_ref()) else {
        return Ok(Cow::Borrowed(task));
    };
    let mask = groups.mask(task_type)?;
    if mask.is_empty() {
        return Ok(Cow::Borrowed(task));
    }
    let mut masked = task.clone();
    masked.outcome.output = Some(result.masked(&mask));
    Ok(Cow::Owned(masked))
}
