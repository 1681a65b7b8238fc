//! Endpoints that append to, read and follow a task's log.

use std::sync::Arc;

use kafleet_documents::{AppendLog, EndReason, LogAppended, LogDocument, LogLine};
use kafleet_model::event::log_line::lines_of;
use kafleet_model::event::{Event, Payload};
use kafleet_model::record::log_line::StoredLine;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::StoreError;

use super::context::{After, RequestContext};
use super::watch::{Events, StreamClosed, event_stream, wait_for_change};
use crate::http::answer::EventStream;
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::read::notices::Subscription;
use crate::state::Api;

/// Maximum lines of a page.
pub(crate) const MAX_LINES: usize = 10_000;
/// Default number of lines of a page.
pub(crate) const DEFAULT_LINES: usize = 1_000;
/// Lines per stream event.
const LINES_PER_EVENT: usize = 500;

/// Hint after an append with an unknown outcome.
const REPEAT: &str = "repeating the request may append the lines twice";

/// Appends lines to the log of a task.
pub async fn append(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    AppendLog { lines }: AppendLog,
) -> Result<LogAppended, ApiError> {
    if lines.is_empty() {
        return Err(ApiError::new(Code::BadField, "`lines` is empty").pointer("/lines"));
    }
    let lines = lines_of(lines.iter().map(String::as_str)).map_err(|(pointer, reason)| {
        let pointer = pointer.map_or("/lines".to_owned(), |n| format!("/lines/{n}"));
        ApiError::new(Code::TooLarge, reason)
            .pointer(pointer)
            .hint("send them in several requests, or attach them as a file")
    })?;
    let task = api.reads.find(&id, None).await?;
    let count = lines.len();
    let event = Event::new(Payload::log(lines), task.id.clone(), task.record.run, now_ms());
    let position = api.writes.publish_event(event).await.map_err(|error| error.hint_if_unknown(REPEAT))?;
    Ok(LogAppended { id: task.id.to_string(), lines: count, position: position.to_string() })
}

/// Lines of a log.
pub enum Lines {
    /// Up to `limit` lines, beginning with line `from`; the oldest line ever logged is 0.
    From {
        from: u64,
        limit: usize,
    },
    Newest(usize),
}

/// Reads lines of the log of a task.
pub async fn page(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    lines: Lines,
    After(after): After,
) -> Result<LogDocument, ApiError> {
    let task = api.reads.find(&id, after).await?;
    let (from, limit) = match lines {
        Lines::From { from, limit } => (from, limit),
        Lines::Newest(limit) => (u64::from(task.record.log.lines).saturating_sub(limit as u64), limit),
    };
    log_page(&api, &task, from, limit).await
}

/// Follows the log of a task from a line on.
pub(crate) async fn watch(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    from: u64,
    After(after): After,
) -> Result<EventStream, ApiError> {
    let subscription = api.reads.notices.subscribe(api.topology.partition_of(&id), &id)?;
    let task = api.reads.find(&id, after).await?;
    Ok(event_stream(|events| async move { follow_log(&api, task, from, &subscription, events).await }))
}

async fn log_page(api: &Api, task: &TaskView, from: u64, limit: usize) -> Result<LogDocument, ApiError> {
    let page = api.reads.log_lines(task, from, limit).await?;
    // A page behind the end has no line, whatever it begins with.
    let end = if page.lines.is_empty() { 0 } else { page.from + page.lines.len() as u64 };
    let total = u64::from(task.record.log.lines).max(end);
    let (id, dropped) = (task.id.to_string(), task.record.log.dropped);
    let lines = page.lines.iter().map(|line| read_line(line)).collect::<Result<_, _>>()?;
    Ok(LogDocument { id, from: page.from, lines, total, dropped })
}

fn read_line(stored: &str) -> Result<LogLine, StoreError> {
    let line = StoredLine::decode(stored)
        .ok_or_else(|| StoreError::Invalid("a log line was written by another version and cannot be decoded".into()))?;
    let StoredLine { at_ms, run, attempt, stream, text } = line;
    Ok(LogLine { at: time_text(at_ms), run, attempt, stream, text: text.to_owned() })
}

async fn follow_log(api: &Arc<Api>, task: TaskView, from: u64, subscription: &Subscription, mut events: Events) {
    let (id, mut from, mut newest) = (task.id.clone(), from, Some(task));
    loop {
        // Read the task before its lines: all lines of an ended task are stored.
        if let Some(task) = newest.take() {
            match send_lines(api, &task, &mut from, &mut events).await {
                Err(StreamClosed) => return,
                Ok(true) if task.record.state.is_terminal() => return events.end(EndReason::Finished),
                Ok(_) => {}
            }
        }
        newest = match wait_for_change(api, &id, subscription, &mut events).await {
            Ok(task) => task,
            Err(StreamClosed) => return,
        };
    }
}

/// Sends the lines from `from` on. Returns false if the store could not return all of them.
async fn send_lines(api: &Api, task: &TaskView, from: &mut u64, events: &mut Events) -> Result<bool, StreamClosed> {
    loop {
        let Ok(page) = log_page(api, task, *from, LINES_PER_EVENT).await else { return Ok(false) };
        if page.lines.is_empty() {
            return Ok(true);
        }
        *from = page.from + page.lines.len() as u64;
        events.send("lines", Some(&from.to_string()), &page).await?;
    }
}
