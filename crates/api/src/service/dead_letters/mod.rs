//! Endpoints that list, show, drop and redrive dead letters.

use kafleet_broker::{Broker, Partition};
use kafleet_documents::{
    DeadLetter, DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, DeadLetterRejection, DeadLetterResults,
    DeadLetterSelection, MAX_SELECTED, RedriveDeadLetter,
};
use kafleet_fleet::dead_letters::headers::has_moved_on;
use kafleet_fleet::dead_letters::{
    Bounds, DeadLetterId, DeadLetterRecord, Filter, InvalidDeadLetterId, MAX_SCANNED, Original, Page, Resolution,
};
use kafleet_model::json::RawJson;
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::{TaskId, check_type, clip};
use kafleet_model::task::parse_time;
use kafleet_model::units::time::time_text;
use resolve::resolve_all;
use std::collections::{BTreeMap, BTreeSet};

use data_encoding::{BASE64, BASE64URL_NOPAD};
use futures::future::try_join_all;

use crate::backends::{KAFKA_DEADLINE, detached};
use crate::http::problem::{ApiError, Code};
use crate::read::cursor::bad_cursor;
use crate::read::mask::params_of;
use crate::service::context::{Paging, RequestContext};
use crate::state::Api;

mod resolve;

/// Deadline of reads: the first read of a topic reads all of it.
const READ_DEADLINE: std::time::Duration = std::time::Duration::from_secs(25);
/// Maximum reads per page. One read may not fill the page, because resolved letters are filtered out.
const MAX_ROUNDS: usize = 10;
const DEFAULT_SELECTED: usize = 100;

/// Lists the unresolved dead letters that match a filter, newest first.
pub async fn list(
    RequestContext { api, .. }: RequestContext,
    filter: Filter,
    Paging { cursor, limit }: Paging,
) -> Result<DeadLetterPage, ApiError> {
    if let Some(name) = &filter.task_type {
        check_type_exists(&api, name).await?;
    }
    let bounds = cursor.map(|cursor| read_cursor(&api, &cursor)).transpose()?;
    let (page, records) = list_letters(&api, filter, bounds, limit).await?;
    let next = page.next.as_ref().map(|bounds| encode_cursor(&api, bounds));
    let letters = page.letters.iter().map(|letter| shown(&api, letter, kind_of(letter, &records))).collect();
    let incomplete = api.reads.incomplete().await?;
    Ok(DeadLetterPage { letters, next, scanned: page.scanned as u64, incomplete })
}

/// Reads a dead letter with its original record.
pub async fn show(
    RequestContext { api, role, .. }: RequestContext,
    id: DeadLetterId,
) -> Result<DeadLetterDetail, ApiError> {
    let (letter, resolved) = read_letter(&api, &id).await?;
    let records = records_of(&api, std::slice::from_ref(&letter)).await?;
    let kind = kind_of(&letter, &records);
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|_| BASE64.encode(bytes), str::to_owned);
    let original = &letter.original;
    let value = original.value.as_deref().unwrap_or_default();
    let is_open = role.sees_masked();
    let record = api.reads.masks.record(&id.task_type, &original.headers, value, is_open);
    Ok(DeadLetterDetail {
        letter: if is_open { document(&letter, kind) } else { shown(&api, &letter, kind) },
        outcome: outcome_of(&api, &letter, resolved).await?,
        key: original.key.as_deref().map(text),
        headers: record.headers.iter().map(|(name, value)| (name.clone(), value.as_deref().map(text))).collect(),
        value_base64: record.bytes.map(|bytes| BASE64.encode(&bytes)),
        params: record.params,
    })
}

/// Drops a dead letter: it is listed no more.
pub async fn drop_one(context: RequestContext, id: DeadLetterId) -> Result<DeadLetterResults, ApiError> {
    resolve_one(context, id, Resolution::Dropped, None).await
}

/// Runs the task of a dead letter again, in a new run, also with other params.
pub async fn redrive_one(
    context: RequestContext,
    id: DeadLetterId,
    RedriveDeadLetter { params }: RedriveDeadLetter,
) -> Result<DeadLetterResults, ApiError> {
    let params = match params {
        Some(params) => Some(with_hidden_values(&context.api, &id, params).await?),
        None => None,
    };
    if let Some(params) = &params {
        context.api.types.check_params(&id.task_type, params, "/params")?;
    }
    resolve_one(context, id, Resolution::Redriven, params).await
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
    RequestContext { api, by, .. }: RequestContext,
    id: DeadLetterId,
    resolution: Resolution,
    params: Option<RawJson>,
) -> Result<DeadLetterResults, ApiError> {
    let done = vec![id.to_string()];
    let outcomes = detached(async move { Ok(resolve_all(&api, vec![id], resolution, params, by).await) }).await?;
    outcomes.into_iter().collect::<Result<(), ApiError>>()?;
    Ok(DeadLetterResults { done, refused: Vec::new(), more: false })
}

/// Resolves the newest dead letters of a selection.
pub async fn resolve_many(
    RequestContext { api, by, .. }: RequestContext,
    selection: DeadLetterSelection,
    resolution: Resolution,
) -> Result<DeadLetterResults, ApiError> {
    let (filter, limit) = filter_of(selection)?;
    if let Some(name) = &filter.task_type {
        check_type_exists(&api, name).await.map_err(|error| error.pointer("/type"))?;
    }
    let (page, _) = list_letters(&api, filter, None, limit).await?;
    api.reads.check_covered(None).await?;
    let ids: Vec<DeadLetterId> = page.letters.into_iter().map(|letter| letter.id).collect();
    let selected = ids.clone();
    let outcomes = detached(async move { Ok(resolve_all(&api, selected, resolution, None, by).await) }).await?;
    let (done, refused) = results(&ids, outcomes);
    Ok(DeadLetterResults { done, refused, more: page.next.is_some() })
}

/// Filter and limit of a selection.
fn filter_of(selection: DeadLetterSelection) -> Result<(Filter, usize), ApiError> {
    check_type(&selection.task_type).map_err(|error| ApiError::new(Code::BadField, error).pointer("/type"))?;
    let limit = selection.limit.unwrap_or(DEFAULT_SELECTED);
    if !(1..=MAX_SELECTED).contains(&limit) {
        return Err(ApiError::new(Code::BadField, format!("{limit} is not from 1 to {MAX_SELECTED}")).pointer("/limit"));
    }
    let filter = Filter {
        task_type: Some(selection.task_type),
        code: selection.code,
        from_ms: field_time("/from", selection.from.as_deref())?,
        to_ms: field_time("/to", selection.to.as_deref())?,
    };
    if filter.from_ms.zip(filter.to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
        return Err(ApiError::new(Code::BadField, "`from` is after `to`").pointer("/from"));
    }
    Ok((filter, limit))
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

fn field_time(pointer: &str, text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let read = |text| parse_time(text).map_err(|error| ApiError::new(Code::BadField, error).pointer(pointer));
    text.map(read).transpose()
}

/// Document of a dead letter without masked values.
fn shown(api: &Api, letter: &DeadLetterRecord, kind: Option<String>) -> DeadLetter {
    let mut document = document(letter, kind);
    let Original { headers, value, .. } = &letter.original;
    api.reads.masks.hide_in_text(&letter.id.task_type, headers, value.as_deref(), &mut document.error);
    document
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
async fn check_type_exists(api: &Api, name: &str) -> Result<(), ApiError> {
    let topic = api.topology.names.dead(name);
    if api.publisher.producer().has_topic(&topic, KAFKA_DEADLINE).await? {
        return Ok(());
    }
    api.writes.types.check_type_exists(name).await
}

/// Encodes positions as `<type>/<partition>/<offset>`, separated by spaces.
fn encode_cursor(api: &Api, bounds: &Bounds) -> String {
    let names = &api.topology.names;
    let position = |(partition, below): (&Partition, &i64)| {
        Some(format!("{}/{}/{below}", names.type_of_dead(&partition.topic)?, partition.index))
    };
    let positions: Vec<String> = bounds.iter().filter_map(position).collect();
    BASE64URL_NOPAD.encode(positions.join(" ").as_bytes())
}

fn read_cursor(api: &Api, text: &str) -> Result<Bounds, ApiError> {
    let names = &api.topology.names;
    let read = || {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let positions = std::str::from_utf8(&bytes).ok()?.split(' ').filter(|position| !position.is_empty());
        positions
            .map(|position| {
                let mut parts = position.split('/');
                let partition = Partition::new(names.dead(parts.next()?), parts.next()?.parse().ok()?);
                Some((partition, parts.next()?.parse().ok()?))
            })
            .collect::<Option<Bounds>>()
    };
    read().ok_or_else(|| bad_cursor(text))
}

/// Records of tasks by id.
type TaskRecords = BTreeMap<TaskId, TaskRecord>;

/// Lists dead letters whose tasks have not moved on since, with the records of these tasks. The page stays short if most
/// letters are filtered out.
async fn list_letters(
    api: &Api,
    filter: Filter,
    bounds: Option<Bounds>,
    limit: usize,
) -> Result<(Page, TaskRecords), ApiError> {
    let mut all_records = TaskRecords::new();
    let mut all = Page { next: bounds, ..Page::default() };
    for _ in 0..MAX_ROUNDS {
        let (dead_letters, names, filter) = (api.dead_letters.clone(), api.topology.names.clone(), filter.clone());
        let (bounds, rest) = (all.next.take(), limit - all.letters.len());
        let read = move |broker: &dyn Broker, _| dead_letters.page(broker, &names, &filter, bounds.as_ref(), rest);
        let page = api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?;
        let records = records_of(api, &page.letters).await?;
        all.letters.extend(page.letters.into_iter().filter(|letter| is_still_dead(letter, &records)));
        all_records.extend(records);
        (all.next, all.scanned) = (page.next, all.scanned + page.scanned);
        if all.next.is_none() || all.letters.len() >= limit || all.scanned >= MAX_SCANNED {
            break;
        }
    }
    Ok((all, all_records))
}

/// Whether the task of a dead letter has not moved on.
fn is_still_dead(letter: &DeadLetterRecord, records: &TaskRecords) -> bool {
    let task = letter.task.as_ref().and_then(|(id, run)| Some((records.get(id)?, *run)));
    task.is_none_or(|(record, run)| !has_moved_on(record, run))
}

/// Kind of the error with which the run of a dead letter ended.
fn kind_of(letter: &DeadLetterRecord, records: &TaskRecords) -> Option<String> {
    let (id, run) = letter.task.as_ref()?;
    let record = records.get(id).filter(|record| record.run == *run)?;
    Some(record.outcome.error.as_ref()?.kind.clone())
}

/// Reads the records of the tasks of dead letters, with one store read per events partition and 500 tasks.
async fn records_of(api: &Api, letters: &[DeadLetterRecord]) -> Result<TaskRecords, ApiError> {
    let mut ids_by_partition: BTreeMap<u32, BTreeSet<TaskId>> = BTreeMap::new();
    for (id, _) in letters.iter().filter_map(|letter| letter.task.as_ref()) {
        ids_by_partition.entry(api.topology.partition_of(id)).or_default().insert(id.clone());
    }
    let reads = ids_by_partition.into_iter().map(|(partition, ids)| async move {
        let ids: Vec<TaskId> = ids.into_iter().collect();
        let records = api.reads.records(partition, &ids).await?;
        Ok::<_, ApiError>(
            ids.into_iter().zip(records).filter_map(|(id, record)| Some((id, record?))).collect::<Vec<_>>(),
        )
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}

/// Reads a dead letter and its resolution.
async fn read_letter(api: &Api, id: &DeadLetterId) -> Result<(DeadLetterRecord, Option<Resolution>), ApiError> {
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
