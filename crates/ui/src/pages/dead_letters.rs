//! Dead letters: list, and one letter with its record.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::{After, Paging};
use kafleet_api::service::dead_letters::{self, letter_id};
use kafleet_api::service::task;
use kafleet_config::Role;
use kafleet_documents::{DeadLetter, DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, Status};
use kafleet_fleet::dead_letters::Filter;
use maud::{Markup, html};

use crate::letters::{self, LetterGroup, Summary};
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::facts::{code, facts};
use crate::parts::form::{Input, filter_buttons};
use crate::parts::json::json_block;
use crate::parts::notice::empty;
use crate::parts::state::{label, pill};
use crate::parts::table::{cards, pager, table};
use crate::parts::tasks::{type_link, worker_link};
use crate::parts::times::{time, time_hint};
use crate::parts::{View, count, encoded, first_line, query_text, visible};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, stored, task_id};

const FILTERS: [&str; 4] = ["type", "code", "from", "to"];

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let page = from_kafka(letters_page(visit)).await?;
    let is_first = !visit.query.is_set("cursor") && FILTERS.iter().all(|name| !visit.query.is_set(name));
    let by_error =
        if is_first { from_kafka(letters::summary(&visit.live.letters, visit.context())).await.ok() } else { None };
    let filters = visit.query.select(&FILTERS);
    let pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let options: String = pairs.iter().map(|(name, value)| format!(" --{name} {}", quoted(value))).collect();
    let main = html! {
        div.head { h1 { "Dead letters" } (bulk(&visit.view, &visit.query)) }
        (filter_form(visit))
        @if let Some(summary) = by_error.filter(|summary| summary.letters > summary.groups.len()) {
            (groups(&visit.view, &summary))
        }
        (rows(&visit.view, &pairs, visit.query.is_set("cursor"), &page))
        (commands(&[format!("kafleet dead-letters list{options}"), curl_get(&format!("/v1/dead-letters?{}", query_text(&pairs)))]))
    };
    Ok(Body::new("Dead letters", main).into())
}

async fn letters_page(visit: &Visit) -> Result<DeadLetterPage, ApiError> {
    let query = &visit.query;
    let text = |name: &str| query.get(name).map(str::to_owned);
    let (from_ms, to_ms) = (query.time_ms("from")?, query.time_ms("to")?);
    let filter = Filter { task_type: query.type_name("type")?.map(str::to_owned), code: text("code"), from_ms, to_ms };
    dead_letters::list(visit.context(), filter, Paging { cursor: text("cursor"), ..Paging::default() }).await
}

/// Actions on all letters of a type.
fn bulk(view: &View, query: &crate::visit::Fields) -> Markup {
    let filters = query.select(&FILTERS);
    let pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    html! {
        @if view.may(Role::Operate) && query.is_set("type") {
            div.actions {
                a.button href=(view.url_with("/dead-letters/redrive", &pairs)) data-dialog { "Redrive matching…" }
                a.button href=(view.url_with("/dead-letters/drop", &pairs)) data-dialog { "Drop matching…" }
            }
        }
    }
}

fn filter_form(visit: &Visit) -> Markup {
    let text = |name, label, hint| Input::new(name, label, visit.query.get(name)).hint(hint);
    let is_set = FILTERS.iter().any(|name| visit.query.is_set(name));
    let hint = time_hint(&visit.view);
    let clear = is_set.then(|| visit.view.url("/dead-letters"));
    html! {
        form.filters action=(visit.view.url("/dead-letters")) role="search" aria-label="Filters" {
            (text("type", "Type", ""))
            (text("code", "Code", "such as exhausted or schema"))
            (text("from", "From", &hint))
            (text("to", "To", &hint))
            (filter_buttons(clear.as_deref()))
        }
    }
}

/// Letters by type, code and error.
fn groups(view: &View, summary: &Summary) -> Markup {
    let row = |group: &LetterGroup| {
        let newest = &group.newest;
        let same = view.url_with("/dead-letters", &[("type", &newest.task_type), ("code", &newest.code)]);
        html! {
            tr {
                td.number { a.bad href=(same) { (count(group.count)) } }
                td { (type_link(view, Some(&newest.task_type))) }
                td { code { (visible(&newest.code)) } }
                td.message { span.error title=(first_line(&newest.error_text(), 400)) { (first_line(&newest.error_text(), 120)) } }
                td.time { (time(&newest.at)) }
            }
        }
    };
    let rows: Vec<Markup> = summary.groups.iter().map(row).collect();
    html! {
        section.panel #groups {
            h2 {
                "By error "
                span.quiet { @if summary.more { "of the newest " (count(letters::MAX_SUMMARIZED)) } @else { "of all " (count(summary.letters)) } }
            }
            (table(&["#Letters", "Type", "Code", "Error", "Newest"], &rows))
        }
    }
}

fn rows(view: &View, filters: &[(&str, &str)], is_later: bool, page: &DeadLetterPage) -> Markup {
    let rows: Vec<Markup> = page.letters.iter().map(|letter| row(view, letter)).collect();
    let mut query = filters.to_vec();
    let first = is_later.then(|| view.url_with("/dead-letters", &query));
    let next = page.next.as_deref().map(|cursor| {
        query.push(("cursor", cursor));
        view.url_with("/dead-letters", &query)
    });
    let looked = match page.scanned {
        1 => "looked at 1 record".to_owned(),
        scanned => format!("looked at {} records", count(scanned)),
    };
    html! {
        @if rows.is_empty() {
            @if filters.is_empty() {
                (empty("There is no dead letter. Tasks whose attempts are exhausted, and records that cannot be read, appear here.", &[]))
            }
            @else { (empty("No unresolved dead letter matches these filters.", &[])) }
        } @else {
            section.panel { (cards(&["Letter", "Type", "Task", "Code", "Error", "Time"], &rows)) }
        }
        (pager(first.as_deref(), next.as_deref(), &looked))
    }
}

fn row(view: &View, letter: &DeadLetter) -> Markup {
    html! {
        tr id={ "d-" (letter.id) } {
            td.id { a href=(view.url(&format!("/dead-letters/{}", encoded(&letter.id)))) { (letter.id) } }
            td { (type_link(view, Some(&letter.task_type))) }
            td.id {
                @match &letter.task {
                    Some(task) => { a href=(view.task(task)) { (task) } } None => { span.quiet { "–" } }
                }
            }
            td { code { (letter.code) } }
            td.message { span.error title=(first_line(&letter.error_text(), 400)) { (first_line(&letter.error_text(), 80)) } }
            td.time { (time(&letter.at)) }
        }
    }
}

pub(super) async fn find(visit: &Visit) -> Result<DeadLetterDetail, ApiError> {
    from_kafka(dead_letters::show(visit.context(), letter_id(&visit.segment)?)).await
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let detail = find(visit).await?;
    let letter = &detail.letter;
    let task = match &letter.task {
        Some(id) => stored(task::status(visit.context(), task_id(id)?, After::default())).await.ok(),
        None => None,
    };
    let main = html! {
        div.head { h1 { "Dead letter " (letter.id) } (actions(view, &detail)) }
        section.panel { (properties(view, &detail, task.as_ref())) }
        (error_of(letter))
        (record(&detail))
        (commands(&[
            format!("kafleet dead-letters show {}", quoted(&letter.id)),
            curl_get(&format!("/v1/dead-letters/{}", letter.id)),
        ]))
    };
    Ok(Body::new(format!("Dead letter {}", letter.id), main).into())
}

fn properties(view: &View, detail: &DeadLetterDetail, task: Option<&Status>) -> Markup {
    let letter = &detail.letter;
    facts(&[
        ("Resolution", Some(resolution(detail.outcome))),
        ("Type", Some(type_link(view, Some(&letter.task_type)))),
        ("Task", letter.task.as_deref().map(|id| task_link(view, id, letter.run, task))),
        ("Code", Some(code(&letter.code))),
        ("Time", Some(time(&letter.at))),
        ("Worker", letter.worker.as_deref().map(|worker| worker_link(view, worker))),
        ("Record", letter.source.as_deref().map(code)),
        ("Key", detail.key.as_deref().map(|key| html! { code { (visible(key)) } })),
    ])
}

fn error_of(letter: &DeadLetter) -> Markup {
    html! {
        section.panel #error {
            h2 { "Error" }
            @if let Some(pointer) = &letter.pointer {
                p { "at " code { @if pointer.is_empty() { "the params themselves" } @else { (pointer) } } }
            }
            pre.error { (visible(&letter.error)) }
        }
    }
}

fn actions(view: &View, detail: &DeadLetterDetail) -> Markup {
    let link = |page: &str, name: &str| {
        html! { a.button href=(view.url(&format!("/dead-letters/{}/{page}", encoded(&detail.letter.id)))) data-dialog { (name) } }
    };
    html! {
        @if view.may(Role::Operate) && detail.outcome.is_none() {
            div.actions { (link("redrive", "Redrive…")) (link("edit", "Edit and redrive…")) (link("drop", "Drop…")) }
        }
    }
}

fn resolution(outcome: Option<DeadLetterOutcome>) -> Markup {
    match outcome {
        None => label("bad", "✘\u{fe0e} unresolved"),
        Some(DeadLetterOutcome::Dropped) => label("neutral", "–\u{fe0e} dropped"),
        Some(DeadLetterOutcome::Redriven) => label("good", "↻\u{fe0e} redriven"),
        Some(DeadLetterOutcome::Superseded) => label("neutral", "the task has moved on"),
    }
}

fn task_link(view: &View, id: &str, run: Option<u32>, now: Option<&Status>) -> Markup {
    html! {
        a href=(view.task(id)) { (id) }
        @if let Some(run) = run { span.quiet { ", run " (run) } }
        @match now {
            Some(status) => {
                " " span.quiet { "now" } " " (pill(status.state)) @if Some(status.run)
                != run { span.quiet { " in run " (status.run) } }
            }
            None => { span.quiet { ", not retained" } }
        }
    }
}

fn record(detail: &DeadLetterDetail) -> Markup {
    let rows: Vec<Markup> = detail.headers.iter().map(|(name, value)| header_row(name, value.as_deref())).collect();
    html! {
        section.panel #params {
            h2 { "Params" }
            @if let Some(params) = &detail.params { (json_block(params, None)) }
            @else if let Some(value) = &detail.value_base64 {
                p.quiet { "The value is not JSON; in base64:" } pre { code { (first_line(value, 4_096)) } }
            }
            @else { p.quiet { "The record has no value, or it is no longer retained." } }
        }
        @if !rows.is_empty() {
            details.panel #headers { summary { h2 { "Headers" } } (table(&["Header", "Value"], &rows)) }
        }
    }
}

fn header_row(name: &str, value: Option<&str>) -> Markup {
    html! {
        tr { td.mono { (visible(name)) } td.mono { (visible(value.unwrap_or_default())) } }
    }
}
