//! List of unresolved dead letters.

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::context::{PAGE, Paging};
use kafleet_api::service::dead_letters::{self, LetterQuery};
use kafleet_config::Role;
use kafleet_documents::DeadLetterPage;
use kafleet_fleet::dead_letters::Filter;
use kafleet_model::error_fingerprint::Fingerprint;
use maud::{Markup, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::form::filter_buttons;
use crate::parts::letters::{FILTERS, filter_inputs, letter_table};
use crate::parts::notice::empty;
use crate::parts::table::pager;
use crate::parts::{View, count, query_text};
use crate::visit::{Body, PageAnswer, Visit, from_kafka};

/// Parameter that leaves out the letters of failed tasks.
const WITHOUT_FAILURE: &str = "without_failure";

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let page = from_kafka(letters_page(visit)).await?;
    let filters = filters_of(visit);
    let pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let main = html! {
        div.head { h1 { "Dead letters" } (actions(&visit.view, &pairs)) }
        p.quiet {
            "Single records, newest first. " a href=(visit.view.url_with("/failures", &[("with_dead_letters", "true")])) { "Failures" }
            " has those of failed tasks by the kind of their error."
        }
        (filter_form(visit))
        (choices(visit, &pairs))
        (rows(&visit.view, &pairs, visit.query.is_set("cursor"), &page))
        (commands(&[format!("kafleet dead-letters list{}", options(&pairs)), curl_get(&format!("/v1/dead-letters?{}", query_text(&pairs)))]))
    };
    Ok(Body::new("Dead letters", main).into())
}

fn filters_of(visit: &Visit) -> Vec<(String, String)> {
    let mut names = FILTERS.to_vec();
    names.push(WITHOUT_FAILURE);
    visit.query.select(&names)
}

/// Options of the command that lists the same letters.
fn options(filters: &[(&str, &str)]) -> String {
    let option = |(name, value): &(&str, &str)| match *name {
        WITHOUT_FAILURE => " --without-failure".to_owned(),
        name => format!(" --{name} {}", quoted(value)),
    };
    filters.iter().map(option).collect()
}

pub(super) async fn letters_page(visit: &Visit) -> Result<DeadLetterPage, ApiError> {
    let query = &visit.query;
    let text = |name: &str| query.get(name).map(str::to_owned);
    let (from_ms, to_ms) = (query.time_ms("from")?, query.time_ms("to")?);
    let task_type = query.type_name("type")?.map(str::to_owned);
    let error = query.get("error").map(str::parse::<Fingerprint>).transpose();
    let letters = LetterQuery {
        filter: Filter { task_type, code: text("code"), from_ms, to_ms, resolved_by: None },
        kind: text("kind"),
        error: error.map_err(|error: String| bad_parameter("error", &error))?,
        without_failure: query.get(WITHOUT_FAILURE) == Some("true"),
    };
    dead_letters::list(visit.context(), letters, Paging { cursor: text("cursor"), ..Paging::default() }).await
}

/// Actions on all letters of a type.
fn actions(view: &View, filters: &[(&str, &str)]) -> Markup {
    let names: Vec<&str> = filters.iter().map(|(name, _)| *name).collect();
    let mut redrive = vec![("action", "redrive")];
    redrive.extend(filters);
    html! {
        @if view.may(Role::Operate) && names.contains(&"type") && !names.contains(&WITHOUT_FAILURE) {
            div.actions {
                a.button href=(view.url_with("/bulk/new", &redrive)) { "Redrive matching…" }
                a.button href=(view.url_with("/dead-letters/drop", filters)) data-dialog { "Drop matching…" }
            }
        }
    }
}

fn filter_form(visit: &Visit) -> Markup {
    let is_set = FILTERS.iter().any(|name| visit.query.is_set(name));
    let clear = is_set.then(|| visit.view.url("/dead-letters"));
    html! {
        form.filters action=(visit.view.url("/dead-letters")) role="search" aria-label="Filters" {
            (filter_inputs(&visit.view, |name| visit.query.get(name)))
            @for (name, value) in visit.query.select(&["error", WITHOUT_FAILURE]) {
                input type="hidden" name=(name) value=(value);
            }
            (filter_buttons(clear.as_deref()))
        }
    }
}

fn choices(visit: &Visit, filters: &[(&str, &str)]) -> Markup {
    let mut others: Vec<(&str, &str)> = filters.to_vec();
    others.retain(|(name, _)| *name != WITHOUT_FAILURE);
    let all = visit.view.url_with("/dead-letters", &others);
    others.push((WITHOUT_FAILURE, "true"));
    let without = visit.view.url_with("/dead-letters", &others);
    let is_without = visit.query.is_set(WITHOUT_FAILURE);
    html! {
        nav.ranges aria-label="letters" {
            a href=(all) aria-current=[(!is_without).then_some("page")] { "all" }
            a href=(without) aria-current=[is_without.then_some("page")]
                title="Records that are not tasks, and tasks whose record has been removed" { "without a failed task" }
        }
    }
}

fn rows(view: &View, filters: &[(&str, &str)], is_later: bool, page: &DeadLetterPage) -> Markup {
    let mut query = filters.to_vec();
    let first = is_later.then(|| view.url_with("/dead-letters", &query));
    let next = page.next.as_deref().map(|cursor| {
        query.push(("cursor", cursor));
        view.url_with("/dead-letters", &query)
    });
    // A full page says by itself that there are more.
    let is_short = next.is_some() && page.letters.len() < PAGE;
    let looked = if is_short { format!("looked at {} records so far", count(page.scanned)) } else { String::new() };
    html! {
        @if !page.letters.is_empty() {
            section.panel { (letter_table(view, &page.letters)) }
        } @else if filters.is_empty() {
            (empty("There is no dead letter. Tasks whose attempts are exhausted, and records that cannot be read, appear here.", &[]))
        } @else {
            (empty("No unresolved dead letter matches these filters.", &[]))
        }
        (pager(first.as_deref(), next.as_deref(), &looked))
    }
}
