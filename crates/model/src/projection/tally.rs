//! Decides what counts in the statistics. Compares a record before and after each change.
//!
//! A task is open while its type is known and its own state is pending. After every event, the number of open tasks
//! equals the tasks opened minus those ended and those dropped (removed with their tree, or counted under another type from
//! then on).

use std::sync::Arc;

use super::records::Records;
use super::{LogPosition, Verdict};
use crate::error_fingerprint::{Fingerprint, group_text};
use crate::event::{ErrorInfo, Event, Kind};
use crate::record::TaskRecord;
use crate::record::state::State;
use crate::statistics::Observation;
use crate::statistics::errors::SlowAttempt;

/// Fields of a record before a change that determine what the change counts as.
pub(super) struct CountedState {
    task_type: Option<Arc<str>>,
    own: State,
    run: u32,
    duplicates: u32,
}

impl CountedState {
    pub(super) fn of(task: &TaskRecord) -> Self {
        Self { task_type: task.task_type.clone(), own: task.own, run: task.run, duplicates: task.history.duplicates }
    }
}

/// Compares a record with its state before a change. Updates the fields that only the statistics and the index of
/// failed tasks use. `event`: the event of the task itself, and whether it was applied.
pub(super) fn compare(
    before: CountedState,
    task: &mut TaskRecord,
    position: LogPosition,
    event: Option<(&Event, Verdict)>,
) -> Option<Observation> {
    let is_same_type = before.task_type == task.task_type;
    let has_moved = before.own != task.own || before.run != task.run;
    if has_moved {
        let has_failed = matches!(task.own, State::Failed | State::Expired);
        task.times.failed_ms = has_failed.then_some(position.log_time_ms);
    }
    let was_open = before.task_type.is_some() && !before.own.is_terminal();
    let mut observation = Observation::default();
    if was_open && !is_same_type {
        observation.dropped = before.task_type;
    }
    let mut counts = observation.dropped.is_some();
    if task.task_type.is_some() {
        let goes_on = was_open && is_same_type;
        let has_ended = task.own.is_terminal() && (has_moved || !is_same_type);
        let is_open = !task.own.is_terminal();
        observation.opened = (is_open || has_ended) && !goes_on;
        observation.ended = has_ended.then_some(task.own);
        observation.duplicates = task.history.duplicates.saturating_sub(before.duplicates);
        if has_ended && matches!(task.own, State::Failed | State::Expired) {
            observation.errors.push(error(task.outcome.error.as_deref(), Some(position.log_time_ms)));
        }
        count_attempt(&mut observation, task, event);
        counts |= observation.opened || has_ended || observation.duplicates > 0 || observation.retried;
        counts |= observation.wait_ms.is_some() || observation.attempt.is_some();
        if counts {
            observation.task_type.clone_from(&task.task_type);
        }
    }
    counts.then_some(observation)
}

fn error(error: Option<&ErrorInfo>, ended_ms: Option<i64>) -> (Fingerprint, Box<str>, Option<i64>) {
    (Fingerprint::of(error), group_text(error).into(), ended_ms)
}

/// Counts the time before the first start of a run, and the end of an attempt. External tasks have neither, and a wait
/// is no attempt.
fn count_attempt(observation: &mut Observation, task: &mut TaskRecord, event: Option<(&Event, Verdict)>) {
    if task.is_external() {
        return;
    }
    if let (Some(started_ms), Some(ready_ms)) = (task.times.started_at_ms, task.times.ready_ms) {
        observation.wait_ms = Some(duration(ready_ms, started_ms));
        task.times.ready_ms = None;
    }
    let Some((event, Verdict::Applied)) = event else { return };
    if event.payload.is_wait() {
        return;
    }
    observation.succeeded = event.kind() == Kind::Succeeded;
    if event.kind() == Kind::Retrying {
        observation.retried = true;
        observation.errors.insert(0, error(event.payload.error(), None));
    }
    observation.attempt = ended_attempt(event);
}

fn ended_attempt(event: &Event) -> Option<SlowAttempt> {
    let started_ms =
        event.payload.started_at_ms().filter(|_| !matches!(event.kind(), Kind::Interrupted | Kind::Unknown))?;
    Some(SlowAttempt {
        took_ms: duration(started_ms, event.at_ms),
        id: event.id.clone(),
        run: event.run,
        attempt: event.attempt,
        worker: event.worker.clone(),
        ended_at_ms: event.at_ms,
    })
}

/// Time between two timestamps, each by the clock of its writer; 0 if the second is earlier.
fn duration(from_ms: i64, to_ms: i64) -> u64 {
    u64::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(0)
}

impl Records {
    pub(super) fn count(&mut self, observation: Option<Observation>) {
        if let Some(observation) = observation {
            self.statistics.record(observation);
        }
    }
}

/// Counts a record that is removed with its tree.
pub(super) fn removal(task: &TaskRecord) -> Option<Observation> {
    let dropped = task.task_type.clone().filter(|_| !task.own.is_terminal());
    dropped.map(|dropped| Observation { dropped: Some(dropped), ..Observation::default() })
}
