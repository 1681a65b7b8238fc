//! `POST /v1/tasks`: creates a task, optionally waiting for its end.

use std::sync::Arc;
use std::time::Duration;

use kafleet_documents::CreateTask;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use crate::backends::detached;
use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::notices::Subscription;
use crate::service::context::{BodyMemory, RequestContext};
use crate::state::Api;
use crate::write::idempotency::SubmittedTask;
use crate::write::validate::check_no_group;

/// Creates a task. With `wait`, returns when it has ended, at the latest after that time.
pub async fn create(
    RequestContext { api, .. }: RequestContext,
    input: CreateTask,
    memory: BodyMemory,
    trace: Option<&Trace>,
    wait: Option<Duration>,
) -> Result<SubmittedTask, ApiError> {
    let task = task_of(&api, input, trace).await?;
    // Subscribe before publishing: if there are too many watchers, nothing has been published yet.
    let partition = api.topology.partition_of(&task.id);
    let subscribe = |id: &TaskId| api.reads.notices.subscribe(partition, id);
    let id = task.id.clone();
    let subscription = wait.map(|wait| subscribe(&id).map(|subscription| (wait, subscription))).transpose()?;
    let mut submitted = submit(&api, task, memory).await?;
    if let Some((wait, mut subscription)) = subscription {
        // Another task of the same events partition may stand for a unique one, which is published already.
        if submitted.task.id != id
            && let Ok(of_standing) = subscribe(&submitted.task.id)
        {
            subscription = of_standing;
        }
        submitted.task = wait_finished(&api, submitted.task, wait, &subscription).await;
    }
    Ok(submitted)
}

/// Task of a request, which belongs to the present run of its parent.
pub(crate) async fn task_of(api: &Api, input: CreateTask, trace: Option<&Trace>) -> Result<TaskSpec, ApiError> {
    let writes = &api.writes;
    let mut task = writes.checks.validate(input, now_ms(), trace)?;
    check_no_group(&task)?;
    writes.checks.check_types(&task).await?;
    if let Some(parent) = task.id.parent_id() {
        let parent = writes.find_parent(&parent).await?;
        (task.asof, task.run) = (parent.asof(), parent.record.run);
    }
    Ok(task)
}

/// Submits the task. The memory of the request's body is free afterwards, before any wait.
async fn submit(api: &Arc<Api>, task: TaskSpec, memory: BodyMemory) -> Result<SubmittedTask, ApiError> {
    let api = api.clone();
    let submitted = detached(async move {
        let submitted = api.writes.submit(task).await;
        drop(memory);
        submitted
    });
    submitted.await
}

/// Waits for the end of a task. Errors end the wait early, because the task is already published; returns the
/// latest known state.
async fn wait_finished(api: &Arc<Api>, task: TaskView, wait: Duration, subscription: &Subscription) -> TaskView {
    let end = Instant::now() + wait;
    let mut task = task;
    let newest = |task: &TaskView, seen: &TaskView| seen.checkpoint.offset >= task.checkpoint.offset;
    while !api.reads.shutdown.is_draining() {
        if let Ok(Some(update)) = api.reads.read(&task.id).await
            && newest(&task, &update)
        {
            task = update;
        }
        if task.record.state.is_terminal() {
            break;
        }
        tokio::select! {
            biased;
            () = api.reads.shutdown.drain.cancelled() => break,
            () = tokio::time::sleep_until(end) => break,
            () = subscription.changed() => {}
        }
    }
    task
}
