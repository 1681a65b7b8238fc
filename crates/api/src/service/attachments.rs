//! Endpoints for attachments: small values stored with a task.

use axum::body::Bytes;
use kafleet_documents::{AttachmentDocument, Attachments};
use kafleet_model::event::{Event, Payload};
use kafleet_model::record::attachment::{Attachment, AttachmentEntry, BYTES, MAX_COUNT, check_name};
use kafleet_model::task::id::{TaskId, clip};
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::{After, Name, RequestContext};
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;

/// Lists the attachments of a task.
pub async fn list(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    After(after): After,
) -> Result<Attachments, ApiError> {
    let task = api.reads.find(&id, after).await?;
    let attachments = task.record.attachments.iter().map(document).collect();
    Ok(Attachments { id: task.id.to_string(), attachments })
}

/// Reads an attachment with its content.
pub async fn get(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    name: &str,
    After(after): After,
) -> Result<Attachment, ApiError> {
    let task = api.reads.find(&id, after).await?;
    let attached = attached(&task, name)?;
    let data = api.reads.attachment(&task, &attached.name).await?;
    let data = data.ok_or_else(|| unknown(&task, name))?;
    Ok(Attachment { name: attached.name.clone(), media: attached.media.clone(), data })
}

/// Creates or replaces an attachment. `media`: its media type, by default that of arbitrary bytes.
pub async fn put(
    context: RequestContext,
    id: TaskId,
    name: &str,
    media: Option<&str>,
    bytes: &Bytes,
) -> Result<AttachmentDocument, ApiError> {
    check_name(name).map_err(|error| ApiError::new(Code::BadField, error))?;
    let limit = context.api.max_attachment;
    if bytes.len() > limit {
        let reason = format!("the attachment has {} bytes; the maximum is {limit}", bytes.len());
        return Err(ApiError::new(Code::TooLarge, reason)
            .hint("store the data elsewhere, and attach its address or set `link`"));
    }
    let attachment = Attachment::new(name, media.unwrap_or(BYTES), bytes.to_vec());
    let attachment = attachment.map_err(|error| ApiError::new(Code::UnsupportedMedia, error))?;
    let task = context.api.reads.find(&id, None).await?;
    let message = format!("{}: {} bytes of {}", attachment.name, attachment.data.len(), attachment.media);
    let payload = Payload::Attached { attachment: Some(Box::new(attachment)) };
    let (updated, ignored) = publish_and_wait(context, &task, payload, message).await?;
    if ignored {
        return Err(ApiError::new(
            Code::TooManyAttachments,
            format!("`{}` already has {MAX_COUNT} attachments", updated.id),
        )
        .hint("delete one, or reuse an existing name to replace it"));
    }
    Ok(document(attached(&updated, name)?))
}

/// Deletes an attachment, and returns its description.
pub(crate) async fn delete(
    context: RequestContext,
    id: TaskId,
    Name(name): Name,
) -> Result<AttachmentDocument, ApiError> {
    let task = context.api.reads.find(&id, None).await?;
    let deleted = document(attached(&task, &name)?);
    let attachment = Attachment { name: name.clone(), media: String::new(), data: Vec::new() };
    let payload = Payload::Detached { attachment: Some(Box::new(attachment)) };
    match publish_and_wait(context, &task, payload, name.clone()).await? {
        (_, false) => Ok(deleted),
        (updated, true) => Err(unknown(&updated, &name)),
    }
}

/// Publishes an event about attachments and waits until it has been projected. Returns the task, and true if the event
/// had no effect.
async fn publish_and_wait(
    RequestContext { api, by, .. }: RequestContext,
    task: &TaskView,
    payload: Payload,
    message: String,
) -> Result<(TaskView, bool), ApiError> {
    let event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    let event = Event { by, message: Some(message), ..event };
    let position = api.writes.publish_event(event).await?;
    api.reads.await_outcome(task, position, "the attachment").await
}

fn attached<'a>(task: &'a TaskView, name: &str) -> Result<&'a AttachmentEntry, ApiError> {
    task.record.attachments.iter().find(|attached| attached.name == name).ok_or_else(|| unknown(task, name))
}

fn unknown(task: &TaskView, name: &str) -> ApiError {
    ApiError::new(Code::UnknownAttachment, format!("`{}` has no attachment `{}`", task.id, clip(name)))
        .hint(format!("GET /v1/tasks/{}/attachments lists its attachments", task.id))
}

fn document(attached: &AttachmentEntry) -> AttachmentDocument {
    let AttachmentEntry { name, media, bytes, at_ms } = attached.clone();
    AttachmentDocument { name, media, bytes, at: time_text(at_ms) }
}
