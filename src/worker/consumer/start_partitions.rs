//! Start of assigned partitions: where their last owners ended, and whether they can be processed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::deps::{CALL_DEADLINE, GroupDeps};
use super::partition::{PartitionState, Phase};
use super::{GroupConsumer, RETRY_PAUSE, TypeConsumer};
use crate::broker::{BrokerError, Committed, Partition, StartOffset};
use crate::control::settings;
use crate::worker::dispatch::Command;

/// Assigned partitions whose start offset could not be determined yet.
#[derive(Default)]
pub(super) struct PendingStart {
    pub partitions: Vec<Partition>,
    pub retry_at: Option<Instant>,
}

impl PendingStart {
    pub(super) fn add(&mut self, partitions: Vec<Partition>) {
        self.partitions.extend(partitions);
        self.retry_at = Some(Instant::now());
    }
}

/// State of the group before its partitions are started.
struct Found {
    /// Partitions of each topic.
    counts: BTreeMap<String, u32>,
    committed: BTreeMap<Partition, Committed>,
    /// Partitions that are marked as consumed; only read if a commit is missing.
    consumed: BTreeSet<(String, i32)>,
}

impl GroupConsumer {
    /// Starts assigned partitions; retries after a pause if the broker does not answer. A type that cannot be started
    /// does not delay the others.
    pub(super) fn start_pending(&mut self, now: Instant) {
        if self.pending_start.partitions.is_empty() || self.pending_start.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let partitions = std::mem::take(&mut self.pending_start.partitions);
        let left = match self.start_partitions(&partitions) {
            Ok(left) => {
                // The only type of a group reports under the same name why it cannot be started.
                if left.is_empty() || self.deps.is_shared {
                    self.deps.clear_health();
                }
                left
            }
            Err(error) => {
                self.deps.set_health(format!("its partitions cannot be started yet: {error}"));
                self.deps.log_error(&error);
                partitions
            }
        };
        self.pending_start = PendingStart { partitions: left, retry_at: Some(Instant::now() + RETRY_PAUSE) };
    }

    /// Determines where the last owner of each partition ended, and resumes there. Returns the partitions of types that
    /// cannot be started yet.
    fn start_partitions(&mut self, partitions: &[Partition]) -> Result<Vec<Partition>, BrokerError> {
        let found = self.find(partitions)?;
        let mut starts = Vec::new();
        let mut left = Vec::new();
        let mut has_refused = false;
        let deps = &mut self.deps;
        self.types.for_each_of(partitions, |one, numbers| match one.start(deps, &found, numbers) {
            Ok(begun) => {
                one.deps.clear_start_health();
                has_refused |= begun.iter().any(|(_, start)| *start == StartOffset::End);
                starts.extend(begun);
            }
            Err(error) => {
                one.deps.set_start_health(format!("its partitions cannot be started yet: {error}"));
                deps.log_error(&error);
                left.extend(numbers.iter().map(|number| Partition::new(one.deps.topic.clone(), *number)));
            }
        });
        self.deps.consumer.assign(&starts)?;
        if has_refused {
            let refused = self.types.iter().flat_map(|one| one.partitions.refused());
            let refused: Vec<Partition> = refused.map(|state| state.partition.clone()).collect();
            self.deps.consumer.pause(&refused, true)?;
            // An operator may already have chosen their start offsets.
            self.control_recheck_at = Some(Instant::now());
        }
        Ok(left)
    }

    fn find(&mut self, partitions: &[Partition]) -> Result<Found, BrokerError> {
        let topics: BTreeSet<Arc<str>> = partitions.iter().map(|partition| partition.topic.clone()).collect();
        let counts = self.deps.count_partitions(&topics.into_iter().collect::<Vec<_>>())?;
        let committed = self.deps.consumer.committed(partitions, CALL_DEADLINE)?;
        let consumed = if committed.iter().all(Option::is_some) {
            BTreeSet::new()
        } else {
            settings::read_control_blocking(&*self.deps.broker, &self.deps.names, CALL_DEADLINE)?.consumed
        };
        let committed = partitions.iter().cloned().zip(committed);
        let committed = committed.filter_map(|(partition, committed)| Some((partition, committed?))).collect();
        Ok(Found { counts, committed, consumed })
    }
}

impl TypeConsumer {
    /// Creates the states of assigned partitions. Returns where to read them.
    fn start(
        &mut self,
        deps: &GroupDeps,
        found: &Found,
        numbers: &[i32],
    ) -> Result<Vec<(Partition, StartOffset)>, BrokerError> {
        self.assignment_report.topic_partitions = self.deps.check_partitions(&found.counts)?;
        let mut starts = Vec::new();
        for number in numbers {
            let partition = Partition::new(self.deps.topic.clone(), *number);
            let is_marked = found.consumed.contains(&(self.deps.task_type.to_string(), *number));
            let state = self.new_state(deps, &partition, found.committed.get(&partition), is_marked)?;
            let refused = state.phase == Phase::Refused;
            starts.push((partition, if refused { StartOffset::End } else { StartOffset::At(state.watermark()) }));
            self.partitions.insert(state);
        }
        Ok(starts)
    }

    /// Creates the state of an assigned partition. A partition that is marked as consumed but has no commit is
    /// refused, because its completed offsets are unknown.
    fn new_state(
        &mut self,
        deps: &GroupDeps,
        partition: &Partition,
        committed: Option<&Committed>,
        is_marked: bool,
    ) -> Result<PartitionState, BrokerError> {
        let assignment_id = self.partitions.free_assignment_id();
        self.deps.command(Command::OpenAssignment { assignment_id });
        let mut state = if committed.is_none() && is_marked {
            self.deps.report_refused(partition, "its commit is missing, although it has been consumed before");
            PartitionState::refused(partition.clone(), assignment_id)
        } else {
            let first = match committed {
                Some(committed) => committed.offset,
                None => deps.broker.watermarks(partition, CALL_DEADLINE)?.low,
            };
            PartitionState::resume_from(partition.clone(), assignment_id, first, committed, self.window)
        };
        let takeovers = state.crashes.unclean_takeovers();
        if takeovers > 0 {
            state.crashes.limit_to(deps.broker.watermarks(partition, CALL_DEADLINE)?.high);
            self.deps.metrics.worker.unclean_takeovers.with_label_values(&[&*self.deps.task_type]).inc();
            tracing::warn!(%partition, in_a_row = takeovers, "the previous owner crashed without releasing the partition");
        }
        if let Some(until) = state.crashes.suspects_until() {
            tracing::warn!(%partition, until, "workers keep crashing on this partition: its tasks up to this offset run in child processes");
        }
        Ok(state)
    }
}
