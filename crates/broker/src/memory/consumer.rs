//! Consumer of the in-memory broker: positions in the logs, and membership in a group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, MutexGuard};
use tokio::time::Instant;

use super::group::PollResult;
use super::log::LogEntry;
use super::topics::{self, Topics};
use super::{BrokerState, Core};
use crate::{
    BrokerError, Commit, CommitOutcomes, CommittedOffset, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef,
    StartOffset,
};

/// A consumer. Dropping it without `close` simulates a crash: its partitions are reassigned after the session
/// timeout.
pub(super) struct MemoryConsumer {
    core: Arc<Core>,
    id: u64,
    group: Option<String>,
    topics: Vec<String>,
    read_uncommitted: bool,
    waiter: Arc<Condvar>,
    joined: bool,
    /// Partitions that the group has assigned and the consumer has not released. After `Lost`, the consumer rejoins
    /// only when all of them have been released.
    assigned: BTreeSet<Partition>,
    reads: Vec<ReadPartition>,
    /// Topics whose records are held back.
    held: BTreeSet<String>,
    /// Index in `reads` at which the next poll starts, so that a partition with many records does not starve the
    /// others.
    next: usize,
    events: Vec<GroupEvent>,
    /// Records of the current poll, each with the index of its partition in `reads`.
    batch: Vec<(usize, LogEntry)>,
}

/// A partition that is being read.
struct ReadPartition {
    at: Partition,
    position: i64,
    paused: bool,
    /// Set if the position is outside the log, or while the partition is being revoked.
    stopped: bool,
}

impl MemoryConsumer {
    pub(super) fn new(core: Arc<Core>, spec: &ConsumerSpec) -> Result<Self, BrokerError> {
        if spec.group.is_some() == spec.topics.is_empty() {
            return Err(BrokerError::Invalid("a consumer needs both a group and topics, or neither".to_owned()));
        }
        let id = core.lock().new_id();
        Ok(Self {
            core,
            id,
            group: spec.group.clone(),
            topics: spec.topics.clone(),
            read_uncommitted: spec.read_uncommitted,
            waiter: Arc::new(Condvar::new()),
            joined: false,
            assigned: BTreeSet::new(),
            reads: Vec::new(),
            held: BTreeSet::new(),
            next: 0,
            events: Vec::new(),
            batch: Vec::new(),
        })
    }

    /// Joins the group if necessary, and collects its events.
    fn poll_group(&mut self, core: &Core, state: &mut BrokerState) {
        let Some(name) = self.group.clone() else { return };
        core.apply_timeouts(state, &name);
        let now_ms = core.now_ms();
        let group = state.groups.entry(name).or_default();
        if self.joined {
            match group.poll(self.id, now_ms) {
                PollResult::Member(events) => return self.take_events(events),
                PollResult::Evicted => self.handle_eviction(),
            }
        }
        // An evicted member rejoins at once if nothing was assigned, otherwise once it has released its partitions.
        if !self.joined && self.assigned.is_empty() {
            group.join(self.id, &self.topics, &self.waiter, &state.topics, now_ms);
            self.joined = true;
            let missing = self.topics.iter().filter(|topic| !state.topics.contains_key(topic.as_str()));
            self.events.extend(missing.map(|topic| GroupEvent::ClientError(topics::unknown_topic(topic))));
            if let PollResult::Member(events) = group.poll(self.id, now_ms) {
                self.take_events(events);
            }
        }
    }

    fn take_events(&mut self, events: Vec<GroupEvent>) {
        for event in &events {
            match event {
                GroupEvent::Assigned(partitions) => self.assigned.extend(partitions.iter().cloned()),
                GroupEvent::Revoked(partitions) => self.stop(partitions),
                _ => {}
            }
        }
        self.events.extend(events);
    }

    fn stop(&mut self, partitions: &[Partition]) {
        for read in self.reads.iter_mut().filter(|read| partitions.contains(&read.at)) {
            read.stopped = true;
        }
    }

    fn handle_eviction(&mut self) {
        self.joined = false;
        self.reads.clear();
        if !self.assigned.is_empty() {
            self.events.push(GroupEvent::Lost(self.assigned.iter().cloned().collect()));
        }
    }

    /// Moves at most `max` records to the batch.
    fn take_records(&mut self, topics: &Topics, max: usize) {
        let count = self.reads.len();
        let Self { reads, held, batch, events, .. } = self;
        for n in 0..count {
            let slot = (self.next + n) % count;
            let read = &mut reads[slot];
            if read.paused || read.stopped || held.contains(&*read.at.topic) {
                continue;
            }
            let Ok(log) = topics::log(topics, &read.at) else { continue };
            if read.position < log.first || read.position > log.end {
                read.stopped = true;
                events.push(GroupEvent::OutOfRange(read.at.clone()));
                continue;
            }
            let room = max - batch.len();
            let taken = log.take_records(&mut read.position, room, self.read_uncommitted, |entry| {
                batch.push((slot, entry.clone()));
            });
            if taken == room {
                self.next = slot + 1;
                return;
            }
        }
    }

    /// Waits for a record, a group event, or the timeout.
    fn wait(&self, core: &Core, state: &mut MutexGuard<'_, BrokerState>, mut left: Duration) {
        let is_read = |read: &&ReadPartition| !read.paused && !read.stopped && !self.held.contains(&*read.at.topic);
        for read in self.reads.iter().filter(is_read) {
            if let Ok(log) = topics::log_mut(&mut state.topics, &read.at) {
                log.wait_with(&self.waiter);
            }
        }
        let group = self.group.as_ref().and_then(|name| state.groups.get(name));
        if let Some(eviction_ms) = group.and_then(|group| group.next_eviction_ms(core.now_ms(), core.session_ms())) {
            left = left.min(Duration::from_millis(eviction_ms));
        }
        self.waiter.wait_for(state, left);
    }

    /// Fills the batch and the events, waiting up to `wait`.
    fn fill(&mut self, max: usize, wait: Duration) {
        let end = Instant::now() + wait.min(Duration::from_secs(24 * 3600));
        let core = self.core.clone();
        let mut state = core.lock();
        loop {
            self.poll_group(&core, &mut state);
            if self.events.is_empty() && max > 0 {
                self.take_records(&state.topics, max);
            }
            let left = end.saturating_duration_since(Instant::now());
            if !self.events.is_empty() || !self.batch.is_empty() || left.is_zero() {
                break;
            }
            // A simulation advances its clock instead of blocking.
            if !kafleet_runtime::pass(left) {
                self.wait(&core, &mut state, left);
            }
        }
        if let Some(group) = self.group.as_ref().and_then(|name| state.groups.get_mut(name)) {
            group.end_poll(self.id, core.now_ms());
        }
    }

    fn group_name(&self) -> Result<&str, BrokerError> {
        self.group
            .as_deref()
            .ok_or_else(|| BrokerError::Invalid("a consumer without a group has no commits".to_owned()))
    }

    /// Checks that this consumer may read the partition.
    fn check_assigned(&self, state: &BrokerState, at: &Partition) -> Result<(), BrokerError> {
        let Some(name) = &self.group else { return Ok(()) };
        let is_assigned = state.groups.get(name).is_some_and(|group| group.is_assigned(self.id, at));
        if is_assigned {
            Ok(())
        } else {
            Err(BrokerError::Refused(format!("`{at}` is not assigned to this member of `{name}`")))
        }
    }

    fn commit_now(&self, commits: &[Commit]) -> Result<CommitOutcomes, BrokerError> {
        let name = self.group_name()?;
        let mut state = self.core.lock();
        self.core.apply_timeouts(&mut state, name);
        state.faults.commit()?;
        let now_ms = self.core.now_ms();
        let state = &mut *state;
        let group = state.groups.entry(name.to_owned()).or_default();
        group.commit(name, self.id, commits, &state.topics, now_ms)
    }

    fn set_position(&mut self, at: &Partition, position: i64, stopped: bool) {
        match self.reads.iter_mut().find(|read| read.at == *at) {
            Some(read) => (read.position, read.stopped) = (position, stopped),
            None => self.reads.push(ReadPartition { at: at.clone(), position, paused: false, stopped }),
        }
    }

    fn is_revoking(&self, state: &BrokerState, at: &Partition) -> bool {
        let group = self.group.as_ref().and_then(|name| state.groups.get(name));
        group.is_some_and(|group| group.is_revoking(self.id, at))
    }
}

impl Consumer for MemoryConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        self.batch.clear();
        self.fill(max, wait);
        for (slot, entry) in &self.batch {
            let at = &self.reads[*slot].at;
            sink(&entry.payload.record(&at.topic, at.index, entry.at));
        }
        self.batch.clear();
        Ok(std::mem::take(&mut self.events))
    }

    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        let core = self.core.clone();
        let state = core.lock();
        let mut positions = Vec::with_capacity(starts.len());
        for (at, start) in starts {
            self.check_assigned(&state, at)?;
            let log = topics::log(&state.topics, at)?;
            positions.push(match start {
                StartOffset::Beginning => log.first,
                StartOffset::End => log.read_limit(self.read_uncommitted),
                StartOffset::At(offset) => *offset,
            });
        }
        for ((at, _), position) in starts.iter().zip(positions) {
            let stopped = self.is_revoking(&state, at);
            self.set_position(at, position, stopped);
        }
        Ok(())
    }

    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.reads.retain(|read| !partitions.contains(&read.at));
        self.assigned.retain(|at| !partitions.contains(at));
        let mut state = self.core.lock();
        if let Some(group) = self.group.as_ref().and_then(|name| state.groups.get_mut(name)) {
            group.release(self.id, partitions);
        }
        Ok(())
    }

    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.group_name()?;
        if self.events.iter().any(|event| matches!(event, GroupEvent::Committed(_))) {
            return Err(BrokerError::Invalid("a commit is in flight; hint: poll for its outcome first".to_owned()));
        }
        let outcomes = self.commit_now(commits).unwrap_or_else(|error| {
            commits.iter().map(|commit| (commit.partition.clone(), Err(error.clone()))).collect()
        });
        self.events.push(GroupEvent::Committed(outcomes));
        Ok(())
    }

    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.commit_now(commits)?.into_iter().try_for_each(|(_, outcome)| outcome)
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        _deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let name = self.group_name()?;
        let state = self.core.lock();
        Ok(state.groups.get(name).map_or_else(|| vec![None; partitions.len()], |group| group.committed(partitions)))
    }

    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        for read in self.reads.iter_mut().filter(|read| partitions.contains(&read.at)) {
            read.paused = paused;
        }
        Ok(())
    }

    fn hold(&mut self, topic: &str, held: bool) {
        if held {
            self.held.insert(topic.to_owned());
        } else {
            self.held.remove(topic);
        }
    }

    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        let state = self.core.lock();
        let is_inside = |read: &&ReadPartition| {
            topics::log(&state.topics, &read.at).is_ok_and(|log| (log.first..=log.end).contains(&read.position))
        };
        Ok(self.reads.iter().filter(is_inside).map(|read| (read.at.clone(), read.position)).collect())
    }

    fn close(self: Box<Self>, _deadline: Duration) {
        let now_ms = self.core.now_ms();
        let mut state = self.core.lock();
        let state = &mut *state;
        if let Some(group) = self.group.as_ref().and_then(|name| state.groups.get_mut(name)) {
            group.leave(self.id, &state.topics, now_ms);
        }
    }
}
