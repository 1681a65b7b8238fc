//! A task's log: appended, read in pages, followed.

use std::sync::Arc;

use axum::response::Response;

use super::task::json_answer;
use super::watch::{Events, Over, news, stream};
use crate::api::Api;
use crate::api::backends::{publish_event, stored};
use crate::api::documents::{AppendLog, EndReason, LogAppended, LogDocument};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::api::read::notices::Subscription;
use crate::model::event::log_line::lines_of;
use crate::model::event::{Event, Kind};
use crate::runtime::now_ms;

const MAX_LINES: usize = 10_000;
const LINES: usize = 1_000;
/// Lines in one event of a stream.
const AT_ONCE: usize = 500;

/// Advice after lines were appended with an unknown outcome.
const REPEAT: &str = "repeat the request; if it was written, the log has the lines twice then";

/// `POST /v1/tasks/{id}/log`.
pub async fn append(call: ApiRequest) -> Result<Response, ApiError> {
    let AppendLog { lines } = call.json()?;
    if lines.is_empty() {
        return Err(ApiError::new(Code::BadField, "there are no lines").pointer("/lines"));
    }
    let lines = lines_of(lines.iter().map(String::as_str)).map_err(|(place, why)| {
        let place = place.map_or("/lines".to_owned(), |n| format!("/lines/{n}"));
        ApiError::new(Code::TooLarge, why).pointer(place).hint("send them in several calls, or attach them as a file")
    })?;
    let task = call.api.find(&call.id()?, None).await?;
    let count = lines.len();
    let event = Event { lines, ..Event::new(Kind::Log, task.id.clone(), task.node.run, now_ms()) };
    let position = publish_event(&call.api, event).await.map_err(|refusal| refusal.hint_if_unknown(REPEAT))?;
    Ok(json_answer(202, &LogAppended { id: task.id.to_string(), lines: count, position: position.to_string() }))
}

/// `GET /v1/tasks/{id}/log`.
pub async fn page(call: ApiRequest) -> Result<Response, ApiError> {
    let from = first_line(&call)?;
    let limit = call.query.number("limit", LINES, 1..=MAX_LINES)?;
    let task = call.api.find(&call.id()?, call.after()?).await?;
    Ok(json_answer(200, &call.api.log_page(&task, from, limit).await?))
}

/// `GET /v1/tasks/{id}/log/watch`.
pub async fn watch(call: ApiRequest) -> Result<Response, ApiError> {
    let (id, from) = (call.id()?, resume(&call)?);
    let interest = call.api.hub.interest(call.api.publisher.partition_of(&id), &id)?;
    let found = call.api.find(&id, call.after()?).await?;
    let api = call.api.clone();
    Ok(stream(|events| async move { follow(&api, found, from, &interest, events).await }))
}

fn first_line(call: &ApiRequest) -> Result<u64, ApiError> {
    call.query.number("from", 0, 0..=usize::MAX).map(|from| from as u64)
}

/// A stream that was cut goes on behind the last line that its client has heard of.
fn resume(call: &ApiRequest) -> Result<u64, ApiError> {
    let heard = call.last_event_id().and_then(|id| id.parse().ok());
    heard.map_or_else(|| first_line(call), Ok)
}

impl Api {
    async fn log_page(&self, task: &TaskView, from: u64, limit: usize) -> Result<LogDocument, ApiError> {
        let page = stored(self.store.log_lines(task.partition, &task.id, from, limit)).await?;
        let total = u64::from(task.node.log_lines).max(page.from + page.lines.len() as u64);
        let (id, dropped) = (task.id.to_string(), task.node.log_dropped);
        Ok(LogDocument { id, from: page.from, lines: page.lines, total, dropped })
    }
}

async fn follow(api: &Arc<Api>, found: TaskView, from: u64, interest: &Subscription, mut events: Events) {
    let (id, mut from, mut newest) = (found.id.clone(), from, Some(found));
    loop {
        // The task is looked at before its lines: what it logged before its end is all there.
        if let Some(found) = newest.take() {
            match tell_lines(api, &found, &mut from, &mut events).await {
                Err(Over) => return,
                Ok(true) if found.node.state.is_terminal() => return events.end(EndReason::Finished),
                Ok(_) => {}
            }
        }
        newest = match news(api, &id, interest, &mut events).await {
            Ok(found) => found,
            Err(Over) => return,
        };
    }
}

/// Sends the lines from `from` on. False: the store could not tell all of them.
async fn tell_lines(api: &Api, found: &TaskView, from: &mut u64, events: &mut Events) -> Result<bool, Over> {
    loop {
        let Ok(page) = api.log_page(found, *from, AT_ONCE).await else { return Ok(false) };
        if page.lines.is_empty() {
            return Ok(true);
        }
        *from = page.from + page.lines.len() as u64;
        events.send("lines", Some(&from.to_string()), &page).await?;
    }
}
