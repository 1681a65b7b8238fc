//! Endpoints that read one task.

use super::deliveries::deliveries;
use std::sync::Arc;

use axum::response::Response;

use crate::api::documents::{History, Params, Status, TaskPage};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::http::response::{MAX_PAGE, PAGE, json_answer};
use crate::api::read::consistency::TaskView;
use crate::api::read::cursor;
use crate::api::read::status as documents;
use crate::broker::Partition;
use crate::model::event::Event;
use crate::model::task::{DecodedTask, Position, Source, read_task};
use crate::store::Index;

async fn found(request: &ApiRequest) -> Result<TaskView, ApiError> {
    request.api.reads.find(&request.id()?, request.after()?).await
}

/// `GET /v1/tasks/{id}`.
pub(crate) async fn status(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &status_document(&request).await?))
}

pub(crate) async fn status_document(request: &ApiRequest) -> Result<Status, ApiError> {
    let found = found(request).await?;
    let deliveries = deliveries(&request.api, &found).await?;
    Ok(Status { deliveries, ..documents::status(&found) })
}

/// `GET /v1/tasks/{id}/state`.
pub(crate) async fn state(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &documents::state(&found(&request).await?)))
}

/// `GET /v1/tasks/{id}/history`.
pub(crate) async fn history(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &history_document(&request).await?))
}

pub(crate) async fn history_document(request: &ApiRequest) -> Result<History, ApiError> {
    Ok(documents::history(&found(request).await?))
}

/// `GET /v1/tasks/{id}/children`.
pub(crate) async fn children(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &children_page(&request).await?))
}

pub(crate) async fn children_page(request: &ApiRequest) -> Result<TaskPage, ApiError> {
    let limit = request.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let after = request.query.text("cursor").map(cursor::decode).transpose()?;
    let parent = found(request).await?;
    let index = Index::Children(parent.id.clone());
    // One extra entry shows whether there is a next page.
    let mut entries = request.api.reads.page(parent.partition, &index, after.as_ref(), limit + 1).await?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| more).map(cursor::encode);
    let ids: Vec<_> = entries.into_iter().map(|entry| entry.id).collect();
    let children = request.api.reads.read_many(parent.partition, &ids).await?;
    request.api.reads.check_covered(Some(parent.partition)).await?;
    let tasks = children.iter().flatten().map(documents::status).collect();
    Ok(TaskPage { tasks, next, ..TaskPage::default() })
}

/// `GET /v1/tasks/{id}/params`, read from Kafka.
pub(crate) async fn params(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &params_document(&request).await?))
}

pub(crate) async fn params_document(request: &ApiRequest) -> Result<Params, ApiError> {
    let task = found(request).await?;
    if task.record.is_external() {
        return Err(ApiError::new(
            Code::NoParams,
            format!("`{}` is an external task; its params are not stored", task.id),
        ));
    }
    let Some(task_type) = task.record.task_type.clone() else {
        return Err(ApiError::new(Code::NoParams, format!("`{}` is expected but has not been published", task.id)));
    };
    let in_topic = match task.record.definition.position {
        Some(position) => in_topic(request, &task, task_type, position).await,
        None => Err(ApiError::new(Code::NoParams, format!("the position of the record of `{}` is not known", task.id))),
    };
    match (in_topic, task.record.definition.record_event_offset) {
        (Err(error), Some(offset)) => in_event(request, &task, offset).await?.ok_or(error),
        (answer, _) => answer,
    }
}

/// Reads the params from the task's record.
async fn in_topic(
    request: &ApiRequest,
    task: &TaskView,
    task_type: Arc<str>,
    position: Position,
) -> Result<Params, ApiError> {
    let topic = request.api.publisher.names().tasks(&task_type);
    let partition = Partition::new(topic.as_str(), position.partition);
    let record = request.api.reads.broker.read_at(&partition, position.offset).await?;
    let Some(record) = record else { return Err(params_gone(task, &topic, position)) };
    let source =
        Source { task_type: &task_type, position, timestamp_ms: record.timestamp_ms, value: record.value.as_deref() };
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    match read_task(&source, headers) {
        Ok(DecodedTask { id, params, .. }) if id == task.id => Ok(Params { id: id.to_string(), params }),
        // The topic was recreated, and the offset holds another record.
        Ok(_) => Err(params_gone(task, &topic, position)),
        Err(reject) => {
            Err(ApiError::new(Code::ParamsUnreadable, format!("the record at {topic}/{position}: {}", reject.message)))
        }
    }
}

/// Reads the params from the event that contains a copy of the task's record: of a delayed task, of a retry that waits at
/// the tracker, or of a redrive.
async fn in_event(request: &ApiRequest, task: &TaskView, offset: i64) -> Result<Option<Params>, ApiError> {
    let events = request.api.reads.events(task.partition);
    let record = request.api.reads.broker.read_at(&events, offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    let copy = event.filter(|event| event.id == task.id).and_then(|event| event.payload.into_record());
    Ok(copy.map(|copy| Params { id: task.id.to_string(), params: copy.params }))
}

fn params_gone(task: &TaskView, topic: &str, position: Position) -> ApiError {
    let why = format!("the record of `{}` at {topic}/{position} is no longer retained", task.id);
    ApiError::new(Code::ParamsGone, why).hint("`topics.task_retention` sets how long task topics retain records")
}
