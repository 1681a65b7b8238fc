//! `POST /v1/tasks`: creates a task, optionally waiting for its end.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::time::Instant;

use crate::api::backends::detached;
use crate::api::documents::CreateTask;
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::http::response::json_answer;
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::api::read::status::status;
use crate::api::state::Api;
use crate::api::write::idempotency::Submitted;
use crate::api::write::validate::{Draft, trace_of};
use crate::model::units::duration::Millis;
use crate::runtime::now_ms;

/// Maximum of `?wait=`.
const MAX_WAIT: Millis = Millis::secs(300);

pub(crate) async fn create(mut request: ApiRequest) -> Result<Response, ApiError> {
    let api = request.api.clone();
    let wait = wait_parameter(&request)?;
    let draft = draft_of(&request).await?;
    // Subscribe before publishing: if there are too many watchers, nothing has been published yet.
    let partition = api.publisher.partition_of(&draft.id);
    let subscription = wait
        .map(|wait| api.reads.notices.subscribe(partition, &draft.id).map(|subscription| (wait, subscription)))
        .transpose()?;
    let (found, created) = match submit(&mut request, draft).await? {
        Submitted::Created(found) => (found, true),
        Submitted::Existing(found) => (found, false),
    };
    let Some((wait, subscription)) = subscription else { return Ok(answer(if created { 201 } else { 200 }, &found)) };
    let found = wait_finished(&api, found, wait, &subscription).await;
    Ok(answer(if found.record.state.is_terminal() { 200 } else { 202 }, &found))
}

/// Task of a request, which belongs to the present run of its parent.
async fn draft_of(request: &ApiRequest) -> Result<Draft, ApiError> {
    let writes = &request.api.writes;
    let input: CreateTask = request.json()?;
    let mut draft = writes.draft(input, now_ms(), trace_of(&request.headers).as_deref())?;
    writes.check_types(&draft).await?;
    if let Some(parent) = draft.id.parent_id() {
        let parent = writes.find_parent(&parent).await?;
        draft.new.asof = parent.asof();
        draft.new.run = parent.record.run;
    }
    Ok(draft)
}

async fn submit(request: &mut ApiRequest, draft: Draft) -> Result<Submitted, ApiError> {
    let api = request.api.clone();
    // Free the body now, and its memory budget after publishing rather than at the end of the wait.
    request.body = Bytes::new();
    let memory = request.memory.take();
    let submitted = detached(async move {
        let submitted = api.writes.submit(draft).await;
        drop(memory);
        submitted
    });
    submitted.await
}

fn wait_parameter(request: &ApiRequest) -> Result<Option<Duration>, ApiError> {
    match request.query.duration("wait")? {
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
