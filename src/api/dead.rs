//! Dead letters: list, show, drop, redrive.

use axum::response::Response;
use data_encoding::{BASE64, BASE64URL_NOPAD};

use super::Api;
use super::call::{Call, bad_parameter};
use super::documents::{DeadLetter, DeadOutcome, DeadPage, DeadRecord, DeadRefusal, DeadSelection};
use super::fresh::Found;
use super::outside::detached;
use super::problem::{Code, Refusal};
use super::tasks::{MAX_PAGE, PAGE, json_answer};
use crate::broker::{Outgoing, Partition};
use crate::dead::{Bounds, Fate, Filter, Letter, LetterId, Page, mark_headers};
use crate::model::event::{Event, Kind};
use crate::model::id::{check_type, clip};
use crate::model::json::RawJson;
use crate::model::outbox::KeptRecord;
use crate::model::task::{Position, header, parse_time};
use crate::publish::{PUBLISH_DEADLINE, time_text};
use crate::runtime::now_ms;

/// How long reading letters may take: a long topic is read whole once.
const READ_DEADLINE: std::time::Duration = std::time::Duration::from_secs(25);
/// Letters in one selection.
const MAX_SELECTED: usize = 1_000;
const SELECTED: usize = 100;

/// `GET /v1/dead`.
pub async fn list(call: Call) -> Result<Response, Refusal> {
    let text = |name| call.query.text(name).map(str::to_owned);
    let filter = Filter {
        task_type: text("type"),
        code: text("code"),
        from_ms: time("from", call.query.text("from"))?,
        to_ms: time("to", call.query.text("to"))?,
    };
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
pub async fn show(call: Call) -> Result<Response, Refusal> {
    let (letter, done_with) = call.api.letter(&letter_id(&call.segment)?).await?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|_| BASE64.encode(bytes), str::to_owned);
    let original = &letter.original;
    let value = original.value.as_deref().unwrap_or_default();
    let params = RawJson::parse(value).ok();
    let record = DeadRecord {
        letter: document(&letter),
        done_with,
        key: original.key.as_deref().map(text),
        headers: original.headers.iter().map(|(name, value)| (name.clone(), value.as_deref().map(text))).collect(),
        value_base64: (params.is_none() && !value.is_empty()).then(|| BASE64.encode(value)),
        params,
    };
    Ok(json_answer(200, &record))
}

/// `POST /v1/dead/{letter}/drop` and `/redrive`.
pub async fn one(call: Call, fate: Fate) -> Result<Response, Refusal> {
    let id = letter_id(&call.segment)?;
    let api = call.api.clone();
    detached(async move { api.settle(&id, fate).await }).await?;
    let done = vec![call.segment];
    Ok(json_answer(200, &DeadOutcome { done, refused: Vec::new(), more: false }))
}

/// `POST /v1/dead/drop` and `/redrive`.
pub async fn many(call: Call, fate: Fate) -> Result<Response, Refusal> {
    let selection: DeadSelection = call.json()?;
    check_type(&selection.task_type).map_err(|why| Refusal::new(Code::BadField, why).pointer("/type"))?;
    let limit = selection.limit.unwrap_or(SELECTED);
    if !(1..=MAX_SELECTED).contains(&limit) {
        return Err(Refusal::new(Code::BadField, format!("{limit} is not from 1 to {MAX_SELECTED}")).pointer("/limit"));
    }
    let filter = Filter {
        task_type: Some(selection.task_type),
        code: selection.code,
        from_ms: field_time("/from", selection.from.as_deref())?,
        to_ms: field_time("/to", selection.to.as_deref())?,
    };
    let page = call.api.letters(filter, None, limit).await?;
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for letter in page.letters {
        let (api, id) = (call.api.clone(), letter.id.clone());
        match detached(async move { api.settle(&id, fate).await }).await {
            Ok(()) => done.push(letter.id.to_string()),
            Err(refusal) => refused.push(DeadRefusal { letter: letter.id.to_string(), why: refusal.document().detail }),
        }
    }
    Ok(json_answer(200, &DeadOutcome { done, refused, more: page.next.is_some() }))
}

fn letter_id(text: &str) -> Result<LetterId, Refusal> {
    let id: LetterId = text.parse().map_err(|why: String| Refusal::new(Code::BadId, format!("`{}`: {why}", clip(text))))?;
    check_type(&id.task_type).map_err(|why| Refusal::new(Code::BadId, why))?;
    Ok(id)
}

fn time(name: &str, text: Option<&str>) -> Result<Option<i64>, Refusal> {
    text.map(|text| parse_time(text).map_err(|why| bad_parameter(name, &why))).transpose()
}

fn field_time(pointer: &str, text: Option<&str>) -> Result<Option<i64>, Refusal> {
    let read = |text| parse_time(text).map_err(|why| Refusal::new(Code::BadField, why).pointer(pointer));
    text.map(read).transpose()
}

fn document(letter: &Letter) -> DeadLetter {
    DeadLetter {
        id: letter.id.to_string(),
        task_type: letter.id.task_type.clone(),
        task: letter.task.as_ref().map(ToString::to_string),
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

fn read_cursor(api: &Api, text: &str) -> Result<Bounds, Refusal> {
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
        Refusal::new(Code::BadCursor, "`cursor` is not one that this list gave").hint("leave it out to begin at the first page")
    })
}

impl Api {
    async fn letters(&self, filter: Filter, bounds: Option<Bounds>, limit: usize) -> Result<Page, Refusal> {
        let (ledger, names) = (self.ledger.clone(), self.publisher.names().clone());
        self.kafka(READ_DEADLINE, move |broker| ledger.page(broker, &names, &filter, bounds.as_ref(), limit)).await
    }

    async fn letter(&self, id: &LetterId) -> Result<(Letter, bool), Refusal> {
        let (ledger, names, wanted) = (self.ledger.clone(), self.publisher.names().clone(), id.clone());
        let found = self.kafka(READ_DEADLINE, move |broker| ledger.letter(broker, &names, &wanted)).await?;
        found.ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no dead letter `{id}`, or it is no longer kept")))
    }

    /// Drops or redrives one letter, and marks it.
    async fn settle(&self, id: &LetterId, fate: Fate) -> Result<(), Refusal> {
        let (letter, done_with) = self.letter(id).await?;
        if done_with {
            return Err(Refusal::new(Code::AlreadyDone, format!("the dead letter `{id}` has been dropped or redriven before")));
        }
        let task = self.task_of(&letter).await?;
        match (fate, &task) {
            (Fate::Dropped, Some(task)) => self.tell_dropped(task, id).await?,
            (Fate::Dropped, None) => {}
            (Fate::Redriven, _) if letter.by_reference && letter.original.value.is_none() => return Err(gone(&letter)),
            (Fate::Redriven, Some(task)) => self.retry_from(task, &letter).await?,
            (Fate::Redriven, None) => self.publish_again(&letter).await?,
        }
        self.mark(id, fate).await
    }

    /// The task that a letter is about, where one has a record.
    async fn task_of(&self, letter: &Letter) -> Result<Option<Found>, Refusal> {
        let Some(id) = &letter.task else { return Ok(None) };
        let found = self.find_any(id).await?;
        // The key of a record without an id may be another task's name.
        let is_it = |found: &Found| {
            let named = letter.original.headers.iter().any(|(name, _)| name == header::ID);
            let place = letter.source.as_ref().map(|(_, partition, offset)| Position { partition: *partition, offset: *offset });
            named || found.node.position == place
        };
        Ok(found.filter(is_it))
    }

    async fn tell_dropped(&self, task: &Found, id: &LetterId) -> Result<(), Refusal> {
        let mut event = Event::new(Kind::DeadDropped, task.id.clone(), task.node.run, now_ms());
        event.message = Some(format!("the dead letter {id} was dropped"));
        self.publisher.publish_event(&event).await?;
        Ok(())
    }

    /// A new run of the task, with the record as the letter has it: its own may be gone.
    async fn retry_from(&self, task: &Found, letter: &Letter) -> Result<(), Refusal> {
        if !task.node.state.is_terminal() {
            let why = format!("`{}` is {}: only what has ended can be redriven", task.id, task.node.state);
            return Err(Refusal::new(Code::NotFinished, why).hint("wait for its end; a retry may be under way already"));
        }
        let mut event = Event::new(Kind::RetryRequested, task.id.clone(), task.node.run, now_ms());
        event.message = Some(format!("redriven from the dead letter {}", letter.id));
        event.record = kept(letter).map(Box::new);
        self.publisher.publish_event(&event).await?;
        Ok(())
    }

    /// The record as it was, to its topic: no task came of it so far.
    async fn publish_again(&self, letter: &Letter) -> Result<(), Refusal> {
        let original = &letter.original;
        let topic = self.publisher.names().tasks(&letter.id.task_type);
        let headers: Vec<(&str, &[u8])> =
            original.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default())).collect();
        let record = Outgoing {
            topic: &topic,
            partition: None,
            key: original.key.as_deref(),
            value: original.value.as_deref(),
            headers: &headers,
        };
        self.publisher.link().deliver(record, PUBLISH_DEADLINE).await?;
        Ok(())
    }

    async fn mark(&self, id: &LetterId, fate: Fate) -> Result<(), Refusal> {
        let topic = self.publisher.names().dead(&id.task_type);
        let headers = mark_headers(id.offset, fate, now_ms());
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let record = Outgoing { topic: &topic, partition: Some(id.partition), key: None, value: None, headers: &headers };
        let marked = self.publisher.link().deliver(record, PUBLISH_DEADLINE).await;
        marked.map_err(|error| {
            Refusal::from(error).hint("the letter was taken care of, but it is not marked: it still shows in the list")
        })?;
        Ok(())
    }
}

/// None: it cannot be carried in an event, so the task's own record has to do.
fn kept(letter: &Letter) -> Option<KeptRecord> {
    if letter.by_reference {
        return None;
    }
    let original = &letter.original;
    let headers = original.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()));
    let params = RawJson::parse(original.value.as_deref()?).ok()?;
    Some(KeptRecord::of(original.key.as_deref(), headers, params))
}

/// The record that a letter only speaks of is no longer there.
fn gone(letter: &Letter) -> Refusal {
    let (id, source) = (&letter.id, document(letter).source.unwrap_or_default());
    let why = format!("the dead letter `{id}` holds no record, and the one at {source} is no longer kept");
    Refusal::new(Code::ParamsGone, why).hint("submit the task anew, or drop the letter")
}
