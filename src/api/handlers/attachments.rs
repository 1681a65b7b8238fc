//! Small values kept with a task.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::task::json_answer;
use crate::api::backends::{publish_event, stored};
use crate::api::documents::{AttachmentDocument, Attachments};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::model::event::{Event, Kind};
use crate::model::record::attachment::{Attached, Attachment, BYTES, MAX_COUNT, check_name};
use crate::model::task::id::clip;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// `GET /v1/tasks/{id}/attachments`.
pub async fn list(call: ApiRequest) -> Result<Response, ApiError> {
    let task = call.api.find(&call.id()?, call.after()?).await?;
    let attachments = task.node.attachments.iter().map(document).collect();
    Ok(json_answer(200, &Attachments { id: task.id.to_string(), attachments }))
}

/// `GET /v1/tasks/{id}/attachments/{name}`.
pub async fn get(call: ApiRequest) -> Result<Response, ApiError> {
    let task = call.api.find(&call.id()?, call.after()?).await?;
    let known = known(&task, &call.name)?;
    let data = stored(call.api.store.attachment(task.partition, &task.id, &known.name)).await?;
    let data = data.ok_or_else(|| unknown(&task, &call.name))?;
    let media = HeaderValue::from_str(&known.media).unwrap_or(HeaderValue::from_static(BYTES));
    // Whatever it is, no browser is to take it for a page of this api.
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((StatusCode::OK, headers, data).into_response())
}

/// `PUT /v1/tasks/{id}/attachments/{name}`.
pub async fn put(call: ApiRequest) -> Result<Response, ApiError> {
    check_name(&call.name).map_err(|why| ApiError::new(Code::BadField, why))?;
    let most = call.api.max_attachment;
    if call.body.len() > most {
        let why = format!("the attachment has {} bytes: at most {most} are allowed", call.body.len());
        return Err(ApiError::new(Code::TooLarge, why).hint("put it elsewhere, and attach or `link` where it is"));
    }
    let media = call.headers.get(header::CONTENT_TYPE).map_or(Ok(BYTES), HeaderValue::to_str).unwrap_or_default();
    let attachment = Attachment::new(call.name.as_str(), media, call.body.to_vec());
    let attachment = attachment.map_err(|why| ApiError::new(Code::UnsupportedMedia, why))?;
    let task = call.api.find(&call.id()?, None).await?;
    let message = format!("{}: {} bytes of {}", attachment.name, attachment.data.len(), attachment.media);
    let (found, ignored) = tell(&call, &task, Kind::Attached, attachment, message).await?;
    if ignored {
        return Err(ApiError::new(Code::TooManyAttachments, format!("`{}` has {MAX_COUNT} attachments", found.id))
            .hint("delete one, or put it under the name of one that there is"));
    }
    Ok(json_answer(200, &document(known(&found, &call.name)?)))
}

/// `DELETE /v1/tasks/{id}/attachments/{name}`.
pub async fn delete(call: ApiRequest) -> Result<Response, ApiError> {
    let task = call.api.find(&call.id()?, None).await?;
    let gone = document(known(&task, &call.name)?);
    let attachment = Attachment { name: call.name.clone(), media: String::new(), data: Vec::new() };
    let message = attachment.name.clone();
    match tell(&call, &task, Kind::Detached, attachment, message).await? {
        (_, false) => Ok(json_answer(200, &gone)),
        (found, true) => Err(unknown(&found, &call.name)),
    }
}

/// Writes the event, and waits for what the fold makes of it.
async fn tell(
    call: &ApiRequest,
    task: &TaskView,
    kind: Kind,
    attachment: Attachment,
    message: String,
) -> Result<(TaskView, bool), ApiError> {
    let mut event = Event::new(kind, task.id.clone(), task.node.run, now_ms());
    event.attachment = Some(Box::new(attachment));
    event.message = Some(message);
    event.by = call.by.clone();
    let position = publish_event(&call.api, event).await?;
    call.api.verdict(task, position, "the attachment").await
}

fn known<'a>(task: &'a TaskView, name: &str) -> Result<&'a Attached, ApiError> {
    task.node.attachments.iter().find(|known| known.name == name).ok_or_else(|| unknown(task, name))
}

fn unknown(task: &TaskView, name: &str) -> ApiError {
    ApiError::new(Code::UnknownAttachment, format!("`{}` has no attachment `{}`", task.id, clip(name)))
        .hint("GET /v1/tasks/{id}/attachments lists them")
}

fn document(attached: &Attached) -> AttachmentDocument {
    let Attached { name, media, bytes, at_ms } = attached.clone();
    AttachmentDocument { name, media, bytes, at: time_text(at_ms) }
}
