//! Lists of tasks in an order that no index has: the newest matching tasks are read within the bounds of a scan, and those
//! are sorted. The page states how many they are, and whether they are all.

use std::time::Duration;

use kafleet_documents::{SortedTasks, TaskPage, TaskSort};
use kafleet_model::query::TaskQuery;
use kafleet_runtime::now_ms;
use kafleet_store::Entry;
use tokio::time::Instant;

use super::filter::Filter;
use super::{Matches, list, matches, with_other_levels};
use crate::http::problem::ApiError;
use crate::http::request::bad_parameter;
use crate::read::consistency::TaskView;
use crate::read::cursor;
use crate::read::reads::Reads;
use crate::read::status::state_since;
use crate::service::context::{After, Paging, RequestContext};

/// Maximum number of matching tasks that are sorted.
const MAX_SORTED: u64 = super::MAX_SCANNED;
/// Tasks read at a time.
const BATCH: usize = 500;

/// Lists tasks that match a query in this order. `scan_time`: time after which no further tasks are read.
pub async fn list_sorted(
    context: RequestContext,
    query: TaskQuery,
    sort: TaskSort,
    paging: Paging,
    after: After,
    scan_time: Duration,
) -> Result<TaskPage, ApiError> {
    if sort == TaskSort::Newest {
        return list(context, query, paging, after, scan_time).await;
    }
    let Paging { cursor, limit } = paging;
    check(&Filter::new(query.clone(), now_ms())?, sort)?;
    let reads = &context.api.reads;
    reads.wait_for_position(after.0).await?;
    let end = Instant::now() + scan_time;
    let start = cursor.as_deref().map(cursor::decode).transpose()?;
    let mut first = FirstTasks { sort, start, limit: limit.saturating_add(1), tasks: Vec::new() };
    let read = first.read(reads, &query, end).await?;
    let page = first.into_page(read, limit);
    if cursor.is_some() { Ok(page) } else { with_other_levels(reads, query, page, end).await }
}

/// Whether a query permits an order.
pub fn can_sort(query: &TaskQuery, sort: TaskSort) -> bool {
    let filter = Filter::new(query.clone(), now_ms());
    sort == TaskSort::Newest || filter.is_ok_and(|filter| check(&filter, sort).is_ok())
}

/// Refuses an order that would compare an arbitrary part of the tasks.
fn check(filter: &Filter, sort: TaskSort) -> Result<(), ApiError> {
    let are_open = !filter.states.is_empty() && filter.states.iter().all(|state| !state.is_terminal());
    if sort == TaskSort::Longest && !are_open {
        let reason = "`longest` compares how long open tasks have been in their state: the search names no open state, or others";
        return Err(bad_parameter("sort", reason).hint("add, for example, `state:running`"));
    }
    if filter.is_narrow() {
        return Ok(());
    }
    let reason = format!(
        "no index has these tasks in the order `{}`, and the newest ones alone would not show which come first",
        sort.name()
    );
    let hint = "add an indexed state (`running`, `retrying`, `scheduled`, `cancelling`, `warning`, `failed`, `cancelled`), \
                a tree (`under:`), ids, or a time (`from:`)";
    Err(bad_parameter("sort", &reason).hint(hint))
}

/// Tasks that come first in an order, after a cursor.
struct FirstTasks {
    sort: TaskSort,
    /// Last task of the previous page.
    start: Option<Entry>,
    limit: usize,
    /// Tasks with their keys, at most `limit` after each batch.
    tasks: Vec<(Entry, TaskView)>,
}

/// Effort of reading the tasks to sort.
struct SortedRead {
    /// Last page of tasks that was read.
    last: Matches,
    matching: u64,
    scanned: Option<u64>,
    /// Number of matches, if counters know it.
    total: Option<u64>,
}

impl FirstTasks {
    /// Reads the newest matching tasks, and keeps those that come first.
    async fn read(&mut self, reads: &Reads, query: &TaskQuery, end: Instant) -> Result<SortedRead, ApiError> {
        let (mut cursor, mut matching, mut scanned, mut total) = (None::<String>, 0, None, None);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut page = matches(reads, query.clone(), cursor.as_deref(), BATCH, left).await?;
            matching += page.tasks.len() as u64;
            scanned = [scanned, page.scanned].into_iter().flatten().reduce(|all: u64, more| all + more);
            total = total.or(page.total);
            self.add(std::mem::take(&mut page.tasks));
            let is_over = matching >= MAX_SORTED
                || scanned.is_some_and(|scanned| scanned >= super::MAX_SCANNED)
                || Instant::now() >= end;
            if page.next.is_none() || is_over {
                return Ok(SortedRead { last: page, matching, scanned, total });
            }
            cursor.clone_from(&page.next);
        }
    }

    fn add(&mut self, tasks: Vec<TaskView>) {
        let keyed = tasks.into_iter().map(|task| (key(self.sort, &task), task));
        let start = self.start.clone();
        self.tasks.extend(keyed.filter(|(key, _)| start.as_ref().is_none_or(|start| key > start)));
        self.tasks.sort_by(|(left, _), (right, _)| left.cmp(right));
        self.tasks.truncate(self.limit);
    }

    fn into_page(mut self, read: SortedRead, limit: usize) -> TaskPage {
        let has_more = self.tasks.len() > limit;
        self.tasks.truncate(limit);
        let next = self.tasks.last().filter(|_| has_more).map(|(key, _)| cursor::encode(key));
        let SortedRead { last, matching, scanned, total } = read;
        let all = last.next.is_none();
        let hint = format!("only the newest {matching} matching tasks were sorted: narrow the search to sort all");
        let tasks = self.tasks.into_iter().map(|(_, task)| task).collect();
        let page: TaskPage = Matches { tasks, next, scanned, total, stopped_early: false, ..last }.into();
        TaskPage {
            sort: self.sort,
            sorted: Some(SortedTasks { tasks: matching, all }),
            hint: (!all).then_some(hint),
            ..page
        }
    }
}

/// Position of a task in an order, from the first.
fn key(sort: TaskSort, task: &TaskView) -> Entry {
    let record = &task.record;
    let since = match sort {
        TaskSort::Longest => state_since(record),
        TaskSort::Newest | TaskSort::Oldest => None,
    };
    Entry { seen_ms: since.unwrap_or(record.times.seen_ms), id: task.id.clone() }
}
