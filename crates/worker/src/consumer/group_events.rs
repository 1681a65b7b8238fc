//! Group events: partitions that are assigned, revoked, lost and released.

use kafleet_broker::{GroupEvent, Partition};
use kafleet_model::event::InterruptionReason;
use tokio::time::Instant;

use super::GroupConsumer;
use super::partition::{PartitionState, Phase};
use crate::dispatch::Command;

impl GroupConsumer {
    pub(super) async fn handle_group_event(&mut self, event: GroupEvent) {
        let group = &self.deps.group;
        match event {
            GroupEvent::Assigned(partitions) => {
                tracing::info!(%group, partitions = %list(&partitions), "partitions assigned");
                self.assign(partitions);
            }
            GroupEvent::Revoked(partitions) => {
                tracing::info!(%group, partitions = %list(&partitions), "partitions revoked");
                self.revoke(&partitions);
            }
            GroupEvent::Lost(partitions) => {
                tracing::warn!(%group, partitions = %list(&partitions), "partitions lost");
                self.lose_partitions(&partitions);
            }
            GroupEvent::Committed(outcomes) => self.commit_ended(outcomes).await,
            GroupEvent::OutOfRange(partition) => self.out_of_range.add(partition),
            GroupEvent::ClientError(error) => self.deps.log_error(&error),
        }
    }

    /// Accepts an assignment. A stopping worker ignores it: it leaves the group soon, which reassigns the partitions.
    fn assign(&mut self, partitions: Vec<Partition>) {
        if self.stopping {
            return;
        }
        if partitions.is_empty() && self.pending_start.is_empty() {
            self.deps.clear_health();
        }
        self.pending_start.add(partitions);
    }

    fn revoke(&mut self, partitions: &[Partition]) {
        let deadline = Instant::now() + self.deps.drain_timeout;
        self.forget_pending(|pending| partitions.contains(pending));
        let mut idle: Vec<Partition> = Vec::new();
        self.types.for_each_of(partitions, |type_consumer, numbers| {
            for number in numbers {
                match type_consumer.partitions.get_mut(*number) {
                    Some(state) if state.phase != Phase::Refused => {
                        state.revoke(deadline);
                        type_consumer.deps.command(Command::CloseAssignment { assignment_id: state.assignment_id });
                    }
                    // No task of this partition runs.
                    _ => {
                        type_consumer.partitions.remove(*number);
                        idle.push(Partition::new(type_consumer.deps.topic.clone(), *number));
                    }
                }
            }
            type_consumer.hand_out.recall(&mut type_consumer.partitions);
        });
        if !idle.is_empty() {
            self.types.release(&mut self.deps, &idle);
        }
    }

    /// Drops partitions that have not been started, and the reports of types that could not be started.
    pub(super) fn forget_pending(&mut self, is_forgotten: impl Fn(&Partition) -> bool) {
        for topic in self.pending_start.remove(is_forgotten) {
            if let Some(type_consumer) = self.types.of_topic_mut(&topic) {
                type_consumer.deps.clear_start_health();
            }
        }
    }

    /// Gives up partitions that the group has assigned to others.
    pub(super) fn lose_partitions(&mut self, partitions: &[Partition]) {
        self.forget_pending(|pending| partitions.contains(pending));
        self.types.for_each_of(partitions, |type_consumer, numbers| {
            for number in numbers {
                if let Some(state) = type_consumer.partitions.remove(*number) {
                    let reason = InterruptionReason::PartitionLost;
                    type_consumer
                        .deps
                        .command(Command::CancelAssignment { assignment_id: state.assignment_id, reason });
                }
            }
            type_consumer.hand_out.recall(&mut type_consumer.partitions);
        });
        self.types.release(&mut self.deps, partitions);
        // The consumer joins its group again.
        self.has_checked_groups = false;
    }

    /// Releases revoked partitions that are drained or whose deadline has passed, after a final commit. A refused
    /// partition stays until the worker stops or the group revokes it.
    pub(super) fn release_drained(&mut self, now: Instant) {
        if !self.committer.can_commit_final(now) {
            return;
        }
        let stopping = self.stopping;
        let reason = if stopping { InterruptionReason::WorkerStopped } else { InterruptionReason::PartitionMoved };
        let (mut partitions, mut commits) = (Vec::new(), Vec::new());
        for type_consumer in self.types.iter_mut().filter(|type_consumer| stopping || type_consumer.is_busy()) {
            for state in type_consumer.partitions.iter_mut() {
                if !can_be_released(state, stopping, now) {
                    continue;
                }
                partitions.push(state.partition.clone());
                if state.phase != Phase::Refused {
                    commits.push(state.final_commit());
                }
                if state.outstanding() > 0 {
                    type_consumer
                        .deps
                        .command(Command::CancelAssignment { assignment_id: state.assignment_id, reason });
                }
            }
        }
        if partitions.is_empty() || !self.committer.commit_final(&mut self.deps, &commits, now) {
            return;
        }
        self.types.for_each_of(&partitions, |type_consumer, numbers| {
            numbers.iter().for_each(|number| drop(type_consumer.partitions.remove(*number)));
        });
        self.types.release(&mut self.deps, &partitions);
    }
}

/// Returns whether a partition can be released. A refused one stays until the worker stops or the group revokes it.
pub(super) fn can_be_released(state: &PartitionState, stopping: bool, now: Instant) -> bool {
    state.is_drained(now) && (stopping || state.phase != Phase::Refused)
}

/// Formats partitions for the log: `mail/0,2,5 resize/1`.
fn list(partitions: &[Partition]) -> String {
    let mut text = String::new();
    let mut topic = "";
    for partition in partitions {
        let separator = match topic {
            last if *last == *partition.topic => ",".to_owned(),
            "" => format!("{}/", partition.topic),
            _ => format!(" {}/", partition.topic),
        };
        text += &separator;
        text += &partition.index.to_string();
        topic = &partition.topic;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_names_each_topic_once() {
        let partitions = [("a", 0), ("a", 3), ("b", 1)].map(|(topic, index)| Partition::new(topic, index));
        assert_eq!(list(&partitions), "a/0,3 b/1");
        assert_eq!(list(&[]), "");
    }
}
