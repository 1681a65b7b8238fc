//! Faulty store and broker.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet::broker::memory::MemoryBroker as Log;
use kafleet::broker::*;
use kafleet::model::record::TaskRecord;
use kafleet::model::task::id::TaskId;
use kafleet::store::memory::MemoryStore;
use kafleet::store::{Notice, Reservation, Store as StoreTrait, StoreError};

/// Store that can be made unavailable.
pub struct Store {
    pub real: MemoryStore,
    pub away: AtomicBool,
    /// Never answers.
    pub silent: AtomicBool,
    /// Delay of each read of records, in milliseconds.
    pub delay_ms: AtomicU64,
    /// Number of record reads until they fail.
    pub reads_left: AtomicUsize,
    /// Suppresses change notices.
    pub mute: AtomicBool,
    pub subscriptions: AtomicUsize,
    /// Number of record reads.
    pub reads: AtomicUsize,
    /// Number of calls of `reserve`.
    pub reserves: AtomicUsize,
    /// Checkpoint from which on one read finds no record, as if the store had been erased and projected again.
    pub erased_at: AtomicI64,
}

/// Panics when the task with this id is read.
pub const PANICS: &str = "panics";

impl Store {
    pub fn new(real: MemoryStore) -> Self {
        Self {
            real,
            away: AtomicBool::default(),
            silent: AtomicBool::default(),
            delay_ms: AtomicU64::default(),
            reads_left: AtomicUsize::new(usize::MAX),
            mute: AtomicBool::default(),
            subscriptions: AtomicUsize::default(),
            reads: AtomicUsize::default(),
            reserves: AtomicUsize::default(),
            erased_at: AtomicI64::new(i64::MAX),
        }
    }

    async fn here(&self) -> Result<&MemoryStore, StoreError> {
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("unavailable on purpose".into()));
        }
        Ok(&self.real)
    }
}

#[async_trait]
impl StoreTrait for Store {
    async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        assert!(ids.iter().all(|id| id.as_str() != PANICS), "a panic on purpose");
        self.reads.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst))).await;
        if one_less(&self.reads_left).is_none() {
            return Err(StoreError::Unavailable("unavailable on purpose".into()));
        }
        let real = self.here().await?;
        let checkpoint = real.checkpoints(&[partition]).await?[0].unwrap_or_default();
        if checkpoint.offset >= self.erased_at.load(Ordering::SeqCst) {
            self.erased_at.store(i64::MAX, Ordering::SeqCst);
            return Ok(vec![None; ids.len()]);
        }
        real.nodes(partition, ids).await
    }
    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        mark: &Reservation,
    ) -> Result<Option<Reservation>, StoreError> {
        let answer = self.here().await?.reserve(partition, id, run, mark).await;
        self.reserves.fetch_add(1, Ordering::SeqCst);
        answer
    }
    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError> {
        let notices = self.here().await?.notices().await?;
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
        if self.mute.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("no notices".into()));
        }
        Ok(notices)
    }
    delegate!(Store via [here().await?]: open, checkpoints, page, done, outbox, deferred, counts, statistics, error_summaries, error_groups, requests, log_lines, attachment, replace_reservation, check);
}

/// Broker that can be made unavailable, and that can fail or delay writes.
pub struct FaultyBroker {
    real: Arc<Log>,
    pub cut: AtomicBool,
    /// Fails writes to the control topic.
    pub held: Arc<AtomicBool>,
    /// Fails writes to task topics.
    pub tasks_held: Arc<AtomicBool>,
    /// Drops acknowledgements of writes to the events and control topics.
    pub unacknowledged: Arc<AtomicBool>,
    /// Number of writes to the events topic until they fail.
    pub events_left: Arc<AtomicUsize>,
    /// Commits the next transaction but reports an unknown outcome.
    pub doubtful: Arc<AtomicBool>,
    /// Delays the first records of consumers.
    pub slow: AtomicBool,
    /// Barrier that transactions pass only together with another one.
    pub meeting: Arc<AtomicUsize>,
    meet: Arc<Barrier>,
}

/// Delay of the first records; longer than readers wait before they check the end of the topic.
const LATE: Duration = Duration::from_millis(1_200);

struct Slow {
    inner: Box<dyn Consumer>,
    silent_until: Instant,
}

impl Consumer for Slow {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        if Instant::now() < self.silent_until {
            std::thread::sleep(wait);
            return Ok(Vec::new());
        }
        self.inner.poll(max, wait, sink)
    }
    delegate!(Consumer via [inner]: assign, release, commit, commit_sync, committed, pause, hold, positions, close);
}

struct Doubtful {
    real: Box<dyn TransactionalProducer>,
    events_left: Arc<AtomicUsize>,
    doubtful: Arc<AtomicBool>,
    meeting: Arc<AtomicUsize>,
    meet: Arc<Barrier>,
}

impl TransactionalProducer for Doubtful {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        if one_less(&self.meeting).is_some() {
            self.meet.wait();
        }
        let events = records.iter().filter(|record| record.topic.ends_with(".events")).count();
        let take = |left: usize| left.checked_sub(events);
        if self.events_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            self.events_left.store(0, Ordering::SeqCst);
            return Err(BrokerError::Full("full on purpose".into()));
        }
        let positions = self.real.send_with_dependents(records, then, deadline)?;
        match self.doubtful.swap(false, Ordering::SeqCst) {
            true => Err(BrokerError::InDoubt("in doubt on purpose".into())),
            false => Ok(positions),
        }
    }
}

/// Decrements a counter. Returns `None` if it is 0.
fn one_less(counter: &AtomicUsize) -> Option<usize> {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok()
}

struct HeldProducer {
    real: Arc<dyn Producer>,
    control: Arc<AtomicBool>,
    tasks: Arc<AtomicBool>,
    unacknowledged: Arc<AtomicBool>,
    events_left: Arc<AtomicUsize>,
    /// The outcome of the last write is unknown.
    doubted: AtomicBool,
}

impl Producer for HeldProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let is_control = self.control.load(Ordering::SeqCst) && record.topic.ends_with(".control");
        let is_task = self.tasks.load(Ordering::SeqCst) && record.topic.contains(".tasks.");
        let is_event = record.topic.ends_with(".events");
        let is_beyond = is_event && one_less(&self.events_left).is_none();
        if is_control || is_task || is_beyond {
            return Err(BrokerError::Full("full on purpose".into()));
        }
        let is_write = [".events", ".control"].iter().any(|topic| record.topic.ends_with(topic));
        if is_write && self.unacknowledged.load(Ordering::SeqCst) {
            // A rejected retry ends the wait for the acknowledgement of the first attempt.
            return Err(match self.doubted.fetch_xor(true, Ordering::SeqCst) {
                true => BrokerError::Denied("refused on purpose".into()),
                false => BrokerError::InDoubt("acknowledgement withheld on purpose".into()),
            });
        }
        self.real.send(record, token)
    }
    delegate!(Producer via [real]: flush, purge);
}

impl FaultyBroker {
    pub fn new(real: Arc<Log>) -> Self {
        Self {
            real,
            cut: AtomicBool::default(),
            held: Arc::default(),
            tasks_held: Arc::default(),
            unacknowledged: Arc::default(),
            events_left: Arc::new(AtomicUsize::new(usize::MAX)),
            doubtful: Arc::default(),
            slow: AtomicBool::default(),
            meeting: Arc::default(),
            meet: Arc::new(Barrier::new(2)),
        }
    }

    fn here(&self) -> Result<&Log, BrokerError> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(BrokerError::Unavailable("cut off on purpose".into()));
        }
        Ok(&self.real)
    }
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.here()?.consumer(spec)?;
        if !self.slow.load(Ordering::SeqCst) {
            return Ok(inner);
        }
        Ok(Box::new(Slow { inner, silent_until: Instant::now() + LATE }))
    }
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let real = self.here()?.producer(sink)?;
        Ok(Arc::new(HeldProducer {
            real,
            control: self.held.clone(),
            tasks: self.tasks_held.clone(),
            unacknowledged: self.unacknowledged.clone(),
            events_left: self.events_left.clone(),
            doubted: AtomicBool::default(),
        }))
    }
    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        Ok(Box::new(Doubtful {
            real: self.here()?.transactional_producer(name)?,
            events_left: self.events_left.clone(),
            doubtful: self.doubtful.clone(),
            meeting: self.meeting.clone(),
            meet: self.meet.clone(),
        }))
    }
    delegate!(Broker via [here()?]: topics, apply_topics, watermarks, first_visible, group_offsets, set_group_offsets);
}
