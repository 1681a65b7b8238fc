//! Runner of a task, which decides about the actions that are possible on it.

use super::Policy;
use super::id::BULK_TYPE;
use crate::record::TaskRecord;

/// Runner of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRunner {
    /// Workers, from the record in the topic of its type.
    Workers,
    /// Another system, which reports the states.
    External,
    /// The API, which carries out a bulk action.
    BulkAction,
}

impl TaskRunner {
    /// Returns the runner of a task of this type and policy.
    pub fn of(task_type: Option<&str>, policy: Option<&Policy>) -> Self {
        match policy.is_some_and(|policy| policy.rules.external) {
            _ if task_type == Some(BULK_TYPE) => Self::BulkAction,
            true => Self::External,
            false => Self::Workers,
        }
    }

    /// Returns the runner of the task of a record.
    pub fn of_record(record: &TaskRecord) -> Self {
        Self::of(record.task_type.as_deref(), record.definition.policy.as_deref())
    }

    /// Whether a retry starts a new run of the task itself: there must be a record that workers read.
    pub fn can_be_retried(self) -> bool {
        self == Self::Workers
    }

    /// Whether fields of the task can be changed. The fields of a bulk action are its specification.
    pub fn can_be_changed(self) -> bool {
        self != Self::BulkAction
    }

    /// Whether another task can be submitted from its type and params.
    pub fn can_be_copied(self) -> bool {
        self == Self::Workers
    }

    /// Whether clients report the states of the task.
    pub fn takes_reports(self) -> bool {
        self == Self::External
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_follows_from_type_and_policy() {
        let plain = Policy::default();
        let mut external = Policy::default();
        external.rules.external = true;
        let runner = |task_type, policy| TaskRunner::of(Some(task_type), policy);
        assert_eq!(runner("echo", Some(&plain)), TaskRunner::Workers);
        assert_eq!(runner("echo", None), TaskRunner::Workers);
        assert_eq!(runner("approval", Some(&external)), TaskRunner::External);
        assert_eq!(runner(BULK_TYPE, Some(&external)), TaskRunner::BulkAction);
        assert_eq!(runner(BULK_TYPE, None), TaskRunner::BulkAction, "its policy is not known yet");
    }
}
