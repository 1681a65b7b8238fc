//! Commits of completed offsets. Partitions that are released are committed once more, synchronously.
//!
//! A commit is due after an interval; earlier if a quarter of a window is used, or if a retry waits for it. One commit
//! names all partitions that changed, and its outcome arrives later, per partition: a partition that fails delays only
//! its own type.
//!
//! Invariant: what a commit announces to the next owner (the end of the window, the attempts that a task has used)
//! takes effect here only once the commit is acknowledged. Used earlier, it would be unknown after a crash: the next
//! owner would repeat more than a window, and count attempts again that were published.
//!
//! Invariant: at most one commit is in flight. Its outcome would otherwise be mistaken for that of another; without an
//! outcome within 60 s the consumer is recreated.
//!
//! Read next: `partition.rs`, `PartitionState::commit` and `apply_commit`, then `crates/model/src/offsets/mod.rs` (the
//! metadata).

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet_broker::{BrokerError, Commit, CommitOutcomes, Partition};
use kafleet_fleet::control::settings;
use tokio::time::Instant;

use super::deps::{GroupDeps, TypeDeps};
use super::partition::{CommitState, PartitionState};
use super::type_consumer::TypeTable;
use super::{GroupConsumer, TypeConsumer};
use crate::dispatch::Command;

/// Divisor of the commit interval while the consumer is idle, so that the next owner of a partition or a lag monitor
/// does not wait for the whole interval.
const IDLE_COMMIT_FRACTION: u32 = 4;
/// Minimum time between two commits.
const COMMIT_SPACING: Duration = Duration::from_millis(3);
/// Minimum time since the last commit for one that is made because retries wait for it.
const RETRY_COMMIT_SPACING: Duration = Duration::from_millis(20);
/// Minimum time between a failed commit of a type and its next one.
const RETRY_SPACING: Duration = Duration::from_millis(500);
/// Maximum time for the outcome of a commit.
const COMMIT_DEADLINE: Duration = Duration::from_secs(60);
/// Maximum time to retry a final commit, and the pause between. A group rejects commits until all its members have
/// answered a rebalance.
const FINAL_COMMIT_DEADLINE: Duration = Duration::from_secs(8);
const FINAL_COMMIT_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// State of the commits of one consumer.
pub(super) struct Committer {
    in_flight: Option<CommitInFlight>,
    /// Time of the last commit.
    last: Instant,
    final_retry: Option<FinalRetry>,
}

struct CommitInFlight {
    since: Instant,
    /// State to apply to each partition once its commit is acknowledged.
    states: BTreeMap<Partition, CommitState>,
}

/// State of a final commit that failed and is retried. The consumer is polled between the retries, which lets the group
/// complete a rebalance.
struct FinalRetry {
    since: Instant,
    next: Instant,
}

impl Committer {
    pub(super) fn new() -> Self {
        Self { in_flight: None, last: Instant::now(), final_retry: None }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Discards the commit in flight of a failed consumer.
    pub(super) fn reset(&mut self) {
        self.in_flight = None;
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.in_flight.as_ref().is_some_and(|commit| now.duration_since(commit.since) >= COMMIT_DEADLINE)
    }

    fn is_due(&self, deps: &GroupDeps, types: &TypeTable, now: Instant) -> bool {
        let since = now.duration_since(self.last);
        if self.is_in_flight() || since < COMMIT_SPACING {
            return false;
        }
        let interval = if types.is_idle() { deps.commit_interval / IDLE_COMMIT_FRACTION } else { deps.commit_interval };
        let needs_window =
            |type_consumer: &TypeConsumer| type_consumer.partitions.iter().any(PartitionState::needs_window);
        let retries_wait = |type_consumer: &TypeConsumer| {
            since >= RETRY_COMMIT_SPACING
                && type_consumer
                    .partitions
                    .iter()
                    .any(|state| state.phase.is_reading() && state.retries.is_uncommitted())
        };
        since >= interval
            || types.busy().any(|type_consumer| {
                type_consumer.may_commit(now) && (needs_window(type_consumer) || retries_wait(type_consumer))
            })
    }

    /// Creates the commits of all partitions that need one.
    fn prepare(&mut self, deps: &GroupDeps, types: &mut TypeTable, now: Instant) -> Vec<Commit> {
        let mut commits = Vec::new();
        let mut states = BTreeMap::new();
        for type_consumer in types.busy_mut().filter(|type_consumer| type_consumer.may_commit(now)) {
            for state in
                type_consumer.partitions.iter_mut().filter(|state| state.needs_commit() || state.needs_window())
            {
                let was_full = state.is_full();
                let (commit, next) = state.commit();
                report_window_held(&type_consumer.deps, state, was_full);
                deps.offsets.lock().insert(commit.partition.clone(), commit.offset);
                states.insert(commit.partition.clone(), next);
                commits.push(commit);
            }
        }
        if !commits.is_empty() {
            self.last = now;
            self.in_flight = Some(CommitInFlight { since: now, states });
        }
        commits
    }

    /// Applies the outcomes of the commit in flight: a partition that fails delays only its own type. Returns the
    /// partitions that must now be marked as consumed.
    fn finish(&mut self, outcomes: CommitOutcomes, types: &mut TypeTable) -> Vec<Partition> {
        let Some(commit) = self.in_flight.take() else { return Vec::new() };
        let mut outcomes: BTreeMap<Partition, Result<(), BrokerError>> = outcomes.into_iter().collect();
        let retry_at = Instant::now() + RETRY_SPACING;
        let mut unmarked = Vec::new();
        for (partition, next) in commit.states {
            let missing = || Err(BrokerError::InDoubt("the commit has no outcome".into()));
            let outcome = outcomes.remove(&partition).unwrap_or_else(missing);
            let Some(type_consumer) = types.of_topic_mut(&partition.topic) else { continue };
            type_consumer.set_busy();
            if let Err(error) = &outcome {
                type_consumer.delay_commit(retry_at, error);
            }
            let state = type_consumer.partitions.get_mut(partition.index);
            let Some(state) = state.filter(|state| state.assignment_id == next.assignment_id) else { continue };
            if outcome.is_err() {
                state.commit_failed();
                continue;
            }
            state.apply_commit(next);
            if state.unmarked {
                unmarked.push(partition);
            }
            if next.recorded > 0 {
                let CommitState { assignment_id, recorded, .. } = next;
                type_consumer.deps.command(Command::RetriesCommitted { assignment_id, recorded });
            }
        }
        unmarked
    }

    /// Returns whether a final commit may be made now: no commit is in flight that it could overtake, and no retry is
    /// pending.
    pub(super) fn can_commit_final(&self, now: Instant) -> bool {
        !self.is_in_flight() && self.final_retry.as_ref().is_none_or(|retry| now >= retry.next)
    }

    /// Commits partitions before their release. Returns false if the commit must be repeated after the next poll.
    /// After the deadline it is given up: the next owners repeat the tasks that it does not cover.
    pub(super) fn commit_final(&mut self, deps: &mut GroupDeps, commits: &[Commit], now: Instant) -> bool {
        let Err(error) = send_final(deps, commits) else {
            self.final_retry = None;
            return true;
        };
        let since = self.final_retry.as_ref().map_or(now, |retry| retry.since);
        if !error.is_transient() || now.duration_since(since) >= FINAL_COMMIT_DEADLINE {
            tracing::warn!(group = %deps.group, %error, "the final commit of released partitions failed");
            self.final_retry = None;
            return true;
        }
        self.final_retry = Some(FinalRetry { since, next: Instant::now() + FINAL_COMMIT_RETRY_INTERVAL });
        false
    }
}

fn send_final(deps: &mut GroupDeps, commits: &[Commit]) -> Result<(), BrokerError> {
    if commits.is_empty() { Ok(()) } else { deps.consumer.commit_sync(commits) }
}

impl TypeConsumer {
    fn may_commit(&self, now: Instant) -> bool {
        self.commit_retry_at.is_none_or(|at| now >= at)
    }

    /// Delays the next commit of the type after a failure.
    fn delay_commit(&mut self, until: Instant, error: &BrokerError) {
        if self.commit_retry_at.replace(until) != Some(until) {
            tracing::warn!(task_type = %self.deps.task_type, %error, "a commit failed; retrying");
        }
    }
}

impl GroupConsumer {
    pub(super) async fn commit_if_due(&mut self, now: Instant) {
        if self.committer.is_overdue(now) {
            // A late outcome would be mistaken for that of the next commit.
            return self.fail_consumer(&BrokerError::InDoubt("no outcome of a commit within 60 s".into()));
        }
        // Drained partitions come first: a series of other commits would delay their release without limit.
        let releases = self.committer.can_commit_final(now) && self.types.has_drained(self.stopping, now);
        if releases || !self.committer.is_due(&self.deps, &self.types, now) {
            return;
        }
        let commits = self.committer.prepare(&self.deps, &mut self.types, now);
        if !commits.is_empty()
            && let Err(error) = self.deps.consumer.commit(&commits)
        {
            let failed = commits.into_iter().map(|commit| (commit.partition, Err(error.clone())));
            self.commit_ended(failed.collect()).await;
        }
    }

    pub(super) async fn commit_ended(&mut self, outcomes: CommitOutcomes) {
        let unmarked = self.committer.finish(outcomes, &mut self.types);
        if !unmarked.is_empty() {
            self.mark_consumed(&unmarked).await;
        }
    }

    /// Writes the records that mark partitions as consumed. Their first tasks start only after that: from then on, a
    /// missing commit means that the commit was lost, not that the partition is new.
    async fn mark_consumed(&mut self, unmarked: &[Partition]) {
        let GroupDeps { producer, names, .. } = &self.deps;
        let marks = unmarked.iter().map(|partition| async move {
            let task_type = names.type_of(&partition.topic).unwrap_or_default();
            settings::mark_partition_consumed(producer, names, task_type, partition.index).await
        });
        let outcomes = futures::future::join_all(marks).await;
        for (partition, outcome) in unmarked.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    if let Some(state) = self.types.state_mut(partition) {
                        state.mark_written();
                    }
                }
                Err(error) => {
                    // The mark is written again after the next commit, which is delayed.
                    if let Some(type_consumer) = self.types.of_topic_mut(&partition.topic) {
                        type_consumer.delay_commit(Instant::now() + RETRY_SPACING, &error);
                    }
                }
            }
        }
    }
}

/// Reports whether the commit metadata of a partition is full, and the offset of the oldest incomplete task, which
/// holds the partition back.
fn report_window_held(deps: &TypeDeps, state: &PartitionState, was_full: bool) {
    let partition = &state.partition;
    let offset = state.watermark();
    if state.is_full() {
        if !was_full {
            tracing::warn!(%partition, offset, "the task at this offset holds back its partition: nothing new starts until it ends");
        }
        deps.set_window_held(partition.index, offset);
    } else if was_full {
        deps.clear_window_held(partition.index);
    }
}
