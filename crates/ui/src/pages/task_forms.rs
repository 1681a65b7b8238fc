//! Forms of operators about a task: cancel, retry, retry of failed tasks.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::{bulk, cancel as cancels, retry as retries, task};
use kafleet_documents::{BulkAction, BulkSelection, CancelTask, RetryTask, Status};
use kafleet_model::task::TaskRunner;
use maud::{Markup, html};

use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::facts::facts;
use crate::parts::form::{Form, checkbox, reason};
use crate::parts::state::pill;
use crate::parts::tasks::type_link;
use crate::parts::times::time;
use crate::parts::{View, count, counted, encoded, first_line, prose, search_text, task_path};
use crate::visit::{PageAnswer, Redirect, Visit, after_position, scan_time, stored};

/// Largest tree whose failed tasks are counted before a retry: each of its tasks is read.
const MAX_COUNTED: u64 = 10_000;

/// Action on a task with a reason.
struct Action {
    page: &'static str,
    verb: &'static str,
    button: String,
    effect: Markup,
    danger: bool,
    extra: Vec<Markup>,
    commands: Vec<String>,
}

/// Form about a task, to be completed.
pub(super) fn task_form<'a>(visit: &'a Visit, title: &str, page: &str, button: &str) -> Form<'a> {
    let id = &visit.segment;
    Form { back: task_path(id), ..form(visit, &format!("/tasks/{id}"), page, format!("{title} {id}"), button) }
}

/// Task that a form concerns, beside it.
pub(super) fn subject(view: &View, status: &Status) -> Markup {
    html! {
        section.panel {
            h2 { "The task" }
            (facts(&[
                ("Name", status.fields.name.as_deref().map(|name| html! { (first_line(name, 120)) })),
                ("State", Some(pill(status.state))),
                ("Type", Some(type_link(view, status.task_type.as_deref()))),
                ("Created", status.created_at.as_deref().map(time)),
                ("Tree", Some(html! { (counted(status.tree.total, "task", "tasks")) })),
                ("Error", status.error.as_ref().map(|error| html! { span.error { (prose(&first_line(&error.text(), 200))) } })),
            ]))
        }
    }
}

async fn show(visit: &Visit, action: impl FnOnce(&Status) -> Action) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let action = action(&status);
    let mut inputs = action.extra;
    inputs.push(reason(visit.value("reason")));
    Ok(form_page(&Form {
        effect: html! { p { code { (status.id) } " is " (pill(status.state)) } (action.effect) },
        inputs,
        danger: action.danger,
        beside: Some(subject(&visit.view, &status)),
        commands: action.commands,
        ..task_form(visit, action.verb, action.page, &action.button)
    }))
}

pub(in super::super) async fn show_cancel(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let only = visit.entered.is_set("task_only");
    show(visit, |status| cancel_action(status, only)).await
}

fn cancel_action(status: &Status, only: bool) -> Action {
    let id = &status.id;
    let has_more = status.tree.total > 1;
    Action {
        page: "cancel",
        verb: "Cancel",
        button: cancel_button(status.tree.pending),
        effect: cancel_effect(status.tree.pending),
        danger: true,
        extra: has_more
            .then(|| checkbox("task_only", "Only this task, not those below it", only))
            .into_iter()
            .collect(),
        commands: vec![
            format!("kafleet cancel {} --reason \"…\"", quoted(id)),
            curl("POST", &format!("/v1/tasks/{id}/cancel"), Some("{\"reason\": \"…\"}")),
        ],
    }
}

/// Text of the button; empty if no task is open.
fn cancel_button(open: u64) -> String {
    match open {
        0 => String::new(),
        1 => "Cancel 1 task".into(),
        open => format!("Cancel {} tasks", count(open)),
    }
}

fn cancel_effect(open: u64) -> Markup {
    html! {
        @if open == 0 { p { "It has already ended: there is nothing to cancel." } }
        @else { p {
            "Cancels the task and everything below it: " strong { (counted(open, "open task", "open tasks")) } ". Waiting tasks end at \
             once, running attempts receive a request to stop. A cancelled task can be retried."
        } }
    }
}

pub(in super::super) async fn cancel(visit: &Visit) -> Result<Redirect, ApiError> {
    let input = CancelTask { subtree: !visit.entered.is_set("task_only"), reason: visit.reason() };
    let is_of_tree = input.subtree && has_children(visit).await;
    let outcome = cancels::cancel(visit.context(), visit.id()?, input).await?;
    let redirect = after_position(task_path(&visit.segment), outcome.position, "cancel_requested");
    Ok(if is_of_tree { redirect.leading_to(tree_path(visit)) } else { redirect })
}

/// Returns whether the task has others below it; false if that is not known now.
async fn has_children(visit: &Visit) -> bool {
    let Ok(id) = visit.id() else { return false };
    stored(task::status(visit.context(), id, After::default())).await.is_ok_and(|status| status.tree.total > 1)
}

fn tree_path(visit: &Visit) -> String {
    format!("/tasks/{}/tree", encoded(&visit.segment))
}

pub(in super::super) async fn show_retry(visit: &Visit) -> Result<PageAnswer, ApiError> {
    show(visit, retry_action).await
}

fn retry_action(status: &Status) -> Action {
    let id = &status.id;
    Action {
        page: "retry",
        verb: "Retry",
        button: if status.runner().can_be_retried() { "Retry the task".into() } else { String::new() },
        effect: retry_effect(status),
        danger: false,
        extra: Vec::new(),
        commands: vec![
            format!("kafleet retry {} --reason \"…\"", quoted(id)),
            curl("POST", &format!("/v1/tasks/{id}/retry"), Some("{\"reason\": \"…\"}")),
        ],
    }
}

fn retry_effect(status: &Status) -> Markup {
    match status.runner() {
        TaskRunner::Workers => effect_of_run(status),
        TaskRunner::External => html! {
            p { "The system that runs this external task starts it again. Failed tasks below it can be retried." }
        },
        TaskRunner::BulkAction => html! { p { "A bulk action is not repeated: request another one." } },
    }
}

fn effect_of_run(status: &Status) -> Markup {
    html! {
        p {
            "Starts run " (status.run + 1) " of the task from its record in Kafka, whatever its outcome was."
            @if status.children.total > 0 {
                " " (counted(status.children.total, "child belongs", "children belong"))
                " to the earlier run and will no longer count; the handler may create children again."
            }
        }
    }
}

pub(in super::super) async fn retry(visit: &Visit) -> Result<Redirect, ApiError> {
    request_retry(visit, false, "retried").await
}

pub(in super::super) async fn show_retry_failed(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let status = stored(task::status(visit.context(), visit.id()?, After::default())).await?;
    let own = if status.tree.total <= MAX_COUNTED { own_failed(visit).await } else { None };
    show(visit, |status| retry_failed_action(status, own)).await
}

/// Tasks of the tree that a retry of the failed ones runs again, and whether these are all. `None`: not known now.
async fn own_failed(visit: &Visit) -> Option<(u64, bool)> {
    let q = search_text(&[("under", &visit.segment), ("own", "failed,expired,cancelled"), ("level", "any")]);
    let selection =
        BulkSelection { action: BulkAction::Retry, q: Some(q), ids: Vec::new(), letters: None, patch: None };
    let preview = stored(bulk::preview(&visit.api, selection, scan_time())).await.ok()?;
    Some((preview.changing, preview.exact))
}

fn retry_failed_action(status: &Status, own: Option<(u64, bool)>) -> Action {
    let id = &status.id;
    Action {
        page: "retry-failed",
        verb: "Retry failed tasks of",
        button: match own {
            Some((tasks, true)) if tasks > 0 => format!("Retry {}", counted(tasks, "task", "tasks")),
            _ => "Retry the failed tasks".into(),
        },
        effect: retry_failed_effect(status, own),
        danger: false,
        extra: Vec::new(),
        commands: vec![
            format!("kafleet retry {} --only-failed --reason \"…\"", quoted(id)),
            curl("POST", &format!("/v1/tasks/{id}/retry"), Some("{\"only_failed\": true, \"reason\": \"…\"}")),
        ],
    }
}

fn retry_failed_effect(status: &Status, own: Option<(u64, bool)>) -> Markup {
    html! {
        p {
            "Runs those tasks of the tree again that have themselves failed, expired or been cancelled"
            @if let Some((tasks, is_exact)) = own {
                ": " strong { @if !is_exact { "at least " } (counted(tasks, "task", "tasks")) }
            }
            ". "
            (count(status.tree.failed)) " of " (counted(status.tree.total, "task", "tasks"))
            @if status.tree.failed == 1 { " counts" } @else { " count" }
            " as failed; those that failed only through a task below them are not run again."
        }
    }
}

pub(in super::super) async fn retry_failed(visit: &Visit) -> Result<Redirect, ApiError> {
    let redirect = request_retry(visit, true, "retried_failed").await?;
    Ok(redirect.leading_to(format!("{}?only=open", tree_path(visit))))
}

async fn request_retry(visit: &Visit, only_failed: bool, done: &'static str) -> Result<Redirect, ApiError> {
    let input = RetryTask { only_failed, reason: visit.reason() };
    let outcome = retries::retry(visit.context(), visit.id()?, input).await?;
    Ok(after_position(task_path(&visit.segment), outcome.status.position, done))
}
