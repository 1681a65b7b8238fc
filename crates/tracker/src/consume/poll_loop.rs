//! Poll loop of the tracker, on a thread of its own: reads the assigned partitions and passes their events to the
//! partition tasks.
//!
//! The group assigns partitions, but not positions: each partition task reads the checkpoint of its store and requests
//! the offset to read from ([`SeekRequest`]). Until then its partition is not read. A partition task that is
//! slower than the log makes the loop wait, and after a while pause that partition only, so that it does not hold up
//! the others.
//!
//! Invariant: a partition task receives all events from its requested offset on, in order and without a gap. Records
//! that were fetched before the last seek are dropped, and batches carry the generation of their seek. A skipped
//! event would be lost forever, because the checkpoint would move past it.
//!
//! Read next: `event_batches.rs`, then `crates/tracker/src/project/partition_task.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, Commit, Consumer, GroupEvent, Partition, RecordRef, StartOffset};
use kafleet_model::event::{DecodeError, Event};
use kafleet_runtime::Shutdown;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event_batches::{BATCHES, EventBatch, EventBatcher};
use crate::setup::TrackerSetup;

const POLL_RECORDS: usize = 2_000;
const BUSY_WAIT: Duration = Duration::from_millis(2);
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Time for which polling waits for a partition task that is behind, while another task is idle. After it, the
/// partition that is behind is paused: a pause discards the client's prefetched records, and librdkafka takes up to a
/// second to fetch them again. If no events arrive for the other partitions meanwhile, the next wait is longer.
const MIN_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(1);
const FULL_WAIT: Duration = Duration::from_millis(1);
/// Interval of commits to the group. Informational, for lag monitoring; the checkpoint is authoritative.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Wait between attempts at moving the consumer to a requested offset.
const SEEK_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Name of the broker in the health report.
const BROKER_PART: &str = "events topic";

/// Request to read a partition from an offset.
pub(crate) struct SeekRequest {
    pub partition: i32,
    pub generation: u64,
    pub offset: i64,
}

/// Channels of an assigned partition, for the task that folds it.
pub(crate) struct PartitionHandle {
    pub number: i32,
    pub batches: mpsc::Receiver<EventBatch>,
    pub seek_sender: mpsc::UnboundedSender<SeekRequest>,
    /// Cancelled when the partition is released.
    pub stop: CancellationToken,
    /// Lower than the generation of any later seek, higher than those of earlier assignments.
    pub generation: u64,
}

/// Spawns the task of an assigned partition.
pub(crate) type SpawnPartition = Box<dyn Fn(PartitionHandle) + Send>;

pub(crate) struct PollLoop {
    setup: Arc<TrackerSetup>,
    spawn: SpawnPartition,
    /// Partitions to read without a group.
    fixed_partitions: Vec<Partition>,
    /// The consumer is a group member: the group assigns partitions and receives commits.
    in_group: bool,
    consumer: Box<dyn Consumer>,
    topic: Arc<str>,
    batchers: BTreeMap<i32, (EventBatcher, CancellationToken)>,
    /// Seek requests of partition tasks; bounded by the number of tasks.
    seek_requests: mpsc::UnboundedReceiver<SeekRequest>,
    seek_sender: mpsc::UnboundedSender<SeekRequest>,
    /// Seek requests that failed and are retried.
    pending_seeks: Vec<SeekRequest>,
    next_seek: Instant,
    /// Incremented per assignment, so that generations of different tasks of a partition never overlap.
    assignments: u64,
    committing: bool,
    last_commit: Instant,
    /// Start of the time during which a partition task has been idle because another one is behind.
    idle_since: Option<Instant>,
    /// Current limit of the time that a partition task may be idle.
    wait_limit: Duration,
    /// Events have arrived for another partition since one was paused.
    others_received: bool,
    shutdown: Shutdown,
}

impl PollLoop {
    pub(crate) fn new(
        setup: Arc<TrackerSetup>,
        consumer: Box<dyn Consumer>,
        shutdown: Shutdown,
        spawn: SpawnPartition,
    ) -> Self {
        let (seek_sender, seek_requests) = mpsc::unbounded_channel();
        let topic = setup.topology.names.events().into();
        let (batchers, now) = (BTreeMap::new(), Instant::now());
        setup.health.set("tracker", "waiting for the consumer group to assign partitions");
        Self {
            setup,
            spawn,
            fixed_partitions: Vec::new(),
            in_group: true,
            consumer,
            topic,
            batchers,
            seek_requests,
            seek_sender,
            pending_seeks: Vec::new(),
            next_seek: now,
            assignments: 0,
            committing: false,
            last_commit: now,
            idle_since: None,
            wait_limit: MIN_WAIT,
            others_received: true,
            shutdown,
        }
    }

    /// Reads these partitions with a consumer outside of a group.
    pub(crate) fn of(mut self, partitions: Vec<Partition>) -> Self {
        (self.fixed_partitions, self.in_group) = (partitions, false);
        self
    }

    /// Runs until the tracker stops or the consumer fails, then leaves the group.
    pub(crate) async fn run(mut self) -> Result<(), BrokerError> {
        let mut outcome = Ok(());
        let fixed_partitions = std::mem::take(&mut self.fixed_partitions);
        if !self.in_group {
            self.assign(&fixed_partitions);
        }
        while outcome.is_ok() && !self.shutdown.is_draining() {
            outcome = self.step().await;
        }
        self.batchers.values().for_each(|(_, stop)| stop.cancel());
        self.consumer.close(Duration::from_secs(5));
        outcome
    }

    /// Runs one iteration of the loop. An error means that the consumer has failed.
    async fn step(&mut self) -> Result<(), BrokerError> {
        if Instant::now() >= self.next_seek {
            std::mem::take(&mut self.pending_seeks).into_iter().for_each(|ask| self.seek(ask));
        }
        while let Ok(ask) = self.seek_requests.try_recv() {
            self.seek(ask);
        }
        self.release_abandoned();
        let batch = self.setup.config.batch_events;
        self.batchers.values_mut().for_each(|(batcher, _)| batcher.flush(batch));
        self.commit_if_due();
        let waiting = self.is_waiting();
        self.balance(waiting);
        if waiting {
            return self.poll(0, kafleet_runtime::waiting(FULL_WAIT).await);
        }
        let pending = self.batchers.values().any(|(batcher, _)| batcher.has_pending());
        self.poll(POLL_RECORDS, kafleet_runtime::waiting(if pending { BUSY_WAIT } else { IDLE_WAIT }).await)
    }

    /// Polls for at most `most` events and handles group events.
    fn poll(&mut self, most: usize, wait: Duration) -> Result<(), BrokerError> {
        let (batchers, setup) = (&mut self.batchers, &self.setup);
        let (mut received, mut others_received) = (false, false);
        let any_paused = batchers.values().any(|(batcher, _)| batcher.is_started && batcher.paused);
        let polled = self.consumer.poll(most, wait, &mut |record| {
            received = true;
            if let Some((batcher, _)) = batchers.get_mut(&record.partition) {
                others_received |= any_paused && !batcher.paused;
                batch_record(batcher, record, setup);
            }
        });
        self.others_received |= others_received;
        if received {
            self.setup.health.clear(BROKER_PART);
        }
        match polled {
            Ok(events) => events.into_iter().for_each(|event| self.group_event(event)),
            Err(error @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => return Err(error),
            Err(error) => self.report_broker_error(&error),
        }
        // Positions do not move if no records were requested.
        if most > 0 {
            self.skip_markers();
        }
        Ok(())
    }

    /// Advances over transaction markers, which occupy offsets but are never delivered.
    fn skip_markers(&mut self) {
        let positions = match self.consumer.positions() {
            Ok(positions) => positions,
            Err(error) => return self.report_broker_error(&error),
        };
        for (partition, next) in positions {
            if let Some((batcher, _)) = self.batchers.get_mut(&partition.index) {
                batcher.advance_to(next);
            }
        }
    }

    fn group_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Assigned(partitions) => self.assign(&partitions),
            GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => self.release(&partitions),
            GroupEvent::Committed(outcomes) => {
                self.committing = false;
                match outcomes.into_iter().try_for_each(|(_, outcome)| outcome) {
                    Ok(()) => self.setup.health.clear(BROKER_PART),
                    Err(error) => tracing::debug!(%error, "the tracker's offsets could not be committed"),
                }
            }
            GroupEvent::OutOfRange(partition) => self.out_of_range(&partition),
            GroupEvent::ClientError(error) => self.report_broker_error(&error),
        }
    }

    /// Spawns a task per partition, which reads the checkpoint and requests its start offset. The consumer is
    /// assigned only then: a consumer that is assigned at another offset and moved at once may still deliver records
    /// beyond events that were never folded.
    fn assign(&mut self, partitions: &[Partition]) {
        let numbers: Vec<i32> = partitions.iter().map(|partition| partition.index).collect();
        tracing::info!(partitions = ?numbers, "events partitions assigned");
        self.setup.health.clear("tracker");
        for number in numbers {
            self.assignments += 1;
            let generation = self.assignments << 32;
            let (out, batches) = mpsc::channel(BATCHES);
            let stop = CancellationToken::new();
            (self.spawn)(PartitionHandle {
                number,
                batches,
                seek_sender: self.seek_sender.clone(),
                stop: stop.clone(),
                generation,
            });
            self.batchers.insert(number, (EventBatcher::new(out, generation), stop));
        }
    }

    fn release_abandoned(&mut self) {
        let removed: Vec<i32> = self
            .batchers
            .iter()
            .filter(|(_, (batcher, _))| batcher.is_abandoned())
            .map(|(number, _)| *number)
            .collect();
        if !removed.is_empty() {
            let partitions: Vec<Partition> =
                removed.into_iter().map(|number| Partition::new(self.topic.clone(), number)).collect();
            self.release(&partitions);
        }
    }

    /// Stops the tasks of these partitions. A task may be in the middle of a batch; the checkpoint keeps it from
    /// overwriting its successor's work.
    fn release(&mut self, partitions: &[Partition]) {
        let numbers: Vec<i32> = partitions.iter().map(|partition| partition.index).collect();
        tracing::info!(partitions = ?numbers, "events partitions released");
        for number in numbers {
            if let Some((_, stop)) = self.batchers.remove(&number) {
                stop.cancel();
            }
        }
        if let Err(error) = self.consumer.release(partitions) {
            self.report_broker_error(&error);
        }
        if self.batchers.is_empty() {
            self.setup.health.clear(BROKER_PART);
        }
    }

    /// Moves the consumer to the requested offset. Until that succeeds, its records are dropped: they may lie beyond
    /// events that were never folded.
    fn seek(&mut self, ask: SeekRequest) {
        let partition = Partition::new(self.topic.clone(), ask.partition);
        let Some((batcher, _)) = self.batchers.get_mut(&ask.partition) else { return };
        // An equal generation is a retry of a failed seek.
        if ask.generation < batcher.generation {
            return;
        }
        batcher.start(ask.generation, ask.offset);
        let partitions = std::slice::from_ref(&partition);
        let moved = self.consumer.assign(&[(partition.clone(), StartOffset::At(ask.offset))]);
        match moved.and_then(|()| self.consumer.pause(partitions, false)) {
            Ok(()) => batcher.paused = false,
            Err(error) => {
                batcher.suspend();
                self.report_broker_error(&error);
                self.pending_seeks.push(ask);
                self.next_seek = Instant::now() + SEEK_RETRY_INTERVAL;
            }
        }
    }

    /// Returns true while polling should wait for a partition task that is behind and no other has been idle for
    /// long.
    fn is_waiting(&mut self) -> bool {
        let limit = self.setup.config.queue_events;
        let open = || {
            self.batchers.values().map(|(batcher, _)| batcher).filter(|batcher| batcher.is_started && !batcher.paused)
        };
        if !open().any(|batcher| batcher.is_full(limit)) {
            self.idle_since = None;
            return false;
        }
        if open().all(EventBatcher::has_pending) {
            self.idle_since = None;
            return true;
        }
        let waiting = self.idle_since.get_or_insert_with(Instant::now).elapsed() < self.wait_limit;
        if !waiting {
            self.idle_since = None;
            self.wait_limit = if self.others_received { MIN_WAIT } else { MAX_WAIT.min(self.wait_limit * 2) };
            self.others_received = false;
        }
        waiting
    }

    /// Pauses partitions whose tasks cannot keep up, and resumes those that have caught up.
    fn balance(&mut self, waiting: bool) {
        let limit = self.setup.config.queue_events;
        for (number, (batcher, _)) in &mut self.batchers {
            let pause = !batcher.is_started || (batcher.is_full(limit) && !waiting);
            let resume = batcher.is_started && !batcher.is_full((limit / 2).max(1));
            if (pause && !batcher.paused) || (resume && batcher.paused) {
                let partition = Partition::new(self.topic.clone(), *number);
                match self.consumer.pause(std::slice::from_ref(&partition), pause) {
                    Ok(()) => batcher.paused = pause,
                    Err(error) => tracing::warn!(%error, "cannot pause or resume a partition; retrying"),
                }
            }
        }
    }

    fn out_of_range(&mut self, partition: &Partition) {
        let Some((batcher, _)) = self.batchers.get_mut(&partition.index) else { return };
        let at = batcher.next();
        batcher.stop_at(
            at,
            format!(
                "offset {at} is out of range: events were removed before they were projected, or the topic was recreated"
            ),
        );
    }

    fn commit_if_due(&mut self) {
        if !self.in_group || self.committing || self.last_commit.elapsed() < COMMIT_INTERVAL {
            return;
        }
        self.last_commit = Instant::now();
        let is_started = self.batchers.iter().filter(|(_, (batcher, _))| batcher.was_started());
        let commits: Vec<Commit> = is_started
            .map(|(number, (batcher, _))| Commit {
                partition: Partition::new(self.topic.clone(), *number),
                offset: batcher.next(),
                metadata: String::new(),
            })
            .collect();
        if !commits.is_empty() {
            self.committing = self.consumer.commit(&commits).is_ok();
        }
    }

    /// Reports an error that the client retries by itself. Only relevant to health while partitions are assigned.
    fn report_broker_error(&self, error: &BrokerError) {
        tracing::warn!(%error, "broker error; continuing");
        if !self.batchers.is_empty() {
            self.setup.health.set(BROKER_PART, error.to_string());
        }
    }
}

fn batch_record(batcher: &mut EventBatcher, record: &RecordRef<'_>, setup: &TrackerSetup) {
    // Records fetched before the last seek belong to an older generation.
    if !batcher.is_started || record.offset < batcher.next() {
        return;
    }
    let value = record.value.unwrap_or_default();
    match Event::decode(value) {
        Ok(event) => match partition_of_event(&event, setup) {
            Some(partition) if partition != record.partition => {
                skip(batcher, record, setup, &misplacement(&event, partition));
            }
            _ => batcher.push(event, record.offset, record.timestamp_ms, value.len()),
        },
        Err(DecodeError::Newer(version)) => batcher.stop_at(record.offset, DecodeError::Newer(version).to_string()),
        Err(DecodeError::Malformed(error)) => skip(batcher, record, setup, &error),
    }
}

fn misplacement(event: &Event, partition: i32) -> String {
    format!(
        "`{}` belongs to partition {partition}: records are keyed by the root id and partitioned by murmur2",
        event.id
    )
}

/// Partition of an event's task. Folded in another partition, the event would create a second record that no lookup
/// by id finds.
fn partition_of_event(event: &Event, setup: &TrackerSetup) -> Option<i32> {
    if event.kind().is_partition_wide() { None } else { i32::try_from(setup.topology.partition_of(&event.id)).ok() }
}

fn skip(batcher: &mut EventBatcher, record: &RecordRef<'_>, setup: &TrackerSetup, error: &str) {
    let partition = record.partition.to_string();
    tracing::warn!(partition, offset = record.offset, reason = %error, "skipping an invalid record on the events topic");
    setup.metrics.tracker.events_skipped.with_label_values(&[&partition]).inc();
    batcher.skip(record.offset);
}
