//! Page of a dead letter: its error, its task and its record.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::dead_letters::{self, letter_id};
use kafleet_api::service::task;
use kafleet_config::Role;
use kafleet_documents::{DeadLetter, DeadLetterDetail, DeadLetterOutcome, Status};
use maud::{Markup, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::facts::{code, facts};
use crate::parts::json::json_block;
use crate::parts::state::{label, pill};
use crate::parts::table::table;
use crate::parts::tasks::{type_link, worker_link};
use crate::parts::times::time;
use crate::parts::{View, encoded, first_line, visible};
use crate::visit::{Body, PageAnswer, Visit, from_kafka, stored, task_id};

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
        div.head {
            div.title { h1 { "Dead letter " (letter.id) } (resolution(detail.outcome)) }
            (actions(view, &detail))
        }
        div.columns {
            div.column { (error_of(view, letter)) (record(&detail)) }
            div.column { section.panel { (properties(view, &detail, task.as_ref())) } }
        }
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

fn error_of(view: &View, letter: &DeadLetter) -> Markup {
    html! {
        section.panel #error {
            h2 { "Error" }
            p {
                code { (first_line(letter.kind.as_deref().unwrap_or(&letter.code), 120)) }
                @if let Some(kind) = &letter.kind {
                    " " a href=(view.url_with("/dead-letters", &[("type", &letter.task_type), ("kind", kind)])) { "Dead letters of this kind" }
                }
            }
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
                span.quiet { ", now" } " " (pill(status.state))
                @if Some(status.run) != run { span.quiet { " in run " (status.run) } }
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
