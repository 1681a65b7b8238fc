//! Tree of a task: counts, failed tasks first, then the children level by level, opened on demand.

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::failed_tasks::failed_tasks;
use kafleet_api::service::context::{After, Paging};
use kafleet_api::service::task;
use kafleet_documents::{Status, TaskPage};
use kafleet_model::record::state::State;
use maud::{Markup, html};

use crate::parts::bar::{state_bar, tree_bar};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::notice::missing;
use crate::parts::table::pager_of_oldest;
use crate::parts::task_head::{head, tabs};
use crate::parts::tasks::{state_counts, task_table, tree_row};
use crate::parts::times::duration;
use crate::parts::{View, count, counted, search_text};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored, task_id};

/// Children of a page.
const LISTED_CHILDREN: usize = 50;
/// Failed tasks listed.
const LISTED_FAILED: usize = 50;
/// Branches that are open at once.
const MAX_OPEN: usize = 20;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let failed = match status.tree.failed {
        0 => Ok(Vec::new()),
        _ => stored(failed_tasks(&visit.api, id, LISTED_FAILED, scan_time())).await,
    };
    let open: Vec<&str> = visit.query.all("open").take(MAX_OPEN).collect();
    let rows = stored(branches(visit, &open)).await?;
    let cursor = visit.query.get("cursor");
    let next = rows.next.as_deref().map(|next| page_url(view, id, &open, Some(next)));
    let first = cursor.map(|_| page_url(view, id, &open, None));
    let main = html! {
        (head(view, &status))
        (tabs(view, &status, "tree"))
        (summary(view, &status))
        (failed_block(view, &status, failed))
        section.panel #tree {
            h2 { "Children" }
            @if rows.rows.is_empty() { p.quiet { "The task has no children." } }
            @else { (table(&rows.rows)) }
            (pager_of_oldest(first.as_deref(), next.as_deref(), ""))
        }
        p { "As a diagram: " a href=(view.below_task(id, "tree/mermaid")) { "Mermaid" } }
        (commands(&[format!("kafleet tree {}", quoted(id)), curl_get(&format!("/v1/tasks/{id}/tree"))]))
    };
    Ok(PageAnswer::Page(Body { title: format!("Tree of {id}"), state: Some(status.state), main }))
}

fn summary(view: &View, status: &Status) -> Markup {
    let counts: Vec<(State, u64)> = status.children.by_state.iter().map(|(state, n)| (*state, *n)).collect();
    html! {
        section.panel {
            p { (totals(status)) }
            @if let Some(last) = status.tree.ended_by.as_deref().filter(|last| *last != status.id) {
                p { "Critical path: it ended with " a href=(view.task(last)) { (last) } }
            }
            @if status.tree.total > 1 { (tree_bar(&status.tree)) }
            @if !counts.is_empty() {
                p.quiet { (counted(status.children.total, "child", "children")) ":" }
                (state_bar(&status.children.by_state))
                (state_counts(&counts, |state| view.search(&search_text(&[("under", &status.id), ("state", state.name())]))))
            }
        }
    }
}

fn totals(status: &Status) -> Markup {
    let tree = &status.tree;
    html! {
        strong { (count(tree.total)) } @if tree.total == 1 { " task: " } @else { " tasks: " } (count(tree.successful)) " succeeded, "
        (count(tree.failed)) " failed, " (count(tree.pending)) " open"
        @if let Some(ms) = tree.execution_ms { "; " (duration(ms)) " from the first start to the last end" }
    }
}

/// Tasks whose own state is failed, found without walking the tree.
fn failed_block(view: &View, status: &Status, failed: Result<Vec<Status>, ApiError>) -> Markup {
    let all = || view.search(&search_text(&[("under", &status.id), ("state", "failed")]));
    html! {
        @match failed {
            Ok(tasks) if tasks.is_empty() => {}
            Ok(tasks) => {
                section.panel #failed {
                    h2 { "Failed " span.quiet { "by themselves, newest first" } }
                    (task_table(view, "e", &tasks))
                    @if tasks.len() >= LISTED_FAILED { p { a href=(all()) { "All failed tasks of this tree" } } }
                }
            }
            Err(error) => { (missing("The failed tasks", &error.document())) }
        }
    }
}

/// Rows of a page of children, with the open branches below them.
struct Rows {
    rows: Vec<Markup>,
    next: Option<String>,
}

async fn branches(visit: &Visit, open: &[&str]) -> Result<Rows, ApiError> {
    let first = children(visit, &visit.segment, visit.query.get("cursor")).await?;
    let mut all = Rows { rows: Vec::new(), next: first.next };
    // Tasks to show with their level; the next one is last.
    let mut ahead: Vec<(Status, usize)> = first.tasks.into_iter().rev().map(|task| (task, 0)).collect();
    while let Some((task, level)) = ahead.pop() {
        let is_open = open.contains(&task.id.as_str());
        let url = (task.children.total > 0).then(|| toggle_url(visit, open, &task.id, is_open));
        all.rows.push(tree_row(&visit.view, &task, level, url.as_deref().map(|url| (url, is_open))));
        if is_open {
            let below = children(visit, &task.id, None).await?;
            if below.next.is_some() {
                all.rows.push(rest_row(&visit.view, &task, below.tasks.len(), level + 1));
            }
            ahead.extend(below.tasks.into_iter().rev().map(|task| (task, level + 1)));
        }
    }
    Ok(all)
}

/// Link to the children that are not shown in an open branch.
fn rest_row(view: &View, task: &Status, shown: usize, level: usize) -> Markup {
    let left = task.children.total.saturating_sub(shown as u64);
    html! {
        tr {
            td.id colspan="6" {
                span class={ "indent i" (level.min(12)) } {}
                a href=(view.below_task(&task.id, "tree")) { (count(left)) " more" }
            }
        }
    }
}

async fn children(visit: &Visit, parent: &str, cursor: Option<&str>) -> Result<TaskPage, ApiError> {
    let page = Paging { cursor: cursor.map(str::to_owned), limit: LISTED_CHILDREN };
    task::children(visit.context(), task_id(parent)?, page, After::default()).await
}

fn page_url(view: &View, id: &str, open: &[&str], cursor: Option<&str>) -> String {
    let mut query: Vec<(&str, &str)> = open.iter().map(|id| ("open", *id)).collect();
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    view.url_with(&format!("/tasks/{id}/tree"), &query)
}

/// URL with a branch opened or closed.
fn toggle_url(visit: &Visit, open: &[&str], id: &str, is_open: bool) -> String {
    let mut branches: Vec<&str> = open.iter().copied().filter(|branch| *branch != id).collect();
    if !is_open {
        branches.push(id);
    }
    format!("{}#t-{id}", page_url(&visit.view, &visit.segment, &branches, visit.query.get("cursor")))
}

fn table(rows: &[Markup]) -> Markup {
    crate::parts::table::table(&["Task", "State", "Type", "Time", "#Children", "Progress or error"], rows)
}
