//! Poll loop of a consumer group, on a thread of its own. A group serves one type, or several types that share it.
//!
//! ```text
//!  Kafka ──poll──▶ PartitionState ──hand out──▶ dispatcher of the type ──▶ attempts ──▶ events
//!    ▲             (one per partition)                                                    │ acknowledged
//!    └──commit──── watermark, window ◀────────────────── Completions ◀────────────────────┘
//! ```
//!
//! Per group: the client, the loop, the subscription, rebalances and commits. Per type: the dispatcher, its inputs and
//! completions, the window, and flow control: a type that takes no records delays only its own.
//!
//! Invariant: offsets past the end of a window are handed out only after a commit of the new end has succeeded, so that
//! a crash repeats at most a window. Auto-commit is off, at most one commit is in flight, and it names only partitions
//! of this assignment. A revoked partition is drained, committed with a mark that says how it ended, and released.
//!
//! Read next: `partition.rs` (one partition), `commit.rs`, then `start_partitions.rs` (takeover).

pub(crate) mod assignment;
mod backpressure;
mod commit;
pub(super) mod control;
mod crash_history;
mod deps;
mod group_events;
mod hand_out;
pub(crate) mod partition;
mod partition_table;
mod recover;
mod retry_log;
mod start_partitions;
mod type_consumer;

use std::time::Duration;

use tokio::time::Instant;

pub(super) use deps::{CommittedOffsets, GroupDeps, NOT_JOINED, PollLoopMetrics, TypeDeps, health_part};
pub(super) use type_consumer::TypeConsumer;

use backpressure::Backpressure;
use commit::Committer;
use kafleet_broker::BrokerError;
use partition::{PartitionState, Phase};
use recover::{GapCheck, OutOfRange, Recreation};
use start_partitions::PendingStart;
use type_consumer::TypeTable;

/// Pause before a failed call to the broker is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// Consumer of a group.
pub(super) struct GroupConsumer {
    deps: GroupDeps,
    types: TypeTable,
    pending_start: PendingStart,
    out_of_range: OutOfRange,
    gap_check: GapCheck,
    committer: Committer,
    backpressure: Backpressure,
    recreation: Recreation,
    /// Generation of the control state that is applied, and the time of the next check without a change.
    control_generation: u64,
    control_recheck_at: Option<Instant>,
    /// The control topic has been found to name this group, after the consumer had joined it.
    has_checked_groups: bool,
    stopping: bool,
}

impl GroupConsumer {
    pub(super) fn new(deps: GroupDeps, types: Vec<TypeConsumer>) -> Self {
        deps.set_health(NOT_JOINED);
        Self {
            deps,
            types: TypeTable::new(types),
            pending_start: PendingStart::default(),
            out_of_range: OutOfRange::default(),
            gap_check: GapCheck::new(),
            committer: Committer::new(),
            backpressure: Backpressure::new(),
            recreation: Recreation::new(),
            control_generation: 0,
            control_recheck_at: Some(Instant::now()),
            has_checked_groups: false,
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
        if self.deps.shutdown.abort.is_cancelled()
            || self.types.busy().any(|type_consumer| type_consumer.hand_out.closed)
        {
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
        self.types.busy_mut().for_each(TypeConsumer::send_inputs);
        self.deps.record_time(now, |time| &time.dispatch);
        let before = Instant::now();
        self.gap_check.skip_gaps(&mut self.deps, &mut self.types, before);
        self.commit_if_due(before).await;
        self.release_drained(before);
        self.start_pending(before);
        self.recover_out_of_range(before);
        self.types.end_turn();
        self.deps.record_time(before, |time| &time.commit);
        if self.stopping && self.types.is_empty() {
            return false;
        }
        self.poll().await;
        true
    }

    fn take_completions(&mut self) {
        let mut any = false;
        self.types.busy_mut().for_each(|type_consumer| any |= type_consumer.take_completions());
        if any {
            self.backpressure.completed();
        }
    }

    async fn poll(&mut self) {
        let before = Instant::now();
        let budget = if self.stopping {
            self.backpressure.no_records(before)
        } else {
            let committing = self.committer.is_in_flight();
            self.backpressure.apply_backpressure(&mut self.deps, &mut self.types, committing, before)
        };
        let wait = kafleet_runtime::waiting(budget.wait).await;
        let types = &mut self.types;
        let mut taken = 0;
        let polled = self.deps.consumer.poll(budget.records, wait, &mut |record| {
            taken += 1;
            if let Some(type_consumer) = types.of_topic_mut(record.topic) {
                type_consumer.receive(record);
            }
        });
        types.busy_mut().for_each(TypeConsumer::end_batch);
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
        self.forget_pending(|_| true);
        let deadline = now + self.deps.shutdown.drain_time(self.deps.drain_timeout);
        self.types.iter_mut().for_each(|type_consumer| type_consumer.revoke_all(deadline));
    }

    /// Commits all completed offsets and leaves the group.
    fn leave(mut self) {
        let states = self.types.iter_mut().flat_map(|type_consumer| type_consumer.partitions.iter_mut());
        let processed = states.filter(|state| state.phase != Phase::Refused);
        let commits: Vec<_> = processed.map(PartitionState::final_commit).collect();
        if !self.deps.shutdown.abort.is_cancelled() {
            self.committer.commit_final(&mut self.deps, &commits, Instant::now());
        }
        self.deps.consumer.close(CLOSE_DEADLINE);
    }
}
