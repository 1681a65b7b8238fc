//! Specification of a bulk action, and the decision about one task. Pure.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use kafleet_documents::{BulkAction, BulkProgress, BulkRefusal, DeadLetterFilter};
use kafleet_fleet::control::ControlCommand;
use kafleet_model::event::{CancelScope, Event, Kind, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::outbox::EffectKind;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::task::TaskRunner;
use kafleet_model::task::id::TaskId;
use serde::{Deserialize, Serialize};

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::service::retry;
use crate::service::start::StartRequest;

/// Maximum number of changed tasks that a progress lists: a search for all of their ids is possible.
const MAX_CHANGED: usize = 100;
/// Maximum size of these ids, half of the longest search.
const MAX_CHANGED_BYTES: usize = 4 << 10;
/// Maximum number of refused tasks that a progress lists.
const MAX_REFUSALS: usize = 20;

/// Specification of a bulk action, stored in the `options` of its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BulkSpec {
    pub action: BulkAction,
    /// Search for the tasks; empty for dead letters.
    pub q: String,
    /// Dead letters, with absolute times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letters: Option<DeadLetterFilter>,
    /// Ids of dead letters, instead of a filter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Merge patch of the params of redriven tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<RawJson>,
    /// Position after the dead letters that existed when the action was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Maximum number of tasks to change.
    pub limit: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Error of the first matching task, if the search names errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Offsets up to which the events partitions were projected when the action was requested.
    pub checkpoints: BTreeMap<u32, i64>,
}

/// Request about one task: its event, and its record for the workers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BulkChange {
    pub event: Event,
    pub command: Option<ControlCommand>,
}

/// Decision about a matching task.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    Publish(Box<BulkChange>),
    /// The action does not apply to the task in its current state, which is described.
    Skip(&'static str),
    /// The action can never be applied to this task.
    Refuse(ApiError),
}

impl BulkSpec {
    /// Specification of an action that selects nothing yet.
    pub(super) fn new(action: BulkAction) -> Self {
        Self {
            action,
            q: String::new(),
            letters: None,
            ids: Vec::new(),
            patch: None,
            start: None,
            limit: 0,
            by: None,
            reason: None,
            error: None,
            checkpoints: BTreeMap::new(),
        }
    }

    /// Reads the specification from a bulk action's task.
    pub(crate) fn of(record: &TaskRecord) -> Option<Self> {
        let options = record.definition.policy.as_ref()?.rules.options.as_ref()?;
        serde_json::from_str(options.text()).ok()
    }

    /// Tasks or dead letters, in the form of a search.
    pub(super) fn selection(&self) -> String {
        match &self.letters {
            Some(letters) => letters.to_string(),
            None if self.q.is_empty() => self.ids.join(" "),
            None => self.q.clone(),
        }
    }

    /// `new_run`: run that the retries of this action start in the task's tree; `None`: one above the highest.
    pub(super) fn decide(&self, task: &TaskView, new_run: Option<u32>, now_ms: i64) -> Decision {
        let record = &task.record;
        if let Some(state) = self.unaffected(task) {
            return Decision::Skip(state);
        }
        let payload = match self.action {
            BulkAction::Cancel => Payload::CancelRequested(CancelScope::default()),
            BulkAction::Retry => match retry::check(task, false) {
                Err(error) => return Decision::Refuse(error),
                Ok(()) if record.state != State::Succeeded && !record.is_restartable() => {
                    // Retrying that descendant is enough.
                    return Decision::Skip("failed only because of a task below");
                }
                Ok(()) => Payload::RetryRequested { only_failed: false, new_run, record: None },
            },
            BulkAction::RetryFailed if retry::check(task, true).is_err() => {
                return Decision::Skip("without a failed task that workers run");
            }
            BulkAction::RetryFailed => Payload::RetryRequested { only_failed: true, new_run: None, record: None },
            BulkAction::StartNow => {
                let Ok(StartRequest { event, command }) = StartRequest::of(task, now_ms) else {
                    return Decision::Skip("not waiting for its start or its next attempt");
                };
                if record.times.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
                    return Decision::Skip("due already");
                }
                return self.change(event, command);
            }
            BulkAction::Redrive => return Decision::Skip("no dead letter"),
        };
        self.change(Event::new(payload, task.id.clone(), record.run, now_ms), None)
    }

    /// Names the operator of the action in the request about a task.
    fn change(&self, event: Event, command: Option<ControlCommand>) -> Decision {
        let event = Event { by: self.by.clone(), message: self.reason.clone(), ..event };
        Decision::Publish(Box::new(BulkChange { event, command }))
    }

    /// Describes a task whose state excludes the action.
    fn unaffected(&self, task: &TaskView) -> Option<&'static str> {
        let (record, is_open) = (&task.record, !task.record.state.is_terminal());
        match self.action {
            _ if task.superseded => Some("of an earlier run of the parent"),
            _ if TaskRunner::of_record(record) == TaskRunner::BulkAction => Some("a bulk action itself"),
            _ if self.is_restarted(task) => Some("started again since the request"),
            BulkAction::Cancel if !is_open => Some("already ended"),
            BulkAction::Cancel if record.covering_cancel(true).is_some() => Some("already cancelled"),
            BulkAction::Retry | BulkAction::RetryFailed if is_open => Some("not ended yet"),
            _ => None,
        }
    }

    /// Returns whether the task has been started again since the request, perhaps by this bulk action itself.
    fn is_restarted(&self, task: &TaskView) -> bool {
        let Some(checkpoint) = self.checkpoints.get(&task.partition) else { return false };
        let record = &task.record;
        let is_retry = |kind: Kind| kind == Kind::RetryRequested;
        let is_restarting = |effect: &EffectKind| matches!(effect, EffectKind::RetryFailed { .. });
        record.requests.asof >= *checkpoint
            || record
                .history
                .entries
                .iter()
                .any(|entry| entry.offset >= *checkpoint && is_retry(entry.kind) && !entry.ignored)
            || record.effects.iter().any(|effect| is_restarting(&effect.kind))
    }
}

/// Progress of a bulk action's task.
pub(super) fn progress_of(record: &TaskRecord) -> BulkProgress {
    let progress = record.outcome.progress.as_ref();
    progress.and_then(|progress| serde_json::from_str(progress.text()).ok()).unwrap_or_default()
}

/// Adds changed tasks to those that a progress lists.
pub(super) fn list_changed<'a>(progress: &mut BulkProgress, changed: impl Iterator<Item = &'a TaskId>) {
    let mut bytes: usize = progress.changed.iter().map(|id| id.len() + 1).sum();
    for id in changed {
        bytes += id.as_str().len() + 1;
        if progress.changed.len() >= MAX_CHANGED || bytes > MAX_CHANGED_BYTES {
            return;
        }
        progress.changed.push(id.to_string());
    }
}

/// Counts a task or a dead letter that the action cannot change.
pub(super) fn count_refusal(progress: &mut BulkProgress, id: &dyn Display, error: ApiError) {
    progress.refused += 1;
    if progress.refusals.len() < MAX_REFUSALS {
        progress.refusals.push(BulkRefusal { id: id.to_string(), cause: error.document().detail });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::record::HistoryEntry;
    use kafleet_model::task::id::BULK_TYPE;
    use kafleet_model::trace::Sampler;
    use kafleet_store::Checkpoint;

    use crate::read::mask::Masks;

    fn spec(action: BulkAction) -> BulkSpec {
        let checkpoints = BTreeMap::from([(0, 100)]);
        BulkSpec { limit: 1, by: Some("ada".into()), checkpoints, ..BulkSpec::new(action) }
    }

    fn task(own_state: State, state: State) -> TaskView {
        let mut record = TaskRecord::expected(3, 0);
        (record.own, record.state, record.definition.announced) = (own_state, state, true);
        let id = TaskId::parse("a").unwrap();
        TaskView {
            id,
            partition: 0,
            checkpoint: Checkpoint::default(),
            record,
            superseded: false,
            sampler: Sampler::NEVER,
            masks: Masks::default(),
        }
    }

    fn is_published(action: BulkAction, task: &TaskView) -> bool {
        matches!(spec(action).decide(task, None, 1), Decision::Publish(_))
    }

    #[test]
    fn request_names_the_run_and_the_operator() {
        let Decision::Publish(change) = spec(BulkAction::Retry).decide(&task(State::Failed, State::Failed), None, 1)
        else {
            panic!("the task has failed");
        };
        let event = &change.event;
        assert_eq!((event.run, event.by.as_deref(), event.kind()), (3, Some("ada"), Kind::RetryRequested));
    }

    #[test]
    fn action_skips_tasks_to_which_it_does_not_apply() {
        for (action, own_state, state, expected) in [
            (BulkAction::Retry, State::Failed, State::Failed, true),
            (BulkAction::Retry, State::Succeeded, State::Succeeded, true),
            (BulkAction::Retry, State::Succeeded, State::Failed, false),
            (BulkAction::Retry, State::Running, State::Running, false),
            (BulkAction::Cancel, State::Running, State::Running, true),
            (BulkAction::Cancel, State::Succeeded, State::WaitingForChildren, true),
            (BulkAction::Cancel, State::Failed, State::Failed, false),
            (BulkAction::RetryFailed, State::Failed, State::Failed, true),
            (BulkAction::RetryFailed, State::Succeeded, State::Succeeded, false),
            (BulkAction::StartNow, State::Running, State::Running, false),
            (BulkAction::StartNow, State::Queued, State::Queued, false),
            (BulkAction::StartNow, State::Retrying, State::Retrying, true),
            (BulkAction::StartNow, State::Scheduled, State::Scheduled, true),
            (BulkAction::StartNow, State::Retrying, State::Cancelling, false),
            (BulkAction::StartNow, State::Failed, State::Failed, false),
        ] {
            assert_eq!(is_published(action, &task(own_state, state)), expected, "{action:?} {own_state} {state}");
        }
    }

    #[test]
    fn progress_lists_a_bounded_number_of_changed_tasks() {
        let ids = |ids: std::ops::Range<usize>, of: &dyn Fn(usize) -> String| -> Vec<TaskId> {
            ids.map(|n| TaskId::parse(&of(n)).unwrap()).collect()
        };
        let mut progress = BulkProgress::default();
        for n in 0..3 {
            list_changed(&mut progress, ids(0..60, &|m| format!("t{n}-{m}")).iter());
        }
        assert_eq!((progress.changed.len(), progress.changed[60].as_str()), (100, "t1-0"));
        let mut progress = BulkProgress::default();
        list_changed(&mut progress, ids(0..60, &|n| format!("{n:0>120}")).iter());
        assert_eq!(progress.changed.len(), 33);
    }

    #[test]
    fn task_restarted_since_the_request_is_skipped() {
        let failed = || task(State::Failed, State::Failed);
        let mut again = failed();
        again.record.requests.asof = 100;
        assert!(!is_published(BulkAction::Retry, &again));
        again.record.requests.asof = 99;
        assert!(is_published(BulkAction::Retry, &again), "it was retried before the request");
        let mut again = failed();
        again.record.history.push(HistoryEntry::of_fold(Kind::RetryRequested, 3, (0, 100), String::new()));
        assert!(!is_published(BulkAction::RetryFailed, &again));
        let superseded = TaskView { superseded: true, ..failed() };
        assert!(!is_published(BulkAction::Retry, &superseded));
        let mut bulk = task(State::Running, State::Running);
        bulk.record.task_type = Some(BULK_TYPE.into());
        assert!(!is_published(BulkAction::Cancel, &bulk), "a bulk action changes no other bulk action");
    }

    #[test]
    fn task_without_a_record_is_refused() {
        let mut unknown = task(State::Failed, State::Failed);
        unknown.record.definition.announced = false;
        let Decision::Refuse(error) = spec(BulkAction::Retry).decide(&unknown, None, 1) else {
            panic!("there is no record to run");
        };
        let mut progress = BulkProgress::default();
        for _ in 0..MAX_REFUSALS + 1 {
            count_refusal(&mut progress, &unknown.id, error.clone());
        }
        assert_eq!((progress.refused, progress.refusals.len()), (MAX_REFUSALS as u64 + 1, MAX_REFUSALS));
        assert!(progress.refusals[0].cause.contains("`a` was never published"), "{:?}", progress.refusals[0]);
    }
}
