//! Start of assigned partitions: where their last owners ended, and whether they can be processed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, CommittedOffset, Partition, StartOffset, Watermarks};
use kafleet_fleet::control::settings;
use kafleet_runtime::Backoff;
use tokio::time::Instant;

use super::deps::{CALL_DEADLINE, GroupDeps};
use super::partition::{PartitionState, Phase};
use super::{GroupConsumer, RETRY_INTERVAL, TypeConsumer};
use crate::dispatch::Command;

/// Pause before a type that cannot be started is tried again; it doubles up to the longest one.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Deadline of reading the ends of a partition: the loop of all types waits for it.
const ENDS_DEADLINE: Duration = Duration::from_secs(3);

/// Assigned partitions whose start offset could not be determined yet.
#[derive(Default)]
pub(super) struct PendingStart {
    partitions: Vec<Partition>,
    retry_at: Option<Instant>,
    /// Topics that could not be started at the last try.
    delays: BTreeMap<Arc<str>, Delay>,
}

/// Pause of a topic that cannot be started.
struct Delay {
    until: Instant,
    backoff: Backoff,
}

/// Topic with numbers of partitions.
type TopicPartitions = (Arc<str>, Vec<i32>);

impl PendingStart {
    pub(super) fn add(&mut self, partitions: Vec<Partition>) {
        self.partitions.extend(partitions);
        self.retry_at = Some(Instant::now());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Removes partitions. Returns the topics that could not be started and have no pending partitions any more.
    pub(super) fn remove(&mut self, is_removed: impl Fn(&Partition) -> bool) -> Vec<Arc<str>> {
        self.partitions.retain(|pending| !is_removed(pending));
        let has_none = |topic: &Arc<str>, _: &mut Delay| !self.partitions.iter().any(|pending| pending.topic == *topic);
        self.delays.extract_if(.., has_none).map(|(topic, _)| topic).collect()
    }

    /// Takes the partitions to start now.
    fn take_due(&mut self, now: Instant) -> Vec<Partition> {
        if self.partitions.is_empty() || self.retry_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        let delays = &self.delays;
        let is_due = |pending: &mut Partition| delays.get(&pending.topic).is_none_or(|delay| now >= delay.until);
        self.partitions.extract_if(.., is_due).collect()
    }

    /// Keeps partitions of a topic that cannot be started yet.
    fn delay(&mut self, topic: &Arc<str>, numbers: &[i32]) {
        let new = || Delay { until: Instant::now(), backoff: Backoff::new(MIN_BACKOFF, MAX_BACKOFF) };
        let delay = self.delays.entry(topic.clone()).or_insert_with(new);
        delay.until = Instant::now() + delay.backoff.next_wait();
        self.partitions.extend(numbers.iter().map(|number| Partition::new(topic.clone(), *number)));
    }
}

/// State of the group before its partitions are started.
struct GroupOffsets {
    /// Partitions of each topic.
    counts: BTreeMap<String, u32>,
    committed: BTreeMap<Partition, CommittedOffset>,
    /// Topics that cannot be started, by their own error.
    failed: BTreeMap<Arc<str>, BrokerError>,
    /// Partitions that are marked as consumed; complete if a commit is missing.
    consumed: BTreeSet<(String, i32)>,
    /// Starts of the logs without a commit.
    first: BTreeMap<Partition, i64>,
    /// Error of a call that may have timed out: each further one would take as long.
    unavailable: Option<BrokerError>,
}

impl GroupOffsets {
    fn first_offset(&mut self, deps: &GroupDeps, partition: &Partition) -> Result<i64, BrokerError> {
        match self.first.get(partition) {
            Some(offset) => Ok(*offset),
            None => Ok(self.watermarks(deps, partition)?.low),
        }
    }

    fn watermarks(&mut self, deps: &GroupDeps, partition: &Partition) -> Result<Watermarks, BrokerError> {
        if let Some(error) = &self.unavailable {
            return Err(error.clone());
        }
        let ends = deps.broker.watermarks(partition, ENDS_DEADLINE);
        self.unavailable = ends.as_ref().err().filter(|error| error.is_transient()).cloned();
        ends
    }
}

impl GroupConsumer {
    /// Starts assigned partitions; retries after a pause if the broker does not answer. A type that cannot be started
    /// is tried less and less often, because the others wait meanwhile.
    pub(super) fn start_pending(&mut self, now: Instant) {
        let partitions = self.pending_start.take_due(now);
        if partitions.is_empty() {
            return;
        }
        match self.start_partitions(&partitions) {
            Ok(left) => {
                left.iter().for_each(|(topic, numbers)| self.pending_start.delay(topic, numbers));
                // The only type of a group reports under the same name why it cannot be started.
                if self.pending_start.is_empty() || self.deps.is_shared {
                    self.deps.clear_health();
                }
            }
            Err(error) => {
                self.deps.set_health(format!("its partitions cannot be started yet: {error}"));
                self.deps.log_error(&error);
                self.pending_start.add(partitions);
                self.pending_start.retry_at = Some(Instant::now() + RETRY_INTERVAL);
            }
        }
    }

    /// Determines where the last owner of each partition ended, and resumes there. Returns the partitions of topics
    /// that cannot be started yet.
    fn start_partitions(&mut self, partitions: &[Partition]) -> Result<Vec<TopicPartitions>, BrokerError> {
        let mut offsets = self.find(partitions)?;
        let mut starts = Vec::new();
        let mut left = Vec::new();
        let mut has_refused = false;
        let deps = &mut self.deps;
        let pending_start = &mut self.pending_start;
        self.types.for_each_of(partitions, |type_consumer, numbers| {
            match type_consumer.start(deps, &mut offsets, numbers) {
                Ok(begun) => {
                    type_consumer.deps.clear_start_health();
                    pending_start.delays.remove(&type_consumer.deps.topic);
                    has_refused |= begun.iter().any(|(_, start)| *start == StartOffset::End);
                    starts.extend(begun);
                }
                Err(error) => {
                    type_consumer.deps.set_start_health(format!("its partitions cannot be started yet: {error}"));
                    deps.log_error(&error);
                    left.push((type_consumer.deps.topic.clone(), numbers.to_vec()));
                }
            }
        });
        self.deps.consumer.assign(&starts)?;
        if has_refused {
            let refused = self.types.iter().flat_map(|type_consumer| type_consumer.partitions.refused());
            let refused: Vec<Partition> = refused.map(|state| state.partition.clone()).collect();
            self.deps.consumer.pause(&refused, true)?;
            // An operator may already have chosen their start offsets.
            self.control_recheck_at = Some(Instant::now());
        }
        Ok(left)
    }

    fn find(&mut self, partitions: &[Partition]) -> Result<GroupOffsets, BrokerError> {
        let topics: BTreeSet<Arc<str>> = partitions.iter().map(|partition| partition.topic.clone()).collect();
        let topics: Vec<Arc<str>> = topics.into_iter().collect();
        let counts = self.deps.count_partitions(&topics)?;
        let mut failed = self.check_recorded_groups()?;
        let committed = read_committed(&mut self.deps, partitions, &topics, &mut failed)?;
        let is_known =
            |partition: &Partition| committed.contains_key(partition) || failed.contains_key(&partition.topic);
        let consumed = if partitions.iter().all(is_known) {
            // If a mark is not read yet, it is written once more.
            self.deps.control.state().consumed.clone()
        } else {
            settings::read_control_blocking(&*self.deps.broker, &self.deps.names, CALL_DEADLINE)?.consumed
        };
        let missing = partitions.iter().filter(|partition| !is_known(partition)).cloned().collect();
        let first = read_first_offsets(&self.deps, missing);
        Ok(GroupOffsets { counts, committed, failed, consumed, first, unavailable: None })
    }

    /// Checks once after the consumer has joined its group that the control topic still names this group: a move of the
    /// commits is refused while the group has members, so that from then on it cannot begin. Returns the topics of types
    /// whose commits are elsewhere, or are being moved.
    fn check_recorded_groups(&mut self) -> Result<BTreeMap<Arc<str>, BrokerError>, BrokerError> {
        if self.has_checked_groups {
            return Ok(BTreeMap::new());
        }
        let GroupDeps { broker, names, control, .. } = &self.deps;
        let end = broker.watermarks(&Partition::new(names.control(), 0), CALL_DEADLINE)?.high;
        // Usually the topic is followed to its end; transactions of the tracker may delay that.
        let groups = if control.last_applied() + 1 >= end {
            control.state().groups().clone()
        } else {
            settings::read_control_blocking(&**broker, names, CALL_DEADLINE)?.groups
        };
        let misplaced = |type_consumer: &TypeConsumer| {
            let task_type = &type_consumer.deps.task_type;
            let error = groups.check(task_type, names.group_name(task_type)).err()?;
            Some((type_consumer.deps.topic.clone(), BrokerError::Refused(error.to_string())))
        };
        let failed: BTreeMap<Arc<str>, BrokerError> = self.types.iter().filter_map(misplaced).collect();
        self.has_checked_groups = failed.is_empty();
        Ok(failed)
    }
}

/// Reads the start of the logs without a commit, in few requests. Those that cannot be read are left out.
fn read_first_offsets(deps: &GroupDeps, missing: Vec<Partition>) -> BTreeMap<Partition, i64> {
    if missing.is_empty() {
        return BTreeMap::new();
    }
    let first = deps.broker.start_offsets(&missing, ENDS_DEADLINE).unwrap_or_default();
    missing.into_iter().zip(first).filter_map(|(partition, first)| Some((partition, first?))).collect()
}

/// Reads the group's commits. An error that concerns one of several topics leaves the others.
fn read_committed(
    deps: &mut GroupDeps,
    partitions: &[Partition],
    topics: &[Arc<str>],
    failed: &mut BTreeMap<Arc<str>, BrokerError>,
) -> Result<BTreeMap<Partition, CommittedOffset>, BrokerError> {
    let consumer = &mut deps.consumer;
    let mut read = |partitions: &[Partition]| -> Result<Vec<(Partition, CommittedOffset)>, BrokerError> {
        let committed = partitions.iter().cloned().zip(consumer.committed(partitions, CALL_DEADLINE)?);
        Ok(committed.filter_map(|(partition, committed)| Some((partition, committed?))).collect())
    };
    match read(partitions) {
        Ok(committed) => return Ok(committed.into_iter().collect()),
        Err(error) if error.is_transient() => return Err(error),
        Err(_) => {}
    }
    let mut all = BTreeMap::new();
    for topic in topics {
        let of_topic = partitions.iter().filter(|partition| partition.topic == *topic).cloned();
        match read(&of_topic.collect::<Vec<_>>()) {
            Ok(committed) => all.extend(committed),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => drop(failed.insert(topic.clone(), error)),
        }
    }
    Ok(all)
}

impl TypeConsumer {
    /// Creates the states of assigned partitions. Returns where to read them.
    fn start(
        &mut self,
        deps: &GroupDeps,
        offsets: &mut GroupOffsets,
        numbers: &[i32],
    ) -> Result<Vec<(Partition, StartOffset)>, BrokerError> {
        if let Some(error) = offsets.failed.get(&self.deps.topic) {
            return Err(error.clone());
        }
        let topic_partitions = self.deps.check_partitions(&offsets.counts)?;
        self.assignment_report.topic_partitions = topic_partitions;
        self.deps.decoder.key_check.partitions = topic_partitions;
        let mut states = Vec::new();
        for number in numbers {
            states.push(self.new_state(deps, &Partition::new(self.deps.topic.clone(), *number), offsets)?);
        }
        let start = |state: PartitionState| {
            let refused = state.phase == Phase::Refused;
            let start = if refused { StartOffset::End } else { StartOffset::At(state.watermark()) };
            let partition = state.partition.clone();
            self.partitions.insert(state);
            (partition, start)
        };
        Ok(states.into_iter().map(start).collect())
    }

    /// Creates the state of an assigned partition. A partition that is marked as consumed but has no commit is
    /// refused, because its completed offsets are unknown.
    fn new_state(
        &mut self,
        deps: &GroupDeps,
        partition: &Partition,
        offsets: &mut GroupOffsets,
    ) -> Result<PartitionState, BrokerError> {
        let committed = offsets.committed.get(partition).cloned();
        let is_marked = offsets.consumed.contains(&(self.deps.task_type.to_string(), partition.index));
        let assignment_id = self.partitions.free_assignment_id();
        self.deps.command(Command::OpenAssignment { assignment_id });
        let mut state = if committed.is_none() && is_marked {
            self.deps.report_refused(partition, "its commit is missing, although it has been consumed before");
            PartitionState::refused(partition.clone(), assignment_id)
        } else {
            let first = match &committed {
                Some(committed) => committed.offset,
                None => offsets.first_offset(deps, partition)?,
            };
            let mut state =
                PartitionState::resume_from(partition.clone(), assignment_id, first, committed.as_ref(), self.window);
            state.unmarked = !is_marked;
            state
        };
        let takeovers = state.crashes.unclean_takeovers();
        if takeovers > 0 {
            state.crashes.limit_to(offsets.watermarks(deps, partition)?.high);
            self.deps.metrics.worker.unclean_takeovers.with_label_values(&[&*self.deps.task_type]).inc();
            tracing::warn!(%partition, in_a_row = takeovers, "the previous owner crashed without releasing the partition");
        }
        if let Some(until) = state.crashes.suspects_until() {
            tracing::warn!(%partition, until, "workers keep crashing on this partition: its tasks up to this offset run in child processes");
        }
        Ok(state)
    }
}
