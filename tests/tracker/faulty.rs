//! A broker and a store with injected faults.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kafleet::broker::{
    Broker, BrokerError, Committed, Consumer, ConsumerSpec, GroupEvent, MakeDependents, Partition, ProducerRecord,
    RecordRef, StartOffset, TransactionalProducer,
};
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::TaskRecord;
use kafleet::model::task::id::TaskId;
use kafleet::store::{Checkpoint, PartitionWriter, Store, StoreError};

/// Unlimited polls or records.
pub const ANY: u32 = u32::MAX;

/// Faults of the consumers and producers of a [`FaultyBroker`].
pub struct Faults {
    /// Number of seeks of an assigned partition that fail.
    pub refuse_moves: AtomicU32,
    /// Number of polls before consumers are held.
    pub polls: AtomicU32,
    /// A poll is being held.
    pub is_held: AtomicBool,
    /// Group events that the next poll returns.
    pub group_events: Mutex<Vec<GroupEvent>>,
    /// Error of the next poll.
    pub fail: Mutex<Option<BrokerError>>,
    /// Records delivered.
    pub delivered: AtomicU32,
    /// Number of records that group consumers may still receive.
    pub records: AtomicU32,
    /// Number of reads of committed offsets.
    pub groups: AtomicU32,
    /// Error of those reads.
    pub no_groups: Mutex<Option<BrokerError>>,
    /// Error of opening a transactional producer.
    pub no_atomic: Mutex<Option<BrokerError>>,
    pub atomics: AtomicU32,
    /// Number of transactions.
    pub sends: AtomicU32,
    /// Records that contain `large` are refused.
    pub too_large: AtomicBool,
    /// Topic of which no record can be sent in a transaction.
    pub no_topic: Mutex<Option<String>>,
    /// Step at which transactions stop.
    pub step: Mutex<Step>,
    pub frozen: AtomicBool,
}

/// Step at which a transaction stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Done,
    /// Fails before anything is sent.
    Before,
    /// Commits but reports no result.
    After,
    /// Continues only when released, as a stopped process does.
    Frozen,
}

struct FaultyTransactions {
    inner: Box<dyn TransactionalProducer>,
    faults: Arc<Faults>,
}

impl TransactionalProducer for FaultyTransactions {
    fn send_with_dependents(
        &mut self,
        records: &[ProducerRecord<'_>],
        then: &mut MakeDependents<'_>,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        self.faults.sends.fetch_add(1, SeqCst);
        if self.faults.no_topic.lock().unwrap().as_ref().is_some_and(|no| records.iter().any(|at| at.topic == no)) {
            return Err(BrokerError::Unavailable("no leader, on purpose".into()));
        }
        let is_large = |record: &ProducerRecord<'_>| record.value.is_some_and(|value| value.starts_with(b"{\"large\""));
        if self.faults.too_large.load(SeqCst) && records.iter().any(is_large) {
            return Err(BrokerError::TooLarge("too large, on purpose".into()));
        }
        let step = *self.faults.step.lock().unwrap();
        match step {
            Step::Done => self.inner.send_with_dependents(records, then, deadline),
            Step::Before => Err(BrokerError::Unavailable("not sent, on purpose".into())),
            Step::After => {
                self.inner.send_with_dependents(records, then, deadline)?;
                Err(BrokerError::InDoubt("sent, on purpose".into()))
            }
            Step::Frozen => {
                self.faults.frozen.store(true, SeqCst);
                let end = std::time::Instant::now() + Duration::from_secs(60);
                while *self.faults.step.lock().unwrap() == Step::Frozen && std::time::Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.inner.send_with_dependents(records, then, deadline)
            }
        }
    }
}

pub struct FaultyBroker {
    pub inner: Arc<dyn Broker>,
    pub faults: Arc<Faults>,
}

impl FaultyBroker {
    pub fn new(inner: Arc<dyn Broker>) -> (Arc<Self>, Arc<Faults>) {
        let faults = Arc::new(Faults {
            refuse_moves: AtomicU32::new(0),
            polls: AtomicU32::new(ANY),
            is_held: AtomicBool::new(false),
            group_events: Mutex::default(),
            fail: Mutex::default(),
            delivered: AtomicU32::new(0),
            records: AtomicU32::new(ANY),
            groups: AtomicU32::new(0),
            no_groups: Mutex::new(None),
            no_atomic: Mutex::default(),
            atomics: AtomicU32::new(0),
            sends: AtomicU32::new(0),
            too_large: AtomicBool::new(false),
            no_topic: Mutex::default(),
            step: Mutex::new(Step::Done),
            frozen: AtomicBool::new(false),
        });
        (Arc::new(Self { inner, faults: faults.clone() }), faults)
    }
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        let (inner, in_group) = (self.inner.consumer(spec)?, spec.group.is_some());
        Ok(Box::new(ShakyConsumer { inner, in_group, faults: self.faults.clone() }))
    }
    fn group_offsets(
        &self,
        group: &str,
        at: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.faults.groups.fetch_add(1, SeqCst);
        if let Some(error) = &*self.faults.no_groups.lock().unwrap() {
            return Err(error.clone());
        }
        self.inner.group_offsets(group, at, deadline)
    }
    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        self.faults.atomics.fetch_add(1, SeqCst);
        if let Some(error) = &*self.faults.no_atomic.lock().unwrap() {
            return Err(error.clone());
        }
        Ok(Box::new(FaultyTransactions {
            inner: self.inner.transactional_producer(name)?,
            faults: self.faults.clone(),
        }))
    }
    delegate!(Broker via [inner]: producer, topics, apply_topics, watermarks, first_visible, set_group_offsets);
}

struct ShakyConsumer {
    inner: Box<dyn Consumer>,
    in_group: bool,
    faults: Arc<Faults>,
}

impl Consumer for ShakyConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        while self.faults.polls.load(SeqCst) == 0 {
            self.faults.is_held.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.faults.is_held.store(false, SeqCst);
        let counted = self.faults.polls.load(SeqCst) != ANY;
        self.faults.polls.fetch_sub(u32::from(counted), SeqCst);
        if let Some(error) = self.faults.fail.lock().unwrap().take() {
            return Err(error);
        }
        let group_events = std::mem::take(&mut *self.faults.group_events.lock().unwrap());
        if !group_events.is_empty() {
            return Ok(group_events);
        }
        let left = if self.in_group { self.faults.records.load(SeqCst) } else { ANY };
        let (delivered, records) = (&self.faults.delivered, &self.faults.records);
        self.inner.poll(max.min(left as usize), wait, &mut |record| {
            delivered.fetch_add(1, SeqCst);
            records.fetch_sub(u32::from(left != ANY), SeqCst);
            sink(record);
        })
    }
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        let moves = starts.iter().any(|(_, start)| matches!(start, StartOffset::At(_)));
        if moves && self.faults.refuse_moves.load(SeqCst) > 0 {
            self.faults.refuse_moves.fetch_sub(1, SeqCst);
            return Err(BrokerError::Unavailable("seeking: no answer in time".into()));
        }
        self.inner.assign(starts)
    }
    delegate!(Consumer via [inner]: release, commit, commit_sync, committed, pause, hold, positions, close);
}

/// Behaviour of a [`FaultyStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    Well,
    /// Reports that it is unavailable.
    Away,
    /// Never answers.
    Silent,
    /// Writes never end.
    Frozen,
    /// The next read of a writer panics.
    Panics,
}

pub type Happening = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub struct FaultyStore {
    pub inner: Arc<dyn Store>,
    mode: Arc<Mutex<FaultMode>>,
    /// Action before the panic.
    pub before_panic: Arc<Mutex<Option<Happening>>>,
    /// Number of checkpoint reads: the first call of a partition task that waits after its seek request.
    pub reads: Arc<AtomicU32>,
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, mode: Arc::new(Mutex::new(FaultMode::Well)), before_panic: Arc::default(), reads: Arc::default() }
    }

    pub fn set(&self, mode: FaultMode) {
        *self.mode.lock().unwrap() = mode;
    }

    async fn answer(&self) -> Result<(), StoreError> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            FaultMode::Away => Err(StoreError::Unavailable("connection refused".into())),
            FaultMode::Silent => std::future::pending().await,
            FaultMode::Well | FaultMode::Frozen | FaultMode::Panics => Ok(()),
        }
    }
}

impl FaultyStore {
    async fn reached(&self) -> Result<&dyn Store, StoreError> {
        self.answer().await?;
        Ok(&*self.inner)
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError> {
        self.answer().await?;
        let (inner, checkpoint) = self.inner.open(partition).await?;
        Ok((Box::new(ShakyWriter { inner, store: self.clone() }), checkpoint))
    }
    async fn checkpoints(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError> {
        self.reads.fetch_add(1, SeqCst);
        self.answer().await?;
        self.inner.checkpoints(partitions).await
    }
    delegate!(Store via [reached().await?]: nodes, done, outbox, deferred);
    delegate!(Store via [inner]: page, counts, statistics, error_summaries, error_groups, requests, log_lines, attachment, reserve, replace_reservation, notices, check);
}

struct ShakyWriter {
    inner: Box<dyn PartitionWriter>,
    store: FaultyStore,
}

impl ShakyWriter {
    async fn reached(&mut self) -> Result<&mut Box<dyn PartitionWriter>, StoreError> {
        self.store.answer().await?;
        Ok(&mut self.inner)
    }
}

#[async_trait]
impl PartitionWriter for ShakyWriter {
    async fn nodes(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        self.store.answer().await?;
        if *self.store.mode.lock().unwrap() == FaultMode::Panics {
            self.store.set(FaultMode::Well);
            if let Some(happen) = self.store.before_panic.lock().unwrap().take() {
                happen();
            }
            panic!("a panic on purpose");
        }
        self.inner.nodes(ids).await
    }
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        if *self.store.mode.lock().unwrap() == FaultMode::Frozen {
            return std::future::pending().await;
        }
        self.reached().await?.apply(changes, from, to).await
    }
    delegate!(PartitionWriter via [inner]: lifetimes, statistics);
    delegate!(PartitionWriter via [reached().await?]: done, check, verify_totals, audit, mark_damaged);
}
