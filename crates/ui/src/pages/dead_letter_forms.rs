//! Forms of operators about dead letters.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::dead_letters::{self, letter_id};
use kafleet_api::service::types;
use kafleet_documents::{DeadLetter, DeadLetterPage, DeadLetterSelection, DropDeadLetter, RedriveDeadLetter};
use maud::{Markup, Render, html};

use super::dead_letter::find;
use super::dead_letters::letters_page;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input, reason, step_button};
use crate::parts::letters::{FILTERS, filter_inputs, letter_link, params_schema};
use crate::parts::notice::missing;
use crate::parts::table::table;
use crate::parts::times::time;
use crate::parts::{View, counted, encoded, first_line, prose, query_text, task_path};
use crate::visit::{Body, Fields, PageAnswer, Redirect, Visit, from_kafka, stored};

/// Default limit of dropped letters.
const LIMIT: &str = "100";
/// Letters that a preview lists.
const LISTED: usize = 20;

fn letter_form<'a>(visit: &'a Visit, title: &str, page: &str, button: &str) -> Form<'a> {
    let letter = &visit.segment;
    form(visit, &format!("/dead-letters/{}", encoded(letter)), page, format!("{title} {letter}"), button)
}

fn lines(letter: &str, verb: &str) -> Vec<String> {
    vec![
        format!("kafleet dead-letters {verb} {} --reason '…'", quoted(letter)),
        curl("POST", &format!("/v1/dead-letters/{letter}/{verb}"), Some("{\"reason\": \"…\"}")),
    ]
}

fn error_of(letter: &DeadLetter) -> Markup {
    html! { pre.error { (first_line(&letter.error_text(), 400)) } }
}

fn redirect(visit: &Visit, done: &'static str) -> Redirect {
    Redirect::new(format!("/dead-letters/{}", encoded(&visit.segment)), done)
}

/// Redirect after a redrive, which leads to the task that runs again.
async fn redriven(visit: &Visit) -> Redirect {
    let redirect = redirect(visit, "redriven");
    match find(visit).await.ok().and_then(|detail| detail.letter.task) {
        Some(task) => redirect.leading_to(task_path(&task)),
        None => redirect,
    }
}

pub(in super::super) async fn show_redrive(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    Ok(form_page(&Form {
        effect: html! {
            p { "Starts a new run of the task with the record as it was." }
            (error_of(&detail.letter))
        },
        inputs: vec![reason(visit.entered.get("reason"))],
        commands: lines(&visit.segment, "redrive"),
        ..letter_form(visit, "Redrive", "redrive", "Redrive")
    }))
}

pub(in super::super) async fn redrive(visit: &Visit) -> Result<Redirect, ApiError> {
    let input = RedriveDeadLetter { params: None, reason: visit.reason() };
    dead_letters::redrive_one(visit.context(), letter_id(&visit.segment)?, input).await?;
    Ok(redriven(visit).await)
}

pub(in super::super) async fn show_drop(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    Ok(form_page(&Form {
        effect: html! {
            p {
                "The letter is no longer listed. Its task stays as it is, and the record stays in the dead-letter topic until its retention."
            }
            (error_of(&detail.letter))
        },
        inputs: vec![reason(visit.entered.get("reason"))],
        danger: true,
        commands: lines(&visit.segment, "drop"),
        ..letter_form(visit, "Drop", "drop", "Drop")
    }))
}

pub(in super::super) async fn drop(visit: &Visit) -> Result<Redirect, ApiError> {
    let input = DropDeadLetter { reason: visit.reason() };
    let letter = letter_id(&visit.segment)?;
    let others = format!("/dead-letters?{}", query_text(&[("type", &letter.task_type)]));
    dead_letters::drop_one(visit.context(), letter, input).await?;
    Ok(redirect(visit, "dropped").leading_to(others))
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let detail = find(visit).await?;
    let letter = &detail.letter;
    let task_type = stored(types::type_of(&visit.api, &letter.task_type)).await.ok();
    let present = detail.params.as_ref().map(|params| params.slice().pretty());
    let params = visit.entered.get("params").or(present.as_deref());
    let form = Form {
        effect: edit_effect(letter),
        inputs: vec![
            Input::new("params", "Params", params).required().lines(14).hint("JSON").render(),
            reason(visit.entered.get("reason")),
        ],
        commands: vec![
            format!("kafleet dead-letters redrive {} --params '{{…}}'", quoted(&letter.id)),
            curl("POST", &format!("/v1/dead-letters/{}/redrive", letter.id), Some("{\"params\": {}}")),
        ],
        ..letter_form(visit, "Edit and redrive", "edit", "Redrive")
    };
    let main = html! {
        div.columns {
            div.column { (form.render()) }
            div.column { (params_schema(&visit.view, task_type.as_ref())) }
        }
    };
    Ok(Body::new(form.title.clone(), main).into())
}

fn edit_effect(letter: &DeadLetter) -> Markup {
    html! {
        p {
            "Starts a new run of the task with these params, which are checked against the schema of "
            code { (letter.task_type) } " first. Its id and its other fields stay."
        }
        (error_of(letter))
        @if let Some(pointer) = &letter.pointer { p { "at " code { (pointer) } } }
    }
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    let params = visit.entered.json("params")?.unwrap_or_default();
    let input = RedriveDeadLetter { params: Some(params.into_compact()), reason: visit.reason() };
    dead_letters::redrive_one(visit.context(), letter_id(&visit.segment)?, input).await?;
    Ok(redriven(visit).await)
}

pub(in super::super) async fn show_drop_many(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let limit = visit.value("limit").unwrap_or(LIMIT);
    let fields = if visit.entered.is_empty() { &visit.query } else { &visit.entered };
    let matching = match selection_of(fields, visit.reason()) {
        Ok(selection) if selection.task_type.is_empty() => None,
        Ok(selection) => Some(from_kafka(dead_letters::selected(visit.context(), &selection)).await),
        Err(error) => Some(Err(error)),
    };
    Ok(form_page(&Form {
        effect: drop_effect(matching.as_ref()),
        beside: letters_beside(visit, matching.as_ref()).await,
        more_buttons: step_button("preview", "Preview"),
        inputs: vec![
            html! {
                div.filters {
                    (filter_inputs(&visit.view, |name| visit.value(name)))
                    (Input::new("limit", "Limit", Some(limit)).required().hint("at most 1,000"))
                }
            },
            hidden_error(visit),
            reason(visit.entered.get("reason")),
        ],
        danger: true,
        commands: vec![
            "kafleet dead-letters drop --type TYPE --limit 100 --reason '…'".to_owned(),
            curl("POST", "/v1/dead-letters/drop", Some("{\"type\": \"TYPE\", \"limit\": 100}")),
        ],
        ..form(visit, "/dead-letters", "drop", "Drop matching dead letters", drop_button(matching.as_ref()))
    }))
}

/// Dead letters that match, or the reason why they are not known.
type Matching = Result<DeadLetterPage, ApiError>;

/// Number of letters that would be dropped. A preview has at most a page of them.
fn number_of(page: &DeadLetterPage) -> String {
    let number = counted(page.letters.len() as u64, "dead letter", "dead letters");
    if page.next.is_some() { format!("at least {number}") } else { number }
}

/// Text of the button; empty if nothing would be dropped.
fn drop_button(matching: Option<&Matching>) -> String {
    match matching {
        Some(Ok(page)) if page.letters.is_empty() && page.next.is_none() => String::new(),
        Some(Ok(page)) => format!("Drop {}", number_of(page)),
        Some(Err(_)) => "Drop them".to_owned(),
        None => String::new(),
    }
}

fn drop_effect(matching: Option<&Matching>) -> Markup {
    html! {
        @match matching {
            None => { p { "Name the type of the letters and what else they have in common; the preview counts them." } }
            Some(Ok(page)) if page.letters.is_empty() && page.next.is_none() => { p { strong { "No dead letter matches." } } }
            Some(Ok(page)) => {
                p { strong { (number_of(page)) } @if page.next.is_some() { " match; the limit bounds what is dropped." } @else { " would be dropped." } }
            }
            Some(Err(error)) => { (missing("What matches", &error.clone().document())) }
        }
        p {
            "The letters are no longer listed; their tasks stay as they are. The newest matching letters are taken, up to \
             the limit. Letters whose task has moved on are left out."
        }
    }
}

/// Letters beside the form: those that would be dropped, or while no type is named the newest ones of all types.
async fn letters_beside(visit: &Visit, matching: Option<&Matching>) -> Option<Markup> {
    match matching {
        Some(Ok(page)) => listed(&visit.view, "Would be dropped", page),
        Some(Err(_)) => None,
        None => match from_kafka(letters_page(visit)).await {
            Ok(page) => listed(&visit.view, "Unresolved now", &page),
            Err(error) => Some(missing("The dead letters", &error.document())),
        },
    }
}

/// Panel with the first letters of a page.
fn listed(view: &View, heading: &str, page: &DeadLetterPage) -> Option<Markup> {
    let listed = &page.letters[..page.letters.len().min(LISTED)];
    let row = |letter: &DeadLetter| {
        html! {
            tr {
                td.id { (letter_link(view, &letter.id)) }
                td.message { span.error { (prose(&first_line(&letter.error_text(), 80))) } }
                td.time { (time(&letter.at)) }
            }
        }
    };
    (!listed.is_empty()).then(|| {
        html! {
            section.panel {
                h2 { (heading) @if page.letters.len() > LISTED { " " span.quiet { "the first " (LISTED) } } }
                (table(&["Letter", "Error", "Time"], &listed.iter().map(row).collect::<Vec<_>>()))
            }
        }
    })
}

/// Name of an error, which no field shows.
fn hidden_error(visit: &Visit) -> Markup {
    html! { @if let Some(error) = visit.value("error") { input type="hidden" name="error" value=(error); } }
}

pub(in super::super) async fn drop_many(visit: &Visit) -> Result<Redirect, ApiError> {
    let results = dead_letters::drop_many(visit.context(), selection_of(&visit.entered, visit.reason())?).await?;
    let is_partial = results.more || !results.refused.is_empty();
    let filters = visit.entered.select(&["type"]);
    let filters: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let path = format!("/dead-letters?{}", query_text(&filters));
    Ok(Redirect::new(path, if is_partial { "dropped_partly" } else { "dropped" }))
}

/// Selection of letters in the fields of a form, or of a link to it.
fn selection_of(fields: &Fields, reason: Option<String>) -> Result<DeadLetterSelection, ApiError> {
    let filters = fields.select_with_times(&FILTERS);
    let filter = |name: &str| filters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    Ok(DeadLetterSelection {
        task_type: filter("type").unwrap_or_default(),
        code: filter("code"),
        kind: filter("kind"),
        error: filter("error"),
        from: filter("from"),
        to: filter("to"),
        limit: fields.number("limit")?,
        reason,
    })
}
