//! Timeline of a tree: its open tasks first, then its critical path and its failed tasks if it does not fit on a page, then all
//! by creation.

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::consistency::TaskView;
use kafleet_api::read::failed_tasks::{failed_views, open_views};
use kafleet_api::read::status::{history, status};
use kafleet_api::service::context::After;
use kafleet_api::service::{list, task};
use kafleet_documents::Status;
use kafleet_model::query::{TaskQuery, Term, Test};
use maud::{Markup, html};

use super::tree::critical_ids;
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::table::pager_of_oldest;
use crate::parts::task_head::{head, tabs};
use crate::parts::timeline::{TimelineRow, TimelineTask, legend, range_of, timeline, zoom};
use crate::parts::{count, counted};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored};

/// Tasks of a page.
const PAGE_ROWS: usize = 100;
/// Failed tasks listed first.
const LISTED_FAILED: usize = 20;
/// Open tasks listed first.
const LISTED_OPEN: usize = 20;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let top = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let cursor = visit.query.get("cursor");
    let query = TaskQuery { terms: vec![Term { negated: false, test: Test::Under(vec![visit.id()?]) }] };
    let page = stored(list::matches(&visit.api.reads, query, cursor, PAGE_ROWS, scan_time())).await?;
    let is_large = page.next.is_some();
    let all: Vec<TimelineTask> = page.tasks.iter().map(timed).collect();
    let (open, first_ones) = match cursor {
        Some(_) => (Vec::new(), Vec::new()),
        None if is_large => (stored(open_ones(visit, &top)).await?, stored(first_ones(visit, &top)).await?),
        None => (page.tasks.iter().filter(|task| is_open(task)).map(timed).collect(), Vec::new()),
    };
    let (from, to) = (visit.query.time_ms("from")?, visit.query.time_ms("to")?);
    let zoomed = visit.query.select(&["from", "to", "fold"]);
    let url = |query: &[(&str, &str)]| view.url_with(&format!("/tasks/{id}/timeline"), query);
    let page_url = |cursor: Option<&str>| {
        let zoomed = zoomed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        url(&zoomed.chain(cursor.map(|cursor| ("cursor", cursor))).collect::<Vec<_>>())
    };
    let next = page.next.as_deref().map(|next| page_url(Some(next)));
    let first = cursor.map(|_| page_url(None));
    let note = format!("{} of {}", count(all.len()), counted(top.tree.total, "task", "tasks"));
    let last = top.tree.ended_by.as_deref();
    let range = range_of(open.iter().chain(&first_ones).chain(&all), !top.state.is_terminal(), view.now_ms);
    let range = range.part(from, to);
    let zoom_url = |part: Option<(&str, &str)>| match part {
        Some((from, to)) => url(&[("from", from), ("to", to)]),
        None => url(&[]),
    };
    let rows = |prefix: &str, rows: &[TimelineRow<'_>]| timeline(view, prefix, &top, rows, range, last);
    let is_folded = visit.query.get("fold") != Some("no");
    let shown = if is_folded { TimelineRow::folded(&all, last) } else { TimelineRow::single(&all) };
    let has_folds = shown.len() < all.len();
    let has_open = !open.is_empty() && all.len() > 1;
    let main = html! {
        (head(view, &top))
        (tabs(view, &top, "timeline"))
        section.panel { (legend(range, last.is_some())) (zoom(range, from.is_some() || to.is_some(), zoom_url)) }
        @if has_open { (section("Open", is_large.then_some("without queued ones"), &rows("o", &TimelineRow::single(&open)))) }
        @if !first_ones.is_empty() { (section("Critical path and failed tasks", None, &rows("e", &TimelineRow::single(&first_ones)))) }
        section.panel {
            @if has_open || !first_ones.is_empty() { h2 { "All tasks, by creation" } }
            @if has_folds { p.quiet { "Siblings of one kind that succeeded share a row. " a href=(url(&[("fold", "no")])) { "Show each task" } } }
            (rows("t", &shown))
            (pager_of_oldest(first.as_deref(), next.as_deref(), &note))
        }
        (commands(&[format!("kafleet list --root {}", quoted(id)), curl_get(&format!("/v1/tasks?root={id}"))]))
    };
    Ok(PageAnswer::Page(Body { title: format!("Timeline of {id}"), state: Some(top.state), main }))
}

fn section(heading: &str, note: Option<&str>, rows: &Markup) -> Markup {
    html! {
        section.panel {
            h2 { (heading) @if let Some(note) = note { " " span.quiet { (note) } } }
            (rows)
        }
    }
}

/// Whether a task itself has not ended, apart from the tasks below it.
fn is_open(task: &TaskView) -> bool {
    !task.record.own.is_terminal() && !task.superseded
}

/// Open tasks of a tree that does not fit on a page.
async fn open_ones(visit: &Visit, top: &Status) -> Result<Vec<TimelineTask>, ApiError> {
    if top.state.is_terminal() {
        return Ok(Vec::new());
    }
    Ok(open_views(&visit.api, &top.id, LISTED_OPEN, scan_time()).await?.iter().map(timed).collect())
}

fn timed(task: &TaskView) -> TimelineTask {
    TimelineTask { task: status(task), history: history(task) }
}

/// The path to the task that ended last, and the tasks that failed by themselves.
async fn first_ones(visit: &Visit, top: &Status) -> Result<Vec<TimelineTask>, ApiError> {
    let reads = &visit.api.reads;
    let path = critical_ids(top);
    let mut views = Vec::new();
    if let Some(last) = path.last() {
        views.extend(reads.read_many(visit.api.topology.partition_of(last), &path).await?.into_iter().flatten());
    }
    if top.tree.failed > 0 {
        let failed = failed_views(&visit.api, &top.id, LISTED_FAILED, scan_time()).await?;
        views.extend(failed.into_iter().filter(|task| !path.contains(&task.id)));
    }
    Ok(views.iter().map(timed).collect())
}
