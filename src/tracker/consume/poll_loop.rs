//! The tracker's poll loop, on a thread of its own: reads the partitions that the group gives it and feeds their folders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event_batches::{BATCHES, Batch, EventBatcher};
use crate::broker::{BrokerError, Commit, Consumer, GroupEvent, Partition, RecordRef, StartOffset};
use crate::model::event::{DecodeError, Event};
use crate::model::task::partition::partition_of;
use crate::runtime::{self, Shutdown};
use crate::tracker::TrackerSetup;

const POLL_RECORDS: usize = 2_000;
const BUSY_WAIT: Duration = Duration::from_millis(2);
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// How long no events are taken for the sake of a folder that is behind, while another has nothing left to do. Then the
/// partition of the first is paused: a pause throws away what the client has fetched ahead, and librdkafka takes up to a
/// second to fetch again. Where nothing came for the others meanwhile they are quiet, and the next time waits longer.
const PATIENCE: Duration = Duration::from_millis(100);
const MOST_PATIENCE: Duration = Duration::from_secs(1);
const FULL_WAIT: Duration = Duration::from_millis(1);
/// How often the group is told how far the fold is. For people who look at lag; the truth is the fence.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Between two tries to move the consumer to where a folder wants it.
const MOVE_AGAIN: Duration = Duration::from_millis(200);
/// How trouble with the broker is named in the health report.
const BROKER_PART: &str = "events topic";

/// Asks for a partition to be read from an offset on.
pub struct SeekRequest {
    pub partition: i32,
    pub generation: u64,
    pub offset: i64,
}

/// A partition that was taken up, for whoever folds it.
pub struct PartitionHandle {
    pub number: i32,
    pub batches: mpsc::Receiver<Batch>,
    pub asking: mpsc::UnboundedSender<SeekRequest>,
    /// The partition was given back.
    pub stop: CancellationToken,
    /// Lower than that of any start to come, and higher than any before the partition was taken up.
    pub generation: u64,
}

/// Sees to it that a partition is folded.
pub type SpawnPartition = Box<dyn Fn(PartitionHandle) + Send>;

pub struct PollLoop {
    setup: Arc<TrackerSetup>,
    fold: SpawnPartition,
    /// Partitions to be read without a group, until they are taken up.
    given: Vec<Partition>,
    /// The consumer is in a group, which gives partitions and is told how far they are folded.
    in_group: bool,
    consumer: Box<dyn Consumer>,
    topic: Arc<str>,
    feeds: BTreeMap<i32, (EventBatcher, CancellationToken)>,
    /// What folders ask for; bounded by their number.
    asked: mpsc::UnboundedReceiver<SeekRequest>,
    asking: mpsc::UnboundedSender<SeekRequest>,
    /// Asks that could not be obeyed yet.
    unmoved: Vec<SeekRequest>,
    next_move: Instant,
    /// Goes up with each partition taken up: the generations of different folders of a partition never meet.
    taken_up: u64,
    committing: bool,
    last_commit: Instant,
    /// Since when a folder has had nothing to do because another is behind.
    starving: Option<Instant>,
    /// How long that may last.
    patience: Duration,
    /// Events have come for another partition since one was paused for the sake of the others.
    relieved: bool,
    shutdown: Shutdown,
}

impl PollLoop {
    pub fn new(setup: Arc<TrackerSetup>, consumer: Box<dyn Consumer>, shutdown: Shutdown, fold: SpawnPartition) -> Self {
        let (asking, asked) = mpsc::unbounded_channel();
        let topic = setup.names.events().into();
        let (feeds, now) = (BTreeMap::new(), Instant::now());
        setup.health.set("tracker", "waiting for the group");
        Self {
            setup,
            fold,
            given: Vec::new(),
            in_group: true,
            consumer,
            topic,
            feeds,
            asked,
            asking,
            unmoved: Vec::new(),
            next_move: now,
            taken_up: 0,
            committing: false,
            last_commit: now,
            starving: None,
            patience: PATIENCE,
            relieved: true,
            shutdown,
        }
    }

    /// Reads these partitions, with a consumer that is in no group.
    pub fn of(mut self, partitions: Vec<Partition>) -> Self {
        (self.given, self.in_group) = (partitions, false);
        self
    }

    /// Runs until the tracker stops, or its consumer is of no use any more; then leaves the group.
    pub async fn run(mut self) -> Result<(), BrokerError> {
        let mut outcome = Ok(());
        let given = std::mem::take(&mut self.given);
        if !self.in_group {
            self.take_up(&given);
        }
        while outcome.is_ok() && !self.shutdown.is_draining() {
            outcome = self.step().await;
        }
        self.feeds.values().for_each(|(_, stop)| stop.cancel());
        self.consumer.close(Duration::from_secs(5));
        outcome
    }

    /// An error means that the consumer is of no use any more.
    async fn step(&mut self) -> Result<(), BrokerError> {
        if Instant::now() >= self.next_move {
            std::mem::take(&mut self.unmoved).into_iter().for_each(|ask| self.obey(ask));
        }
        while let Ok(ask) = self.asked.try_recv() {
            self.obey(ask);
        }
        self.give_up_what_nobody_folds();
        let batch = self.setup.config.batch_events;
        self.feeds.values_mut().for_each(|(feed, _)| feed.pass_on(batch));
        self.commit_if_due();
        let patient = self.is_patient();
        self.balance(patient);
        if patient {
            return self.poll(0, runtime::waiting(FULL_WAIT).await);
        }
        let pending = self.feeds.values().any(|(feed, _)| feed.has_pending());
        self.poll(POLL_RECORDS, runtime::waiting(if pending { BUSY_WAIT } else { IDLE_WAIT }).await)
    }

    /// Serves the group, and takes at most so many events.
    fn poll(&mut self, most: usize, wait: Duration) -> Result<(), BrokerError> {
        let (feeds, setup) = (&mut self.feeds, &self.setup);
        let (mut heard, mut relieved) = (false, false);
        let one_is_paused = feeds.values().any(|(feed, _)| feed.flowing && feed.paused);
        let polled = self.consumer.poll(most, wait, &mut |record| {
            heard = true;
            if let Some((feed, _)) = feeds.get_mut(&record.partition) {
                relieved |= one_is_paused && !feed.paused;
                take(feed, record, setup);
            }
        });
        self.relieved |= relieved;
        if heard {
            self.setup.health.clear(BROKER_PART);
        }
        match polled {
            Ok(events) => events.into_iter().for_each(|event| self.group_event(event)),
            Err(error @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => return Err(error),
            Err(error) => self.trouble(&error),
        }
        // Where nothing was asked for nothing has moved.
        if most > 0 {
            self.step_over_markers();
        }
        Ok(())
    }

    /// What ends a transaction takes a place in the log and is never delivered: the fold's place steps over it.
    fn step_over_markers(&mut self) {
        let places = match self.consumer.positions() {
            Ok(places) => places,
            Err(error) => return self.trouble(&error),
        };
        for (partition, next) in places {
            if let Some((feed, _)) = self.feeds.get_mut(&partition.index) {
                feed.step_to(next);
            }
        }
    }

    fn group_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Assigned(partitions) => self.take_up(&partitions),
            GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => self.give_back(&partitions),
            GroupEvent::Committed { result, .. } => {
                self.committing = false;
                match result {
                    Ok(()) => self.setup.health.clear(BROKER_PART),
                    Err(error) => tracing::debug!(%error, "the group was not told how far the fold is"),
                }
            }
            GroupEvent::OutOfRange(partition) => self.out_of_range(&partition),
            GroupEvent::Trouble(error) => self.trouble(&error),
        }
    }

    /// Each partition gets a folder, which finds the fence and says where to start. The consumer takes it only then: one
    /// that was taken at some other place and moved at once may still end up there, behind events that were never folded.
    fn take_up(&mut self, partitions: &[Partition]) {
        let numbers: Vec<i32> = partitions.iter().map(|partition| partition.index).collect();
        tracing::info!(partitions = ?numbers, "events partitions assigned");
        self.setup.health.clear("tracker");
        for number in numbers {
            self.taken_up += 1;
            let generation = self.taken_up << 32;
            let (out, batches) = mpsc::channel(BATCHES);
            let stop = CancellationToken::new();
            (self.fold)(PartitionHandle { number, batches, asking: self.asking.clone(), stop: stop.clone(), generation });
            self.feeds.insert(number, (EventBatcher::new(out, generation), stop));
        }
    }

    fn give_up_what_nobody_folds(&mut self) {
        let gone: Vec<i32> = self.feeds.iter().filter(|(_, (feed, _))| feed.is_abandoned()).map(|(number, _)| *number).collect();
        if !gone.is_empty() {
            let partitions: Vec<Partition> = gone.into_iter().map(|number| Partition::new(self.topic.clone(), number)).collect();
            self.give_back(&partitions);
        }
    }

    /// The folder may still be in the middle of a batch: the fence keeps it from writing over its successor.
    fn give_back(&mut self, partitions: &[Partition]) {
        let numbers: Vec<i32> = partitions.iter().map(|partition| partition.index).collect();
        tracing::info!(partitions = ?numbers, "events partitions given back");
        for number in numbers {
            if let Some((_, stop)) = self.feeds.remove(&number) {
                stop.cancel();
            }
        }
        if let Err(error) = self.consumer.release(partitions) {
            self.trouble(&error);
        }
        if self.feeds.is_empty() {
            self.setup.health.clear(BROKER_PART);
        }
    }

    /// Begins at the asked place. Until the consumer has been moved there, what it delivers is not taken: it may lie
    /// behind events that were never folded.
    fn obey(&mut self, ask: SeekRequest) {
        let partition = Partition::new(self.topic.clone(), ask.partition);
        let Some((feed, _)) = self.feeds.get_mut(&ask.partition) else { return };
        // The same generation once more is one that could not be obeyed.
        if ask.generation < feed.generation {
            return;
        }
        feed.start(ask.generation, ask.offset);
        let partitions = std::slice::from_ref(&partition);
        let moved = self.consumer.assign(&[(partition.clone(), StartOffset::At(ask.offset))]);
        match moved.and_then(|()| self.consumer.pause(partitions, false)) {
            Ok(()) => feed.paused = false,
            Err(error) => {
                feed.hold();
                self.trouble(&error);
                self.unmoved.push(ask);
                self.next_move = Instant::now() + MOVE_AGAIN;
            }
        }
    }

    /// A folder is behind, and no other has waited for long.
    fn is_patient(&mut self) -> bool {
        let limit = self.setup.config.queue_events;
        let open = || self.feeds.values().map(|(feed, _)| feed).filter(|feed| feed.flowing && !feed.paused);
        if !open().any(|feed| feed.is_full(limit)) {
            self.starving = None;
            return false;
        }
        if open().all(EventBatcher::has_pending) {
            self.starving = None;
            return true;
        }
        let patient = self.starving.get_or_insert_with(Instant::now).elapsed() < self.patience;
        if !patient {
            self.starving = None;
            self.patience = if self.relieved { PATIENCE } else { MOST_PATIENCE.min(self.patience * 2) };
            self.relieved = false;
        }
        patient
    }

    /// Resumes what its folder has caught up with, and pauses what it cannot keep up with, where that is not waited for.
    fn balance(&mut self, patient: bool) {
        let limit = self.setup.config.queue_events;
        for (number, (feed, _)) in &mut self.feeds {
            let pause = !feed.flowing || (feed.is_full(limit) && !patient);
            let resume = feed.flowing && !feed.is_full((limit / 2).max(1));
            if (pause && !feed.paused) || (resume && feed.paused) {
                let partition = Partition::new(self.topic.clone(), *number);
                match self.consumer.pause(std::slice::from_ref(&partition), pause) {
                    Ok(()) => feed.paused = pause,
                    Err(error) => tracing::warn!(%error, "a partition could not be paused or resumed; trying again"),
                }
            }
        }
    }

    fn out_of_range(&mut self, partition: &Partition) {
        let Some((feed, _)) = self.feeds.get_mut(&partition.index) else { return };
        let at = feed.next();
        feed.stop_at(
            at,
            format!("offset {at} lies outside the log: events that were never folded are gone, or the topic was made anew"),
        );
    }

    fn commit_if_due(&mut self) {
        if !self.in_group || self.committing || self.last_commit.elapsed() < COMMIT_INTERVAL {
            return;
        }
        self.last_commit = Instant::now();
        let flowing = self.feeds.iter().filter(|(_, (feed, _))| feed.was_started());
        let commits: Vec<Commit> = flowing
            .map(|(number, (feed, _))| Commit {
                partition: Partition::new(self.topic.clone(), *number),
                offset: feed.next(),
                metadata: String::new(),
            })
            .collect();
        if !commits.is_empty() {
            self.committing = self.consumer.commit(&commits).is_ok();
        }
    }

    /// What the client itself goes on trying. It matters to whoever asks only while there is something to read.
    fn trouble(&self, error: &BrokerError) {
        tracing::warn!(%error, "trouble with the broker; going on");
        if !self.feeds.is_empty() {
            self.setup.health.set(BROKER_PART, error.to_string());
        }
    }
}

fn take(feed: &mut EventBatcher, record: &RecordRef<'_>, setup: &TrackerSetup) {
    // What was on its way before a start elsewhere does not belong to it.
    if !feed.flowing || record.offset < feed.next() {
        return;
    }
    let value = record.value.unwrap_or_default();
    match Event::decode(value) {
        Ok(event) => match home_of(&event, setup) {
            Some(home) if home != record.partition => {
                let why = format!("`{}` belongs to partition {home}: the key is the root's id, partitioned by murmur2", event.id);
                skip(feed, record, setup, &why);
            }
            _ => feed.push(event, record.offset, record.timestamp_ms, value.len()),
        },
        Err(DecodeError::Newer(version)) => feed.stop_at(record.offset, DecodeError::Newer(version).to_string()),
        Err(DecodeError::Malformed(why)) => skip(feed, record, setup, &why),
    }
}

/// The partition of the task that an event speaks of. Folded in another one it would make a second record of the task, which
/// nobody finds by its id.
fn home_of(event: &Event, setup: &TrackerSetup) -> Option<i32> {
    let home = || partition_of(event.id.root().as_bytes(), setup.events_partitions);
    if event.kind.is_of_no_task() { None } else { i32::try_from(home()).ok() }
}

fn skip(feed: &mut EventBatcher, record: &RecordRef<'_>, setup: &TrackerSetup, why: &str) {
    let partition = record.partition.to_string();
    tracing::warn!(partition, offset = record.offset, reason = %why, "a record on the events topic cannot be folded and is skipped");
    setup.metrics.events_skipped.with_label_values(&[&partition]).inc();
    feed.skip(record.offset);
}
