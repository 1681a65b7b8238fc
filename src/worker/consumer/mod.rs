//! One type's poll loop, on a thread of its own: records in, work out to the dispatcher, completions back, commits.
//!
//! The discipline of commits: auto-commit is off, at most one commit is under way, and it names only partitions of this
//! assignment. Before offsets past a window's end are handed out, a commit of the new end has succeeded, so that a crash
//! repeats at most a window. A partition that is asked back is drained, committed with the clean mark, and released.

pub(crate) mod assignment;
mod control;
mod group_events;
pub(crate) mod partition;
mod recover;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::completions::{Completions, DeliveryTag};
use super::consumer::assignment::Assignment;
use super::consumer::partition::{CommitState, PartitionState, Phase};
use super::decode::{Decoder, Input};
use super::dispatch::{Command, HAND_OUT};
use super::memory_budget::MemoryBudget;
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, BrokerError, Commit, Consumer, ConsumerSpec, Partition};
use crate::config::{Names, TypePolicy};
use crate::control::ControlWatch;
use crate::control::settings;
use crate::runtime::{self, Health, Shutdown};
use crate::telemetry::Metrics;
use recover::{Broken, Renewals};

/// Records taken from the client in one turn.
const POLL_RECORDS: usize = 512;
/// How long a turn waits for records while something is under way, and while nothing is.
const BUSY_WAIT: Duration = Duration::from_millis(5);
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Back pressure: how long a turn waits where no records are wanted, and something has ended just now.
const FULL_WAIT: Duration = Duration::from_millis(1);
const JUST_NOW: Duration = Duration::from_millis(20);
/// How long a partition may go without records because others hold too many, before those are paused; and while a commit is
/// under way, which may let them go on. A pause is dear: librdkafka throws away what it has fetched, and takes up to a second
/// to fetch again.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_FOR_COMMIT: Duration = Duration::from_secs(1);
/// Work that waits for its window before the lane stops taking records.
const MAX_WAITING: usize = 8_192;
/// The part of the commit interval after which an idle lane commits.
const IDLE_COMMIT_PART: u32 = 4;
/// How often it is looked for what holds no task, such as transaction markers, and is to be passed.
const GAP_LOOKS: Duration = Duration::from_millis(500);
/// The least time between commits, and how long to wait for the outcome of one.
const COMMIT_SPACING: Duration = Duration::from_millis(3);
const COMMIT_PATIENCE: Duration = Duration::from_secs(60);
/// For the last commit of a partition: how long it is tried again, and the wait between. A group refuses commits for as long
/// as one of its members takes to answer a rebalance.
const LAST_COMMIT_PATIENCE: Duration = Duration::from_secs(8);
const LAST_COMMIT_PAUSE: Duration = Duration::from_millis(20);
/// Calls to the broker from this thread.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The watermark of each partition that this worker has.
pub type StartOffsets = Arc<Mutex<BTreeMap<Partition, i64>>>;

/// What a lane is made of.
pub struct ConsumerDeps {
    pub index: usize,
    pub task_type: Arc<str>,
    pub names: Names,
    pub broker: Arc<dyn Broker>,
    pub link: Arc<SharedProducer>,
    pub consumer: Box<dyn Consumer>,
    /// How the consumer was made, and is made anew.
    pub spec: ConsumerSpec,
    pub intake: Decoder,
    pub inbox: Arc<Completions>,
    pub work: mpsc::Sender<Vec<Input>>,
    pub commands: mpsc::UnboundedSender<Command>,
    pub memory: Arc<MemoryBudget>,
    pub policy: TypePolicy,
    pub control: Arc<ControlWatch>,
    pub drain_timeout: Duration,
    pub commit_interval: Duration,
    pub shutdown: Shutdown,
    pub health: Health,
    pub loop_time: PollLoopMetrics,
    pub metrics: Metrics,
    /// How far each partition is done, for whoever measures lag.
    pub places: StartOffsets,
}

/// Where the loop's time goes.
pub struct PollLoopMetrics {
    pub poll: prometheus::Counter,
    pub dispatch: prometheus::Counter,
    pub commit: prometheus::Counter,
    pub idle: prometheus::Counter,
}

pub struct TypeConsumer {
    parts: ConsumerDeps,
    /// By partition number.
    shares: Vec<Option<PartitionState>>,
    next_slot: u32,
    /// Assigned by the group, but where to start could not be read yet.
    pending_start: Vec<Partition>,
    place_again: Option<Instant>,
    /// Assigned, and to be read from elsewhere: their places lie outside their logs.
    out_of_range: BTreeSet<Partition>,
    recover_again: Option<Instant>,
    batch: Vec<Input>,
    commit: Option<Pending>,
    last_commit: Instant,
    gaps_again: Instant,
    commit_errors: u32,
    done: Vec<DeliveryTag>,
    returned: Vec<DeliveryTag>,
    last_done: Instant,
    /// Since when nothing is taken, although some partition has nothing left.
    starving: Option<Instant>,
    /// For so many slots as there are now.
    window: u64,
    /// Partitions of the topic; 0 until it is known.
    partitions: u32,
    /// The last portion that the dispatcher was told.
    told: Assignment,
    /// The state of the control topic that is obeyed, and when it is looked at again.
    heeded: u64,
    heed_again: Option<Instant>,
    /// The last commit of partitions that are given back was refused.
    refused_last: Option<RefusedLast>,
    stopping: bool,
    /// The dispatcher is gone.
    orphaned: bool,
    /// The consumer is of no more use.
    broken: Option<Broken>,
    renewals: Renewals,
}

/// A last commit that is made again: the group may first want to be heard.
struct RefusedLast {
    since: Instant,
    again: Instant,
}

struct Pending {
    since: Instant,
    promises: Vec<(i32, CommitState)>,
}

impl TypeConsumer {
    pub fn new(parts: ConsumerDeps) -> Self {
        parts.health.set(&health_part(&parts.task_type), NOT_JOINED);
        Self {
            window: control::window(parts.policy.slots()),
            partitions: 0,
            told: Assignment::default(),
            heeded: 0,
            heed_again: Some(Instant::now()),
            parts,
            shares: Vec::new(),
            next_slot: 0,
            pending_start: Vec::new(),
            place_again: None,
            out_of_range: BTreeSet::new(),
            recover_again: None,
            batch: Vec::new(),
            commit: None,
            last_commit: Instant::now(),
            gaps_again: Instant::now(),
            commit_errors: 0,
            done: Vec::new(),
            returned: Vec::new(),
            last_done: Instant::now(),
            starving: None,
            refused_last: None,
            stopping: false,
            orphaned: false,
            broken: None,
            renewals: Renewals::default(),
        }
    }

    /// Runs until the worker stops; then leaves the group.
    pub async fn run(mut self) {
        while self.step().await {}
        self.leave();
    }

    /// One turn. False: everything is given back, or the worker aborts.
    async fn step(&mut self) -> bool {
        let now = Instant::now();
        if self.parts.shutdown.abort.is_cancelled() || self.orphaned {
            return false;
        }
        if self.parts.shutdown.is_draining() && !self.stopping {
            self.begin_stop(now);
        }
        if self.broken.is_some() {
            return self.renew(now).await;
        }
        self.apply_control(now).await;
        self.take_completions();
        self.hand_out();
        self.timed(now, |time| &time.dispatch);
        let before = Instant::now();
        self.pass_gaps(before);
        self.commit_if_due(before).await;
        self.settle_revoked(before);
        self.place_unplaced(before);
        self.recover_astray(before);
        self.tell_portion();
        self.timed(before, |time| &time.commit);
        if self.stopping && self.shares.iter().flatten().next().is_none() {
            return false;
        }
        self.poll().await;
        true
    }

    fn timed(&self, since: Instant, part: impl Fn(&PollLoopMetrics) -> &prometheus::Counter) {
        part(&self.parts.loop_time).inc_by(since.elapsed().as_secs_f64());
    }

    // ---- records in

    async fn poll(&mut self) {
        let before = Instant::now();
        let (most, wait) = self.poll_budget(before);
        let wait = runtime::waiting(wait).await;
        let (shares, mut turn, lane) = (&mut self.shares, self.parts.intake.turn(), self.parts.index);
        let mut taken = 0;
        let polled = self.parts.consumer.poll(most, wait, &mut |record| {
            taken += 1;
            let share = usize::try_from(record.partition).ok().and_then(|p| shares.get_mut(p)).and_then(Option::as_mut);
            let Some(share) = share else { return };
            if share.deliver(record.offset) {
                let tag = share.tag(lane, record.offset);
                share.push(turn.read(record, tag));
            }
        });
        drop(turn);
        self.timed(before, |time| if taken > 0 { &time.poll } else { &time.idle });
        match polled {
            Ok(events) => {
                for event in events {
                    self.group_event(event).await;
                }
            }
            // The client says that it will not recover.
            Err(error @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => self.give_up_consumer(&error),
            Err(error) => self.trouble(&error),
        }
    }

    /// How many records to take and how long to wait for them. Where memory is short or all have enough, none, and the group
    /// is served; where some partition has nothing while others hold too much, those are paused after a while.
    fn poll_budget(&mut self, now: Instant) -> (usize, Duration) {
        let nothing = (0, if now.duration_since(self.last_done) < JUST_NOW { FULL_WAIT } else { BUSY_WAIT });
        if self.stopping || !self.parts.memory.has_room(self.parts.index) {
            self.starving = None;
            return nothing;
        }
        let part = MAX_WAITING / 2 / self.shares.iter().flatten().count().max(1);
        let waiting: usize = self.shares.iter().flatten().filter(|share| !share.paused).map(PartitionState::waiting).sum();
        if waiting < MAX_WAITING {
            self.starving = None;
            self.pause(false, |share| share.waiting() <= part / 2);
            let uncommitted = self.commit.is_some() || self.shares.iter().flatten().any(PartitionState::needs_commit);
            return (POLL_RECORDS, if uncommitted || !self.is_idle() { BUSY_WAIT } else { IDLE_WAIT });
        }
        if !self.shares.iter().flatten().any(PartitionState::is_starving) {
            self.starving = None;
            return nothing;
        }
        let patience = if self.commit.is_some() { PATIENCE_FOR_COMMIT } else { PATIENCE };
        if now.duration_since(*self.starving.get_or_insert(now)) > patience {
            self.pause(true, |share| share.waiting() > part);
        }
        nothing
    }

    /// Nothing waits, nothing runs.
    fn is_idle(&self) -> bool {
        self.shares.iter().flatten().all(|share| share.waiting() == 0 && share.outstanding() == 0)
    }

    fn pause(&mut self, paused: bool, which: impl Fn(&PartitionState) -> bool) {
        let concerned = |share: &&mut PartitionState| share.phase != Phase::Refused && share.paused != paused && which(share);
        let mut shares: Vec<&mut PartitionState> = self.shares.iter_mut().flatten().filter(concerned).collect();
        if shares.is_empty() {
            return;
        }
        let partitions: Vec<Partition> = shares.iter().map(|share| share.partition.clone()).collect();
        match self.parts.consumer.pause(&partitions, paused) {
            Ok(()) => shares.iter_mut().for_each(|share| share.paused = paused),
            Err(error) => self.trouble(&error),
        }
    }

    // ---- work out

    fn hand_out(&mut self) {
        if self.batch.is_empty() {
            self.fill_batch();
        }
        if self.batch.is_empty() {
            return;
        }
        match self.parts.work.try_send(std::mem::take(&mut self.batch)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(batch)) => self.batch = batch,
            Err(mpsc::error::TrySendError::Closed(_)) => self.orphaned = true,
        }
    }

    /// Takes from the partitions in turn, so that none waits for another.
    fn fill_batch(&mut self) {
        let mut more = true;
        while more && self.batch.len() < HAND_OUT {
            more = false;
            for share in self.shares.iter_mut().flatten() {
                for _ in 0..HAND_OUT / 8 {
                    let Some(work) = share.pop() else { break };
                    self.batch.push(work);
                    more = true;
                }
            }
        }
    }

    fn take_completions(&mut self) {
        self.parts.inbox.take(&mut self.done, &mut self.returned);
        if !self.done.is_empty() {
            self.last_done = Instant::now();
        }
        for tag in self.done.drain(..) {
            if let Some(share) = self.shares.iter_mut().flatten().find(|share| share.slot == tag.slot()) {
                share.done(tag);
            }
        }
        for tag in self.returned.drain(..) {
            if let Some(share) = self.shares.iter_mut().flatten().find(|share| share.slot == tag.slot()) {
                share.returned();
            }
        }
    }

    // ---- commits

    async fn commit_if_due(&mut self, now: Instant) {
        if let Some(pending) = &self.commit {
            if now.duration_since(pending.since) < COMMIT_PATIENCE {
                return;
            }
            // Were another one begun, the late outcome of this one would be taken for its own.
            return self.give_up_consumer(&BrokerError::InDoubt("no outcome of a commit within 60 s".into()));
        }
        let since = now.duration_since(self.last_commit);
        let pause = if self.commit_errors > 0 { RETRY_PAUSE } else { COMMIT_SPACING };
        if since < pause {
            return;
        }
        // Where nothing is left to do, sooner: a successor, or whoever looks at the lag, need not wait for the interval.
        let interval = if self.is_idle() { self.parts.commit_interval / IDLE_COMMIT_PART } else { self.parts.commit_interval };
        let due = since >= interval;
        let urgent = self.shares.iter().flatten().any(PartitionState::wants_window);
        if !due && !urgent {
            return;
        }
        let (mut commits, mut promises) = (Vec::new(), Vec::new());
        for share in self.shares.iter_mut().flatten().filter(|share| share.needs_commit() || share.wants_window()) {
            let was_full = share.is_full();
            let (commit, promise) = share.commit();
            tell_held(&self.parts, share, was_full);
            self.parts.places.lock().insert(commit.partition.clone(), commit.offset);
            promises.push((commit.partition.index, promise));
            commits.push(commit);
        }
        if commits.is_empty() {
            return;
        }
        self.last_commit = now;
        self.commit = Some(Pending { since: now, promises });
        if let Err(error) = self.parts.consumer.commit(&commits) {
            self.commit_ended(Err(error)).await;
        }
    }

    async fn commit_ended(&mut self, result: Result<(), BrokerError>) {
        let Some(pending) = self.commit.take() else { return };
        match &result {
            Ok(()) => self.commit_errors = 0,
            Err(error) => {
                self.commit_errors += 1;
                tracing::warn!(task_type = %self.parts.task_type, %error, "a commit failed and will be made again");
            }
        }
        let mut unmarked = Vec::new();
        for (partition, promise) in pending.promises {
            let Some(share) = self.share(partition).filter(|share| share.slot == promise.slot) else { continue };
            if result.is_err() {
                share.commit_failed();
                continue;
            }
            share.keep(promise);
            if share.unmarked {
                unmarked.push(partition);
            }
        }
        for partition in unmarked {
            self.mark_partition_consumed(partition).await;
        }
    }

    /// Writes that a partition has been consumed; only then it is worked on. A later "no commit" then means that the
    /// commit is gone, not that everything is new.
    async fn mark_partition_consumed(&mut self, partition: i32) {
        let parts = &self.parts;
        let mark = settings::mark_partition_consumed(&parts.link, &parts.names, &parts.task_type, partition);
        match mark.await {
            Ok(()) => {
                if let Some(share) = self.share(partition) {
                    share.marked();
                }
            }
            Err(error) => {
                // Not at once again: the next commit, and so the next try, waits a moment.
                self.commit_errors = self.commit_errors.max(1);
                self.trouble(&error);
            }
        }
    }

    // ---- stopping

    fn begin_stop(&mut self, now: Instant) {
        self.stopping = true;
        self.pending_start.clear();
        let deadline = now + self.parts.drain_timeout;
        let slots: Vec<u32> = self
            .shares
            .iter_mut()
            .flatten()
            .map(|share| {
                share.revoke(deadline);
                share.slot
            })
            .collect();
        slots.into_iter().for_each(|slot| self.command(Command::Recall { slot }));
        self.recall_batch();
    }

    fn leave(mut self) {
        let commits: Vec<_> = self
            .shares
            .iter_mut()
            .flatten()
            .filter(|share| share.phase != Phase::Refused)
            .map(PartitionState::final_commit)
            .collect();
        if !self.parts.shutdown.abort.is_cancelled() {
            self.commit_last(&commits, Instant::now());
        }
        self.parts.consumer.close(Duration::from_secs(5));
    }

    /// The last word on partitions that are given back. False: to be said again in a moment, while the group is being polled.
    /// Whatever cannot be said for long is repeated by their next owners.
    fn commit_last(&mut self, commits: &[Commit], now: Instant) -> bool {
        let Err(error) = self.say_last(commits) else {
            self.refused_last = None;
            return true;
        };
        let since = self.refused_last.as_ref().map_or(now, |refused| refused.since);
        if !error.is_transient() || now.duration_since(since) >= LAST_COMMIT_PATIENCE {
            tracing::warn!(task_type = %self.parts.task_type, %error, "the last commit of partitions that are given back failed");
            self.refused_last = None;
            return true;
        }
        self.refused_last = Some(RefusedLast { since, again: Instant::now() + LAST_COMMIT_PAUSE });
        false
    }

    fn say_last(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        if commits.is_empty() { Ok(()) } else { self.parts.consumer.commit_sync(commits) }
    }

    // ---- small things

    fn share(&mut self, partition: i32) -> Option<&mut PartitionState> {
        usize::try_from(partition).ok().and_then(|p| self.shares.get_mut(p)).and_then(Option::as_mut)
    }

    fn take(&mut self, partition: i32) -> Option<PartitionState> {
        usize::try_from(partition).ok().and_then(|p| self.shares.get_mut(p)).and_then(Option::take)
    }

    fn put(&mut self, share: PartitionState) {
        let Ok(place) = usize::try_from(share.partition.index) else { return };
        if self.shares.len() <= place {
            self.shares.resize_with(place + 1, || None);
        }
        self.shares[place] = Some(share);
    }

    fn release(&mut self, partitions: &[Partition]) {
        self.parts.places.lock().retain(|partition, _| !partitions.contains(partition));
        for partition in partitions {
            self.parts.health.clear(&refused_part(&self.parts.task_type, partition.index));
            forget_held(&self.parts, partition);
        }
        if let Err(error) = self.parts.consumer.release(partitions) {
            self.trouble(&error);
        }
    }

    fn command(&self, command: Command) {
        // The dispatcher outlives its lane; if it is gone, so is everything that could be recalled.
        let _ = self.parts.commands.send(command);
    }

    fn trouble(&self, error: &BrokerError) {
        tracing::warn!(task_type = %self.parts.task_type, %error, "trouble with the broker; going on");
    }
}

/// Where the map of what is done is full, everybody can see which task that is about.
fn tell_held(parts: &ConsumerDeps, share: &PartitionState, was_full: bool) {
    let (partition, offset) = (&share.partition, share.watermark());
    if !share.is_full() {
        return if was_full {
            forget_held(parts, partition)
        };
    }
    if !was_full {
        tracing::warn!(%partition, offset, "the task at this offset holds back its partition: nothing new until it ends");
    }
    parts.metrics.worker.window_held.with_label_values(&[&*parts.task_type, &partition.index.to_string()]).set(offset);
}

fn forget_held(parts: &ConsumerDeps, partition: &Partition) {
    // An error: it was not told.
    let _ = parts.metrics.worker.window_held.remove_label_values(&[&*parts.task_type, &partition.index.to_string()]);
}

/// What stands in the way of a lane that has no partitions yet.
pub const NOT_JOINED: &str = "waiting for the group";

/// How a lane is named in the health report.
pub fn health_part(task_type: &str) -> String {
    format!("type {task_type}")
}

/// How a partition that is refused is named in it.
fn refused_part(task_type: &str, partition: i32) -> String {
    format!("{}/{partition}", health_part(task_type))
}

fn numbers(partitions: &[Partition]) -> Vec<i32> {
    partitions.iter().map(|partition| partition.index).collect()
}
