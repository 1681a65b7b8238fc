//! `POST /v1/tasks/{id}/retry`: publishes a retry request; the projection decides its outcome.

use kafleet_documents::{RetryOutcome, RetryTask};
use kafleet_model::event::{Event, Payload};
use kafleet_model::outbox::EffectKind;
use kafleet_model::record::{HistoryEntry, TaskRecord};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{MAX_RUN, Position, TaskRunner};
use kafleet_runtime::now_ms;
use rustc_hash::FxHashMap;
use tokio::time::{Instant, timeout_at};

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::{AFTER_DEADLINE, TaskView};
use crate::read::status::status;
use crate::service::context::{RequestContext, check_reason};
use crate::state::Api;

/// Hint after a retry with an unknown outcome.
const REPEAT: &str = "it is safe to repeat the request while `run` of the task is unchanged: if it was written, the \
                      repeat is rejected with `not_finished` until the new run has ended";

pub async fn retry(
    RequestContext { api, by, .. }: RequestContext,
    id: TaskId,
    input: RetryTask,
) -> Result<RetryOutcome, ApiError> {
    check_reason(input.reason.as_deref())?;
    let task = api.reads.find(&id, None).await?;
    check(&task, input.only_failed)?;
    check_runs(&api, &task).await?;
    let only_failed = input.only_failed;
    let event = Event { by, ..event_of(&task, input) };
    let position = api.writes.publish_event(event).await.map_err(|error| error.hint_if_unknown(REPEAT))?;
    retry_outcome(&api, &task, only_failed, position).await
}

/// Rejects a retry of a task that cannot start a new run.
pub(crate) fn check(task: &TaskView, only_failed: bool) -> Result<(), ApiError> {
    if !only_failed {
        return check_again(&task.id, &task.record);
    }
    if !task.record.state.is_terminal() {
        return Err(not_finished(&task.id, &task.record));
    }
    if task.superseded {
        return Err(superseded(task));
    }
    if has_restartable(task) { Ok(()) } else { Err(nothing_failed(task)) }
}

/// Rejects another run of a task itself.
pub(crate) fn check_again(id: &TaskId, record: &TaskRecord) -> Result<(), ApiError> {
    if !record.state.is_terminal() {
        return Err(not_finished(id, record));
    }
    if !TaskRunner::of_record(record).can_be_retried() {
        return Err(external(id));
    }
    if !record.definition.announced {
        let reason = format!("`{id}` was never published: there is no record to run again");
        return Err(ApiError::new(Code::NoParams, reason));
    }
    Ok(())
}

fn not_finished(id: &TaskId, record: &TaskRecord) -> ApiError {
    let reason = format!("`{id}` is {}: only tasks that have ended can be retried", record.state);
    ApiError::new(Code::NotFinished, reason).hint("wait for it to end, or cancel it first")
}

fn superseded_request(task: &TaskView) -> ApiError {
    let TaskView { id, record, .. } = task;
    let reason = format!(
        "another request about `{id}` came first, and it had not ended when this one took effect; it is {} in run {} now",
        record.state, record.run
    );
    ApiError::new(Code::NotFinished, reason).hint("read the task, and repeat the request if it is still needed")
}

fn external(id: &TaskId) -> ApiError {
    let reason = format!("`{id}` is an external task and can only be restarted by the system that runs it");
    ApiError::new(Code::ExternalTask, reason).hint("retry the failed tasks below it with `only_failed`")
}

/// Whether a retry with `only_failed` would start any task.
fn has_restartable(task: &TaskView) -> bool {
    task.record.is_restartable() || task.record.restartable_below() > 0
}

fn nothing_failed(task: &TaskView) -> ApiError {
    let reason = format!("the tree of `{}` has no failed, expired or cancelled task that workers run", task.id);
    ApiError::new(Code::NothingToRetry, reason).hint(if task.record.is_external() {
        "external tasks are restarted by the system that runs them"
    } else {
        "a retry without `only_failed` starts the task itself again"
    })
}

/// Error for a superseded task: the failed tasks below it do not affect the state of the tree, and would not after a
/// retry either.
fn superseded(task: &TaskView) -> ApiError {
    let reason = format!(
        "`{}` or one of its ancestors belongs to an earlier run of its parent, so it no longer affects the tree",
        task.id
    );
    ApiError::new(Code::NothingToRetry, reason)
        .hint(format!("read the tree of `{}` to find the tasks of the current runs", task.id.root()))
}

fn event_of(task: &TaskView, input: RetryTask) -> Event {
    let payload = Payload::RetryRequested { only_failed: input.only_failed, new_run: None, record: None };
    let event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    Event { message: input.reason, ..event }
}

/// Returns the run that the `only_failed` retry at `position` starts; `None` once its tasks are restarted.
fn restarted_run(task: &TaskView, position: Position) -> Option<u32> {
    task.record.effects.iter().find_map(|effect| match effect.kind {
        EffectKind::RetryFailed { run } if effect.cause == position.offset => Some(run),
        _ => None,
    })
}

/// Returns the run started by the request at `offset`: the lowest run above `before` among later history entries. The
/// record's current run may be higher already, if another retry followed. `None` if that run has no events yet.
fn started_run(history: &[HistoryEntry], before: u32, offset: i64) -> Option<u32> {
    let later = history.iter().filter(|entry| entry.offset > offset && entry.run > before);
    later.map(|entry| entry.run).min()
}

/// Waits until the retry request at `position` has been decided, and returns the task with its new run.
async fn retry_outcome(
    api: &Api,
    task: &TaskView,
    only_failed: bool,
    position: Position,
) -> Result<RetryOutcome, ApiError> {
    let (updated, ignored) = api.reads.await_outcome(task, position, "the request").await?;
    if ignored {
        // The request was ignored: an earlier event in the log, from another request or a report, changed the task.
        return Err(match updated.record.state.is_terminal() {
            true if only_failed && !has_restartable(&updated) => nothing_failed(&updated),
            true => superseded_request(&updated),
            false => not_finished(&updated.id, &updated.record),
        });
    }
    if !only_failed {
        let started = started_run(&updated.record.history.entries, task.record.run, position.offset);
        return Ok(RetryOutcome { status: status(&updated), run: started.unwrap_or(updated.record.run) });
    }
    let run = match restarted_run(&updated, position) {
        Some(run) => run,
        // All tasks are restarted already, so their run is the highest of the tree, unless another retry followed.
        None => highest_run(api, &updated).await?,
    };
    let updated = wait_for_restarts(api, updated, position).await?;
    Ok(RetryOutcome { status: status(&updated), run })
}

/// Rejects a retry if a task of the tree has reached the highest run.
pub(crate) async fn check_runs(api: &Api, task: &TaskView) -> Result<u32, ApiError> {
    let highest = highest_run(api, task).await?;
    if highest < MAX_RUN {
        return Ok(highest);
    }
    let reason = format!("a task in the tree of `{}` is in run {highest}; the maximum is {MAX_RUN}", task.id.root());
    Err(ApiError::new(Code::TooManyRuns, reason).hint("submit it as a new task"))
}

/// Runs that the retries of one request start, by root. Tasks of a tree that are retried together share a run, because a
/// parent counts its children by their runs: with a run for each of 10,000 children its record would grow without end.
#[derive(Default)]
pub(crate) struct NewRuns(FxHashMap<Box<str>, u32>);

impl NewRuns {
    /// Maximum number of trees that are remembered. A tree that is forgotten gets another run.
    const MAX_TREES: usize = 10_000;

    /// Run that a retry of the task starts.
    pub(crate) async fn of(&mut self, api: &Api, task: &TaskView) -> Result<u32, ApiError> {
        match self.0.get(task.id.root()) {
            Some(run) => Ok(*run),
            None => Ok(self.above(&task.id, highest_run(api, task).await?)),
        }
    }

    /// Run that a retry of the task starts: one above the highest, unless the tree has one already.
    pub(crate) fn above(&mut self, id: &TaskId, highest: u32) -> u32 {
        if self.0.len() >= Self::MAX_TREES {
            self.0.clear();
        }
        *self.0.entry(id.root().into()).or_insert(highest.saturating_add(1))
    }
}

/// Highest run of any task in the tree.
async fn highest_run(api: &Api, task: &TaskView) -> Result<u32, ApiError> {
    if task.id.parent().is_none() {
        return Ok(task.record.tree.highest_run);
    }
    let root = TaskId::parse(task.id.root()).map_err(|error| ApiError::new(Code::BadId, error.to_string()))?;
    Ok(api.reads.read(&root).await?.map_or(task.record.run, |root| root.record.tree.highest_run))
}

/// Waits up to [`AFTER_DEADLINE`] until a retry with `only_failed` has restarted all its tasks. Until then the status
/// may still show the previous outcome.
async fn wait_for_restarts(api: &Api, task: TaskView, position: Position) -> Result<TaskView, ApiError> {
    let subscription = api.reads.notices.subscribe(task.partition, &task.id)?;
    let end = Instant::now() + AFTER_DEADLINE;
    let mut newest = task;
    loop {
        if let Ok(Some(task)) = api.reads.read(&newest.id).await {
            newest = task;
        }
        let restarting = newest.record.effects.iter().any(|effect| effect.cause == position.offset);
        if !restarting || api.reads.shutdown.is_draining() || timeout_at(end, subscription.changed()).await.is_err() {
            return Ok(newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::started_run;
    use kafleet_model::event::Kind;
    use kafleet_model::record::HistoryEntry;

    #[test]
    fn run_of_a_retry_is_the_one_that_follows_its_request() {
        let entry = |kind, offset, run| HistoryEntry::of_fold(kind, run, (0, offset), String::new());
        let history = [
            entry(Kind::Failed, 3, 1),
            entry(Kind::RetryRequested, 5, 1),
            entry(Kind::Failed, 8, 2),
            entry(Kind::RetryRequested, 9, 2),
            entry(Kind::Succeeded, 12, 3),
        ];
        assert_eq!(started_run(&history, 1, 5), Some(2));
        assert_eq!(started_run(&history, 2, 9), Some(3));
        assert_eq!(started_run(&history, 3, 12), None, "the run has no events yet");
    }
}
