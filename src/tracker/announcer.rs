//! Announces what producers publish without a word: tasks whose records lack `ce_announced` show up as queued within a
//! moment, not only when a worker takes them. All trackers share the task topics' partitions in one group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::Instant;

use super::TrackerSetup;
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{BrokerError, Commit, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};
use crate::model::event::Event;
use crate::model::task::{Position, Source, header, read_task};
use crate::publish::Publisher;
use crate::runtime::{self, Backoff, Shutdown, now_ms};

/// Records read in one turn, and so announcements under way at once.
const BATCH: usize = 2_000;
const POLL_WAIT: Duration = Duration::from_millis(100);
/// Bytes of tasks that may lie prefetched in the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// How often new task topics are looked for.
const LOOK_FOR_TOPICS: Duration = Duration::from_secs(2);
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How it is named in the health report.
const PART: &str = "observer";

pub struct Announcer {
    setup: Arc<TrackerSetup>,
    publisher: Publisher,
    shutdown: Shutdown,
}

/// Observing a fixed set of topics.
struct Watch<'a> {
    observer: &'a Announcer,
    consumer: Box<dyn Consumer>,
    /// Behind the last record that is done with, where that is not committed yet.
    done: BTreeMap<Partition, i64>,
    last_commit: Instant,
    /// What the commit under way says.
    committing: Option<BTreeMap<Partition, i64>>,
    /// Assigned by the group, but where to start could not be read yet.
    unplaced: Vec<Partition>,
}

impl Announcer {
    /// Blocks for the producer's start.
    pub fn open(setup: Arc<TrackerSetup>, shutdown: Shutdown) -> Result<Self, BrokerError> {
        let link = SharedProducer::open(setup.broker.clone(), None)?;
        let publisher = Publisher::new(link, setup.names.clone(), setup.events_partitions, "kafleet/observer");
        Ok(Self { setup, publisher, shutdown })
    }

    /// Observes until the tracker stops, whatever goes wrong.
    pub async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        while !self.shutdown.is_draining() {
            match self.observe(&mut backoff).await {
                Ok(()) => self.setup.health.clear(PART),
                Err(error) => {
                    tracing::warn!(%error, "tasks are not observed; trying again");
                    self.setup.health.set(PART, format!("tasks of foreign producers are not announced: {error}"));
                    self.rest(backoff.next_wait()).await;
                }
            }
        }
    }

    /// Waits, unless the tracker stops.
    async fn rest(&self, wait: Duration) {
        let stopping = self.shutdown.drain.cancelled();
        let _ = tokio::time::timeout(wait, stopping).await;
    }

    /// Until the task topics are others, or the tracker stops.
    async fn observe(&self, backoff: &mut Backoff) -> Result<(), BrokerError> {
        let topics = self.topics()?;
        if topics.is_empty() {
            self.setup.health.clear(PART);
            self.rest(LOOK_FOR_TOPICS).await;
            return Ok(());
        }
        let spec = ConsumerSpec {
            group: Some(self.setup.names.observer_group()),
            topics: topics.clone(),
            prefetch_bytes: PREFETCH_BYTES,
            ..ConsumerSpec::default()
        };
        let consumer = self.setup.broker.consumer(&spec)?;
        let (done, unplaced, last_commit) = (BTreeMap::new(), Vec::new(), Instant::now());
        let mut watch = Watch { observer: self, consumer, done, last_commit, committing: None, unplaced };
        let mut looked = Instant::now();
        let outcome = loop {
            if self.shutdown.is_draining() {
                break Ok(());
            }
            if looked.elapsed() >= LOOK_FOR_TOPICS {
                looked = Instant::now();
                // Kafka's being away is told by the poll.
                if self.topics().is_ok_and(|now| now != topics) {
                    break Ok(());
                }
            }
            if let Err(error) = watch.turn().await {
                break Err(error);
            }
            self.setup.health.clear(PART);
            backoff.reset();
        };
        watch.leave();
        outcome
    }

    fn topics(&self) -> Result<Vec<String>, BrokerError> {
        let names = &self.setup.names;
        let mut topics: Vec<String> =
            self.setup.broker.topics(&names.tasks(""), CALL_DEADLINE)?.into_iter().map(|t| t.name).collect();
        topics.retain(|topic| names.type_of(topic).is_some());
        topics.sort();
        Ok(topics)
    }

    /// Writes these announcements; an error only when the tracker stops before Kafka has them all.
    async fn announce(&self, mut events: Vec<Event>) -> Result<(), BrokerError> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let publisher = &self.publisher;
            let written = stream::iter(events).map(|event| async move {
                let outcome = publisher.publish_event(&event).await;
                (event, outcome)
            });
            let outcomes: Vec<_> = written.buffered(BATCH).collect().await;
            let mut trouble = None;
            events = Vec::new();
            for (event, outcome) in outcomes {
                match outcome {
                    Ok(_) => {}
                    // A policy that makes the event too large for its topic: the worker's first event will tell.
                    Err(error @ (BrokerError::TooLarge(_) | BrokerError::Invalid(_))) => {
                        tracing::warn!(task = %event.id, %error, "a task cannot be announced");
                    }
                    Err(error) => {
                        trouble = Some(error);
                        events.push(event);
                    }
                }
            }
            let Some(error) = trouble else { return Ok(()) };
            if self.shutdown.is_draining() {
                return Err(error);
            }
            tracing::warn!(%error, waiting = events.len(), "tasks are not announced yet; trying again");
            self.setup.health.set(PART, format!("tasks of foreign producers are not announced: {error}"));
            self.rest(backoff.next_wait()).await;
        }
    }

    /// The event that announces a record's task. None: it is announced already, or it is no task, which the worker tells.
    fn announcement(&self, record: &RecordRef<'_>) -> Option<Event> {
        if is_announced(record) {
            return None;
        }
        let task_type = self.setup.names.type_of(record.topic)?.into();
        let source = Source {
            task_type: &task_type,
            position: Position { partition: record.partition, offset: record.offset },
            timestamp_ms: record.timestamp_ms,
            value: record.value,
        };
        let task = read_task(&source, record.headers()).ok()?;
        (!task.announced).then(|| Event::submitted(&task, now_ms()))
    }
}

/// Looked at before anything is read: most records are.
fn is_announced(record: &RecordRef<'_>) -> bool {
    let marked = |(name, value): (&str, Option<&[u8]>)| name == header::ANNOUNCED && matches!(value, Some(b"1" | b"true"));
    record.headers().any(marked)
}

impl Watch<'_> {
    async fn turn(&mut self) -> Result<(), BrokerError> {
        self.place()?;
        let (observer, done) = (self.observer, &mut self.done);
        let mut events = Vec::new();
        let mut read: BTreeMap<Partition, i64> = BTreeMap::new();
        let heard = self.consumer.poll(BATCH, runtime::waiting(POLL_WAIT).await, &mut |record| {
            events.extend(observer.announcement(record));
            match read.iter_mut().find(|(at, _)| at.index == record.partition && &*at.topic == record.topic) {
                Some((_, next)) => *next = record.offset + 1,
                None => drop(read.insert(Partition::new(record.topic, record.partition), record.offset + 1)),
            }
        })?;
        observer.announce(events).await?;
        done.extend(read);
        heard.into_iter().for_each(|event| self.group_event(event));
        self.commit_if_due();
        Ok(())
    }

    fn group_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Assigned(partitions) => self.unplaced.extend(partitions),
            GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => self.release(&partitions),
            // What lay there is gone: nothing of it can be announced.
            GroupEvent::OutOfRange(partition) => {
                if let Err(error) = self.consumer.assign(&[(partition, StartOffset::Beginning)]) {
                    tracing::warn!(%error, "the observer cannot go on behind a gap");
                }
            }
            GroupEvent::Committed { result, .. } => {
                let said = self.committing.take().unwrap_or_default();
                if let Err(error) = result {
                    tracing::debug!(%error, "a commit of the observer failed and will be made again");
                    said.into_iter().for_each(|(partition, next)| _ = self.done.entry(partition).or_insert(next));
                }
            }
            GroupEvent::Trouble(error) => tracing::debug!(%error, "trouble of the observer; going on"),
        }
    }

    fn release(&mut self, partitions: &[Partition]) {
        // What is done and not committed is announced again by the next owner: a second `submitted` changes nothing.
        self.commit_now(|partition| partitions.contains(partition));
        for done in self.committing.iter_mut().chain([&mut self.done]) {
            done.retain(|partition, _| !partitions.contains(partition));
        }
        self.unplaced.retain(|partition| !partitions.contains(partition));
        if let Err(error) = self.consumer.release(partitions) {
            tracing::warn!(%error, "the observer cannot give partitions back");
        }
    }

    /// Where the observers left off. Where none has been yet: where the workers are, for what they are through with is
    /// known, and may be forgotten again by now.
    fn place(&mut self) -> Result<(), BrokerError> {
        if self.unplaced.is_empty() {
            return Ok(());
        }
        let committed = self.consumer.committed(&self.unplaced, CALL_DEADLINE)?;
        let mut starts = Vec::new();
        for (partition, committed) in self.unplaced.iter().zip(committed) {
            let start = match committed {
                Some(committed) => StartOffset::At(committed.offset),
                None => self.where_workers_are(partition)?,
            };
            starts.push((partition.clone(), start));
        }
        self.consumer.assign(&starts)?;
        // A place that is chosen is kept, also where nothing comes that would commit it.
        self.done.extend(starts.into_iter().filter_map(|(partition, start)| match start {
            StartOffset::At(offset) => Some((partition, offset)),
            StartOffset::Beginning | StartOffset::End => None,
        }));
        self.unplaced.clear();
        Ok(())
    }

    fn where_workers_are(&self, partition: &Partition) -> Result<StartOffset, BrokerError> {
        let setup = &self.observer.setup;
        let Some(task_type) = setup.names.type_of(&partition.topic) else { return Ok(StartOffset::Beginning) };
        let (group, at) = (setup.names.group(task_type), std::slice::from_ref(partition));
        let committed = setup.broker.group_offsets(&group, at, CALL_DEADLINE)?.into_iter().next().flatten();
        let first = setup.broker.ends(partition, CALL_DEADLINE)?.first;
        Ok(StartOffset::At(committed.map_or(first, |committed| committed.offset.max(first))))
    }

    fn commit_if_due(&mut self) {
        if self.committing.is_some() || self.last_commit.elapsed() < COMMIT_INTERVAL {
            return;
        }
        self.last_commit = Instant::now();
        let commits = self.commits(|_| true);
        if !commits.is_empty() && self.consumer.commit(&commits).is_ok() {
            self.committing = Some(std::mem::take(&mut self.done));
        }
    }

    fn commit_now(&mut self, which: impl Fn(&Partition) -> bool) {
        let commits = self.commits(which);
        if !commits.is_empty()
            && let Err(error) = self.consumer.commit_sync(&commits)
        {
            tracing::debug!(%error, "the observer's last commit failed");
        }
    }

    fn commits(&self, which: impl Fn(&Partition) -> bool) -> Vec<Commit> {
        let done = self.done.iter().filter(|(partition, _)| which(partition));
        done.map(|(partition, next)| Commit { partition: partition.clone(), offset: *next, metadata: String::new() }).collect()
    }

    fn leave(mut self) {
        self.commit_now(|_| true);
        self.consumer.close(Duration::from_secs(5));
    }
}
