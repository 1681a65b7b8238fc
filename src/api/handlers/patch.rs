//! `PATCH /v1/tasks/{id}`: what can be changed of a task after it was made.

use axum::response::Response;
use serde_json::Value;

use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::publish_event;
use crate::api::documents::PatchTask;
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, read_json};
use crate::api::read::status::status;
use crate::api::write::validate::check_policy;
use crate::model::event::{Event, Kind};
use crate::model::task::id::clip;
use crate::model::task::patch::Patch;
use crate::runtime::now_ms;

/// What a task is made with and keeps.
const FIXED: [&str; 14] = [
    "type",
    "params",
    "id",
    "parent",
    "key",
    "creator",
    "on_failure",
    "fail_fast",
    "max_failed",
    "then",
    "actions",
    "checks",
    "external",
    "block_when_done",
];

pub async fn patch(call: ApiRequest) -> Result<Response, ApiError> {
    refuse_fixed(&call.body)?;
    let patch = call.api.patch_of(call.json()?, now_ms())?;
    let task = call.api.find(&call.id()?, None).await?;
    if let Some(why) = patch.misfit(&task.node) {
        return Err(not_now(why));
    }
    let mut policy = task.node.policy.as_deref().cloned().unwrap_or_default();
    patch.apply(&mut policy);
    check_policy(&policy)?;
    let mut event = Event::new(Kind::Patched, task.id.clone(), task.node.run, now_ms());
    event.message = Some(format!("changed: {}", patch.fields().join(", ")));
    event.by = call.by.clone();
    event.patch = Some(Box::new(patch));
    let position = publish_event(&call.api, event).await?;
    let (found, ignored) = call.api.verdict(&task, position, "the change").await?;
    if ignored {
        return Err(not_now(format!("`{}` has moved on meanwhile: it is {}", found.id, found.node.own)));
    }
    Ok(json_answer(200, &status(&found)))
}

fn refuse_fixed(body: &[u8]) -> Result<(), ApiError> {
    let Ok(Value::Object(asked)) = read_json::<Value>(body) else { return Ok(()) };
    match asked.keys().find(|field| FIXED.contains(&field.as_str())) {
        Some(field) => Err(ApiError::new(Code::NotChangeable, format!("`{}` of a task cannot be changed", clip(field)))
            .pointer(format!("/{field}"))
            .hint("name, tags, link, options, when it starts or expires, retries and time limits can")),
        None => Ok(()),
    }
}

fn not_now(why: String) -> ApiError {
    ApiError::new(Code::NotChangeable, why)
        .hint("cancel it, change it, and retry it; name, tags, link and options change at any time")
}

impl Api {
    fn patch_of(&self, asked: PatchTask, now_ms: i64) -> Result<Patch, ApiError> {
        let PatchTask {
            name,
            tags,
            link,
            options,
            delay,
            at,
            expires,
            retries,
            min_backoff,
            max_backoff,
            timeout,
            total_timeout,
        } = asked;
        let starts = delay.is_some() || at.is_some();
        let not_before_ms =
            starts.then(|| self.start_of(delay, at.as_deref(), now_ms)).transpose()?.map(|at| at.unwrap_or(now_ms));
        let expires_at_ms = expires.map(|span| span.map(|span| now_ms.saturating_add(span.as_i64())));
        let patch = Patch {
            name,
            tags: tags.map(Option::unwrap_or_default),
            link,
            options,
            not_before_ms,
            expires_at_ms,
            retries,
            min_backoff,
            max_backoff,
            timeout,
            total_timeout,
        };
        match patch.fields().is_empty() {
            true => Err(ApiError::new(Code::BadField, "nothing is to be changed").hint(
                "name what is, such as `{\"name\": \"…\"}`; a start cannot be taken away: `{\"delay\": \"0s\"}` starts the task now",
            )),
            false => Ok(patch),
        }
    }
}
