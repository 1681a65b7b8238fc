//! Failed tasks, grouped by type and error.

use maud::{Markup, Render, html};

use crate::api::handlers::{statistics, types};
use crate::api::http::problem::ApiError;
use crate::api::ui::parts::command::{commands, curl_get, quoted};
use crate::api::ui::parts::failures::{COLUMNS, group_row};
use crate::api::ui::parts::form::{Input, filter_buttons};
use crate::api::ui::parts::notice::empty;
use crate::api::ui::parts::table::cards;
use crate::api::ui::parts::{count, query_text};
use crate::api::ui::visit::{Answer, Body, Visit, stored};

pub(in super::super) async fn show(visit: &Visit) -> Result<Answer, ApiError> {
    let view = &visit.view;
    let filters = visit.query.select(&["type"]);
    let request = visit.request_of("", filters.clone());
    let failures = stored(statistics::failures_document(&request)).await?;
    let rows: Vec<Markup> = failures.groups.iter().map(|group| group_row(view, group, failures.at_least)).collect();
    let tasks: u64 = failures.groups.iter().map(|group| group.count).sum();
    let name = visit.query.get("type").unwrap_or_default();
    let options = if name.is_empty() { String::new() } else { format!(" --type {}", quoted(name)) };
    let pairs = if name.is_empty() { String::new() } else { format!("?{}", query_text(&[("type", name)])) };
    let main = html! {
        h1 { "Failures" }
        p.quiet {
            "Tasks that have themselves failed or expired, by type and error. Parents that failed only through a task below \
             them are left out: a retry of that task heals them."
        }
        (filter(visit).await)
        @if rows.is_empty() {
            (empty(if name.is_empty() { "No retained task has failed." } else { "No retained task of this type has failed." }, &[]))
        } @else {
            section.panel {
                p {
                    strong { @if failures.at_least { "at least " } (count(tasks)) } " tasks, "
                    strong { (count(failures.errors)) } @if failures.errors == 1 { " error" } @else { " errors" }
                    @if failures.errors > rows.len() as u64 {
                        "; the " (rows.len()) " with the most tasks are listed"
                    }
                }
                (cards(COLUMNS, &rows))
            }
        }
        p.quiet { "Attempts that failed and are retried are counted on the page of their type." }
        (commands(&[format!("kafleet failures{options}"), curl_get(&format!("/v1/failures{pairs}"))]))
    };
    Ok(Body::new("Failures", main).into())
}

async fn filter(visit: &Visit) -> Markup {
    let known = stored(types::type_list(&visit.api)).await.map(|known| known.types).unwrap_or_default();
    let names: Vec<String> = known.into_iter().map(|known| known.name).collect();
    let input = Input { name: "type", label: "Type", value: visit.query.get("type"), list: &names, ..Input::default() };
    let clear = visit.query.is_set("type").then(|| visit.view.url("/failures"));
    html! {
        form.filters action=(visit.view.url("/failures")) role="search" aria-label="Filters" {
            (input.render()) (filter_buttons(clear.as_deref()))
        }
    }
}
