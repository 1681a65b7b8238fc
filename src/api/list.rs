//! `GET /v1/tasks`: list and search. An index gives the order and the first selection; what it cannot select is filtered
//! out of at most [`MAX_SCANNED`] records a request, and the cursor goes on behind the last one looked at.

use axum::response::Response;

use super::call::{Call, bad_parameter};
use super::cursor;
use super::documents::{Status, TaskPage};
use super::fresh::Found;
use super::merge::Merge;
use super::problem::Refusal;
use super::status::status;
use super::tasks::{MAX_PAGE, PAGE, json_answer};
use super::walk::Walk;
use crate::model::id::{TaskId, check_type};
use crate::model::state::State;
use crate::model::task::parse_time;
use crate::store::{Entry, Index};

/// Records looked at in one request.
pub const MAX_SCANNED: u64 = 10_000;
/// Records read at a time when filtering.
const BATCH: usize = 200;

pub async fn list(call: Call) -> Result<Response, Refusal> {
    let filter = Filter::read(&call)?;
    let limit = call.query.number("limit", PAGE, 1..=MAX_PAGE)?;
    let after = call.query.text("cursor").map(cursor::decode).transpose()?;
    let root = call.query.text("root").map(TaskId::parse).transpose();
    let root = root.map_err(|why| bad_parameter("root", &why.to_string()))?;
    let position = call.after()?;
    let source = match root {
        Some(root) => {
            let top = call.api.find(&root, position).await?;
            Source::Tree(Box::new(Walk::new(&call.api, top, after).await?))
        }
        None => {
            call.api.include(position).await?;
            let page = if filter.scans() { BATCH } else { limit + 1 };
            Source::Index(Merge::new(&call.api, filter.index(), filter.start(after), page))
        }
    };
    let page = Page::new(filter, limit).fill(source).await?;
    Ok(json_answer(200, &page))
}

enum Source<'a> {
    Tree(Box<Walk<'a>>),
    Index(Merge<'a>),
}

impl Source<'_> {
    async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<Found>)>, Refusal> {
        match self {
            Self::Tree(walk) => walk.next(limit).await,
            Self::Index(merge) => merge.next(limit).await,
        }
    }
}

/// What is asked for.
struct Filter {
    task_type: Option<String>,
    state: Option<State>,
    tag: Option<String>,
    creator: Option<String>,
    name: Option<String>,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    in_tree: bool,
}

impl Filter {
    fn read(call: &Call) -> Result<Self, Refusal> {
        let query = &call.query;
        let text = |name| query.text(name).map(str::to_owned);
        let time = |name| {
            let read = |text| parse_time(text).map_err(|why| bad_parameter(name, &why));
            query.text(name).map(read).transpose()
        };
        let task_type = text("type");
        if let Some(name) = &task_type {
            check_type(name).map_err(|why| bad_parameter("type", &why))?;
        }
        let state = query.parsed::<State>("state")?;
        let (from_ms, to_ms) = (time("from")?, time("to")?);
        let in_tree = query.text("root").is_some();
        Ok(Self { task_type, state, tag: text("tag"), creator: text("creator"), name: text("name"), from_ms, to_ms, in_tree })
    }

    /// The members of a type in a state, where there is an index of them.
    fn members(&self) -> Option<Index> {
        let state = self.state.filter(|state| state.is_indexed())?;
        Some(Index::Members { task_type: self.task_type.as_deref()?.into(), state })
    }

    fn index(&self) -> Index {
        self.members().unwrap_or(Index::Roots)
    }

    /// The index alone does not select.
    fn scans(&self) -> bool {
        let by_record = self.tag.is_some() || self.creator.is_some() || self.name.is_some();
        let by_kind = self.task_type.is_some() || self.state.is_some();
        by_record || (by_kind && (self.in_tree || self.members().is_none())) || (self.in_tree && self.has_times())
    }

    fn has_times(&self) -> bool {
        self.from_ms.is_some() || self.to_ms.is_some()
    }

    /// Where to begin in an index that runs from new to old: at the cursor, or at the end of the time range.
    fn start(&self, cursor: Option<Entry>) -> Option<Entry> {
        // No id sorts before `-`, so this place lies behind everything that was seen at that time or later.
        let end = self.to_ms.and_then(|to_ms| Some(Entry { seen_ms: to_ms, id: TaskId::parse("-").ok()? }));
        match (cursor, end) {
            (Some(cursor), Some(end)) => Some(cursor.min(end)),
            (cursor, end) => cursor.or(end),
        }
    }

    /// Nothing behind this entry can fit.
    fn is_past(&self, entry: &Entry) -> bool {
        !self.in_tree && self.from_ms.is_some_and(|from_ms| entry.seen_ms < from_ms)
    }

    fn fits(&self, found: &Found) -> bool {
        let node = &found.node;
        let policy = node.policy.as_deref();
        self.task_type.as_deref().is_none_or(|name| node.task_type.as_deref() == Some(name))
            && self.state.is_none_or(|state| node.state == state)
            && self.from_ms.is_none_or(|from_ms| node.seen_ms >= from_ms)
            && self.to_ms.is_none_or(|to_ms| node.seen_ms < to_ms)
            && self.tag.as_ref().is_none_or(|tag| policy.is_some_and(|policy| policy.tags.contains(tag)))
            && self.creator.as_deref().is_none_or(|creator| policy.and_then(|policy| policy.creator.as_deref()) == Some(creator))
            && self
                .name
                .as_deref()
                .is_none_or(|start| policy.and_then(|policy| policy.name.as_deref()).is_some_and(|name| name.starts_with(start)))
    }
}

/// A page being filled.
struct Page {
    filter: Filter,
    limit: usize,
    tasks: Vec<Status>,
    scanned: u64,
    last: Option<Entry>,
}

impl Page {
    fn new(filter: Filter, limit: usize) -> Self {
        Self { filter, limit, tasks: Vec::new(), scanned: 0, last: None }
    }

    async fn fill(mut self, mut source: Source<'_>) -> Result<TaskPage, Refusal> {
        let batch = if self.filter.scans() { BATCH } else { self.limit + 1 };
        loop {
            let entries = source.next(batch).await?;
            if entries.is_empty() {
                return Ok(self.done(false));
            }
            for (entry, found) in entries {
                if self.filter.is_past(&entry) {
                    return Ok(self.done(false));
                }
                if self.tasks.len() >= self.limit || self.scanned >= MAX_SCANNED {
                    return Ok(self.done(true));
                }
                self.take(entry, found);
            }
        }
    }

    fn take(&mut self, entry: Entry, found: Option<Found>) {
        self.scanned += 1;
        self.last = Some(entry);
        self.tasks.extend(found.filter(|found| self.filter.fits(found)).as_ref().map(status));
    }

    fn done(self, more: bool) -> TaskPage {
        let next = self.last.as_ref().filter(|_| more).map(cursor::encode);
        let scanned = self.filter.scans().then_some(self.scanned);
        TaskPage { tasks: self.tasks, next, scanned }
    }
}
