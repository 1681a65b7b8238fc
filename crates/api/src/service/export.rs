//! Export of the tasks of a search as lines of text.
//!
//! In: a search. Out: a stream of lines, the last of which says whether it is complete. The store is read page by page, the
//! next one only after the client has taken the last, so that the memory of an export is that of two pages. Exports at
//! once are few, and each ends at a deadline, also if its client reads no more.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kafleet_documents::{ExportEnd, ExportFormat, ExportLines, TaskColumns};
use kafleet_model::query::TaskQuery;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::context::RequestContext;
use super::list::{MAX_SCAN_TIME, Matches, matches};
use crate::http::problem::{ApiError, Code};
use crate::read::reads::{MAX_EXPORTS, Reads};
use crate::read::status::status;

/// Default number of exported tasks.
pub const DEFAULT_TASKS: usize = 10_000;
/// Maximum number of exported tasks.
pub const MAX_TASKS: usize = 1_000_000;
/// Tasks read at a time.
const PAGE: usize = 500;
/// Time between two pages: other reads of the store come first.
const PAGE_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time of an export.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Maximum time in which the client takes a page.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Export of a search.
#[derive(Clone, Debug)]
pub struct ExportQuery {
    pub query: TaskQuery,
    pub format: ExportFormat,
    /// `None`: whole documents, or the default columns of CSV.
    pub columns: Option<TaskColumns>,
    /// Maximum number of tasks.
    pub limit: usize,
    /// Continues an earlier export.
    pub cursor: Option<String>,
}

/// Starts an export. The first page is read before the answer, so that its errors have a status code of their own.
pub async fn export(RequestContext { api, .. }: RequestContext, export: ExportQuery) -> Result<Response, ApiError> {
    let busy = || {
        ApiError::new(Code::Overloaded, format!("{MAX_EXPORTS} exports are running")).hint("retry when one has ended")
    };
    let permit = api.reads.exports.clone().try_acquire_owned().map_err(|_| busy())?;
    let ExportQuery { query, format, columns, limit, cursor } = export;
    let first = matches(&api.reads, query.clone(), cursor.as_deref(), PAGE.min(limit), MAX_SCAN_TIME).await?;
    let lines = ExportLines::new(format, columns.map(|columns| columns.0));
    let (sender, receiver) = mpsc::channel(1);
    let deadline = Instant::now() + MAX_TIME;
    let running = RunningExport { reads: api.reads.clone(), query, lines, sender, deadline, tasks: 0, limit };
    kafleet_runtime::spawn(running.run(first, permit));
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>));
    let name = format!("attachment; filename=\"tasks.{}\"", format.name());
    let headers = [(header::CONTENT_TYPE, format.media_type().to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, body).into_response())
}

/// Export in progress.
struct RunningExport {
    reads: Reads,
    query: TaskQuery,
    lines: ExportLines,
    sender: Sender<Bytes>,
    deadline: Instant,
    /// Number of tasks exported so far.
    tasks: usize,
    limit: usize,
}

/// The client has disconnected, or is too slow.
struct ClientGone;

impl RunningExport {
    async fn run(mut self, first: Matches, permit: OwnedSemaphorePermit) {
        if self.write_all(first).await.is_err() {
            tracing::debug!(tasks = self.tasks, "an export ended before its client had taken it");
        }
        drop(permit);
    }

    async fn write_all(&mut self, first: Matches) -> Result<(), ClientGone> {
        self.send(self.lines.head()).await?;
        let mut page = first;
        loop {
            let next = page.next.take();
            self.send_tasks(page).await?;
            let Some(cursor) = next else { return self.send_end(None, None).await };
            if let Some(reason) = self.limit_reached() {
                return self.send_end(Some(reason.to_owned()), Some(cursor)).await;
            }
            tokio::time::sleep(PAGE_INTERVAL).await;
            let limit = PAGE.min(self.limit - self.tasks);
            page = match matches(&self.reads, self.query.clone(), Some(&cursor), limit, MAX_SCAN_TIME).await {
                Ok(page) => page,
                Err(error) => return self.send_end(Some(error.document().detail), Some(cursor)).await,
            };
        }
    }

    /// Reason why an export ends before the list does.
    fn limit_reached(&self) -> Option<&'static str> {
        if self.tasks >= self.limit {
            return Some("the limit is reached");
        }
        if self.reads.shutdown.is_draining() {
            return Some("this API stops");
        }
        (Instant::now() >= self.deadline).then_some("the time of an export is over")
    }

    async fn send_tasks(&mut self, page: Matches) -> Result<(), ClientGone> {
        self.tasks += page.tasks.len();
        let text: String = page.tasks.iter().map(|task| self.lines.task(&status(task))).collect();
        self.send(text).await
    }

    async fn send_end(&self, reason: Option<String>, next: Option<String>) -> Result<(), ClientGone> {
        let incomplete = self.reads.incomplete().await.unwrap_or_default();
        let reason = reason.or_else(|| {
            let gap = "the store has lost data, or no tracker projects some partitions: tasks are missing";
            (!incomplete.is_empty()).then(|| gap.to_owned())
        });
        let end = ExportEnd { complete: reason.is_none(), tasks: self.tasks as u64, reason, next };
        self.send(self.lines.end(&end)).await
    }

    /// Waits until the client has taken the last page.
    async fn send(&self, text: String) -> Result<(), ClientGone> {
        if text.is_empty() {
            return Ok(());
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let sent = self.sender.send_timeout(Bytes::from(text), left.min(SLOW_CLIENT_TIMEOUT)).await;
        sent.map_err(|_| ClientGone)
    }
}
