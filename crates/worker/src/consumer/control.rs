//! Settings of the control topic that concern a consumer: concurrency, rate limits, and start offsets of refused
//! partitions.

use kafleet_broker::{BrokerError, Commit, CommittedOffset, Partition, StartOffset};
use kafleet_config::{RateBy, TypePolicy};
use kafleet_fleet::control::{self, ControlKey, ControlState};
use kafleet_model::offsets::{CompletedOffsets, Mark, Metadata, PendingRetries};
use tokio::time::Instant;

use super::deps::{CALL_DEADLINE, GroupDeps, TypeDeps};
use super::partition_table::PartitionTable;
use super::{GroupConsumer, RETRY_INTERVAL, TypeConsumer};
use crate::consumer::assignment::Assignment;
use crate::consumer::partition::PartitionState;
use crate::dispatch::Command;

/// Maximum number of offsets of one partition that are handed out and not complete, for a number of slots.
pub(crate) fn window(slots: u32) -> u64 {
    (u64::from(slots) * 4).clamp(256, 10_000)
}

/// Window of a type with this number of slots, each of which runs a call with as many tasks as a batch may have.
pub(crate) fn window_of(policy: &TypePolicy, slots: u32) -> u64 {
    window(slots.saturating_mul(policy.batch.as_ref().map_or(1, |batch| batch.max)))
}

/// A refused partition whose start offset an operator has chosen.
struct ChosenStart {
    partition: Partition,
    assignment_id: u32,
    offset: i64,
}

impl GroupConsumer {
    /// Applies the control state if it has changed, or if a partition was refused.
    pub(super) async fn apply_control(&mut self, now: Instant) {
        if self.stopping {
            // A partition started now would not be released.
            return;
        }
        let generation = self.deps.control.generation();
        let recheck = self.control_recheck_at.is_some_and(|at| now >= at);
        if generation == self.control_generation && !recheck {
            return;
        }
        self.control_generation = generation;
        self.control_recheck_at = None;
        let control = self.deps.control.clone();
        let chosen: Vec<ChosenStart> =
            self.types.iter_mut().flat_map(|type_consumer| type_consumer.apply_settings(&control.state())).collect();
        for ChosenStart { partition, assignment_id, offset } in chosen {
            let Some(type_consumer) = self.types.of_topic_mut(&partition.topic) else { continue };
            if let Err(error) = type_consumer.start_refused_at(&mut self.deps, &partition, assignment_id, offset).await
            {
                tracing::warn!(%partition, offset, %error, "the chosen start offset cannot be applied yet; retrying");
                self.control_recheck_at = Some(now + RETRY_INTERVAL);
            }
        }
    }
}

impl TypeConsumer {
    /// Applies the policy, concurrency and rate limit; returns the refused partitions to start.
    fn apply_settings(&mut self, state: &ControlState) -> Vec<ChosenStart> {
        let task_type = &self.deps.task_type;
        if let Some(policy) = self.deps.policies.newer(task_type, &self.deps.policy) {
            self.deps.decoder.policy = policy.clone();
            self.deps.policy = policy;
        }
        let rate = state.rates.get(&**task_type).map(|limit| limit.rate).or(self.deps.policy.rate);
        self.deps.decoder.has_rate_per_key = rate.is_some_and(|rate| rate.by == RateBy::Key);
        let slots = state.slots.get(&**task_type).and_then(|slots| slots.slots);
        let window = window_of(&self.deps.policy, slots.unwrap_or_else(|| self.deps.policy.slots()));
        if window != self.window {
            self.window = window;
            self.partitions.iter_mut().for_each(|partition| partition.window.size = window);
            self.set_busy();
        }
        let task_type = &self.deps.task_type;
        let chosen = |refused: &PartitionState| {
            let partition = refused.partition.clone();
            let offset = state.offsets.get(&(task_type.to_string(), partition.index))?.offset;
            Some(ChosenStart { partition, assignment_id: refused.assignment_id, offset })
        };
        self.partitions.refused().filter_map(chosen).collect()
    }

    /// Starts a refused partition at the offset chosen by an operator, and deletes the control record.
    async fn start_refused_at(
        &mut self,
        deps: &mut GroupDeps,
        partition: &Partition,
        assignment_id: u32,
        offset: i64,
    ) -> Result<(), BrokerError> {
        let ends = deps.broker.watermarks(partition, CALL_DEADLINE)?;
        let offset = offset.clamp(ends.low, ends.high);
        let completed = CompletedOffsets::starting_at(offset);
        let metadata = Metadata::encode(&completed, Mark::Clean, offset, 0, &PendingRetries::default());
        let commit = Commit { partition: partition.clone(), offset, metadata: metadata.clone() };
        deps.consumer.commit_sync(&[commit])?;
        let committed = CommittedOffset { offset, metadata };
        deps.consumer.assign(&[(partition.clone(), StartOffset::At(offset))])?;
        deps.consumer.pause(std::slice::from_ref(partition), false)?;
        // Only after all calls have succeeded: a partition that is no longer refused is not tried again.
        self.deps.command(Command::OpenAssignment { assignment_id });
        let state =
            PartitionState::resume_from(partition.clone(), assignment_id, offset, Some(&committed), self.window);
        self.partitions.insert(state);
        self.set_busy();
        self.deps.clear_partition_health(partition.index);
        tracing::info!(%partition, offset, "partition started at the operator-provided offset");
        let key = ControlKey::Offsets(self.deps.task_type.to_string(), partition.index);
        // The record may stay: it only applies to a partition that is refused again.
        if let Err(error) = control::delete(&deps.producer, &deps.names, &key).await {
            tracing::warn!(%partition, %error, "the applied start offset could not be deleted from the control topic");
        }
        Ok(())
    }
}

/// Assignment as last reported to the dispatcher.
#[derive(Default)]
pub(super) struct AssignmentReport {
    /// Partitions of the topic; 0 until it is known.
    pub topic_partitions: u32,
    reported: Assignment,
}

impl AssignmentReport {
    /// Reports the assignment to the dispatcher if it has changed, for its part of fleet-wide limits and for
    /// heartbeats.
    pub(super) fn send(&mut self, deps: &TypeDeps, partitions: &PartitionTable) {
        let owned = || partitions.iter().map(|state| state.partition.index);
        let refused = || partitions.refused().map(|state| state.partition.index);
        // Compared without allocation: this runs in every turn of the loop.
        let is_same = self.reported.of == self.topic_partitions
            && owned().eq(self.reported.owned.iter().copied())
            && refused().eq(self.reported.refused.iter().copied());
        if is_same {
            return;
        }
        self.reported =
            Assignment { owned: owned().collect(), of: self.topic_partitions, refused: refused().collect() };
        deps.command(Command::SetAssignment(self.reported.clone()));
    }
}
