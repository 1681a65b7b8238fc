//! Forms of operators about schedules.

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::schedules::BackfillRange;
use kafleet_api::service::{schedule_previews, schedules};
use kafleet_documents::{BackfillPreview, PauseType, ResumeType, ScheduleDocument};
use kafleet_model::json::RawJson;
use maud::{Markup, Render, html};
use serde::Serialize;

use super::schedule_definition::{self, DefinitionForm, entered_spec, preview_block, zone_of};
use super::schedules::{find, owner_text, time_in_zone};
use super::type_forms::resume_text;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::facts::facts;
use crate::parts::form::{Form, Input, enter_button, reason, step_button};
use crate::parts::limits::pause_text;
use crate::parts::notice::missing;
use crate::parts::state::pill;
use crate::parts::times::time_hint;
use crate::parts::{count, counted, search_path, search_text, task_path, visible};
use crate::visit::{PageAnswer, Redirect, Visit, document, stored};

/// Definition that the form of a new schedule begins with.
const TEMPLATE: &str = r#"{"cron": "0 3 * * *", "timezone": "UTC", "overlap": "skip", "task": {"type": ""}}"#;

/// Body of a request for a new schedule, with the definition as it was entered.
#[derive(Serialize)]
struct NewScheduleBody<'a> {
    id: &'a str,
    spec: RawJson,
}

fn schedule_form<'a>(visit: &'a Visit, title: &str, page: &str, button: &str) -> Form<'a> {
    let id = &visit.segment;
    form(visit, &format!("/schedules/{id}"), page, format!("{title} {id}"), button)
}

fn back(visit: &Visit, done: &'static str) -> Redirect {
    visit.after_control(format!("/schedules/{}", visit.segment), done)
}

/// Adds the requested task to a redirect, or the tasks of the schedule.
fn leading_to_tasks(visit: &Visit, redirect: Redirect, requested: &[String]) -> Redirect {
    match requested {
        [] => redirect,
        [task] => redirect.leading_to(task_path(task)),
        _ => redirect.leading_to(tasks_path(visit)),
    }
}

/// Path of the search for the tasks of the schedule.
fn tasks_path(visit: &Visit) -> String {
    search_path(&search_text(&[("schedule", &visit.segment)]))
}

pub(in super::super) async fn show_create(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let template = RawJson::parse(TEMPLATE.as_bytes()).unwrap_or_default();
    let id = visit.value("id").unwrap_or_default().trim();
    let preset = visit.query.json("spec")?.unwrap_or(template);
    let (definition, mut beside) = definition(visit, id, &preset).await?;
    let id = Input::new("id", "Id", Some(id)).required().hint("prefix of the ids of its tasks");
    let mut inputs = vec![enter_button(), id.render()];
    inputs.extend(definition.inputs(visit).await);
    beside.extend(definition.schema());
    Ok(form_page(&Form {
        action: "/new-schedule".into(),
        effect: html! { p { "It fires from now on; past times are not made up for." } },
        inputs,
        more_buttons: definition.buttons(),
        beside: Some(html! { @for block in &beside { (block) } }),
        commands: vec![
            "kafleet schedules create ID TYPE '{}' --cron \"0 3 * * *\"".into(),
            curl("POST", "/v1/schedules", Some("{\"id\": \"ID\", \"spec\": {}}")),
        ],
        ..form(visit, "/schedules", "", "New schedule", "Create")
    }))
}

/// Definition in the form, and the panel with its times.
async fn definition(visit: &Visit, id: &str, present: &RawJson) -> Result<(DefinitionForm, Vec<Markup>), ApiError> {
    let mut definition = DefinitionForm::of(visit, present).await?;
    let preview = schedule_definition::preview(visit, if id.is_empty() { "ID" } else { id }, present).await?;
    let zone = zone_of(visit, present).await;
    let mut beside = Vec::new();
    if let Some(preview) = &preview {
        definition.add_problems(preview);
        beside.push(html! {
            section.panel { h2 { "Times of this definition" } (preview_block(visit, preview, zone.as_deref())) }
        });
    }
    Ok((definition, beside))
}

pub(in super::super) async fn create(visit: &Visit) -> Result<Redirect, ApiError> {
    let id = visit.entered.get("id").unwrap_or_default().trim();
    let spec = entered_spec(visit).await?;
    schedules::create(visit.context(), document(&NewScheduleBody { id, spec })?).await?;
    Ok(visit.after_control(format!("/schedules/{id}"), "schedule_created"))
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    let (definition, mut beside) = definition(visit, &visit.segment, &RawJson::of_plain(&schedule.spec)).await?;
    beside.push(present(&schedule));
    beside.extend(definition.schema());
    Ok(form_page(&Form {
        effect: edit_effect(&schedule),
        inputs: definition.inputs(visit).await,
        more_buttons: definition.buttons(),
        beside: Some(html! { @for block in &beside { (block) } }),
        commands: vec![
            format!("kafleet schedules change {} --cron \"…\"", quoted(&visit.segment)),
            curl("PUT", &format!("/v1/schedules/{}", visit.segment), Some("{}")),
            curl("POST", &format!("/v1/schedules/{}/preview", visit.segment), Some("{}")),
        ],
        ..schedule_form(visit, "Edit", "edit", "Save")
    }))
}

fn edit_effect(schedule: &ScheduleDocument) -> Markup {
    html! {
        @if let Some(owner) = &schedule.owner {
            p.notice.attention {
                (owner_text(owner)) " manages this schedule: the next " code { "kafleet schedules apply" }
                " overwrites the change."
            }
        }
        p { "Changed times apply from now on." }
    }
}

/// Present state of a schedule, beside its forms.
fn present(schedule: &ScheduleDocument) -> Markup {
    html! {
        section.panel {
            h2 { "Now" }
            (facts(&[
                ("Times", schedule.description.as_ref().map(|words| html! { (visible(words)) })),
                ("Type", Some(html! { (schedule.spec.task.task_type) })),
                ("Paused", schedule.paused.as_ref().map(pause_text)),
                ("Next", schedule.next.first().map(|next| time_in_zone(next, schedule.spec.timezone.as_deref()))),
                ("Last task", schedule.last.as_ref().map(|last| html! {
                    (time_in_zone(&last.time, schedule.spec.timezone.as_deref()))
                    @if let Some(state) = last.state { " " (pill(state)) }
                })),
                ("Fired", Some(html! { (count(schedule.fired)) })),
            ]))
        }
    }
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    let spec = entered_spec(visit).await?;
    // A change leaves the schedule to the source that manages it.
    let owner = find(visit).await?.owner;
    schedules::put(visit.context(), visit.segment.clone(), document(&spec)?, owner).await?;
    Ok(back(visit, "schedule_changed"))
}

pub(in super::super) async fn show_pause(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    Ok(form_page(&Form {
        beside: Some(present(&schedule)),
        effect: html! { p { "The schedule does not fire until it is resumed. Tasks already created continue." } },
        inputs: vec![reason(visit.value("reason"))],
        commands: vec![
            format!("kafleet schedules pause {} --reason \"…\"", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/pause", visit.segment), Some("{\"reason\": \"…\"}")),
        ],
        ..schedule_form(visit, "Pause", "pause", "Pause the schedule")
    }))
}

pub(in super::super) async fn pause(visit: &Visit) -> Result<Redirect, ApiError> {
    schedules::pause(visit.context(), visit.subject(), PauseType { reason: visit.reason() }).await?;
    Ok(back(visit, "paused"))
}

pub(in super::super) async fn show_resume(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    Ok(form_page(&Form {
        beside: Some(present(&schedule)),
        effect: html! {
            @if schedule.paused.is_some() { p { "The schedule fires from now on; missed times are not made up for." } }
            @else { p { "It is not paused." } }
        },
        commands: vec![
            format!("kafleet schedules resume {}", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/resume", visit.segment), None),
        ],
        ..schedule_form(visit, "Resume", "resume", resume_text(schedule.paused.as_ref(), "Resume the schedule"))
    }))
}

pub(in super::super) async fn resume(visit: &Visit) -> Result<Redirect, ApiError> {
    schedules::resume(visit.context(), visit.subject(), ResumeType {}).await?;
    Ok(back(visit, "resumed"))
}

pub(in super::super) async fn show_trigger(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    Ok(form_page(&Form {
        beside: Some(present(&schedule)),
        effect: html! {
            p {
                "Creates one task of " code { (schedule.spec.task.task_type) }
                " now, besides the times of the schedule."
            }
        },
        commands: vec![
            format!("kafleet schedules trigger {}", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/trigger", visit.segment), None),
        ],
        ..schedule_form(visit, "Run", "trigger", "Run now")
    }))
}

pub(in super::super) async fn trigger(visit: &Visit) -> Result<Redirect, ApiError> {
    let requested = schedules::trigger(visit.context(), visit.subject()).await?;
    Ok(leading_to_tasks(visit, back(visit, "triggered"), &requested.tasks))
}

pub(in super::super) async fn show_backfill(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    let preview = if visit.value("from").is_some() { Some(count_backfill(visit).await) } else { None };
    let text = |name, label, hint| Input::new(name, label, visit.value(name)).hint(hint);
    let hint = time_hint(&visit.view);
    Ok(form_page(&Form {
        effect: html! {
            p { "Creates the missing tasks of past times, at most 1,000. Times that have a task already are left out." }
            @if let Some(preview) = &preview { (backfill_text(preview)) }
        },
        inputs: vec![text("from", "From", &hint).required().render(), text("to", "To", "default: now").render()],
        more_buttons: step_button("preview", "Count the tasks"),
        beside: Some(present(&schedule)),
        commands: vec![
            format!("kafleet schedules backfill {} --from 2026-11-01T00:00:00Z --preview", quoted(&visit.segment)),
            format!("kafleet schedules backfill {} --from 2026-11-01T00:00:00Z", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/backfill?from=2026-11-01T00:00:00Z", visit.segment), None),
        ],
        ..schedule_form(visit, "Backfill", "backfill", "Create the missing tasks")
    }))
}

async fn count_backfill(visit: &Visit) -> Result<BackfillPreview, ApiError> {
    let range = backfill_range(visit)?;
    stored(schedule_previews::backfill(visit.context(), visit.subject(), range)).await
}

/// Number of tasks that a backfill would create.
fn backfill_text(preview: &Result<BackfillPreview, ApiError>) -> Markup {
    let preview = match preview {
        Ok(preview) => preview,
        Err(error) => return missing("The number of tasks", &error.clone().document()),
    };
    html! {
        p role="status" {
            "It would create " strong { (counted(preview.missing, "task", "tasks")) } " for "
            (counted(preview.times, "time", "times")) "; " (count(preview.existing)) " have one already."
        }
        @if !preview.tasks.is_empty() {
            p.quiet {
                "The first: " (preview.tasks.join(", ")) @if preview.missing > preview.tasks.len() as u64 { ", …" }
            }
        }
    }
}

/// Range of the times of a backfill.
fn backfill_range(visit: &Visit) -> Result<BackfillRange, ApiError> {
    let fields = if visit.entered.is_empty() { &visit.query } else { &visit.entered };
    let from_ms = fields.time_ms("from")?.ok_or_else(|| bad_parameter("from", "it is required"))?;
    Ok(BackfillRange { from_ms, to_ms: fields.time_ms("to")? })
}

pub(in super::super) async fn backfill(visit: &Visit) -> Result<Redirect, ApiError> {
    let range = backfill_range(visit)?;
    let requested = schedules::backfill(visit.context(), visit.subject(), range).await?;
    Ok(leading_to_tasks(visit, back(visit, "backfilled"), &requested.tasks))
}

pub(in super::super) async fn show_delete(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    Ok(form_page(&Form {
        beside: Some(present(&schedule)),
        effect: html! { p { "Deletes the schedule. Its tasks stay." } },
        danger: true,
        commands: vec![
            format!("kafleet schedules delete {}", quoted(&visit.segment)),
            curl("DELETE", &format!("/v1/schedules/{}", visit.segment), None),
        ],
        ..schedule_form(visit, "Delete", "delete", "Delete the schedule")
    }))
}

pub(in super::super) async fn delete(visit: &Visit) -> Result<Redirect, ApiError> {
    schedules::delete(visit.context(), visit.subject()).await?;
    Ok(visit.after_control("/schedules", "schedule_deleted").leading_to(tasks_path(visit)))
}
