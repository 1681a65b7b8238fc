//! Endpoints that read one task.

use std::sync::Arc;

use kafleet_broker::Partition;
use kafleet_documents::{History, Params, StateDocument, Status, TaskPage};
use kafleet_model::event::Event;
use kafleet_model::json::RawJson;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, RecordSource, TaskSpec, read_task};
use kafleet_store::Index;

use super::context::{After, Paging, RequestContext};
use super::deliveries::deliveries;

use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::read::cursor;
use crate::read::status as documents;
use crate::state::Api;

/// Reads the status of a task, with that of its notifications.
pub async fn status(context: RequestContext, id: TaskId, After(after): After) -> Result<Status, ApiError> {
    let task = context.api.reads.find(&id, after).await?;
    let deliveries = deliveries(&context.api, &task).await?;
    Ok(Status { deliveries, ..context.status(&task) })
}

/// Reads only the state of a task.
pub(crate) async fn state(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    After(after): After,
) -> Result<StateDocument, ApiError> {
    Ok(documents::state(&api.reads.find(&id, after).await?))
}

pub async fn history(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    After(after): After,
) -> Result<History, ApiError> {
    Ok(documents::history(&api.reads.find(&id, after).await?))
}

/// Reads the children of a task, oldest first.
pub async fn children(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    Paging { cursor, limit }: Paging,
    After(after): After,
) -> Result<TaskPage, ApiError> {
    let cursor = cursor.as_deref().map(cursor::decode).transpose()?;
    let parent = api.reads.find(&id, after).await?;
    let index = Index::Children(parent.id.clone());
    // One extra entry shows whether there is a next page.
    let mut entries = api.reads.page(parent.partition, &index, cursor.as_ref(), limit + 1).await?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| more).map(cursor::encode);
    let ids: Vec<_> = entries.into_iter().map(|entry| entry.id).collect();
    let children = api.reads.read_many(parent.partition, &ids).await?;
    api.reads.check_covered(Some(parent.partition)).await?;
    let tasks = children.iter().flatten().map(documents::status).collect();
    Ok(TaskPage { tasks, next, ..TaskPage::default() })
}

/// Reads the params of a task from Kafka.
pub async fn params(
    RequestContext { api, role, .. }: RequestContext,
    id: TaskId,
    After(after): After,
) -> Result<Params, ApiError> {
    let task = api.reads.find(&id, after).await?;
    let mut params = open_params(&api, &task).await?;
    if !role.sees_masked() {
        task.masks.hide(task.record.task_type.as_deref().unwrap_or_default(), &mut params.params);
    }
    Ok(params)
}

/// Puts the values of another task of the same type in the place of their masks, for a copy of a task by a caller who does
/// not see them: the copy has the same mask.
pub async fn with_hidden_values(
    RequestContext { api, .. }: RequestContext,
    like: TaskId,
    task_type: &str,
    params: RawJson,
) -> Result<RawJson, ApiError> {
    let mask = api.reads.masks.of(task_type);
    if params.masked_at(&mask).is_none() {
        return Ok(params);
    }
    let task = api.reads.find(&like, None).await?;
    if task.record.task_type.as_deref() != Some(task_type) {
        return Ok(params);
    }
    Ok(params.unmasked(&mask, &open_params(&api, &task).await?.params))
}

/// Reads the params of a task with masked values.
pub(super) async fn open_params(api: &Api, task: &TaskView) -> Result<Params, ApiError> {
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
        Some(position) => in_topic(api, task, task_type, position).await,
        None => Err(ApiError::new(Code::NoParams, format!("the position of the record of `{}` is not known", task.id))),
    };
    match (in_topic, task.record.definition.record_event_offset) {
        (Err(error), Some(offset)) => in_event(api, task, offset).await?.ok_or(error),
        (answer, _) => answer,
    }
}

/// Returns whether an error of [`open_params`] says that there are no params, or none that can be read: neither can a worker.
pub(super) fn has_no_params(error: &ApiError) -> bool {
    [Code::NoParams, Code::ParamsGone, Code::ParamsUnreadable].iter().any(|code| error.is(*code))
}

/// Reads the params from the task's record.
async fn in_topic(api: &Api, task: &TaskView, task_type: Arc<str>, position: Position) -> Result<Params, ApiError> {
    let topic = api.topology.names.tasks(&task_type);
    let partition = Partition::new(topic.as_str(), position.partition);
    let record = api.reads.broker.read_at(&partition, position.offset).await?;
    let Some(record) = record else { return Err(params_gone(task, &topic, position)) };
    let source = RecordSource {
        task_type: &task_type,
        position,
        timestamp_ms: record.timestamp_ms,
        value: record.value.as_deref(),
    };
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    match read_task(&source, headers) {
        Ok(TaskSpec { id, params, .. }) if id == task.id => Ok(Params { id: id.to_string(), params }),
        // The topic was recreated, and the offset holds another record.
        Ok(_) => Err(params_gone(task, &topic, position)),
        Err(reject) => {
            Err(ApiError::new(Code::ParamsUnreadable, format!("the record at {topic}/{position}: {}", reject.message)))
        }
    }
}

/// Reads the params from the event that contains a copy of the task's record: of a delayed task, of a retry that waits at
/// the tracker, or of a redrive.
async fn in_event(api: &Api, task: &TaskView, offset: i64) -> Result<Option<Params>, ApiError> {
    let events = api.reads.events(task.partition);
    let record = api.reads.broker.read_at(&events, offset).await?;
    let event = record.and_then(|record| Event::decode(record.value.as_deref()?).ok());
    let copy = event.filter(|event| event.may_have_record_of(&task.id)).and_then(|event| event.payload.into_record());
    Ok(copy.map(|copy| Params { id: task.id.to_string(), params: copy.params }))
}

fn params_gone(task: &TaskView, topic: &str, position: Position) -> ApiError {
    let reason = format!("the record of `{}` at {topic}/{position} is no longer retained", task.id);
    ApiError::new(Code::ParamsGone, reason).hint("`topics.task_retention` sets how long task topics retain records")
}
