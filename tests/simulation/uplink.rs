//! The broker and the store as processes of a simulated fleet reach them: calls take time, fail, and fail after they have
//! worked. Whatever is committed is held against the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kafleet::broker::memory::Memory;
use kafleet::broker::{
    Broker, BrokerError, Commit, Committed, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, GroupEvent, Partition,
    Producer, ProducerRecord, RecordRef, StartOffset, TopicInfo, TransactionalProducer, Watermarks,
};
use kafleet::model::projection::changes::{Changes, Entry, Index};
use kafleet::model::record::TaskRecord;
use kafleet::model::retention::Lifetimes;
use kafleet::model::task::id::TaskId;
use kafleet::store::{
    AuditPage, Checkpoint, LogPage, Notice, Outbox, PartitionWriter, Reservation, Store, StoreError, TypeCount, memory,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::ledger::Ledger;

/// How often something fails.
pub struct Luck {
    dice: Mutex<fastrand::Rng>,
    /// Of a thousand calls.
    pub failing: AtomicU32,
    /// All of them.
    pub down: AtomicBool,
    /// How often the store has changed.
    pub writes: AtomicU64,
    /// What trackers have written that they should not have.
    pub violations: Mutex<Vec<String>>,
}

impl Luck {
    pub fn new(seed: u64) -> Arc<Self> {
        let dice = Mutex::new(fastrand::Rng::with_seed(seed));
        let (failing, down, writes) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { dice, failing, down, writes, violations: Mutex::default() })
    }

    fn fails(&self) -> bool {
        self.down.load(SeqCst) || self.dice.lock().u32(..1_000) < self.failing.load(SeqCst)
    }

    fn latency(&self) -> Duration {
        Duration::from_millis(self.dice.lock().u64(..4))
    }
}

pub struct Watched {
    pub inner: Arc<Memory>,
    pub ledger: Arc<Ledger>,
    pub luck: Arc<Luck>,
    /// Who reaches it is of a newer build; the topic of events.
    pub newer: Option<String>,
}

impl Watched {
    fn reach(&self) -> Result<(), BrokerError> {
        if self.luck.fails() { Err(away()) } else { Ok(()) }
    }
}

fn away() -> BrokerError {
    BrokerError::Unavailable("away, on purpose".into())
}

impl Broker for Watched {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        self.reach()?;
        // A group of workers is named as the topic of its tasks. The observer's reads them as well, and promises nothing.
        let workers = spec.group.is_some() && spec.group.as_ref() == spec.topics.first();
        let ledger = workers.then(|| self.ledger.clone());
        Ok(Box::new(WatchedConsumer { inner: self.inner.consumer(spec)?, ledger, luck: self.luck.clone(), begun: Vec::new() }))
    }
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let Some(events) = self.newer.clone() else { return self.inner.producer(sink) };
        let inner = self.inner.producer(Arc::new(Deaf(sink)))?;
        Ok(Arc::new(Newer { inner, events, luck: self.luck.clone() }))
    }
    fn atomic_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        self.reach()?;
        self.inner.atomic_producer(name)
    }
    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        self.reach()?;
        self.inner.topics(prefix, deadline)
    }
    fn ends(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        self.reach()?;
        self.inner.ends(partition, deadline)
    }
    fn first_visible(&self, partition: &Partition, offset: i64, deadline: Duration) -> Result<CommittedProbe, BrokerError> {
        self.reach()?;
        self.inner.first_visible(partition, offset, deadline)
    }
    fn group_offsets(&self, group: &str, at: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.reach()?;
        self.inner.group_offsets(group, at, deadline)
    }
    through!(apply_topics, set_group_offsets);
}

/// What nobody waits for.
const ASIDE: u64 = u64::MAX - 7;

/// Writes events as a build to come may: with fields, and of kinds, that this one does not know.
struct Newer {
    inner: Arc<dyn Producer>,
    events: String,
    luck: Arc<Luck>,
}

impl Newer {
    /// The event as it writes it, and now and then one of another kind.
    fn written(&self, value: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut event: serde_json::Map<String, Value> = serde_json::from_slice(value).ok()?;
        event.insert("mood".into(), json!({"of": ["a", "newer"], "build": 1.5}));
        let written = serde_json::to_vec(&event).ok()?;
        let aside = (self.luck.dice.lock().u8(..8) == 0).then(|| {
            event.insert("kind".into(), json!("polished"));
            serde_json::to_vec(&event).unwrap_or_default()
        });
        Some((written, aside))
    }
}

impl Producer for Newer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let written = record.value.filter(|_| record.topic == self.events).and_then(|value| self.written(value));
        let Some((value, aside)) = written else { return self.inner.send(record, token) };
        if let Some(aside) = aside {
            // Refused or lost: as if it had not been said.
            let _ = self.inner.send(&ProducerRecord { value: Some(&aside), ..*record }, ASIDE);
        }
        self.inner.send(&ProducerRecord { value: Some(&value), ..*record }, token)
    }
    fn flush(&self, deadline: Duration) -> Result<(), BrokerError> {
        self.inner.flush(deadline)
    }
    fn purge(&self) {
        self.inner.purge();
    }
}

struct Deaf(Arc<dyn DeliverySink>);

impl DeliverySink for Deaf {
    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token != ASIDE {
            self.0.delivered(token, outcome);
        }
    }
}

struct WatchedConsumer {
    inner: Box<dyn Consumer>,
    ledger: Option<Arc<Ledger>>,
    luck: Arc<Luck>,
    /// On its way to the broker: lost with its process.
    begun: Vec<Commit>,
}

impl WatchedConsumer {
    fn arrive(&mut self) -> Result<(), BrokerError> {
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { Ok(()) } else { self.inner.commit(&begun) }
    }

    fn judge(&self, commits: &[Commit]) {
        tracing::debug!(at_ms = kafleet::runtime::now_ms() - crate::host::BEGINNING_MS, ?commits, "committing");
        if let Some(ledger) = &self.ledger {
            ledger.committing(commits);
        }
    }
}

impl Consumer for WatchedConsumer {
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError> {
        self.arrive()?;
        let mut events = self.inner.poll(max, wait, sink)?;
        for event in &mut events {
            if let GroupEvent::Committed { result, .. } = event
                && result.is_ok()
                && self.luck.fails()
            {
                *result = Err(BrokerError::InDoubt("committed, on purpose".into()));
            }
        }
        Ok(events)
    }
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        if self.luck.fails() { Err(away()) } else { self.inner.assign(starts) }
    }
    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.judge(commits);
        self.begun = commits.to_vec();
        Ok(())
    }
    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.judge(commits);
        self.arrive()?;
        self.inner.commit_sync(commits)?;
        if let Some(ledger) = &self.ledger {
            ledger.committed(commits);
        }
        if self.luck.fails() { Err(BrokerError::InDoubt("committed, on purpose".into())) } else { Ok(()) }
    }
    fn committed(&mut self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        if self.luck.fails() { Err(away()) } else { self.inner.committed(partitions, deadline) }
    }
    through!(release, pause, positions, close);
}

pub struct Uplink {
    pub inner: memory::Memory,
    pub luck: Arc<Luck>,
    /// Whoever reaches it folds with the version after this build's: to it, this build's is an older one.
    pub newer: bool,
}

impl Uplink {
    fn read(&self, fence: Option<Checkpoint>) -> Option<Checkpoint> {
        fence.map(|fence| Checkpoint { version: fence.version - u32::from(self.newer), ..fence })
    }
}

async fn reach(luck: &Luck) -> Result<(), StoreError> {
    tokio::time::sleep(luck.latency()).await;
    if luck.fails() { Err(StoreError::Unavailable("away, on purpose".into())) } else { Ok(()) }
}

#[async_trait]
impl Store for Uplink {
    async fn open(&self, partition: u32) -> Result<(Box<dyn PartitionWriter>, Option<Checkpoint>), StoreError> {
        reach(&self.luck).await?;
        let (inner, fence) = self.inner.open(partition).await?;
        Ok((Box::new(Writer { inner, luck: self.luck.clone(), newer: self.newer }), self.read(fence)))
    }
    async fn nodes(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        reach(&self.luck).await?;
        self.inner.nodes(partition, ids).await
    }
    async fn fences(&self, partitions: &[u32]) -> Result<Vec<Option<Checkpoint>>, StoreError> {
        reach(&self.luck).await?;
        Ok(self.inner.fences(partitions).await?.into_iter().map(|fence| self.read(fence)).collect())
    }
    async fn page(&self, partition: u32, index: &Index, after: Option<&Entry>, limit: usize) -> Result<Vec<Entry>, StoreError> {
        reach(&self.luck).await?;
        self.inner.page(partition, index, after, limit).await
    }
    async fn done(&self, partition: u32, after_ms: i64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        reach(&self.luck).await?;
        self.inner.done(partition, after_ms, limit).await
    }
    async fn outbox(&self, partition: u32, limit: usize) -> Result<Outbox, StoreError> {
        reach(&self.luck).await?;
        let outbox = self.inner.outbox(partition, limit).await?;
        Ok(Outbox { fence: self.read(outbox.fence), ..outbox })
    }
    async fn kept(&self, partition: u32, ids: &[TaskId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        reach(&self.luck).await?;
        self.inner.kept(partition, ids).await
    }
    async fn counts(&self, partitions: &[u32]) -> Result<Vec<TypeCount>, StoreError> {
        reach(&self.luck).await?;
        self.inner.counts(partitions).await
    }
    async fn log_lines(&self, partition: u32, id: &TaskId, from: u64, limit: usize) -> Result<LogPage, StoreError> {
        reach(&self.luck).await?;
        self.inner.log_lines(partition, id, from, limit).await
    }
    async fn attachment(&self, partition: u32, id: &TaskId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        reach(&self.luck).await?;
        self.inner.attachment(partition, id, name).await
    }
    async fn reserve(
        &self,
        partition: u32,
        id: &TaskId,
        run: u32,
        mark: &Reservation,
    ) -> Result<Option<Reservation>, StoreError> {
        reach(&self.luck).await?;
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
        reach(&self.luck).await?;
        self.inner.replace_reservation(partition, id, run, held, mark).await
    }
    async fn notices(&self) -> Result<BoxStream<'static, Notice>, StoreError> {
        reach(&self.luck).await?;
        self.inner.notices().await
    }
    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }
}

struct Writer {
    inner: Box<dyn PartitionWriter>,
    luck: Arc<Luck>,
    newer: bool,
}

#[async_trait]
impl PartitionWriter for Writer {
    async fn lifetimes(&mut self) -> Result<Option<Lifetimes>, StoreError> {
        reach(&self.luck).await?;
        self.inner.lifetimes().await
    }
    async fn done(&mut self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        reach(&self.luck).await?;
        self.inner.done(limit).await
    }
    async fn nodes(&mut self, ids: &[TaskId]) -> Result<Vec<Option<TaskRecord>>, StoreError> {
        reach(&self.luck).await?;
        self.inner.nodes(ids).await
    }
    async fn check(&mut self) -> Result<(), StoreError> {
        reach(&self.luck).await?;
        self.inner.check().await
    }
    async fn sums(&mut self) -> Result<Option<String>, StoreError> {
        reach(&self.luck).await?;
        let fault = self.inner.sums().await?;
        // Nothing loses keys here.
        self.luck.violations.lock().extend(fault.clone());
        Ok(fault)
    }
    async fn audit(&mut self, index: &Index, after: Option<&Entry>, limit: usize) -> Result<AuditPage, StoreError> {
        reach(&self.luck).await?;
        let page = self.inner.audit(index, after, limit).await?;
        // Nothing loses single records here.
        self.luck.violations.lock().extend(page.tasks.iter().filter_map(|task| task.fault()));
        Ok(page)
    }
    async fn condemn(&mut self) -> Result<(), StoreError> {
        reach(&self.luck).await?;
        self.inner.condemn().await
    }
    async fn apply(&mut self, changes: &Changes, from: Option<Checkpoint>, to: Checkpoint) -> Result<(), StoreError> {
        reach(&self.luck).await?;
        let written = |fence: Checkpoint| Checkpoint { version: fence.version + u32::from(self.newer), ..fence };
        let (from, to) = (from.map(written), written(to));
        if let Some(from) = from.filter(|from| from.version != to.version) {
            self.luck.violations.lock().push(format!("version {} goes on from {from:?}", to.version));
        }
        self.inner.apply(changes, from, to).await?;
        self.luck.writes.fetch_add(1, SeqCst);
        // It has worked; whoever asked may never know.
        reach(&self.luck).await
    }
}
