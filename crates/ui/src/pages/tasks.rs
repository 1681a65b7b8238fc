//! Tasks that match a search.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::request::{bad_parameter, bad_query};
use kafleet_api::read::causes::causes;
use kafleet_api::read::failures::{FailuresBy, FailuresQuery};
use kafleet_api::service::context::{After, PAGE, Paging};
use kafleet_api::service::{list, statistics, types};
use kafleet_config::Role;
use kafleet_documents::{
    BulkAction, ExcludedTerm, ListSource, OtherLevels, Problem, Status, TaskColumns, TaskPage, TaskSort, TypeDocument,
};
use kafleet_model::query::{Qualifier, TaskQuery, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::param_tags::PREFIX;
use maud::{Markup, html};
use tokio::time::{Instant, timeout};

use super::bulk_selection::ALL_ROOTS;
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::listing::{Listing, source_name};
use crate::parts::natural::natural_order;
use crate::parts::notice::no_task;
use crate::parts::pickers::{PickerNames, with_choices};
use crate::parts::problem::problem_text;
use crate::parts::search::{mistake, search_form};
use crate::parts::state_tabs::{finds, state_tabs};
use crate::parts::table::{pager, pager_of_oldest, pager_of_search};
use crate::parts::tasks::{Causes, FoundTasks, found_tasks};
use crate::parts::times::time;
use crate::parts::words::search_title;
use crate::parts::{View, count, counted, first_line, task_path, visible};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored, until};

/// Shortest time that a further part of a search is worth.
const MIN_SCAN: Duration = Duration::from_millis(500);
/// Time for which a search that stopped early is continued.
const SEARCH_TIME: Duration = Duration::from_secs(10);
/// Maximum number of declared params that an empty list names.
const LISTED_PARAMS: usize = 10;
/// Maximum time in which the errors of failed parents are read.
const CAUSES_DEADLINE: Duration = Duration::from_millis(300);
/// Maximum time in which the kinds of errors are read.
const KINDS_DEADLINE: Duration = Duration::from_millis(300);
/// Kinds of errors that can be chosen, those of the most tasks first.
const MAX_KINDS: usize = 30;
/// Beginning of the names of types that the fleet itself uses.
const OWN_TYPES: &str = "kafleet-";
/// Characters of a search in a title, so that what follows is seen too.
const TITLE_CHARS: usize = 60;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let listing = listing_of(visit)?;
    if let Some(chosen) = chosen(visit, &listing)? {
        return Ok(PageAnswer::Redirect(chosen.path()));
    }
    if let Some(path) = path_of_id(visit, &listing.q).await {
        return Ok(PageAnswer::Redirect(path));
    }
    shown(visit, &listing, None, stored(search_page(visit, &listing))).await
}

/// Page that continues a search for a longer time. It has no live updates, which would repeat that.
pub(in super::super) async fn search_on(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let listing = listing_of(visit)?;
    shown(visit, &listing, None, until(Instant::now() + SEARCH_TIME, stored(search_pages(visit, &listing)))).await
}

/// Search, order and columns of a URL.
pub(super) fn listing_of(visit: &Visit) -> Result<Listing, ApiError> {
    let given = |name: &str| visit.query.get(name);
    let sort = given("sort").map(str::parse::<TaskSort>).transpose().map_err(|error| bad_parameter("sort", &error))?;
    let columns = given("columns").map(str::parse::<TaskColumns>).transpose();
    let columns = columns.map_err(|error| bad_parameter("columns", &error))?;
    let q = given("q").unwrap_or_default().trim().to_owned();
    Ok(Listing { q, sort: sort.unwrap_or_default(), columns })
}

/// List with the choices of a submitted form. `None`: the URL has none.
fn chosen(visit: &Visit, listing: &Listing) -> Result<Option<Listing>, ApiError> {
    if let Some(q) = with_choices(&listing.q, |name| visit.query.get(name)) {
        return Ok(Some(Listing { q, ..listing.clone() }));
    }
    let names: Vec<&str> = visit.query.all("column").collect();
    if names.is_empty() {
        return Ok(None);
    }
    let columns = names.join(",").parse::<TaskColumns>().map_err(|error| bad_parameter("columns", &error))?;
    Ok(Some(Listing { columns: Some(columns), ..listing.clone() }))
}

/// Page of a list. `heading`: markup above the search instead of the usual heading, and the title of the list.
pub(super) async fn shown(
    visit: &Visit,
    listing: &Listing,
    heading: Option<(String, Markup)>,
    search: impl Future<Output = Result<TaskPage, ApiError>>,
) -> Result<PageAnswer, ApiError> {
    let query = TaskQuery::parse(&listing.q);
    let names = picker_names(visit, query.as_ref().ok());
    let (page, (types, names)) = tokio::join!(search, names);
    let (page, problem) = match page {
        Ok(page) => (Some(page), None),
        Err(error) if is_of_search(&error, listing) => (None, Some(error.document())),
        Err(error) => return Err(error),
    };
    let listed_tasks = page.as_ref().map_or(&[][..], |page| &page.tasks);
    let causes = causes(&visit.api, listed_tasks, CAUSES_DEADLINE).await;
    let query = query.ok();
    let (title, heading) = heading.unwrap_or_else(|| (title(query.as_ref()), head(&visit.view, listing)));
    let main = html! {
        (heading)
        (search_form(&visit.view, listing, query.as_ref(), &names))
        @if let Some(problem) = &problem { (refused(&visit.view, listing, problem)) }
        @if let Some((page, query)) = page.as_ref().zip(query.as_ref()) {
            @let first = Some(page).filter(|_| !visit.query.is_set("cursor"));
            (state_tabs(&visit.view, listing, query, types.as_deref(), first))
            (listed(visit, listing, query, page, &causes))
        }
        (commands(&lines(listing, problem.as_ref())))
    };
    Ok(Body::new(title, main).into())
}

/// Title of the window: the search in a few words.
pub(super) fn title(query: Option<&TaskQuery>) -> String {
    match query.map(search_title).filter(|title| !title.is_empty()) {
        Some(search) => format!("{} · Tasks", first_line(&search, TITLE_CHARS)),
        None => "Tasks".to_owned(),
    }
}

fn head(view: &View, listing: &Listing) -> Markup {
    html! {
        div.head {
            h1 { "Tasks" }
            @if view.may(Role::Operate) {
                div.actions {
                    a.button href=(view.url(&format!("/new-view?{}", listing.query(&[])))) data-dialog { "Save as view…" }
                }
            }
        }
    }
}

/// Whether an error is about the search or its order, which are then shown again.
fn is_of_search(error: &ApiError, listing: &Listing) -> bool {
    let is_marked = error.clone().document().span.is_some();
    is_marked || (error.is(Code::BadParameter) && listing.sort != TaskSort::Newest)
}

/// Mistake in a search, or an order that it does not permit.
fn refused(view: &View, listing: &Listing, problem: &Problem) -> Markup {
    if problem.span.is_some() {
        return mistake(&listing.q, problem, |q| listing.url_of(view, q));
    }
    html! {
        (problem_text(view, problem))
        p { a href=(listing.url_sorted(view, TaskSort::Newest)) { "Newest first" } }
    }
}

/// Types with their counters, and the names that can be chosen.
async fn picker_names(visit: &Visit, query: Option<&TaskQuery>) -> (Option<Vec<TypeDocument>>, PickerNames) {
    let (types, errors) = tokio::join!(stored(types::type_list(&visit.api)), error_kinds(visit, query));
    let types = types.ok().map(|types| types.types);
    let names = types.iter().flatten().map(|listed| listed.name.clone());
    let mut types_of_users: Vec<String> = names.filter(|name| !name.starts_with(OWN_TYPES)).collect();
    types_of_users.sort_by(|one, other| natural_order(one, other));
    (types, PickerNames { types: types_of_users, errors })
}

/// Kinds of the errors of failed tasks, of the type that the search names. Empty if they cannot be read soon.
async fn error_kinds(visit: &Visit, query: Option<&TaskQuery>) -> Vec<String> {
    let only = query.and_then(only_type);
    let failures =
        FailuresQuery { task_type: only.clone(), by: FailuresBy::Kind, limit: MAX_KINDS, ..FailuresQuery::default() };
    let read = async {
        let found = statistics::failures(visit.context(), failures, After::default()).await?;
        let kinds = found.groups.into_iter().filter_map(|group| group.kind);
        // A kind with hidden characters would look like another one.
        let mut kinds: Vec<String> = kinds.filter(|kind| visible(kind) == **kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Ok(kinds)
    };
    let kinds = timeout(KINDS_DEADLINE, visit.live.error_kinds.get(Some(only.unwrap_or_default()), read)).await;
    kinds.ok().and_then(Result::ok).map(|kinds| kinds.to_vec()).unwrap_or_default()
}

/// Type of a search that names one.
fn only_type(query: &TaskQuery) -> Option<String> {
    query.terms.iter().find_map(|term| match &term.test {
        Test::Text(Qualifier::Type, names) if !term.negated && names.len() == 1 => names.first().cloned(),
        _ => None,
    })
}

pub(super) async fn search_page(visit: &Visit, listing: &Listing) -> Result<TaskPage, ApiError> {
    let cursor = visit.query.get("cursor").map(str::to_owned);
    next_page(visit, listing, Paging { cursor, ..Paging::default() }).await
}

/// Searches until a page is full, the list ends, or the time is over.
async fn search_pages(visit: &Visit, listing: &Listing) -> Result<TaskPage, ApiError> {
    let mut page = search_page(visit, listing).await?;
    while page.stopped_early && page.tasks.len() < PAGE && scan_time() > MIN_SCAN {
        let paging = Paging { cursor: page.next.take(), limit: PAGE - page.tasks.len() };
        page.append(next_page(visit, listing, paging).await?);
    }
    Ok(page)
}

async fn next_page(visit: &Visit, listing: &Listing, paging: Paging) -> Result<TaskPage, ApiError> {
    let query = TaskQuery::parse(&listing.q).map_err(|mistake| bad_query(&listing.q, mistake))?;
    list::list_sorted(visit.context(), query, listing.sort, paging, After::default(), scan_time()).await
}

/// Page of the task whose id is the whole search.
async fn path_of_id(visit: &Visit, text: &str) -> Option<String> {
    let id = TaskId::parse(text).ok()?;
    let task = stored(visit.api.reads.read(&id)).await.ok()??;
    Some(task_path(task.id.as_str()))
}

fn listed(visit: &Visit, listing: &Listing, query: &TaskQuery, page: &TaskPage, causes: &Causes) -> Markup {
    let view = &visit.view;
    let first = visit.query.is_set("cursor").then(|| listing.url(view));
    let looked = looked_at(visit, page);
    let sorts: Vec<TaskSort> = TaskSort::ALL.into_iter().filter(|sort| list::can_sort(query, *sort)).collect();
    let found = FoundTasks { tasks: &page.tasks, listing, sorts: &sorts, causes, total: page.total };
    html! {
        @for id in &page.missing { p.notice.attention { "There is no task " code { (id) } "." } }
        @if page.tasks.is_empty() {
            (nothing(visit, listing, query, page, looked))
        } @else {
            div.list-tools {
                @if view.may(Role::Operate) { (actions_on_all(view, listing, query, page)) }
                (listing.export_links(view))
                (listing.column_form(view))
            }
            section.panel { (found_tasks(view, &found, view.may(Role::Operate))) }
        }
        @match page.next.as_deref() {
            Some(cursor) if page.stopped_early => {
                @let query = listing.query(&[("cursor", cursor), ("looked", &looked.to_string())]);
                (pager_of_search(first.as_deref(), Some(&view.url(&format!("/search?{query}")))))
            }
            next => {
                @let next = next.map(|cursor| view.url(&format!("/tasks?{}", listing.query(&[("cursor", cursor)]))));
                @if listing.sort == TaskSort::Newest { (pager(first.as_deref(), next.as_deref(), "")) }
                @else { (pager_of_oldest(first.as_deref(), next.as_deref(), "")) }
            }
        }
        (summary(page, first.is_none(), looked))
    }
}

/// Previews of actions on all tasks that match, which need no selection. An action that no task of the whole list can take is
/// left out, and of a part of a list those that the states of the search exclude.
fn actions_on_all(view: &View, listing: &Listing, query: &TaskQuery, page: &TaskPage) -> Markup {
    let q = if listing.q.is_empty() { ALL_ROOTS } else { &listing.q };
    let is_whole = page.next.is_none();
    let can_find =
        |in_state: fn(State) -> bool| State::ALL.into_iter().any(|state| in_state(state) && finds(query, state));
    let link = |action: BulkAction, text: &str, in_state: fn(State) -> bool, can_take: fn(&Status) -> bool| {
        let is_offered = if is_whole { page.tasks.iter().any(can_take) } else { can_find(in_state) };
        html! {
            @if is_offered {
                a href=(view.url_with("/bulk/new", &[("action", action.name()), ("q", q)])) { (text) }
            }
        }
    };
    html! {
        (link(BulkAction::Retry, "Retry all…", State::is_terminal, |task| {
            task.state.is_terminal() && task.runner().can_be_retried()
        }))
        (link(BulkAction::Cancel, "Cancel all…", |state| !state.is_terminal(), |task| !task.state.is_terminal()))
        (link(BulkAction::StartNow, "Start all now…", |state| !state.is_terminal(), Status::waits_for_a_time))
    }
}

/// Number of tasks that the search has looked at, with those of its earlier parts.
fn looked_at(visit: &Visit, page: &TaskPage) -> u64 {
    let earlier = visit.query.get("looked").and_then(|number| number.parse().ok()).unwrap_or(0_u64);
    earlier.saturating_add(page.scanned.unwrap_or_default())
}

/// Contents of an empty list.
fn nothing(visit: &Visit, listing: &Listing, query: &TaskQuery, page: &TaskPage, looked: u64) -> Markup {
    let (view, params) = (&visit.view, visit.api.types.declared_params());
    html! {
        @if query.terms.is_empty() {
            (no_task(view))
        } @else if page.stopped_early {
            div.empty {
                p {
                    "No match so far. The search stopped after scanning " (counted(looked, "task", "tasks"))
                    ": a time, a tree, or a state of running or failed tasks shortens it."
                }
                (exclusions(view, listing, query, page))
                (unsearched(query, &params))
            }
        } @else {
            div.empty {
                p { @if is_of_roots(query, page) { "No root task matches this search." } @else { "No task matches this search." } }
                (exclusions(view, listing, query, page))
                (unsearched(query, &params))
                @if query.level() == TreeLevel::Roots { p { (below_roots(view, listing, query, page.other_levels)) } }
            }
        }
    }
}

/// Whether tasks below others match a search that finds no root.
fn is_of_roots(query: &TaskQuery, page: &TaskPage) -> bool {
    query.level() == TreeLevel::Roots && page.other_levels.is_some()
}

/// Tasks of other levels that match a search for roots.
fn below_roots(view: &View, listing: &Listing, query: &TaskQuery, other: Option<OtherLevels>) -> Markup {
    let url = listing.url_of(view, &query.clone().at_level(TreeLevel::Any).to_string());
    html! {
        @match other {
            Some(OtherLevels { tasks, exact }) => {
                a href=(url) { @if !exact { "At least " } (count(tasks)) " on other levels" }
            }
            None => { "It looked at root tasks. " a href=(url) { "Search all levels" } }
        }
    }
}

/// Texts that a bare word is not compared with. `params`: names of the declared params, for which searches have terms.
fn unsearched(query: &TaskQuery, params: &BTreeSet<String>) -> Markup {
    let has_word = query.terms.iter().any(|term| matches!(term.test, Test::Word(_)));
    html! {
        @if has_word {
            p {
                "Words are compared with the beginnings of ids and with names. "
                @if params.is_empty() {
                    "Params, results and logs are not searched: give tasks tags for what they are looked up by."
                } @else {
                    "Results and logs are not searched, and of params only the declared ones: "
                    @for (n, name) in params.iter().take(LISTED_PARAMS).enumerate() {
                        @if n > 0 { ", " }
                        code { (PREFIX) (name) ":" }
                    }
                    @if params.len() > LISTED_PARAMS { ", …" }
                    "."
                }
            }
        }
    }
}

/// Conditions that exclude tasks, each with the search without it.
fn exclusions(view: &View, listing: &Listing, query: &TaskQuery, page: &TaskPage) -> Markup {
    let scanned = page.scanned.unwrap_or_default();
    let without = |text: &str| {
        let terms = query.terms.iter().filter(|term| term.to_string() != text).cloned().collect();
        TaskQuery { terms }.to_string()
    };
    html! {
        @if !page.excluded.is_empty() {
            ul.plain {
                @for ExcludedTerm { term, tasks } in &page.excluded {
                    li {
                        code { (visible(term)) } " excludes " (count(tasks)) " of " (counted(scanned, "task", "tasks")) ". "
                        @if query.terms.len() > 1 { a href=(listing.url_of(view, &without(term))) { "Search without it" } }
                    }
                }
            }
        }
    }
}

/// Number of the tasks that match, their order, and the effort of the search. The index that they come from is a title.
fn summary(page: &TaskPage, is_first: bool, looked: u64) -> Markup {
    html! {
        p.quiet title=(source_name(page.source)) {
            (scope(page, is_first))
            @if page.scanned.is_some() {
                "; looked at " (counted(looked, "task", "tasks"))
                @if let Some(to) = page.scanned_to.as_deref().filter(|_| page.stopped_early || page.next.is_some()) {
                    ", back to " (time(to))
                }
            }
            "."
        }
    }
}

/// Number of the tasks that match, as far as it is known, and their order.
fn scope(page: &TaskPage, is_first: bool) -> String {
    let order = order(page);
    let listed = page.tasks.len() as u64;
    match (page.sorted, page.total) {
        (Some(sorted), _) if !sorted.all => {
            format!("{order}, of the newest {} that match", counted(sorted.tasks, "task", "tasks"))
        }
        (Some(sorted), _) => format!("{}, {order}", counted(sorted.tasks, "task", "tasks")),
        (None, Some(total)) => format!("{}, {order}", counted(total, "task", "tasks")),
        (None, None) if is_first && page.next.is_none() => format!("{}, {order}", counted(listed, "task", "tasks")),
        (None, None) => format!("{} on this page, {order}", counted(listed, "task", "tasks")),
    }
}

const fn order(page: &TaskPage) -> &'static str {
    match (page.sort, page.source) {
        (TaskSort::Oldest, _) => "oldest first",
        (TaskSort::Longest, _) => "longest in their state first",
        (TaskSort::Newest, Some(ListSource::Tree)) => "parents before children",
        (TaskSort::Newest, Some(ListSource::Errors)) => "last ended first",
        (TaskSort::Newest, Some(ListSource::Trees)) => "newest tree first, by its first event",
        (TaskSort::Newest, _) => "newest first, by their first event",
    }
}

fn lines(listing: &Listing, problem: Option<&Problem>) -> Vec<String> {
    if problem.is_some() {
        return Vec::new();
    }
    let Listing { q, sort, .. } = listing;
    let sort = if *sort == TaskSort::Newest { String::new() } else { format!(" --sort {}", sort.name()) };
    let command = format!("kafleet list{sort}");
    if q.is_empty() {
        return vec![command, curl_get("/v1/tasks")];
    }
    let read = Listing { columns: None, ..listing.clone() };
    vec![format!("{command} {}", quoted(q)), curl_get(&format!("/v1/tasks?{}", read.query(&[])))]
}

#[cfg(test)]
mod tests {
    use kafleet_documents::SortedTasks;
    use serde_json::json;

    use super::*;

    #[test]
    fn title_names_the_search() {
        let of = |q: &str| title(TaskQuery::parse(q).ok().as_ref());
        assert_eq!(of("state:failed type:charge from:1h"), "failed charge, last hour · Tasks");
        assert_eq!((of(""), of("stat:failed")), ("Tasks".into(), "Tasks".into()));
        let long = of(&format!("tag:{}", "x".repeat(100)));
        assert!(long.ends_with("… · Tasks") && long.chars().count() < 72, "{long}");
    }

    #[test]
    fn actions_on_all_are_those_that_a_task_of_the_list_can_take() {
        let view = View::for_tests(Role::Operate);
        let offered_of = |q: &str, states: &[&str], next: Option<&str>| {
            let task = |state: &&str| crate::parts::tests::status(json!({"state": state, "own_state": state}));
            let page = TaskPage {
                tasks: states.iter().map(task).collect(),
                next: next.map(Into::into),
                ..TaskPage::default()
            };
            let query = TaskQuery::parse(q).unwrap();
            let drawn = actions_on_all(&view, &Listing::default(), &query, &page).into_string();
            ["action=retry", "action=cancel", "action=start_now"].map(|action| drawn.contains(action))
        };
        let offered = |states: &[&str], next: Option<&str>| offered_of("", states, next);
        assert_eq!(offered_of("is:open", &["running"], Some("more")), [false, true, true], "no open task is run again");
        assert_eq!(offered_of("state:failed", &["failed"], Some("more")), [true, false, false]);
        assert_eq!(offered(&["succeeded", "failed"], None), [true, false, false]);
        assert_eq!(offered(&["running"], None), [false, true, false]);
        assert_eq!(offered(&["retrying"], None), [false, true, true]);
        assert_eq!(offered(&["running"], Some("more")), [true, true, true], "the rest of the list is not known");
    }

    #[test]
    fn scope_of_a_list_is_stated() {
        let page = TaskPage { source: Some(ListSource::Roots), ..TaskPage::default() };
        assert_eq!(scope(&page, true), "0 tasks, newest first, by their first event");
        assert_eq!(scope(&page, false), "0 tasks on this page, newest first, by their first event");
        let counted = TaskPage { total: Some(1_234), source: Some(ListSource::States), next: Some("x".into()), ..page };
        assert_eq!(scope(&counted, false), "1,234 tasks, newest first, by their first event");
        let sorted = |all| TaskPage {
            sort: TaskSort::Longest,
            sorted: Some(SortedTasks { tasks: 10_000, all }),
            ..TaskPage::default()
        };
        assert_eq!(scope(&sorted(true), true), "10,000 tasks, longest in their state first");
        assert_eq!(scope(&sorted(false), true), "longest in their state first, of the newest 10,000 tasks that match");
    }
}
