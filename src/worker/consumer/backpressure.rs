//! Back pressure: limits the records taken from the client, and pauses partitions whose backlog starves others.

use std::time::Duration;

use tokio::time::Instant;

use super::deps::ConsumerDeps;
use super::partition::{PartitionState, Phase};
use super::partition_table::PartitionTable;
use crate::broker::Partition;

/// Maximum number of records taken in one poll.
const POLL_RECORDS: usize = 512;
/// Maximum wait for records while inputs are in flight, and while there are none.
const BUSY_WAIT: Duration = Duration::from_millis(5);
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Wait of a poll that takes no records, shortly after a completion.
const FULL_WAIT: Duration = Duration::from_millis(1);
const RECENT_COMPLETION: Duration = Duration::from_millis(20);
/// Maximum time that a partition may starve because of the backlog of others, before those are paused; longer while a
/// commit is in flight, which may let them continue. A pause is expensive: librdkafka drops prefetched records and
/// takes up to a second to fetch them again.
const STARVING_LIMIT: Duration = Duration::from_millis(200);
const STARVING_LIMIT_IN_COMMIT: Duration = Duration::from_secs(1);
/// Number of inputs waiting for their windows at which the consumer takes no more records.
const MAX_WAITING: usize = 8_192;

pub(super) struct Backpressure {
    /// Start of the time during which no records are taken although a partition is starving.
    starving_since: Option<Instant>,
    last_completion: Instant,
}

/// Limits of one poll.
#[derive(Clone, Copy)]
pub(super) struct PollBudget {
    pub records: usize,
    pub wait: Duration,
}

impl Backpressure {
    pub(super) fn new() -> Self {
        Self { starving_since: None, last_completion: Instant::now() }
    }

    /// Registers that inputs have completed just now.
    pub(super) fn completed(&mut self) {
        self.last_completion = Instant::now();
    }

    /// Budget of a poll that takes no records and only serves the group membership.
    pub(super) fn no_records(&mut self, now: Instant) -> PollBudget {
        self.starving_since = None;
        self.empty_budget(now)
    }

    /// Number of records to take and time to wait for them. No records are taken while memory is short or the backlog
    /// is full; if a partition starves meanwhile, those with too large a backlog are paused after a while.
    pub(super) fn poll_budget(
        &mut self,
        deps: &mut ConsumerDeps,
        partitions: &mut PartitionTable,
        committing: bool,
        now: Instant,
    ) -> PollBudget {
        if !deps.decoder.memory.has_room(deps.decoder.type_index) {
            return self.no_records(now);
        }
        let fair_part = MAX_WAITING / 2 / partitions.iter().count().max(1);
        let waiting: usize = partitions.iter().filter(|state| !state.paused).map(PartitionState::waiting).sum();
        if waiting < MAX_WAITING {
            self.starving_since = None;
            set_paused(deps, partitions, false, |state| state.waiting() <= fair_part / 2);
            let busy = committing || partitions.iter().any(PartitionState::needs_commit) || !partitions.is_idle();
            return PollBudget { records: POLL_RECORDS, wait: if busy { BUSY_WAIT } else { IDLE_WAIT } };
        }
        if !partitions.iter().any(PartitionState::is_starving) {
            return self.no_records(now);
        }
        let limit = if committing { STARVING_LIMIT_IN_COMMIT } else { STARVING_LIMIT };
        if now.duration_since(*self.starving_since.get_or_insert(now)) > limit {
            set_paused(deps, partitions, true, |state| state.waiting() > fair_part);
        }
        self.empty_budget(now)
    }

    fn empty_budget(&self, now: Instant) -> PollBudget {
        let recent = now.duration_since(self.last_completion) < RECENT_COMPLETION;
        PollBudget { records: 0, wait: if recent { FULL_WAIT } else { BUSY_WAIT } }
    }
}

/// Pauses or resumes the selected partitions.
fn set_paused(
    deps: &mut ConsumerDeps,
    partitions: &mut PartitionTable,
    paused: bool,
    is_selected: impl Fn(&PartitionState) -> bool,
) {
    let changes =
        |state: &&mut PartitionState| state.phase != Phase::Refused && state.paused != paused && is_selected(state);
    let mut states: Vec<&mut PartitionState> = partitions.iter_mut().filter(changes).collect();
    if states.is_empty() {
        return;
    }
    let partitions: Vec<Partition> = states.iter().map(|state| state.partition.clone()).collect();
    match deps.consumer.pause(&partitions, paused) {
        Ok(()) => states.iter_mut().for_each(|state| state.paused = paused),
        Err(error) => deps.log_error(&error),
    }
}
