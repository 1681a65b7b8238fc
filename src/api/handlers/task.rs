//! What is read of one task.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::documents::{Params, TaskPage};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::api::read::cursor;
use crate::api::read::status as documents;
use crate::broker::Partition;
use crate::model::event::Event;
use crate::model::task::{Position, Source, Task, read_task};
use crate::store::Index;

/// The largest page of tasks.
pub const MAX_PAGE: usize = 200;
/// Tasks on a page, unless told otherwise.
pub const PAGE: usize = 50;

pub fn json_answer<T: Serialize>(status: u16, document: &T) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_vec(document) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            ApiError::internal().into_response()
        }
    }
}

async fn found(call: &ApiRequest) -> Result<TaskView, ApiError> {
    call.api.find(&call.id()?, call.after()?).await
}

/// `GET /v1/tasks/{id}`.
pub async fn status(call: ApiRequest) -> Result<Response, ApiError> {
    let found = found(&call).await?;
    let deliveries = call.api.deliveries(&found).await?;
    Ok(json_answer(200, &crate::api::documents::Status { deliveries, ..documents::status(&found) }))
}

/// `GET /v1/tasks/{id}/state`.
pub async fn state(call: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &documents::state(&found(&call).await?)))
}

/// `GET /v1/tasks/{id}/history`.
pub async fn history(call: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &documents::history(&found(&call).await?)))
}

/// `GET /v1/tasks/{id}/children`.
pub async fn children(call: ApiRequest) -> Result<Response, ApiError> {
    let limit = call.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let after = call.query.text("cursor").map(cursor::decode).transpose()?;
    let parent = found(&call).await?;
    let index = Index::Children(parent.id.clone());
    // One more than asked for tells whether there is a next page.
    let mut entries = call.api.page(parent.partition, &index, after.as_ref(), limit + 1).await?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| more).map(cursor::encode);
    let ids: Vec<_> = entries.into_iter().map(|entry| entry.id).collect();
    let children = call.api.look_many(parent.partition, &ids).await?;
    let tasks = children.iter().flatten().map(documents::status).collect();
    Ok(json_answer(200, &TaskPage { tasks, next, ..TaskPage::default() }))
}

/// `GET /v1/tasks/{id}/params`: they lie in Kafka alone.
pub async fn params(call: ApiRequest) -> Result<Response, ApiError> {
    let task = found(&call).await?;
    if task.node.is_external() {
        return Err(ApiError::new(
            Code::NoParams,
            format!("`{}` is an external task: whoever runs it keeps its params", task.id),
        ));
    }
    let Some(task_type) = task.node.task_type.clone() else {
        return Err(ApiError::new(Code::NoParams, format!("`{}` is only expected: nobody has published it yet", task.id)));
    };
    let in_topic = match task.node.position {
        Some(position) => in_topic(&call, &task, task_type, position).await,
        None => Err(ApiError::new(Code::NoParams, format!("nothing says where the record of `{}` lies", task.id))),
    };
    match (in_topic, task.node.told_at) {
        (Err(refusal), Some(offset)) => in_event(&call, &task, offset).await?.ok_or(refusal),
        (answer, _) => answer,
    }
    .map(|params| json_answer(200, &params))
}

/// From the task's own record.
async fn in_topic(call: &ApiRequest, task: &TaskView, task_type: Arc<str>, position: Position) -> Result<Params, ApiError> {
    let topic = call.api.publisher.names().tasks(&task_type);
    let place = Partition::new(topic.as_str(), position.partition);
    let record = call.api.broker.read_at(&place, position.offset).await?;
    let Some(record) = record else { return Err(params_gone(task, &topic, position)) };
    let source = Source { task_type: &task_type, position, timestamp_ms: record.timestamp_ms, value: record.value.as_deref() };
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    match read_task(&source, headers) {
        Ok(Task { id, params, .. }) if id == task.id => Ok(Params { id: id.to_string(), params }),
        // The topic was made anew: the place is another record's now.
        Ok(_) => Err(params_gone(task, &topic, position)),
        Err(reject) => {
            Err(ApiError::new(Code::ParamsUnreadable, format!("the record at {topic}/{position}: {}", reject.message)))
        }
    }
}

/// From the event with which the task began to wait for its time.
async fn in_event(call: &ApiRequest, task: &TaskView, offset: i64) -> Result<Option<Params>, ApiError> {
    let events = call.api.events(task.partition);
    let record = call.api.broker.read_at(&events, offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    let kept = event.filter(|event| event.id == task.id).and_then(|event| event.record);
    Ok(kept.map(|kept| Params { id: task.id.to_string(), params: kept.params }))
}

fn params_gone(task: &TaskView, topic: &str, position: Position) -> ApiError {
    let why = format!("the record of `{}` at {topic}/{position} is no longer kept", task.id);
    ApiError::new(Code::ParamsGone, why).hint("`topics.task_retention` says how long task topics keep records")
}
