//! Assignments whose tasks must not start, or whose results no longer count, and the retries that this worker keeps: the
//! commits of a partition carry what its tasks have used to its next owner.

use std::sync::Arc;
use std::time::Duration;

use kafleet_model::event::InterruptionReason;
use kafleet_model::offsets::PendingRetry;
use rustc_hash::{FxHashMap, FxHashSet};

use super::LONGEST_WAIT;
use crate::completions::{DeliveryTag, RecordedRetry};
use crate::decode::{HeldRetry, InFlight};

/// Number of tasks of one partition with a recorded retry, from which on further ones wait at the tracker: as many as the
/// metadata of a commit has room for. Tasks of ordered types stay, because they hold their key.
const MAX_KEPT: usize = 256;
/// Pause before the next check whether a retry is committed.
const COMMIT_CHECK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct AssignmentStates {
    closed: FxHashSet<u32>,
    cancelled: FxHashMap<u32, InterruptionReason>,
    retries: FxHashMap<u32, KeptRetries>,
    /// Number of the last recorded retry.
    last_sequence: u64,
}

/// Retries that the commits of an assignment keep.
#[derive(Default)]
struct KeptRetries {
    /// Number of the last one that is committed.
    committed: u64,
    /// Has one owner more than there are tasks.
    counted: Arc<()>,
}

impl AssignmentStates {
    /// Registers a new assignment, which may have the id of an earlier one.
    pub(super) fn open(&mut self, assignment_id: u32) {
        self.closed.remove(&assignment_id);
        self.cancelled.remove(&assignment_id);
        self.retries.remove(&assignment_id);
    }

    /// Returns whether the commits of the partition have room for what one more task has used.
    pub(super) fn has_room(&self, in_flight: &InFlight) -> bool {
        let is_known = matches!(in_flight.retry.as_deref(), Some(HeldRetry::Recorded { .. }));
        let retries = self.retries.get(&in_flight.tag.assignment_id());
        is_known || retries.is_none_or(|retries| Arc::strong_count(&retries.counted) <= MAX_KEPT)
    }

    /// Registers what a task has used. Returns it for the next commits of its partition.
    pub(super) fn record_retry(&mut self, in_flight: &mut InFlight, due_ms: i64) -> RecordedRetry {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        let _counted = self.retries.entry(in_flight.tag.assignment_id()).or_default().counted.clone();
        in_flight.retry = Some(Box::new(HeldRetry::Recorded { sequence, _counted }));
        let InFlight { progress, tag, .. } = *in_flight;
        let retry = PendingRetry { progress, due_ms };
        RecordedRetry { tag, sequence, retry }
    }

    /// Registers that the retries up to a number are committed.
    pub(super) fn commit_retries(&mut self, assignment_id: u32, sequence: u64) {
        if let Some(retries) = self.retries.get_mut(&assignment_id) {
            retries.committed = retries.committed.max(sequence);
        }
    }

    /// Returns the time for which the next attempt of a task still waits: until it is due, or until the attempts before it are
    /// committed, so that a crash of the worker repeats one attempt and not all of them.
    pub(super) fn wait_of_retry(&self, in_flight: &mut InFlight, now_ms: i64) -> Option<Duration> {
        match in_flight.retry.as_deref_mut()? {
            HeldRetry::Recorded { sequence, .. } => {
                let retries = self.retries.get(&in_flight.tag.assignment_id());
                let is_committed = retries.is_some_and(|retries| *sequence <= retries.committed);
                (!is_committed).then_some(COMMIT_CHECK)
            }
            HeldRetry::Resumed { due_ms } => {
                // Once only: the clock may be set back meanwhile.
                let left_ms = std::mem::take(due_ms).saturating_sub(now_ms);
                let left = u64::try_from(left_ms).ok().filter(|left| *left > 0).map(Duration::from_millis);
                left.map(|left| left.min(LONGEST_WAIT))
            }
        }
    }

    pub(super) fn close(&mut self, assignment_id: u32) {
        self.closed.insert(assignment_id);
    }

    pub(super) fn cancel(&mut self, assignment_id: u32, error: InterruptionReason) {
        self.cancelled.insert(assignment_id, error);
    }

    /// Returns whether the input's assignment starts no more tasks.
    pub(super) fn is_closed(&self, tag: DeliveryTag) -> bool {
        self.closed.contains(&tag.assignment_id())
    }

    /// Returns why the results of the input's assignment no longer count; `None` if they do. `is_open`: the worker is in its group.
    pub(super) fn late_reason(&self, tag: DeliveryTag, is_open: bool) -> Option<InterruptionReason> {
        let cancelled = self.cancelled.get(&tag.assignment_id()).copied();
        cancelled.or((!is_open).then_some(InterruptionReason::WorkerStopped))
    }
}
