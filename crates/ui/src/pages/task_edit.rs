//! Forms that change a task: start now, edit, append to the log, attach.

use std::collections::BTreeMap;

use axum::body::Bytes;
use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::{attachments, log, patch, start as starts, task};
use kafleet_documents::{AppendLog, StartOutcome, StartTask, Status};
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::task::field::comma_list;
use maud::{Markup, Render, html};
use serde_json::json;

use super::form_page;
use super::task_forms::{subject, task_form};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input, reason};
use crate::parts::state::pill;
use crate::parts::task_path;
use crate::visit::{PageAnswer, Redirect, Visit, after_position, stored};

const FIELDS_HINT: &str = "a JSON object, such as {\"retries\": 5, \"timeout\": \"30s\"}; null clears a field. Most can \
                           be changed only before the task is published";
/// Fields that the form of a task edits as text.
const TEXTS: [&str; 3] = ["name", "link", "delay"];

async fn status(visit: &Visit) -> Result<Status, ApiError> {
    stored(task::status(visit.context(), visit.id()?, After::default())).await
}

pub(in super::super) async fn show_start(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = status(visit).await?;
    let id = &visit.segment;
    let button = if status.waits_for_a_time() { "Start now" } else { "" };
    Ok(form_page(&Form {
        effect: effect_of_start(&status),
        inputs: vec![reason(visit.value("reason"))],
        commands: vec![
            format!("kafleet start {} --reason \"…\"", quoted(id)),
            curl("POST", &format!("/v1/tasks/{id}/start"), Some("{\"reason\": \"…\"}")),
        ],
        ..task_form(visit, "Start", "start-now", button)
    }))
}

fn effect_of_start(status: &Status) -> Markup {
    let due = status.due_at.as_deref().unwrap_or("an unknown time");
    html! {
        p { code { (status.id) } " is " (pill(status.state)) }
        @match status.own_state {
            _ if !status.waits_for_a_time() => {
                p { "It waits for no time: there is nothing to start." }
            }
            State::Retrying => {
                p { "Starts the next attempt now instead of at " (due) "." }
                p.quiet { "Only the delay ends: a pause, an open circuit, the order of keys, slots and rate limits still hold it." }
            }
            _ => { p { "Starts the scheduled task now instead of at " (due) "." } }
        }
    }
}

pub(in super::super) async fn start(visit: &Visit) -> Result<Redirect, ApiError> {
    let input = StartTask { reason: visit.reason() };
    let StartOutcome { status, held_by } = starts::start(visit.context(), visit.id()?, input).await?;
    let done = if held_by.is_empty() { "started" } else { "started_held" };
    Ok(after_position(task_path(&visit.segment), status.position, done))
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = status(visit).await?;
    let id = &visit.segment;
    Ok(form_page(&Form {
        effect: html! { p { "Name, tags and link can be changed at any time." } },
        inputs: edit_inputs(visit, &status),
        beside: Some(subject(&visit.view, &status)),
        commands: vec![
            format!("kafleet update {} --name \"…\" --tag urgent", quoted(id)),
            curl("PATCH", &format!("/v1/tasks/{id}"), Some("{\"name\": \"…\"}")),
        ],
        ..task_form(visit, "Edit", "edit", "Save")
    }))
}

fn edit_inputs(visit: &Visit, status: &Status) -> Vec<Markup> {
    let fields = &status.fields;
    let tags = Some(status.own_tags().join(", ")).filter(|tags| !tags.is_empty());
    let text = |name, label, present| {
        // A submitted form has all of its values, also those that were emptied.
        let value = if visit.entered.is_empty() { present } else { visit.entered.get(name) };
        Input::new(name, label, value)
    };
    vec![
        text("name", "Name", fields.name.as_deref()).render(),
        text("tags", "Tags", tags.as_deref()).hint("separated by commas").render(),
        text("link", "Link", fields.link.as_deref()).render(),
        text("delay", "Start in", None).hint("scheduled tasks only: a duration such as 10m").render(),
        text("fields", "Other fields", None).lines(4).hint(FIELDS_HINT).render(),
    ]
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    let status = status(visit).await?;
    let body = changes(visit, &status)?;
    let input = patch::read(RawJson::of_plain(&body).text().as_bytes())?;
    let changed = patch::patch(visit.context(), visit.id()?, input).await?;
    Ok(after_position(task_path(&visit.segment), changed.position, "changed"))
}

/// Fields of the form that differ from the task.
fn changes(visit: &Visit, status: &Status) -> Result<BTreeMap<String, RawJson>, ApiError> {
    let mut body = visit.entered.object("fields")?;
    let present = [status.fields.name.as_deref(), status.fields.link.as_deref(), None];
    for (name, present) in TEXTS.iter().zip(present) {
        let entered = visit.entered.get(name).map(str::trim);
        if entered != present {
            body.insert((*name).to_owned(), json!(entered).into());
        }
    }
    let tags = comma_list(visit.entered.get("tags").unwrap_or_default());
    if tags != status.own_tags() {
        body.insert("tags".to_owned(), json!(tags).into());
    }
    Ok(body)
}

pub(in super::super) async fn show_append(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = status(visit).await?;
    let id = &visit.segment;
    let hint = "at most 1,000 lines of 16 KiB each, and 64 KiB in total";
    Ok(form_page(&Form {
        effect: html! { p { "Appends lines to the log of the task. They cannot be removed." } },
        inputs: vec![Input::new("lines", "Lines", visit.entered.get("lines")).required().lines(8).hint(hint).render()],
        commands: vec![
            format!("kafleet log {} --append \"…\"", quoted(id)),
            curl("POST", &format!("/v1/tasks/{id}/log"), Some("{\"lines\": [\"…\"]}")),
        ],
        beside: Some(subject(&visit.view, &status)),
        ..task_form(visit, "Append to the log of", "append", "Append")
    }))
}

pub(in super::super) async fn append(visit: &Visit) -> Result<Redirect, ApiError> {
    let lines = visit.entered.get("lines").unwrap_or_default().lines().map(str::to_owned).collect();
    let appended = log::append(visit.context(), visit.id()?, AppendLog { lines }).await?;
    Ok(after_position(format!("/tasks/{}/log", visit.segment), appended.position, "appended"))
}

pub(in super::super) async fn show_attach(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = status(visit).await?;
    let id = &visit.segment;
    let put = curl("PUT", &format!("/v1/tasks/{id}/attachments/NAME"), None);
    Ok(form_page(&Form {
        effect: html! {
            p {
                "Stores a text with the task. An attachment of the same name is replaced. Files are attached with the commands below."
            }
        },
        inputs: attach_inputs(visit),
        commands: vec![
            format!("kafleet attachments put {} NAME ./FILE --media TYPE", quoted(id)),
            format!("{put} -H 'content-type: TYPE' --data-binary @FILE"),
        ],
        beside: Some(subject(&visit.view, &status)),
        ..task_form(visit, "Attach to", "attach", "Attach")
    }))
}

fn attach_inputs(visit: &Visit) -> Vec<Markup> {
    let text = |name, label, hint| Input::new(name, label, visit.entered.get(name)).hint(hint);
    vec![
        text("name", "Name", "1 to 128 characters, such as notes.txt").required().render(),
        text("media", "Media type", "default: text/plain").render(),
        text("text", "Text", "at most 64 KiB").required().lines(10).render(),
    ]
}

pub(in super::super) async fn attach(visit: &Visit) -> Result<Redirect, ApiError> {
    let name = visit.entered.get("name").unwrap_or_default().trim();
    let media = visit.entered.get("media").unwrap_or("text/plain; charset=utf-8").trim();
    let text = Bytes::from(visit.entered.get("text").unwrap_or_default().to_owned());
    attachments::put(visit.context(), visit.id()?, name, Some(media), &text).await?;
    Ok(Redirect::new(task_path(&visit.segment), "attached"))
}
