//! Start of a waiting task before its time, on request.
//!
//! A task waits for its first start, or for its next attempt after a failure or a wait. The request names the start that it
//! brings forward, so that a late or repeated one never shortens a later wait. It ends the delay alone: pauses, circuits,
//! kill switches, ordering keys, slots and rate limits still hold the task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TaskRunner;
use crate::record::TaskRecord;
use crate::record::state::State;

/// Next start of a task, identified by what its run has used before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextStart {
    /// Run of the task.
    pub run: u32,
    /// Attempts that the run has used.
    pub attempts: u32,
    /// Waits of the run, which do not count as attempts.
    pub waits: u32,
}

impl NextStart {
    /// Returns the start that a task waits for, if a request can bring it forward; otherwise the reason why not.
    pub fn of(task: &TaskRecord) -> Result<Self, String> {
        if !task.definition.announced {
            return Err("it is not published yet".to_owned());
        }
        // The combined state follows from this only after the event that is applied.
        let is_cancelling = !task.own.is_terminal() && task.cancelled_by().is_some();
        let state = if is_cancelling { State::Cancelling } else { task.state };
        check_delay(TaskRunner::of_record(task), task.own, state)?;
        if task.deferral.waits_for_key {
            return Err("it is unique and waits for the end of the open task of its key, not for a time".to_owned());
        }
        let used = task.used();
        Ok(Self { run: task.run, attempts: used.attempts, waits: used.waits })
    }
}

/// Checks that a task waits for a time that a request can end. `own`: its own state; `state`: the one combined with those of
/// its descendants.
pub fn check_delay(runner: TaskRunner, own: State, state: State) -> Result<(), String> {
    match (runner, own) {
        (TaskRunner::External, _) => Err("it is run by an external system, which starts it".to_owned()),
        (TaskRunner::BulkAction, _) => Err("it is a bulk action, which waits for no time".to_owned()),
        (TaskRunner::Workers, _) if state == State::Cancelling => Err("it is being cancelled".to_owned()),
        (TaskRunner::Workers, State::Scheduled | State::Retrying) => Ok(()),
        (TaskRunner::Workers, own) => {
            Err(format!("it is {own}: only a task that waits for its start or its next attempt can be started now"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::StoredCancel;
    use crate::task::id::BULK_TYPE;

    fn task(own: State) -> TaskRecord {
        let mut task = TaskRecord { own, state: own, attempt: 2, ..TaskRecord::expected(3, 0) };
        (task.definition.announced, task.deferral.waits) = (true, 1);
        task
    }

    #[test]
    fn only_waiting_tasks_can_be_started() {
        for own in State::ALL {
            let expected = matches!(own, State::Scheduled | State::Retrying);
            assert_eq!(NextStart::of(&task(own)).is_ok(), expected, "{own}");
            assert_eq!(check_delay(TaskRunner::Workers, own, own).is_ok(), expected, "{own}");
            for runner in [TaskRunner::External, TaskRunner::BulkAction] {
                assert!(check_delay(runner, own, own).is_err(), "{runner:?} {own}");
            }
        }
        let waiting = task(State::Retrying);
        assert_eq!(NextStart::of(&waiting), Ok(NextStart { run: 3, attempts: 2, waits: 1 }));
    }

    #[test]
    fn task_that_is_cancelled_unknown_or_a_bulk_action_cannot_be_started() {
        let mut cancelled = task(State::Retrying);
        cancelled.requests.cancel = Some(Box::new(StoredCancel { asof: 9, ..StoredCancel::default() }));
        assert_eq!(NextStart::of(&cancelled), Err("it is being cancelled".to_owned()));
        cancelled.requests.asof = 9;
        assert!(NextStart::of(&cancelled).is_ok(), "the cancel does not apply to a later retry");
        let mut unknown = task(State::Retrying);
        unknown.definition.announced = false;
        assert!(NextStart::of(&unknown).is_err());
        let bulk = TaskRecord { task_type: Some(BULK_TYPE.into()), ..task(State::Scheduled) };
        assert!(NextStart::of(&bulk).is_err());
    }
}
