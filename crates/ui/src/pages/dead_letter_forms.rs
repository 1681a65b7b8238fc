//! Forms of operators about dead letters.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::dead_letters::{self, letter_id};
use kafleet_documents::{DeadLetter, DeadLetterSelection, RedriveDeadLetter};
use kafleet_fleet::dead_letters::Resolution;
use maud::{Markup, Render, html};

use super::dead_letters::find;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input};
use crate::parts::times::time_hint;
use crate::parts::{encoded, first_line, query_text};
use crate::visit::{PageAnswer, Redirect, Visit};

/// Letters of a bulk action unless the form says otherwise.
const LIMIT: &str = "100";

fn letter_form<'a>(visit: &'a Visit, title: &str, page: &str, button: &str) -> Form<'a> {
    let letter = &visit.segment;
    form(visit, &format!("/dead-letters/{}", encoded(letter)), page, format!("{title} {letter}"), button)
}

fn lines(letter: &str, verb: &str) -> Vec<String> {
    vec![
        format!("kafleet dead-letters {verb} {}", quoted(letter)),
        curl("POST", &format!("/v1/dead-letters/{letter}/{verb}"), None),
    ]
}

fn error_of(text: &str) -> Markup {
    html! { pre.error { (first_line(text, 400)) } }
}

pub(in super::super) async fn show_redrive(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    Ok(form_page(&Form {
        effect: html! {
            p { "Starts a new run of the task with the record as it was." }
            (error_of(&detail.letter.error))
        },
        commands: lines(&visit.segment, "redrive"),
        ..letter_form(visit, "Redrive", "redrive", "Redrive")
    }))
}

pub(in super::super) async fn redrive(visit: &Visit) -> Result<Redirect, ApiError> {
    let input = RedriveDeadLetter::default();
    dead_letters::redrive_one(visit.context(), letter_id(&visit.segment)?, input).await?;
    Ok(Redirect { path: format!("/dead-letters/{}", encoded(&visit.segment)), after: None, done: "redriven" })
}

pub(in super::super) async fn show_drop(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    Ok(form_page(&Form {
        effect: html! {
            p {
                "The letter is no longer listed. Its task stays as it is, and the record stays in the dead-letter topic until its retention."
            }
            (error_of(&detail.letter.error))
        },
        danger: true,
        commands: lines(&visit.segment, "drop"),
        ..letter_form(visit, "Drop", "drop", "Drop")
    }))
}

pub(in super::super) async fn drop(visit: &Visit) -> Result<Redirect, ApiError> {
    dead_letters::drop_one(visit.context(), letter_id(&visit.segment)?).await?;
    Ok(Redirect { path: format!("/dead-letters/{}", encoded(&visit.segment)), after: None, done: "dropped" })
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    let present = detail.params.as_ref().map(|params| params.slice().pretty());
    let params = visit.entered.get("params").or(present.as_deref());
    let letter = &detail.letter;
    Ok(form_page(&Form {
        effect: edit_effect(letter),
        inputs: vec![Input::new("params", "Params", params).required().lines(14).hint("JSON").render()],
        commands: vec![
            format!("kafleet dead-letters redrive {} --params '{{…}}'", quoted(&letter.id)),
            curl("POST", &format!("/v1/dead-letters/{}/redrive", letter.id), Some("{\"params\": {}}")),
        ],
        ..letter_form(visit, "Edit and redrive", "edit", "Redrive")
    }))
}

fn edit_effect(letter: &DeadLetter) -> Markup {
    html! {
        p {
            "Starts a new run of the task with these params, which are checked against the schema of "
            code { (letter.task_type) } " first. Its id and its other fields stay."
        }
        (error_of(&letter.error))
        @if let Some(pointer) = &letter.pointer { p { "at " code { (pointer) } } }
    }
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    let params = visit.entered.json("params")?.unwrap_or_default();
    let input = RedriveDeadLetter { params: Some(params.into_compact()) };
    dead_letters::redrive_one(visit.context(), letter_id(&visit.segment)?, input).await?;
    Ok(Redirect { path: format!("/dead-letters/{}", encoded(&visit.segment)), after: None, done: "redriven" })
}

pub(in super::super) async fn show_redrive_many(visit: &Visit) -> Result<PageAnswer, ApiError> {
    Ok(many(
        visit,
        "redrive",
        "Redrive matching dead letters",
        "Each letter's task starts a new run, with its record as it was.",
    ))
}

pub(in super::super) async fn show_drop_many(visit: &Visit) -> Result<PageAnswer, ApiError> {
    Ok(many(
        visit,
        "drop",
        "Drop matching dead letters",
        "The letters are no longer listed; their tasks stay as they are.",
    ))
}

fn many(visit: &Visit, verb: &str, title: &str, effect: &str) -> PageAnswer {
    let button = if verb == "drop" { "Drop them" } else { "Redrive them" };
    form_page(&Form {
        effect: html! {
            p {
                (effect)
                " The newest matching letters are taken, up to the limit. Letters whose task has moved on are left out."
            }
        },
        inputs: selection_inputs(visit),
        danger: verb == "drop",
        commands: vec![
            format!("kafleet dead-letters {verb} --type TYPE --limit 100"),
            curl("POST", &format!("/v1/dead-letters/{verb}"), Some("{\"type\": \"TYPE\", \"limit\": 100}")),
        ],
        ..form(visit, "/dead-letters", verb, title, button)
    })
}

/// Fields that select letters.
fn selection_inputs(visit: &Visit) -> Vec<Markup> {
    let limit = visit.value("limit").unwrap_or(LIMIT);
    let hint = time_hint(&visit.view);
    vec![
        Input::new("type", "Type", visit.value("type")).required().render(),
        Input::new("code", "Code", visit.value("code")).hint("empty: any").render(),
        Input::new("from", "From", visit.value("from")).hint(&hint).render(),
        Input::new("to", "To", visit.value("to")).hint(&hint).render(),
        Input::new("limit", "Limit", Some(limit)).required().hint("at most 1,000").render(),
    ]
}

pub(in super::super) async fn redrive_many(visit: &Visit) -> Result<Redirect, ApiError> {
    resolve_many(visit, Resolution::Redriven, "redriven", "redriven_partly").await
}

pub(in super::super) async fn drop_many(visit: &Visit) -> Result<Redirect, ApiError> {
    resolve_many(visit, Resolution::Dropped, "dropped", "dropped_partly").await
}

async fn resolve_many(
    visit: &Visit,
    resolution: Resolution,
    all: &'static str,
    partly: &'static str,
) -> Result<Redirect, ApiError> {
    let results = dead_letters::resolve_many(visit.context(), entered_selection(visit)?, resolution).await?;
    let is_partial = results.more || !results.refused.is_empty();
    let filters = visit.entered.select(&["type"]);
    let filters: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let path = format!("/dead-letters?{}", query_text(&filters));
    Ok(Redirect { path, after: None, done: if is_partial { partly } else { all } })
}

/// Entered selection of letters.
fn entered_selection(visit: &Visit) -> Result<DeadLetterSelection, ApiError> {
    let filters = visit.entered.select_with_times(&["type", "code", "from", "to"]);
    let filter = |name: &str| filters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    Ok(DeadLetterSelection {
        task_type: filter("type").unwrap_or_default(),
        code: filter("code"),
        from: filter("from"),
        to: filter("to"),
        limit: visit.entered.number("limit")?,
    })
}
