//! Kill switches: list, and forms that set and delete them.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::operations;
use kafleet_config::Role;
use kafleet_documents::{KillSwitchDocument, SetKillSwitch};
use maud::{Markup, Render, html};

use super::{form, form_page};
use crate::parts::command::{commands, curl, curl_get, quoted};
use crate::parts::form::{Form, Input, reason};
use crate::parts::notice::empty;
use crate::parts::table::cards;
use crate::parts::tasks::type_link;
use crate::parts::times::time;
use crate::parts::{View, encoded, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, from_kafka};

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let kills = from_kafka(operations::list_kill_switches(visit.context())).await?.kills;
    let rows: Vec<Markup> = kills.iter().map(|kill| row(view, kill)).collect();
    let main = html! {
        (head(view))
        p { "A kill switch cancels tasks with a tag, or whose id begins with a prefix, instead of starting them." }
        @if rows.is_empty() {
            (empty("No kill switch is on. To set one:", &["kafleet kill-switch on TAG-OR-PREFIX --reason \"…\""]))
        } @else {
            section.panel { (cards(&["Tag or prefix", "Type", "Since", "Reason", ""], &rows)) }
        }
        (commands(&["kafleet kill-switch list".to_owned(), curl_get("/v1/kill-switches")]))
    };
    Ok(Body::new("Kill switches", main).into())
}

fn head(view: &View) -> Markup {
    html! {
        div.head {
            h1 { "Kill switches" }
            @if view.may(Role::Operate) {
                div.actions { a.button href=(view.url("/kill-switches/new")) data-dialog { "New kill switch…" } }
            }
        }
    }
}

fn row(view: &View, kill: &KillSwitchDocument) -> Markup {
    html! {
        tr id={ "k-" (kill.name) } {
            td.id { code { (kill.name) } }
            td {
                @match &kill.task_type {
                    Some(name) => { (type_link(view, Some(name))) } None => { span.quiet { "any" } }
                }
            }
            td.time { (time(&kill.since)) }
            td.message { (visible(kill.reason.as_deref().unwrap_or_default())) }
            td.action {
                @if view.may(Role::Operate) {
                    a.button href=(view.url(&format!("/kill-switches/{}/off", encoded(&kill.name)))) data-dialog { "Switch off…" }
                }
            }
        }
    }
}

pub(in super::super) async fn show_new(visit: &Visit) -> Result<PageAnswer, ApiError> {
    Ok(form_page(&Form {
        effect: html! {
            p {
                "Tasks that match are cancelled instead of started, until the switch is off. Running attempts continue."
            }
        },
        inputs: vec![
            Input::new("name", "Tag or prefix of ids", visit.value("name")).required().render(),
            Input::new("type", "Type", visit.value("type")).hint("empty: all types").render(),
            reason(visit.value("reason")),
        ],
        danger: true,
        commands: vec![
            "kafleet kill-switch on TAG-OR-PREFIX --reason \"…\"".into(),
            curl("PUT", "/v1/kill-switches/TAG-OR-PREFIX", Some("{\"reason\": \"…\"}")),
        ],
        ..form(visit, "/kill-switches", "new", "New kill switch", "Switch on")
    }))
}

pub(in super::super) async fn create(visit: &Visit) -> Result<Redirect, ApiError> {
    let name = visit.entered.get("name").unwrap_or_default().trim();
    let input = SetKillSwitch { matches: None, task_type: visit.entered.get("type").map(str::to_owned), reason: visit.reason() };
    operations::set_kill_switch(visit.context(), name.parse()?, input).await?;
    Ok(visit.after_control("/kill-switches", "kill_switch_on"))
}

pub(in super::super) async fn show_off(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let name = &visit.segment;
    let subject = format!("/kill-switches/{}", encoded(name));
    Ok(form_page(&Form {
        effect: html! {
            p { "Tasks that match " code { (name) } " start again. Those already cancelled stay cancelled." }
        },
        back: "/kill-switches".into(),
        commands: vec![
            format!("kafleet kill-switch off {}", quoted(name)),
            curl("DELETE", &format!("/v1/kill-switches/{}", encoded(name)), None),
        ],
        ..form(visit, &subject, "off", format!("Switch off {name}"), "Switch off")
    }))
}

pub(in super::super) async fn off(visit: &Visit) -> Result<Redirect, ApiError> {
    operations::delete_kill_switch(visit.context(), visit.segment.parse()?).await?;
    Ok(visit.after_control("/kill-switches", "kill_switch_off"))
}
