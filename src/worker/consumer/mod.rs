//! Poll loop of one task type, on a thread of its own: records in, inputs out to the dispatcher, completions back,
//! commits.
//!
//! Commits: auto-commit is off, at most one commit is in flight, and it names only partitions of this assignment.
//! Offsets past the end of a window are handed out only after a commit of the new end has succeeded, so that a crash
//! repeats at most a window. A revoked partition is drained, committed with the clean mark, and released.

pub(crate) mod assignment;
mod backpressure;
mod commit;
mod control;
mod crash_history;
mod deps;
mod group_events;
mod hand_out;
pub(crate) mod partition;
mod partition_table;
mod recover;

use std::time::Duration;

use tokio::time::Instant;

pub(super) use deps::{CommittedOffsets, ConsumerDeps, NOT_JOINED, PollLoopMetrics, health_part};

use super::dispatch::Command;
use crate::broker::BrokerError;
use crate::runtime;
use backpressure::Backpressure;
use commit::Committer;
use control::AssignmentReport;
use group_events::PendingStart;
use hand_out::HandOut;
use partition::{PartitionState, Phase};
use partition_table::{CompletionBuffers, PartitionTable};
use recover::{GapCheck, OutOfRange, Recreation};

/// Pause before a failed call to the broker is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// Consumer of one task type.
pub(super) struct TypeConsumer {
    deps: ConsumerDeps,
    partitions: PartitionTable,
    pending_start: PendingStart,
    out_of_range: OutOfRange,
    gap_check: GapCheck,
    hand_out: HandOut,
    completions: CompletionBuffers,
    committer: Committer,
    backpressure: Backpressure,
    recreation: Recreation,
    /// Window size for the current number of slots.
    window: u64,
    assignment_report: AssignmentReport,
    /// Generation of the control state that is applied, and the time of the next check without a change.
    control_generation: u64,
    control_recheck_at: Option<Instant>,
    stopping: bool,
}

impl TypeConsumer {
    pub(super) fn new(deps: ConsumerDeps) -> Self {
        deps.set_health(NOT_JOINED);
        Self {
            window: control::window(deps.policy.slots()),
            deps,
            partitions: PartitionTable::default(),
            pending_start: PendingStart::default(),
            out_of_range: OutOfRange::default(),
            gap_check: GapCheck::new(),
            hand_out: HandOut::default(),
            completions: CompletionBuffers::default(),
            committer: Committer::new(),
            backpressure: Backpressure::new(),
            recreation: Recreation::new(),
            assignment_report: AssignmentReport::default(),
            control_generation: 0,
            control_recheck_at: Some(Instant::now()),
            stopping: false,
        }
    }

    /// Runs until the worker stops, then leaves the group.
    pub(super) async fn run(mut self) {
        while self.step().await {}
        self.leave();
    }

    /// Runs one turn of the loop. Returns false when everything is released, or the worker aborts.
    async fn step(&mut self) -> bool {
        let now = Instant::now();
        if self.deps.shutdown.abort.is_cancelled() || self.hand_out.closed {
            return false;
        }
        if self.deps.shutdown.is_draining() && !self.stopping {
            self.begin_stop(now);
        }
        if self.recreation.is_pending() {
            return self.recreate_consumer(now).await;
        }
        self.apply_control(now).await;
        self.take_completions();
        self.hand_out.send(&self.deps.work, &mut self.partitions);
        self.deps.record_time(now, |time| &time.dispatch);
        let before = Instant::now();
        self.gap_check.skip_gaps(&mut self.deps, &mut self.partitions, before);
        self.commit_if_due(before).await;
        self.release_drained(before);
        self.start_pending(before);
        self.recover_out_of_range(before);
        self.assignment_report.send(&self.deps, &self.partitions);
        self.deps.record_time(before, |time| &time.commit);
        if self.stopping && self.partitions.is_empty() {
            return false;
        }
        self.poll().await;
        true
    }

    fn take_completions(&mut self) {
        if self.completions.apply(&self.deps.completions, &mut self.partitions) {
            self.backpressure.completed();
        }
    }

    async fn poll(&mut self) {
        let before = Instant::now();
        let budget = if self.stopping {
            self.backpressure.no_records(before)
        } else {
            let committing = self.committer.is_in_flight();
            self.backpressure.poll_budget(&mut self.deps, &mut self.partitions, committing, before)
        };
        let wait = runtime::waiting(budget.wait).await;
        let partitions = &mut self.partitions;
        let type_index = self.deps.decoder.type_index;
        let mut batch = self.deps.decoder.start_batch();
        let mut taken = 0;
        let polled = self.deps.consumer.poll(budget.records, wait, &mut |record| {
            taken += 1;
            let Some(state) = partitions.get_mut(record.partition) else { return };
            if state.deliver(record.offset) {
                let tag = state.tag(type_index, record.offset);
                state.push(batch.decode(record, tag));
            }
        });
        drop(batch);
        self.deps.record_time(before, |time| if taken > 0 { &time.poll } else { &time.idle });
        match polled {
            Ok(events) => {
                for event in events {
                    self.handle_group_event(event).await;
                }
            }
            // Fatal errors: the client does not recover by itself.
            Err(error @ (BrokerError::Fatal(_) | BrokerError::Fenced(_))) => self.fail_consumer(&error),
            Err(error) => self.deps.log_error(&error),
        }
    }

    /// Revokes all partitions without waiting for the group, so that they drain.
    fn begin_stop(&mut self, now: Instant) {
        self.stopping = true;
        self.pending_start.partitions.clear();
        let deadline = now + self.deps.drain_timeout;
        for state in self.partitions.iter_mut() {
            state.revoke(deadline);
            self.deps.command(Command::CloseAssignment { assignment_id: state.assignment_id });
        }
        self.hand_out.recall(&mut self.partitions);
    }

    /// Commits all completed offsets and leaves the group.
    fn leave(mut self) {
        let processed = self.partitions.iter_mut().filter(|state| state.phase != Phase::Refused);
        let commits: Vec<_> = processed.map(PartitionState::final_commit).collect();
        if !self.deps.shutdown.abort.is_cancelled() {
            self.committer.commit_final(&mut self.deps, &commits, Instant::now());
        }
        self.deps.consumer.close(CLOSE_DEADLINE);
    }
}
