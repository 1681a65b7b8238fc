//! `PATCH /v1/tasks/{id}`: changes a task after creation.

use kafleet_documents::{PatchTask, Status};
use kafleet_model::event::{Event, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::task::field::Change;
use kafleet_model::task::id::{TaskId, clip};
use kafleet_model::task::param_tags::is_param_tag;
use kafleet_model::task::patch::Patch;
use kafleet_model::task::{Policy, TaskRunner};
use kafleet_runtime::now_ms;

use crate::http::problem::{ApiError, Code};
use crate::http::request::read_json;
use crate::service::context::RequestContext;
use crate::state::Api;
use crate::write::validate::{check_size, reserved_tag};

/// Fields of a task besides its policy that cannot be changed.
const FIXED: [&str; 6] = ["type", "params", "id", "parent", "key", "block_when_done"];

pub async fn patch(context: RequestContext, id: TaskId, input: PatchTask) -> Result<Status, ApiError> {
    let api = context.api.clone();
    let patch = patch_of(&api, input, now_ms())?;
    let task = api.reads.find(&id, None).await?;
    if !TaskRunner::of_record(&task.record).can_be_changed() {
        let reason = format!("`{}` is a bulk action: it cannot be changed", task.id);
        return Err(ApiError::new(Code::NotChangeable, reason).hint("cancel it, and request another one"));
    }
    if let Some(reason) = patch.rejection(&task.record) {
        return Err(not_now(reason));
    }
    let mut policy = task.record.definition.policy.as_deref().cloned().unwrap_or_default();
    let is_new = |tag: &&String| is_param_tag(tag) && !policy.tags.contains(tag);
    if let Some(tag) = patch.changes.values().tags.iter().find(is_new) {
        return Err(reserved_tag(tag));
    }
    patch.apply(&mut policy);
    let task_type = task.record.task_type.as_deref().unwrap_or_default();
    check_size(&policy)?;
    // Labels can be changed at any time, whatever the other fields are.
    let of_attempts = patch.not_before_ms.is_some() || patch.attempt_fields().next().is_some();
    let changed = if of_attempts { &policy } else { patch.changes.values() };
    api.writes.checks.check_policy(task_type, changed, now_ms())?;
    let message = format!("changed: {}", patch.fields().join(", "));
    let payload = Payload::Patched { patch: Some(Box::new(patch)) };
    let mut event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    event.message = Some(message);
    event.by = context.by.clone();
    let position = api.writes.publish_event(event).await?;
    let (updated, ignored) = api.reads.await_outcome(&task, position, "the change").await?;
    if ignored {
        return Err(not_now(format!("`{}` has changed meanwhile: it is {}", updated.id, updated.record.own)));
    }
    Ok(context.status(&updated))
}

/// Reads a change from JSON. A field that no task can change is refused by its name.
pub fn read(body: &[u8]) -> Result<PatchTask, ApiError> {
    refuse_fixed(body)?;
    read_json(body)
}

fn refuse_fixed(body: &[u8]) -> Result<(), ApiError> {
    let Ok(input) = RawJson::parse(body) else { return Ok(()) };
    let is_fixed = |name: &str| Policy::field(name).is_some_and(|field| field.change == Change::Never);
    let mut names = input.slice().members().map(|(name, _)| name);
    match names.find(|name| FIXED.contains(&&**name) || is_fixed(name)) {
        Some(field) => {
            Err(ApiError::new(Code::NotChangeable, format!("`{}` of a task cannot be changed", clip(&field)))
                .pointer(format!("/{field}"))
                .hint("mutable are name, tags, link, options, start and expiry times, retries and timeouts"))
        }
        None => Ok(()),
    }
}

fn not_now(reason: String) -> ApiError {
    ApiError::new(Code::NotChangeable, reason)
        .hint("cancel it, change it, and retry it; name, tags, link and options can be changed at any time")
}

fn patch_of(api: &Api, input: PatchTask, now_ms: i64) -> Result<Patch, ApiError> {
    let PatchTask { delay, at, expires, changes } = input;
    let starts = delay.is_some() || at.is_some();
    let not_before_ms = starts
        .then(|| api.writes.checks.start_time(delay, at.as_deref(), now_ms))
        .transpose()?
        .map(|at| at.unwrap_or(now_ms));
    let expires_at_ms = expires.map(|expires| expires.map(|expires| expires.time_ms(now_ms)));
    let patch = Patch { not_before_ms, expires_at_ms, changes, ..Patch::default() };
    if patch.fields().is_empty() {
        Err(ApiError::new(Code::BadField, "no change given").hint(
            "give at least one field, such as `{\"name\": \"…\"}`; a start time cannot be removed, but \
             `{\"delay\": \"0s\"}` starts the task now",
        ))
    } else {
        Ok(patch)
    }
}
