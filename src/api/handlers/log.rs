//! Endpoints that append to, read and follow a task's log.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::watch::{Events, StreamClosed, event_stream, wait_for_change};
use crate::api::documents::{AppendLog, EndReason, LogAppended, LogDocument, LogLine};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::http::response::json_answer;
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::api::state::Api;
use crate::model::event::log_line::lines_of;
use crate::model::event::{Event, Payload};
use crate::model::record::log_line;
use crate::publish::time_text;
use crate::runtime::now_ms;
use crate::store::StoreError;

const MAX_LINES: usize = 10_000;
const LINES: usize = 1_000;
/// Lines per stream event.
const LINES_PER_EVENT: usize = 500;

/// Hint after an append with an unknown outcome.
const REPEAT: &str = "repeating the request may append the lines twice";

/// `POST /v1/tasks/{id}/log`.
pub(crate) async fn append(request: ApiRequest) -> Result<Response, ApiError> {
    let AppendLog { lines } = request.json()?;
    if lines.is_empty() {
        return Err(ApiError::new(Code::BadField, "`lines` is empty").pointer("/lines"));
    }
    let lines = lines_of(lines.iter().map(String::as_str)).map_err(|(pointer, why)| {
        let pointer = pointer.map_or("/lines".to_owned(), |n| format!("/lines/{n}"));
        ApiError::new(Code::TooLarge, why)
            .pointer(pointer)
            .hint("send them in several requests, or attach them as a file")
    })?;
    let task = request.api.reads.find(&request.id()?, None).await?;
    let count = lines.len();
    let payload = Payload::Log { lines, dropped: 0 };
    let event = Event::new(payload, task.id.clone(), task.record.run, now_ms());
    let position = request.api.writes.publish_event(event).await.map_err(|error| error.hint_if_unknown(REPEAT))?;
    Ok(json_answer(202, &LogAppended { id: task.id.to_string(), lines: count, position: position.to_string() }))
}

/// `GET /v1/tasks/{id}/log`.
pub(crate) async fn page(request: ApiRequest) -> Result<Response, ApiError> {
    let document = page_document(&request).await?;
    if !prefers_text(&request.headers) {
        return Ok(json_answer(200, &document));
    }
    let text: String = document.lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect();
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// Whether the first media type of `accept` is text.
fn prefers_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split([',', ';']).next().is_some_and(|first| first.trim().eq_ignore_ascii_case("text/plain"))
}

pub(crate) async fn page_document(request: &ApiRequest) -> Result<LogDocument, ApiError> {
    let from = first_line(request)?;
    let limit = request.query.number("limit", LINES, 1..=MAX_LINES)?;
    let task = request.api.reads.find(&request.id()?, request.after()?).await?;
    log_page(&request.api, &task, from, limit).await
}

/// Reads the newest lines.
pub(crate) async fn newest_lines(request: &ApiRequest, limit: usize) -> Result<LogDocument, ApiError> {
    let task = request.api.reads.find(&request.id()?, request.after()?).await?;
    let from = u64::from(task.record.log.lines).saturating_sub(limit as u64);
    log_page(&request.api, &task, from, limit).await
}

/// `GET /v1/tasks/{id}/log/watch`.
pub(crate) async fn watch(request: ApiRequest) -> Result<Response, ApiError> {
    let (id, from) = (request.id()?, resume(&request)?);
    let subscription = request.api.reads.notices.subscribe(request.api.publisher.partition_of(&id), &id)?;
    let found = request.api.reads.find(&id, request.after()?).await?;
    let api = request.api.clone();
    Ok(event_stream(|events| async move { follow(&api, found, from, &subscription, events).await }))
}

fn first_line(request: &ApiRequest) -> Result<u64, ApiError> {
    request.query.number("from", 0, 0..=usize::MAX).map(|from| from as u64)
}

/// Resumes after the last line that the client received before it was disconnected.
fn resume(request: &ApiRequest) -> Result<u64, ApiError> {
    let last = request.last_event_id().and_then(|id| id.parse().ok());
    last.map_or_else(|| first_line(request), Ok)
}

async fn log_page(api: &Api, task: &TaskView, from: u64, limit: usize) -> Result<LogDocument, ApiError> {
    let page = api.reads.log_lines(task, from, limit).await?;
    let total = u64::from(task.record.log.lines).max(page.from + page.lines.len() as u64);
    let (id, dropped) = (task.id.to_string(), task.record.log.dropped);
    let lines = page.lines.iter().map(|line| read_line(line)).collect::<Result<_, _>>()?;
    Ok(LogDocument { id, from: page.from, lines, total, dropped })
}

fn read_line(stored: &str) -> Result<LogLine, StoreError> {
    let (at_ms, text) = log_line::decode(stored)
        .ok_or_else(|| StoreError::Invalid("a log line was written by another version and cannot be decoded".into()))?;
    Ok(LogLine { at: time_text(at_ms), text: text.to_owned() })
}

async fn follow(api: &Arc<Api>, found: TaskView, from: u64, subscription: &Subscription, mut events: Events) {
    let (id, mut from, mut newest) = (found.id.clone(), from, Some(found));
    loop {
        // Read the task before its lines: all lines of an ended task are stored.
        if let Some(found) = newest.take() {
            match send_lines(api, &found, &mut from, &mut events).await {
                Err(StreamClosed) => return,
                Ok(true) if found.record.state.is_terminal() => return events.end(EndReason::Finished),
                Ok(_) => {}
            }
        }
        newest = match wait_for_change(api, &id, subscription, &mut events).await {
            Ok(found) => found,
            Err(StreamClosed) => return,
        };
    }
}

/// Sends the lines from `from` on. Returns false if the store could not return all of them.
async fn send_lines(api: &Api, found: &TaskView, from: &mut u64, events: &mut Events) -> Result<bool, StreamClosed> {
    loop {
        let Ok(page) = log_page(api, found, *from, LINES_PER_EVENT).await else { return Ok(false) };
        if page.lines.is_empty() {
            return Ok(true);
        }
        *from = page.from + page.lines.len() as u64;
        events.send("lines", Some(&from.to_string()), &page).await?;
    }
}
