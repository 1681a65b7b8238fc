//! Back pressure: holds the records of types that take none back in the client, and pauses partitions whose backlog
//! starves others.

use std::time::Duration;

use kafleet_broker::Partition;
use tokio::time::Instant;

use super::deps::GroupDeps;
use super::partition::{PartitionState, Phase};
use super::partition_table::PartitionTable;
use super::type_consumer::{TypeConsumer, TypeTable};

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
/// Number of inputs of a type waiting for their windows at which the consumer takes no more records of it.
const MAX_WAITING: usize = 8_192;
/// Time for which the client holds back the records of one of several types before the type's partitions are paused,
/// which frees the memory of the held records.
const HELD_LIMIT: Duration = Duration::from_millis(200);

/// Back pressure of a consumer.
pub(super) struct Backpressure {
    last_completion: Instant,
}

/// Back pressure of one type.
#[derive(Default)]
pub(crate) struct TypeBackpressure {
    /// Start of the time during which no records are taken although a partition is starving.
    starving_since: Option<Instant>,
    /// Time since which the client holds the type's records back.
    held_since: Option<Instant>,
    /// Some partitions are paused.
    has_paused: bool,
}

/// Limits of one poll.
#[derive(Clone, Copy)]
pub(super) struct PollBudget {
    pub records: usize,
    pub wait: Duration,
}

impl Backpressure {
    pub(super) fn new() -> Self {
        Self { last_completion: Instant::now() }
    }

    /// Registers that inputs have completed just now.
    pub(super) fn completed(&mut self) {
        self.last_completion = Instant::now();
    }

    /// Budget of a poll that takes no records and only serves the group membership.
    pub(super) fn no_records(&self, now: Instant) -> PollBudget {
        let recent = now.duration_since(self.last_completion) < RECENT_COMPLETION;
        PollBudget { records: 0, wait: if recent { FULL_WAIT } else { BUSY_WAIT } }
    }

    /// Holds back the types that take no records, without effect on the others, and returns the limits of the next
    /// poll.
    pub(super) fn apply_backpressure(
        &self,
        deps: &mut GroupDeps,
        types: &mut TypeTable,
        committing: bool,
        now: Instant,
    ) -> PollBudget {
        let number = types.number();
        let mut held = 0;
        let mut needs_commit = committing;
        for type_consumer in types.busy_mut() {
            let takes_records = type_consumer.adjust_intake(deps, committing, now);
            type_consumer.set_held(deps, !takes_records, now);
            held += usize::from(!takes_records);
            if number > 1 {
                type_consumer.pause_long_held(deps, now);
            }
            needs_commit |= type_consumer.partitions.iter().any(PartitionState::needs_commit);
        }
        if held == number {
            return self.no_records(now);
        }
        let busy = needs_commit || !types.is_idle();
        let wait = match held {
            0 if !busy => IDLE_WAIT,
            0 => BUSY_WAIT,
            // A type that is held back continues soon after its completions.
            _ => self.no_records(now).wait,
        };
        PollBudget { records: POLL_RECORDS, wait }
    }
}

impl TypeBackpressure {
    /// Returns whether the type's records are held back or some of its partitions are paused.
    pub(super) fn is_active(&self) -> bool {
        self.held_since.is_some() || self.has_paused
    }

    /// Forgets the state of the client, which has been replaced.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

impl TypeConsumer {
    /// Decides whether the type takes records now, pauses and resumes its partitions, and returns the decision. It
    /// takes none while memory is short or its backlog is full; if one of its partitions starves meanwhile, those with
    /// too large a backlog are paused after a while.
    fn adjust_intake(&mut self, deps: &mut GroupDeps, committing: bool, now: Instant) -> bool {
        if !self.deps.decoder.memory.has_room(self.deps.decoder.type_index) {
            self.backpressure.starving_since = None;
            return false;
        }
        let fair_part = MAX_WAITING / 2 / self.partitions.iter().count().max(1);
        let waiting: usize = self.partitions.iter().filter(|state| !state.paused).map(PartitionState::waiting).sum();
        if waiting < MAX_WAITING {
            self.backpressure.starving_since = None;
            self.set_paused(deps, false, |state| state.waiting() <= fair_part / 2);
            return true;
        }
        if !self.partitions.iter().any(PartitionState::is_starving) {
            self.backpressure.starving_since = None;
            return false;
        }
        let limit = if committing { STARVING_LIMIT_IN_COMMIT } else { STARVING_LIMIT };
        if now.duration_since(*self.backpressure.starving_since.get_or_insert(now)) > limit {
            self.set_paused(deps, true, |state| state.waiting() > fair_part);
        }
        false
    }

    /// Holds the type's records back in the client, or delivers them again.
    fn set_held(&mut self, deps: &mut GroupDeps, held: bool, now: Instant) {
        if held == self.backpressure.held_since.is_some() {
            return;
        }
        self.backpressure.held_since = held.then_some(now);
        deps.consumer.hold(&self.deps.topic, held);
    }

    /// Pauses the partitions of a type that has been held back for too long.
    fn pause_long_held(&mut self, deps: &mut GroupDeps, now: Instant) {
        if self.backpressure.held_since.is_some_and(|since| now.duration_since(since) > HELD_LIMIT) {
            self.set_paused(deps, true, |_| true);
        }
    }

    /// Pauses or resumes the selected partitions.
    fn set_paused(&mut self, deps: &mut GroupDeps, paused: bool, is_selected: impl Fn(&PartitionState) -> bool) {
        if paused || self.backpressure.has_paused {
            set_paused(deps, &mut self.partitions, paused, is_selected);
            self.backpressure.has_paused = self.partitions.iter().any(|state| state.paused);
        }
    }
}

fn set_paused(
    deps: &mut GroupDeps,
    partitions: &mut PartitionTable,
    paused: bool,
    is_selected: impl Fn(&PartitionState) -> bool,
) {
    let changes =
        |state: &&mut PartitionState| state.phase != Phase::Refused && state.paused != paused && is_selected(state);
    let mut states: Vec<&mut PartitionState> = partitions.iter_mut().filter(changes).collect();
    let partitions: Vec<Partition> = states.iter().map(|state| state.partition.clone()).collect();
    if !partitions.is_empty() && deps.pause(&partitions, paused) {
        states.iter_mut().for_each(|state| state.paused = paused);
    }
}
