//! Upkeep of one partition: publishes ticks while the log is idle, changed lifetimes, and events about silent workers
//! and lost tasks. A tracker that no longer owns the partition does no harm, because the projection validates each of
//! these events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{BrokerError, Partition};
use kafleet_fleet::control::follow::TopicFollower;
use kafleet_fleet::control::heartbeat;
use kafleet_fleet::control::heartbeat::{Heartbeat, HeartbeatState, TypeStatus, WorkerRegistry};
use kafleet_fleet::topics::{RequiredTopics, TopicStatus, TopicWatch};
use kafleet_model::event::{AttemptFailure, Event, InterruptionReason, Payload};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{now_ms, watch};
use kafleet_store::{Entry, Index, StoreError};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lost_tasks::{CompletedSearches, Gaps, LostTaskSearch};
use crate::error::TrackerError;
use crate::is_stopped_within;
use crate::outbox::entry::event_message;
use crate::outbox::relay::FoldProgress;
use crate::outbox::worker_progress::Surveys;
use crate::recorded_groups::RecordedGroups;
use crate::setup::TrackerSetup;

const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Records per read, and events per write.
pub(crate) const STEP_RECORDS: usize = 500;
/// Number of searches for the tasks of a silent worker, whose last events may reach the log late.
const LOST_TASK_SEARCHES: u32 = 3;
/// Partition of the workers topic, which has only one.
const WORKERS_PARTITION: i32 = 0;

/// State shared by the partitions of a tracker.
pub(crate) struct TrackerShared {
    workers: Arc<WorkerRegistry>,
    #[expect(dead_code, reason = "stops following the topic when dropped")]
    follower: TopicFollower,
    producer: OnceCell<Arc<SharedProducer>>,
    gaps: Mutex<(Option<Instant>, Gaps)>,
    topics: TopicWatch,
    pub groups: Arc<RecordedGroups>,
    /// Consumption progress of workers.
    pub surveys: Surveys,
}

impl TrackerShared {
    pub(crate) fn open(setup: &TrackerSetup) -> Arc<Self> {
        let workers = Arc::new(WorkerRegistry::default());
        let follower = heartbeat::listen(workers.clone(), setup.broker.clone(), &setup.topology.names);
        let needs = RequiredTopics::tracker(&setup.topology, &setup.lifetimes);
        let (client, health) = (setup.broker.client(), setup.health.clone());
        let topics = TopicWatch::start(&client, needs, health, "tracker's topics", setup.topic_check.into());
        let groups = Arc::new(RecordedGroups::follow(setup));
        Arc::new(Self {
            workers,
            follower,
            producer: OnceCell::new(),
            gaps: Mutex::default(),
            topics,
            surveys: Surveys::new(groups.clone()),
            groups,
        })
    }

    /// Suitability of the events topic.
    pub(crate) async fn topics(&self) -> TopicStatus {
        self.topics.status().await
    }

    pub(crate) async fn producer(&self, setup: &TrackerSetup) -> Result<&Arc<SharedProducer>, BrokerError> {
        let broker = setup.broker.client();
        self.producer.get_or_try_init(|| broker.shared_producer(None)).await
    }

    /// Gaps in the task topics, determined once for all partitions.
    async fn gaps(&self, setup: &TrackerSetup) -> Result<Gaps, BrokerError> {
        let mut cached = self.gaps.lock().await;
        if cached.0.is_none_or(|at| at.elapsed() >= gap_interval(setup)) {
            let mut gaps = Gaps::find(setup, &self.groups).await?;
            if let Some(taken) = self.live_types(setup).await? {
                gaps.set_live_types(&taken);
            }
            *cached = (Some(Instant::now()), gaps);
        }
        Ok(cached.1.clone())
    }

    /// Statuses of the types of live workers, as of their last heartbeats.
    pub(crate) fn live_statuses(&self) -> Vec<TypeStatus> {
        let now = now_ms();
        let live = self.workers.heartbeats().into_iter().filter(|(seen_ms, heartbeat)| {
            heartbeat.state == HeartbeatState::Running && !heartbeat.is_silent(*seen_ms, now)
        });
        live.flat_map(|(_, heartbeat)| heartbeat.types).collect()
    }

    /// Types that live workers take; `None` until all heartbeats are read.
    async fn live_types(&self, setup: &TrackerSetup) -> Result<Option<BTreeSet<Arc<str>>>, BrokerError> {
        if !self.has_read_heartbeats(setup).await? {
            return Ok(None);
        }
        let (now, heartbeats) = (now_ms(), self.workers.heartbeats());
        let live = heartbeats.iter().filter(|(seen_ms, heartbeat)| {
            heartbeat.state != HeartbeatState::Stopped && !is_silent(setup, heartbeat, *seen_ms, now)
        });
        Ok(Some(live.flat_map(|(_, heartbeat)| &heartbeat.types).map(|part| part.task_type.as_str().into()).collect()))
    }

    /// Returns true if all heartbeats are read. Otherwise every worker would seem silent.
    async fn has_read_heartbeats(&self, setup: &TrackerSetup) -> Result<bool, BrokerError> {
        let partition = Partition::new(setup.topology.names.workers(), WORKERS_PARTITION);
        let ends = setup.broker.client().watermarks(&partition).await?;
        Ok(self.workers.has_read(ends))
    }
}

/// Workers that report nothing more, with their last states.
type SilentWorkers = BTreeMap<Arc<str>, HeartbeatState>;

/// Search for the tasks of a silent worker.
struct SilentWorker {
    /// End of the partition at the detection. The store shows the worker's tasks once it is folded up to here.
    end: i64,
    /// Time of the detection, or at which the fold reached `end`.
    since: Instant,
    searches: u32,
}

pub(crate) struct PartitionUpkeep {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: u32,
    events: Arc<str>,
    folded: watch::Receiver<FoldProgress>,
    stop: CancellationToken,
    /// Offset of the fold at the last check, and since when.
    seen: (i64, Instant),
    /// End of the partition at the start; `None` once the lifetimes are checked.
    initial_end: Option<i64>,
    /// Silent workers, and the searches for their tasks.
    silent: BTreeMap<Arc<str>, SilentWorker>,
    searched: CompletedSearches,
    last_gap_check: Instant,
    /// New gaps, and the offset up to which the store must be folded before the search.
    pending_search: Option<(Gaps, i64)>,
}

impl PartitionUpkeep {
    pub(crate) fn new(
        setup: Arc<TrackerSetup>,
        shared: Arc<TrackerShared>,
        number: u32,
        folded: watch::Receiver<FoldProgress>,
        stop: CancellationToken,
    ) -> Self {
        let (events, now) = (setup.topology.names.events().into(), Instant::now());
        let seen = (folded.get().offset, now);
        let (silent, searched) = (BTreeMap::new(), CompletedSearches::default());
        let (initial_end, pending_search) = (Some(-1), None);
        Self {
            setup,
            shared,
            number,
            events,
            folded,
            stop,
            seen,
            initial_end,
            silent,
            searched,
            last_gap_check: now,
            pending_search,
        }
    }

    /// Runs until the session of the partition task ends.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        let interval = CHECK_INTERVAL.min(Duration::from(self.setup.config.tick) / 4);
        while !is_stopped_within(interval, &stop).await {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                outcome = self.run_once() => {
                    // The next check retries.
                    if let Err(error) = outcome {
                        tracing::debug!(partition = self.number, reason = %error, "upkeep failed; retrying");
                    }
                }
            }
        }
    }

    async fn run_once(&mut self) -> Result<(), TrackerError> {
        self.publish_lifetimes().await?;
        self.tick().await?;
        self.publish_silent_workers().await?;
        self.publish_lost_tasks().await
    }

    /// Publishes these events concurrently.
    async fn write(&self, events: &[Event]) -> Result<(), TrackerError> {
        let producer = self.shared.producer(&self.setup).await?;
        let messages = events.iter().map(|event| event_message(&self.events, self.number, event));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let sent = messages.iter().map(|message| producer.deliver(message.producer_record(&[]), CALL_DEADLINE));
        futures::future::try_join_all(sent).await?;
        Ok(())
    }

    /// Current end of the partition.
    async fn end(&self) -> Result<i64, BrokerError> {
        let partition = Partition::new(self.events.clone(), self.number as i32);
        let ends = self.setup.broker.client().watermarks(&partition).await?;
        Ok(ends.high)
    }

    /// Publishes the configured lifetimes if they differ from the last ones in the log, as read up to its end at the
    /// start.
    async fn publish_lifetimes(&mut self) -> Result<(), TrackerError> {
        let Some(end) = self.initial_end else { return Ok(()) };
        if end < 0 {
            self.initial_end = Some(self.end().await?);
            return Ok(());
        }
        if self.folded.get().offset < end {
            return Ok(());
        }
        let (mut reader, _) = self.setup.store.open(self.number).await?;
        let outcome = reader.lifetimes().await?.unwrap_or_default();
        if outcome != self.setup.lifetimes {
            self.write(&[Event::settings(self.setup.lifetimes.clone(), now_ms())]).await?;
        }
        self.initial_end = None;
        Ok(())
    }

    /// Publishes a tick if the log is idle and something can expire, so that log time advances.
    async fn tick(&mut self) -> Result<(), TrackerError> {
        let offset = self.folded.get().offset;
        if offset != self.seen.0 {
            self.seen = (offset, Instant::now());
        }
        if self.seen.1.elapsed() < Duration::from(self.setup.config.tick) {
            return Ok(());
        }
        if self.has_expiring().await? {
            self.write(&[Event::tick(now_ms())]).await?;
        }
        self.seen.1 = Instant::now();
        Ok(())
    }

    async fn has_expiring(&self) -> Result<bool, StoreError> {
        let store = &self.setup.store;
        let open = store.page(self.number, &Index::Ages, None, 1).await?;
        Ok(!open.is_empty() || !store.done(self.number, i64::MIN, 1).await?.is_empty())
    }

    async fn publish_silent_workers(&mut self) -> Result<(), TrackerError> {
        let silent = self.silent_workers();
        if silent.is_empty() {
            self.silent.clear();
            return Ok(());
        }
        if !self.shared.has_read_heartbeats(&self.setup).await? {
            return Ok(());
        }
        let end = if silent.keys().all(|id| self.silent.contains_key(id)) { 0 } else { self.end().await? };
        let (types, workers) = self.due_searches(&silent, end);
        if workers.is_empty() {
            return Ok(());
        }
        let mut has_found = false;
        for task_type in types {
            for state in State::ALL.into_iter().filter(|state| state.is_at_worker() || *state == State::Scheduled) {
                let index = Index::Members { task_type: Arc::clone(&task_type), state };
                has_found |= self.publish_silent_tasks(&index, &workers).await?;
            }
        }
        if has_found {
            self.searched.forget();
            self.pending_search = None;
        }
        for id in workers.into_keys() {
            self.silent.entry(id).and_modify(|silent| silent.searches += 1);
        }
        Ok(())
    }

    /// Returns the silent workers whose tasks are to be searched now, with their types. `end`: current end of the
    /// partition.
    fn due_searches(
        &mut self,
        silent: &BTreeMap<Arc<str>, Heartbeat>,
        end: i64,
    ) -> (BTreeSet<Arc<str>>, SilentWorkers) {
        self.silent.retain(|id, _| silent.contains_key(id));
        let (folded, now) = (self.folded.get().offset, Instant::now());
        let mut types = BTreeSet::new();
        let mut workers = SilentWorkers::new();
        for (id, heartbeat) in silent {
            let search = self.silent.entry(id.clone());
            let search = search.or_insert_with(|| SilentWorker { end, since: now, searches: 0 });
            if folded < search.end {
                search.since = now;
                continue;
            }
            let due = Duration::from_millis(heartbeat.every_ms).saturating_mul(search.searches + 1);
            if search.searches < LOST_TASK_SEARCHES && search.since.elapsed() >= due {
                types.extend(heartbeat.types.iter().map(|part| part.task_type.as_str().into()));
                workers.insert(id.clone(), heartbeat.state);
            }
        }
        (types, workers)
    }

    fn silent_workers(&self) -> BTreeMap<Arc<str>, Heartbeat> {
        let (now, heartbeats) = (now_ms(), self.shared.workers.heartbeats());
        heartbeats
            .into_iter()
            .filter(|(seen_ms, heartbeat)| match heartbeat.state {
                // A stopped worker reports nothing more about tasks that it did not finish.
                HeartbeatState::Stopped => heartbeat.unfinished,
                HeartbeatState::Running | HeartbeatState::Draining => is_silent(&self.setup, heartbeat, *seen_ms, now),
            })
            .map(|(_, heartbeat)| (heartbeat.id.as_str().into(), heartbeat))
            .collect()
    }

    /// Publishes events for tasks of an index that are held by these workers. Returns whether there were any.
    async fn publish_silent_tasks(&self, index: &Index, workers: &SilentWorkers) -> Result<bool, TrackerError> {
        let mut after: Option<Entry> = None;
        let mut has_found = false;
        loop {
            let page = self.setup.store.page(self.number, index, after.as_ref(), STEP_RECORDS).await?;
            let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
            let tasks = self.setup.store.task_records(self.number, &ids).await?;
            let events = ids.iter().zip(tasks).filter_map(|(id, task)| silent_event(id, task?, workers));
            let events: Vec<Event> = events.collect();
            has_found |= !events.is_empty();
            self.write(&events).await?;
            if page.len() < STEP_RECORDS {
                return Ok(has_found);
            }
            after = page.last().cloned();
        }
    }

    async fn publish_lost_tasks(&mut self) -> Result<(), TrackerError> {
        if self.pending_search.is_none() {
            self.find_gaps().await?;
        }
        // Search only after the fold has passed this point, because each gap is searched once.
        let folded = self.folded.get().offset;
        let Some((gaps, _)) = self.pending_search.take_if(|(_, end)| *end <= folded) else { return Ok(()) };
        let mut search = LostTaskSearch::new(gaps.clone());
        while let Some(events) = search.step(&*self.setup.store, self.number).await? {
            self.write(&events).await?;
            for task_type in search.take_lost_types() {
                self.setup.metrics.tracker.lost.with_label_values(&[&*task_type]).inc();
            }
        }
        self.searched.record_search(gaps);
        Ok(())
    }

    async fn find_gaps(&mut self) -> Result<(), BrokerError> {
        if self.last_gap_check.elapsed() < gap_interval(&self.setup) {
            return Ok(());
        }
        self.last_gap_check = Instant::now();
        let gaps = self.searched.unsettled(&self.shared.gaps(&self.setup).await?);
        if !gaps.is_empty() {
            self.pending_search = Some((gaps, self.end().await?));
        }
        Ok(())
    }
}

fn is_silent(setup: &TrackerSetup, heartbeat: &Heartbeat, seen_ms: i64, now: i64) -> bool {
    match setup.config.worker_silent {
        None => heartbeat.is_silent(seen_ms, now),
        Some(after) => now.saturating_sub(seen_ms) > after.as_i64(),
    }
}

/// Interval of checks for removed records.
fn gap_interval(setup: &TrackerSetup) -> Duration {
    Duration::from(setup.config.tick) / 2
}

/// Event for a task that is held by one of these workers, unless it was published already. A worker that has stopped in
/// order is not silent: the task waits for its next owner.
fn silent_event(id: &TaskId, task: TaskRecord, workers: &SilentWorkers) -> Option<Event> {
    let worker = task.worker.clone().filter(|worker| task.is_held() && workers.contains_key(worker))?;
    let (payload, message) = match workers.get(&worker) {
        Some(HeartbeatState::Stopped) => {
            let (error, message) = (InterruptionReason::WorkerStopped, format!("`{worker}` has stopped"));
            (Payload::Interrupted(AttemptFailure::new(error.code(), message, task.attempt)), None)
        }
        _ => (Payload::WorkerSilent, Some(format!("`{worker}` has stopped sending heartbeats"))),
    };
    let event = Event::new(payload, id.clone(), task.run, now_ms());
    Some(Event { attempt: task.attempt, message, worker: Some(worker), ..event })
}
