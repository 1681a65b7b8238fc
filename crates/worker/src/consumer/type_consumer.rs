//! Task type of a consumer group: its partitions and their inputs, and the table of the types by topic.

use std::sync::Arc;

use kafleet_broker::{Partition, RecordRef};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::backpressure::TypeBackpressure;
use super::control::{self, AssignmentReport};
use super::deps::{GroupDeps, TypeDeps};
use super::group_events::can_be_released;
use super::hand_out::HandOut;
use super::partition::{PartitionState, Phase};
use super::partition_table::{CompletionBuffers, PartitionTable};
use crate::decode::PollBatch;
use crate::dispatch::Command;

/// Task type of a consumer group.
pub(crate) struct TypeConsumer {
    pub deps: TypeDeps,
    pub(super) partitions: PartitionTable,
    pub(super) hand_out: HandOut,
    completions: CompletionBuffers,
    pub(super) backpressure: TypeBackpressure,
    pub(super) assignment_report: AssignmentReport,
    /// Time before which nothing of the type is committed, after a failed commit.
    pub(super) commit_retry_at: Option<Instant>,
    /// Window size for the current number of slots.
    pub(super) window: u64,
    /// Memory account of the current poll.
    batch: Option<PollBatch>,
    /// Something waits, runs, drains or is to be committed. The loop visits only busy types.
    busy: bool,
}

impl TypeConsumer {
    pub(crate) fn new(deps: TypeDeps) -> Self {
        Self {
            window: control::window_of(&deps.policy, deps.policy.slots()),
            deps,
            partitions: PartitionTable::default(),
            hand_out: HandOut::default(),
            completions: CompletionBuffers::default(),
            backpressure: TypeBackpressure::default(),
            assignment_report: AssignmentReport::default(),
            commit_retry_at: None,
            batch: None,
            busy: false,
        }
    }

    /// Makes the loop visit the type until it has nothing left to do.
    pub(super) fn set_busy(&mut self) {
        self.busy = true;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Takes a record of the current poll.
    pub(super) fn receive(&mut self, record: &RecordRef<'_>) {
        let Self { deps, partitions, batch, busy, .. } = self;
        let Some(state) = partitions.get_mut(record.partition) else { return };
        *busy = true;
        if state.deliver(record.offset) {
            let tag = state.tag(deps.decoder.type_index, record.offset);
            let batch = batch.get_or_insert_with(|| deps.decoder.start_batch());
            state.push(batch.decode(&deps.decoder, record, tag));
        }
    }

    /// Charges the records of the poll to the memory budget.
    pub(super) fn end_batch(&mut self) {
        self.batch = None;
    }

    /// Applies acknowledgements. Returns whether any input is complete.
    pub(super) fn take_completions(&mut self) -> bool {
        self.completions.apply(&self.deps.completions, &mut self.partitions)
    }

    pub(super) fn send_inputs(&mut self) {
        self.hand_out.send(&self.deps.work, &mut self.partitions);
    }

    /// Revokes all partitions, so that they drain.
    pub(super) fn revoke_all(&mut self, deadline: Instant) {
        self.busy = true;
        for state in self.partitions.iter_mut() {
            state.revoke(deadline);
            self.deps.command(Command::CloseAssignment { assignment_id: state.assignment_id });
        }
        self.hand_out.recall(&mut self.partitions);
    }

    /// Clears the reports about a partition that is released.
    fn clear_reports(&self, partition: i32) {
        self.deps.clear_partition_health(partition);
        self.deps.clear_window_held(partition);
    }

    /// Ends a turn of the loop: reports the assignment, and becomes quiet if nothing is left to do.
    fn end_turn(&mut self) {
        self.assignment_report.send(&self.deps, &self.partitions);
        self.busy = !self.partitions.is_idle()
            || !self.hand_out.is_empty()
            || self.partitions.iter().any(needs_turn)
            || self.backpressure.is_active();
    }
}

/// Returns whether the loop has to visit a partition although nothing waits and nothing runs.
fn needs_turn(state: &PartitionState) -> bool {
    state.needs_commit() || state.needs_window() || matches!(state.phase, Phase::Starting | Phase::Revoking { .. })
}

/// Types of a consumer, by topic.
pub(super) struct TypeTable {
    types: Vec<TypeConsumer>,
    by_topic: FxHashMap<Arc<str>, usize>,
    /// Type of the last record: the client delivers the records of a topic one after the other.
    last: usize,
}

impl TypeTable {
    pub(super) fn new(types: Vec<TypeConsumer>) -> Self {
        let by_topic =
            types.iter().enumerate().map(|(n, type_consumer)| (type_consumer.deps.topic.clone(), n)).collect();
        Self { types, by_topic, last: 0 }
    }

    pub(super) fn number(&self) -> usize {
        self.types.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TypeConsumer> {
        self.types.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TypeConsumer> {
        self.types.iter_mut()
    }

    pub(super) fn busy(&self) -> impl Iterator<Item = &TypeConsumer> {
        self.types.iter().filter(|type_consumer| type_consumer.busy)
    }

    pub(super) fn busy_mut(&mut self) -> impl Iterator<Item = &mut TypeConsumer> {
        self.types.iter_mut().filter(|type_consumer| type_consumer.busy)
    }

    /// Returns the type of a topic.
    pub(super) fn of_topic_mut(&mut self, topic: &str) -> Option<&mut TypeConsumer> {
        if self.types.get(self.last).is_none_or(|last| *last.deps.topic != *topic) {
            self.last = *self.by_topic.get(topic)?;
        }
        self.types.get_mut(self.last)
    }

    /// Returns the state of a partition.
    pub(super) fn state_mut(&mut self, partition: &Partition) -> Option<&mut PartitionState> {
        self.of_topic_mut(&partition.topic)?.partitions.get_mut(partition.index)
    }

    /// Calls `apply` with each type that has some of these partitions, and with their numbers.
    pub(super) fn for_each_of(&mut self, partitions: &[Partition], mut apply: impl FnMut(&mut TypeConsumer, &[i32])) {
        let mut numbers: FxHashMap<usize, Vec<i32>> = FxHashMap::default();
        for partition in partitions {
            if let Some(n) = self.by_topic.get(&partition.topic) {
                numbers.entry(*n).or_default().push(partition.index);
            }
        }
        // In the order of the types, which is the same in every run of a simulation.
        for (n, type_consumer) in self.types.iter_mut().enumerate() {
            if let Some(numbers) = numbers.get(&n) {
                type_consumer.busy = true;
                apply(type_consumer, numbers);
            }
        }
    }

    /// Returns whether no type has a partition.
    pub(super) fn is_empty(&self) -> bool {
        self.types.iter().all(|type_consumer| type_consumer.partitions.is_empty())
    }

    /// Returns whether partitions of any type can be released.
    pub(super) fn has_drained(&self, stopping: bool, now: Instant) -> bool {
        let visited = self.types.iter().filter(|type_consumer| stopping || type_consumer.busy);
        visited
            .flat_map(|type_consumer| type_consumer.partitions.iter())
            .any(|state| can_be_released(state, stopping, now))
    }

    /// Returns whether nothing waits and nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.busy().all(|type_consumer| type_consumer.partitions.is_idle())
    }

    pub(super) fn end_turn(&mut self) {
        self.busy_mut().for_each(TypeConsumer::end_turn);
    }

    /// Releases partitions to the group.
    pub(super) fn release(&mut self, deps: &mut GroupDeps, partitions: &[Partition]) {
        deps.offsets.lock().retain(|partition, _| !partitions.contains(partition));
        self.for_each_of(partitions, |type_consumer, numbers| {
            numbers.iter().for_each(|number| type_consumer.clear_reports(*number));
        });
        if let Err(error) = deps.consumer.release(partitions) {
            deps.log_error(&error);
        }
    }
}
