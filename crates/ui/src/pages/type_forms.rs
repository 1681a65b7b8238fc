//! Forms of operators about a type: pause, resume, limits.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::operations;
use kafleet_config::RateBy;
use kafleet_documents::{PauseType, ResumeType, TypeLimits};
use maud::{Markup, Render, html};
use serde_json::{Map, Value};

use super::types::find;
use super::{form, form_page};
use crate::parts::command::{curl, quoted};
use crate::parts::count;
use crate::parts::form::{Form, Input, reason, select};
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
                "No worker starts a task of " code { (name) } " until it is resumed: " (count(task_type.backlog))
                " are queued or running. Running attempts continue."
            }
        },
        inputs: vec![reason(visit.value("reason"))],
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
            p { "Workers start tasks of " code { (name) } " again: " (count(task_type.backlog)) " are queued or running." }
            @if let Some(reason) = task_type.paused.as_ref().and_then(|paused| paused.reason.as_ref()) {
                p { "Reason of the pause: " (reason) }
            }
        },
        commands: vec![
            format!("kafleet types resume {}", quoted(name)),
            curl("POST", &format!("/v1/types/{name}/resume"), None),
        ],
        ..type_form(visit, "Resume", "resume", "Resume the type")
    }))
}

pub(in super::super) async fn resume(visit: &Visit) -> Result<Redirect, ApiError> {
    operations::resume(visit.context(), visit.subject(), ResumeType {}).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "resumed"))
}

pub(in super::super) async fn show_limits(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let task_type = find(visit).await?;
    let name = &visit.segment;

    Ok(form_page(&Form {
        effect: html! { p { "Sets all limits at once. An empty field returns that limit to the configuration." } },
        inputs: limit_inputs(visit, &task_type.limits),
        commands: vec![
            format!("kafleet types limit {} --slots 4 --rate 100/s", quoted(name)),
            curl(
                "PUT",
                &format!("/v1/types/{name}/limits"),
                Some("{\"slots\": 4, \"rate\": {\"count\": 100, \"per\": \"1s\"}}"),
            ),
        ],
        ..type_form(visit, "Limits of", "limits", "Set the limits")
    }))
}

fn limit_inputs(visit: &Visit, limits: &TypeLimits) -> Vec<Markup> {
    let live = live_limits(limits);
    let value = |name: &str| {
        let preset = || live.iter().find(|(live_limit, _)| *live_limit == name).and_then(|(_, value)| value.as_deref());
        if visit.entered.is_empty() { preset() } else { visit.entered.get(name) }
    };
    let text = |name, label, hint| Input::new(name, label, value(name)).hint(hint).render();
    let subjects = [(subject(RateBy::Type), "the type"), (subject(RateBy::Key), "each key")];
    vec![
        text("slots", "Slots a worker", "concurrent attempts per worker"),
        text("max_concurrency", "Attempts at once", "over all workers; at least one per partition of the topic"),
        text("rate_count", "Starts", "rate limit: attempts that may start …"),
        text("rate_per", "… per", "a duration; default 1s"),
        text("rate_burst", "… at once", "attempts that may start together after an idle time; default 1"),
        select("rate_by", "Rate of", &subjects, value("rate_by").unwrap_or_default()),
    ]
}

/// Limits set at run time, as values of the form.
fn live_limits(limits: &TypeLimits) -> [(&'static str, Option<String>); 6] {
    let is_live = |limit: &str| limits.live.iter().any(|live_limit| live_limit == limit);
    let rate = limits.rate.filter(|_| is_live("rate"));
    [
        ("slots", limits.slots.filter(|_| is_live("slots")).map(|n| n.to_string())),
        ("max_concurrency", limits.max_concurrency.filter(|_| is_live("max_concurrency")).map(|n| n.to_string())),
        ("rate_count", rate.map(|rate| rate.count.to_string())),
        ("rate_per", rate.map(|rate| rate.per.to_string())),
        ("rate_burst", rate.map(|rate| rate.burst.to_string())),
        ("rate_by", rate.map(|rate| subject(rate.by).to_owned())),
    ]
}

/// Value of the form for the scope of a rate limit.
const fn subject(by: RateBy) -> &'static str {
    match by {
        RateBy::Type => "type",
        RateBy::Key => "key",
    }
}

pub(in super::super) async fn limits(visit: &Visit) -> Result<Redirect, ApiError> {
    let entered = &visit.entered;
    let mut body = Map::new();
    body.extend(entered.number::<u32>("slots")?.map(|n| ("slots".to_owned(), n.into())));
    body.extend(entered.number::<u32>("max_concurrency")?.map(|n| ("max_concurrency".to_owned(), n.into())));
    if let Some(count) = entered.number::<u32>("rate_count")? {
        let mut rate = Map::from_iter([("count".to_owned(), Value::from(count))]);
        rate.extend(entered.get("rate_per").map(|per| ("per".to_owned(), per.trim().into())));
        rate.extend(entered.number::<u32>("rate_burst")?.map(|burst| ("burst".to_owned(), burst.into())));
        rate.extend(entered.get("rate_by").map(|by| ("by".to_owned(), by.into())));
        body.insert("rate".to_owned(), rate.into());
    }
    operations::limits(visit.context(), visit.subject(), document(&body)?).await?;
    Ok(visit.after_control(format!("/types/{}", visit.segment), "limits_set"))
}
