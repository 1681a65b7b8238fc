//! Selection of dead letters: those of the topics, joined with the records of their tasks, which have the errors.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::BASE64URL_NOPAD;
use futures::future::try_join_all;
use kafleet_broker::{Broker, Partition};
use kafleet_documents::DeadLetterFilter;
use kafleet_fleet::dead_letters::headers::has_moved_on;
use kafleet_fleet::dead_letters::{Bounds, DeadLetterRecord, Filter, MAX_SCANNED, Page};
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::event::ErrorInfo;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::Category;
use kafleet_model::task::id::{TaskId, check_type};
use kafleet_model::task::parse_time;

use super::READ_DEADLINE;
use crate::http::problem::{ApiError, Code};
use crate::read::cursor::bad_cursor;
use crate::state::Api;

/// Maximum reads per page. One read may not fill the page, because resolved letters are filtered out.
const MAX_ROUNDS: usize = 10;

/// Records of tasks by id.
pub(crate) type TaskRecords = BTreeMap<TaskId, TaskRecord>;

/// Dead letters to list.
#[derive(Clone, Debug, Default)]
pub struct LetterQuery {
    pub filter: Filter,
    /// Only letters of tasks that ended with an error of this kind.
    pub kind: Option<String>,
    /// Only letters of tasks that ended with this error, or with an error of this kind.
    pub error: Option<Fingerprint>,
    /// Only letters that belong to no failed task.
    pub without_failure: bool,
}

impl LetterQuery {
    /// Reads a filter of a bulk action; errors have pointers into the filter.
    pub(crate) fn of(filter: &DeadLetterFilter) -> Result<Self, ApiError> {
        let wrong = |pointer: &'static str| move |error: String| ApiError::new(Code::BadField, error).pointer(pointer);
        check_type(&filter.task_type).map_err(wrong("/type"))?;
        let error = filter.error.as_deref().map(str::parse::<Fingerprint>).transpose().map_err(wrong("/error"))?;
        let (from_ms, to_ms) = times(filter.from.as_deref(), filter.to.as_deref())?;
        let (task_type, code) = (Some(filter.task_type.clone()), filter.code.clone());
        let found = Filter { task_type, code, from_ms, to_ms, resolved_by: None };
        Ok(Self { filter: found, kind: filter.kind.clone(), error, without_failure: false })
    }

    /// Whether a letter is selected that its topic lists. One that the request has resolved was selected before.
    fn selects(&self, api: &Api, letter: &DeadLetterRecord, records: &TaskRecords) -> bool {
        if self.filter.resolved_by.is_some() && is_resolved(api, letter) {
            return true;
        }
        let error = failure_of(letter, records);
        let is_kind = |kind: &String| error.is_some_and(|error| error.kind == *kind);
        let is_error = |selected: &Fingerprint| {
            let found = error.map(|error| Fingerprint::of(Some(error)));
            found.is_some_and(|found| found == *selected || found.kind() == *selected)
        };
        is_still_dead(letter, records)
            && self.kind.as_ref().is_none_or(is_kind)
            && self.error.as_ref().is_none_or(is_error)
            && !(self.without_failure && error.is_some())
    }
}

/// Epoch milliseconds of a range of times in a body.
fn times(from: Option<&str>, to: Option<&str>) -> Result<(Option<i64>, Option<i64>), ApiError> {
    let read = |pointer: &'static str, text: Option<&str>| {
        let time = |text| parse_time(text).map_err(|error| ApiError::new(Code::BadField, error).pointer(pointer));
        text.map(time).transpose()
    };
    let (from_ms, to_ms) = (read("/from", from)?, read("/to", to)?);
    if from_ms.zip(to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
        return Err(ApiError::new(Code::BadField, "`from` is after `to`").pointer("/from"));
    }
    Ok((from_ms, to_ms))
}

/// Lists dead letters whose tasks have not moved on since, with the records of these tasks. The page stays short if most
/// letters are filtered out.
pub(crate) async fn list_letters(
    api: &Api,
    query: &LetterQuery,
    bounds: Option<Bounds>,
    limit: usize,
) -> Result<(Page, TaskRecords), ApiError> {
    let mut all_records = TaskRecords::new();
    let mut all = Page { next: bounds, ..Page::default() };
    for _ in 0..MAX_ROUNDS {
        let (dead_letters, names) = (api.dead_letters.clone(), api.topology.names.clone());
        let (filter, bounds, rest) = (query.filter.clone(), all.next.take(), limit - all.letters.len());
        let read = move |broker: &dyn Broker, _| dead_letters.page(broker, &names, &filter, bounds.as_ref(), rest);
        let page = api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?;
        let tasks = ids_by_partition(api, page.letters.iter().filter_map(|letter| letter.task.as_ref()));
        let records = records_of(api, tasks).await?;
        all.letters.extend(page.letters.into_iter().filter(|letter| query.selects(api, letter, &records)));
        all_records.extend(records);
        (all.next, all.scanned) = (page.next, all.scanned + page.scanned);
        if all.next.is_none() || all.letters.len() >= limit || all.scanned >= MAX_SCANNED {
            break;
        }
    }
    Ok((all, all_records))
}

fn is_resolved(api: &Api, letter: &DeadLetterRecord) -> bool {
    let partition = Partition::new(api.topology.names.dead(&letter.id.task_type), letter.id.partition);
    api.dead_letters.resolved(&partition, letter.id.offset).is_some()
}

/// Whether the task of a dead letter has not moved on.
fn is_still_dead(letter: &DeadLetterRecord, records: &TaskRecords) -> bool {
    let task = letter.task.as_ref().and_then(|(id, run)| Some((records.get(id)?, *run)));
    task.is_none_or(|(record, run)| !has_moved_on(record, run))
}

/// Error with which the run of a dead letter ended.
fn failure_of<'a>(letter: &DeadLetterRecord, records: &'a TaskRecords) -> Option<&'a ErrorInfo> {
    let (id, run) = letter.task.as_ref()?;
    error_of_run(records.get(id)?, *run)
}

/// Error with which a run of a task has ended, while the task is failed.
pub(crate) fn error_of_run(record: &TaskRecord, run: u32) -> Option<&ErrorInfo> {
    let is_failed = record.run == run && record.own.category() == Category::Failed;
    record.outcome.error.as_deref().filter(|_| is_failed)
}

/// Kind of the error with which the run of a dead letter ended.
pub(super) fn kind_of(letter: &DeadLetterRecord, records: &TaskRecords) -> Option<String> {
    failure_of(letter, records).map(|error| error.kind.clone())
}

/// Ids of the tasks of dead letters by events partition.
pub(crate) fn ids_by_partition<'a>(
    api: &Api,
    tasks: impl Iterator<Item = &'a (TaskId, u32)>,
) -> BTreeMap<u32, BTreeSet<TaskId>> {
    let mut ids: BTreeMap<u32, BTreeSet<TaskId>> = BTreeMap::new();
    for (id, _) in tasks {
        ids.entry(api.topology.partition_of(id)).or_default().insert(id.clone());
    }
    ids
}

/// Reads the records of tasks, with one store read per events partition and 500 tasks.
pub(crate) async fn records_of(api: &Api, ids: BTreeMap<u32, BTreeSet<TaskId>>) -> Result<TaskRecords, ApiError> {
    let reads = ids.into_iter().map(|(partition, ids)| async move {
        let ids: Vec<TaskId> = ids.into_iter().collect();
        let records = api.reads.records(partition, &ids).await?;
        Ok::<_, ApiError>(
            ids.into_iter().zip(records).filter_map(|(id, record)| Some((id, record?))).collect::<Vec<_>>(),
        )
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}

/// Position after the dead letters of a type that exist now, as a cursor.
pub(crate) async fn present_end(api: &Api, task_type: &str) -> Result<String, ApiError> {
    let (dead_letters, names, name) = (api.dead_letters.clone(), api.topology.names.clone(), task_type.to_owned());
    let read = move |broker: &dyn Broker, _| dead_letters.ends(broker, &names, &name);
    let ends = api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?;
    Ok(encode_cursor(api, &ends))
}

/// Encodes positions as `<type>/<partition>/<offset>`, separated by spaces.
pub(crate) fn encode_cursor(api: &Api, bounds: &Bounds) -> String {
    let names = &api.topology.names;
    let position = |(partition, below): (&Partition, &i64)| {
        Some(format!("{}/{}/{below}", names.type_of_dead(&partition.topic)?, partition.index))
    };
    let positions: Vec<String> = bounds.iter().filter_map(position).collect();
    BASE64URL_NOPAD.encode(positions.join(" ").as_bytes())
}

pub(crate) fn read_cursor(api: &Api, text: &str) -> Result<Bounds, ApiError> {
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
