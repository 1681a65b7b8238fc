//! Failed tasks, grouped by type and error.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::{After, PAGE};
use kafleet_api::service::{statistics, types};
use kafleet_documents::Failures;
use maud::{Markup, Render, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::failures::{COLUMNS, group_row};
use crate::parts::form::{Input, filter_buttons};
use crate::parts::notice::empty;
use crate::parts::table::cards;
use crate::parts::{View, count, query_text};
use crate::visit::{Body, PageAnswer, Visit, stored};

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = visit.query.type_name("type")?;
    let failures = stored(statistics::failures(visit.context(), task_type, PAGE, After::default())).await?;
    let name = visit.query.get("type").unwrap_or_default();
    let main = html! {
        h1 { "Failures" }
        p.quiet {
            "Tasks that have themselves failed or expired, by type and error. Parents that failed only through a task below \
             them are left out: a retry of that task heals them."
        }
        (filter(visit).await)
        @if failures.groups.is_empty() {
            (empty(nothing(name), &[]))
        } @else {
            section.panel { (listed(&visit.view, &failures)) }
        }
        p.quiet { "Attempts that failed and are retried are counted on the page of their type." }
        (commands(&lines(name)))
    };
    Ok(Body::new("Failures", main).into())
}

fn listed(view: &View, failures: &Failures) -> Markup {
    let rows: Vec<Markup> = failures.groups.iter().map(|group| group_row(view, group, failures.at_least)).collect();
    let tasks: u64 = failures.groups.iter().map(|group| group.count).sum();
    html! {
        p {
            strong { @if failures.at_least { "at least " } (count(tasks)) } @if tasks == 1 { " task, " } @else { " tasks, " }
            strong { (count(failures.errors)) } @if failures.errors == 1 { " error" } @else { " errors" }
            @if failures.errors > rows.len() as u64 {
                "; the " (rows.len()) " with the most tasks are listed"
            }
        }
        (cards(COLUMNS, &rows))
    }
}

const fn nothing(name: &str) -> &'static str {
    if name.is_empty() { "No retained task has failed." } else { "No retained task of this type has failed." }
}

fn lines(name: &str) -> [String; 2] {
    match name {
        "" => ["kafleet failures".to_owned(), curl_get("/v1/failures")],
        name => [
            format!("kafleet failures --type {}", quoted(name)),
            curl_get(&format!("/v1/failures?{}", query_text(&[("type", name)]))),
        ],
    }
}

async fn filter(visit: &Visit) -> Markup {
    let listed = stored(types::type_list(&visit.api)).await.map(|listed| listed.types).unwrap_or_default();
    let names: Vec<String> = listed.into_iter().map(|listed| listed.name).collect();
    let input = Input::new("type", "Type", visit.query.get("type")).suggestions(&names);
    let clear = visit.query.is_set("type").then(|| visit.view.url("/failures"));
    html! {
        form.filters action=(visit.view.url("/failures")) role="search" aria-label="Filters" {
            (input.render()) (filter_buttons(clear.as_deref()))
        }
    }
}
