//! Group events: partitions that are assigned, revoked and lost.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::deps::CALL_DEADLINE;
use super::partition::{PartitionState, Phase};
use super::{RETRY_PAUSE, TypeConsumer};
use crate::broker::{BrokerError, Committed, GroupEvent, Partition, StartOffset};
use crate::control::settings;
use crate::worker::dispatch::Command;

/// Assigned partitions whose start offset could not be determined yet.
#[derive(Default)]
pub(super) struct PendingStart {
    pub partitions: Vec<Partition>,
    pub retry_at: Option<Instant>,
}

impl TypeConsumer {
    pub(super) async fn handle_group_event(&mut self, event: GroupEvent) {
        let task_type = &self.deps.task_type;
        match event {
            GroupEvent::Assigned(partitions) => {
                tracing::info!(%task_type, partitions = ?numbers(&partitions), "partitions assigned");
                self.assign(partitions);
            }
            GroupEvent::Revoked(partitions) => {
                tracing::info!(%task_type, partitions = ?numbers(&partitions), "partitions revoked");
                self.revoke(&partitions);
            }
            GroupEvent::Lost(partitions) => {
                tracing::warn!(%task_type, partitions = ?numbers(&partitions), "partitions lost");
                self.lose(&partitions);
            }
            GroupEvent::Committed { result, .. } => self.commit_ended(result).await,
            GroupEvent::OutOfRange(partition) => self.out_of_range.add(partition),
            GroupEvent::ClientError(error) => self.deps.log_error(&error),
        }
    }

    /// Accepts an assignment. A stopping worker ignores it: it leaves the group soon, which reassigns the partitions.
    fn assign(&mut self, partitions: Vec<Partition>) {
        if self.stopping {
            return;
        }
        if partitions.is_empty() && self.pending_start.partitions.is_empty() {
            self.deps.clear_health();
        }
        self.pending_start.partitions.extend(partitions);
        self.pending_start.retry_at = Some(Instant::now());
    }

    /// Starts assigned partitions; retries after a pause if the broker does not answer.
    pub(super) fn start_pending(&mut self, now: Instant) {
        if self.pending_start.partitions.is_empty() || self.pending_start.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let partitions = std::mem::take(&mut self.pending_start.partitions);
        match self.start_partitions(&partitions) {
            Ok(()) => self.deps.clear_health(),
            Err(error) => {
                self.deps.set_health(format!("its partitions cannot be started yet: {error}"));
                self.deps.log_error(&error);
                self.pending_start = PendingStart { partitions, retry_at: Some(now + RETRY_PAUSE) };
            }
        }
    }

    /// Determines where the last owner of each partition ended, and resumes there.
    fn start_partitions(&mut self, partitions: &[Partition]) -> Result<(), BrokerError> {
        self.assignment_report.topic_partitions = self.deps.count_partitions()?;
        let committed = self.deps.consumer.committed(partitions, CALL_DEADLINE)?;
        let consumed = if committed.iter().all(Option::is_some) {
            BTreeSet::new()
        } else {
            settings::read_control_blocking(&*self.deps.broker, &self.deps.names, CALL_DEADLINE)?.consumed
        };
        let mut starts = Vec::new();
        for (partition, committed) in partitions.iter().zip(&committed) {
            let is_marked = consumed.contains(&(self.deps.task_type.to_string(), partition.index));
            let state = self.new_state(partition, committed.as_ref(), is_marked)?;
            let refused = state.phase == Phase::Refused;
            starts
                .push((partition.clone(), if refused { StartOffset::End } else { StartOffset::At(state.watermark()) }));
            self.partitions.insert(state);
        }
        self.deps.consumer.assign(&starts)?;
        let refused: Vec<Partition> = self.partitions.refused().map(|state| state.partition.clone()).collect();
        if !refused.is_empty() {
            self.deps.consumer.pause(&refused, true)?;
        }
        Ok(())
    }

    /// Creates the state of an assigned partition. A partition that is marked as consumed but has no commit is
    /// refused, because its completed offsets are unknown.
    fn new_state(
        &mut self,
        partition: &Partition,
        committed: Option<&Committed>,
        is_marked: bool,
    ) -> Result<PartitionState, BrokerError> {
        let assignment_id = self.partitions.free_assignment_id();
        self.deps.command(Command::OpenAssignment { assignment_id });
        let mut state = if committed.is_none() && is_marked {
            self.deps.report_refused(partition, "its commit is missing, although it has been consumed before");
            // An operator may already have chosen its start offset.
            self.control_recheck_at = Some(Instant::now());
            PartitionState::refused(partition.clone(), assignment_id)
        } else {
            let first = match committed {
                Some(committed) => committed.offset,
                None => self.deps.broker.watermarks(partition, CALL_DEADLINE)?.low,
            };
            PartitionState::resume_from(partition.clone(), assignment_id, first, committed, self.window)
        };
        let takeovers = state.crashes.unclean_takeovers();
        if takeovers > 0 {
            state.crashes.limit_to(self.deps.broker.watermarks(partition, CALL_DEADLINE)?.high);
            self.deps.metrics.worker.unclean_takeovers.with_label_values(&[&*self.deps.task_type]).inc();
            tracing::warn!(%partition, in_a_row = takeovers, "the previous owner crashed without releasing the partition");
        }
        if let Some(until) = state.crashes.suspects_until() {
            tracing::warn!(%partition, until, "workers keep crashing on this partition: its tasks up to this offset run in child processes");
        }
        Ok(state)
    }

    fn revoke(&mut self, partitions: &[Partition]) {
        let deadline = Instant::now() + self.deps.drain_timeout;
        self.pending_start.partitions.retain(|pending| !partitions.contains(pending));
        let mut idle = Vec::new();
        for partition in partitions {
            match self.partitions.get_mut(partition.index) {
                Some(state) if state.phase != Phase::Refused => {
                    state.revoke(deadline);
                    self.deps.command(Command::CloseAssignment { assignment_id: state.assignment_id });
                }
                // No task of this partition runs.
                _ => {
                    self.partitions.remove(partition.index);
                    idle.push(partition.clone());
                }
            }
        }
        self.hand_out.recall(&mut self.partitions);
        if !idle.is_empty() {
            self.deps.release(&idle);
        }
    }

    pub(super) fn lose(&mut self, partitions: &[Partition]) {
        self.pending_start.partitions.retain(|pending| !partitions.contains(pending));
        for partition in partitions {
            if let Some(state) = self.partitions.remove(partition.index) {
                self.deps.command(Command::CancelAssignment { assignment_id: state.assignment_id });
            }
        }
        self.hand_out.recall(&mut self.partitions);
        self.deps.release(partitions);
    }

    /// Releases revoked partitions that are drained or whose deadline has passed, after a final commit. A refused
    /// partition stays until the worker stops or the group revokes it.
    pub(super) fn release_drained(&mut self, now: Instant) {
        if !self.committer.can_commit_final(now) {
            return;
        }
        let stopping = self.stopping;
        let is_ready =
            |state: &&mut PartitionState| state.is_drained(now) && (state.phase != Phase::Refused || stopping);
        let drained: Vec<&mut PartitionState> = self.partitions.iter_mut().filter(is_ready).collect();
        if drained.is_empty() {
            return;
        }
        let partitions: Vec<Partition> = drained.iter().map(|state| state.partition.clone()).collect();
        let late: Vec<u32> =
            drained.iter().filter(|state| state.outstanding() > 0).map(|state| state.assignment_id).collect();
        let processed = drained.into_iter().filter(|state| state.phase != Phase::Refused);
        let commits: Vec<_> = processed.map(PartitionState::final_commit).collect();
        late.into_iter().for_each(|assignment_id| self.deps.command(Command::CancelAssignment { assignment_id }));
        if self.committer.commit_final(&mut self.deps, &commits, now) {
            partitions.iter().for_each(|partition| drop(self.partitions.remove(partition.index)));
            self.deps.release(&partitions);
        }
    }
}

fn numbers(partitions: &[Partition]) -> Vec<i32> {
    partitions.iter().map(|partition| partition.index).collect()
}
