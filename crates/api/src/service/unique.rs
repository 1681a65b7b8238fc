//! Keys of unique tasks: what stands for a key, and its end at the request of an operator.

use kafleet_documents::{KeptTaskDocument, UniqueKeyDocument};
use kafleet_model::projection::CLEAR_ACTION;
use kafleet_model::task::id::check_type;
use kafleet_model::unique::id::tag;
use kafleet_model::unique::{KeyState, UniqueRule};
use kafleet_model::units::time::time_text;

use super::context::{Name, RequestContext};
use crate::http::problem::{ApiError, Code};
use crate::read::reads::{Reads, unique_key};
use crate::write::validate::bad_field;

/// Returns the tasks that stand for a key.
pub async fn read(
    RequestContext { api, .. }: RequestContext,
    Name(task_type): Name,
    Name(key): Name,
) -> Result<UniqueKeyDocument, ApiError> {
    let tag = tag_of_path(&task_type, &key)?;
    let state = find_key(&api.reads, &tag).await?.ok_or_else(|| unknown(&task_type, &key))?;
    Ok(document(task_type, key, tag, &state))
}

/// Reads the state of a key. Fails if the projection lags and has none, because the key may exist nevertheless.
async fn find_key(reads: &Reads, tag: &str) -> Result<Option<KeyState>, ApiError> {
    match unique_key(reads, tag).await {
        Ok(Some(state)) => return Ok(Some(state)),
        Err(error) if !error.is(Code::NotVisibleYet) => return Err(error),
        Ok(None) | Err(_) => {}
    }
    match reads.lag_at_end(reads.topology.partition_of_key(tag)).await? {
        Some(lag) => Err(lag),
        None => unique_key(reads, tag).await,
    }
}

/// Forgets a key. Its open task goes on without it, and a kept one starts.
pub async fn clear(
    context: RequestContext,
    Name(task_type): Name,
    Name(key): Name,
) -> Result<UniqueKeyDocument, ApiError> {
    let tag = tag_of_path(&task_type, &key)?;
    let api = &context.api;
    let state = find_key(&api.reads, &tag).await?.ok_or_else(|| unknown(&task_type, &key))?;
    let position = api.writes.publish_event(context.operation(CLEAR_ACTION, &tag, None)).await?;
    api.reads.wait_for_position(Some(position)).await?;
    Ok(document(task_type, key, tag, &state))
}

fn tag_of_path(task_type: &str, key: &str) -> Result<String, ApiError> {
    check_type(task_type).map_err(|error| bad_field("type", error))?;
    UniqueRule::of_key(key).check().map_err(|error| bad_field("key", error))?;
    Ok(tag(task_type, key))
}

fn unknown(task_type: &str, key: &str) -> ApiError {
    ApiError::new(Code::UnknownUnique, format!("no task of the type `{task_type}` stands for the key `{key}`"))
        .hint("a key is forgotten with its last task: the next one starts at once")
}

fn document(task_type: String, key: String, tag: String, state: &KeyState) -> UniqueKeyDocument {
    let time = |at_ms: i64| (at_ms > 0).then(|| time_text(at_ms));
    let kept = state.kept.as_ref().map(|kept| KeptTaskDocument {
        id: kept.id.to_string(),
        due_at: time_text(kept.due_ms),
        waits_for_open: state.kept_waits(),
        first_ask: time_text(kept.first_ask_ms),
    });
    UniqueKeyDocument {
        task_type,
        key,
        tag,
        open: state.open.iter().map(ToString::to_string).collect(),
        kept,
        last: state.last.as_deref().map(str::to_owned),
        last_start: time(state.last_start_ms),
        last_ask: time(state.last_ask_ms),
        started: state.counts.started,
        kept_asks: state.counts.kept,
        joined: state.counts.joined,
    }
}
