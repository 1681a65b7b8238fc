//! `POST /v1/tasks`: creates a task, optionally waiting for its end.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::time::Instant;

use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::CreateTask;
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::api::read::status::status;
use crate::api::write::idempotency::Submitted;
use crate::api::write::validate::trace_of;
use crate::model::retention::{Expiry, ExpiryKind};
use crate::model::task::id::TaskId;
use crate::model::units::duration::Millis;
use crate::publish::PUBLISH_DEADLINE;
use crate::runtime::now_ms;

/// Time before the removal of a finished tree from which it accepts no more children. A child published earlier
/// reopens the tree, a later one would have no parent. Covers [`PUBLISH_DEADLINE`] for the record and for its event,
/// and clock differences.
const REMOVAL_MARGIN_MS: i64 = 2 * PUBLISH_DEADLINE.as_millis() as i64 + 10_000;
/// Maximum of `?wait=`.
const MAX_WAIT: Millis = Millis::secs(300);

pub async fn create(mut request: ApiRequest) -> Result<Response, ApiError> {
    let api = request.api.clone();
    let wait = wait_parameter(&request)?;
    let input: CreateTask = request.json()?;
    let mut draft = api.draft(input, now_ms(), trace_of(&request.headers).as_deref())?;
    api.check_types(&draft).await?;
    if let Some(parent) = draft.id.parent_id() {
        let parent = api.find_parent(&parent).await?;
        draft.new.asof = Some(parent.checkpoint.offset);
        draft.new.run = parent.record.run;
    }
    // Subscribe before publishing: if there are too many watchers, nothing has been published yet.
    let partition = api.publisher.partition_of(&draft.id);
    let subscription =
        wait.map(|wait| api.notices.subscribe(partition, &draft.id).map(|subscription| (wait, subscription))).transpose()?;
    let publisher = api.clone();
    // Free the body now, and its memory budget after publishing rather than at the end of the wait.
    request.body = Bytes::new();
    let memory = request.memory.take();
    let submitted = detached(async move {
        let submitted = publisher.submit(draft).await;
        drop(memory);
        submitted
    });
    let submitted = submitted.await?;
    let (found, created) = match submitted {
        Submitted::Created(found) => (found, true),
        Submitted::Existing(found) => (found, false),
    };
    let Some((wait, subscription)) = subscription else { return Ok(answer(if created { 201 } else { 200 }, &found)) };
    let found = api.wait_finished(found, wait, &subscription).await;
    Ok(answer(if found.record.state.is_terminal() { 200 } else { 202 }, &found))
}

fn wait_parameter(request: &ApiRequest) -> Result<Option<Duration>, ApiError> {
    match request.query.parsed::<Millis>("wait")? {
        Some(wait) if wait > MAX_WAIT => Err(bad_parameter("wait", &format!("the maximum is {MAX_WAIT}"))),
        wait => Ok(wait.map(Duration::from)),
    }
}

fn answer(status_code: u16, found: &TaskView) -> Response {
    let mut response = json_answer(status_code, &status(found));
    // Ids consist of characters that are valid in a path.
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/tasks/{}", found.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

impl Api {
    /// Returns the parent of a new task. Fails if it does not exist or is about to be removed.
    pub async fn find_parent(&self, parent: &TaskId) -> Result<TaskView, ApiError> {
        let found = self.find(parent, None).await.map_err(|error| match error.is(Code::NotFound) {
            true => unknown_parent(parent),
            false => error,
        })?;
        let Ok(root) = TaskId::parse(parent.root()) else { return Ok(found) };
        let root_task = if root == *parent { Some(found.clone()) } else { self.read(&root).await? };
        // The tree was removed just after the parent was read.
        let Some(root_task) = root_task else { return Err(unknown_parent(parent)) };
        let is_removed_soon =
            |expiry: Expiry| expiry.due_ms <= now_ms().max(root_task.checkpoint.log_time_ms).saturating_add(REMOVAL_MARGIN_MS);
        match root_task.record.expiry.filter(|expiry| expiry.kind == ExpiryKind::Done).is_some_and(is_removed_soon) {
            false => Ok(found),
            true => {
                let within = REMOVAL_MARGIN_MS / 1_000;
                let why = format!("the tree of `{root}` has finished and will be removed within {within} s");
                let error = ApiError::new(Code::UnknownParent, why).pointer("/parent");
                Err(error.hint("retry a task of the tree first, which reopens it, or submit the task as a root"))
            }
        }
    }

    /// Waits for the end of a task. Errors end the wait early, because the task is already published; returns the
    /// latest known state.
    async fn wait_finished(self: &Arc<Self>, known: TaskView, wait: Duration, subscription: &Subscription) -> TaskView {
        let end = Instant::now() + wait;
        let mut known = known;
        let newest = |known: &TaskView, seen: &TaskView| seen.checkpoint.offset >= known.checkpoint.offset;
        while !self.shutdown.is_draining() {
            if let Ok(Some(found)) = self.read(&known.id).await
                && newest(&known, &found)
            {
                known = found;
            }
            if known.record.state.is_terminal() {
                break;
            }
            tokio::select! {
                biased;
                () = self.shutdown.drain.cancelled() => break,
                () = tokio::time::sleep_until(end) => break,
                () = subscription.changed() => {}
            }
        }
        known
    }
}

pub fn unknown_parent(parent: &TaskId) -> ApiError {
    ApiError::new(Code::UnknownParent, format!("there is no task `{parent}`"))
        .pointer("/parent")
        .hint("create the parent first; in a batch, put it before its children")
}
