//! `POST /v1/tasks/{id}/start`: starts a task now that waits for its start or for its next attempt.
//!
//! The task waits at the tracker, which has its record, or in the memory of a worker. An event moves its time in the
//! projection, and thereby at the tracker. A record on the control topic ends the wait in a worker: also in one that takes
//! the task over meanwhile. Both name the start that they bring forward, so that they have no effect on a later wait.

use kafleet_documents::{StartOutcome, StartTask};
use kafleet_fleet::control::{self, CONTROL_VERSION, ControlCommand, ControlKey, ControlRecord, StartNow};
use kafleet_model::event::{Event, Payload};
use kafleet_model::record::state::State;
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::patch::Patch;
use kafleet_model::task::start::NextStart;
use kafleet_runtime::now_ms;

use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::service::context::{RequestContext, check_reason};
use crate::service::why::holds;
use crate::state::Api;

/// Hint after a start whose record for the workers may be missing.
const REPEAT: &str = "it is safe to repeat the request: it has no effect on a later wait of the task";

pub async fn start(context: RequestContext, id: TaskId, input: StartTask) -> Result<StartOutcome, ApiError> {
    let api = context.api.clone();
    check_reason(input.reason.as_deref())?;
    let task = api.reads.find(&id, None).await?;
    let request = StartRequest::of(&task, now_ms()).map_err(|reason| refused(&task, &reason))?;
    let request =
        StartRequest { event: Event { by: context.by.clone(), message: input.reason, ..request.event }, ..request };
    let writing = api.clone();
    let position = detached(async move { request.write(&writing).await }).await?;
    let (updated, ignored) = api.reads.await_outcome(&task, position, "the request").await?;
    if ignored {
        refuse_ignored(&updated)?;
    }
    let waits = matches!(updated.record.own, State::Scheduled | State::Retrying | State::Queued);
    // The task has been started: what may hold it is beside the point if it cannot be read.
    let held_by = if waits { holds(&api, &updated).await.unwrap_or_default() } else { Vec::new() };
    Ok(StartOutcome { status: context.status(&updated), held_by })
}

fn refused(task: &TaskView, reason: &str) -> ApiError {
    let code = if task.record.own.is_terminal() { Code::AlreadyFinished } else { Code::NotChangeable };
    ApiError::new(code, format!("`{}` cannot be started now: {reason}", task.id))
        .hint(format!("`kafleet why {}` explains its state", task.id))
}

/// Rejects a request that had no effect, unless the task has started by itself meanwhile.
fn refuse_ignored(task: &TaskView) -> Result<(), ApiError> {
    if task.record.state == State::Cancelling || task.record.own == State::Cancelled {
        return Err(refused(task, "it has been cancelled meanwhile"));
    }
    if NextStart::of(&task.record).is_ok() {
        let reason = "it has started by itself meanwhile, and waits for a later start";
        return Err(refused(task, reason).hint("repeat the request if this start is meant, too"));
    }
    Ok(())
}

/// Request to start a waiting task now: what is written for it.
pub(crate) struct StartRequest {
    pub event: Event,
    /// Record for the worker that may hold the task; `None` if the tracker has its record.
    pub command: Option<ControlCommand>,
}

impl StartRequest {
    /// Builds the request, or returns the reason why the task does not wait for a time that can be ended.
    pub(crate) fn of(task: &TaskView, now_ms: i64) -> Result<Self, String> {
        let next_start = NextStart::of(&task.record)?;
        let payload = Payload::Patched { patch: Some(Box::new(Patch::start(next_start, now_ms))) };
        let event = Event::new(payload, task.id.clone(), task.record.run, now_ms);
        let command = (!task.record.deferral.is_deferred()).then(|| {
            let start = StartNow { v: CONTROL_VERSION, at_ms: now_ms, next_start };
            (ControlKey::Start(task.id.to_string()), ControlRecord::Start(start))
        });
        Ok(Self { event, command })
    }

    /// Writes the event, and then the record for the workers, which therefore start no task without an entry in its history.
    async fn write(self, api: &Api) -> Result<Position, ApiError> {
        let position = api.publisher.publish_event(&self.event).await.map_err(ApiError::from_write)?;
        if let Some((key, record)) = &self.command {
            let written = control::put_record(api.publisher.producer(), &api.topology.names, key, record).await;
            written.map_err(|error| ApiError::from_write(error).hint(REPEAT))?;
        }
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use kafleet_model::record::TaskRecord;
    use kafleet_model::trace::Sampler;
    use kafleet_store::Checkpoint;

    use super::*;
    use crate::read::mask::Masks;

    fn task(own: State, attempt: u32, record_bytes: u32) -> TaskView {
        let mut record = TaskRecord { own, state: own, attempt, ..TaskRecord::expected(2, 0) };
        (record.definition.announced, record.deferral.record_bytes) = (true, record_bytes);
        let id = TaskId::parse("a").unwrap();
        let (checkpoint, sampler) = (Checkpoint::default(), Sampler::NEVER);
        TaskView { id, partition: 0, checkpoint, record, superseded: false, sampler, masks: Masks::default() }
    }

    #[test]
    fn workers_get_a_record_unless_the_tracker_has_the_task() {
        for (record_bytes, has_command) in [(0, true), (9, false)] {
            let request = StartRequest::of(&task(State::Retrying, 3, record_bytes), 50).unwrap();
            assert_eq!(request.command.is_some(), has_command);
            let Payload::Patched { patch: Some(patch) } = request.event.payload else { panic!("no patch") };
            let next = patch.next_start.unwrap();
            assert_eq!((patch.not_before_ms, next.run, next.attempts, next.waits), (Some(50), 2, 3, 0));
        }
    }

    #[test]
    fn ignored_request_is_an_error_only_if_the_task_does_not_start() {
        for (after, accepted) in [
            (task(State::Running, 4, 0), true),
            (task(State::Queued, 3, 0), true),
            (task(State::Succeeded, 4, 0), true),
            (task(State::Retrying, 4, 0), false),
            (task(State::Cancelled, 3, 0), false),
        ] {
            assert_eq!(refuse_ignored(&after).is_ok(), accepted, "{:?}", after.record.own);
        }
    }
}
