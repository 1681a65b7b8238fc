//! List of tasks with its filters.

use std::collections::BTreeMap;

use maud::{Markup, Render, html};

use super::overview::totals;
use crate::api::documents::TaskPage;
use crate::api::handlers::{list, types};
use crate::api::http::problem::ApiError;
use crate::api::ui::parts::command::{commands, curl_get, quoted};
use crate::api::ui::parts::form::{Input, select};
use crate::api::ui::parts::notice::empty;
use crate::api::ui::parts::state::{tone, word};
use crate::api::ui::parts::table::pager;
use crate::api::ui::parts::tasks::task_table;
use crate::api::ui::parts::{View, count, query_text, task_path};
use crate::api::ui::visit::{Answer, Body, Fields, Visit, stored};
use crate::model::record::state::State;
use crate::model::task::id::TaskId;

/// Filters of `GET /v1/tasks`, in the order of the form.
const FILTERS: [&str; 11] =
    ["type", "state", "level", "tag", "creator", "name", "name_like", "error", "from", "to", "root"];

pub(in super::super) async fn show(visit: &Visit) -> Result<Answer, ApiError> {
    if let Some(text) = visit.query.get("find") {
        return find(visit, text.trim()).await;
    }
    let mut query = visit.query.select_with_times(&FILTERS);
    query.extend(visit.query.select(&["cursor"]));
    let request = visit.request_of("", query);
    let (page, known) = tokio::join!(stored(list::task_page(&request)), stored(types::type_list(&visit.api)));
    let page = page?;
    let counts = known.ok().map(|known| counts_of(&visit.query, known.types));
    let main = html! {
        h1 { "Tasks" }
        (filters(visit))
        @if let Some(counts) = &counts { (tabs(&visit.view, &visit.query, counts)) }
        (rows(&visit.view, &visit.query, &page))
        (commands(&lines(&visit.query)))
    };
    Ok(Body::new("Tasks", main).into())
}

/// Opens the task of this id, or lists the tasks whose name contains the text.
async fn find(visit: &Visit, text: &str) -> Result<Answer, ApiError> {
    if let Ok(id) = TaskId::parse(text)
        && let Ok(Some(found)) = stored(visit.api.reads.read(&id)).await
    {
        return Ok(Answer::Redirect(task_path(found.id.as_str())));
    }
    let pattern = regex::escape(text);
    Ok(Answer::Redirect(format!("/tasks?{}", query_text(&[("name_like", &pattern), ("level", "any")]))))
}

fn counts_of(query: &Fields, mut known: Vec<crate::api::documents::TypeDocument>) -> BTreeMap<State, u64> {
    if let Some(name) = query.get("type") {
        known.retain(|known| known.name == name);
    }
    totals(&known)
}

fn filters(visit: &Visit) -> Markup {
    let (view, query) = (&visit.view, &visit.query);
    let states: Vec<String> = State::ALL.iter().map(|state| word(*state)).collect();
    let names = State::ALL.map(State::name);
    let mut options = vec![("", "any")];
    options.extend(names.iter().zip(&states).map(|(name, word)| (*name, word.as_str())));
    let text = |name, label, hint| Input { name, label, hint, value: query.get(name), ..Input::default() }.render();
    let more = ["tag", "creator", "name", "name_like", "from", "to", "root"];
    html! {
        form.filters action=(view.url("/tasks")) role="search" aria-label="Filters" {
            (text("type", "Type", ""))
            (select("state", "State", &options, query.get("state").unwrap_or_default()))
            (select("level", "Level", &[("", "roots"), ("any", "all levels")], query.get("level").unwrap_or_default()))
            (text("error", "Error", "kind or message"))
            details.more open[more.iter().any(|name| query.is_set(name))] {
                summary { "More filters" }
                div.filters {
                    (text("tag", "Tag", ""))
                    (text("creator", "Creator", ""))
                    (text("name", "Name begins with", ""))
                    (text("name_like", "Name matches", "regular expression"))
                    (text("from", "From", "2h, or 2026-11-01T00:00:00Z"))
                    (text("to", "To", "30m, or a time"))
                    (text("root", "Below task", "id"))
                }
            }
            div.buttons {
                button.primary type="submit" { "Filter" }
                @if FILTERS.iter().any(|name| query.is_set(name)) { a.button href=(view.url("/tasks")) { "Clear" } }
            }
        }
    }
}

/// States as quick filters, with the counts of the type.
fn tabs(view: &View, query: &Fields, counts: &BTreeMap<State, u64>) -> Markup {
    let chosen = query.get("state").unwrap_or_default();
    let link = |state: Option<State>| {
        let mut filters: Vec<(&str, &str)> = Vec::new();
        filters.extend(query.get("type").map(|name| ("type", name)));
        filters.extend(state.map(|state| ("state", state.name())));
        filters.extend(state.map(|_| ("level", "any")));
        view.url_with("/tasks", &filters)
    };
    html! {
        nav.tabs aria-label="states" {
            a href=(link(None)) aria-current=[chosen.is_empty().then_some("page")] { "All" }
            @for (state, n) in counts {
                a class=(tone(*state)) href=(link(Some(*state))) aria-current=[(chosen == state.name()).then_some("page")] {
                    (word(*state)) " " span.number { (count(n)) }
                }
            }
        }
    }
}

fn rows(view: &View, query: &Fields, page: &TaskPage) -> Markup {
    let filters = query.select(&FILTERS);
    let mut pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let first = query.is_set("cursor").then(|| view.url_with("/tasks", &pairs));
    let next = page.next.as_deref().map(|cursor| {
        pairs.push(("cursor", cursor));
        view.url_with("/tasks", &pairs)
    });
    let note = match page.scanned {
        Some(scanned) if page.stopped_early => {
            format!("stopped after looking at {} tasks; continue with older", count(scanned))
        }
        Some(scanned) => format!("looked at {} tasks", count(scanned)),
        None => String::new(),
    };
    html! {
        @if page.tasks.is_empty() {
            @if filters.is_empty() {
                (empty("No task has been submitted yet. Submit one:", &[
                    "kafleet submit echo '{\"hello\": \"world\"}'",
                    "echo '{\"hello\": \"world\"}' | kcat -P -t kafleet.tasks.echo",
                ]))
            } @else {
                (empty("No task matches these filters.", &[]))
            }
        } @else {
            (task_table(view, "t", &page.tasks))
        }
        (pager(first.as_deref(), next.as_deref(), &note))
    }
}

fn lines(query: &Fields) -> Vec<String> {
    let filters = query.select(&FILTERS);
    let options: String =
        filters.iter().map(|(name, value)| format!(" --{} {}", name.replace('_', "-"), quoted(value))).collect();
    let pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let query = if pairs.is_empty() { String::new() } else { format!("?{}", query_text(&pairs)) };
    vec![format!("kafleet list{options}"), curl_get(&format!("/v1/tasks{query}"))]
}
