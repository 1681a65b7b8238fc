//! `GET /v1/tasks`: lists and searches tasks. One index provides the order and applies the filters that it covers. The
//! other filters are applied to the records of the index, at most [`MAX_SCANNED`] records or [`MAX_SCAN_TIME`] per
//! request; the cursor continues after the last scanned record.

use std::time::Duration;

use axum::response::Response;
use tokio::time::Instant;

use crate::api::documents::{Status, TaskPage};
use crate::api::http::problem::ApiError;
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::api::http::response::{MAX_PAGE, PAGE, json_answer};
use crate::api::read::consistency::TaskView;
use crate::api::read::cursor;
use crate::api::read::merge::Merge;
use crate::api::read::status::status;
use crate::api::read::tree_walk::TreeWalk;
use crate::api::state::Api;
use crate::model::record::state::State;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index};
use all_trees::AllTrees;
use filter::{Filter, Level};

mod all_trees;
mod filter;

/// Maximum records scanned per request.
pub(crate) const MAX_SCANNED: u64 = 10_000;
/// Maximum time spent scanning per request.
const MAX_SCAN_TIME: Duration = Duration::from_secs(2);
/// Records read at a time while scanning.
const BATCH: usize = 200;

pub(crate) async fn list(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &task_page(&request).await?))
}

pub(crate) async fn task_page(request: &ApiRequest) -> Result<TaskPage, ApiError> {
    let mut filter = Filter::read(request)?;
    let limit = request.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let after = request.query.text("cursor").map(cursor::decode).transpose()?;
    let root = request.query.text("root").map(TaskId::parse).transpose();
    let root = root.map_err(|why| bad_parameter("root", &why.to_string()))?;
    if root.is_some() && request.query.text("level").is_some() {
        return Err(bad_parameter("level", "`root` lists tasks of all levels: omit `level`"));
    }
    let position = request.after()?;
    let (source, scans) = match root {
        Some(root) => {
            filter.level = Level::Any;
            let top = request.api.reads.find(&root, position).await?;
            let scans = filter.filters_details() || filter.filters_kind() || filter.filters_time();
            (Source::Tree(Box::new(TreeWalk::new(&request.api.reads, top, after).await?)), scans)
        }
        None => {
            request.api.reads.wait_for_position(position).await?;
            Source::open(&request.api, &filter, after, limit).await?
        }
    };
    let page = Page { filter, limit, scans, started: Instant::now(), tasks: Vec::new(), scanned: 0, last: None };
    page.fill(source).await
}

/// Sequence of tasks from which a page is filled.
enum Source<'a> {
    Tree(Box<TreeWalk<'a>>),
    AllTrees(Box<AllTrees<'a>>),
    Index(Merge<'a>),
}

impl<'a> Source<'a> {
    /// Opens the narrowest source for a filter. Returns true with it if the source may contain tasks that do not match.
    async fn open(api: &'a Api, filter: &Filter, after: Option<Entry>, limit: usize) -> Result<(Self, bool), ApiError> {
        let start = filter.start(after);
        if let Some(state) = filter.indexed_state() {
            let scans = filter.filters_details() || filter.level == Level::Roots;
            let indexes = state_indexes(api, filter, state).await?;
            return Ok((
                Self::Index(Merge::new(&api.reads, indexes, start, if scans { BATCH } else { limit + 1 })),
                scans,
            ));
        }
        let scans = filter.filters_details() || filter.filters_kind();
        match filter.level {
            Level::Any => {
                Ok((Self::AllTrees(Box::new(AllTrees::new(&api.reads, start).await?)), scans || filter.filters_time()))
            }
            Level::Roots => Ok((
                Self::Index(Merge::new(&api.reads, vec![Index::Roots], start, if scans { BATCH } else { limit + 1 })),
                scans,
            )),
        }
    }

    async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        match self {
            Self::Tree(tree_walk) => tree_walk.next(limit).await,
            Self::AllTrees(trees) => trees.next(limit).await,
            Self::Index(merge) => merge.next(limit).await,
        }
    }

    /// Whether no later entry can match.
    fn is_exhausted_at(&self, filter: &Filter, entry: &Entry) -> bool {
        matches!(self, Self::Index(_)) && filter.is_before(entry)
    }
}

/// Lists the indexes for a state: of one type, or of all types with tasks in that state.
async fn state_indexes(api: &Api, filter: &Filter, state: State) -> Result<Vec<Index>, ApiError> {
    if let Some(task_type) = &filter.task_type {
        return Ok(vec![Index::Members { task_type: task_type.as_str().into(), state }]);
    }
    let counts = api.reads.counts().await?;
    let has = counts.into_iter().filter(|(_, counts)| counts.contains_key(&state));
    Ok(has.map(|(task_type, _)| Index::Members { task_type: task_type.into(), state }).collect())
}

/// Page under construction.
struct Page {
    filter: Filter,
    limit: usize,
    /// The source may contain tasks that do not match, so larger batches are read and the scan limits apply.
    scans: bool,
    started: Instant,
    tasks: Vec<Status>,
    scanned: u64,
    /// Last entry that was scanned, from which the next page continues.
    last: Option<Entry>,
}

/// Reason why a page ends.
#[derive(PartialEq, Eq)]
enum End {
    /// The source is exhausted.
    Last,
    Full,
    /// The scan limit was reached.
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
                if source.is_exhausted_at(&self.filter, &entry) {
                    return Ok(self.done(End::Last));
                }
                if self.tasks.len() >= self.limit {
                    return Ok(self.done(End::Full));
                }
                if self.is_over_budget() {
                    return Ok(self.done(End::Early));
                }
                self.take(entry, found);
            }
        }
    }

    fn is_over_budget(&self) -> bool {
        self.scans && self.scanned > 0 && (self.scanned >= MAX_SCANNED || self.started.elapsed() >= MAX_SCAN_TIME)
    }

    fn take(&mut self, entry: Entry, found: Option<TaskView>) {
        self.scanned += 1;
        self.last = Some(entry);
        self.tasks.extend(found.filter(|found| self.filter.matches(found)).as_ref().map(status));
    }

    fn done(self, end: End) -> TaskPage {
        let next = self.last.as_ref().filter(|_| end != End::Last).map(cursor::encode);
        let early = end == End::Early;
        let hint = early.then(|| {
            format!(
                "stopped after scanning {} tasks, {} of which match: pass `next` as `cursor` to continue; `from` and \
                 `to`, `root`, or an indexed `state` shorten the search",
                self.scanned,
                self.tasks.len()
            )
        });
        TaskPage { tasks: self.tasks, next, scanned: self.scans.then_some(self.scanned), stopped_early: early, hint }
    }
}
