//! Beside each folder: writes what the log of its partition has to be told. That time has passed where nothing happens,
//! how long trees last where that has changed, which workers are not heard of any more, which queued tasks Kafka has
//! removed. A tracker that has lost the partition and does not know it yet does no harm: the fold holds each of these
//! against what it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OnceCell, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lost_tasks::{Gaps, LostTaskSearch, Searched};
use crate::broker::Partition;
use crate::broker::shared_producer::SharedProducer;
use crate::control::follow::TopicFollower;
use crate::control::heartbeat;
use crate::control::heartbeat::{Heartbeat, HeartbeatState, WorkerRegistry};
use crate::model::event::{Event, Kind};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::runtime::{blocking, now_ms};
use crate::store::{Entry, Index, StoreError};
use crate::topics::{Needs, Standing, TopicWatch};
use crate::tracker::TrackerSetup;
use crate::tracker::outbox::entry::event_message;
use crate::tracker::outbox::relay::Folded;
use crate::tracker::outbox::worker_progress::Surveys;

const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);
/// Records looked at in one step, and events written at once.
pub const STEP: usize = 500;
/// How often the tasks of a silent worker are looked for: the fold may not have come to all of them at first.
const SEARCHES: u32 = 3;
/// The workers topic has one partition.
const WORKERS_PARTITION: i32 = 0;

/// What the keepers of a tracker share.
pub struct TrackerShared {
    roll: Arc<WorkerRegistry>,
    #[expect(dead_code, reason = "its drop ends the listening")]
    listening: TopicFollower,
    link: OnceCell<Arc<SharedProducer>>,
    gaps: Mutex<(Option<Instant>, Gaps)>,
    topics: TopicWatch,
    /// How far workers are.
    pub surveys: Surveys,
}

impl TrackerShared {
    pub fn open(setup: &TrackerSetup) -> Arc<Self> {
        let roll = Arc::new(WorkerRegistry::default());
        let listening = heartbeat::listen(roll.clone(), setup.broker.clone(), &setup.names);
        let needs = Needs::tracker(&setup.names, setup.events_partitions, &setup.lifetimes);
        let (broker, health) = (setup.broker.clone(), setup.health.clone());
        let topics = TopicWatch::start(broker, needs, health, "tracker's topics", setup.topic_check.into());
        Arc::new(Self { roll, listening, link: OnceCell::new(), gaps: Mutex::default(), topics, surveys: Surveys::default() })
    }

    /// Whether the events topic may be folded.
    pub async fn topics(&self) -> Standing {
        self.topics.standing().await
    }

    pub async fn link(&self, setup: &TrackerSetup) -> Result<&Arc<SharedProducer>, String> {
        let broker = setup.broker.clone();
        let open = || async { blocking(move || SharedProducer::open(broker, None)).await?.map_err(|error| error.to_string()) };
        self.link.get_or_try_init(open).await
    }

    /// What Kafka has removed before a worker took it; looked up once for all keepers.
    async fn gaps(&self, setup: &TrackerSetup) -> Result<Gaps, String> {
        let mut known = self.gaps.lock().await;
        if known.0.is_none_or(|at| at.elapsed() >= between_gaps(setup)) {
            let mut gaps = Gaps::find(setup).await?;
            if let Some(taken) = self.taken_types(setup).await? {
                gaps.note_workers(&taken);
            }
            *known = (Some(Instant::now()), gaps);
        }
        Ok(known.1.clone())
    }

    /// The types that live workers take. `None` where not all heartbeats have been read.
    async fn taken_types(&self, setup: &TrackerSetup) -> Result<Option<BTreeSet<Arc<str>>>, String> {
        if !self.has_heard_all(setup).await? {
            return Ok(None);
        }
        let (now, beats) = (now_ms(), self.roll.beats());
        let live =
            beats.iter().filter(|(heard, beat)| beat.state != HeartbeatState::Stopped && !is_silent(setup, beat, *heard, now));
        Ok(Some(live.flat_map(|(_, beat)| &beat.types).map(|part| part.task_type.as_str().into()).collect()))
    }

    /// A tracker that hears nobody would think that all of them are silent.
    async fn has_heard_all(&self, setup: &TrackerSetup) -> Result<bool, String> {
        let (broker, at) = (setup.broker.clone(), Partition::new(setup.names.workers(), WORKERS_PARTITION));
        let ends = blocking(move || broker.ends(&at, CALL_DEADLINE)).await?.map_err(|error| error.to_string())?;
        Ok(self.roll.has_read(ends.end))
    }
}

pub struct PartitionUpkeep {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    number: u32,
    events: Arc<str>,
    folded: watch::Receiver<Folded>,
    stop: CancellationToken,
    /// Where the fold was last, and since when.
    seen: (i64, Instant),
    /// Where the partition ended at the start; None once the lifetimes have been looked at.
    begins: Option<i64>,
    /// Silent workers: since when they are known, and how often their tasks have been looked for.
    silent: BTreeMap<Arc<str>, (Instant, u32)>,
    searched: Searched,
    looked_for_gaps: Instant,
    /// New gaps, and the place up to which the fold has to have come before the search for their tasks.
    found: Option<(Gaps, i64)>,
}

impl PartitionUpkeep {
    pub fn new(
        setup: Arc<TrackerSetup>,
        shared: Arc<TrackerShared>,
        number: u32,
        folded: watch::Receiver<Folded>,
        stop: CancellationToken,
    ) -> Self {
        let (events, now) = (setup.names.events().into(), Instant::now());
        let seen = (folded.borrow().offset, now);
        let (silent, searched) = (BTreeMap::new(), Searched::default());
        let (begins, found) = (Some(-1), None);
        Self { setup, shared, number, events, folded, stop, seen, begins, silent, searched, looked_for_gaps: now, found }
    }

    /// Until the folder's session ends.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        let look = LOOK.min(Duration::from(self.setup.config.tick) / 4);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(look) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                told = self.look() => {
                    // Everything is looked at again in a moment.
                    if let Err(why) = told {
                        tracing::debug!(partition = self.number, reason = %why, "the log could not be told something; trying again");
                    }
                }
            }
        }
    }

    async fn look(&mut self) -> Result<(), String> {
        self.tell_lifetimes().await?;
        self.tick().await?;
        self.tell_silence().await?;
        self.tell_lost().await
    }

    /// Writes these events, all at once.
    async fn write(&self, events: &[Event]) -> Result<(), String> {
        let link = self.shared.link(&self.setup).await?;
        let messages: Vec<_> = events.iter().map(|event| event_message(&self.events, self.number, event)).collect();
        let sent = messages.iter().map(|message| link.deliver(message.outgoing(&[]), CALL_DEADLINE));
        futures::future::try_join_all(sent).await.map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Where the partition ends now.
    async fn end(&self) -> Result<i64, String> {
        let (broker, at) = (self.setup.broker.clone(), Partition::new(self.events.clone(), self.number as i32));
        let ends = blocking(move || broker.ends(&at, CALL_DEADLINE)).await?.map_err(|error| error.to_string())?;
        Ok(ends.end)
    }

    /// Where the log says otherwise than the configuration, up to where it ended at the start.
    async fn tell_lifetimes(&mut self) -> Result<(), String> {
        let Some(end) = self.begins else { return Ok(()) };
        if end < 0 {
            self.begins = Some(self.end().await?);
            return Ok(());
        }
        if self.folded.borrow().offset < end {
            return Ok(());
        }
        let (mut reader, _) = self.setup.store.open(self.number).await.map_err(|error| error.to_string())?;
        let told = reader.lifetimes().await.map_err(|error| error.to_string())?.unwrap_or_default();
        if told != self.setup.lifetimes {
            self.write(&[Event::settings(self.setup.lifetimes.clone(), now_ms())]).await?;
        }
        self.begins = None;
        Ok(())
    }

    /// Log time passes also where nothing happens, as long as there is something that grows old.
    async fn tick(&mut self) -> Result<(), String> {
        let offset = self.folded.borrow().offset;
        if offset != self.seen.0 {
            self.seen = (offset, Instant::now());
        }
        if self.seen.1.elapsed() < Duration::from(self.setup.config.tick) {
            return Ok(());
        }
        if self.grows_old().await.map_err(|error| error.to_string())? {
            self.write(&[Event::tick(now_ms())]).await?;
        }
        self.seen.1 = Instant::now();
        Ok(())
    }

    async fn grows_old(&self) -> Result<bool, StoreError> {
        let store = &self.setup.store;
        let open = store.page(self.number, &Index::Ages, None, 1).await?;
        Ok(!open.is_empty() || !store.done(self.number, i64::MIN, 1).await?.is_empty())
    }

    async fn tell_silence(&mut self) -> Result<(), String> {
        let (now, beats) = (now_ms(), self.shared.roll.beats());
        let silent: BTreeMap<Arc<str>, Heartbeat> = beats
            .into_iter()
            .filter(|(heard, beat)| match beat.state {
                // It says nothing more either of what it could not finish.
                HeartbeatState::Stopped => beat.unfinished,
                HeartbeatState::Running | HeartbeatState::Draining => is_silent(&self.setup, beat, *heard, now),
            })
            .map(|(_, beat)| (beat.id.as_str().into(), beat))
            .collect();
        self.silent.retain(|id, _| silent.contains_key(id));
        let mut types = BTreeSet::new();
        let mut workers = BTreeSet::new();
        for (id, beat) in &silent {
            let (since, searches) = self.silent.entry(id.clone()).or_insert_with(|| (Instant::now(), 0));
            let due = Duration::from_millis(beat.every_ms).saturating_mul(*searches + 1);
            if *searches < SEARCHES && since.elapsed() >= due {
                types.extend(beat.types.iter().map(|part| part.task_type.as_str().into()));
                workers.insert(id.clone());
            }
        }
        if workers.is_empty() || !self.shared.has_heard_all(&self.setup).await? {
            return Ok(());
        }
        for task_type in types {
            for state in State::ALL.into_iter().filter(|state| state.is_at_worker() || *state == State::Scheduled) {
                self.silence(&Index::Members { task_type: Arc::clone(&task_type), state }, &workers).await?;
            }
        }
        for id in workers {
            self.silent.entry(id).and_modify(|(_, searches)| *searches += 1);
        }
        Ok(())
    }

    /// Tells those tasks of an index that these workers have.
    async fn silence(&self, index: &Index, workers: &BTreeSet<Arc<str>>) -> Result<(), String> {
        let mut after: Option<Entry> = None;
        loop {
            let page = self.setup.store.page(self.number, index, after.as_ref(), STEP).await;
            let page = page.map_err(|error| error.to_string())?;
            let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
            let nodes = self.setup.store.nodes(self.number, &ids).await.map_err(|error| error.to_string())?;
            let events = ids.iter().zip(nodes).filter_map(|(id, node)| silenced(id, node?, workers));
            self.write(&events.collect::<Vec<_>>()).await?;
            if page.len() < STEP {
                return Ok(());
            }
            after = page.last().cloned();
        }
    }

    async fn tell_lost(&mut self) -> Result<(), String> {
        if self.found.is_none() {
            self.look_for_gaps().await?;
        }
        // A task that is not folded yet is not found, and its gap is looked at once.
        let folded = self.folded.borrow().offset;
        let Some((gaps, _)) = self.found.take_if(|(_, end)| *end <= folded) else { return Ok(()) };
        let mut search = LostTaskSearch::new(gaps.clone());
        while let Some(events) = search.step(&*self.setup.store, self.number).await? {
            self.write(&events).await?;
            for task_type in search.take_found() {
                self.setup.metrics.lost.with_label_values(&[&*task_type]).inc();
            }
        }
        self.searched.note(gaps);
        Ok(())
    }

    async fn look_for_gaps(&mut self) -> Result<(), String> {
        if self.looked_for_gaps.elapsed() < between_gaps(&self.setup) {
            return Ok(());
        }
        self.looked_for_gaps = Instant::now();
        let gaps = self.searched.unsettled(&self.shared.gaps(&self.setup).await?);
        if !gaps.is_empty() {
            self.found = Some((gaps, self.end().await?));
        }
        Ok(())
    }
}

fn is_silent(setup: &TrackerSetup, beat: &Heartbeat, heard_ms: i64, now: i64) -> bool {
    match setup.config.worker_silent {
        None => beat.is_silent(heard_ms, now),
        Some(after) => now.saturating_sub(heard_ms) > after.as_i64(),
    }
}

/// How often it is looked for records that Kafka has removed.
fn between_gaps(setup: &TrackerSetup) -> Duration {
    Duration::from(setup.config.tick) / 2
}

/// The event for a task that one of these workers has and that has not been told yet.
fn silenced(id: &TaskId, node: TaskRecord, workers: &BTreeSet<Arc<str>>) -> Option<Event> {
    let worker = node.worker.clone().filter(|worker| node.is_held() && workers.contains(worker))?;
    let mut event = Event::new(Kind::WorkerSilent, id.clone(), node.run, now_ms());
    event.attempt = node.attempt;
    event.message = Some(format!("`{worker}` is not heard of any more"));
    event.worker = Some(worker);
    Some(event)
}
