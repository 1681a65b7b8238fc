//! Endpoints for attachments: small values stored with a task.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::documents::{AttachmentDocument, Attachments};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::http::response::json_answer;
use crate::api::read::consistency::TaskView;
use crate::model::event::{Event, Payload};
use crate::model::record::attachment::{Attached, Attachment, BYTES, MAX_COUNT, check_name};
use crate::model::task::id::clip;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// `GET /v1/tasks/{id}/attachments`.
pub(crate) async fn list(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &attachment_list(&request).await?))
}

pub(crate) async fn attachment_list(request: &ApiRequest) -> Result<Attachments, ApiError> {
    let task = request.api.reads.find(&request.id()?, request.after()?).await?;
    let attachments = task.record.attachments.iter().map(document).collect();
    Ok(Attachments { id: task.id.to_string(), attachments })
}

/// `GET /v1/tasks/{id}/attachments/{name}`.
pub(crate) async fn get(request: ApiRequest) -> Result<Response, ApiError> {
    let task = request.api.reads.find(&request.id()?, request.after()?).await?;
    let attached = attached(&task, &request.name)?;
    let data = request.api.reads.attachment(&task, &attached.name).await?;
    let data = data.ok_or_else(|| unknown(&task, &request.name))?;
    let media = HeaderValue::from_str(&attached.media).unwrap_or(HeaderValue::from_static(BYTES));
    // Prevents browsers from rendering an attachment as a page of this origin.
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((StatusCode::OK, headers, data).into_response())
}

/// `PUT /v1/tasks/{id}/attachments/{name}`.
pub(crate) async fn put(request: ApiRequest) -> Result<Response, ApiError> {
    check_name(&request.name).map_err(|why| ApiError::new(Code::BadField, why))?;
    let limit = request.api.max_attachment;
    if request.body.len() > limit {
        let why = format!("the attachment has {} bytes; the maximum is {limit}", request.body.len());
        return Err(
            ApiError::new(Code::TooLarge, why).hint("store the data elsewhere, and attach its address or set `link`")
        );
    }
    let media = request.headers.get(header::CONTENT_TYPE).map_or(Ok(BYTES), HeaderValue::to_str).unwrap_or_default();
    let attachment = Attachment::new(request.name.as_str(), media, request.body.to_vec());
    let attachment = attachment.map_err(|why| ApiError::new(Code::UnsupportedMedia, why))?;
    let task = request.api.reads.find(&request.id()?, None).await?;
    let message = format!("{}: {} bytes of {}", attachment.name, attachment.data.len(), attachment.media);
    let payload = Payload::Attached { attachment: Some(Box::new(attachment)) };
    let (found, ignored) = publish_and_wait(&request, &task, payload, message).await?;
    if ignored {
        return Err(ApiError::new(
            Code::TooManyAttachments,
            format!("`{}` already has {MAX_COUNT} attachments", found.id),
        )
        .hint("delete one, or reuse an existing name to replace it"));
    }
    Ok(json_answer(200, &document(attached(&found, &request.name)?)))
}

/// `DELETE /v1/tasks/{id}/attachments/{name}`.
pub(crate) async fn delete(request: ApiRequest) -> Result<Response, ApiError> {
    let task = request.api.reads.find(&request.id()?, None).await?;
    let deleted = document(attached(&task, &request.name)?);
    let attachment = Attachment { name: request.name.clone(), media: String::new(), data: Vec::new() };
    let message = attachment.name.clone();
    let payload = Payload::Detached { attachment: Some(Box::new(attachment)) };
    match publish_and_wait(&request, &task, payload, message).await? {
        (_, false) => Ok(json_answer(200, &deleted)),
        (found, true) => Err(unknown(&found, &request.name)),
    }
}

/// Publishes an event about attachments and waits until it has been projected. Returns the task, and true if the event
/// had no effect.
async fn publish_and_wait(
    request: &ApiRequest,
    task: &TaskView,
    payload: Payload,
    message: String,
) -> Result<(TaskView, bool), ApiError> {
    let mut event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    event.message = Some(message);
    event.by = request.by.clone();
    let position = request.api.writes.publish_event(event).await?;
    request.api.reads.await_outcome(task, position, "the attachment").await
}

fn attached<'a>(task: &'a TaskView, name: &str) -> Result<&'a Attached, ApiError> {
    task.record.attachments.iter().find(|attached| attached.name == name).ok_or_else(|| unknown(task, name))
}

fn unknown(task: &TaskView, name: &str) -> ApiError {
    ApiError::new(Code::UnknownAttachment, format!("`{}` has no attachment `{}`", task.id, clip(name)))
        .hint(format!("GET /v1/tasks/{}/attachments lists its attachments", task.id))
}

fn document(attached: &Attached) -> AttachmentDocument {
    let Attached { name, media, bytes, at_ms } = attached.clone();
    AttachmentDocument { name, media, bytes, at: time_text(at_ms) }
}
