//! Timeline of a tree: its critical path and its failed tasks first if it does not fit on a page, then all by creation.

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::consistency::TaskView;
use kafleet_api::read::failed_tasks::failed_views;
use kafleet_api::read::status::{history, status};
use kafleet_api::service::context::After;
use kafleet_api::service::{list, task};
use kafleet_documents::Status;
use kafleet_model::query::{TaskQuery, Term, Test};
use kafleet_model::task::id::TaskId;
use maud::html;

use super::task::{head, tabs};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::table::pager_of_oldest;
use crate::parts::timeline::{Range, TimelineTask, legend, timeline};
use crate::parts::{count, counted};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored};

/// Tasks of a page.
const PAGE_ROWS: usize = 100;
/// Failed tasks listed first.
const LISTED_FAILED: usize = 20;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let top = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let cursor = visit.query.get("cursor");
    let query = TaskQuery { terms: vec![Term { negated: false, test: Test::Under(vec![visit.id()?]) }] };
    let page = stored(list::matches(&visit.api.reads, query, cursor, PAGE_ROWS, scan_time())).await?;
    let first_ones =
        if cursor.is_none() && page.next.is_some() { stored(first_ones(visit, &top)).await? } else { Vec::new() };
    let all: Vec<TimelineTask> = page.tasks.iter().map(timed).collect();
    let next =
        page.next.as_deref().map(|cursor| view.url_with(&format!("/tasks/{id}/timeline"), &[("cursor", cursor)]));
    let first = cursor.map(|_| view.below_task(id, "timeline"));
    let note = format!("{} of {}", count(all.len()), counted(top.tree.total, "task", "tasks"));
    let last = top.tree.ended_by.as_deref();
    let range = Range::of(first_ones.iter().chain(&all));
    let rows =
        |prefix: &str, tasks: &[TimelineTask]| timeline(view, prefix, &tasks.iter().collect::<Vec<_>>(), range, last);
    let main = html! {
        (head(view, &top))
        (tabs(view, &top, "timeline"))
        section.panel {
            (legend(&top, range, last.is_some()))
            @if !first_ones.is_empty() {
                h2 { "Critical path and failed tasks" }
                (rows("e", &first_ones))
                h2 { "All tasks, by creation" }
            }
            (rows("t", &all))
            (pager_of_oldest(first.as_deref(), next.as_deref(), &note))
        }
        (commands(&[format!("kafleet list --root {}", quoted(id)), curl_get(&format!("/v1/tasks?root={id}"))]))
    };
    Ok(PageAnswer::Page(Body { title: format!("Timeline of {id}"), state: Some(top.state), main }))
}

fn timed(task: &TaskView) -> TimelineTask {
    TimelineTask { task: status(task), history: history(task) }
}

/// The path to the task that ended last, and the tasks that failed by themselves.
async fn first_ones(visit: &Visit, top: &Status) -> Result<Vec<TimelineTask>, ApiError> {
    let reads = &visit.api.reads;
    let last = top.tree.ended_by.as_deref().and_then(|last| TaskId::parse(last).ok());
    let mut path: Vec<TaskId> =
        std::iter::successors(last, TaskId::parent_id).take_while(|id| id.is_within(&top.id)).collect();
    path.reverse();
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
