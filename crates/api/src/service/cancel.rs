//! `POST /v1/tasks/{id}/cancel`: publishes a cancel event, then a control record for the workers.

use std::time::Duration;

use kafleet_broker::BrokerError;
use kafleet_documents::{CancelOutcome, CancelTask};
use kafleet_fleet::control::{self, CONTROL_VERSION, Cancel, ControlKey, ControlRecord};
use kafleet_model::event::{CancelScope, Event, Payload};
use kafleet_model::outbox::{self, CANCEL_GRACE_MS, CancelRequest, EffectKind};
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::service::context::{RequestContext, check_reason};
use crate::state::Api;

/// Time within which the control record must be written. Half the grace period during which the tracker keeps the
/// control record of a cancel.
const CONTROL_WRITE_DEADLINE: Duration = Duration::from_millis(CANCEL_GRACE_MS as u64 / 2);

pub async fn cancel(context: RequestContext, id: TaskId, input: CancelTask) -> Result<CancelOutcome, ApiError> {
    let RequestContext { api, by, .. } = context;
    check_reason(input.reason.as_deref())?;
    let task = api.reads.find(&id, None).await?;
    if has_ended(&task, input.subtree) {
        return Err(already_finished(&task));
    }
    if let Some(earlier) = task.record.covering_cancel(input.subtree) {
        // The tracker also writes the control record, in case the API instance that handled the earlier request died.
        let position = Position { partition: i32::try_from(task.partition).unwrap_or_default(), offset: earlier.asof };
        return Ok(outcome(&task, position, Some(true)));
    }
    let event = Event { by, ..event_of(&task, &input) };
    let cancel = async move {
        let subtree = input.subtree;
        let position = publish_cancel(&api, &task, input, &event).await?;
        cancel_outcome(&api, &task, subtree, position).await
    };
    detached(cancel).await
}

/// Returns whether there is nothing to cancel. `subtree`: the children are cancelled too.
fn has_ended(task: &TaskView, subtree: bool) -> bool {
    task.record.state.is_terminal() || (!subtree && task.record.own.is_terminal())
}

fn already_finished(task: &TaskView) -> ApiError {
    let reason = format!("`{}` has already ended: it is {}", task.id, task.record.state);
    ApiError::new(Code::AlreadyFinished, reason).existing(&task.id)
}

/// Publishes the cancel. The event alone is sufficient; the control record only makes workers react sooner.
async fn publish_cancel(api: &Api, task: &TaskView, input: CancelTask, event: &Event) -> Result<Position, ApiError> {
    let started = Instant::now();
    let position = api.publisher.publish_event(event).await.map_err(ApiError::from_write)?;
    if started.elapsed() >= CONTROL_WRITE_DEADLINE {
        return Ok(position);
    }
    let request = CancelRequest { with: None, by: event.by.clone(), reason: input.reason.map(Into::into) };
    if let Err(error) = write_cancel(api, task, position.offset, input.subtree, &request).await {
        tracing::warn!(task = %task.id, %error, "cannot write the cancel for the workers; the tracker will write \
                                                 it");
    }
    if started.elapsed() >= CONTROL_WRITE_DEADLINE
        && let Err(error) = repair_late_cancel(api, task, position).await
    {
        tracing::warn!(task = %task.id, ?error, "a late cancel record may never be cleaned up");
    }
    Ok(position)
}

/// Reads the outcome of the cancel. An earlier cancel that was not visible when the request arrived may already
/// cover it.
async fn cancel_outcome(
    api: &Api,
    task: &TaskView,
    subtree: bool,
    position: Position,
) -> Result<CancelOutcome, ApiError> {
    // The cancel has been written, so a lagging projection is not an error.
    let Ok((updated, ignored)) = api.reads.await_outcome(task, position, "the request").await else {
        return Ok(outcome(task, position, None));
    };
    match updated.record.covering_cancel(subtree) {
        Some(earlier) if ignored => Ok(outcome(&updated, Position { offset: earlier.asof, ..position }, Some(true))),
        None if ignored && has_ended(&updated, subtree) => Err(already_finished(&updated)),
        None if ignored => {
            let reason = format!("`{}` has too many requests that are not carried out yet", updated.id);
            Err(ApiError::new(Code::Overloaded, reason).hint("send the cancel again later"))
        }
        _ => Ok(outcome(&updated, position, Some(false))),
    }
}

async fn write_cancel(
    api: &Api,
    task: &TaskView,
    asof: i64,
    subtree: bool,
    request: &CancelRequest,
) -> Result<(), BrokerError> {
    let (reason, by) = (request.reason.as_deref().map(str::to_owned), request.by.as_deref().map(str::to_owned));
    let record = ControlRecord::Cancel(Cancel { v: CONTROL_VERSION, asof, at_ms: now_ms(), subtree, reason, by });
    let key = ControlKey::Cancel(task.id.to_string());
    control::put_record(api.publisher.producer(), &api.topology.names, &key, &record).await.map(drop)
}

/// Rewrites or deletes a control record that was written late: it may have replaced a newer one of the tracker,
/// which would never be cleaned up.
async fn repair_late_cancel(api: &Api, task: &TaskView, position: Position) -> Result<(), ApiError> {
    let Some(current) = api.reads.read(&task.id).await? else { return Ok(()) };
    // Not projected yet: the tracker will write its own control record later.
    if current.checkpoint.offset <= position.offset {
        return Ok(());
    }
    match current.record.requests.cancel.as_deref().filter(|cancel| cancel.named) {
        Some(cancel) if cancel.asof == position.offset => {}
        Some(outbox::StoredCancel { asof, subtree, request, .. }) => {
            write_cancel(api, task, *asof, *subtree, request).await?;
        }
        // Workers may still receive tasks of the tree; the tracker deletes the control record once they have
        // passed them.
        None if current
            .record
            .effects
            .iter()
            .any(|effect| matches!(effect.kind, EffectKind::WithdrawCancel { .. })) => {}
        None => {
            let key = ControlKey::Cancel(task.id.to_string());
            control::delete(api.publisher.producer(), &api.topology.names, &key).await?;
        }
    }
    Ok(())
}

fn outcome(task: &TaskView, position: Position, already_requested: Option<bool>) -> CancelOutcome {
    CancelOutcome { id: task.id.to_string(), position: position.to_string(), already_requested }
}

fn event_of(task: &TaskView, input: &CancelTask) -> Event {
    let scope = CancelScope { subtree: input.subtree, ..CancelScope::default() };
    let event = Event::new(Payload::CancelRequested(scope), task.id.clone(), task.record.run, now_ms());
    Event { message: input.reason.clone(), ..event }
}
