//! `GET /v1/tasks`: lists and searches tasks. One index provides the order and applies the conditions that it covers.
//! The other conditions are applied to the records of the index, at most [`MAX_SCANNED`] records per request and
//! for a limited time; the cursor continues after the last scanned record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kafleet_documents::{ExcludedTerm, ListSource, OtherLevels, TaskPage, TaskSort};
use kafleet_model::error_fingerprint::{ErrorFilter, Fingerprint};
use kafleet_model::query::{TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::{Entry, Index};
use tokio::time::{Instant, timeout_at};

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::cursor;
use crate::read::failures::kinds_of;
use crate::read::merge::Merge;
use crate::read::reads::Reads;
use crate::read::status::status;
use crate::read::tree_walk::TreeWalk;
use crate::service::context::{After, MAX_PAGE, Paging, RequestContext};
use all_trees::AllTrees;
use filter::Filter;

mod all_trees;
mod filter;
mod sorted;

pub use sorted::{can_sort, list_sorted};

/// Maximum records scanned per request.
pub(crate) const MAX_SCANNED: u64 = 10_000;
/// Maximum time spent scanning per request.
pub(crate) const MAX_SCAN_TIME: Duration = Duration::from_secs(2);
/// Maximum indexes of failed tasks by error that are merged, in each partition.
const MAX_ERROR_INDEXES: usize = 500;
/// Records read at a time while scanning.
const BATCH: usize = 200;

/// Lists tasks that match a query. `scan_time`: time after which the scan stops early.
pub async fn list(
    RequestContext { api, .. }: RequestContext,
    query: TaskQuery,
    Paging { cursor, limit }: Paging,
    After(after): After,
    scan_time: Duration,
) -> Result<TaskPage, ApiError> {
    api.reads.wait_for_position(after).await?;
    let end = Instant::now() + scan_time;
    let page: TaskPage = matches(&api.reads, query.clone(), cursor.as_deref(), limit, scan_time).await?.into();
    if cursor.is_some() { Ok(page) } else { with_other_levels(&api.reads, query, page, end).await }
}

/// Adds the tasks of other levels to the first page of a search for roots that finds none.
async fn with_other_levels(
    reads: &Reads,
    query: TaskQuery,
    mut page: TaskPage,
    end: Instant,
) -> Result<TaskPage, ApiError> {
    if finds_no_root(&query, &page) {
        page.other_levels = other_levels(reads, query, end.saturating_duration_since(Instant::now())).await?;
    }
    Ok(page)
}

/// Whether a search for roots has read all of them and found none, although its conditions may match other tasks.
fn finds_no_root(query: &TaskQuery, page: &TaskPage) -> bool {
    let has_conditions = query.terms.iter().any(|term| !matches!(term.test, Test::Level(_)));
    has_conditions && query.level() == TreeLevel::Roots && page.tasks.is_empty() && page.next.is_none()
}

/// Counts the tasks of other levels that match a query of which no root does; `None` if none is found.
async fn other_levels(reads: &Reads, query: TaskQuery, scan_time: Duration) -> Result<Option<OtherLevels>, ApiError> {
    let found = matches(reads, query.at_level(TreeLevel::Any), None, MAX_PAGE, scan_time).await?;
    let tasks = found.total.unwrap_or(found.tasks.len() as u64);
    let exact = found.total.is_some() || found.next.is_none();
    Ok((tasks > 0).then_some(OtherLevels { tasks, exact }))
}

/// Finds the next tasks that match a query. `cursor`: [`Matches::next`] of the previous ones; `scan_time`: time after
/// which the scan stops early.
pub async fn matches(
    reads: &Reads,
    query: TaskQuery,
    cursor: Option<&str>,
    limit: usize,
    scan_time: Duration,
) -> Result<Matches, ApiError> {
    let parts = parts_of(&query)?;
    let filter = Filter::new(query, now_ms())?;
    let after = cursor.map(cursor::decode).transpose()?;
    let counts = if filter.has_indexed_states() || filter.is_counted() { Some(reads.counts().await?) } else { None };
    let counts = counts.unwrap_or_default();
    let mut page = PageBuilder::new(limit, scan_time, parts);
    page.total = filter.is_counted().then(|| total(&filter, &counts));
    page.is_first = after.is_none();
    let are_few = page.is_first && page.total.is_some_and(|total| total <= limit as u64);
    let source = if are_few && has_indexed_matches(&filter, &counts) {
        TaskSource::of_states(reads, &filter, &counts, limit)
    } else if filter.ids.is_empty() {
        TaskSource::open(reads, &filter, &counts, after, limit).await?
    } else {
        let (tasks, missing) = reads.find_many(&filter.ids).await?;
        page.missing = missing;
        TaskSource::of_tasks(tasks, after)
    };
    let matches = page.fill(reads, source, &filter).await?;
    Ok(Matches { incomplete: reads.incomplete().await?, ..matches })
}

/// Whether all tasks of the types and states of a filter are in states that have an index, by the counters.
fn has_indexed_matches(filter: &Filter, counts: &StateCounts) -> bool {
    let mut states = counts.iter().flat_map(|(task_type, states)| states.iter().map(move |of| (task_type, of)));
    states.all(|(task_type, (state, count))| *count == 0 || state.is_indexed() || !filter.selects(task_type, *state))
}

/// The conditions of a query one by one, to explain a search without matches.
fn parts_of(query: &TaskQuery) -> Result<Vec<CountedTerm>, ApiError> {
    let part = |term: &Term| {
        let alone = TaskQuery { terms: vec![term.clone()] };
        Ok(CountedTerm { term: term.to_string(), filter: Filter::of_any_level(alone, now_ms())?, excluded: 0 })
    };
    query.terms.iter().map(part).collect()
}

/// Condition of a query, with the number of scanned tasks that it excludes.
struct CountedTerm {
    term: String,
    filter: Filter,
    excluded: u64,
}

type StateCounts = BTreeMap<String, BTreeMap<State, u64>>;

/// Counts the tasks of the types and states of a filter.
fn total(filter: &Filter, counts: &StateCounts) -> u64 {
    let states = counts.iter().flat_map(|(task_type, states)| states.iter().map(move |of| (task_type, of)));
    states.filter(|(task_type, (state, _))| filter.selects(task_type, **state)).map(|(_, (_, count))| count).sum()
}

/// Sequence of tasks from which a page is filled.
enum Tasks<'a> {
    Read(VecDeque<TaskView>),
    Tree(Box<TreeWalk<'a>>),
    AllTrees(Box<AllTrees<'a>>),
    Index(Merge<'a>),
}

/// Tasks that contain all matches of a filter, in the order of the list.
struct TaskSource<'a> {
    tasks: Tasks<'a>,
    name: ListSource,
    /// The source may contain tasks that do not match, so larger batches are read and the scan limits apply.
    scans: bool,
}

impl<'a> TaskSource<'a> {
    /// Tasks that have been read, newest first.
    fn of_tasks(mut tasks: Vec<TaskView>, after: Option<Entry>) -> Self {
        tasks.retain(|task| after.as_ref().is_none_or(|after| entry_of(task) < *after));
        tasks.sort_by_cached_key(|task| std::cmp::Reverse(entry_of(task)));
        Self { tasks: Tasks::Read(tasks.into()), name: ListSource::Ids, scans: false }
    }

    /// Indexes of a filter without other conditions than types and states, if all its tasks are in them. The page has no
    /// cursor: the counters may change before the next one, and with them the source.
    fn of_states(reads: &'a Reads, filter: &Filter, counts: &StateCounts, limit: usize) -> Self {
        let tasks = Tasks::Index(Merge::new(reads, state_indexes(filter, counts), None, limit + 1));
        Self { tasks, name: ListSource::States, scans: false }
    }

    /// Opens the narrowest source for a filter.
    async fn open(
        reads: &'a Reads,
        filter: &Filter,
        counts: &StateCounts,
        after: Option<Entry>,
        limit: usize,
    ) -> Result<Self, ApiError> {
        let (details, kind, time) = (filter.filters_details(), filter.filters_kind(), filter.filters_time());
        if let Some(top) = &filter.under {
            let top = reads.find(top, None).await?;
            let tasks = Tasks::Tree(Box::new(TreeWalk::new(reads, top, after).await?));
            let scans = details || kind || time || filter.level == TreeLevel::Roots;
            return Ok(Self { tasks, name: ListSource::Tree, scans });
        }
        if filter.has_indexed_errors()
            && let Some(indexes) = error_indexes(reads, filter).await?
        {
            let tasks = Tasks::Index(Merge::new(reads, indexes, after, BATCH));
            return Ok(Self { tasks, name: ListSource::Errors, scans: true });
        }
        let start = filter.start(after);
        let merge = |indexes, scans| Merge::new(reads, indexes, start.clone(), if scans { BATCH } else { limit + 1 });
        if filter.has_indexed_states() {
            let scans = details || filter.level == TreeLevel::Roots;
            let tasks = Tasks::Index(merge(state_indexes(filter, counts), scans));
            return Ok(Self { tasks, name: ListSource::States, scans });
        }
        if filter.level == TreeLevel::Any {
            let tasks = Tasks::AllTrees(Box::new(AllTrees::new(reads, start.clone()).await?));
            return Ok(Self { tasks, name: ListSource::Trees, scans: details || kind || time });
        }
        let scans = details || kind;
        Ok(Self { tasks: Tasks::Index(merge(vec![Index::Roots], scans)), name: ListSource::Roots, scans })
    }

    async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        match &mut self.tasks {
            Tasks::Read(tasks) => {
                let some = tasks.drain(..limit.min(tasks.len()));
                Ok(some.map(|task| (entry_of(&task), Some(task))).collect())
            }
            Tasks::Tree(tree_walk) => tree_walk.next(limit).await,
            Tasks::AllTrees(trees) => trees.next(limit).await,
            Tasks::Index(merge) => merge.next(limit).await,
        }
    }

    /// Whether no later entry can match.
    fn is_exhausted_at(&self, filter: &Filter, entry: &Entry) -> bool {
        // Indexes by error are sorted by the end of the tasks.
        matches!(self.tasks, Tasks::Index(_)) && self.name != ListSource::Errors && filter.is_before(entry)
    }
}

fn entry_of(task: &TaskView) -> Entry {
    Entry { seen_ms: task.record.times.seen_ms, id: task.id.clone() }
}

/// Lists the indexes that have tasks of the types and states of a filter.
fn state_indexes(filter: &Filter, counts: &StateCounts) -> Vec<Index> {
    let states = counts.iter().flat_map(|(task_type, states)| states.keys().map(move |state| (task_type, *state)));
    let selected = states.filter(|(task_type, state)| state.is_indexed() && filter.selects(task_type, *state));
    selected.map(|(task_type, state)| Index::Members { task_type: task_type.as_str().into(), state }).collect()
}

/// Lists the indexes of failed tasks of the types and errors of a filter. `None`: a type has too many kinds of errors.
async fn error_indexes(reads: &Reads, filter: &Filter) -> Result<Option<Vec<Index>>, ApiError> {
    let mut indexes = Vec::new();
    for name in &filter.types {
        let Some(kinds) = kinds_of(reads, name).await? else { return Ok(None) };
        let errors = error_groups(&filter.errors, &kinds);
        indexes.extend(errors.into_iter().map(|error| Index::Failed { task_type: name.as_str().into(), error }));
    }
    Ok((indexes.len() <= MAX_ERROR_INDEXES).then_some(indexes))
}

/// Disjoint groups of errors, of these kinds, that contain all errors which match one of the filters.
fn error_groups(filters: &[ErrorFilter], kinds: &BTreeSet<Fingerprint>) -> BTreeSet<Fingerprint> {
    let kinds: Vec<Fingerprint> = kinds.iter().copied().collect();
    let groups = filters.iter().filter_map(|filter| filter.fingerprints(&kinds)).flatten();
    let mut groups: BTreeSet<Fingerprint> = groups.collect();
    let all = groups.clone();
    // The group of a kind has the tasks of all its messages.
    groups.retain(|error| *error == error.kind() || !all.contains(&error.kind()));
    groups
}

/// Tasks that match a query, and the effort of finding them.
pub struct Matches {
    pub tasks: Vec<TaskView>,
    /// Cursor of the next page.
    pub next: Option<String>,
    /// Number of tasks that were read and compared, if the source contains others.
    pub scanned: Option<u64>,
    /// Number of all tasks that match, if it is known.
    pub total: Option<u64>,
    source: ListSource,
    scanned_to: Option<String>,
    stopped_early: bool,
    missing: Vec<TaskId>,
    excluded: Vec<ExcludedTerm>,
    incomplete: Vec<u32>,
}

impl From<Matches> for TaskPage {
    fn from(matches: Matches) -> Self {
        let Matches { tasks, next, scanned, total, source, .. } = matches;
        let hint = matches.stopped_early.then(|| early_hint(scanned.unwrap_or_default(), tasks.len()));
        Self {
            tasks: tasks.iter().map(status).collect(),
            next,
            total,
            source: Some(source),
            sort: TaskSort::Newest,
            sorted: None,
            scanned,
            scanned_to: matches.scanned_to,
            stopped_early: matches.stopped_early,
            hint,
            missing: matches.missing.iter().map(TaskId::to_string).collect(),
            excluded: matches.excluded,
            other_levels: None,
            incomplete: matches.incomplete,
        }
    }
}

/// Hint of a page that ended at the scan limit.
fn early_hint(scanned: u64, matching: usize) -> String {
    format!(
        "stopped after scanning {scanned} tasks, {matching} of which match: pass `next` as `cursor` to continue; `from` \
         and `to`, `root` (in `q`: `under`), or an indexed `state` shorten the search"
    )
}

/// Page under construction.
struct PageBuilder {
    limit: usize,
    /// Time at which the scan stops early.
    scan_until: Instant,
    tasks: Vec<TaskView>,
    scanned: u64,
    /// Last entry that was scanned, from which the next page continues.
    last: Option<Entry>,
    /// Number of tasks that match, if it is known.
    total: Option<u64>,
    /// The list starts here, so that the page has all tasks that match once it has `total`.
    is_first: bool,
    /// Ids of the query that do not exist.
    missing: Vec<TaskId>,
    parts: Vec<CountedTerm>,
}

/// Reason why a page ends.
#[derive(PartialEq, Eq)]
enum PageEnd {
    /// The source is exhausted.
    Last,
    Full,
    /// The scan limit was reached.
    Early,
}

impl PageBuilder {
    fn new(limit: usize, scan_time: Duration, parts: Vec<CountedTerm>) -> Self {
        let scan_until = Instant::now() + scan_time;
        Self {
            limit,
            scan_until,
            tasks: Vec::new(),
            scanned: 0,
            last: None,
            total: None,
            is_first: false,
            missing: Vec::new(),
            parts,
        }
    }

    async fn fill(mut self, reads: &Reads, mut source: TaskSource<'_>, filter: &Filter) -> Result<Matches, ApiError> {
        let batch = if source.scans { BATCH } else { self.limit + 1 };
        loop {
            if source.scans && self.has_all(reads, filter).await? {
                return Ok(self.into_matches(&source, PageEnd::Last));
            }
            let Some(entries) = self.next_in_time(&mut source, batch).await? else {
                return Ok(self.into_matches(&source, PageEnd::Early));
            };
            if entries.is_empty() {
                return Ok(self.into_matches(&source, PageEnd::Last));
            }
            for (entry, task) in entries {
                if source.is_exhausted_at(filter, &entry) {
                    return Ok(self.into_matches(&source, PageEnd::Last));
                }
                if self.tasks.len() >= self.limit {
                    return Ok(self.into_matches(&source, PageEnd::Full));
                }
                if source.scans && self.is_over_budget() {
                    return Ok(self.into_matches(&source, PageEnd::Early));
                }
                self.add_if_selected(filter, entry, task);
            }
        }
    }

    /// Whether a scan may end because the page has as many tasks as match. The counters are read again: a task that was
    /// created meanwhile may be among those found, and an older one not.
    async fn has_all(&mut self, reads: &Reads, filter: &Filter) -> Result<bool, ApiError> {
        let found = self.tasks.len() as u64;
        if !self.is_first || self.total != Some(found) {
            return Ok(false);
        }
        let counted = total(filter, &reads.counts().await?);
        self.total = Some(counted);
        Ok(counted == found)
    }

    /// Reads the next entries. `None` if a scan that has got anywhere does not get them in its time.
    async fn next_in_time(
        &self,
        source: &mut TaskSource<'_>,
        batch: usize,
    ) -> Result<Option<Vec<(Entry, Option<TaskView>)>>, ApiError> {
        if !source.scans || self.scanned == 0 {
            return source.next(batch).await.map(Some);
        }
        timeout_at(self.scan_until, source.next(batch)).await.ok().transpose()
    }

    fn is_over_budget(&self) -> bool {
        self.scanned > 0 && (self.scanned >= MAX_SCANNED || Instant::now() >= self.scan_until)
    }

    fn add_if_selected(&mut self, filter: &Filter, entry: Entry, task: Option<TaskView>) {
        self.scanned += 1;
        self.last = Some(entry);
        match task {
            Some(task) if filter.matches(&task) => self.tasks.push(task),
            Some(task) if self.tasks.is_empty() => self.count_excluding(&task),
            _ => {}
        }
    }

    fn count_excluding(&mut self, task: &TaskView) {
        for part in &mut self.parts {
            part.excluded += u64::from(!part.filter.matches(task));
        }
    }

    fn into_matches(self, source: &TaskSource<'_>, end: PageEnd) -> Matches {
        let next = self.last.as_ref().filter(|_| end != PageEnd::Last).map(cursor::encode);
        let is_explained = source.scans && self.tasks.is_empty();
        let excluded = self.parts.into_iter().filter(|part| is_explained && part.excluded > 0);
        Matches {
            tasks: self.tasks,
            next,
            scanned: source.scans.then_some(self.scanned),
            total: self.total,
            source: source.name,
            scanned_to: self.last.filter(|_| source.scans).map(|entry| time_text(entry.seen_ms)),
            stopped_early: end == PageEnd::Early,
            missing: self.missing,
            excluded: excluded.map(|part| ExcludedTerm { term: part.term, tasks: part.excluded }).collect(),
            incomplete: Vec::new(),
        }
    }
}
