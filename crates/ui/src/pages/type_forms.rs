//! Forms of operators about a type: pause, resume, limits.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::operations;
use kafleet_config::AdaptiveOverride;
use kafleet_documents::{PauseDocument, PauseType, ResumeType, TypeDocument, TypeLimits};
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::type_page::limits_text;
use super::types::{condition_label, find};
use super::{form, form_page};
use crate::parts::bar::usage;
use crate::parts::command::{curl, quoted};
use crate::parts::facts::{codes, facts};
use crate::parts::form::{Form, reason};
use crate::parts::limits::{limits_line, pause_text, scope_name};
use crate::parts::{count, counted};
use crate::visit::{PageAnswer, Redirect, Visit, document};

fn type_form<'a>(visit: &'a Visit, title: &str, page: &str, button: &str) -> Form<'a> {
    let name = &visit.segment;
    form(visit, &format!("/types/{name}"), page, format!("{title} {name}"), button)
}

pub(in super::super) async fn show_pause(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    Ok(form_page(&Form {
        effect: html! {
            p {
                "No worker starts a task of " code { (name) } " until it is resumed: " (backlog_text(&task_type))
                ". Running attempts continue."
            }
        },
        inputs: vec![reason(visit.value("reason"))],
        beside: Some(present(&task_type)),
        commands: vec![
            format!("kafleet types pause {} --reason \"…\"", quoted(name)),
            curl("POST", &format!("/v1/types/{name}/pause"), Some("{\"reason\": \"…\"}")),
        ],
        ..type_form(visit, "Pause", "pause", "Pause the type")
    }))
}

pub(in super::super) async fn pause(visit: &Visit) -> Result<Redirect, ApiError> {
    operations::pause(visit.context(), visit.subject(), PauseType { reason: visit.reason() }).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "paused"))
}

pub(in super::super) async fn show_resume(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    Ok(form_page(&Form {
        effect: html! {
            @match &task_type.paused {
                Some(paused) => {
                    p { "Workers start tasks of " code { (name) } " again: " (backlog_text(&task_type)) "." }
                    p { "Paused " (pause_text(paused)) }
                }
                None => { p { "It is not paused: " (backlog_text(&task_type)) "." } }
            }
        },
        beside: Some(present(&task_type)),
        commands: vec![
            format!("kafleet types resume {}", quoted(name)),
            curl("POST", &format!("/v1/types/{name}/resume"), None),
        ],
        ..type_form(visit, "Resume", "resume", resume_text(task_type.paused.as_ref(), "Resume the type"))
    }))
}

/// Text of the button that ends a pause; none without one.
pub(super) const fn resume_text<'a>(paused: Option<&PauseDocument>, text: &'a str) -> &'a str {
    if paused.is_some() { text } else { "" }
}

pub(in super::super) async fn resume(visit: &Visit) -> Result<Redirect, ApiError> {
    operations::resume(visit.context(), visit.subject(), ResumeType {}).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "resumed"))
}

pub(in super::super) async fn show_limits(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;
    Ok(form_page(&Form {
        effect: html! { p { "Sets all limits at once, for all workers." } },
        inputs: vec![
            limits_line(&task_type.limits, &limit_values(visit, &task_type.limits)),
            reason(visit.value("reason")),
        ],
        more_buttons: if task_type.limits.live.is_empty() {
            html! {}
        } else {
            reset_button()
        },
        beside: Some(present(&task_type)),
        commands: vec![
            format!("kafleet types limit {} --slots 4 --rate 100/s --reason \"…\"", quoted(name)),
            format!("kafleet types limit {} --reset", quoted(name)),
            curl(
                "PUT",
                &format!("/v1/types/{name}/limits"),
                Some("{\"slots\": 4, \"rate\": {\"count\": 100, \"per\": \"1s\"}, \"reason\": \"…\"}"),
            ),
        ],
        ..type_form(visit, "Limits of", "limits", "Set the limits")
    }))
}

/// Limits on the page of a type, as a form in one line.
pub(super) fn limits_panel(visit: &Visit, task_type: &TypeDocument) -> Markup {
    let limits = &task_type.limits;
    html! {
        section.panel #limits {
            h2 { "Limits" }
            form.line method="post" action=(visit.view.url(&format!("/types/{}/limits", task_type.name))) {
                (limits_line(limits, &limit_values(visit, limits)))
                div.sentence { label { "reason " input name="reason" maxlength="400" autocomplete="off"; } }
                div.buttons {
                    button type="submit" { "Set the limits" }
                    @if !limits.live.is_empty() { (reset_button()) }
                }
            }
        }
    }
}

/// Button that resumes a paused type at once.
pub(super) fn resume_button(visit: &Visit, task_type: &TypeDocument) -> Markup {
    html! {
        form method="post" action=(visit.view.url(&format!("/types/{}/resume", task_type.name))) {
            button type="submit" { "Resume" }
        }
    }
}

fn reset_button() -> Markup {
    html! { button type="submit" name="reset" value="yes" formnovalidate { "Reset to the configuration" } }
}

/// Tasks that an action on the type concerns.
fn backlog_text(task_type: &TypeDocument) -> String {
    counted(task_type.backlog, "task is queued or running", "tasks are queued or running")
}

/// Present state of a type, beside its forms.
fn present(task_type: &TypeDocument) -> Markup {
    html! {
        section.panel {
            h2 { "Now" }
            (facts(&[
                ("Condition", Some(condition_label(task_type))),
                ("Paused", task_type.paused.as_ref().map(pause_text)),
                ("Backlog", Some(html! { (count(task_type.backlog)) span.quiet { " queued or running" } })),
                ("Slots", task_type.worker_totals.as_ref().map(|totals| usage(totals.in_flight, totals.slots))),
                ("Limits", Some(limits_text(&task_type.limits))),
                ("Kill switches", codes(&task_type.kills)),
            ]))
        }
    }
}

/// Values of the form: those entered, or the limits set at run time.
fn limit_values<'a>(visit: &'a Visit, limits: &TypeLimits) -> impl Fn(&str) -> Option<String> + 'a {
    let live = live_limits(limits);
    move |name| {
        let preset = || live.iter().find(|(live_limit, _)| *live_limit == name).and_then(|(_, value)| value.clone());
        if visit.entered.is_empty() { preset() } else { visit.entered.get(name).map(str::to_owned) }
    }
}

/// Limits set at run time, as values of the form.
fn live_limits(limits: &TypeLimits) -> [(&'static str, Option<String>); 7] {
    let is_live = |limit: &str| limits.live.iter().any(|live_limit| live_limit == limit);
    let rate = limits.rate.filter(|_| is_live("rate"));
    [
        ("slots", limits.slots.filter(|_| is_live("slots")).map(|n| n.to_string())),
        ("max_concurrency", limits.max_concurrency.filter(|_| is_live("max_concurrency")).map(|n| n.to_string())),
        ("adaptive", limits.adaptive.map(|adaptive| adaptive.to_string())),
        ("rate_count", rate.map(|rate| rate.count.to_string())),
        ("rate_per", rate.map(|rate| rate.per.to_string())),
        ("rate_burst", rate.map(|rate| rate.burst.to_string())),
        ("rate_by", rate.map(|rate| scope_name(rate.by).to_owned())),
    ]
}

pub(in super::super) async fn limits(visit: &Visit) -> Result<Redirect, ApiError> {
    let entered = &visit.entered;
    let is_reset = entered.is_set("reset");
    let mut body = Map::new();
    if !is_reset {
        body.extend(entered.number::<u32>("slots")?.map(|n| ("slots".to_owned(), n.into())));
        body.extend(entered.number::<u32>("max_concurrency")?.map(|n| ("max_concurrency".to_owned(), n.into())));
        body.extend(entered_adaptive(visit)?.map(|adaptive| ("adaptive".to_owned(), adaptive)));
        body.extend(entered_rate(visit).await?.map(|rate| ("rate".to_owned(), rate)));
    }
    body.extend(visit.reason().map(|reason| ("reason".to_owned(), reason.into())));
    operations::limits(visit.context(), visit.subject(), document(&body)?).await?;
    let done = if is_reset { "limits_reset" } else { "limits_set" };
    Ok(visit.after_control(format!("/types/{}", visit.segment), done))
}

/// Adaptive limit of the form: `off` or a number.
fn entered_adaptive(visit: &Visit) -> Result<Option<Value>, ApiError> {
    let Some(text) = visit.entered.get("adaptive").map(str::trim).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let adaptive: AdaptiveOverride =
        text.parse().map_err(|error: String| ApiError::new(Code::BadField, error).pointer("/adaptive"))?;
    Ok(serde_json::to_value(adaptive).ok())
}

/// Rate of the form. What is left empty in it is that of the configured rate.
async fn entered_rate(visit: &Visit) -> Result<Option<Value>, ApiError> {
    let entered = &visit.entered;
    let Some(count) = entered.number::<u32>("rate_count")? else { return Ok(None) };
    let is_whole = entered.is_set("rate_per") && entered.is_set("rate_burst");
    let configured = if is_whole { None } else { find(visit).await?.limits.configured.rate };
    let mut rate = Map::from_iter([("count".to_owned(), Value::from(count))]);
    let per = entered.get("rate_per").map(|per| per.trim().to_owned());
    rate.extend(per.or_else(|| configured.map(|rate| rate.per.to_string())).map(|per| ("per".to_owned(), per.into())));
    let burst = entered.number::<u32>("rate_burst")?.or(configured.map(|rate| rate.burst));
    rate.extend(burst.map(|burst| ("burst".to_owned(), burst.into())));
    rate.extend(entered.get("rate_by").map(|by| ("by".to_owned(), by.into())));
    Ok(Some(rate.into()))
}
