//! Schedules: list, and one schedule.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::schedules;
use kafleet_config::Role;
use kafleet_documents::{ScheduleDocument, ScheduleNote};
use kafleet_model::json::RawJson;
use maud::{Markup, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::facts::facts;
use crate::parts::heading::heading_of;
use crate::parts::json::json_block;
use crate::parts::limits::pause_text;
use crate::parts::notice::empty;
use crate::parts::runs::last_runs;
use crate::parts::state::{label, pill};
use crate::parts::table::{PagedList, table};
use crate::parts::tasks::type_link;
use crate::parts::times::{optional_time, time, zoned};
use crate::parts::{View, count, prose, tally, visible};
use crate::visit::{Body, PageAnswer, Visit, stored};

pub(in super::super) async fn list(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let mut schedules = stored(schedules::list(visit.context())).await?.schedules;
    schedules.sort_by_key(|schedule| (schedule.error.is_none(), schedule.id.clone()));
    let page = PagedList::new(schedules, visit.page_number());
    let main = html! {
        (head(view))
        @if page.total == 0 {
            (empty("There is no schedule. Create one:", &["kafleet schedules create nightly TYPE '{}' --cron \"0 3 * * *\""]))
        } @else {
            section.panel { (listed(view, &page)) }
        }
        (commands(&["kafleet schedules list".to_owned(), curl_get("/v1/schedules")]))
    };
    Ok(Body::new("Schedules", main).into())
}

fn head(view: &View) -> Markup {
    html! {
        div.head {
            h1 { "Schedules" }
            @if view.may(Role::Operate) {
                div.actions { a.button href=(view.url("/new-schedule")) { "New schedule…" } }
            }
        }
    }
}

fn listed(view: &View, page: &PagedList<ScheduleDocument>) -> Markup {
    let rows: Vec<Markup> = page.items.iter().map(|schedule| row(view, schedule)).collect();
    html! {
        (table(&["Schedule", "Condition", "Times", "Type", "Next", "Last task", "#Fired", "#Skipped", "#Missed"], &rows))
        (page.pager(view, "/schedules", "schedules"))
    }
}

fn condition(schedule: &ScheduleDocument) -> Markup {
    match (&schedule.error, &schedule.paused) {
        (Some(_), _) => label("bad", "✘\u{fe0e} cannot fire"),
        (None, Some(_)) => label("attention", "‖\u{fe0e} paused"),
        (None, None) => label("good", "●\u{fe0e} active"),
    }
}

/// Times of a schedule in words, with its cron expression.
fn times(schedule: &ScheduleDocument) -> Markup {
    html! {
        @if let Some(words) = &schedule.description { (visible(words)) }
        @if let Some(cron) = &schedule.spec.cron { " " code.quiet { (visible(cron)) } }
    }
}

fn row(view: &View, schedule: &ScheduleDocument) -> Markup {
    let number = |n: u64| html! { td.number { (tally(n)) } };
    html! {
        tr id={ "s-" (schedule.id) } {
            td.id { a href=(view.url(&format!("/schedules/{}", schedule.id))) { (schedule.id) } }
            td { (condition(schedule)) }
            td { (times(schedule)) }
            td { (type_link(view, Some(&schedule.spec.task.task_type))) }
            td.time {
                @if schedule.paused.is_none() {
                    (optional_time(schedule.next.first().map(String::as_str)))
                } @else { span.quiet { "–" } }
            }
            td { (last_task(view, schedule)) (last_runs(view, &schedule.recent)) }
            (number(schedule.fired))
            (number(schedule.skipped))
            (number(schedule.missed))
        }
    }
}

fn last_task(view: &View, schedule: &ScheduleDocument) -> Markup {
    html! {
        @if let Some(last) = &schedule.last {
            a href=(view.task(&last.task)) title=(last.task) { (optional_time(Some(&last.time))) }
            @if let Some(state) = last.state { " " (pill(state)) }
        } @else { span.quiet { "–" } }
    }
}

pub(super) async fn find(visit: &Visit) -> Result<ScheduleDocument, ApiError> {
    stored(schedules::show(visit.context(), visit.subject())).await
}

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let schedule = find(visit).await?;
    let id = &schedule.id;
    let main = html! {
        div.head { div { (heading_of("Schedule", id)) } (actions(view, &schedule)) }
        @if let Some(error) = &schedule.error { p.notice.bad { (prose(error)) } }
        section.panel { (properties(view, &schedule)) }
        div.columns {
            div.column {
                (decisions(view, &schedule))
                details.panel #spec {
                    summary { h2 { "Definition" } }
                    (json_block(&RawJson::of_plain(&schedule.spec), None))
                }
            }
            div.column { (next_times(&schedule)) }
        }
        (commands(&[format!("kafleet schedules next {}", quoted(id)), curl_get(&format!("/v1/schedules/{id}"))]))
    };
    Ok(Body::new(id.clone(), main).into())
}

fn properties(view: &View, schedule: &ScheduleDocument) -> Markup {
    facts(&[
        ("Condition", Some(condition(schedule))),
        ("Times", Some(times(schedule))),
        ("Overlap", Some(html! { (schedule.spec.overlap.name().replace('_', " ")) })),
        ("Type", Some(type_link(view, Some(&schedule.spec.task.task_type)))),
        ("Paused", schedule.paused.as_ref().map(pause_text)),
        (
            "Managed by",
            schedule.owner.as_deref().map(|owner| {
                html! {
                    (owner_text(owner)) " (" code { "kafleet schedules apply" } ")"
                }
            }),
        ),
        ("Changed", Some(time(&schedule.changed_at))),
        ("Fired", Some(html! { (count(schedule.fired)) })),
        ("Skipped", Some(html! { (count(schedule.skipped)) })),
        ("Missed", Some(html! { @if schedule.missed > 0 { "at least " } (count(schedule.missed)) })),
        ("Waits for the previous task", schedule.waiting.as_deref().map(time)),
    ])
}

/// Source that manages a schedule, for people.
pub(super) fn owner_text(owner: &str) -> String {
    match owner.strip_prefix("app/") {
        Some(app) => format!("The app {app}"),
        None => "The configuration file".to_owned(),
    }
}

fn next_times(schedule: &ScheduleDocument) -> Markup {
    html! {
        section.panel #next {
            h2 { "Next times" }
            @if schedule.next.is_empty() { p.quiet { "None." } } @else {
                ol.plain { @for next in &schedule.next { li { (time_in_zone(next, schedule.spec.timezone.as_deref())) } } }
            }
        }
    }
}

/// Time in the zone of the reader, and in that of the schedule.
pub(super) fn time_in_zone(at: &str, zone: Option<&str>) -> Markup {
    html! {
        (time(at))
        @if let Some(there) = zoned(at, zone.unwrap_or("UTC")) { span.quiet { " · " (there) } }
    }
}

fn actions(view: &View, schedule: &ScheduleDocument) -> Markup {
    let link = |page: &str, name: &str| {
        html! {
            a.button href=(view.url(&format!("/schedules/{}/{page}", schedule.id))) data-dialog { (name) }
        }
    };
    html! {
        @if view.may(Role::Operate) {
            div.actions {
                (link("trigger", "Run now…"))
                @if schedule.paused.is_some() { (link("resume", "Resume…")) } @else { (link("pause", "Pause…")) }
                (link("edit", "Edit…"))
                (link("backfill", "Backfill…"))
                (link("delete", "Delete…"))
            }
        }
    }
}

fn decisions(view: &View, schedule: &ScheduleDocument) -> Markup {
    let rows: Vec<Markup> = schedule.recent.iter().map(|note| note_row(view, note)).collect();
    html! {
        section.panel #decisions {
            h2 { "Recent decisions" }
            @if rows.is_empty() { p.quiet { "It has not fired yet." } } @else {
                (table(&["Due", "Outcome", "Time", "Task"], &rows))
            }
        }
    }
}

fn note_row(view: &View, note: &ScheduleNote) -> Markup {
    html! {
        tr {
            td.time { (time(&note.time)) }
            td { (note.outcome.name()) @if note.count > 1 { " " (count(note.count)) " times" } }
            td.time { (time(&note.at)) }
            td.id { @if let Some(task) = &note.task { a href=(view.task(task)) { (task) } } }
        }
    }
}
