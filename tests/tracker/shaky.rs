//! A broker and a store that do on purpose what real ones do at bad moments.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet::broker::{
    Broker, BrokerError, Committed, Consumer, ConsumerSpec, GroupEvent, MakeDependents, Partition, ProducerRecord, RecordRef,
    StartOffset, TransactionalProducer,
};
use kafleet::model::projection::changes::{Changes, Entry, Index};
use kafleet::model::record::TaskRecord;
use kafleet::model::retention::Lifetimes;
use kafleet::model::task::id::TaskId;
use kafleet::store::{
    AuditPage, Checkpoint, LogPage, Notice, Outbox, PartitionWriter, Reservation, Store, StoreError, TypeCount,
};

/// Polls, or records, without end.
pub const ANY: u32 = u32::MAX;

/// What the consumers of a [`ShakyBroker`] do.
pub struct Tricks {
    /// So many moves of a partition that is held already fail.
    pub refuse_moves: AtomicU32,
    /// So many polls more, then they wait.
    pub polls: AtomicU32,
    /// A poll waits for that now.
    pub is_held: AtomicBool,
    /// What the next poll ends with.
    pub say: Mutex<Vec<GroupEvent>>,
    pub fail: Mutex<Option<BrokerError>>,
    /// Records handed over.
    pub delivered: AtomicU32,
    /// Number of records that consumers in groups are still given.
    pub records: AtomicU32,
    /// How often it was asked what groups have committed.
    pub groups: AtomicU32,
    /// What that ends with.
    pub no_groups: Mutex<Option<BrokerError>>,
    /// What opening a producer for atomic sends ends with.
    pub no_atomic: Mutex<Option<BrokerError>>,
    pub atomics: AtomicU32,
    /// Atomic sends.
    pub sends: AtomicU32,
    /// What becomes of atomic sends.
    pub step: Mutex<Step>,
    pub frozen: AtomicBool,
}

/// Where an atomic send comes to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Done,
    /// Nothing was sent.
    Before,
    /// All is there, and nobody was told.
    After,
    /// It goes on only when it is told otherwise: a process that was stopped.
    Frozen,
}

struct ShakyAtomic {
    inner: Box<dyn TransactionalProducer>,
    tricks: Arc<Tricks>,
}

impl TransactionalProducer for ShakyAtomic {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        self.tricks.sends.fetch_add(1, SeqCst);
        let step = *self.tricks.step.lock().unwrap();
        match step {
            Step::Done => self.inner.send_with_dependents(records, then, deadline),
            Step::Before => Err(BrokerError::Unavailable("nothing was sent, on purpose".into())),
            Step::After => {
                self.inner.send_with_dependents(records, then, deadline)?;
                Err(BrokerError::InDoubt("sent, on purpose".into()))
            }
            Step::Frozen => {
                self.tricks.frozen.store(true, SeqCst);
                let end = std::time::Instant::now() + Duration::from_secs(60);
                while *self.tricks.step.lock().unwrap() == Step::Frozen && std::time::Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.inner.send_with_dependents(records, then, deadline)
            }
        }
    }
}

pub struct ShakyBroker {
    pub inner: Arc<dyn Broker>,
    pub tricks: Arc<Tricks>,
}

impl ShakyBroker {
    pub fn new(inner: Arc<dyn Broker>) -> (Arc<Self>, Arc<Tricks>) {
        let tricks = Arc::new(Tricks {
            refuse_moves: AtomicU32::new(0),
            polls: AtomicU32::new(ANY),
            is_held: AtomicBool::new(false),
            say: Mutex::default(),
            fail: Mutex::default(),
            delivered: AtomicU32::new(0),
            records: AtomicU32::new(ANY),
            groups: AtomicU32::new(0),
            no_groups: Mutex::new(None),
            no_atomic: Mutex::default(),
            atomics: AtomicU32::new(0),
            sends: AtomicU32::new(0),
            step: Mutex::new(Step::Done),
            frozen: AtomicBool::new(false),
        });
        (Arc::new(Self { inner, tricks: tricks.clone() }), tricks)
    }
}

impl Broker for ShakyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let (inner, in_group) = (self.inner.consumer(spec)?, spec.group.is_some());
        Ok(Box::new(ShakyConsumer { inner, in_group, tricks: self.tricks.clone() }))
    }
    fn group_offsets(&self, group: &str, at: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.tricks.groups.fetch_add(1, SeqCst);
        if let Some(error) = &*self.tricks.no_groups.lock().unwrap() {
            return Err(error.clone());
        }
        self.inner.group_offsets(group, at, deadline)
    }
    fn atomic_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        self.tricks.atomics.fetch_add(1, SeqCst);
        if let Some(error) = &*self.tricks.no_atomic.lock().unwrap() {
            return Err(error.clone());
        }
        Ok(Box::new(ShakyAtomic { inner: self.inner.atomic_producer(name)?, tricks: self.tricks.clone() }))
    }
    through!(producer, topics, apply_topics, ends, look, set_group_offsets);
}

struct ShakyConsumer {
    inner: Box<dyn Consumer>,
    in_group: bool,
    tricks: Arc<Tricks>,
}

impl Consumer for ShakyConsumer {
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError> {
        while self.tricks.polls.load(SeqCst) == 0 {
            self.tricks.is_held.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tricks.is_held.store(false, SeqCst);
        let counted = self.tricks.polls.load(SeqCst) != ANY;
        self.tricks.polls.fetch_sub(u32::from(counted), SeqCst);
        if let Some(error) = self.tricks.fail.lock().unwrap().take() {
            return Err(error);
        }
        let said = std::mem::take(&mut *self.tricks.say.lock().unwrap());
        if !said.is_empty() {
            return Ok(said);
        }
        let left = if self.in_group { self.tricks.records.load(SeqCst) } else { ANY };
        let (delivered, records) = (&self.tricks.delivered, &self.tricks.records);
        self.inner.poll(max.min(left as usize), wait, &mut |record| {
            delivered.fetch_add(1, SeqCst);
            records.fetch_sub(u32::from(left != ANY), SeqCst);
            sink(record);
        })
    }
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        let moves = starts.iter().any(|(_, start)| matches!(start, StartOffset::At(_)));
        if moves && self.tricks.refuse_moves.load(SeqCst) > 0 {
            self.tricks.refuse_moves.fetch_sub(1, SeqCst);
            return Err(BrokerError::Unavailable("seeking: no answer in time".into()));
        }
        self.inner.assign(starts)
    }
    through!(release, commit, commit_sync, committed, pause, positions, close);
}

/// How a [`ShakyStore`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// Says that it is not reachable.
    Away,
    /// Says nothing.
    Silent,
    /// The next read of a writer panics.
    Panics,
}

pub type Happening = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub struct ShakyStore {
    pub inner: Arc<dyn Store>,
    mood: Arc<Mutex<Mood>>,
    /// What happens before the panic.
    pub before_panic: Arc<Mutex<Option<Happening>>>,
    /// How often fences were asked for: the first thing that a folder does when it has asked for its start and waits.
    pub looks: Arc<AtomicU32>,
}

impl ShakyStore {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, mood: Arc::new(Mutex::new(Mood::Well)), before_panic: Arc::default(), looks: Arc::default() }
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    async fn answer(&self) -> Result<(), StoreError> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Away => Err(StoreError::Unavailable("connection refused".into())),
            Mood::Silent => std::future::pending().await,
            Mood::Well | Mood::Panics => Ok(()),
        }
    }
}

#[async_trait]
impl Store for ShakyStore {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError> {
        self.answer().await?;
        let (inner, fence) = self.inner.open(partition).await?;
        Ok((Box::new(ShakyWriter { inner, store: self.clone() }), fence))
    }
    async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        self.answer().await?;
        self.inner.nodes(partition, ids).await
    }
    async fn fences(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError> {
        self.looks.fetch_add(1, SeqCst);
        self.answer().await?;
        self.inner.fences(partitions).await
    }
    async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.inner.page(partition, index, after, limit).await
    }
    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.answer().await?;
        self.inner.done(partition, after_ms, limit).await
    }
    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError> {
        self.answer().await?;
        self.inner.outbox(partition, limit).await
    }
    async fn kept(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.answer().await?;
        self.inner.kept(partition, ids).await
    }
    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError> {
        self.inner.counts(partitions).await
    }
    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError> {
        self.inner.log_lines(partition, id, from, limit).await
    }
    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.attachment(partition, id, name).await
    }
    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        mark: &Reservation,
    ) -> Result<Option<Reservation>, StoreError> {
        self.inner.reserve(partition, id, run, mark).await
    }
    async fn replace_reservation(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        held: &Reservation,
        mark: Option<&Reservation>,
    ) -> Result<bool, StoreError> {
        self.inner.replace_reservation(partition, id, run, held, mark).await
    }
    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError> {
        self.inner.notices().await
    }
    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }
}

struct ShakyWriter {
    inner: Box<dyn PartitionWriter>,
    store: ShakyStore,
}

#[async_trait]
impl PartitionWriter for ShakyWriter {
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError> {
        self.inner.lifetimes().await
    }
    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.answer().await?;
        self.inner.done(limit).await
    }
    async fn nodes(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        self.store.answer().await?;
        if *self.store.mood.lock().unwrap() == Mood::Panics {
            self.store.set(Mood::Well);
            if let Some(happen) = self.store.before_panic.lock().unwrap().take() {
                happen();
            }
            panic!("a panic on purpose");
        }
        self.inner.nodes(ids).await
    }
    async fn check(&mut self) -> Result<(), StoreError> {
        self.store.answer().await?;
        self.inner.check().await
    }
    async fn sums(&mut self) -> Result<Option<String>, StoreError> {
        self.store.answer().await?;
        self.inner.sums().await
    }
    async fn audit(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<AuditPage, StoreError> {
        self.store.answer().await?;
        self.inner.audit(index, after, limit).await
    }
    async fn condemn(&mut self) -> Result<(), StoreError> {
        self.store.answer().await?;
        self.inner.condemn().await
    }
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        self.store.answer().await?;
        self.inner.apply(changes, from, to).await
    }
}
