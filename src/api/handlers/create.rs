//! `POST /v1/tasks`.

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

/// So long before a finished tree is removed it takes no more children: a child that is published by then keeps the tree, a
/// later one would be left without a parent. Its record and its event have [`PUBLISH_DEADLINE`] each; the rest is for clocks
/// that differ.
const REMOVAL_MARGIN_MS: i64 = 2 * PUBLISH_DEADLINE.as_millis() as i64 + 10_000;
/// The longest `?wait=`.
const MAX_WAIT: Millis = Millis::secs(300);

pub async fn create(mut call: ApiRequest) -> Result<Response, ApiError> {
    let api = call.api.clone();
    let wait = wait_of(&call)?;
    let asked: CreateTask = call.json()?;
    let mut draft = api.draft(asked, now_ms(), trace_of(&call.headers).as_deref())?;
    api.check_type_of(&draft).await?;
    if let Some(parent) = draft.id.parent_id() {
        let parent = api.find_parent(&parent).await?;
        draft.new.asof = Some(parent.fence.offset);
        draft.new.run = parent.node.run;
    }
    // Before publishing, so that a task is not out when there is no room to wait for it.
    let partition = api.publisher.partition_of(&draft.id);
    let interest = wait.map(|wait| api.hub.interest(partition, &draft.id).map(|interest| (wait, interest))).transpose()?;
    let publisher = api.clone();
    // The body is read; its room is needed until the task is out, not while somebody waits for its end.
    call.body = Bytes::new();
    let room = call.room.take();
    let submitted = detached(async move {
        let submitted = publisher.submit(draft).await;
        drop(room);
        submitted
    });
    let submitted = submitted.await?;
    let (found, created) = match submitted {
        Submitted::Created(found) => (found, true),
        Submitted::Existing(found) => (found, false),
    };
    let Some((wait, interest)) = interest else { return Ok(answer(if created { 201 } else { 200 }, &found)) };
    let found = api.wait_finished(found, wait, &interest).await;
    Ok(answer(if found.node.state.is_terminal() { 200 } else { 202 }, &found))
}

fn wait_of(call: &ApiRequest) -> Result<Option<Duration>, ApiError> {
    match call.query.parsed::<Millis>("wait")? {
        Some(wait) if wait > MAX_WAIT => Err(bad_parameter("wait", &format!("at most {MAX_WAIT} is allowed"))),
        wait => Ok(wait.map(Duration::from)),
    }
}

fn answer(status_code: u16, found: &TaskView) -> Response {
    let mut response = json_answer(status_code, &status(found));
    // Ids are made of characters that a path may have.
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/tasks/{}", found.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

impl Api {
    /// The parent of a task to be made, which must exist, and still will when the task is published.
    pub async fn find_parent(&self, parent: &TaskId) -> Result<TaskView, ApiError> {
        let found = self.find(parent, None).await.map_err(|refusal| match refusal.is(Code::NotFound) {
            true => unknown_parent(parent),
            false => refusal,
        })?;
        let Ok(root) = TaskId::parse(parent.root()) else { return Ok(found) };
        let top = if root == *parent { Some(found.clone()) } else { self.look(&root).await? };
        // A tree that is gone by now was there a moment ago.
        let Some(top) = top else { return Err(unknown_parent(parent)) };
        let goes_soon = |age: ExpiryKind| age.due_ms <= now_ms().max(top.fence.log_time_ms).saturating_add(REMOVAL_MARGIN_MS);
        match top.node.age.filter(|age| age.what == Expiry::Done).is_some_and(goes_soon) {
            false => Ok(found),
            true => {
                let within = REMOVAL_MARGIN_MS / 1_000;
                let why = format!("the tree of `{root}` has finished, and its records are removed within {within} s");
                let refusal = ApiError::new(Code::UnknownParent, why).pointer("/parent");
                Err(refusal.hint("retry a task of the tree first, which opens it again, or submit the task as a root"))
            }
        }
    }

    /// Waits until a task has finished. Whatever happens meanwhile, the task is published: the answer is its newest
    /// known state.
    async fn wait_finished(self: &Arc<Self>, known: TaskView, wait: Duration, interest: &Subscription) -> TaskView {
        let end = Instant::now() + wait;
        let mut known = known;
        let newest = |known: &TaskView, seen: &TaskView| seen.fence.offset >= known.fence.offset;
        while !self.shutdown.is_draining() {
            if let Ok(Some(found)) = self.look(&known.id).await
                && newest(&known, &found)
            {
                known = found;
            }
            if known.node.state.is_terminal() {
                break;
            }
            tokio::select! {
                biased;
                () = self.shutdown.drain.cancelled() => break,
                () = tokio::time::sleep_until(end) => break,
                () = interest.changed() => {}
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
