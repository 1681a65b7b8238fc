//! Kafka consumer: a group member, or a reader of explicitly assigned partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::commits::{Commits, commit_and_wait};
use super::native::{Records, Waker};
use super::out_of_range::OutOfRange;
use super::rebalance::{CallbackEvents, unassign_all};
use super::settings::Settings;
use super::{error, list, native, offset_of, with_record};
use crate::{
    BrokerError, Commit, CommittedOffset, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset,
};

/// Maximum wait for the outcome of a synchronous commit. librdkafka's own timeout is longer.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
const SEEK_DEADLINE: Duration = Duration::from_secs(10);

/// Interval at which partition queues are forwarded again. librdkafka drops a forwarding in several situations; this
/// bounds how long a partition delivers through the slower client queue.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// A consumer on librdkafka.
pub(super) struct KafkaConsumer {
    records: Records,
    client: BaseConsumer<CallbackEvents>,
    /// Woken by the record queue and by the client's own queue.
    waker: Arc<Waker>,
    forwarded: Instant,
    membership: Membership,
    /// Partitions being read, with the start given to `assign`.
    assigned: BTreeMap<Partition, StartOffset>,
    paused: BTreeSet<Partition>,
    out_of_range: OutOfRange,
    commits: Commits,
    /// Positions of partitions before they were last assigned; librdkafka may report them for a moment longer.
    stale: BTreeMap<Partition, i64>,
}

/// State of the group membership.
#[derive(Default)]
struct Membership {
    group: Option<String>,
    subscribed: bool,
    /// Partitions assigned by the group and not revoked.
    owned: BTreeSet<Partition>,
    /// Partitions revoked by the group that the owner of this consumer has not released yet.
    revoking: BTreeSet<Partition>,
    /// Partitions released during a rebalance. They are returned together, because librdkafka treats the first answer
    /// as complete.
    released: BTreeSet<Partition>,
}

impl KafkaConsumer {
    pub(super) fn new(settings: &Settings, spec: &ConsumerSpec) -> Result<Self, BrokerError> {
        if spec.group.is_none() && !spec.topics.is_empty() {
            return Err(BrokerError::Invalid("subscribing to topics requires a group".to_owned()));
        }
        let mut client: BaseConsumer<CallbackEvents> = settings
            .consumer(spec)
            .create_with_context(CallbackEvents::default())
            .map_err(|error| error::of(&error, "[kafka]"))?;
        let waker = Arc::new(Waker::default());
        let on_record = waker.clone();
        client.set_nonempty_callback(move || on_record.wake());
        let records = Records::new(client.client(), &spec.topics, &waker)
            .ok_or_else(|| BrokerError::Unavailable("librdkafka could not create a queue for records".to_owned()))?;
        if !spec.topics.is_empty() {
            let topics: Vec<&str> = spec.topics.iter().map(String::as_str).collect();
            topics.iter().try_for_each(|topic| super::check_topic(topic))?;
            client.subscribe(&topics).map_err(|error| error::of(&error, "subscribing"))?;
        }
        let membership =
            Membership { group: spec.group.clone(), subscribed: !spec.topics.is_empty(), ..Default::default() };
        Ok(Self {
            records,
            client,
            waker,
            forwarded: Instant::now(),
            membership,
            assigned: BTreeMap::new(),
            paused: BTreeSet::new(),
            out_of_range: OutOfRange::default(),
            commits: Commits::default(),
            stale: BTreeMap::new(),
        })
    }

    fn callbacks(&self) -> &CallbackEvents {
        self.client.context()
    }

    /// Takes the events recorded by the callbacks, and completes revocations of partitions that are not being read.
    fn events(&mut self) -> Result<Vec<GroupEvent>, BrokerError> {
        let (mut events, commits) = self.callbacks().lock().take_recorded();
        for event in &events {
            match event {
                GroupEvent::Assigned(partitions) => self.membership.owned.extend(partitions.iter().cloned()),
                GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => {
                    self.membership.owned.retain(|partition| !partitions.contains(partition));
                    let assigned = partitions.iter().filter(|partition| self.assigned.contains_key(partition));
                    self.membership.revoking.extend(assigned.cloned());
                    self.complete_revocation()?;
                }
                _ => {}
            }
        }
        for outcome in commits {
            self.commits.finish(self.client.client(), outcome);
        }
        events.extend(self.commits.take_outcomes().map(GroupEvent::Committed));
        Ok(events)
    }

    fn is_cooperative(&self) -> bool {
        !matches!(self.client.rebalance_protocol(), RebalanceProtocol::Eager)
    }

    /// Returns the released partitions to the group once all revoked ones are released.
    fn complete_revocation(&mut self) -> Result<(), BrokerError> {
        if !self.membership.revoking.is_empty() {
            return Ok(());
        }
        let released = std::mem::take(&mut self.membership.released);
        let outcome = if self.is_cooperative() {
            self.client.incremental_unassign(&list(released.iter().map(|partition| (partition, Offset::Invalid)))?)
        } else if self.assigned.is_empty() {
            self.client.unassign()
        } else {
            self.client.assign(&self.resume_offsets()?)
        };
        outcome.map_err(|error| error::of(&error, "releasing partitions"))
    }

    /// Returns librdkafka's positions. They advance past transaction markers while polling.
    fn native_positions(&self) -> Result<BTreeMap<Partition, i64>, BrokerError> {
        let positions = self.client.position().map_err(|error| error::of(&error, "fetching positions"))?;
        Ok(native::entries(&positions).into_iter().map(|entry| (entry.partition, entry.offset)).collect())
    }

    /// Records the positions of partitions that are about to be reassigned.
    fn remember_stale<'a>(&mut self, partitions: impl IntoIterator<Item = &'a Partition>) -> Result<(), BrokerError> {
        let positions = self.native_positions()?;
        for partition in partitions {
            match positions.get(partition).filter(|offset| **offset >= 0) {
                Some(offset) => self.stale.insert(partition.clone(), *offset),
                None => self.stale.remove(partition),
            };
        }
        Ok(())
    }

    /// Returns the offset at which each assigned partition would continue.
    fn resume_offsets(&self) -> Result<TopicPartitionList, BrokerError> {
        let positions = self.native_positions()?;
        list(self.assigned.iter().map(|(partition, start)| match positions.get(partition) {
            Some(offset) if *offset >= 0 => (partition, Offset::Offset(*offset)),
            _ => (partition, offset_of(*start)),
        }))
    }

    fn add(&mut self, starts: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        if starts.is_empty() {
            return Ok(());
        }
        self.remember_stale(starts.keys())?;
        // Forward before the assignment, or the first records would go to the client's queue; and again after it,
        // because the end of an earlier fetch removes the forwarding.
        self.forward(starts.keys());
        let added = if self.is_cooperative() {
            self.client
                .incremental_assign(&list(starts.iter().map(|(partition, start)| (partition, offset_of(*start))))?)
        } else {
            let mut all = self.resume_offsets()?;
            for (partition, start) in starts {
                let mut elem = all.add_partition(&partition.topic, partition.index);
                elem.set_offset(offset_of(*start)).map_err(|error| error::of(&error, "taking partitions"))?;
            }
            self.client.assign(&all)
        };
        added.map_err(|error| error::of(&error, "taking partitions"))?;
        self.forward(starts.keys());
        self.assigned.extend(starts.iter().map(|(partition, start)| (partition.clone(), *start)));
        Ok(())
    }

    /// Moves assigned partitions. librdkafka drops records already fetched from the old position, by their version.
    fn seek(&mut self, starts: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        if starts.is_empty() {
            return Ok(());
        }
        let offsets = list(starts.iter().map(|(partition, start)| (partition, offset_of(*start))))?;
        let results =
            self.client.seek_partitions(offsets, SEEK_DEADLINE).map_err(|error| error::of(&error, "seeking"))?;
        self.assigned.extend(starts.iter().map(|(partition, start)| (partition.clone(), *start)));
        starts.keys().for_each(|partition| self.out_of_range.forget(partition));
        let failed: Vec<Partition> = native::entries(&results)
            .into_iter()
            .filter(|entry| entry.error != RDKafkaErrorCode::NoError)
            .map(|entry| entry.partition)
            .collect();
        self.reassign(&failed)
    }

    /// Reassigns partitions that are not being fetched, such as out-of-range ones: they reject a seek.
    fn reassign(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        if partitions.is_empty() {
            return Ok(());
        }
        if !self.membership.revoking.is_empty() {
            return Err(BrokerError::Refused("a rebalance is in progress; seek after it".to_owned()));
        }
        self.remember_stale(partitions)?;
        let moved = if self.is_cooperative() {
            let unassigned = list(partitions.iter().map(|partition| (partition, Offset::Invalid)))?;
            let again = list(
                partitions.iter().filter_map(|partition| Some((partition, offset_of(*self.assigned.get(partition)?)))),
            )?;
            self.client.incremental_unassign(&unassigned).and_then(|()| self.client.incremental_assign(&again))
        } else {
            let mut all = self.resume_offsets()?;
            for partition in partitions {
                let start = self.assigned.get(partition).map_or(Offset::Invalid, |start| offset_of(*start));
                all.set_partition_offset(&partition.topic, partition.index, start)
                    .map_err(|error| error::of(&error, "moving partitions"))?;
            }
            self.client.assign(&all)
        };
        moved.map_err(|error| error::of(&error, "moving partitions"))?;
        self.forward(partitions);
        Ok(())
    }

    fn forward<'a>(&mut self, partitions: impl IntoIterator<Item = &'a Partition>) {
        let Self { records, client, .. } = self;
        partitions.into_iter().for_each(|partition| records.forward(client.client(), partition));
    }

    fn refresh_forwarding(&mut self, now: Instant) {
        if now.duration_since(self.forwarded) >= FORWARD_INTERVAL {
            self.records.forward_again();
            self.forwarded = now;
        }
    }

    /// Serves the client's own queue. Returns after at most one rebalance, because the next group event may depend on
    /// the answer. The queue also holds records that arrived before their partition was forwarded.
    fn poll_client(&self, max: usize, sink: &mut dyn FnMut(&RecordRef<'_>)) -> (usize, Option<KafkaError>) {
        let mut taken = 0;
        loop {
            match self.client.poll(Duration::ZERO) {
                Some(Ok(message)) => with_record(&message, &mut *sink),
                Some(Err(error)) => return (taken, Some(error)),
                None => return (taken, None),
            }
            taken += 1;
            if taken >= max {
                return (taken, None);
            }
        }
    }

    /// Converts an error of librdkafka's poll to events. Returns the errors after which the client is unusable.
    fn handle_error(
        &mut self,
        error: &KafkaError,
        partition: Option<Partition>,
        events: &mut Vec<GroupEvent>,
    ) -> Result<(), BrokerError> {
        let reason = std::mem::take(&mut self.callbacks().lock().reason);
        let code = error::code_of(error).unwrap_or(RDKafkaErrorCode::Unknown);
        if code == RDKafkaErrorCode::AutoOffsetReset {
            self.out_of_range.add(partition, reason, Instant::now());
            return Ok(());
        }
        let classified = error::classified(
            code,
            format!("reading: {}", if reason.is_empty() { error::describe(code) } else { reason }),
        );
        match (error, classified) {
            (KafkaError::MessageConsumptionFatal(_), fenced @ BrokerError::Fenced(_)) => Err(fenced),
            (KafkaError::MessageConsumptionFatal(_), other) => Err(BrokerError::Fatal(other.to_string())),
            (_, fatal @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => Err(fatal),
            (_, other) => {
                events.push(GroupEvent::ClientError(other));
                Ok(())
            }
        }
    }

    /// Returns the partitions whose position is outside their log, if any has been reported.
    fn find_out_of_range(&mut self) -> Vec<GroupEvent> {
        let now = Instant::now();
        if !self.out_of_range.is_due(now) {
            return Vec::new();
        }
        let client = &self.client;
        match self.resume_offsets() {
            Ok(positions) => {
                let positions = native::entries(&positions);
                self.out_of_range.search(positions, now, |entry, wait| is_out_of_range(client, entry, wait))
            }
            Err(error) => vec![GroupEvent::ClientError(error)],
        }
    }

    fn group(&self) -> Result<&str, BrokerError> {
        self.membership
            .group
            .as_deref()
            .ok_or_else(|| BrokerError::Invalid("a consumer without a group has no commits".to_owned()))
    }

    fn check_owned(&self, partitions: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        match partitions
            .keys()
            .find(|partition| self.membership.subscribed && !self.membership.owned.contains(partition))
        {
            None => Ok(()),
            Some(foreign) => {
                Err(BrokerError::Refused(format!("the group has not assigned {foreign} to this consumer")))
            }
        }
    }
}

impl Consumer for KafkaConsumer {
    fn poll(
        &mut self,
        max: usize,
        wait: Duration,
        sink: &mut dyn FnMut(&RecordRef<'_>),
    ) -> Result<Vec<GroupEvent>, BrokerError> {
        let now = Instant::now();
        let (until, mut events) = (now + wait, Vec::new());
        self.refresh_forwarding(now);
        loop {
            self.waker.reset();
            let (mut taken, failed) = self.poll_client(max, sink);
            if let Some(error) = failed {
                self.handle_error(&error, None, &mut events)?;
            }
            let (more, failed) = self.records.take_records(max.saturating_sub(taken), sink);
            taken += more;
            for failed in failed {
                self.callbacks().lock().reason = failed.reason;
                self.handle_error(&KafkaError::MessageConsumption(failed.code), failed.partition, &mut events)?;
            }
            events.append(&mut self.find_out_of_range());
            events.append(&mut self.events()?);
            if taken > 0 || !events.is_empty() || !self.waker.wait(until) {
                return Ok(events);
            }
        }
    }

    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        let starts: BTreeMap<Partition, StartOffset> = starts.iter().cloned().collect();
        let (moved, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
            starts.into_iter().partition(|(partition, _)| self.assigned.contains_key(partition));
        self.check_owned(&new)?;
        self.seek(&moved)?;
        self.add(&new)
    }

    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        let assigned: Vec<Partition> =
            partitions.iter().filter(|partition| self.assigned.contains_key(partition)).cloned().collect();
        // librdkafka keeps a pause beyond the assignment.
        self.pause(&assigned, false)?;
        for partition in &assigned {
            self.assigned.remove(partition);
            self.records.forget(partition);
            self.out_of_range.forget(partition);
            self.membership.revoking.remove(partition);
            self.membership.released.insert(partition.clone());
        }
        if assigned.is_empty() { Ok(()) } else { self.complete_revocation() }
    }

    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        self.group()?;
        self.commits.begin(self.client.client(), commits);
        Ok(())
    }

    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let operation = format!("committing for `{}`", self.group()?);
        commit_and_wait(self.client.client(), commits, COMMIT_DEADLINE, &operation)
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        deadline: Duration,
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        self.group()?;
        super::committed_offsets::committed_of(&self.client, partitions, deadline)
    }

    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        let changed: Vec<&Partition> = partitions
            .iter()
            .filter(|partition| self.assigned.contains_key(partition) && self.paused.contains(partition) != paused)
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let changed_list = list(changed.iter().map(|partition| (*partition, Offset::Invalid)))?;
        let done = if paused { self.client.pause(&changed_list) } else { self.client.resume(&changed_list) };
        done.map_err(|error| error::of(&error, "pausing or resuming"))?;
        for partition in changed {
            if paused {
                self.paused.insert(partition.clone())
            } else {
                self.paused.remove(partition)
            };
        }
        Ok(())
    }

    fn hold(&mut self, topic: &str, held: bool) {
        self.records.hold(topic, held);
    }

    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        let mut positions = self.native_positions()?;
        positions.retain(|partition, offset| {
            *offset >= 0 && self.assigned.contains_key(partition) && !self.out_of_range.may_be(partition)
        });
        self.stale.retain(|partition, offset| positions.get(partition) == Some(offset));
        positions.retain(|partition, _| !self.stale.contains_key(partition));
        Ok(positions.into_iter().collect())
    }

    fn close(self: Box<Self>, deadline: Duration) {
        let is_member = self.membership.group.is_some();
        let (done, closed) = mpsc::channel::<()>();
        let closing = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(self);
            drop(done);
        });
        let in_time = closing.is_err() || closed.recv_timeout(deadline) != Err(RecvTimeoutError::Timeout);
        if is_member && !in_time {
            tracing::warn!(target: "kafleet::kafka", ?deadline, "a consumer is still closing; the group will notice by its session timeout");
        }
    }
}

/// Returns whether a position is outside its log, or `None` if the broker did not answer in time.
fn is_out_of_range(
    client: &BaseConsumer<CallbackEvents>,
    entry: &native::PartitionEntry,
    wait: Duration,
) -> Option<bool> {
    if wait.is_zero() {
        return None;
    }
    let (first, end) = client.fetch_watermarks(&entry.partition.topic, entry.partition.index, wait).ok()?;
    Some(entry.offset < first || entry.offset > end)
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        // From here on the rebalance callback returns partitions itself. A pending rebalance is answered first.
        self.callbacks().closing.store(true, Ordering::Release);
        if self.membership.subscribed {
            unassign_all(&self.client);
            // A subscribed librdkafka consumer that is closed without an assignment does not leave the group, and
            // would delay rebalances until its session times out.
            self.client.unsubscribe();
        }
    }
}
