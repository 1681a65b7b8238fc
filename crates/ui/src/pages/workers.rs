//! Workers: list, and one worker.

use std::collections::BTreeSet;

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::workers;
use kafleet_documents::flow::rate;
use kafleet_documents::{RunningDocument, WorkerDocument, WorkerState};
use kafleet_fleet::control::heartbeat::TypeStatus;
use kafleet_model::worker_status::slots_of_worker;
use kafleet_runtime::clock::skew_text;
use maud::{Markup, html};

use super::attention::numbers_text;
use crate::parts::bar::usage;
use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::facts::{facts, text};
use crate::parts::heading::heading_of;
use crate::parts::notice::empty;
use crate::parts::state::label;
use crate::parts::table::{PagedList, table};
use crate::parts::tasks::{type_link, worker_link};
use crate::parts::times::{between, duration, time};
use crate::parts::{View, bytes_text, count, counted, first_line, prose, tally, visible};
use crate::visit::{Body, PageAnswer, Visit};

pub(super) fn state_label(state: WorkerState) -> Markup {
    let (tone, symbol) = match state {
        WorkerState::Alive => ("good", "●"),
        WorkerState::Draining => ("attention", "◔"),
        WorkerState::Silent => ("bad", "✘"),
        WorkerState::Stopped => ("neutral", "–"),
    };
    label(tone, &format!("{symbol}\u{fe0e} {}", state.name()))
}

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let mut workers = workers::worker_list(&visit.api).workers;
    workers.sort_by(|a, b| (rank(a.state), &a.id).cmp(&(rank(b.state), &b.id)));
    let versions: BTreeSet<String> = workers.iter().map(|worker| worker.version.clone()).collect();
    let summary = summary(&workers);
    let page = PagedList::new(workers, visit.page_number());
    let main = html! {
        h1 { "Workers" }
        @if page.total == 0 {
            (empty("No worker has sent a heartbeat. Start one:", &["kafleet worker"]))
        } @else {
            p.quiet #summary { (summary) }
            section.panel { (listed(&visit.view, &page, versions.len() > 1)) }
        }
        (commands(&["kafleet workers --running".to_owned(), curl_get("/v1/workers")]))
    };
    Ok(Body::new("Workers", main).into())
}

/// Numbers of workers by state, and the slots of those that take tasks: `3 alive, 1 silent · 12 of 40 slots in use`.
fn summary(workers: &[WorkerDocument]) -> String {
    let states = [WorkerState::Silent, WorkerState::Draining, WorkerState::Alive, WorkerState::Stopped];
    let numbers = states.into_iter().filter_map(|state| {
        let number = workers.iter().filter(|worker| worker.state == state).count();
        (number > 0).then(|| format!("{} {}", count(number), state.name()))
    });
    let numbers: Vec<String> = numbers.collect();
    let alive = || workers.iter().filter(|worker| worker.state == WorkerState::Alive);
    let used: u64 = alive().map(|worker| worker.in_flight).sum();
    let slots: u64 = alive().map(|worker| slots_of_worker(&worker.types)).sum();
    format!("{} · {} of {} in use", numbers.join(", "), count(used), counted(slots, "slot", "slots"))
}

const COLUMNS: &[&str] = &[
    "Worker",
    "State",
    "#Slots",
    "#Types",
    "#Ended/min|attempts ended since its start, on average",
    "#Memory|of the tasks that it has fetched and not completed",
    "Host",
    "#Up|from its start to its last heartbeat",
    "Last heartbeat",
    "Version",
];

/// Rank of a state in the list: those in trouble first.
const fn rank(state: WorkerState) -> u8 {
    match state {
        WorkerState::Silent => 0,
        WorkerState::Draining => 1,
        WorkerState::Alive => 2,
        WorkerState::Stopped => 3,
    }
}

/// Rows of workers. `differ`: the workers have several versions.
fn listed(view: &View, page: &PagedList<WorkerDocument>, differ: bool) -> Markup {
    let rows: Vec<Markup> = page.items.iter().map(|worker| row(view, worker, differ)).collect();
    html! {
        @if differ { p.notice.attention { "The workers run different versions of kafleet." } }
        (table(COLUMNS, &rows))
        (page.pager(view, "/workers", "workers"))
    }
}

fn row(view: &View, worker: &WorkerDocument, differ: bool) -> Markup {
    let stopped = worker.types.iter().filter(|status| status.stopped.is_some()).count();
    let down = worker.types.iter().filter(|status| status.app_down.is_some()).count();
    html! {
        tr id={ "w-" (worker.id) } {
            td.id { (worker_link(view, &worker.id)) }
            td {
                (state_label(worker.state))
                @if stopped > 0 { " " (label("bad", &counted(stopped as u64, "type stopped", "types stopped"))) }
                @if down > 0 { " " (label("bad", &counted(down as u64, "type without its app", "types without their app"))) }
            }
            td.number { (usage(worker.in_flight, slots_of_worker(&worker.types))) }
            td.number { (count(worker.types.len())) }
            td.number { @match ended_per_min(worker) { Some(rate) => { (rate) } None => { span.quiet { "–" } } } }
            td.number { @if worker.held_bytes > 0 { (bytes_text(worker.held_bytes)) } @else { (tally(0)) } }
            td { (visible(&worker.host)) }
            td.number title={ "started " (worker.started_at) } { (up(worker)) }
            td.time { (time(&worker.last_heartbeat_at)) }
            td {
                @match known_version(&worker.version) {
                    Some(version) if differ => { (label("attention", version)) }
                    Some(version) => { (visible(version)) }
                    None => { span.quiet { "–" } }
                }
            }
        }
    }
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let mut workers = workers::worker_list(&visit.api).workers.into_iter();
    let unknown = || {
        ApiError::new(Code::NotFound, format!("there is no worker `{}`", kafleet_model::task::id::clip(&visit.segment)))
            .hint("a worker that stopped long ago is forgotten")
    };
    let worker = workers.find(|worker| worker.id == visit.segment).ok_or_else(unknown)?;
    let main = html! {
        (heading_of("Worker", &worker.id))
        section.panel { (properties(&worker)) }
        (types(view, &worker))
        (running(view, &worker))
        (how_to_stop(&worker))
        (commands(&["kafleet workers --running".to_owned(), curl_get("/v1/workers"), stop_command(&worker)]))
    };
    Ok(Body::new(worker.id.clone(), main).into())
}

fn properties(worker: &WorkerDocument) -> Markup {
    facts(&[
        ("State", Some(state_label(worker.state))),
        ("Host", text(format!("{}, process {}", worker.host, worker.pid))),
        ("Version", known_version(&worker.version).and_then(text)),
        ("Started", Some(time(&worker.started_at))),
        ("Up", Some(html! { (up(worker)) span.quiet { " at its last heartbeat" } })),
        ("Ended", ended_per_min(worker).map(|rate| html! { (rate) " a minute" span.quiet { " since its start" } })),
        ("Last heartbeat", Some(time(&worker.last_heartbeat_at))),
        ("Clock", skew_text(worker.clock_ahead_ms).map(|skew| label("attention", &skew))),
        ("In flight", text(count(worker.in_flight))),
        (
            "Memory",
            Some(html! {
                span title=(counted(worker.held_bytes, "byte", "bytes")) { (bytes_text(worker.held_bytes)) } span.quiet { " of fetched tasks" }
            }),
        ),
    ])
}

/// Version of a worker that states one.
pub(super) fn known_version(version: &str) -> Option<&str> {
    Some(version).filter(|version| !matches!(*version, "" | "0"))
}

/// Time from the start of a worker to its last heartbeat.
fn up(worker: &WorkerDocument) -> Markup {
    match between(Some(&worker.started_at), Some(&worker.last_heartbeat_at)) {
        Some(ms) if ms > 0 => html! { (duration(ms)) },
        _ => html! { span.quiet { "–" } },
    }
}

/// Attempts that ended a minute since the start of a worker; none before it has run for a minute.
fn ended_per_min(worker: &WorkerDocument) -> Option<String> {
    let up_ms = between(Some(&worker.started_at), Some(&worker.last_heartbeat_at)).filter(|ms| *ms >= 60_000)?;
    let ended: u64 = worker.types.iter().flat_map(|status| status.finished.values()).sum();
    Some(rate(ended as f64 * 60_000.0 / up_ms as f64))
}

/// Signal that stops a worker, and what it does then.
fn how_to_stop(worker: &WorkerDocument) -> Markup {
    html! {
        @if matches!(worker.state, WorkerState::Alive | WorkerState::Draining) {
            p.quiet #stop {
                "To stop this worker, send SIGTERM to process " (worker.pid) " on " (visible(&worker.host))
                ", or stop its container: it starts no more tasks, finishes its attempts and hands its partitions over."
            }
        }
    }
}

fn stop_command(worker: &WorkerDocument) -> String {
    format!("ssh {} kill -TERM {}", quoted(&worker.host), worker.pid)
}

fn types(view: &View, worker: &WorkerDocument) -> Markup {
    let rows: Vec<Markup> = worker.types.iter().map(|status| type_row(view, status)).collect();
    html! {
        section.panel #types {
            h2 { "Types" } (table(&["Type", "Group", "#Slots", "At once", "#Fetched", "Partitions", "Attempts finished", "Trouble"], &rows))
        }
    }
}

fn type_row(view: &View, status: &TypeStatus) -> Markup {
    let finished: Vec<String> = status.finished.iter().map(|(outcome, n)| format!("{} {outcome}", count(n))).collect();
    html! {
        tr id={ "y-" (status.task_type) } {
            td.id { (type_link(view, Some(&status.task_type))) }
            td { (status.group.as_deref().unwrap_or("its own")) }
            td.number { (usage(status.in_flight.into(), status.usable_slots())) }
            td {
                @match &status.capacity {
                    Some(capacity) => { (capacity.app) ": " (capacity) }
                    None => { span.quiet { "–" } }
                }
            }
            td.number { (count(status.waiting)) }
            td { (numbers_text(&status.partitions)) }
            td { @if finished.is_empty() { span.quiet { "–" } } @else { (finished.join(", ")) } }
            td {
                @if status.paused { (label("attention", "‖\u{fe0e} paused")) }
                (reasons(status))
                @if !status.refused.is_empty() { (label("bad", "refused")) " " (numbers_text(&status.refused)) }
            }
        }
    }
}

/// Reasons for which a worker starts no tasks of a type: an open circuit breaker, an app without a process that serves.
pub(super) fn reasons(status: &TypeStatus) -> Markup {
    html! {
        @if let Some(error) = &status.stopped { span.error { (prose(&first_line(error, 120))) } }
        @if let Some(error) = &status.circuit { (label("attention", "‖\u{fe0e} circuit open")) " " (prose(&first_line(error, 120))) }
        @if status.open_hosts > 0 {
            (label("attention", "‖\u{fe0e} hosts open")) " " (status.open_hosts)
            @if let Some(open) = status.hosts.first() { ", " (first_line(&open.host, 120)) " " (prose(&first_line(&open.reason, 120))) }
        }
        @if let Some(example) = &status.misplaced_keys { (label("attention", "misplaced keys")) " " (first_line(example, 120)) }
        @if let Some(excess) = status.capacity.as_ref().and_then(|capacity| capacity.excess(status.slots)) {
            (label("attention", "slots")) " " (excess)
        }
        @if let Some(error) = &status.app_down { (label("bad", "app down")) " " span.error { (prose(&first_line(error, 120))) } }
    }
}

fn running(view: &View, worker: &WorkerDocument) -> Markup {
    let row = |task: &RunningDocument| {
        html! {
            tr id={ "t-" (task.id) } data-task {
                td.id { a href=(view.task(&task.id)) { (task.id) } }
                td { (type_link(view, Some(&task.task_type))) }
                td.number { (task.attempt) }
                td.time { (time(&task.started_at)) }
            }
        }
    };
    let rows: Vec<Markup> = worker.running.iter().map(row).collect();
    html! {
        section.panel #running {
            h2 { "Running tasks, oldest first" }
            @if rows.is_empty() { p.quiet { "None, as of the last heartbeat." } }
            @else { (table(&["Task", "Type", "#Attempt", "Started"], &rows)) }
        }
    }
}
