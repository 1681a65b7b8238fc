//! Announces tasks whose records lack `ce_announced`, so that they appear as queued within moments and not only when
//! a worker takes them. All trackers share the partitions of the task topics in one group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{
    BrokerError, Commit, CommitOutcomes, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset,
};
use kafleet_fleet::control::GroupRecords;
use kafleet_fleet::control::settings::{FleetSettingsError, read_control_blocking};
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::Event;
use kafleet_model::task::hash::spawn_hash;
use kafleet_model::task::{Position, RecordSource, header, read_task};
use kafleet_runtime::{Backoff, Shutdown, now_ms};
use tokio::time::Instant;

use super::SESSION_TIMEOUT;
use super::setup::TrackerSetup;

/// Records per poll, and so the maximum of concurrent announcements.
const POLL_RECORDS: usize = 2_000;
const POLL_WAIT: Duration = Duration::from_millis(100);
/// Maximum bytes of tasks prefetched by the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// Interval of checks for new task topics.
const TOPIC_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Name in the health report.
const HEALTH_PART: &str = "announcer";

pub(super) struct Announcer {
    setup: Arc<TrackerSetup>,
    publisher: Publisher,
    shutdown: Shutdown,
}

/// Consumption of one set of topics.
struct AnnouncerSubscription<'a> {
    announcer: &'a Announcer,
    consumer: Box<dyn Consumer>,
    /// Next offset after the last processed record, if not yet committed.
    processed: BTreeMap<Partition, i64>,
    last_commit: Instant,
    /// Offsets of the commit in flight.
    committing: Option<BTreeMap<Partition, i64>>,
    /// Assigned partitions whose start offset could not be determined yet.
    unstarted: Vec<Partition>,
}

impl Announcer {
    /// Opens the producer. Blocks.
    pub(super) fn open(setup: Arc<TrackerSetup>, shutdown: Shutdown) -> Result<Self, BrokerError> {
        let producer = SharedProducer::open(setup.broker.clone(), None)?;
        let publisher = Publisher::new(producer, setup.topology.clone(), "kafleet/announcer");
        Ok(Self { setup, publisher, shutdown })
    }

    /// Runs until the tracker stops; errors are retried.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        while !self.shutdown.is_draining() {
            match self.consume_topics(&mut backoff).await {
                Ok(()) => self.setup.health.clear(HEALTH_PART),
                Err(error) => {
                    tracing::warn!(%error, "cannot read tasks to announce; retrying");
                    self.setup
                        .health
                        .set(HEALTH_PART, format!("tasks of foreign producers are not announced: {error}"));
                    self.pause(backoff.next_wait()).await;
                }
            }
        }
    }

    /// Waits, or returns early when the tracker stops.
    async fn pause(&self, wait: Duration) {
        let stopping = self.shutdown.drain.cancelled();
        let _ = tokio::time::timeout(wait, stopping).await;
    }

    /// Consumes until the set of task topics changes or the tracker stops.
    async fn consume_topics(&self, backoff: &mut Backoff) -> Result<(), BrokerError> {
        let topics = self.topics()?;
        if topics.is_empty() {
            self.setup.health.clear(HEALTH_PART);
            self.pause(TOPIC_CHECK_INTERVAL).await;
            return Ok(());
        }
        let spec = ConsumerSpec {
            group: Some(self.setup.topology.names.announcer_group()),
            topics: topics.clone(),
            prefetch_bytes: PREFETCH_BYTES,
            session_timeout: Some(SESSION_TIMEOUT),
            ..ConsumerSpec::default()
        };
        let consumer = self.setup.broker.consumer(&spec)?;
        let (processed, unstarted, last_commit) = (BTreeMap::new(), Vec::new(), Instant::now());
        let mut subscription =
            AnnouncerSubscription { announcer: self, consumer, processed, last_commit, committing: None, unstarted };
        let outcome = self.consume(&mut subscription, &topics, backoff).await;
        subscription.close();
        outcome
    }

    async fn consume(
        &self,
        subscription: &mut AnnouncerSubscription<'_>,
        topics: &[String],
        backoff: &mut Backoff,
    ) -> Result<(), BrokerError> {
        let mut last_topic_check = Instant::now();
        while !self.shutdown.is_draining() {
            if last_topic_check.elapsed() >= TOPIC_CHECK_INTERVAL {
                last_topic_check = Instant::now();
                // If Kafka is unavailable, the poll reports it.
                if self.topics().is_ok_and(|now| now != topics) {
                    break;
                }
            }
            subscription.poll().await?;
            self.setup.health.clear(HEALTH_PART);
            backoff.reset();
        }
        Ok(())
    }

    fn topics(&self) -> Result<Vec<String>, BrokerError> {
        let names = &self.setup.topology.names;
        let mut topics: Vec<String> =
            self.setup.broker.topics(&names.tasks(""), CALL_DEADLINE)?.into_iter().map(|t| t.name).collect();
        topics.retain(|topic| names.type_of(topic).is_some());
        topics.sort();
        Ok(topics)
    }

    /// Publishes announcements, with retries. Fails only if the tracker stops before Kafka has acknowledged all of
    /// them.
    async fn announce(&self, mut events: Vec<Event>) -> Result<(), BrokerError> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let publisher = &self.publisher;
            let written = stream::iter(events).map(|event| async move {
                let outcome = publisher.publish_event(&event).await;
                (event, outcome)
            });
            let outcomes: Vec<_> = written.buffered(POLL_RECORDS).collect().await;
            let failure;
            (events, failure) = self.unannounced(outcomes);
            let Some(error) = failure else { return Ok(()) };
            if self.shutdown.is_draining() {
                return Err(error);
            }
            tracing::warn!(%error, waiting = events.len(), "cannot announce tasks; retrying");
            self.setup.health.set(HEALTH_PART, format!("tasks of foreign producers are not announced: {error}"));
            self.pause(backoff.next_wait()).await;
        }
    }

    /// Counts the announced tasks, and returns the events to publish again with the last of their errors.
    fn unannounced<T>(&self, outcomes: Vec<(Event, Result<T, BrokerError>)>) -> (Vec<Event>, Option<BrokerError>) {
        let (mut events, mut failure) = (Vec::new(), None);
        for (event, outcome) in outcomes {
            match outcome {
                Ok(_) => self.count(&event),
                // A policy can make the event too large for its topic; the worker's first event reveals the task then.
                Err(error @ (BrokerError::TooLarge(_) | BrokerError::Invalid(_))) => {
                    tracing::warn!(task = %event.id, %error, "a task cannot be announced");
                }
                Err(error) => {
                    failure = Some(error);
                    events.push(event);
                }
            }
        }
        (events, failure)
    }

    /// Counts an announced task.
    fn count(&self, event: &Event) {
        if let Some(announcement) = &event.task {
            self.setup.metrics.tasks.submitted.with_label_values(&[&*announcement.task_type]).inc();
        }
    }

    /// Builds the announcement of a record's task. `None` if it is announced already or invalid (reported by the
    /// worker).
    fn announcement(&self, record: &RecordRef<'_>) -> Option<Event> {
        if is_announced(record) {
            return None;
        }
        let task_type = self.setup.topology.names.type_of(record.topic)?.into();
        let source = RecordSource {
            task_type: &task_type,
            position: Position { partition: record.partition, offset: record.offset },
            timestamp_ms: record.timestamp_ms,
            value: record.value,
        };
        let mut task = read_task(&source, record.headers()).ok()?;
        // The worker hands a unique task of a foreign producer over as an ask, which announces it.
        if task.announced || task.ask_rule().is_some() {
            return None;
        }
        // Compared with that of other records of this id: a second task of the name is found.
        if task.hash.is_none() {
            task.hash = spawn_hash(&task_type, &task.params).ok().map(Into::into);
        }
        Some(Event::submitted(&task, Some(source.position), now_ms()))
    }
}

/// Checks the header before the record is decoded, because most records are announced.
fn is_announced(record: &RecordRef<'_>) -> bool {
    let marked =
        |(name, value): (&str, Option<&[u8]>)| name == header::ANNOUNCED && matches!(value, Some(b"1" | b"true"));
    record.headers().any(marked)
}

impl AnnouncerSubscription<'_> {
    async fn poll(&mut self) -> Result<(), BrokerError> {
        self.start_partitions()?;
        let (announcer, processed) = (self.announcer, &mut self.processed);
        let mut events = Vec::new();
        let mut next_offsets: BTreeMap<Partition, i64> = BTreeMap::new();
        let group_events =
            self.consumer.poll(POLL_RECORDS, kafleet_runtime::waiting(POLL_WAIT).await, &mut |record| {
                events.extend(announcer.announcement(record));
                match next_offsets.iter_mut().find(|(at, _)| at.index == record.partition && &*at.topic == record.topic)
                {
                    Some((_, next)) => *next = record.offset + 1,
                    None => {
                        next_offsets.insert(Partition::new(record.topic, record.partition), record.offset + 1);
                    }
                }
            })?;
        announcer.announce(events).await?;
        processed.extend(next_offsets);
        group_events.into_iter().for_each(|event| self.group_event(event));
        self.commit_if_due();
        Ok(())
    }

    fn group_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Assigned(partitions) => self.unstarted.extend(partitions),
            GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => self.release(&partitions),
            // The records are gone and cannot be announced.
            GroupEvent::OutOfRange(partition) => {
                if let Err(error) = self.consumer.assign(&[(partition, StartOffset::Beginning)]) {
                    tracing::warn!(%error, "the announcer cannot seek to the beginning of the log");
                }
            }
            GroupEvent::Committed(outcomes) => self.committed(outcomes),
            GroupEvent::ClientError(error) => tracing::debug!(%error, "error in the announcer's consumer; continuing"),
        }
    }

    /// Takes back the offsets of failed commits.
    fn committed(&mut self, outcomes: CommitOutcomes) {
        let mut committing = self.committing.take().unwrap_or_default();
        for (partition, outcome) in outcomes {
            let next = committing.remove(&partition);
            if let (Err(error), Some(next)) = (outcome, next) {
                tracing::debug!(%partition, %error, "a commit of the announcer failed; retrying");
                self.processed.entry(partition).or_insert(next);
            }
        }
    }

    fn release(&mut self, partitions: &[Partition]) {
        // The next owner announces records after the last commit again: a second `submitted` changes nothing.
        self.commit_now(|partition| partitions.contains(partition));
        for processed in self.committing.iter_mut().chain([&mut self.processed]) {
            processed.retain(|partition, _| !partitions.contains(partition));
        }
        self.unstarted.retain(|partition| !partitions.contains(partition));
        if let Err(error) = self.consumer.release(partitions) {
            tracing::warn!(%error, "the announcer cannot release partitions");
        }
    }

    /// Starts new partitions at the group's committed offset or, without one, at the workers' committed offset: tasks
    /// before that are already known and may have been removed again.
    fn start_partitions(&mut self) -> Result<(), BrokerError> {
        if self.unstarted.is_empty() {
            return Ok(());
        }
        let starts = self.start_offsets()?;
        self.consumer.assign(&starts)?;
        // Commit the chosen offset even if no record follows.
        self.processed.extend(starts.into_iter().filter_map(|(partition, start)| match start {
            StartOffset::At(offset) => Some((partition, offset)),
            StartOffset::Beginning | StartOffset::End => None,
        }));
        self.unstarted.clear();
        Ok(())
    }

    fn start_offsets(&mut self) -> Result<Vec<(Partition, StartOffset)>, BrokerError> {
        let committed = self.consumer.committed(&self.unstarted, CALL_DEADLINE)?;
        let groups = if committed.iter().all(Option::is_some) { GroupRecords::default() } else { self.groups()? };
        let mut starts = Vec::new();
        for (partition, committed) in self.unstarted.iter().zip(committed) {
            let start = match committed {
                Some(committed) => StartOffset::At(committed.offset),
                None => self.worker_position(partition, &groups)?,
            };
            starts.push((partition.clone(), start));
        }
        Ok(starts)
    }

    /// Reads the consumer groups of the types.
    fn groups(&self) -> Result<GroupRecords, BrokerError> {
        let setup = &self.announcer.setup;
        match read_control_blocking(&*setup.broker, &setup.topology.names, CALL_DEADLINE) {
            Ok(settings) => Ok(settings.groups),
            Err(FleetSettingsError::Missing(_)) => Ok(GroupRecords::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn worker_position(&self, partition: &Partition, groups: &GroupRecords) -> Result<StartOffset, BrokerError> {
        let setup = &self.announcer.setup;
        let Some(task_type) = setup.topology.names.type_of(&partition.topic) else { return Ok(StartOffset::Beginning) };
        let group = setup.topology.names.group_id(task_type, groups.group_of(task_type));
        let at = std::slice::from_ref(partition);
        let committed = setup.broker.group_offsets(&group, at, CALL_DEADLINE)?.into_iter().next().flatten();
        let first = setup.broker.watermarks(partition, CALL_DEADLINE)?.low;
        Ok(StartOffset::At(committed.map_or(first, |committed| committed.offset.max(first))))
    }

    fn commit_if_due(&mut self) {
        if self.committing.is_some() || self.last_commit.elapsed() < COMMIT_INTERVAL {
            return;
        }
        self.last_commit = Instant::now();
        let commits = self.commits(|_| true);
        if !commits.is_empty() && self.consumer.commit(&commits).is_ok() {
            self.committing = Some(std::mem::take(&mut self.processed));
        }
    }

    fn commit_now(&mut self, which: impl Fn(&Partition) -> bool) {
        let commits = self.commits(which);
        if !commits.is_empty()
            && let Err(error) = self.consumer.commit_sync(&commits)
        {
            tracing::debug!(%error, "the announcer's last commit failed");
        }
    }

    fn commits(&self, which: impl Fn(&Partition) -> bool) -> Vec<Commit> {
        let processed = self.processed.iter().filter(|(partition, _)| which(partition));
        processed
            .map(|(partition, next)| Commit { partition: partition.clone(), offset: *next, metadata: String::new() })
            .collect()
    }

    fn close(mut self) {
        self.commit_now(|_| true);
        self.consumer.close(Duration::from_secs(5));
    }
}
