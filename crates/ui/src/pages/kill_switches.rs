//! Kill switches: list, and forms that set and delete them.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::kill_switch_preview;
use kafleet_api::service::kill_switches::{self as service, KillScope};
use kafleet_config::Role;
use kafleet_documents::{KillSwitchDocument, KillSwitchPreview, SetKillSwitch};
use kafleet_model::query;
use kafleet_model::task::kill::{KillMatch, KillParams};
use maud::{Markup, Render, html};

use super::{form, form_page};
use crate::parts::command::{commands, curl, curl_get, quoted};
use crate::parts::facts::facts;
use crate::parts::form::{Form, Input, MAX_UNCONFIRMED, reason, step_button};
use crate::parts::notice::{empty, missing};
use crate::parts::state::pill;
use crate::parts::table::table;
use crate::parts::tasks::type_link;
use crate::parts::times::time;
use crate::parts::{View, count, counted, encoded, optional_text, search_path, search_text, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, from_kafka, scan_time, stored};

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let kills = from_kafka(service::list_kill_switches(visit.context())).await?.kills;
    let rows: Vec<Markup> = kills.iter().map(|kill| row(view, kill)).collect();
    let main = html! {
        (head(view))
        p {
            "A kill switch cancels tasks with a tag, or whose id begins with a prefix, or with values in their params, instead of \
             starting them."
        }
        @if rows.is_empty() {
            (empty("No kill switch is on. To set one:", &["kafleet kill-switch on TAG-OR-PREFIX --reason \"…\""]))
        } @else {
            section.panel { (table(&["Name", "Matches", "Type", "Since", "By", "Reason", ""], &rows)) }
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
            td { (match_text(kill)) }
            td {
                @match &kill.task_type {
                    Some(name) => { (type_link(view, Some(name))) } None => { span.quiet { "any" } }
                }
            }
            td.time { (time(&kill.since)) }
            td { (optional_text(kill.by.as_deref())) }
            td.message { (visible(kill.reason.as_deref().unwrap_or_default())) }
            td.action {
                @if view.may(Role::Operate) {
                    a.button href=(view.url(&format!("/kill-switches/{}/off", encoded(&kill.name)))) data-dialog { "Switch off…" }
                }
            }
        }
    }
}

/// Kill switch that a form describes.
struct KillTarget {
    name: String,
    scope: KillScope,
}

impl KillTarget {
    /// `None`: neither a tag nor a prefix nor params are entered.
    fn of(visit: &Visit) -> Result<Option<Self>, ApiError> {
        let text = |name: &str| visit.value(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let lines = visit.value("params").into_iter().flat_map(str::lines).map(str::trim);
        let params = KillParams::parse(lines.filter(|line| !line.is_empty()));
        let params = params.map_err(|error| ApiError::new(Code::BadField, error).pointer("/params"))?;
        let names = [("tag", Some(KillMatch::Tag)), ("prefix", Some(KillMatch::IdPrefix)), ("name", None)];
        let names: Vec<_> = names.into_iter().filter_map(|(field, matches)| Some((text(field)?, matches))).collect();
        let refuse = |reason: &str, field: &str| Err(ApiError::new(Code::BadField, reason).pointer(field));
        match (names.as_slice(), params.is_empty()) {
            ([], true) => Ok(None),
            ([(name, matches)], is_named) if matches.is_some() == is_named => {
                let scope = KillScope { task_type: text("type"), matches: *matches, params };
                Ok(Some(Self { name: name.clone(), scope }))
            }
            ([], false) => refuse("a kill switch on params needs a name", "/name"),
            ([(_, None)], true) => refuse("a name is for params, of which none are entered", "/params"),
            _ => {
                let refused =
                    refuse("a kill switch has a tag, a prefix of ids, or params with a name, not both", "/prefix");
                refused.map_err(|error| error.hint("clear all but one, and set a second kill switch for the other"))
            }
        }
    }

    /// Counts the tasks that it would cancel now.
    async fn count(&self, visit: &Visit) -> Result<KillSwitchPreview, ApiError> {
        stored(kill_switch_preview::preview(visit.context(), self.name.parse()?, self.scope.clone(), scan_time())).await
    }

    /// Search for the tasks that it has cancelled. A word is also a part of a name. Params cannot be searched for, so that those of a
    /// switch on params are all cancelled tasks of its type.
    fn cancelled(&self) -> String {
        let matches = match self.scope.matches {
            Some(KillMatch::Tag) => format!("{} ", search_text(&[("tag", &self.name)])),
            Some(KillMatch::IdPrefix) => format!("{} ", query::quoted(&self.name)),
            None => String::new(),
        };
        let of_type = self.scope.task_type.as_deref().map(|name| format!("{} ", search_text(&[("type", name)])));
        format!("{}{matches}state:cancelled level:any", of_type.unwrap_or_default())
    }

    /// Text that a number of tasks in the form belongs to.
    fn text(&self) -> String {
        let KillScope { task_type, matches, params } = &self.scope;
        let kind = matches.map_or("params", KillMatch::name);
        let head = format!("{kind} {} {}", task_type.as_deref().unwrap_or("*"), self.name);
        std::iter::once(head).chain(params.texts()).collect::<Vec<_>>().join(" ")
    }
}

/// Number of tasks that a kill switch would cancel now.
const fn killed(preview: &KillSwitchPreview) -> u64 {
    (preview.tagged + preview.prefixed + preview.matched).saturating_sub(preview.running)
}

pub(in super::super) async fn show_new(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let target = KillTarget::of(visit);
    let counted = match &target {
        Ok(Some(target)) => Some(target.count(visit).await),
        Ok(None) => None,
        Err(error) => Some(Err(error.clone())),
    };
    let active = from_kafka(service::list_kill_switches(visit.context())).await.map(|listed| listed.kills);
    let mut inputs = target_inputs(visit);
    if let (Ok(Some(target)), Some(Ok(preview))) = (&target, &counted) {
        inputs.extend(confirmation(visit, target, killed(preview)));
    }
    Ok(form_page(&Form {
        effect: html! {
            p {
                "Tasks that match are cancelled instead of started, until the switch is off. Running attempts continue."
            }
            @if let Some(counted) = &counted { (count_text(&visit.view, counted)) }
        },
        inputs,
        danger: true,
        more_buttons: step_button("count", "Count the tasks"),
        beside: active.ok().filter(|active| !active.is_empty()).map(|active| active_panel(&visit.view, &active)),
        commands: vec![
            "kafleet kill-switch on TAG --matches tag --preview".into(),
            "kafleet kill-switch on TAG --matches tag --reason \"…\"".into(),
            "kafleet kill-switch on NAME --type TYPE --param /customer/id=42 --reason \"…\"".into(),
            curl("PUT", "/v1/kill-switches/TAG", Some("{\"matches\": \"tag\", \"reason\": \"…\"}")),
        ],
        ..form(visit, "/kill-switches", "new", "New kill switch", "Switch on")
    }))
}

fn target_inputs(visit: &Visit) -> Vec<Markup> {
    let text = |name, label, hint| Input::new(name, label, visit.value(name)).hint(hint).render();
    vec![
        text("tag", "Tag", "all tasks with this tag"),
        text("prefix", "Or prefix of ids", "all tasks whose id begins with it"),
        Input::new("params", "Or params", visit.value("params"))
            .lines(2)
            .hint("up to 4 lines such as /customer/id=42, all of which tasks of the type have; a text that looks like a number in quotes")
            .render(),
        text("name", "Name", "of a kill switch on params"),
        text("type", "Type", "empty: all types; needed for params"),
        reason(visit.value("reason")),
    ]
}

/// Number that the form was shown with, and above 100 a field for it.
fn confirmation(visit: &Visit, target: &KillTarget, tasks: u64) -> Vec<Markup> {
    let hidden = html! {
        input type="hidden" name="expected" value=(tasks);
        input type="hidden" name="expected_of" value=(target.text());
    };
    let mut inputs = vec![hidden];
    if tasks > MAX_UNCONFIRMED {
        let label = format!("To confirm, type {tasks}");
        inputs.push(Input::new("confirm", &label, visit.entered.get("confirm")).required().render());
    }
    inputs
}

fn count_text(view: &View, counted: &Result<KillSwitchPreview, ApiError>) -> Markup {
    let preview = match counted {
        Ok(preview) => preview,
        Err(error) => return missing("The number of tasks", &error.clone().document()),
    };
    html! {
        p role="status" {
            "It would cancel " strong { @if !preview.exact { "≥ " } (counted_tasks(killed(preview))) } " now"
            @if preview.running > 0 { "; " (count(preview.running)) " more run and continue" } "."
        }
        @if !preview.tasks.is_empty() {
            ul.plain {
                @for task in &preview.tasks { li { (pill(task.state)) " " a href=(view.task(&task.id)) { (task.id) } } }
            }
        }
    }
}

fn counted_tasks(number: u64) -> String {
    counted(number, "open task", "open tasks")
}

/// Active kill switches, beside the form of a new one.
fn active_panel(view: &View, active: &[KillSwitchDocument]) -> Markup {
    html! {
        section.panel {
            h2 { "Active now" }
            ul.plain {
                @for kill in active {
                    li {
                        code { (kill.name) } " " span.quiet { (match_text(kill)) }
                        @if let Some(name) = &kill.task_type { ", " (type_link(view, Some(name))) }
                    }
                }
            }
        }
    }
}

/// Active kill switch, beside the form that switches it off.
fn kill_facts(view: &View, kill: &KillSwitchDocument) -> Markup {
    html! {
        section.panel {
            h2 { "Now" }
            (facts(&[
                ("Matches", Some(html! { code { (kill.name) } " " span.quiet { (match_text(kill)) } })),
                ("Type", kill.task_type.as_deref().map(|name| type_link(view, Some(name)))),
                ("Since", Some(time(&kill.since))),
                ("By", kill.by.as_deref().map(|by| html! { (visible(by)) })),
                ("Reason", kill.reason.as_deref().map(|reason| html! { (visible(reason)) })),
            ]))
        }
    }
}

/// Meaning of a kill switch's name, or its params.
fn match_text(kill: &KillSwitchDocument) -> Markup {
    let text = match kill.matches {
        _ if !kill.params.is_empty() => {
            return html! { @for param in kill.params.texts() { code { (visible(&param)) } " " } };
        }
        Some(KillMatch::Tag) => "tag",
        Some(KillMatch::IdPrefix) => "prefix of ids",
        None => "tag or prefix of ids",
    };
    html! { (text) }
}

pub(in super::super) async fn create(visit: &Visit) -> Result<Redirect, ApiError> {
    let Some(target) = KillTarget::of(visit)? else {
        return Err(ApiError::new(Code::BadField, "no tag, no prefix of ids and no params are entered").pointer("/tag"));
    };
    check_confirmed(visit, &target).await?;
    let cancelled = search_path(&target.cancelled());
    let KillTarget { name, scope: KillScope { task_type, matches, params } } = target;
    let input = SetKillSwitch { matches, task_type, params, reason: visit.reason() };
    service::set_kill_switch(visit.context(), name.parse()?, input).await?;
    Ok(visit.after_control("/kill-switches", "kill_switch_on").leading_to(cancelled))
}

/// Rejects a kill switch of many tasks without their number. One that cannot be counted is accepted: without the store, kill
/// switches still work.
async fn check_confirmed(visit: &Visit, target: &KillTarget) -> Result<(), ApiError> {
    let is_shown = visit.entered.get("expected_of").is_some_and(|shown| shown == target.text());
    let expected = visit.entered.number::<u64>("expected")?.filter(|_| is_shown);
    let tasks = match expected {
        Some(expected) => expected,
        None => target.count(visit).await.as_ref().map_or(0, killed),
    };
    if tasks > MAX_UNCONFIRMED && (expected.is_none() || visit.entered.number::<u64>("confirm")? != Some(tasks)) {
        let reason = format!("the kill switch concerns {tasks} tasks: type this number to confirm it");
        return Err(ApiError::new(Code::BadField, reason).pointer("/confirm"));
    }
    Ok(())
}

pub(in super::super) async fn show_off(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let name = &visit.segment;
    let subject = format!("/kill-switches/{}", encoded(name));
    let listed = from_kafka(service::list_kill_switches(visit.context())).await;
    let active = listed.ok().and_then(|listed| listed.kills.into_iter().find(|kill| kill.name == *name));
    Ok(form_page(&Form {
        effect: html! {
            p { "Tasks that match " code { (name) } " start again. Those already cancelled stay cancelled." }
        },
        beside: active.map(|kill| kill_facts(&visit.view, &kill)),
        back: "/kill-switches".into(),
        commands: vec![
            format!("kafleet kill-switch off {}", quoted(name)),
            curl("DELETE", &format!("/v1/kill-switches/{}", encoded(name)), None),
        ],
        ..form(visit, &subject, "off", format!("Switch off {name}"), "Switch off")
    }))
}

pub(in super::super) async fn off(visit: &Visit) -> Result<Redirect, ApiError> {
    service::delete_kill_switch(visit.context(), visit.segment.parse()?).await?;
    Ok(visit.after_control("/kill-switches", "kill_switch_off"))
}
