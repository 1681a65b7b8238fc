//! Forms of operators about schedules.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::schedules::{self, DEFAULT_TIMES};
use kafleet_documents::{PauseType, ResumeType, ScheduleDocument};
use kafleet_model::json::RawJson;
use maud::{Markup, Render, html};
use serde::Serialize;

use super::schedules::{find, owner_text, time_in_zone};
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input, reason};
use crate::parts::times::time_hint;
use crate::visit::{PageAnswer, Redirect, Visit, document, stored};

/// Definition that the form of a new schedule begins with.
const TEMPLATE: &str = "{\n  \"cron\": \"0 3 * * *\",\n  \"timezone\": \"UTC\",\n  \"overlap\": \"skip\",\n  \"task\": {\n    \"type\": \"\",\n    \"params\": {}\n  }\n}";
const SPEC_HINT: &str = "cron or every, timezone, overlap (skip, allow, buffer_one, replace), and the task to submit";

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

fn spec_input(value: &str) -> Markup {
    Input::new("spec", "Definition (JSON)", Some(value)).required().lines(16).hint(SPEC_HINT).render()
}

fn spec_of(visit: &Visit) -> Result<RawJson, ApiError> {
    visit.entered.json("spec")?.ok_or_else(|| ApiError::new(Code::BadField, "the definition is empty").pointer("/spec"))
}

fn back(visit: &Visit, done: &'static str) -> Redirect {
    visit.after_control(format!("/schedules/{}", visit.segment), done)
}

pub(in super::super) async fn show_create(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let id = Input::new("id", "Id", visit.value("id")).required().hint("prefix of the ids of its tasks");
    Ok(form_page(&Form {
        action: "/new-schedule".into(),
        effect: html! { p { "It fires from now on; past times are not made up for." } },
        inputs: vec![id.render(), spec_input(visit.value("spec").unwrap_or(TEMPLATE))],
        commands: vec![
            "kafleet schedules create ID TYPE '{}' --cron \"0 3 * * *\"".into(),
            curl("POST", "/v1/schedules", Some("{\"id\": \"ID\", \"spec\": {}}")),
        ],
        ..form(visit, "/schedules", "", "New schedule", "Create")
    }))
}

pub(in super::super) async fn create(visit: &Visit) -> Result<Redirect, ApiError> {
    let id = visit.entered.get("id").unwrap_or_default().trim();
    let input = document(&NewScheduleBody { id, spec: spec_of(visit)? })?;
    schedules::create(visit.context(), input).await?;
    Ok(visit.after_control(format!("/schedules/{id}"), "schedule_created"))
}

pub(in super::super) async fn show_edit(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    let times = stored(schedules::times(visit.context(), visit.subject(), None, DEFAULT_TIMES)).await;
    let times = times.map(|times| times.times).unwrap_or_default();
    let present = RawJson::of_plain(&schedule.spec).slice().pretty();
    Ok(form_page(&Form {
        effect: edit_effect(&schedule, &times),
        inputs: vec![spec_input(visit.entered.get("spec").unwrap_or(&present))],
        commands: vec![
            format!("kafleet schedules change {} --cron \"…\"", quoted(&visit.segment)),
            curl("PUT", &format!("/v1/schedules/{}", visit.segment), Some("{}")),
        ],
        ..schedule_form(visit, "Edit", "edit", "Save")
    }))
}

fn edit_effect(schedule: &ScheduleDocument, times: &[String]) -> Markup {
    html! {
        @if let Some(owner) = &schedule.owner {
            p.notice.attention {
                (owner_text(owner)) " manages this schedule: the next " code { "kafleet schedules apply" }
                " overwrites the change."
            }
        }
        p { "Changed times apply from now on. The present definition fires next at:" }
        ol.plain { @for next in times { li { (time_in_zone(next, &schedule.spec)) } } }
    }
}

pub(in super::super) async fn edit(visit: &Visit) -> Result<Redirect, ApiError> {
    let spec = spec_of(visit)?;
    // A change leaves the schedule to the source that manages it.
    let owner = find(visit).await?.owner;
    schedules::put(visit.context(), visit.segment.clone(), document(&spec)?, owner).await?;
    Ok(back(visit, "schedule_changed"))
}

pub(in super::super) async fn show_pause(visit: &Visit) -> Result<PageAnswer, ApiError> {
    find(visit).await?;
    Ok(form_page(&Form {
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
    find(visit).await?;
    Ok(form_page(&Form {
        effect: html! { p { "The schedule fires from now on; missed times are not made up for." } },
        commands: vec![
            format!("kafleet schedules resume {}", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/resume", visit.segment), None),
        ],
        ..schedule_form(visit, "Resume", "resume", "Resume the schedule")
    }))
}

pub(in super::super) async fn resume(visit: &Visit) -> Result<Redirect, ApiError> {
    schedules::resume(visit.context(), visit.subject(), ResumeType {}).await?;
    Ok(back(visit, "resumed"))
}

pub(in super::super) async fn show_trigger(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let schedule = find(visit).await?;
    Ok(form_page(&Form {
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
    schedules::trigger(visit.context(), visit.subject()).await?;
    Ok(back(visit, "triggered"))
}

pub(in super::super) async fn show_backfill(visit: &Visit) -> Result<PageAnswer, ApiError> {
    find(visit).await?;
    let text = |name, label, hint| Input::new(name, label, visit.value(name)).hint(hint);
    let hint = time_hint(&visit.view);
    Ok(form_page(&Form {
        effect: html! {
            p { "Creates the missing tasks of past times, at most 1,000. Times that have a task already are left out." }
        },
        inputs: vec![text("from", "From", &hint).required().render(), text("to", "To", "default: now").render()],
        commands: vec![
            format!("kafleet schedules backfill {} --from 2026-11-01T00:00:00Z", quoted(&visit.segment)),
            curl("POST", &format!("/v1/schedules/{}/backfill?from=2026-11-01T00:00:00Z", visit.segment), None),
        ],
        ..schedule_form(visit, "Backfill", "backfill", "Create the missing tasks")
    }))
}

pub(in super::super) async fn backfill(visit: &Visit) -> Result<Redirect, ApiError> {
    let from_ms = visit.entered.time_ms("from")?.ok_or_else(|| bad_parameter("from", "it is required"))?;
    let to_ms = visit.entered.time_ms("to")?;
    schedules::backfill(visit.context(), visit.subject(), from_ms, to_ms).await?;
    Ok(back(visit, "backfilled"))
}

pub(in super::super) async fn show_delete(visit: &Visit) -> Result<PageAnswer, ApiError> {
    find(visit).await?;
    Ok(form_page(&Form {
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
    Ok(visit.after_control("/schedules", "schedule_deleted"))
}
