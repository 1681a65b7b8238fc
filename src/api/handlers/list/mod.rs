//! `GET /v1/tasks`: list and search. An index gives the order and the first selection; what it cannot select is filtered
//! out of at most [`MAX_SCANNED`] records a request, for at most [`MAX_SCAN_TIME`], and the cursor goes on behind the last
//! one looked at.

use std::time::Duration;

use axum::response::Response;
use tokio::time::Instant;

use super::task::{MAX_PAGE, PAGE, json_answer};
use crate::api::Api;
use crate::api::documents::{Status, TaskPage};
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::read::consistency::TaskView;
use crate::api::read::cursor;
use crate::api::read::merge::Merge;
use crate::api::read::status::status;
use crate::api::read::tree_walk::TreeWalk;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index};
use all_trees::AllTrees;
use filter::{Filter, Level};

mod all_trees;
mod error_fingerprint;
mod filter;

/// Records looked at in one request.
pub const MAX_SCANNED: u64 = 10_000;
/// How long one request looks at records.
const MAX_SCAN_TIME: Duration = Duration::from_secs(2);
/// Records read at a time when filtering.
const BATCH: usize = 200;

pub async fn list(call: ApiRequest) -> Result<Response, ApiError> {
    let mut filter = Filter::read(&call)?;
    let limit = call.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let after = call.query.text("cursor").map(cursor::decode).transpose()?;
    let root = call.query.text("root").map(TaskId::parse).transpose();
    let root = root.map_err(|why| bad_parameter("root", &why.to_string()))?;
    if root.is_some() && call.query.text("level").is_some() {
        return Err(bad_parameter("level", "with `root`, tasks of any level are listed: leave it out"));
    }
    let position = call.after()?;
    let (source, scans) = match root {
        Some(root) => {
            filter.level = Level::Any;
            let top = call.api.find(&root, position).await?;
            let scans = filter.has_details() || filter.has_kind() || filter.has_times();
            (Source::Tree(Box::new(TreeWalk::new(&call.api, top, after).await?)), scans)
        }
        None => {
            call.api.include(position).await?;
            Source::open(&call.api, &filter, after, limit).await?
        }
    };
    let page = Page { filter, limit, scans, begun: Instant::now(), tasks: Vec::new(), scanned: 0, last: None };
    Ok(json_answer(200, &page.fill(source).await?))
}

enum Source<'a> {
    Tree(Box<TreeWalk<'a>>),
    AllTrees(Box<AllTrees<'a>>),
    Index(Merge<'a>),
}

impl<'a> Source<'a> {
    /// The best that there is for a filter, and whether there is more in it than fits.
    async fn open(api: &'a Api, filter: &Filter, after: Option<Entry>, limit: usize) -> Result<(Self, bool), ApiError> {
        let start = filter.start(after);
        if let Some(state) = filter.indexed_state() {
            let scans = filter.has_details() || filter.level == Level::Roots;
            let indexes = members(api, filter, state).await?;
            return Ok((Self::Index(Merge::new(api, indexes, start, if scans { BATCH } else { limit + 1 })), scans));
        }
        let scans = filter.has_details() || filter.has_kind();
        match filter.level {
            Level::Any => Ok((Self::AllTrees(Box::new(AllTrees::new(api, start).await?)), scans || filter.has_times())),
            Level::Roots => {
                Ok((Self::Index(Merge::new(api, vec![Index::Roots], start, if scans { BATCH } else { limit + 1 })), scans))
            }
        }
    }

    async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        match self {
            Self::Tree(walk) => walk.next(limit).await,
            Self::AllTrees(grove) => grove.next(limit).await,
            Self::Index(merge) => merge.next(limit).await,
        }
    }

    /// Nothing behind this entry can fit.
    fn is_past(&self, filter: &Filter, entry: &Entry) -> bool {
        matches!(self, Self::Index(_)) && filter.is_before(entry)
    }
}

/// The indexes of the tasks in a state: of the type, or of every type that has some.
async fn members(api: &Api, filter: &Filter, state: State) -> Result<Vec<Index>, ApiError> {
    if let Some(task_type) = &filter.task_type {
        return Ok(vec![Index::Members { task_type: task_type.as_str().into(), state }]);
    }
    let counts = api.counts().await?;
    let has = counts.into_iter().filter(|(_, counts)| counts.contains_key(&state));
    Ok(has.map(|(task_type, _)| Index::Members { task_type: task_type.into(), state }).collect())
}

/// A page being filled.
struct Page {
    filter: Filter,
    limit: usize,
    /// There is more in the source than fits.
    scans: bool,
    begun: Instant,
    tasks: Vec<Status>,
    scanned: u64,
    last: Option<Entry>,
}

/// Why a page ends.
#[derive(PartialEq, Eq)]
enum End {
    /// There is no more.
    Last,
    Full,
    /// Enough was looked at.
    Early,
}

impl Page {
    async fn fill(mut self, mut source: Source<'_>) -> Result<TaskPage, ApiError> {
        let batch = if self.scans { BATCH } else { self.limit + 1 };
        loop {
            let entries = source.next(batch).await?;
            if entries.is_empty() {
                return Ok(self.done(End::Last));
            }
            for (entry, found) in entries {
                if source.is_past(&self.filter, &entry) {
                    return Ok(self.done(End::Last));
                }
                if self.tasks.len() >= self.limit {
                    return Ok(self.done(End::Full));
                }
                if self.has_looked_enough() {
                    return Ok(self.done(End::Early));
                }
                self.take(entry, found);
            }
        }
    }

    fn has_looked_enough(&self) -> bool {
        self.scans && self.scanned > 0 && (self.scanned >= MAX_SCANNED || self.begun.elapsed() >= MAX_SCAN_TIME)
    }

    fn take(&mut self, entry: Entry, found: Option<TaskView>) {
        self.scanned += 1;
        self.last = Some(entry);
        self.tasks.extend(found.filter(|found| self.filter.fits(found)).as_ref().map(status));
    }

    fn done(self, end: End) -> TaskPage {
        let next = self.last.as_ref().filter(|_| end != End::Last).map(cursor::encode);
        let early = end == End::Early;
        let hint = early.then(|| {
            format!(
                "stopped after {} tasks, of which {} fit: `cursor` with the value of `next` goes on; `from` and `to`, `root`, or \
                 a `state` that is indexed make the search shorter",
                self.scanned,
                self.tasks.len()
            )
        });
        TaskPage { tasks: self.tasks, next, scanned: self.scans.then_some(self.scanned), stopped_early: early, hint }
    }
}
