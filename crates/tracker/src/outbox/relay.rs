//! Publishes due timers and effects of one events partition, exactly once each: the outbox pattern, with Kafka as
//! source and target.
//!
//! The fold stores timers and effects as data. The relay reads those that are due, the planner turns them into records,
//! and a Kafka transaction contains these records and the event that marks them as done; folding that event removes the
//! entry. Before the first transaction, a transactional producer with this partition's id is opened, which fences
//! earlier owners. The partition's end is read after that, and the store has to be folded up to it, which includes
//! everything published by earlier owners. Entries published here but not folded yet are kept in memory. After any
//! error all of this starts again; folding continues meanwhile.
//!
//! Invariant: an entry is published only by an owner that knows all entries published before it. Otherwise
//! a new owner with a lagging store would publish the entries of its predecessor again: a delayed task would run twice.
//!
//! Read next: `planner.rs` (entries to records), `subtree.rs` (cancel or retry of a tree).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, DependentRecord, Partition, ProducerRecord, TransactionalProducer, Transactions};
use kafleet_model::outbox::Effect;
use kafleet_model::task::header;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{Backoff, now_ms, watch};
use kafleet_store::{Checkpoint, Entry, Outbox};
use tokio_util::sync::CancellationToken;

use super::entry::{OutboxEntry, OutboxMessage};
use super::planner::OutboxPlanner;
use super::subtree::{STEP_RECORDS, SubtreeCommand};
use crate::error::TrackerError;
use crate::is_stopped_within;
use crate::outbox::withdrawals::Withdrawals;
use crate::setup::TrackerSetup;
use crate::upkeep::ticker::TrackerShared;

/// Maximum number of outbox entries for timers and effects per transaction, subtree commands not counted.
const MAX_BATCH_ENTRIES: usize = 500;
/// Maximum bytes of deferred records per transaction.
const BATCH_BYTES: u64 = 8 << 20;
/// Maximum entries published but not folded yet. Subtree commands stay within this distance of the fold, so that
/// events of other producers are folded soon too.
const MAX_UNFOLDED: usize = 5_000;
/// Maximum concurrent subtree commands.
const MAX_RUNNING_COMMANDS: usize = 32;
/// Maximum queued subtree commands, so that later effects in the outbox are read. Further commands wait.
const MAX_QUEUED_COMMANDS: usize = 5_000;
/// Maximum leading outbox entries to skip in one pass (already published or deferred). Entries beyond this limit
/// wait.
const MAX_SKIPPED: usize = 9_000;
/// Approximate maximum of records visited by subtree commands per transaction: a step of a long command leaves room
/// for others.
const MAX_VISITED: usize = 2 * STEP_RECORDS;
/// Deadline for all records of a transaction; the broker aborts it after `transaction.timeout.ms`.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of rechecks while publishing is blocked.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Lead time for opening the producer before a timer is due.
const OPEN_AHEAD: Duration = Duration::from_secs(2);
/// Maximum sleep between two reads of the outbox.
const MAX_SLEEP: Duration = Duration::from_secs(5);

/// Progress of the fold, for tasks that wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldProgress {
    pub offset: i64,
    /// Number of folded batches that added timers or effects.
    pub news: u64,
}

pub(crate) struct OutboxRelay {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: u32,
    folded: watch::Receiver<FoldProgress>,
    stop: CancellationToken,
    planner: OutboxPlanner,
    /// Cancels to be withdrawn from the control topic once the workers' committed offsets are past all tasks that they ended.
    withdrawals: Arc<Withdrawals>,
    /// Published entries and the offsets of their events.
    published: HashMap<(TaskId, String), i64>,
    /// Highest checkpoint seen: a lower one means that the store lost writes, which the partition task will detect.
    max_checkpoint: i64,
    /// Highest offset published by this session's subtree commands.
    last_command_offset: i64,
    /// Running subtree commands, in round-robin order: the first one takes the next step.
    subtree_commands: VecDeque<SubtreeCommand>,
    /// Queued subtree commands, in order.
    queued: VecDeque<(TaskId, Effect)>,
    /// Number of entries to publish one by one, to isolate a record that cannot be sent.
    singles_left: usize,
}

/// A producer that may publish once the store is folded up to `from`.
struct TransactionalSession {
    producer: Transactions,
    from: i64,
}

impl OutboxRelay {
    pub(crate) fn new(
        setup: Arc<TrackerSetup>,
        shared: Arc<TrackerShared>,
        number: u32,
        folded: watch::Receiver<FoldProgress>,
        stop: CancellationToken,
    ) -> Self {
        let withdrawals = Arc::<Withdrawals>::default();
        let planner = OutboxPlanner::new(setup.clone(), number, withdrawals.clone(), shared.groups.clone());
        let published = HashMap::new();
        let (subtree_commands, queued) = (VecDeque::new(), VecDeque::new());
        Self {
            setup,
            shared,
            number,
            folded,
            stop,
            planner,
            withdrawals,
            published,
            max_checkpoint: 0,
            last_command_offset: 0,
            subtree_commands,
            queued,
            singles_left: 0,
        }
    }

    /// Runs until the session of the partition task ends.
    pub(crate) async fn run(self) {
        let (setup, shared, withdrawals) = (self.setup.clone(), self.shared.clone(), self.withdrawals.clone());
        let number = self.number;
        tokio::select! {
            biased;
            () = self.publish_until_stopped() => {}
            never = withdrawals.watch(&setup, &shared.surveys, number) => match never {},
        }
    }

    async fn publish_until_stopped(mut self) {
        let stop = self.stop.clone();
        let part = format!("timers of events partition {}", self.number);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            let error = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                error = self.session(&part, &mut backoff) => error,
            };
            let Err(error) = error;
            tracing::warn!(partition = self.number, reason = %error, "cannot publish timers and effects; restarting");
            self.setup.health.set(&part, error.to_string());
            if is_stopped_within(backoff.next_wait(), &stop).await {
                break;
            }
        }
        self.setup.health.clear(&part);
    }

    async fn session(&mut self, part: &str, backoff: &mut Backoff) -> Result<std::convert::Infallible, TrackerError> {
        let mut session: Option<TransactionalSession> = None;
        (self.published, self.last_command_offset) = (HashMap::new(), 0);
        (self.subtree_commands, self.queued) = (VecDeque::new(), VecDeque::new());
        loop {
            let seen = self.folded.get_and_mark();
            let skipped =
                self.published.len() + self.planner.deferred() + self.subtree_commands.len() + self.queued.len();
            let limit = MAX_BATCH_ENTRIES + skipped.min(MAX_SKIPPED);
            let outbox = self.setup.store.outbox(self.number, limit).await?;
            let Some(checkpoint) = outbox.checkpoint.filter(|checkpoint| checkpoint.offset >= self.max_checkpoint)
            else {
                self.wait(seen, None, RECHECK_INTERVAL).await;
                continue;
            };
            self.max_checkpoint = checkpoint.offset;
            self.published.retain(|_, offset| *offset >= checkpoint.offset);
            let now = now_ms();
            let timers = self.due_timers(&outbox, now);
            if timers.is_empty() && outbox.effects.is_empty() {
                self.planner.retain_only(&[]);
                self.report(part, backoff);
                let next = self.until_next(&outbox, now);
                match session {
                    None if next <= OPEN_AHEAD => session = Some(self.open().await?),
                    None => self.wait(seen, None, next.saturating_sub(OPEN_AHEAD)).await,
                    Some(_) => self.wait(seen, None, next).await,
                }
                continue;
            }
            let Some(open_session) = session.take() else {
                session = Some(self.open().await?);
                continue;
            };
            if checkpoint.offset < open_session.from || self.published.len() >= MAX_UNFOLDED {
                self.wait(seen, Some(open_session.from.max(checkpoint.offset + 1)), RECHECK_INTERVAL).await;
                session = Some(open_session);
                continue;
            }
            let (deferred_before, held_before) = (self.planner.deferred(), self.planner.unwritable.held_timers());
            let planned = self.plan(timers, &outbox.effects, checkpoint, now).await?;
            if planned.is_empty() {
                let required_offset = self.required_offset(checkpoint);
                // More entries may follow the deferred ones.
                let is_more = self.planner.unwritable.held_timers() > held_before
                    || (outbox.effects.len() == limit && self.planner.deferred() > deferred_before);
                let goes_on = is_more || !self.subtree_commands.is_empty() || !self.queued.is_empty();
                if required_offset.is_some() || !goes_on {
                    self.wait(seen, required_offset, self.until_next(&outbox, now).min(RECHECK_INTERVAL)).await;
                }
                session = Some(open_session);
                continue;
            }
            session = Some(self.commit(open_session, planned).await?);
            self.report(part, backoff);
        }
    }

    /// Reports that publishing works, except to topics that cannot be written.
    fn report(&self, part: &str, backoff: &mut Backoff) {
        backoff.reset();
        match self.planner.unwritable.reason() {
            Some(reason) => self.setup.health.set(part, reason),
            None => self.setup.health.clear(part),
        }
    }

    /// Due timers that are not published yet.
    fn due_timers(&mut self, outbox: &Outbox, now: i64) -> Vec<TaskId> {
        if self.planner.unwritable.end_waits() {
            self.singles_left = MAX_BATCH_ENTRIES;
        }
        let due = outbox.timers.iter().take_while(|entry| entry.seen_ms <= now);
        let is_published = |id: &TaskId| self.published.contains_key(&(id.clone(), OutboxEntry::TIMER.to_owned()));
        let due = due.filter(|entry| !is_published(&entry.id) && !self.planner.unwritable.holds_timer(entry));
        due.map(|entry| entry.id.clone()).collect()
    }

    fn until_next(&self, outbox: &Outbox, now: i64) -> Duration {
        let next = outbox.timers.iter().map(|entry| entry.seen_ms).find(|due| *due > now);
        let wait = next.map_or(MAX_SLEEP, |due| Duration::from_millis((due - now) as u64));
        wait.min(if self.planner.deferred() > 0 { RECHECK_INTERVAL } else { MAX_SLEEP })
    }

    /// Waits until work is added, the fold reaches `position`, a cancel can be withdrawn, or `longest` has passed.
    async fn wait(&mut self, seen: FoldProgress, position: Option<i64>, longest: Duration) {
        let wakes =
            |now: &FoldProgress| now.news != seen.news || position.is_some_and(|position| now.offset >= position);
        let withdrawals = self.withdrawals.clone();
        tokio::select! {
            biased;
            folded = tokio::time::timeout(longest, self.folded.wait_for(wakes)) => {
                if let Ok(Err(watch::SenderDropped)) = folded {
                    // The partition task has ended, and stops this relay at once.
                    tokio::time::sleep(longest).await;
                }
            }
            () = withdrawals.any_passed() => {}
        }
    }

    /// Opens the producer, which fences earlier owners, then reads the partition's end: their events lie before it.
    async fn open(&self) -> Result<TransactionalSession, BrokerError> {
        let name = format!("{}.outbox.{}", self.setup.topology.names.events(), self.number);
        let events = Partition::new(self.setup.topology.names.events(), self.number as i32);
        let broker = self.setup.broker.client();
        let producer = broker.transactional_producer(&name).await?;
        let from = broker.watermarks(&events).await?.high;
        Ok(TransactionalSession { producer, from })
    }

    async fn plan(
        &mut self,
        timers: Vec<TaskId>,
        effects: &[Entry],
        checkpoint: Checkpoint,
        now: i64,
    ) -> Result<Vec<OutboxEntry>, TrackerError> {
        let limit = if self.singles_left > 0 { 1 } else { MAX_BATCH_ENTRIES };
        // Reserve room for effects when more timers are due than fit.
        let most_timers = timers.len().min((limit * 4 / 5).max(1));
        let mut planned = self.planner.timers(&timers[..most_timers], BATCH_BYTES, now).await?;
        if planned.len() < limit {
            let effects = self.without_commands(effects);
            let published = &self.published;
            let is_published =
                |id: &TaskId, dedup_key: &str| published.contains_key(&(id.clone(), dedup_key.to_owned()));
            let (more, commands) = self.planner.effects(&effects, is_published, limit - planned.len(), now).await?;
            planned.extend(more);
            self.queued.extend(commands.into_iter().take(MAX_QUEUED_COMMANDS.saturating_sub(self.queued.len())));
            if self.required_offset(checkpoint).is_none() && (self.singles_left == 0 || planned.is_empty()) {
                self.run_commands(&mut planned, now).await?;
            }
        }
        // The data belongs to this checkpoint or a later one, unless the store has lost writes meanwhile.
        let checkpoints = self.setup.store.checkpoints(&[self.number]).await?;
        match checkpoints.first().copied().flatten() {
            Some(now) if now.offset >= checkpoint.offset => Ok(planned),
            _ => Err(TrackerError::LostWrites),
        }
    }

    /// Offset that the fold has to reach before subtree commands continue.
    fn required_offset(&self, checkpoint: Checkpoint) -> Option<i64> {
        let position = self.last_command_offset - MAX_UNFOLDED as i64;
        (checkpoint.offset < position).then_some(position)
    }

    /// Tasks without a running or queued subtree command.
    fn without_commands(&self, effects: &[Entry]) -> Vec<Entry> {
        let queued = self.queued.iter().map(|(id, _)| id);
        let pending: HashSet<&TaskId> = self.subtree_commands.iter().map(SubtreeCommand::top).chain(queued).collect();
        effects.iter().filter(|entry| !pending.contains(&entry.id)).cloned().collect()
    }

    /// Runs a step of the next subtree command, then starts queued ones: most trees are small and complete in one
    /// step.
    async fn run_commands(&mut self, planned: &mut Vec<OutboxEntry>, now: i64) -> Result<(), TrackerError> {
        let limit = if self.singles_left > 0 { planned.len() + 1 } else { usize::MAX };
        let mut next: VecDeque<SubtreeCommand> = self.subtree_commands.pop_front().into_iter().collect();
        let mut visited = 0;
        while visited < MAX_VISITED && planned.len() < limit {
            let Some(command) = next.pop_front() else {
                let room = MAX_RUNNING_COMMANDS.saturating_sub(self.subtree_commands.len());
                let commands: Vec<(TaskId, Effect)> = self.queued.drain(..room.min(self.queued.len())).collect();
                if commands.is_empty() {
                    break;
                }
                next.extend(self.planner.subtree_commands(&commands, now).await?);
                visited += 1;
                continue;
            };
            let step = command.step(&*self.setup.store, now).await?;
            planned.extend(step.entry);
            self.subtree_commands.extend(step.rest);
            visited += step.visited;
        }
        // These were started but have not taken a step yet; they continue in the next transaction.
        self.subtree_commands.extend(next);
        Ok(())
    }

    /// Publishes the entries in one transaction.
    async fn commit(
        &mut self,
        session: TransactionalSession,
        planned: Vec<OutboxEntry>,
    ) -> Result<TransactionalSession, BrokerError> {
        let TransactionalSession { producer, from } = session;
        let (events, number): (Arc<str>, u32) = (self.setup.topology.names.events().into(), self.number);
        let send = move |producer: &mut dyn TransactionalProducer| {
            let messages: Vec<_> = planned.iter().flat_map(|entry| &entry.messages).collect();
            let headers: Vec<Vec<(&str, &[u8])>> = messages.iter().map(|message| message.headers()).collect();
            let records: Vec<ProducerRecord<'_>> =
                messages.iter().zip(&headers).map(|(message, headers)| message.producer_record(headers)).collect();
            let mut dependent_events =
                |positions: &[(i32, i64)]| dependent_events(&planned, positions, &events, number);
            let sent = producer.send_with_dependents(&records, &mut dependent_events, SEND_DEADLINE);
            (sent, planned)
        };
        let (producer, (sent, mut planned)) = producer.run(send).await?;
        match sent {
            Ok(positions) => {
                self.record_published(&planned, &positions);
                self.finish_spans(&mut planned);
                self.singles_left = self.singles_left.saturating_sub(1);
                Ok(TransactionalSession { producer, from })
            }
            Err(error @ (BrokerError::TooLarge(_) | BrokerError::Unknown(_) | BrokerError::Invalid(_))) => {
                self.singles_left = MAX_BATCH_ENTRIES;
                if let [entry] = planned.as_slice() {
                    self.planner.mark_unsendable(entry, &error);
                }
                Err(error)
            }
            Err(error) => {
                if matches!(
                    error,
                    BrokerError::Full(_)
                        | BrokerError::Unavailable(_)
                        | BrokerError::Denied(_)
                        | BrokerError::Unexpected(_)
                ) {
                    self.isolate_unwritable(&planned, &error);
                }
                // Records that may have been published name these spans.
                if matches!(error, BrokerError::InDoubt(_)) {
                    self.finish_spans(&mut planned);
                }
                Err(error)
            }
        }
    }

    /// Publishes the entries one by one, until the topic is found that cannot be written.
    fn isolate_unwritable(&mut self, planned: &[OutboxEntry], error: &BrokerError) {
        self.singles_left = MAX_BATCH_ENTRIES;
        if let [entry] = planned {
            self.planner.unwritable.add(entry, error);
            self.singles_left = 0;
        }
    }

    fn record_published(&mut self, planned: &[OutboxEntry], positions: &[(i32, i64)]) {
        let events = self.setup.topology.names.events();
        let messages: usize = planned.iter().map(|entry| entry.messages.len()).sum();
        let mut dependent_events = positions.iter().skip(messages).copied();
        for (entry, last) in planned.iter().zip(last_positions(planned, positions)) {
            // A dependent event has a position of its own. Otherwise the event, if any, is the entry's last record.
            let position = match entry.dependent_event {
                Some(_) => dependent_events.next(),
                None => last.filter(|_| entry.ends_in_topic(&events)),
            };
            let key = (entry.id.clone(), entry.dedup_key.clone());
            self.planner.unwritable.remove_topic_of(entry);
            self.planner.unsendable.remove(&key);
            let Some((_, offset)) = position else { continue };
            if entry.is_subtree_step() {
                self.last_command_offset = self.last_command_offset.max(offset);
            }
            self.published.insert(key, offset);
            self.count_continuation(entry);
            self.setup.metrics.tracker.fired.with_label_values(&[&self.number.to_string(), entry.kind]).inc();
        }
    }
}

impl OutboxRelay {
    /// Ends the spans of the tasks that a transaction has published.
    fn finish_spans(&self, published: &mut [OutboxEntry]) {
        if let Some(tracer) = &self.setup.tracer {
            published.iter_mut().filter_map(|entry| entry.span.take()).for_each(|span| tracer.finish(span));
        }
    }

    /// Counts a continuation as a submitted task, unless it starts again in a new run.
    fn count_continuation(&self, entry: &OutboxEntry) {
        let is_new = |message: &&OutboxMessage| !message.headers.iter().any(|(name, _)| name == header::RUN);
        let record = entry.messages.first().filter(|_| entry.kind == OutboxEntry::CONTINUATION).filter(is_new);
        if let Some(task_type) = record.and_then(|message| self.setup.topology.names.type_of(&message.topic)) {
            self.setup.metrics.tasks.submitted.with_label_values(&[task_type]).inc();
        }
    }
}

/// Builds the events that contain the positions of the records before them.
fn dependent_events(
    planned: &[OutboxEntry],
    positions: &[(i32, i64)],
    events: &Arc<str>,
    number: u32,
) -> Result<Vec<DependentRecord>, BrokerError> {
    planned
        .iter()
        .zip(last_positions(planned, positions))
        .filter_map(|(entry, last)| entry.dependent_event(events, number, last?))
        .map(|event| Ok(event?))
        .collect()
}

/// Position of the last record of each entry.
fn last_positions(planned: &[OutboxEntry], positions: &[(i32, i64)]) -> impl Iterator<Item = Option<(i32, i64)>> {
    let mut positions = positions.iter().copied();
    planned.iter().map(move |entry| positions.by_ref().take(entry.messages.len()).last())
}
