//! `POST /v1/tasks`: creates a task, optionally waiting for its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::backends::detached;
use crate::documents::CreateTask;
use crate::api::http::problem::ApiError;
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::api::service::context::{BodyMemory, Context};
use crate::api::state::Api;
use crate::api::write::idempotency::SubmitOutcome;
use crate::api::write::validate::Draft;
use crate::model::task::Trace;
use crate::runtime::now_ms;

/// Task of a submission.
pub(crate) struct CreatedTask {
    pub task: TaskView,
    /// The task did not exist before.
    pub is_new: bool,
}

/// Creates a task. With `wait`, returns when it has ended, at the latest after that time.
pub(crate) async fn create(
    Context { api, .. }: Context,
    input: CreateTask,
    memory: BodyMemory,
    trace: Option<&Trace>,
    wait: Option<Duration>,
) -> Result<CreatedTask, ApiError> {
    let draft = draft_of(&api, input, trace).await?;
    // Subscribe before publishing: if there are too many watchers, nothing has been published yet.
    let partition = api.publisher.partition_of(&draft.id);
    let subscription = wait
        .map(|wait| api.reads.notices.subscribe(partition, &draft.id).map(|subscription| (wait, subscription)))
        .transpose()?;
    let (task, is_new) = match submit(&api, draft, memory).await? {
        SubmitOutcome::Created(task) => (task, true),
        SubmitOutcome::Existing(task) => (task, false),
    };
    let Some((wait, subscription)) = subscription else { return Ok(CreatedTask { task, is_new }) };
    Ok(CreatedTask { task: wait_finished(&api, task, wait, &subscription).await, is_new })
}

/// Task of a request, which belongs to the present run of its parent.
async fn draft_of(api: &Api, input: CreateTask, trace: Option<&Trace>) -> Result<Draft, ApiError> {
    let writes = &api.writes;
    let mut draft = writes.draft(input, now_ms(), trace)?;
    writes.check_types(&draft).await?;
    if let Some(parent) = draft.id.parent_id() {
        let parent = writes.find_parent(&parent).await?;
        draft.new.asof = parent.asof();
        draft.new.run = parent.record.run;
    }
    Ok(draft)
}

/// Submits the task. The memory of the request's body is free afterwards, before any wait.
async fn submit(api: &Arc<Api>, draft: Draft, memory: BodyMemory) -> Result<SubmitOutcome, ApiError> {
    let api = api.clone();
    let submitted = detached(async move {
        let submitted = api.writes.submit(draft).await;
        drop(memory);
        submitted
    });
    submitted.await
}

/// Waits for the end of a task. Errors end the wait early, because the task is already published; returns the
/// latest known state.
async fn wait_finished(api: &Arc<Api>, known: TaskView, wait: Duration, subscription: &Subscription) -> TaskView {
    let end = Instant::now() + wait;
    let mut known = known;
    let newest = |known: &TaskView, seen: &TaskView| seen.checkpoint.offset >= known.checkpoint.offset;
    while !api.reads.shutdown.is_draining() {
        if let Ok(Some(found)) = api.reads.read(&known.id).await
            && newest(&known, &found)
        {
            known = found;
        }
        if known.record.state.is_terminal() {
            break;
        }
        tokio::select! {
            biased;
            () = api.reads.shutdown.drain.cancelled() => break,
            () = tokio::time::sleep_until(end) => break,
            () = subscription.changed() => {}
        }
    }
    known
}
