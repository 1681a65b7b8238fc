//! Tasks that match a search.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_query;
use kafleet_api::read::causes::causes;
use kafleet_api::service::context::{After, PAGE, Paging};
use kafleet_api::service::{list, types};
use kafleet_config::Role;
use kafleet_documents::{ExcludedTerm, ListSource, OtherLevels, Problem, TaskPage, TypeDocument};
use kafleet_model::query::{Qualifier, TaskQuery, Term, Test, TreeLevel};
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use maud::{Markup, html};
use tokio::time::Instant;

use super::overview::totals;
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::notice::no_task;
use crate::parts::search::{mistake, search_form};
use crate::parts::state::{tone, word};
use crate::parts::table::{pager, pager_of_search};
use crate::parts::tasks::{Causes, Choice, selectable_tasks};
use crate::parts::times::time;
use crate::parts::{View, count, counted, query_text, task_path, visible};
use crate::visit::{Body, PageAnswer, Visit, scan_time, stored, until};

/// Shortest time that a further part of a search is worth.
const MIN_SCAN: Duration = Duration::from_millis(500);
/// Time for which a search that stopped early is continued.
const SEARCH_TIME: Duration = Duration::from_secs(10);

/// Maximum time in which the errors of failed parents are read.
const CAUSES_DEADLINE: Duration = Duration::from_millis(300);

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let text = visit.query.get("q").unwrap_or_default().trim();
    if let Some(path) = path_of_id(visit, text).await {
        return Ok(PageAnswer::Redirect(path));
    }
    shown(visit, text, stored(search_page(visit, text))).await
}

/// Page that continues a search for a longer time. It has no live updates, which would repeat that.
pub(in super::super) async fn search_on(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let text = visit.query.get("q").unwrap_or_default().trim();
    shown(visit, text, until(Instant::now() + SEARCH_TIME, stored(search_pages(visit, text)))).await
}

async fn shown(
    visit: &Visit,
    text: &str,
    search: impl Future<Output = Result<TaskPage, ApiError>>,
) -> Result<PageAnswer, ApiError> {
    let query = TaskQuery::parse(text);
    let (page, types) = tokio::join!(search, stored(types::type_list(&visit.api)));
    let (page, problem) = match page {
        Ok(page) => (Some(page), None),
        Err(error) => match error.clone().document() {
            problem if problem.span.is_some() => (None, Some(problem)),
            _ => return Err(error),
        },
    };
    let types = types.ok().map(|types| types.types);
    let listed_tasks = page.as_ref().map_or(&[][..], |page| &page.tasks);
    let causes = causes(&visit.api, listed_tasks, CAUSES_DEADLINE).await;
    let main = html! {
        h1 { "Tasks" }
        (search_form(&visit.view, text, query.as_ref().ok()))
        @if let Some(problem) = &problem { (mistake(text, problem)) }
        @if let Some((page, query)) = page.as_ref().zip(query.as_ref().ok()) {
            (tabs(&visit.view, query, types.as_deref()))
            (listed(visit, query, text, page, &causes))
        }
        (commands(&lines(text, problem.as_ref())))
    };
    Ok(Body::new("Tasks", main).into())
}

async fn search_page(visit: &Visit, text: &str) -> Result<TaskPage, ApiError> {
    let cursor = visit.query.get("cursor").map(str::to_owned);
    next_page(visit, text, Paging { cursor, ..Paging::default() }).await
}

/// Searches until a page is full, the list ends, or the time is over.
async fn search_pages(visit: &Visit, text: &str) -> Result<TaskPage, ApiError> {
    let mut page = search_page(visit, text).await?;
    while page.stopped_early && page.tasks.len() < PAGE && scan_time() > MIN_SCAN {
        let paging = Paging { cursor: page.next.take(), limit: PAGE - page.tasks.len() };
        page.append(next_page(visit, text, paging).await?);
    }
    Ok(page)
}

async fn next_page(visit: &Visit, text: &str, paging: Paging) -> Result<TaskPage, ApiError> {
    let query = TaskQuery::parse(text).map_err(|mistake| bad_query(text, mistake))?;
    list::list(visit.context(), query, paging, After::default(), scan_time()).await
}

/// Page of the task whose id is the whole search.
async fn path_of_id(visit: &Visit, text: &str) -> Option<String> {
    let id = TaskId::parse(text).ok()?;
    let task = stored(visit.api.reads.read(&id)).await.ok()??;
    Some(task_path(task.id.as_str()))
}

/// Search with other states, and without its page.
fn with_state(query: &TaskQuery, state: Option<State>) -> String {
    let is_state = |term: &Term| matches!(term.test, Test::State(_)) && !term.negated;
    let mut terms: Vec<Term> = query.terms.iter().filter(|term| !is_state(term)).cloned().collect();
    terms.extend(state.map(|state| Term { negated: false, test: Test::State(vec![state]) }));
    TaskQuery { terms }.to_string()
}

/// Whether the search restricts only types, states and levels, which have counters.
fn is_counted(query: &TaskQuery) -> bool {
    query.terms.iter().all(|term| {
        !term.negated && matches!(term.test, Test::Text(Qualifier::Type, _) | Test::State(_) | Test::Level(_))
    })
}

/// States as quick filters. Counters know the number of tasks of all levels only: a list of roots has no numbers.
fn tabs(view: &View, query: &TaskQuery, types: Option<&[TypeDocument]>) -> Markup {
    let counts = types.filter(|_| is_counted(query)).map(|types| counts_of(query, types)).unwrap_or_default();
    let chosen = chosen_states(query);
    let states: Vec<State> =
        State::ALL.into_iter().filter(|state| counts.contains_key(state) || chosen.contains(state)).collect();
    let number = |state: &State| counts.get(state).filter(|_| query.level() == TreeLevel::Any);
    html! {
        nav.tabs aria-label="states" {
            a href=(view.search(&with_state(query, None))) aria-current=[chosen.is_empty().then_some("page")] { "All" }
            @for state in states {
                a class=(tone(state)) href=(view.search(&with_state(query, Some(state))))
                    aria-current=[chosen.contains(&state).then_some("page")] {
                    (word(state)) @if let Some(n) = number(&state) { " " span.number { (count(n)) } }
                }
            }
        }
    }
}

/// States that the search selects.
fn chosen_states(query: &TaskQuery) -> Vec<State> {
    let states = query.terms.iter().filter_map(|term| match &term.test {
        Test::State(states) if !term.negated => Some(states),
        _ => None,
    });
    states.flatten().copied().collect()
}

fn counts_of(query: &TaskQuery, listed: &[TypeDocument]) -> BTreeMap<State, u64> {
    let named = query.terms.iter().find_map(|term| match &term.test {
        Test::Text(Qualifier::Type, names) => Some(names),
        _ => None,
    });
    let is_selected = |listed: &&TypeDocument| named.is_none_or(|names| names.contains(&listed.name));
    totals(listed.iter().filter(is_selected))
}

fn listed(visit: &Visit, query: &TaskQuery, text: &str, page: &TaskPage, causes: &Causes) -> Markup {
    let view = &visit.view;
    let first = visit.query.is_set("cursor").then(|| view.search(text));
    let looked = looked_at(visit, page);
    let choice = view.may(Role::Operate).then_some(Choice { query: text, total: page.total });
    html! {
        @for id in &page.missing { p.notice.attention { "There is no task " code { (id) } "." } }
        @if page.tasks.is_empty() {
            (nothing(view, query, page, looked))
        } @else {
            section.panel { (selectable_tasks(view, &page.tasks, choice.as_ref(), causes)) }
        }
        @match page.next.as_deref() {
            Some(cursor) if page.stopped_early => {
                @let looked = looked.to_string();
                @let next = view.url_with("/search", &[("q", text), ("cursor", cursor), ("looked", &looked)]);
                (pager_of_search(first.as_deref(), Some(&next)))
            }
            next => {
                @let next = next.map(|cursor| view.url_with("/tasks", &[("q", text), ("cursor", cursor)]));
                (pager(first.as_deref(), next.as_deref(), ""))
            }
        }
        p.quiet { (source(page, looked)) }
    }
}

/// Number of tasks that the search has looked at, with those of its earlier parts.
fn looked_at(visit: &Visit, page: &TaskPage) -> u64 {
    let earlier = visit.query.get("looked").and_then(|number| number.parse().ok()).unwrap_or(0_u64);
    earlier.saturating_add(page.scanned.unwrap_or_default())
}

/// Contents of an empty list.
fn nothing(view: &View, query: &TaskQuery, page: &TaskPage, looked: u64) -> Markup {
    html! {
        @if query.terms.is_empty() {
            (no_task(view))
        } @else if page.stopped_early {
            div.empty {
                p {
                    "No match so far. The search stopped after scanning " (counted(looked, "task", "tasks"))
                    ": a time, a tree, or a state of running or failed tasks shortens it."
                }
                (exclusions(view, query, page))
                (unsearched(query))
            }
        } @else {
            div.empty {
                p { @if is_of_roots(query, page) { "No root task matches this search." } @else { "No task matches this search." } }
                (exclusions(view, query, page))
                (unsearched(query))
                @if query.level() == TreeLevel::Roots { p { (below_roots(view, query, page.other_levels)) } }
            }
        }
    }
}

/// Whether tasks below others match a search that finds no root.
fn is_of_roots(query: &TaskQuery, page: &TaskPage) -> bool {
    query.level() == TreeLevel::Roots && page.other_levels.is_some()
}

/// Tasks of other levels that match a search for roots.
fn below_roots(view: &View, query: &TaskQuery, other: Option<OtherLevels>) -> Markup {
    let url = view.search(&query.clone().at_level(TreeLevel::Any).to_string());
    html! {
        @match other {
            Some(OtherLevels { tasks, exact }) => {
                a href=(url) { @if !exact { "At least " } (count(tasks)) " on other levels" }
            }
            None => { "It looked at root tasks. " a href=(url) { "Search all levels" } }
        }
    }
}

/// Texts that a bare word is not compared with.
fn unsearched(query: &TaskQuery) -> Markup {
    let has_word = query.terms.iter().any(|term| matches!(term.test, Test::Word(_)));
    html! {
        @if has_word {
            p {
                "Words are compared with the beginnings of ids and with names. Params, results and logs are not searched: \
                 give tasks tags for what they are looked up by."
            }
        }
    }
}

/// Conditions that exclude tasks, each with the search without it.
fn exclusions(view: &View, query: &TaskQuery, page: &TaskPage) -> Markup {
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
                        @if query.terms.len() > 1 { a href=(view.search(&without(term))) { "Search without it" } }
                    }
                }
            }
        }
    }
}

/// Index that the tasks come from, and the effort of the search.
fn source(page: &TaskPage, looked: u64) -> Markup {
    html! {
        (source_name(page.source))
        @if let Some(total) = page.total { "; " (count(total)) " match in all" }
        @if page.scanned.is_some() {
            "; looked at " (count(looked)) " tasks"
            @if let Some(to) = page.scanned_to.as_deref().filter(|_| page.stopped_early || page.next.is_some()) {
                ", back to " (time(to))
            }
        }
        "."
    }
}

const fn source_name(source: Option<ListSource>) -> &'static str {
    match source {
        Some(ListSource::Ids) => "The tasks of these ids",
        Some(ListSource::Tree) => "From the tree",
        Some(ListSource::States) => "From the indexes by type and state",
        Some(ListSource::Errors) => "From the indexes of failed tasks by error, the last ended first",
        Some(ListSource::Trees) => "From all trees, the newest first",
        Some(ListSource::Roots) | None => "From the index of all roots, the newest first",
    }
}

fn lines(text: &str, problem: Option<&Problem>) -> Vec<String> {
    if problem.is_some() {
        return Vec::new();
    }
    if text.is_empty() {
        return vec!["kafleet list".to_owned(), curl_get("/v1/tasks")];
    }
    vec![format!("kafleet list {}", quoted(text)), curl_get(&format!("/v1/tasks?{}", query_text(&[("q", text)])))]
}
