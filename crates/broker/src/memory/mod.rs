//! An in-memory broker for `kafleet dev`, tests and the seeded simulation; not for production.
//!
//! It reproduces Kafka's behaviour, including its failures; `tests/broker_conformance` runs against both. Every
//! operation runs under one lock, in call order; sinks are called without the lock. A full log rejects records; only
//! `cleanup.policy=compact`, and `retention.ms` if enabled in the options, free space.
//!
//! Invariant: with inline producers, as in the simulation, all outcomes follow from the calls and the seed of
//! [`Faults`]; without it a failing seed could not be repeated. A difference from Kafka that is found anywhere becomes
//! a case of the conformance suite: it would hide defects from all tests that run on this broker.
//!
//! Reading order: [`log`], [`topics`], [`assignor`], [`group`], [`faults`], then the three clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};

use self::group::ConsumerGroup;
use self::topics::Topics;
use super::{
    Broker, BrokerError, Commit, CommittedOffset, CommittedProbe, Consumer, ConsumerSpec, DeliverySink, Partition,
    Producer, TopicInfo, TopicOutcome, TopicSpec, TransactionalProducer, Watermarks,
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

/// Function that returns epoch milliseconds. Called under the broker's lock, so it must not call the broker.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Options of the in-memory broker.
#[derive(Clone)]
pub struct MemoryBrokerOptions {
    /// Maximum size of one partition in bytes, including about 100 bytes of overhead per record. Default 256 MiB.
    pub log_bytes_per_partition: u64,
    /// Time without a poll after which a group member is evicted. Default 45 s.
    pub session_timeout: Duration,
    /// Remove records older than the topic's `retention.ms` when others are appended. Default false: tests remove
    /// records explicitly with [`MemoryBroker::truncate_before`].
    pub applies_retention: bool,
    /// Time that committed offsets of an empty group are kept. Default 7 days.
    pub offsets_retention: Duration,
    /// Clock for timestamps, sessions and retention. Default: the system's clock.
    pub clock: Clock,
    /// Deliver outcomes inside `send`, `flush` and [`MemoryBroker::deliver_delayed`] instead of on a thread of the
    /// producer, so that a single thread determines the order of everything. Default false.
    pub inline_delivery: bool,
    /// Injected faults. Default: none.
    pub faults: Faults,
}

impl Default for MemoryBrokerOptions {
    fn default() -> Self {
        Self {
            log_bytes_per_partition: 256 << 20,
            session_timeout: Duration::from_secs(45),
            applies_retention: false,
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

/// An in-memory [`Broker`] with hooks for tests.
pub struct MemoryBroker {
    core: Arc<Core>,
}

struct Core {
    options: MemoryBrokerOptions,
    state: Mutex<BrokerState>,
}

#[derive(Default)]
struct BrokerState {
    topics: Topics,
    groups: BTreeMap<String, ConsumerGroup>,
    transactional_ids: BTreeMap<String, transactions::TransactionalId>,
    faults: faults::FaultInjector,
    /// Inline producers, which send only when called.
    inline: Vec<Weak<producer::SendQueue>>,
    last_id: u64,
}

impl BrokerState {
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, BrokerState> {
        self.state.lock()
    }

    fn now_ms(&self) -> i64 {
        (self.options.clock)()
    }

    fn session_ms(&self) -> i64 {
        millis(self.options.session_timeout)
    }

    /// Evicts silent members of a group, and expires the committed offsets of an empty one.
    fn apply_timeouts(&self, state: &mut BrokerState, group: &str) {
        if let Some(group) = state.groups.get_mut(group) {
            let now_ms = self.now_ms();
            group.evict_silent(&state.topics, now_ms, self.session_ms());
            group.expire(now_ms, millis(self.options.offsets_retention));
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

impl MemoryBroker {
    pub fn new(options: MemoryBrokerOptions) -> Arc<Self> {
        let state = BrokerState { faults: faults::FaultInjector::new(options.faults), ..BrokerState::default() };
        Arc::new(Self { core: Arc::new(Core { options, state: Mutex::new(state) }) })
    }

    /// Removes the records before an offset, as Kafka's retention or `DeleteRecords` does.
    ///
    /// # Errors
    /// `Unknown`, or `Invalid` for an offset outside the log.
    pub fn truncate_before(&self, partition: &Partition, offset: i64) -> Result<(), BrokerError> {
        let mut state = self.core.lock();
        let log = topics::log_mut(&mut state.topics, partition)?;
        if offset < log.first || offset > log.read_limit(false) {
            let (first, limit) = (log.first, log.read_limit(false));
            return Err(BrokerError::Invalid(format!("`{partition}` holds offsets {first} to {limit}, not {offset}")));
        }
        log.truncate_before(offset);
        Ok(())
    }

    /// Compacts a topic immediately: keeps the latest record of each key, which leaves gaps in the offsets.
    ///
    /// # Errors
    /// `Unknown`, or `Invalid` if the topic's `cleanup.policy` has no `compact`.
    pub fn compact(&self, topic: &str) -> Result<(), BrokerError> {
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        let memory_topic = topics::topic_mut(&mut state.topics, topic)?;
        if !memory_topic.log_config.compact {
            return Err(BrokerError::Invalid(format!("`{topic}` is not compacted; hint: set `cleanup.policy`")));
        }
        let tombstones_after_ms = now_ms - memory_topic.log_config.delete_retention_ms;
        memory_topic.logs.iter_mut().for_each(|log| log.compact(tombstones_after_ms));
        Ok(())
    }

    /// Removes the committed offsets of all groups without members, whatever their age.
    pub fn expire_groups(&self) {
        let mut state = self.core.lock();
        state.groups.values_mut().for_each(ConsumerGroup::clear_offsets_if_empty);
    }

    /// Replaces the injected faults; `Faults::default()` disables all.
    pub fn set_faults(&self, faults: Faults) {
        self.core.lock().faults = faults::FaultInjector::new(faults);
    }

    /// Sends the records that a fault delays in inline producers.
    pub fn deliver_delayed(&self) {
        let queues: Vec<_> = self.core.lock().inline.iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.drain_all());
    }

    /// Keeps the next transactions of this name open: their records are in the log, neither committed nor aborted,
    /// and the producer gets `InDoubt`. Opening the name again aborts them, as Kafka does.
    pub fn hold_transactions(&self, name: &str, hold: bool) {
        self.core.lock().transactional_ids.entry(name.to_owned()).or_default().hold = hold;
    }

    /// Commits or aborts the open transaction of this name. False if there is none.
    pub fn end_transaction(&self, name: &str, committed: bool) -> bool {
        self.core.lock().end_transaction(name, committed)
    }
}

impl Broker for MemoryBroker {
    fn consumer(&self, spec: &ConsumerSpec) -> Result<Box<dyn Consumer>, BrokerError> {
        Ok(Box::new(consumer::MemoryConsumer::new(self.core.clone(), spec)?))
    }

    fn producer(&self, sink: Arc<dyn DeliverySink>) -> Result<Arc<dyn Producer>, BrokerError> {
        Ok(Arc::new(producer::MemoryProducer::start(self.core.clone(), sink)?))
    }

    fn transactional_producer(&self, name: &str) -> Result<Box<dyn TransactionalProducer>, BrokerError> {
        Ok(Box::new(transactions::MemoryTransactionalProducer::open(self.core.clone(), name)))
    }

    fn topics(&self, prefix: &str, _deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        let state = self.core.lock();
        let matching = state.topics.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(matching.map(|(name, topic)| topic.info(name)).collect())
    }

    /// Creates or alters topics. `replication` is ignored: there is a single copy.
    fn apply_topics(&self, specs: &[TopicSpec], _deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
        let mut state = self.core.lock();
        let state = &mut *state;
        let outcomes = specs
            .iter()
            .map(|spec| TopicOutcome { name: spec.name.clone(), change: topics::apply(&mut state.topics, spec) });
        let outcomes = outcomes.collect();
        for group in state.groups.values_mut().filter(|group| !group.is_empty()) {
            group.update_partitions(&state.topics);
        }
        Ok(outcomes)
    }

    fn watermarks(&self, partition: &Partition, _deadline: Duration) -> Result<Watermarks, BrokerError> {
        let state = self.core.lock();
        let log = topics::log(&state.topics, partition)?;
        Ok(Watermarks { low: log.first, high: log.end })
    }

    fn stable_offsets(&self, partitions: &[Partition], _deadline: Duration) -> Result<Vec<Option<i64>>, BrokerError> {
        let state = self.core.lock();
        let stable = |at| topics::log(&state.topics, at).ok().map(|log| log.read_limit(false));
        Ok(partitions.iter().map(stable).collect())
    }

    fn first_visible(
        &self,
        partition: &Partition,
        offset: i64,
        _deadline: Duration,
    ) -> Result<CommittedProbe, BrokerError> {
        let state = self.core.lock();
        Ok(topics::log(&state.topics, partition)?.first_visible(&partition.topic, partition.index, offset))
    }

    fn group_offsets(
        &self,
        group: &str,
        partitions: &[Partition],
        _deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let mut state = self.core.lock();
        self.core.apply_timeouts(&mut state, group);
        let group = state.groups.get(group);
        Ok(group.map_or_else(|| vec![None; partitions.len()], |group| group.committed(partitions)))
    }

    fn set_group_offsets(&self, group: &str, commits: &[Commit], _deadline: Duration) -> Result<(), BrokerError> {
        let mut state = self.core.lock();
        self.core.apply_timeouts(&mut state, group);
        let now_ms = self.core.now_ms();
        let state = &mut *state;
        state.groups.entry(group.to_owned()).or_default().commit_externally(group, commits, &state.topics, now_ms)
    }
}
