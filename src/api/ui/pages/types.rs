//! Task types: list, and one type.

use maud::{Markup, html};

use super::overview::{numbers_text, open_of};
use crate::api::documents::{TaskPage, TypeDocument, TypeLimits};
use crate::api::handlers::{list as tasks, types, workers};
use crate::api::http::problem::{ApiError, Code};
use crate::api::ui::parts::bar::{state_bar, usage};
use crate::api::ui::parts::command::{commands, curl_get};
use crate::api::ui::parts::facts::facts;
use crate::api::ui::parts::json::{json_block, pretty};
use crate::api::ui::parts::notice::{empty, missing};
use crate::api::ui::parts::state::label;
use crate::api::ui::parts::table::table;
use crate::api::ui::parts::tasks::{state_counts, task_table, type_link, worker_link};
use crate::api::ui::parts::times::time;
use crate::api::ui::parts::{View, count, first_line, visible};
use crate::api::ui::visit::{Answer, Body, Visit, stored};
use crate::config::Role;
use crate::model::record::state::State;

pub(super) const COLUMNS: &[&str] =
    &["Type", "Condition", "#Open", "#Queued", "#Running", "#Failed", "#Slots", "Tasks"];

/// Newest failed tasks of a type.
const FAILED: usize = 10;

pub(in super::super) async fn list(visit: &Visit) -> Result<Answer, ApiError> {
    let view = &visit.view;
    let mut known = stored(types::type_list(&visit.api)).await?.types;
    known.sort_by_key(|known| (condition(known).0 == "good", known.name.clone()));
    let rows: Vec<Markup> = known.iter().map(|known| row(view, known)).collect();
    let main = html! {
        h1 { "Types" }
        @if rows.is_empty() {
            (empty("No type has a topic or a task. Configure types in kafleet.toml, then create their topics:", &["kafleet topics apply"]))
        } @else {
            section.panel { (table(COLUMNS, &rows)) }
        }
        (commands(&["kafleet types".to_owned(), curl_get("/v1/types")]))
    };
    Ok(Body::new("Types", main).into())
}

/// Tone and words of a type's condition.
fn condition(known: &TypeDocument) -> (&'static str, String) {
    if known.paused.is_some() {
        return ("attention", "‖\u{fe0e} paused".to_owned());
    }
    match &known.worker_totals {
        Some(totals) if totals.stopped > 0 => ("bad", format!("stopped on {} of {}", totals.stopped, totals.workers)),
        Some(totals) if !totals.refused.is_empty() => ("bad", "refused partitions".to_owned()),
        Some(totals) if totals.workers == 1 => ("good", "1 worker".to_owned()),
        Some(totals) => ("good", format!("{} workers", totals.workers)),
        None if !known.topic => ("neutral", "external".to_owned()),
        None if known.backlog > 0 => ("bad", "no worker".to_owned()),
        None => ("neutral", "no worker".to_owned()),
    }
}

pub(super) fn row(view: &View, known: &TypeDocument) -> Markup {
    let of = |state: State| known.counts.get(&state).copied().unwrap_or_default();
    let (tone, words) = condition(known);
    let number = |n: u64| html! { td.number { @if n == 0 { span.quiet { "–" } } @else { (count(n)) } } };
    html! {
        tr id={ "y-" (known.name) } {
            td.id { (type_link(view, Some(&known.name))) }
            td { (label(tone, &words)) }
            (number(open_of(&known.counts)))
            (number(of(State::Queued)))
            (number(of(State::Running) + of(State::Warning)))
            td.number {
                @if of(State::Failed) == 0 { span.quiet { "–" } } @else {
                    a.bad href=(view.url_with("/tasks", &[("type", &known.name), ("state", "failed"), ("level", "any")])) {
                        (count(of(State::Failed)))
                    }
                }
            }
            td.number {
                @match &known.worker_totals {
                    Some(totals) => { (usage(totals.in_flight, totals.slots)) } None => { span.quiet { "–" } }
                }
            }
            td.meter { (state_bar(&known.counts)) }
        }
    }
}

pub(super) async fn find(visit: &Visit) -> Result<TypeDocument, ApiError> {
    let known = stored(types::type_list(&visit.api)).await?.types;
    let unknown = || {
        ApiError::new(Code::UnknownType, format!("there is no type `{}`", crate::model::task::id::clip(&visit.segment)))
            .hint("create its topic with `kafleet topics apply`")
    };
    known.into_iter().find(|known| known.name == visit.segment).ok_or_else(unknown)
}

pub(in super::super) async fn show(visit: &Visit) -> Result<Answer, ApiError> {
    let (view, name) = (&visit.view, &visit.segment);
    let known = find(visit).await?;
    let query =
        [("type", name.clone()), ("state", "failed".into()), ("level", "any".into()), ("limit", FAILED.to_string())];
    let failed = stored(tasks::task_page(&visit.request_with(&query))).await;
    let counts: Vec<(State, u64)> = known.counts.iter().map(|(state, n)| (*state, *n)).collect();
    let main = html! {
        div.head { h1 { (known.name) } (actions(view, &known)) }
        (properties(&known))
        section.panel #counts {
            h2 { "Tasks" }
            @if counts.is_empty() {
                (empty("No task of this type has been submitted yet. Submit one:", &[&format!("kafleet submit {name} '{{}}'")]))
            } @else {
                (state_bar(&known.counts))
                (state_counts(&counts, |state| view.url_with("/tasks", &[("type", name), ("state", state.name()), ("level", "any")])))
            }
        }
        (workers_of(visit, name))
        (failed_of(view, failed))
        @if let Some(schema) = &known.schema {
            details.panel #schema { summary { h2 { "Schema of the params" } } (json_block(&pretty(schema), None)) }
        }
        (commands(&[format!("kafleet types -o json | jq '.types[] | select(.type == \"{name}\")'"), curl_get(&format!("/v1/types/{name}/backlog"))]))
    };
    Ok(Body::new(name.clone(), main).into())
}

fn actions(view: &View, known: &TypeDocument) -> Markup {
    let link = |page: &str, name: &str| {
        html! {
            a.button href=(view.url(&format!("/types/{}/{page}", known.name))) data-dialog { (name) }
        }
    };
    html! {
        div.actions {
            @if view.may(Role::Submit) { a.button href=(view.url_with("/new", &[("type", &known.name)])) { "Submit…" } }
            @if view.may(Role::Operate) && known.topic {
                @if known.paused.is_some() { (link("resume", "Resume…")) } @else { (link("pause", "Pause…")) }
                (link("limits", "Limits…"))
                a.button href=(view.url_with("/kill-switches/new", &[("type", &known.name)])) data-dialog { "Kill switch…" }
            }
        }
    }
}

fn properties(known: &TypeDocument) -> Markup {
    let (tone, words) = condition(known);
    html! {
        section.panel {
            (facts(&[
                ("Condition", Some(label(tone, &words))),
                ("Paused", known.paused.as_ref().map(|paused| html! {
                    "since " (time(&paused.since)) @if let Some(reason) = &paused.reason { ": " (visible(reason)) }
                })),
                ("Open", Some(html! { (count(open_of(&known.counts))) })),
                ("Backlog", Some(html! { (count(known.backlog)) span.quiet { " queued or running" } })),
                ("Slots", known.worker_totals.as_ref().map(|totals| usage(totals.in_flight, totals.slots))),
                ("Limits", Some(limits_text(&known.limits))),
                ("Kill switches", (!known.kills.is_empty()).then(|| html! { (known.kills.join(", ")) })),
                ("Refused partitions", known.worker_totals.as_ref().filter(|totals| !totals.refused.is_empty()).map(|totals| html! {
                    (numbers_text(&totals.refused)) span.quiet {
                        " – set their offsets with " code { "kafleet offsets init " (known.name) }
                    }
                })),
            ]))
        }
    }
}

fn limits_text(limits: &TypeLimits) -> Markup {
    let mut parts = Vec::new();
    parts.extend(limits.slots.map(|slots| format!("{slots} slots a worker")));
    parts.extend(limits.max_concurrency.map(|most| format!("{most} attempts at once")));
    parts.extend(limits.rate.map(|rate| format!("{} per {}", rate.count, rate.per)));
    html! {
        @if parts.is_empty() { span.quiet { "the defaults" } } @else { (parts.join(", ")) }
        @if !limits.live.is_empty() { span.quiet { " (set at run time: " (limits.live.join(", ")) ")" } }
    }
}

fn workers_of(visit: &Visit, name: &str) -> Markup {
    let all = workers::worker_list(&visit.api).workers;
    let rows: Vec<Markup> = all
        .iter()
        .filter_map(|worker| Some((worker, worker.types.iter().find(|status| status.task_type == name)?)))
        .map(|(worker, status)| {
            html! {
                tr id={ "w-" (worker.id) } {
                    td.id { (worker_link(&visit.view, &worker.id)) }
                    td { (super::workers::state_label(worker.state)) }
                    td.number { (usage(status.in_flight.into(), status.slots.into())) }
                    td.number { (count(status.waiting)) }
                    td { (numbers_text(&status.partitions)) }
                    td { @if let Some(why) = &status.stopped { span.error { (first_line(why, 120)) } } }
                }
            }
        })
        .collect();
    html! {
        section.panel #workers {
            h2 { "Workers" }
            @if rows.is_empty() {
                p.quiet { "No worker takes this type. Start one with " code { "kafleet worker --types " (name) } "." }
            }
            @else { (table(&["Worker", "State", "#Slots", "#Fetched", "Partitions", "Stopped"], &rows)) }
        }
    }
}

fn failed_of(view: &View, failed: Result<TaskPage, ApiError>) -> Markup {
    html! {
        @match failed {
            Ok(page) if page.tasks.is_empty() => {}
            Ok(page) => { section.panel #failed { h2 { "Newest failed tasks" } (task_table(view, "t", &page.tasks)) } }
            Err(error) => { (missing("The failed tasks", &error.document())) }
        }
    }
}
