//! A broker in memory: for `dev`, tests and the seeded simulation, not for production.
//!
//! It behaves as Kafka where that hurts: see `tests/broker_conformance`. Whatever it does happens under one lock, in the
//! order of the calls; sinks are called without it. A log that is full refuses records; only
//! `cleanup.policy=compact`, and `retention.ms` where the options say so, make room. Reading order: [`log`] → [`topics`] → [`balance`] → [`group`] → [`faults`] →
//! the three clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};

use self::group::Group;
use self::topics::Topics;
use super::{
    Broker, BrokerError, Commit, Committed, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, Partition, Producer, TopicInfo,
    TopicOutcome, TopicSpec, TransactionalProducer, Watermarks,
};

mod assignor;
mod consumer;
mod faults;
mod group;
mod log;
mod producer;
mod topics;
mod transactions;

pub use faults::Faults;

/// Epoch milliseconds; called under the broker's lock, so it must not call the broker.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

#[derive(Clone)]
pub struct MemoryOptions {
    /// What one partition may hold, in bytes, with some 100 bytes of overhead a record. Default 256 MiB.
    pub log_bytes_per_partition: u64,
    /// How long a member may go without a poll before its partitions are taken from it. Default 45 s.
    pub session_timeout: Duration,
    /// Records older than the topic's `retention.ms` are removed as others are appended. Default false: a test says itself
    /// when retention strikes, see [`Memory::truncate_before`].
    pub heeds_retention: bool,
    /// How long commits of a group without members are kept. Default 7 days.
    pub offsets_retention: Duration,
    /// Timestamps, sessions and retentions go by it. Default: the system's time.
    pub clock: Clock,
    /// Outcomes are told inside `send`, `flush` and [`Memory::deliver_delayed`] instead of on a thread of the producer, so
    /// that one thread alone decides the order of everything. Default false.
    pub inline_delivery: bool,
    /// Default: none.
    pub faults: Faults,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            log_bytes_per_partition: 256 << 20,
            session_timeout: Duration::from_secs(45),
            heeds_retention: false,
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            clock: Arc::new(system_ms),
            inline_delivery: false,
            faults: Faults::default(),
        }
    }
}

fn system_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// A [`Broker`] in memory, with hooks for tests.
pub struct Memory {
    core: Arc<Core>,
}

struct Core {
    options: MemoryOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    topics: Topics,
    groups: BTreeMap<String, Group>,
    senders: BTreeMap<String, transactions::Sender>,
    dice: faults::FaultInjector,
    /// Inline producers, which only send when somebody calls.
    inline: Vec<Weak<producer::SendQueue>>,
    last_id: u64,
}

impl State {
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now_ms(&self) -> i64 {
        (self.options.clock)()
    }

    fn session_ms(&self) -> i64 {
        millis(self.options.session_timeout)
    }

    /// Does to a group what time has brought: silent members go, and so do old commits of an empty group.
    fn tend(&self, state: &mut State, group: &str) {
        if let Some(group) = state.groups.get_mut(group) {
            let now_ms = self.now_ms();
            group.put_out_silent(&state.topics, now_ms, self.session_ms());
            group.expire(now_ms, millis(self.options.offsets_retention));
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

impl Memory {
    pub fn new(options: MemoryOptions) -> Arc<Self> {
        let state = State { dice: faults::FaultInjector::new(options.faults), ..State::default() };
        Arc::new(Self { core: Arc::new(Core { options, state: Mutex::new(state) }) })
    }

    /// Removes the records before an offset, as Kafka's retention or `DeleteRecords` does.
    ///
    /// # Errors
    /// `Unknown`, or `Invalid` for an offset outside the log.
    pub fn truncate_before(&self, partition: &Partition, offset: i64) -> Result<(), BrokerError> {
        let mut state = self.core.lock();
        let log = topics::log_mut(&mut state.topics, partition)?;
        if offset < log.first || offset > log.limit(false) {
            let (first, limit) = (log.first, log.limit(false));
            return Err(BrokerError::Invalid(format!("`{partition}` holds offsets {first} to {limit}, not {offset}")));
        }
        log.truncate_before(offset);
        Ok(())
    }

    /// Compacts a topic now: of each key the latest record stays, and the offsets get gaps.
    ///
    /// # Errors
    /// `Unknown`, or `Invalid` where the topic's `cleanup.policy` has no `compact`.
    pub fn compact(&self, topic: &str) -> Result<(), BrokerError> {
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        let found = topics::topic_mut(&mut state.topics, topic)?;
        if !found.rules.compact {
            return Err(BrokerError::Invalid(format!("`{topic}` is not compacted; hint: set `cleanup.policy`")));
        }
        let tombstones_after_ms = now_ms - found.rules.delete_retention_ms;
        found.logs.iter_mut().for_each(|log| log.compact(tombstones_after_ms));
        Ok(())
    }

    /// Forgets the commits of all groups without members, whatever their age.
    pub fn expire_groups(&self) {
        let mut state = self.core.lock();
        state.groups.values_mut().for_each(Group::forget_if_empty);
    }

    /// Changes what goes wrong from now on; `Faults::default()` calms everything.
    pub fn set_faults(&self, faults: Faults) {
        self.core.lock().dice = faults::FaultInjector::new(faults);
    }

    /// Sends what a fault holds back in inline producers.
    pub fn deliver_delayed(&self) {
        let pipes: Vec<_> = self.core.lock().inline.iter().filter_map(Weak::upgrade).collect();
        pipes.iter().for_each(|pipe| pipe.drain_all());
    }

    /// Keeps the next atomic sends under this name open: their records are in the log, neither committed nor aborted,
    /// and the sender is told `InDoubt`. Opening the name anew aborts them, as Kafka does.
    pub fn hold_atomic(&self, name: &str, hold: bool) {
        self.core.lock().senders.entry(name.to_owned()).or_default().hold = hold;
    }

    /// Ends the open atomic send of this name; false where there is none.
    pub fn settle_atomic(&self, name: &str, committed: bool) -> bool {
        self.core.lock().settle_atomic(name, committed)
    }
}

impl Broker for Memory {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        Ok(Box::new(consumer::MemoryConsumer::new(self.core.clone(), spec)?))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        Ok(Arc::new(producer::MemoryProducer::start(self.core.clone(), sink)?))
    }

    fn atomic_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        Ok(Box::new(transactions::MemoryTransactionalProducer::open(self.core.clone(), name)))
    }

    fn topics(&self, prefix: &str, _deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        let state = self.core.lock();
        let matching = state.topics.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(matching.map(|(name, topic)| topic.info(name)).collect())
    }

    /// There is one copy of everything: `replication` is not looked at.
    fn apply_topics(&self, specs: &[TopicSpec], _deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        let mut state = self.core.lock();
        let state = &mut *state;
        let outcomes =
            specs.iter().map(|spec| TopicOutcome { name: spec.name.clone(), change: topics::apply(&mut state.topics, spec) });
        let outcomes = outcomes.collect();
        for group in state.groups.values_mut().filter(|group| !group.is_empty()) {
            group.notice_topics(&state.topics);
        }
        Ok(outcomes)
    }

    fn ends(&self, partition: &Partition, _deadline: Duration) -> Result<Watermarks, BrokerError> {
        let state = self.core.lock();
        let log = topics::log(&state.topics, partition)?;
        Ok(Watermarks { first: log.first, end: log.end })
    }

    fn first_visible(&self, partition: &Partition, offset: i64, _deadline: Duration) -> Result<CommittedProbe, BrokerError> {
        let state = self.core.lock();
        Ok(topics::log(&state.topics, partition)?.first_visible(&partition.topic, partition.index, offset))
    }

    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        _deadline: Duration,
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        let mut state = self.core.lock();
        self.core.tend(&mut state, group);
        let found = state.groups.get(group);
        Ok(found.map_or_else(|| vec![None; partitions.len()], |group| group.committed(partitions)))
    }

    fn set_group_offsets(&self, group: &str, commits: &[Commit], _deadline: Duration) -> Result<(), BrokerError> {
        let mut state = self.core.lock();
        self.core.tend(&mut state, group);
        let now_ms = self.core.now_ms();
        let state = &mut *state;
        state.groups.entry(group.to_owned()).or_default().commit_outside(group, commits, &state.topics, now_ms)
    }
}
