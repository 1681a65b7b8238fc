//! Broker as seen by a simulated process: calls fail, and fail after they took effect. Commits are checked against the
//! log. Its faults follow from the seed and its invariants are those of the simulation, so that the rules of
//! `kafleet_testkit::faults` do not serve here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use kafleet::broker::memory::MemoryBroker;
use kafleet::broker::{
    Broker, BrokerError, Commit, CommittedOffset, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, GroupEvent,
    Partition, Producer, ProducerRecord, RecordRef, StartOffset, TopicInfo, TopicOutcome, TopicSpec,
    TransactionalProducer, Watermarks,
};
use kafleet::handlers::Task as _;
use kafleet::runtime::simulated::Process;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::adaptive::MeteredCall;
use crate::host::{elapsed_ms, run_as, running_process};
use crate::offset_oracle::OffsetOracle;

/// Random generator and switches of faults.
pub struct FaultRng {
    rng: Mutex<fastrand::Rng>,
    /// Failing calls per mille.
    pub failing: AtomicU32,
    /// All calls fail.
    pub down: AtomicBool,
    /// Number of writes to the store.
    pub writes: AtomicU64,
    /// Times at which partitions of the type with an adaptive limit moved, in milliseconds since the start.
    pub moves: Mutex<Vec<u64>>,
    /// Invalid writes of trackers.
    pub violations: Mutex<Vec<String>>,
}

impl FaultRng {
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        let (failing, down, writes) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { rng, failing, down, writes, moves: Mutex::default(), violations: Mutex::default() })
    }

    pub fn fails(&self) -> bool {
        self.down.load(SeqCst) || self.rng.lock().u32(..1_000) < self.failing.load(SeqCst)
    }

    pub fn latency(&self) -> Duration {
        Duration::from_millis(self.rng.lock().u64(..4))
    }
}

pub struct FaultyBroker {
    pub inner: Arc<MemoryBroker>,
    pub offset_oracle: Arc<OffsetOracle>,
    pub fault_rng: Arc<FaultRng>,
    /// Events topic, if the process is of a newer build.
    pub newer: Option<String>,
}

impl FaultyBroker {
    fn reached(&self) -> Result<&MemoryBroker, BrokerError> {
        if self.fault_rng.fails() { Err(unavailable()) } else { Ok(&self.inner) }
    }
}

fn unavailable() -> BrokerError {
    BrokerError::Unavailable("simulated outage".into())
}

impl Broker for FaultyBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        // A worker group is named after its topic, or shared. The announcer's group reads the same topics without these
        // invariants.
        let is_of_workers = |group: &String| Some(group) == spec.topics.first() || group.contains(".group.");
        let offset_oracle = spec.group.as_ref().is_some_and(is_of_workers).then(|| self.offset_oracle.clone());
        Ok(Box::new(FaultyConsumer {
            inner: self.reached()?.consumer(spec)?,
            offset_oracle,
            fault_rng: self.fault_rng.clone(),
            pending_commits: Vec::new(),
        }))
    }
    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        let inner = self.inner.producer(Arc::new(ProcessSink { inner: sink, process: running_process() }))?;
        let Some(events) = self.newer.clone() else { return Ok(inner) };
        Ok(Arc::new(NewerProducer { inner, events, fault_rng: self.fault_rng.clone() }))
    }
    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        self.reached()?.transactional_producer(name)
    }
    fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        self.reached()?.topics(prefix, deadline)
    }
    fn apply_topics(&self, topics: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        self.inner.apply_topics(topics, deadline)
    }
    fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        self.reached()?.watermarks(partition, deadline)
    }
    fn first_visible(
        &self,
        partition: &Partition,
        offset: i64,
        deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        self.reached()?.first_visible(partition, offset, deadline)
    }
    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        self.reached()?.group_offsets(group, partitions, deadline)
    }
    fn set_group_offsets(&self, group: &str, commits: &[Commit], deadline: Duration) -> Result<(), BrokerError> {
        self.inner.set_group_offsets(group, commits, deadline)
    }
}

/// Delivery tag of records without a listener.
const UNTRACKED: u64 = u64::MAX - 7;

/// Producer of a newer build: events have unknown fields, and some have unknown kinds.
struct NewerProducer {
    inner: Arc<dyn Producer>,
    events: String,
    fault_rng: Arc<FaultRng>,
}

impl NewerProducer {
    /// Event as written by the newer build, and sometimes an event of an unknown kind.
    fn encode(&self, value: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut event: serde_json::Map<String, Value> = serde_json::from_slice(value).ok()?;
        event.insert("extra".into(), json!({"of": ["a", "newer"], "build": 1.5}));
        let encode = serde_json::to_vec(&event).ok()?;
        let extra = (self.fault_rng.rng.lock().u8(..8) == 0).then(|| {
            event.insert("kind".into(), json!("polished"));
            serde_json::to_vec(&event).unwrap_or_default()
        });
        Some((encode, extra))
    }
}

impl Producer for NewerProducer {
    fn send(&self, record: &ProducerRecord<'_>, token: u64) -> Result<(), BrokerError> {
        let encode = record.value.filter(|_| record.topic == self.events).and_then(|value| self.encode(value));
        let Some((value, extra)) = encode else { return self.inner.send(record, token) };
        if let Some(extra) = extra {
            // Additional events may be lost.
            let _ = self.inner.send(&ProducerRecord { value: Some(&extra), ..*record }, UNTRACKED);
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

/// Sink of a process. The driver delivers the acknowledgements of delayed records, from which the process learns the time.
struct ProcessSink {
    inner: Arc<dyn DeliverySink>,
    process: Process,
}

impl DeliverySink for ProcessSink {
    fn appended(&self, token: u64, append_ms: i64) {
        run_as(self.process, || self.inner.appended(token, append_ms));
    }

    fn delivered(&self, token: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        if token != UNTRACKED {
            self.inner.delivered(token, outcome);
        }
    }
}

struct FaultyConsumer {
    inner: Box<dyn Consumer>,
    offset_oracle: Option<Arc<OffsetOracle>>,
    fault_rng: Arc<FaultRng>,
    /// Commits in flight, lost in a crash.
    pending_commits: Vec<Commit>,
}

impl FaultyConsumer {
    fn send_pending(&mut self) -> Result<(), BrokerError> {
        let pending_commits = std::mem::take(&mut self.pending_commits);
        if pending_commits.is_empty() { Ok(()) } else { self.inner.commit(&pending_commits) }
    }

    fn check(&self, commits: &[Commit]) {
        tracing::debug!(at_ms = kafleet::runtime::now_ms() - crate::host::START_MS, ?commits, "committing");
        if let Some(offset_oracle) = &self.offset_oracle {
            offset_oracle.check_commits(commits);
        }
    }

    /// Notes that partitions of the type with an adaptive limit move.
    fn note_move(&self, event: &GroupEvent) {
        if let GroupEvent::Assigned(partitions) | GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) = event
            && partitions.iter().any(|partition| partition.topic.ends_with(MeteredCall::TYPE))
        {
            self.fault_rng.moves.lock().push(elapsed_ms());
        }
    }
}

impl Consumer for FaultyConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        self.send_pending()?;
        let mut events = self.inner.poll(max, wait, sink)?;
        for event in &mut events {
            self.note_move(event);
            if let GroupEvent::Committed(outcomes) = event
                && outcomes.iter().all(|(_, outcome)| outcome.is_ok())
                && self.fault_rng.fails()
            {
                let lost = BrokerError::InDoubt("simulated lost response of a commit".into());
                outcomes.iter_mut().for_each(|(_, outcome)| *outcome = Err(lost.clone()));
            }
        }
        Ok(events)
    }
    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        if self.fault_rng.fails() { Err(unavailable()) } else { self.inner.assign(starts) }
    }
    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.check(commits);
        self.pending_commits = commits.to_vec();
        Ok(())
    }
    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.check(commits);
        self.send_pending()?;
        self.inner.commit_sync(commits)?;
        if let Some(offset_oracle) = &self.offset_oracle {
            offset_oracle.committed(commits);
        }
        if self.fault_rng.fails() {
            Err(BrokerError::InDoubt("simulated lost response of a commit".into()))
        } else {
            Ok(())
        }
    }
    fn committed(
        &mut self,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        if self.fault_rng.fails() { Err(unavailable()) } else { self.inner.committed(partitions, deadline) }
    }
    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.inner.release(partitions)
    }
    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        self.inner.pause(partitions, paused)
    }
    fn hold(&mut self, topic: &str, held: bool) {
        self.inner.hold(topic, held);
    }
    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        self.inner.positions()
    }
    fn close(self: Box<Self>, deadline: Duration) {
        self.inner.close(deadline);
    }
}
