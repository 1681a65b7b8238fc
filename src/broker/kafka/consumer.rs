//! Reading, as a member of a group or from partitions that were named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};

use super::native::{Records, Waker};
use super::settings::Settings;
use super::{error, list, list_of_commits, native, offset_of, with_record};
use crate::broker::{BrokerError, Commit, Committed, Consumer, ConsumerSpec, GroupEvent, Partition, RecordRef, StartOffset};

/// Longest wait for the outcome of a commit that is waited for. librdkafka itself gives up later.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
const SEEK_DEADLINE: Duration = Duration::from_secs(10);
/// Longest look for the partition that an out-of-range error is about.
const SEARCH_DEADLINE: Duration = Duration::from_secs(5);
/// Before the next look, where the last one could not see them all.
const SEARCH_PAUSE: Duration = Duration::from_secs(10);

/// How often librdkafka is told again where records are to go: whatever makes it forget, they are not forgotten for longer.
const FORWARD_AGAIN: Duration = Duration::from_secs(1);

pub(super) struct KafkaConsumer {
    records: Records,
    client: BaseConsumer<Notes>,
    /// Rings for the records' queue and for the client's own.
    bell: Arc<Waker>,
    forwarded: Instant,
    membership: Membership,
    /// Taken with `assign`, with the start given then.
    held: BTreeMap<Partition, StartOffset>,
    paused: BTreeSet<Partition>,
    /// Told as out of range, and not moved since.
    out_of_range: BTreeSet<Partition>,
    /// Something is out of range, and could not be found: when it is looked for again.
    search_again: Option<Instant>,
    /// Where partitions were read when they were last taken: librdkafka may say so for a moment longer.
    stale: BTreeMap<Partition, i64>,
}

/// What the group has told and is owed.
#[derive(Default)]
struct Membership {
    group: Option<String>,
    subscribed: bool,
    /// What the group has given and not taken back.
    owned: BTreeSet<Partition>,
    /// What the group wants back and the owner of this consumer has not released yet.
    awaited: BTreeSet<Partition>,
    /// Released during a rebalance, to be given back together: librdkafka takes the first answer as the whole.
    released: BTreeSet<Partition>,
}

impl KafkaConsumer {
    pub fn new(settings: &Settings, spec: &ConsumerSpec) -> Result<Self, BrokerError> {
        if spec.group.is_none() && !spec.topics.is_empty() {
            return Err(BrokerError::Invalid("subscribing to topics takes a group".to_owned()));
        }
        let mut client: BaseConsumer<Notes> =
            settings.consumer(spec).create_with_context(Notes::default()).map_err(|error| error::of(&error, "[kafka]"))?;
        let bell = Arc::new(Waker::default());
        let rings = bell.clone();
        client.set_nonempty_callback(move || rings.ring());
        let records = Records::new(client.client(), bell.clone())
            .ok_or_else(|| BrokerError::Unavailable("librdkafka made no queue for records".to_owned()))?;
        if !spec.topics.is_empty() {
            let topics: Vec<&str> = spec.topics.iter().map(String::as_str).collect();
            topics.iter().try_for_each(|topic| super::check_topic(topic))?;
            client.subscribe(&topics).map_err(|error| error::of(&error, "subscribing"))?;
        }
        let membership = Membership { group: spec.group.clone(), subscribed: !spec.topics.is_empty(), ..Default::default() };
        Ok(Self {
            records,
            client,
            bell,
            forwarded: Instant::now(),
            membership,
            held: BTreeMap::new(),
            paused: BTreeSet::new(),
            out_of_range: BTreeSet::new(),
            search_again: None,
            stale: BTreeMap::new(),
        })
    }

    fn notes(&self) -> &Notes {
        self.client.context()
    }

    /// Takes what the callbacks wrote down, and answers the group where the owner of this consumer has nothing to do.
    fn events(&mut self) -> Result<Vec<GroupEvent>, BrokerError> {
        let events = std::mem::take(&mut self.notes().lock().events);
        for event in &events {
            match event {
                GroupEvent::Assigned(partitions) => self.membership.owned.extend(partitions.iter().cloned()),
                GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions) => {
                    self.membership.owned.retain(|partition| !partitions.contains(partition));
                    let held = partitions.iter().filter(|partition| self.held.contains_key(partition));
                    self.membership.awaited.extend(held.cloned());
                    self.answer_if_complete()?;
                }
                _ => {}
            }
        }
        Ok(events)
    }

    fn cooperative(&self) -> bool {
        !matches!(self.client.rebalance_protocol(), RebalanceProtocol::Eager)
    }

    /// Gives back what was released, once nothing more is awaited.
    fn answer_if_complete(&mut self) -> Result<(), BrokerError> {
        if !self.membership.awaited.is_empty() {
            return Ok(());
        }
        let released = std::mem::take(&mut self.membership.released);
        let gone = if self.cooperative() {
            self.client.incremental_unassign(&list(released.iter().map(|partition| (partition, Offset::Invalid)))?)
        } else if self.held.is_empty() {
            self.client.unassign()
        } else {
            self.client.assign(&self.places()?)
        };
        gone.map_err(|error| error::of(&error, "giving partitions back"))
    }

    /// What librdkafka says of where partitions are read on; it steps over markers as the poll passes them.
    fn told(&self) -> Result<BTreeMap<Partition, i64>, BrokerError> {
        let told = self.client.position().map_err(|error| error::of(&error, "asking for positions"))?;
        Ok(native::entries(&told).into_iter().map(|entry| (entry.partition, entry.offset)).collect())
    }

    /// Notes what is said of partitions before they are taken anew.
    fn note_stale<'a>(&mut self, partitions: impl IntoIterator<Item = &'a Partition>) -> Result<(), BrokerError> {
        let told = self.told()?;
        for partition in partitions {
            match told.get(partition).filter(|offset| **offset >= 0) {
                Some(offset) => self.stale.insert(partition.clone(), *offset),
                None => self.stale.remove(partition),
            };
        }
        Ok(())
    }

    /// Where each held partition would be read on.
    fn places(&self) -> Result<TopicPartitionList, BrokerError> {
        let told = self.told()?;
        list(self.held.iter().map(|(partition, start)| match told.get(partition) {
            Some(offset) if *offset >= 0 => (partition, Offset::Offset(*offset)),
            _ => (partition, offset_of(*start)),
        }))
    }

    fn add(&mut self, starts: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        if starts.is_empty() {
            return Ok(());
        }
        self.note_stale(starts.keys())?;
        // Before, lest the first records come to the client's queue; and after, when the end of an earlier reading, which
        // takes the forwarding back, lies behind.
        self.forward(starts.keys());
        let added = if self.cooperative() {
            self.client.incremental_assign(&list(starts.iter().map(|(partition, start)| (partition, offset_of(*start))))?)
        } else {
            let mut all = self.places()?;
            for (partition, start) in starts {
                let mut elem = all.add_partition(&partition.topic, partition.index);
                elem.set_offset(offset_of(*start)).map_err(|error| error::of(&error, "taking partitions"))?;
            }
            self.client.assign(&all)
        };
        added.map_err(|error| error::of(&error, "taking partitions"))?;
        self.forward(starts.keys());
        self.held.extend(starts.iter().map(|(partition, start)| (partition.clone(), *start)));
        Ok(())
    }

    /// Moves held partitions. Records fetched from the old place carry an older version and are dropped by librdkafka.
    fn seek(&mut self, starts: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        if starts.is_empty() {
            return Ok(());
        }
        let wanted = list(starts.iter().map(|(partition, start)| (partition, offset_of(*start))))?;
        let sought = self.client.seek_partitions(wanted, SEEK_DEADLINE).map_err(|error| error::of(&error, "seeking"))?;
        self.held.extend(starts.iter().map(|(partition, start)| (partition.clone(), *start)));
        self.out_of_range.retain(|partition| !starts.contains_key(partition));
        let failed: Vec<Partition> = native::entries(&sought)
            .into_iter()
            .filter(|entry| entry.error != RDKafkaErrorCode::NoError)
            .map(|entry| entry.partition)
            .collect();
        self.take_anew(&failed)
    }

    /// A partition that is not being fetched, such as one out of range, takes no seek: it is given up and taken again.
    fn take_anew(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        if partitions.is_empty() {
            return Ok(());
        }
        if !self.membership.awaited.is_empty() {
            return Err(BrokerError::Refused("a rebalance is under way; move the partition after it".to_owned()));
        }
        self.note_stale(partitions)?;
        let moved = if self.cooperative() {
            let gone = list(partitions.iter().map(|partition| (partition, Offset::Invalid)))?;
            let again = list(partitions.iter().filter_map(|partition| Some((partition, offset_of(*self.held.get(partition)?)))))?;
            self.client.incremental_unassign(&gone).and_then(|()| self.client.incremental_assign(&again))
        } else {
            let mut all = self.places()?;
            for partition in partitions {
                let start = self.held.get(partition).map_or(Offset::Invalid, |start| offset_of(*start));
                all.set_partition_offset(&partition.topic, partition.index, start)
                    .map_err(|error| error::of(&error, "moving partitions"))?;
            }
            self.client.assign(&all)
        };
        moved.map_err(|error| error::of(&error, "moving partitions"))?;
        self.forward(partitions);
        Ok(())
    }

    fn forward<'a>(&self, partitions: impl IntoIterator<Item = &'a Partition>) {
        partitions.into_iter().for_each(|partition| self.records.forward(self.client.client(), partition));
    }

    fn forward_again(&mut self, now: Instant) {
        if now.duration_since(self.forwarded) >= FORWARD_AGAIN {
            self.forward(self.held.keys());
            self.forwarded = now;
        }
    }

    /// What the client has to say: at most one rebalance, for what the group says next may depend on the answer; and records
    /// that came before their partition was forwarded.
    fn listen(&self, max: usize, sink: &mut dyn FnMut(&RecordRef<'_>)) -> (usize, Option<KafkaError>) {
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

    /// Turns an error of librdkafka's poll into events; those after which the client is of no use are returned.
    fn trouble(&mut self, error: &KafkaError, events: &mut Vec<GroupEvent>) -> Result<(), BrokerError> {
        let reason = std::mem::take(&mut self.notes().lock().reason);
        let code = error::code_of(error).unwrap_or(RDKafkaErrorCode::Unknown);
        if code == RDKafkaErrorCode::AutoOffsetReset {
            events.append(&mut self.outside_the_log(&reason));
            return Ok(());
        }
        let told =
            error::classified(code, format!("reading: {}", if reason.is_empty() { error::describe(code) } else { reason }));
        match (error, told) {
            (KafkaError::MessageConsumptionFatal(_), fenced @ BrokerError::Fenced(_)) => Err(fenced),
            (KafkaError::MessageConsumptionFatal(_), other) => Err(BrokerError::Fatal(other.to_string())),
            (_, fatal @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => Err(fatal),
            (_, other) => {
                events.push(GroupEvent::Trouble(other));
                Ok(())
            }
        }
    }

    /// librdkafka does not say which partition the error is about: those whose place is not within their log.
    fn outside_the_log(&mut self, reason: &str) -> Vec<GroupEvent> {
        let until = Instant::now() + SEARCH_DEADLINE;
        let places = self.places().map(|places| native::entries(&places));
        let (mut found, mut unknown) = (Vec::new(), places.is_err());
        for entry in places.unwrap_or_default() {
            if entry.offset < 0 || self.out_of_range.contains(&entry.partition) {
                continue;
            }
            match self.is_outside(&entry, until.saturating_duration_since(Instant::now())) {
                None => unknown = true,
                Some(false) => {}
                Some(true) => {
                    self.out_of_range.insert(entry.partition.clone());
                    found.push(GroupEvent::OutOfRange(entry.partition));
                }
            }
        }
        self.search_again = unknown.then(|| Instant::now() + SEARCH_PAUSE);
        if found.is_empty() {
            found.push(GroupEvent::Trouble(BrokerError::Unavailable(format!("no place to read from: {reason}"))));
        }
        found
    }

    /// None: nobody could say in time.
    fn is_outside(&self, entry: &native::Entry, wait: Duration) -> Option<bool> {
        if wait.is_zero() {
            return None;
        }
        let (first, end) = self.client.fetch_watermarks(&entry.partition.topic, entry.partition.index, wait).ok()?;
        Some(entry.offset < first || entry.offset > end)
    }

    fn group(&self) -> Result<&str, BrokerError> {
        self.membership
            .group
            .as_deref()
            .ok_or_else(|| BrokerError::Invalid("a consumer without a group has no commits".to_owned()))
    }

    fn check_owned(&self, partitions: &BTreeMap<Partition, StartOffset>) -> Result<(), BrokerError> {
        match partitions.keys().find(|partition| self.membership.subscribed && !self.membership.owned.contains(partition)) {
            None => Ok(()),
            Some(foreign) => Err(BrokerError::Refused(format!("the group has not assigned {foreign} to this consumer"))),
        }
    }
}

impl Consumer for KafkaConsumer {
    fn poll(&mut self, max: usize, wait: Duration, sink: &mut dyn FnMut(&RecordRef<'_>)) -> Result<Vec<GroupEvent>, BrokerError> {
        let now = Instant::now();
        let (until, mut events) = (now + wait, Vec::new());
        self.forward_again(now);
        if self.search_again.is_some_and(|at| now >= at) {
            events.append(&mut self.outside_the_log("it was not found before"));
        }
        loop {
            self.bell.hush();
            let (mut taken, failed) = self.listen(max, sink);
            if let Some(error) = failed {
                self.trouble(&error, &mut events)?;
            }
            let (more, failed) = self.records.take(max.saturating_sub(taken), sink);
            taken += more;
            for failed in failed {
                self.notes().lock().reason = failed.reason;
                self.trouble(&KafkaError::MessageConsumption(failed.code), &mut events)?;
            }
            events.append(&mut self.events()?);
            if taken > 0 || !events.is_empty() || !self.bell.wait(until) {
                return Ok(events);
            }
        }
    }

    fn assign(&mut self, starts: &[(Partition, StartOffset)]) -> Result<(), BrokerError> {
        let starts: BTreeMap<Partition, StartOffset> = starts.iter().cloned().collect();
        let (moved, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
            starts.into_iter().partition(|(partition, _)| self.held.contains_key(partition));
        self.check_owned(&new)?;
        self.seek(&moved)?;
        self.add(&new)
    }

    fn release(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        let held: Vec<Partition> = partitions.iter().filter(|partition| self.held.contains_key(partition)).cloned().collect();
        // librdkafka remembers a pause beyond the assignment.
        self.pause(&held, false)?;
        for partition in &held {
            self.held.remove(partition);
            self.out_of_range.remove(partition);
            self.membership.awaited.remove(partition);
            self.membership.released.insert(partition.clone());
        }
        if held.is_empty() { Ok(()) } else { self.answer_if_complete() }
    }

    fn commit(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let group = self.group()?;
        match native::begin_commit(self.client.client(), &list_of_commits(commits)?) {
            RDKafkaErrorCode::NoError => Ok(()),
            code => Err(error::of_code(code, &format!("committing for `{group}`"))),
        }
    }

    fn commit_sync(&mut self, commits: &[Commit]) -> Result<(), BrokerError> {
        let what = format!("committing for `{}`", self.group()?);
        super::committed_offsets::commit_and_wait(self.client.client(), commits, COMMIT_DEADLINE, &what)
    }

    fn committed(&mut self, partitions: &[Partition], deadline: Duration) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.group()?;
        super::committed_offsets::committed_of(&self.client, partitions, deadline)
    }

    fn pause(&mut self, partitions: &[Partition], paused: bool) -> Result<(), BrokerError> {
        let changed: Vec<&Partition> = partitions
            .iter()
            .filter(|partition| self.held.contains_key(partition) && self.paused.contains(partition) != paused)
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let changed_list = list(changed.iter().map(|partition| (*partition, Offset::Invalid)))?;
        let done = if paused { self.client.pause(&changed_list) } else { self.client.resume(&changed_list) };
        done.map_err(|error| error::of(&error, "pausing or resuming"))?;
        for partition in changed {
            match paused {
                true => self.paused.insert(partition.clone()),
                false => self.paused.remove(partition),
            };
        }
        Ok(())
    }

    fn positions(&mut self) -> Result<Vec<(Partition, i64)>, BrokerError> {
        let mut told = self.told()?;
        told.retain(|partition, offset| *offset >= 0 && self.held.contains_key(partition));
        self.stale.retain(|partition, offset| told.get(partition) == Some(offset));
        told.retain(|partition, _| !self.stale.contains_key(partition));
        Ok(told.into_iter().collect())
    }

    fn close(self: Box<Self>, deadline: Duration) {
        let (done, closed) = mpsc::channel::<()>();
        let closing = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(self);
            drop(done);
        });
        if closing.is_ok() && closed.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(target: "kafleet::kafka", ?deadline, "a consumer is still closing; the group will notice by its session timeout");
        }
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        // From here on the callback gives partitions back by itself; a question that is still open is answered first.
        self.notes().closing.store(true, Ordering::Release);
        if self.membership.subscribed {
            give_all_back(&self.client);
            // Closed with nothing assigned, librdkafka does not tell the group that it leaves: its rebalances would wait
            // for this member until its session times out.
            self.client.unsubscribe();
        }
    }
}

fn give_all_back(client: &BaseConsumer<Notes>) {
    let gone = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.assignment().and_then(|all| client.incremental_unassign(&all)),
        _ => client.unassign(),
    };
    if let Err(error) = gone {
        tracing::warn!(target: "kafleet::kafka", "{}", error::of(&error, "giving all partitions back"));
    }
}

/// What librdkafka's callbacks wrote down during a poll.
#[derive(Default)]
struct Notes {
    taken: Mutex<Taken>,
    closing: AtomicBool,
}

#[derive(Default)]
struct Taken {
    events: Vec<GroupEvent>,
    /// The reason given with the error that the poll is about to return.
    reason: String,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Notes {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, _: KafkaError, reason: &str) {
        self.lock().reason = reason.to_owned();
    }
}

impl ConsumerContext for Notes {
    fn rebalance(&self, client: &BaseConsumer<Self>, kind: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        if self.closing.load(Ordering::Acquire) {
            return give_all_back(client);
        }
        let partitions = native::entries(partitions).into_iter().map(|entry| entry.partition).collect();
        self.lock().events.push(match kind {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                accept(client);
                GroupEvent::Assigned(partitions)
            }
            _ if client.assignment_lost() => GroupEvent::Lost(partitions),
            _ => GroupEvent::Revoked(partitions),
        });
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        let entries = native::entries(offsets);
        let result = super::committed_offsets::commit_result(error_code(&result), &entries, "committing");
        let partitions = entries.into_iter().map(|entry| entry.partition).collect();
        self.lock().events.push(GroupEvent::Committed { result, partitions });
    }
}

fn error_code(result: &KafkaResult<()>) -> RDKafkaErrorCode {
    match result {
        Ok(()) => RDKafkaErrorCode::NoError,
        Err(error) => error::code_of(error).unwrap_or(RDKafkaErrorCode::Unknown),
    }
}

/// Answers an assignment at once, with nothing: until an answer comes, librdkafka stops the partitions held already, and
/// the owner of this consumer may take the new ones one by one, late, or never.
fn accept(client: &BaseConsumer<Notes>) {
    let nothing = TopicPartitionList::new();
    let accepted = match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_assign(&nothing),
        _ => client.assign(&nothing),
    };
    if let Err(error) = accepted {
        tracing::warn!(target: "kafleet::kafka", "{}", error::of(&error, "accepting an assignment"));
    }
}
