//! Retries that this worker keeps. The commits of the partition carry what their tasks have used to its next owner.

use std::time::Duration;

use super::LONGEST_WAIT;
use super::assignments::AssignmentStates;
use super::tasks::Tasks;
use crate::config::Order;
use crate::model::offsets::PendingRetry;
use crate::runtime::now_ms;
use crate::worker::completions::RecordedRetry;
use crate::worker::decode::{HeldRetry, InFlight};

/// Number of tasks of one partition with a recorded retry, from which on further ones wait at the tracker: as many as the
/// metadata of a commit has room for. Tasks of ordered types stay, because they hold their key.
const MAX_KEPT: usize = 256;
/// Pause before the next check whether a retry is committed.
const COMMIT_CHECK: Duration = Duration::from_millis(5);

impl Tasks {
    /// Returns whether the commits of the partition have room for one more task, or it has to wait here anyway.
    pub(super) fn has_room(&self, in_flight: &InFlight) -> bool {
        let is_known = matches!(in_flight.retry.as_deref(), Some(HeldRetry::Recorded { .. }));
        self.policy.order != Order::None || is_known || self.assignments.kept_retries(in_flight.tag) < MAX_KEPT
    }

    /// Records what a task has used for the next commits of its partition.
    pub(super) fn record(&mut self, in_flight: &mut InFlight, due_ms: Option<i64>) {
        let (sequence, counted) = self.assignments.add_retry(in_flight.tag);
        in_flight.retry = Some(Box::new(HeldRetry::Recorded { sequence, _counted: counted }));
        let InFlight { attempts, waits, backoff_from, tag, .. } = *in_flight;
        let retry = PendingRetry { attempts, waits, backoff_from, due_ms: due_ms.unwrap_or_else(now_ms) };
        self.completions.record(RecordedRetry { tag, sequence, retry });
    }
}

/// Returns the time for which the next attempt of a task still waits: until it is due, or until the attempts before it are
/// committed, so that a crash of the worker repeats one attempt and not all of them.
pub(super) fn time_left(assignments: &AssignmentStates, in_flight: &mut InFlight, now_ms: i64) -> Option<Duration> {
    match in_flight.retry.as_deref_mut()? {
        HeldRetry::Recorded { sequence, .. } => {
            (!assignments.is_committed(in_flight.tag, *sequence)).then_some(COMMIT_CHECK)
        }
        HeldRetry::Resumed { due_ms } => {
            // Once only: the clock may be set back meanwhile.
            let left_ms = std::mem::take(due_ms).saturating_sub(now_ms);
            let left = u64::try_from(left_ms).ok().filter(|left| *left > 0).map(Duration::from_millis);
            left.map(|left| left.min(LONGEST_WAIT))
        }
    }
}
