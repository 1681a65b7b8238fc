//! Bulk actions: the newest ones, and the form that requests one, with a preview of its effect.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::context::PAGE;
use kafleet_api::service::{bulk, types};
use kafleet_config::Role;
use kafleet_documents::{
    BulkAction, BulkOptions, BulkPreview, BulkProgress, BulkRequest, BulkSample, BulkSelection, Problem, Status,
    TypeDocument, UnchangedTasks,
};
use kafleet_model::json::RawJson;
use maud::{Markup, Render, html};

use super::bulk_action::{action_word, search_in_words};
use super::bulk_selection::{BulkTarget, Selection};
use super::form;
use crate::parts::command::{commands, curl, curl_get};
use crate::parts::form::{Form, Input, MAX_UNCONFIRMED, reason};
use crate::parts::letters::{letter_link, params_schema};
use crate::parts::notice::{empty, missing};
use crate::parts::search::mistake;
use crate::parts::state::pill;
use crate::parts::table::table;
use crate::parts::tasks::{is_long, middle_cut, type_link};
use crate::parts::times::optional_time;
use crate::parts::{View, count, counted, encoded, first_line, optional_text, prose, search_path, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, after_position, from_kafka, scan_time, stored};

/// Actions with their names and their effects.
pub(super) const ACTIONS: [(BulkAction, &str, &str); 5] = [
    (
        BulkAction::Retry,
        "Retry",
        "Tasks that have ended run again, in a new run. Parents that failed only because of a descendant are skipped.",
    ),
    (BulkAction::RetryFailed, "Retry failed below", "The failed tasks in the trees of the selected ones run again."),
    (
        BulkAction::Cancel,
        "Cancel",
        "Open tasks are cancelled with everything below them, and running attempts receive a request to stop. A parent \
         ends as cancelled too, at best, unless its `max_failed` allows that.",
    ),
    (
        BulkAction::StartNow,
        "Start now",
        "Tasks that wait for their start or their next attempt start now. Only the delay ends: a pause, an open circuit, the \
         order of keys, slots and rate limits still hold them.",
    ),
    (
        BulkAction::Redrive,
        "Redrive dead letters",
        "The task of each dead letter starts a new run with its record, also with changed params. These are checked against \
         the schema of the type, and letters whose params would be invalid are refused.",
    ),
];

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let page = stored(bulk::newest(&visit.api, PAGE)).await?;
    let main = html! {
        div.head {
            h1 { "Bulk actions" }
            @if view.may(Role::Operate) { div.actions { a.button href=(view.url("/bulk/new")) { "New bulk action…" } } }
        }
        p.quiet {
            "Cancels, retries, starts and redrives of many tasks at once. Each is a task of its own, which can be cancelled."
        }
        @if page.tasks.is_empty() {
            (empty("No bulk action has been requested recently. Select tasks on the page of tasks, or:", &["kafleet bulk retry 'type:resize state:failed'"]))
        } @else {
            section.panel { (listed(view, &page.tasks)) }
        }
        (commands(&["kafleet bulk list".to_owned(), curl_get("/v1/bulk")]))
    };
    Ok(Body::new("Bulk actions", main).into())
}

fn listed(view: &View, tasks: &[Status]) -> Markup {
    let rows: Vec<Markup> = tasks.iter().map(|task| row(view, task)).collect();
    table(&["Action", "Tasks", "#Done", "By", "Reason", "Requested"], &rows)
}

fn row(view: &View, task: &Status) -> Markup {
    let (options, progress) = (BulkOptions::of(task), BulkProgress::of(task));
    let title = task.fields.name.as_deref().unwrap_or_default();
    let action = options.as_ref().map_or("Bulk action", |options| action_word(options.action));
    html! {
        tr id={ "b-" (task.id) } {
            td { (pill(task.state)) " " a href=(view.url(&bulk_path(&task.id))) title=(first_line(title, 400)) { (action) } }
            td.message { @if let Some(options) = &options { (prose(&first_line(&search_in_words(options), 160))) } }
            td.number { (count(progress.done)) }
            td { (optional_text(task.fields.creator.as_deref())) }
            td.message { (first_line(options.and_then(|options| options.reason).as_deref().unwrap_or_default(), 120)) }
            td.time { (optional_time(task.created_at.as_deref().or(task.seen_at.as_deref()))) }
        }
    }
}

fn bulk_path(id: &str) -> String {
    format!("/bulk/{}", encoded(id))
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let selection = Selection::of(visit);
    let is_unselected = selection.is_empty() && visit.query.is_set("selected");
    let main = html! {
        h1 { "New bulk action" }
        @if is_unselected {
            p.notice.attention role="status" {
                @if selection.is_redrive() {
                    "No dead letter was selected. Select some in their list, or describe them here."
                } @else {
                    "No task was selected. Select tasks, or describe them by a search."
                }
            }
        }
        (selection.chooser(visit))
        @if !selection.is_empty() { (previewed(visit, &selection).await) }
    };
    Ok(Body::new("New bulk action", main).into())
}

/// Form that requests the action, with its effect, or the reason why there is none.
async fn previewed(visit: &Visit, selection: &Selection) -> Markup {
    let document = match selection.document(visit) {
        Ok(document) => document,
        Err(error) => return refused(&visit.view, selection, &error.document()),
    };
    match preview(visit, selection, document.clone()).await {
        Ok(preview) => request_form(visit, selection, &document, &preview, schema(visit, selection).await.as_ref()),
        Err(error) => refused(&visit.view, selection, &error.document()),
    }
}

async fn preview(visit: &Visit, selection: &Selection, document: BulkSelection) -> Result<BulkPreview, ApiError> {
    let preview = bulk::preview(&visit.api, document, scan_time());
    if selection.is_redrive() { from_kafka(preview).await } else { stored(preview).await }
}

/// Type of the dead letters, with the schema of its params.
async fn schema(visit: &Visit, selection: &Selection) -> Option<TypeDocument> {
    stored(types::type_of(&visit.api, selection.letter_type()?)).await.ok()
}

fn refused(view: &View, selection: &Selection, problem: &Problem) -> Markup {
    let url = |q: &str| view.url_with("/bulk/new", &[("action", selection.action.name()), ("q", q)]);
    match (&selection.selected, problem.span.is_some()) {
        (BulkTarget::Search(text), true) => mistake(text, problem, url),
        _ => missing("The selection", problem),
    }
}

fn request_form(
    visit: &Visit,
    selection: &Selection,
    document: &BulkSelection,
    preview: &BulkPreview,
    task_type: Option<&TypeDocument>,
) -> Markup {
    let effect = ACTIONS.iter().find(|(action, ..)| *action == selection.action).map_or("", |(_, _, effect)| *effect);
    let default = default_limit(preview.changing).to_string();
    let limit = visit.entered.get("limit").unwrap_or(&default);
    let form = Form {
        effect: effect_of(selection, preview, effect),
        inputs: order_inputs(visit, selection, preview.changing, limit),
        danger: selection.action == BulkAction::Cancel,
        beside: (!preview.tasks.is_empty()).then(|| sample(&visit.view, preview, selection.is_redrive())),
        back: if selection.is_redrive() { "/failures" } else { "/bulk" }.to_owned(),
        commands: vec![selection.command(limit), curl("POST", "/v1/bulk", Some(RawJson::of_plain(document).text()))],
        title: String::new(),
        ..form(visit, "/bulk", "new", "", button_text(action_word(selection.action), preview))
    };
    html! { (form.render()) (params_schema(&visit.view, task_type)) }
}

/// Text of the button; empty if no task would change.
fn button_text(name: &str, preview: &BulkPreview) -> String {
    match preview.changing {
        0 if preview.exact => String::new(),
        changing => format!("{name} {}", counted(changing, "task", "tasks")),
    }
}

fn order_inputs(visit: &Visit, selection: &Selection, changing: u64, limit: &str) -> Vec<Markup> {
    let mut inputs = selection.hidden();
    inputs.push(html! { input type="hidden" name="expected" value=(changing); });
    let limit_hint = "when more would change, the action stops there and fails";
    inputs.push(Input::new("limit", "Limit", Some(limit)).required().hint(limit_hint).render());
    if changing > MAX_UNCONFIRMED {
        let label = format!("To confirm, type {changing}");
        inputs.push(Input::new("confirm", &label, visit.entered.get("confirm")).required().render());
    }
    inputs.push(reason(visit.value("reason")));
    inputs
}

fn effect_of(selection: &Selection, preview: &BulkPreview, effect: &str) -> Markup {
    let noun = if selection.is_redrive() { "records" } else { "tasks" };
    html! {
        @if let Some(words) = selection.in_words(preview) { p.quiet { (prose(&words)) } }
        p {
            strong { @if !preview.exact { "At least " } (count(preview.changing)) }
            " of " (selection.counted(preview.matching))
            " would change" @if !preview.exact { "; looked at " (count(preview.scanned)) " " (noun) ", and there are more" } "."
        }
        (unchanged(preview))
        p { (prose(effect)) }
    }
}

/// Reasons for which the others stay as they are.
fn unchanged(preview: &BulkPreview) -> Markup {
    html! {
        @if !preview.unchanged.is_empty() {
            p { "The others stay as they are:" }
            ul.plain {
                @for UnchangedTasks { cause, tasks, example } in &preview.unchanged {
                    li {
                        (count(tasks)) ": " (visible(cause))
                        @if let Some(example) = example { span.quiet { ", such as: " (prose(&first_line(example, 300))) } }
                    }
                }
            }
        }
    }
}

/// First tasks that would change.
fn sample(view: &View, preview: &BulkPreview, are_letters: bool) -> Markup {
    let rows: Vec<Markup> = preview.tasks.iter().map(|task| sample_row(view, task)).collect();
    let columns: &[&str] = if are_letters {
        &["State", "Task", "Type", "Error", "Dead letter"]
    } else {
        &["State", "Task", "Type", "Error"]
    };
    html! {
        section.panel {
            h2 {
                "Would change"
                @if preview.changing > rows.len() as u64 { " " span.quiet { "the first " (rows.len()) } }
            }
            (table(columns, &rows))
        }
    }
}

fn sample_row(view: &View, task: &BulkSample) -> Markup {
    html! {
        tr {
            td { @match task.state { Some(state) => { (pill(state)) } None => { span.quiet { "–" } } } }
            td.id {
                @match &task.id {
                    Some(id) => { a href=(view.task(id)) title=[is_long(id).then_some(id)] { (middle_cut(id)) } }
                    None => { span.quiet { "not a task" } }
                }
                @if let Some(name) = &task.name { span.name { (first_line(name, 60)) } }
            }
            td { (type_link(view, task.task_type.as_deref())) }
            td.message { @if let Some(error) = &task.error { span.error { (prose(&first_line(error, 120))) } } }
            @if let Some(letter) = &task.letter { td.id { (letter_link(view, letter)) } }
        }
    }
}

/// Number of tasks of the preview, and a tenth more.
fn default_limit(changing: u64) -> u64 {
    changing.saturating_add(changing.div_ceil(10)).max(1)
}

pub(in super::super) async fn request(visit: &Visit) -> Result<Redirect, ApiError> {
    let expected = visit.entered.number::<u64>("expected")?.unwrap_or_default();
    if expected > MAX_UNCONFIRMED && visit.entered.number::<u64>("confirm")? != Some(expected) {
        let reason = format!("the action concerns {expected} tasks: type this number to confirm it");
        return Err(ApiError::new(Code::BadField, reason).pointer("/confirm"));
    }
    let selection = Selection::of(visit);
    let BulkSelection { action, q, ids, letters, patch } = selection.document(visit)?;
    let (limit, reason) = (visit.entered.number::<u64>("limit")?, visit.reason());
    let request = BulkRequest { action, q, ids, letters, patch, limit, reason };
    let task = bulk::request(visit.context(), request).await?;
    let redirect = after_position(bulk_path(&task.id), task.position, "bulk_ordered");
    Ok(match selection.search_afterwards() {
        Some(q) => redirect.leading_to(search_path(&q)),
        None => redirect,
    })
}
