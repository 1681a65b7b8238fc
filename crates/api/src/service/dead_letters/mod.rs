//! Endpoints that list, show, drop and redrive dead letters.

use kafleet_broker::Broker;
use kafleet_documents::{
    DeadLetter, DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, DeadLetterRejection, DeadLetterResults,
    DeadLetterSelection, DropDeadLetter, MAX_SELECTED, RedriveDeadLetter,
};
use kafleet_fleet::dead_letters::headers::has_moved_on;
use kafleet_fleet::dead_letters::{DeadLetterId, DeadLetterRecord, InvalidDeadLetterId, Original, Resolution};
use kafleet_model::json::{MASKED, RawJson};
use kafleet_model::task::id::{TaskId, check_type, clip};
use kafleet_model::units::time::time_text;
use resolve::resolve_all;

use data_encoding::BASE64;
use futures::future::join_all;

use crate::backends::{KAFKA_DEADLINE, detached};
use crate::http::problem::{ApiError, Code};
use crate::read::mask::{Masks, params_of};
use crate::service::context::{MAX_PAGE, Paging, RequestContext, check_reason};
use crate::service::retry::NewRuns;
use crate::state::Api;

pub(crate) mod counts;
pub(crate) mod redriven_record;
pub(crate) mod resolve;
pub(crate) mod select;

pub use counts::letter_counts;
use redriven_record::ParamsChange;
use resolve::Request;
pub use select::LetterQuery;
use select::{encode_cursor, ids_by_partition, kind_of, list_letters, read_cursor, records_of};

/// Deadline of reads: the first read of a topic reads all of it.
pub(crate) const READ_DEADLINE: std::time::Duration = std::time::Duration::from_secs(25);
const DEFAULT_SELECTED: usize = 100;

/// Lists the unresolved dead letters that match a filter, newest first.
pub async fn list(
    RequestContext { api, .. }: RequestContext,
    query: LetterQuery,
    Paging { cursor, limit }: Paging,
) -> Result<DeadLetterPage, ApiError> {
    if let Some(name) = &query.filter.task_type {
        check_type_exists(&api, name).await?;
    }
    let bounds = cursor.map(|cursor| read_cursor(&api, &cursor)).transpose()?;
    let (page, records) = list_letters(&api, &query, bounds, limit).await?;
    let next = page.next.as_ref().map(|bounds| encode_cursor(&api, bounds));
    let letters = join_all(page.letters.iter().map(|letter| shown(&api, letter, kind_of(letter, &records)))).await;
    let incomplete = api.reads.incomplete().await?;
    Ok(DeadLetterPage { letters, next, scanned: page.scanned as u64, incomplete })
}

/// Reads a dead letter with its original record.
pub async fn show(
    RequestContext { api, role, .. }: RequestContext,
    id: DeadLetterId,
) -> Result<DeadLetterDetail, ApiError> {
    let (letter, resolved) = read_letter(&api, &id).await?;
    let records = records_of(&api, ids_by_partition(&api, letter.task.iter())).await?;
    let kind = kind_of(&letter, &records);
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|_| BASE64.encode(bytes), str::to_owned);
    let original = &letter.original;
    let value = original.value.as_deref().unwrap_or_default();
    let is_open = role.sees_masked();
    let record = api.reads.masks.record(&id.task_type, &original.headers, value, is_open);
    Ok(DeadLetterDetail {
        letter: if is_open { document(&letter, kind) } else { shown(&api, &letter, kind).await },
        outcome: outcome_of(&api, &letter, resolved).await?,
        key: original.key.as_deref().map(text),
        headers: record.headers.iter().map(|(name, value)| (name.clone(), value.as_deref().map(text))).collect(),
        value_base64: record.bytes.map(|bytes| BASE64.encode(&bytes)),
        params: record.params,
    })
}

/// Finds the unresolved dead letter of a run of a task.
pub async fn letter_of(api: &Api, task_type: &str, task: &TaskId, run: u32) -> Result<Option<DeadLetterId>, ApiError> {
    let (dead_letters, names) = (api.dead_letters.clone(), api.topology.names.clone());
    let (name, id) = (task_type.to_owned(), task.clone());
    let read = move |broker: &dyn Broker, _| dead_letters.letter_of(broker, &names, &name, (&id, run));
    Ok(api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?)
}

/// Drops a dead letter: it is listed no more.
pub async fn drop_one(
    context: RequestContext,
    id: DeadLetterId,
    DropDeadLetter { reason }: DropDeadLetter,
) -> Result<DeadLetterResults, ApiError> {
    let request = Request { reason, ..Request::new(Resolution::Dropped, context.by.clone()) };
    resolve_one(context, id, request).await
}

/// Runs the task of a dead letter again, in a new run, also with other params.
pub async fn redrive_one(
    context: RequestContext,
    id: DeadLetterId,
    RedriveDeadLetter { params, reason }: RedriveDeadLetter,
) -> Result<DeadLetterResults, ApiError> {
    let params = match params {
        Some(params) => Some(with_hidden_values(&context.api, &id, params).await?),
        None => None,
    };
    if let Some(params) = &params {
        context.api.types.check_params(&id.task_type, params, "/params")?;
    }
    let change = params.map(ParamsChange::Replace);
    let request = Request { change, reason, ..Request::new(Resolution::Redriven, context.by.clone()) };
    resolve_one(context, id, request).await
}

/// Puts the values of the record in the place of their masks.
async fn with_hidden_values(api: &Api, id: &DeadLetterId, params: RawJson) -> Result<RawJson, ApiError> {
    let mask = api.reads.masks.of(&id.task_type);
    if params.masked_at(&mask).is_none() {
        return Ok(params);
    }
    let (letter, _) = read_letter(api, id).await?;
    let original = &letter.original;
    let present = original.value.as_deref().and_then(|value| params_of(&original.headers, value));
    Ok(present.map_or(params.clone(), |present| params.unmasked(&mask, &present)))
}

async fn resolve_one(
    RequestContext { api, .. }: RequestContext,
    id: DeadLetterId,
    request: Request,
) -> Result<DeadLetterResults, ApiError> {
    check_reason(request.reason.as_deref())?;
    let done = vec![id.to_string()];
    let resolve = async move { Ok(resolve_all(&api, vec![id], &request, &mut NewRuns::default()).await) };
    detached(resolve).await?.into_iter().collect::<Result<(), ApiError>>()?;
    Ok(DeadLetterResults { done, refused: Vec::new(), more: false })
}

/// Lists the dead letters that [`drop_many`] would drop, newest first, at most [`MAX_PAGE`]; `next`: more match.
pub async fn selected(
    RequestContext { api, .. }: RequestContext,
    selection: &DeadLetterSelection,
) -> Result<DeadLetterPage, ApiError> {
    let query = LetterQuery::of(&selection.filter())?;
    check_type_exists(&api, &selection.task_type).await.map_err(|error| error.pointer("/type"))?;
    let limit = selection.limit.unwrap_or(DEFAULT_SELECTED).clamp(1, MAX_PAGE);
    let (page, records) = list_letters(&api, &query, None, limit).await?;
    let letters = join_all(page.letters.iter().map(|letter| shown(&api, letter, kind_of(letter, &records)))).await;
    let (next, incomplete) = (page.next.map(|bounds| encode_cursor(&api, &bounds)), api.reads.incomplete().await?);
    Ok(DeadLetterPage { letters, next, scanned: page.scanned as u64, incomplete })
}

/// Drops the newest dead letters of a selection.
pub async fn drop_many(
    RequestContext { api, by, .. }: RequestContext,
    selection: DeadLetterSelection,
) -> Result<DeadLetterResults, ApiError> {
    check_reason(selection.reason.as_deref())?;
    let request = Request { reason: selection.reason.clone(), ..Request::new(Resolution::Dropped, by) };
    let limit = selection.limit.unwrap_or(DEFAULT_SELECTED);
    if !(1..=MAX_SELECTED).contains(&limit) {
        return Err(ApiError::new(Code::BadField, format!("{limit} is not from 1 to {MAX_SELECTED}")).pointer("/limit"));
    }
    let query = LetterQuery::of(&selection.filter())?;
    check_type_exists(&api, &selection.task_type).await.map_err(|error| error.pointer("/type"))?;
    let (page, _) = list_letters(&api, &query, None, limit).await?;
    api.reads.check_covered(None).await?;
    let ids: Vec<DeadLetterId> = page.letters.into_iter().map(|letter| letter.id).collect();
    let selected = ids.clone();
    let resolve = async move { Ok(resolve_all(&api, selected, &request, &mut NewRuns::default()).await) };
    let (done, refused) = results(&ids, detached(resolve).await?);
    Ok(DeadLetterResults { done, refused, more: page.next.is_some() })
}

/// Resolved letters, and those that were refused.
fn results(ids: &[DeadLetterId], outcomes: Vec<Result<(), ApiError>>) -> (Vec<String>, Vec<DeadLetterRejection>) {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for (id, outcome) in ids.iter().zip(outcomes) {
        match outcome {
            Ok(()) => done.push(id.to_string()),
            Err(error) => refused.push(DeadLetterRejection { letter: id.to_string(), reason: error.document().detail }),
        }
    }
    (done, refused)
}

/// Parses the id of a dead letter.
pub fn letter_id(text: &str) -> Result<DeadLetterId, ApiError> {
    let id: DeadLetterId = text
        .parse()
        .map_err(|error: InvalidDeadLetterId| ApiError::new(Code::BadId, format!("`{}`: {error}", clip(text))))?;
    check_type(&id.task_type).map_err(|error| ApiError::new(Code::BadId, error))?;
    Ok(id)
}

/// Document of a dead letter without masked values.
async fn shown(api: &Api, letter: &DeadLetterRecord, kind: Option<String>) -> DeadLetter {
    DeadLetter { error: shown_error(api, letter).await, ..document(letter, kind) }
}

/// Error of a dead letter without masked values. These are known from the original record, which the letters of lists lack: it is
/// read for the types that mask anything.
async fn shown_error(api: &Api, letter: &DeadLetterRecord) -> String {
    let masks = &api.reads.masks;
    if letter.original.value.is_some() || masks.of(&letter.id.task_type).is_empty() {
        return hidden_error(masks, letter);
    }
    match read_letter(api, &letter.id).await {
        Ok((whole, _)) => hidden_error(masks, &whole),
        Err(_) => MASKED.to_owned(),
    }
}

/// Error of a dead letter with its original record, without masked values. Without that record all of it is hidden.
pub(crate) fn hidden_error(masks: &Masks, letter: &DeadLetterRecord) -> String {
    let (task_type, Original { headers, value, .. }) = (&letter.id.task_type, &letter.original);
    if masks.of(task_type).is_empty() {
        return letter.error.clone();
    }
    let Some(value) = value else { return MASKED.to_owned() };
    let mut error = letter.error.clone();
    masks.hide_in_text(task_type, headers, value, &mut error);
    error
}

fn document(letter: &DeadLetterRecord, kind: Option<String>) -> DeadLetter {
    DeadLetter {
        id: letter.id.to_string(),
        task_type: letter.id.task_type.clone(),
        task: letter.task.as_ref().map(|(id, _)| id).or(letter.header_id.as_ref()).map(ToString::to_string),
        run: letter.task.as_ref().map(|(_, run)| *run),
        code: letter.code.clone(),
        kind,
        error: letter.error.clone(),
        pointer: letter.pointer.clone(),
        at: time_text(letter.at_ms),
        worker: letter.worker.clone(),
        source: letter.source.as_ref().map(|(topic, partition, offset)| format!("{topic}/{partition}:{offset}")),
        by_reference: letter.by_reference,
    }
}

/// Rejects a type that has neither dead letters nor tasks.
pub(crate) async fn check_type_exists(api: &Api, name: &str) -> Result<(), ApiError> {
    let topic = api.topology.names.dead(name);
    if api.publisher.producer().has_topic(&topic, KAFKA_DEADLINE).await? {
        return Ok(());
    }
    api.writes.types.check_type_exists(name).await
}

/// Reads a dead letter and its resolution.
pub(crate) async fn read_letter(
    api: &Api,
    id: &DeadLetterId,
) -> Result<(DeadLetterRecord, Option<Resolution>), ApiError> {
    let (dead_letters, names, letter_id) = (api.dead_letters.clone(), api.topology.names.clone(), id.clone());
    let read = move |broker: &dyn Broker, _| dead_letters.letter(broker, &names, &letter_id);
    let letter = api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?;
    letter.ok_or_else(|| {
        ApiError::new(Code::NotFound, format!("there is no dead letter `{id}`, or it is no longer retained"))
    })
}

/// Determines the resolution shown to clients.
async fn outcome_of(
    api: &Api,
    letter: &DeadLetterRecord,
    resolved: Option<Resolution>,
) -> Result<Option<DeadLetterOutcome>, ApiError> {
    let moved_on = match &letter.task {
        Some((id, run)) if resolved.is_none() => {
            api.reads.read(id).await?.is_some_and(|task| has_moved_on(&task.record, *run))
        }
        _ => false,
    };
    Ok(match resolved {
        Some(Resolution::Dropped) => Some(DeadLetterOutcome::Dropped),
        Some(Resolution::Redriven) => Some(DeadLetterOutcome::Redriven),
        None => moved_on.then_some(DeadLetterOutcome::Superseded),
    })
}
