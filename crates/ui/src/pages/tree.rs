//! Tree of a task: counts, failed tasks first, then the children level by level, opened on demand.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::read::failed_tasks::failed_tasks;
use kafleet_api::read::status::status as status_of;
use kafleet_api::service::context::{After, MAX_PAGE, Paging};
use kafleet_api::service::tree::{TreeSize, tree};
use kafleet_api::service::{list, task};
use kafleet_config::Role;
use kafleet_documents::{Status, TaskPage, UnstartedContinuation};
use kafleet_model::error_fingerprint::Fingerprint;
use kafleet_model::query::{Condition, TaskQuery, Term, Test};
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use maud::{Markup, html};

use super::raw::DIAGRAM_TASKS;
use crate::parts::bar::{in_order, state_bar, tree_bar};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::failures::kind_words;
use crate::parts::natural::natural_order;
use crate::parts::notice::missing;
use crate::parts::table::pager_of_oldest;
use crate::parts::task_head::{head, tabs};
use crate::parts::tasks::{state_counts, task_table, tree_row, type_link};
use crate::parts::times::{between, duration};
use crate::parts::{View, count, counted, prose, search_text};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored, task_id};

/// Children of a page of more than [`MAX_PAGE`]: up to that, all are on one page, in their natural order.
const LISTED_CHILDREN: usize = 50;
/// Failed tasks that are grouped by their errors, and those listed.
const READ_FAILED: usize = 200;
const LISTED_FAILED: usize = 50;
/// Branches that are open at once.
const MAX_OPEN: usize = 20;
/// Steps of the critical path.
const LISTED_STEPS: usize = 12;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let only = Only::of(visit)?;
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let (failed, path, unstarted) =
        tokio::join!(failed_ones(visit, &status), critical_path(visit, &status), unstarted(visit, &status));
    let tasks = match only {
        Only::All => children_block(visit, &status).await?,
        only => chosen_block(visit, only).await?,
    };
    let main = html! {
        (head(view, &status))
        (tabs(view, &status, "tree"))
        (summary(view, &status, path.as_deref().unwrap_or_default()))
        (unstarted_block(view, &unstarted))
        (failed_block(view, &status, failed))
        section.panel #tree {
            div.head { h2 { (only.heading()) } (only.links(view, id)) }
            (tasks)
        }
        p {
            "As a diagram of at most " (DIAGRAM_TASKS) " tasks: "
            a href=(view.below_task(id, "tree/mermaid")) { "Mermaid" }
        }
        (commands(&[
            format!("kafleet tree {}", quoted(id)),
            format!("kafleet tree {} -o mermaid", quoted(id)),
            curl_get(&format!("/v1/tasks/{id}/tree")),
        ]))
    };
    Ok(PageAnswer::Page(Body { title: format!("Tree of {id}"), state: Some(status.state), main }))
}

/// Tasks of the tree that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    /// Children, with their branches on demand.
    All,
    Open,
    Failed,
}

impl Only {
    fn of(visit: &Visit) -> Result<Self, ApiError> {
        match visit.query.get("only") {
            None => Ok(Self::All),
            Some("open") => Ok(Self::Open),
            Some("failed") => Ok(Self::Failed),
            Some(_) => Err(bad_parameter("only", "use open or failed")),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Open => "open",
            Self::Failed => "failed",
        }
    }

    const fn heading(self) -> &'static str {
        match self {
            Self::All => "Children",
            Self::Open => "Open tasks of the tree",
            Self::Failed => "Tasks of the tree that failed by themselves",
        }
    }

    fn links(self, view: &View, id: &str) -> Markup {
        let url = |only: Self| {
            let query = [("only", only.name())];
            view.url_with(
                &format!("/tasks/{}/tree", crate::parts::encoded(id)),
                if only == Self::All { &[] } else { &query },
            )
        };
        html! {
            nav.ranges aria-label="tasks" {
                @for only in [Self::All, Self::Open, Self::Failed] {
                    a href=(url(only)) aria-current=[(only == self).then_some("true")] { (only.name()) }
                }
            }
        }
    }

    fn test(self) -> Test {
        match self {
            Self::Failed => Test::Own(vec![State::Failed, State::Expired]),
            Self::All | Self::Open => Test::Is(vec![Condition::Open]),
        }
    }
}

/// Children with the branches that are open.
async fn children_block(visit: &Visit, status: &Status) -> Result<Markup, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let open: Vec<&str> = visit.query.all("open").take(MAX_OPEN).collect();
    let rows = stored(branches(visit, status, &open)).await?;
    let cursor = visit.query.get("cursor");
    let next = rows.next.as_deref().map(|next| page_url(view, id, &open, Some(next)));
    let first = cursor.map(|_| page_url(view, id, &open, None));
    Ok(html! {
        @if rows.rows.is_empty() { p.quiet { "The task has no children." } }
        @else { (table(&rows.rows)) }
        (pager_of_oldest(first.as_deref(), next.as_deref(), ""))
    })
}

/// Open or failed tasks on all levels of the tree.
async fn chosen_block(visit: &Visit, only: Only) -> Result<Markup, ApiError> {
    let (view, id) = (&visit.view, &visit.segment);
    let tests = [Test::Under(vec![visit.id()?]), only.test()];
    let query = TaskQuery { terms: tests.map(|test| Term { negated: false, test }).into() };
    let cursor = visit.query.get("cursor");
    let page = stored(list::matches(&visit.api.reads, query, cursor, LISTED_CHILDREN, scan_time())).await?;
    let tasks: Vec<Status> = page.tasks.iter().map(status_of).collect();
    let url = |cursor: Option<&str>| {
        let only = [("only", only.name())].into_iter();
        let query: Vec<_> = only.chain(cursor.map(|cursor| ("cursor", cursor))).collect();
        view.url_with(&format!("/tasks/{id}/tree"), &query)
    };
    let (first, next) = (cursor.map(|_| url(None)), page.next.as_deref().map(|next| url(Some(next))));
    Ok(html! {
        @if tasks.is_empty() { p.quiet { "No task of the tree is among those looked at." } }
        @else { (task_table(view, "t", &tasks)) }
        (pager_of_oldest(first.as_deref(), next.as_deref(), ""))
    })
}

/// Tasks whose own state is failed, the newest ones.
async fn failed_ones(visit: &Visit, status: &Status) -> Result<Vec<Status>, ApiError> {
    match status.tree.failed {
        0 => Ok(Vec::new()),
        _ => stored(failed_tasks(&visit.api, &visit.segment, READ_FAILED, scan_time())).await,
    }
}

/// Ids from the top to the task that ended last; none while that is not known.
pub(super) fn critical_ids(top: &Status) -> Vec<TaskId> {
    let last = top.tree.ended_by.as_deref().and_then(|last| TaskId::parse(last).ok());
    let mut path: Vec<TaskId> =
        std::iter::successors(last, TaskId::parent_id).take_while(|id| id.is_within(&top.id)).collect();
    path.reverse();
    path
}

/// Tasks from the top to the one that ended last.
async fn critical_path(visit: &Visit, top: &Status) -> Result<Vec<Status>, ApiError> {
    let path = critical_ids(top);
    let Some(last) = path.last() else { return Ok(Vec::new()) };
    let partition = visit.api.topology.partition_of(last);
    let views = stored(visit.api.reads.read_many(partition, &path)).await?;
    Ok(views.iter().flatten().map(status_of).collect())
}

/// Continuations that the outcome of the task has not started.
async fn unstarted(visit: &Visit, top: &Status) -> Vec<UnstartedContinuation> {
    let Some(id) = visit.id().ok().filter(|_| top.state.is_terminal()) else { return Vec::new() };
    let size = TreeSize { depth: 0, limit: 1 };
    stored(tree(visit.context(), id, size, After::default())).await.map(|top| top.not_started).unwrap_or_default()
}

fn unstarted_block(view: &View, unstarted: &[UnstartedContinuation]) -> Markup {
    html! {
        @if !unstarted.is_empty() {
            section.panel #unstarted {
                h2 { "Continuations that did not start" }
                ul.plain {
                    @for continuation in unstarted {
                        li {
                            code { (continuation.segment()) } " · " (type_link(view, Some(&continuation.task_type)))
                            span.quiet { ", which " (continuation.condition()) }
                        }
                    }
                }
            }
        }
    }
}

fn summary(view: &View, status: &Status, path: &[Status]) -> Markup {
    let counts = in_order(&status.children.by_state);
    let is_deep = status.tree.total > status.children.total + 1;
    html! {
        section.panel {
            p { (totals(status)) }
            @if path.len() > 1 { (path_line(view, path)) }
            @if is_deep { (tree_bar(&status.tree)) }
            @if !counts.is_empty() {
                p.quiet { (counted(status.children.total, "child", "children")) ":" }
                (state_bar(&status.children.by_state))
                (state_counts(&counts, |state| view.search(&search_text(&[("under", &status.id), ("state", state.name())]))))
            }
        }
    }
}

/// Critical path: tasks with the times from their first start to the end of their last child. Of a long one, its ends.
fn path_line(view: &View, path: &[Status]) -> Markup {
    let hidden = if path.len() > LISTED_STEPS { 1..path.len() + 1 - LISTED_STEPS } else { 0..0 };
    html! {
        p #path {
            "Critical path: "
            @for (n, step) in path.iter().enumerate().filter(|(n, _)| !hidden.contains(n)) {
                @if n > 0 { span.quiet { " › " } }
                @if n == hidden.end && n > 0 { span.quiet { (hidden.len()) " more › " } }
                a href=(view.task(&step.id)) title=(step.id) { (step.id.rsplit(':').next().unwrap_or(&step.id)) }
                @if let Some(ms) = between(step.started_at.as_deref(), step.ended_at.as_deref()) { " " (duration(ms)) }
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
    let all = || view.below_task(&status.id, "tree?only=failed");
    html! {
        @match failed {
            Ok(tasks) if tasks.is_empty() => {}
            Ok(tasks) => {
                section.panel #failed {
                    h2 { "Failed " span.quiet { "by themselves, newest first" } }
                    (kinds(view, &status.id, &tasks))
                    (task_table(view, "e", &tasks[..tasks.len().min(LISTED_FAILED)]))
                    @if tasks.len() > LISTED_FAILED { p { a href=(all()) { "All failed tasks of this tree" } } }
                }
            }
            Err(error) => { (missing("The failed tasks", &error.document())) }
        }
    }
}

/// Failed tasks of a tree by type and kind of error, most tasks first. Counts are lower bounds if not all were read.
fn kinds(view: &View, top: &str, failed: &[Status]) -> Markup {
    let mut kinds = BTreeMap::new();
    for task in failed {
        let error = task.error.as_ref();
        let newest = error.map_or("", |error| &*error.message);
        let kind = (task.task_type.as_deref(), error.map(|error| &*error.kind));
        kinds.entry(kind).or_insert((0_usize, newest)).0 += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (tasks, _))| Reverse(*tasks));
    let at_least = if failed.len() >= READ_FAILED { "≥ " } else { "" };
    html! {
        ul.plain #kinds {
            @for ((task_type, kind), (tasks, message)) in &kinds {
                @let query = kind_query(top, *task_type, *kind);
                li {
                    a.bad href=(view.search(&query)) { (at_least) (counted(*tasks as u64, "task", "tasks")) }
                    " · " (type_link(view, *task_type)) " · "
                    span.error { (prose(&kind_words(*kind, message))) }
                    @if view.may(Role::Operate) {
                        " " a href=(view.url_with("/bulk/new", &[("action", "retry"), ("q", &query)])) { "Retry…" }
                    }
                }
            }
        }
    }
}

/// Search for the tasks of a tree that failed by themselves with a kind of error, or without one.
fn kind_query(top: &str, task_type: Option<&str>, kind: Option<&str>) -> String {
    let name = kind.map_or_else(|| Fingerprint::of(None).kind(), Fingerprint::of_kind).to_string();
    let is_word = |kind: &&str| !kind.is_empty() && !kind.contains(char::is_whitespace);
    let error = kind.filter(is_word).unwrap_or(&name);
    let mut terms = vec![("under", top)];
    // No search finds the tasks without a type alone.
    terms.extend(task_type.map(|name| ("type", name)));
    terms.extend([("own", "failed,expired"), ("error", error), ("level", "any")]);
    search_text(&terms)
}

/// Rows of a page of children, with the open branches below them.
struct Rows {
    rows: Vec<Markup>,
    next: Option<String>,
}

async fn branches(visit: &Visit, top: &Status, open: &[&str]) -> Result<Rows, ApiError> {
    let first = children(visit, top, visit.query.get("cursor")).await?;
    let mut all = Rows { rows: Vec::new(), next: first.next };
    // Tasks to show with their level; the next one is last.
    let mut ahead: Vec<(Status, usize)> = first.tasks.into_iter().rev().map(|task| (task, 0)).collect();
    while let Some((task, level)) = ahead.pop() {
        let is_open = open.contains(&task.id.as_str());
        let url = (task.children.total > 0).then(|| toggle_url(visit, open, &task.id, is_open));
        all.rows.push(tree_row(&visit.view, &task, level, url.as_deref().map(|url| (url, is_open))));
        if is_open {
            let below = children(visit, &task, None).await?;
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

/// Page of the children of a task, in the natural order of their ids.
async fn children(visit: &Visit, parent: &Status, cursor: Option<&str>) -> Result<TaskPage, ApiError> {
    let limit = if parent.children.total <= MAX_PAGE as u64 { MAX_PAGE } else { LISTED_CHILDREN };
    let page = Paging { cursor: cursor.map(str::to_owned), limit };
    let mut page = task::children(visit.context(), task_id(&parent.id)?, page, After::default()).await?;
    page.tasks.sort_by(|one, other| natural_order(&one.id, &other.id));
    Ok(page)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_name_type_and_error_as_other_lists_do() {
        let failed = |task_type: Option<&str>, error: serde_json::Value| {
            crate::parts::tests::status(serde_json::json!({"type": task_type, "state": "failed", "error": error}))
        };
        let error = |kind: &str, message: &str| serde_json::json!({"kind": kind, "message": message, "attempt": 1});
        let tasks = [
            failed(Some("charge"), error("PaymentDeclined", "card of Ada")),
            failed(Some("charge"), error("PaymentDeclined", "card of Ken")),
            failed(Some("charge"), error("error", "no answer from 10.0.0.7")),
            failed(None, serde_json::Value::Null),
        ];
        let text = kinds(&View::for_tests(Role::Operate), "order-42", &tasks).into_string();
        for part in [
            ">2 tasks</a> · <a class=\"plain\" href=\"/types/charge\">charge</a> · <span class=\"error\">PaymentDeclined</span>",
            "<span class=\"error\">no answer from 10.0.0.7</span>",
            ">1 task</a> · <span class=\"quiet\">–</span> · <span class=\"error\">no error was reported</span>",
        ] {
            assert!(text.contains(part), "`{part}` is missing in {text}");
        }
    }

    #[test]
    fn kind_is_searched_without_what_is_not_known() {
        assert_eq!(
            kind_query("order-42", Some("charge"), Some("PaymentDeclined")),
            "under:order-42 type:charge own:failed,expired error:PaymentDeclined level:any"
        );
        let none = Fingerprint::of(None).kind();
        assert_eq!(kind_query("a", None, None), format!("under:a own:failed,expired error:{none} level:any"));
    }
}
