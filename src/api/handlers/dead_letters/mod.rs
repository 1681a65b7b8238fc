//! Dead letters: list, show, drop, redrive.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::Response;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use futures::future::try_join_all;

use super::task::{MAX_PAGE, PAGE, json_answer};
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::{DeadLetter, DeadOutcome, DeadPage, DeadRecord, DeadRefusal, DeadSelection, LetterOutcome};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::broker::{Broker, Partition};
use crate::dead_letters::headers::has_moved_on;
use crate::dead_letters::{Bounds, DeadLetterRecord, Fate, Filter, LetterId, MAX_SCANNED, Page};
use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::task::id::{TaskId, check_type, clip};
use crate::model::task::parse_time;
use crate::publish::time_text;

mod resolve;

/// How long reading letters may take: a long topic is read whole once.
const READ_DEADLINE: std::time::Duration = std::time::Duration::from_secs(25);
/// Times that letters are read to fill one page: those whose tasks have moved on leave room in it.
const MAX_ROUNDS: usize = 10;
/// Letters in one selection.
const MAX_SELECTED: usize = 1_000;
const SELECTED: usize = 100;

/// `GET /v1/dead`.
pub async fn list(call: ApiRequest) -> Result<Response, ApiError> {
    let text = |name| call.query.text(name).map(str::to_owned);
    let (from_ms, to_ms) = call.query.time_range()?;
    let filter = Filter { task_type: text("type"), code: text("code"), from_ms, to_ms };
    if let Some(name) = &filter.task_type {
        check_type(name).map_err(|why| bad_parameter("type", &why))?;
    }
    let limit = call.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let bounds = call.query.text("cursor").map(|cursor| read_cursor(&call.api, cursor)).transpose()?;
    let page = call.api.letters(filter, bounds, limit).await?;
    let next = page.next.as_ref().map(|bounds| cursor(&call.api, bounds));
    let letters = page.letters.iter().map(document).collect();
    Ok(json_answer(200, &DeadPage { letters, next, scanned: page.scanned as u64 }))
}

/// `GET /v1/dead/{letter}`.
pub async fn show(call: ApiRequest) -> Result<Response, ApiError> {
    let (letter, settled) = call.api.letter(&letter_id(&call.segment)?).await?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|_| BASE64.encode(bytes), str::to_owned);
    let original = &letter.original;
    let value = original.value.as_deref().unwrap_or_default();
    let params = RawJson::parse(value).ok();
    let record = DeadRecord {
        letter: document(&letter),
        outcome: call.api.outcome(&letter, settled).await?,
        key: original.key.as_deref().map(text),
        headers: original.headers.iter().map(|(name, value)| (name.clone(), value.as_deref().map(text))).collect(),
        value_base64: (params.is_none() && !value.is_empty()).then(|| BASE64.encode(value)),
        params,
    };
    Ok(json_answer(200, &record))
}

/// `POST /v1/dead/{letter}/drop` and `/redrive`.
pub async fn one(call: ApiRequest, fate: Fate) -> Result<Response, ApiError> {
    let id = letter_id(&call.segment)?;
    let (api, by) = (call.api.clone(), call.by.clone());
    let outcomes = detached(async move { Ok(api.settle(vec![id], fate, by).await) }).await?;
    outcomes.into_iter().collect::<Result<(), ApiError>>()?;
    let done = vec![call.segment];
    Ok(json_answer(200, &DeadOutcome { done, refused: Vec::new(), more: false }))
}

/// `POST /v1/dead/drop` and `/redrive`.
pub async fn many(call: ApiRequest, fate: Fate) -> Result<Response, ApiError> {
    let selection: DeadSelection = call.json()?;
    check_type(&selection.task_type).map_err(|why| ApiError::new(Code::BadField, why).pointer("/type"))?;
    let limit = selection.limit.unwrap_or(SELECTED);
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
        return Err(ApiError::new(Code::BadField, "`from` is after `to`, so that nothing can lie between them").pointer("/from"));
    }
    let page = call.api.letters(filter, None, limit).await?;
    let ids: Vec<LetterId> = page.letters.into_iter().map(|letter| letter.id).collect();
    let (api, by, wanted) = (call.api.clone(), call.by.clone(), ids.clone());
    let outcomes = detached(async move { Ok(api.settle(wanted, fate, by).await) }).await?;
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for (id, outcome) in ids.iter().zip(outcomes) {
        match outcome {
            Ok(()) => done.push(id.to_string()),
            Err(refusal) => refused.push(DeadRefusal { letter: id.to_string(), why: refusal.document().detail }),
        }
    }
    Ok(json_answer(200, &DeadOutcome { done, refused, more: page.next.is_some() }))
}

fn letter_id(text: &str) -> Result<LetterId, ApiError> {
    let id: LetterId = text.parse().map_err(|why: String| ApiError::new(Code::BadId, format!("`{}`: {why}", clip(text))))?;
    check_type(&id.task_type).map_err(|why| ApiError::new(Code::BadId, why))?;
    Ok(id)
}

fn field_time(pointer: &str, text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let read = |text| parse_time(text).map_err(|why| ApiError::new(Code::BadField, why).pointer(pointer));
    text.map(read).transpose()
}

fn document(letter: &DeadLetterRecord) -> DeadLetter {
    DeadLetter {
        id: letter.id.to_string(),
        task_type: letter.id.task_type.clone(),
        task: letter.task.as_ref().map(|(id, _)| id.to_string()),
        run: letter.task.as_ref().map(|(_, run)| *run),
        code: letter.code.clone(),
        error: letter.error.clone(),
        pointer: letter.pointer.clone(),
        at: time_text(letter.at_ms),
        worker: letter.worker.clone(),
        source: letter.source.as_ref().map(|(topic, partition, offset)| format!("{topic}/{partition}:{offset}")),
        by_reference: letter.by_reference,
    }
}

/// `<type>/<partition>/<offset>`, one after the other.
fn cursor(api: &Api, bounds: &Bounds) -> String {
    let names = api.publisher.names();
    let place = |(partition, below): (&Partition, &i64)| {
        Some(format!("{}/{}/{below}", names.type_of_dead(&partition.topic)?, partition.index))
    };
    let places: Vec<String> = bounds.iter().filter_map(place).collect();
    BASE64URL_NOPAD.encode(places.join(" ").as_bytes())
}

fn read_cursor(api: &Api, text: &str) -> Result<Bounds, ApiError> {
    let names = api.publisher.names();
    let read = || {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let places = std::str::from_utf8(&bytes).ok()?.split(' ').filter(|place| !place.is_empty());
        places
            .map(|place| {
                let mut parts = place.split('/');
                let partition = Partition::new(names.dead(parts.next()?), parts.next()?.parse().ok()?);
                Some((partition, parts.next()?.parse().ok()?))
            })
            .collect::<Option<Bounds>>()
    };
    read().ok_or_else(|| {
        ApiError::new(Code::BadCursor, "`cursor` is not one that this list gave").hint("leave it out to begin at the first page")
    })
}

impl Api {
    /// Letters whose tasks have not moved on. The store is read in batches, and the page stays short where most letters are
    /// not wanted.
    async fn letters(&self, filter: Filter, bounds: Option<Bounds>, limit: usize) -> Result<Page, ApiError> {
        let mut all = Page { next: bounds, ..Page::default() };
        for _ in 0..MAX_ROUNDS {
            let (ledger, names, filter) = (self.ledger.clone(), self.publisher.names().clone(), filter.clone());
            let (bounds, wanted) = (all.next.take(), limit - all.letters.len());
            let read = move |broker: &dyn Broker, _| ledger.page(broker, &names, &filter, bounds.as_ref(), wanted);
            let page = self.broker.with_deadline(READ_DEADLINE).call(read).await?;
            all.letters.extend(self.still_dead(page.letters).await?);
            (all.next, all.scanned) = (page.next, all.scanned + page.scanned);
            if all.next.is_none() || all.letters.len() >= limit || all.scanned >= MAX_SCANNED {
                break;
            }
        }
        Ok(all)
    }

    /// Leaves out letters whose tasks have moved on, with one read of the store per events partition and 500 tasks.
    async fn still_dead(&self, mut letters: Vec<DeadLetterRecord>) -> Result<Vec<DeadLetterRecord>, ApiError> {
        let mut wanted: BTreeMap<u32, BTreeSet<TaskId>> = BTreeMap::new();
        for (id, _) in letters.iter().filter_map(|letter| letter.task.as_ref()) {
            wanted.entry(self.publisher.partition_of(id)).or_default().insert(id.clone());
        }
        let reads = wanted.into_iter().map(|(partition, ids)| async move {
            let ids: Vec<TaskId> = ids.into_iter().collect();
            let nodes = self.nodes(partition, &ids).await?;
            Ok::<_, ApiError>(ids.into_iter().zip(nodes).filter_map(|(id, node)| Some((id, node?))).collect::<Vec<_>>())
        });
        let nodes: BTreeMap<TaskId, TaskRecord> = try_join_all(reads).await?.into_iter().flatten().collect();
        letters.retain(|letter| {
            let task = letter.task.as_ref().and_then(|(id, run)| Some((nodes.get(id)?, *run)));
            task.is_none_or(|(node, run)| !has_moved_on(node, run))
        });
        Ok(letters)
    }

    /// A letter, and what has become of it.
    async fn letter(&self, id: &LetterId) -> Result<(DeadLetterRecord, Option<Fate>), ApiError> {
        let (ledger, names, wanted) = (self.ledger.clone(), self.publisher.names().clone(), id.clone());
        let read = move |broker: &dyn Broker, _| ledger.letter(broker, &names, &wanted);
        let found = self.broker.with_deadline(READ_DEADLINE).call(read).await?;
        found.ok_or_else(|| ApiError::new(Code::NotFound, format!("there is no dead letter `{id}`, or it is no longer kept")))
    }

    /// What is said of a letter.
    async fn outcome(&self, letter: &DeadLetterRecord, settled: Option<Fate>) -> Result<Option<LetterOutcome>, ApiError> {
        let moved_on = match &letter.task {
            Some((id, run)) if settled.is_none() => self.look(id).await?.is_some_and(|found| has_moved_on(&found.node, *run)),
            _ => false,
        };
        Ok(match settled {
            Some(Fate::Dropped) => Some(LetterOutcome::Dropped),
            Some(Fate::Redriven) => Some(LetterOutcome::Redriven),
            None => moved_on.then_some(LetterOutcome::MovedOn),
        })
    }
}
