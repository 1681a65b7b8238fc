//! Overview of the fleet: troubles, open tasks, busiest types, newest failures.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::api::documents::{
    KillSwitches, Schedules, Status, TaskPage, TypeDocument, Types, WorkerDocument, WorkerState, Workers,
};
use crate::api::handlers::{list, operations, schedules, types, workers};
use crate::api::http::problem::ApiError;
use crate::api::ui::parts::bar::{state_bar, usage};
use crate::api::ui::parts::command::{commands, curl_get};
use crate::api::ui::parts::notice::{empty, missing};
use crate::api::ui::parts::state::label;
use crate::api::ui::parts::table::table;
use crate::api::ui::parts::tasks::{state_counts, task_table, worker_link};
use crate::api::ui::parts::times::time;
use crate::api::ui::parts::{View, count, first_line};
use crate::api::ui::visit::{Answer, Body, Visit, from_kafka, stored};
use crate::model::record::state::State;

/// Types listed, those with the most open tasks.
const TYPES: usize = 20;
/// Newest failed tasks listed.
const FAILED: usize = 10;

pub(in super::super) async fn show(visit: &Visit) -> Result<Answer, ApiError> {
    let (view, api) = (&visit.view, &visit.api);
    let failed =
        visit.request_with(&[("state", "failed".into()), ("level", "any".into()), ("limit", FAILED.to_string())]);
    let (types, kills, schedules, failed) = tokio::join!(
        stored(types::type_list(api)),
        from_kafka(operations::kill_switch_list(api)),
        stored(schedules::schedule_list(api)),
        stored(list::task_page(&failed)),
    );
    let workers = workers::worker_list(api);
    let main = html! {
        h1.hidden { "Overview" }
        (attention(view, types.as_ref().ok(), &workers, kills.as_ref().ok(), schedules.as_ref().ok()))
        @match &types {
            Ok(types) => { (numbers(view, types, &workers)) (busiest(view, types)) }
            Err(error) => { (missing("Tasks and types", &error.clone().document())) }
        }
        @match &failed {
            Ok(failed) => { (newest_failed(view, failed)) }
            Err(error) => { (missing("The newest failed tasks", &error.clone().document())) }
        }
        (commands(&["kafleet types".to_owned(), "kafleet list --state failed --level any".to_owned(), curl_get("/v1/types")]))
    };
    Ok(Body::new("Overview", main).into())
}

/// Troubles that need an operator.
fn attention(
    view: &View,
    types: Option<&Types>,
    workers: &Workers,
    kills: Option<&KillSwitches>,
    schedules: Option<&Schedules>,
) -> Markup {
    let mut items: Vec<Markup> = Vec::new();
    items.extend(
        workers.workers.iter().filter(|worker| worker.state == WorkerState::Silent).map(|worker| silent(view, worker)),
    );
    for known in types.iter().flat_map(|types| &types.types) {
        items.extend(type_troubles(view, known));
    }
    for schedule in schedules.iter().flat_map(|schedules| &schedules.schedules) {
        if let Some(error) = &schedule.error {
            let url = view.url(&format!("/schedules/{}", schedule.id));
            items.push(html! {
                (label("bad", "✘\u{fe0e} schedule")) " " a href=(url) { (schedule.id) } " cannot fire: "
                (first_line(error, 200))
            });
        }
    }
    for kill in kills.iter().flat_map(|kills| &kills.kills) {
        items.push(html! {
            (label("attention", "⊘\u{fe0e} kill switch")) " " a href=(view.url("/kill-switches")) { (kill.name) }
            " cancels matching tasks since " (time(&kill.since))
            @if let Some(reason) = &kill.reason { ": " (first_line(reason, 120)) }
        });
    }
    html! {
        @if !items.is_empty() {
            section.panel.attention #attention {
                h2 { "Needs attention" }
                ul.plain { @for item in &items { li { (item) } } }
            }
        }
    }
}

fn silent(view: &View, worker: &WorkerDocument) -> Markup {
    html! {
        (label("bad", "✘\u{fe0e} silent")) " worker " (worker_link(view, &worker.id)) " has sent no heartbeat since "
        (time(&worker.last_heartbeat_at))
    }
}

fn type_troubles(view: &View, known: &TypeDocument) -> Vec<Markup> {
    let mut items = Vec::new();
    let link = html! { a href=(view.url(&format!("/types/{}", known.name))) { (known.name) } };
    if let Some(paused) = &known.paused {
        items.push(html! {
            (label("attention", "‖\u{fe0e} paused")) " " (link) " since " (time(&paused.since))
            @if let Some(reason) = &paused.reason { ": " (first_line(reason, 120)) }
        });
    }
    let Some(totals) = &known.worker_totals else {
        if known.topic && known.backlog > 0 {
            items.push(html! {
                (label("bad", "✘\u{fe0e} no worker")) " takes " (link) ": " (count(known.backlog)) " tasks are queued"
            });
        }
        return items;
    };
    if totals.stopped > 0 {
        items.push(html! {
            (label("bad", "✘\u{fe0e} stopped")) " " (link) " on " (totals.stopped) " of " (totals.workers)
            " workers, after too many failures"
        });
    }
    if !totals.refused.is_empty() {
        items.push(html! {
            (label("bad", "✘\u{fe0e} refused")) " " (link) " has partitions without a start offset: "
            (numbers_text(&totals.refused))
            "; see " code { "kafleet offsets init" }
        });
    }
    items
}

pub(super) fn numbers_text(numbers: &[i32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Totals over all types.
pub(super) fn totals(types: &[TypeDocument]) -> BTreeMap<State, u64> {
    let mut totals = BTreeMap::new();
    for (state, n) in types.iter().flat_map(|known| &known.counts) {
        *totals.entry(*state).or_default() += n;
    }
    totals.retain(|_, n| *n > 0);
    totals
}

pub(super) fn open_of(counts: &BTreeMap<State, u64>) -> u64 {
    counts.iter().filter(|(state, _)| !state.is_terminal()).map(|(_, n)| n).sum()
}

fn numbers(view: &View, types: &Types, workers: &Workers) -> Markup {
    let totals = totals(&types.types);
    let alive: Vec<&WorkerDocument> =
        workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).collect();
    let slots = alive.iter().flat_map(|worker| &worker.types).map(|status| u64::from(status.slots)).sum::<u64>();
    let used = alive.iter().map(|worker| worker.in_flight).sum::<u64>();
    let of = |state: State| totals.get(&state).copied().unwrap_or_default();
    let all: Vec<(State, u64)> = totals.iter().map(|(state, n)| (*state, *n)).collect();
    html! {
        section.tiles aria-label="totals" {
            div.tile { span.value { (count(open_of(&totals))) } span.name { "open tasks" } }
            div.tile { span.value { (count(of(State::Queued))) } span.name { "queued" } }
            div.tile { span.value { (count(of(State::Running) + of(State::Warning))) } span.name { "running" } }
            div.tile { span.value { (count(of(State::Failed))) } span.name { "failed, still retained" } }
            a.tile href=(view.url("/workers")) { span.value { (count(alive.len())) } span.name { "live workers" } }
            div.tile { span.value { (usage(used, slots)) } span.name { "slots in use" } }
        }
        @if !all.is_empty() {
            section.panel {
                h2 { "All retained tasks" }
                (state_bar(&totals))
                (state_counts(&all, |state| view.url_with("/tasks", &[("state", state.name()), ("level", "any")])))
            }
        }
    }
}

fn busiest(view: &View, types: &Types) -> Markup {
    let mut known: Vec<&TypeDocument> = types.types.iter().filter(|known| !known.counts.is_empty()).collect();
    known.sort_by_key(|known| (std::cmp::Reverse(open_of(&known.counts)), &known.name));
    known.truncate(TYPES);
    let rows: Vec<Markup> = known.iter().map(|known| super::types::row(view, known)).collect();
    html! {
        section.panel #types {
            h2 { "Types with the most open tasks" }
            @if rows.is_empty() {
                (empty(
                    "No task has been submitted yet. Submit one:",
                    &["kafleet submit echo '{\"hello\": \"world\"}'"],
                ))
                @if view.may(crate::config::Role::Submit) {
                    p { a.button.primary href=(view.url("/new")) { "New task" } }
                }
            } @else {
                (table(super::types::COLUMNS, &rows))
            }
        }
    }
}

fn newest_failed(view: &View, failed: &TaskPage) -> Markup {
    let tasks: &[Status] = &failed.tasks;
    html! {
        section.panel #failed {
            h2 { "Newest failed tasks" }
            @if tasks.is_empty() {
                p.quiet { "No retained task has failed." }
            } @else {
                (task_table(view, "t", tasks))
                p { a href=(view.url_with("/tasks", &[("state", "failed"), ("level", "any")])) { "All failed tasks" } }
            }
        }
    }
}
