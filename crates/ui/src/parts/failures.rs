//! Failed tasks by type and error.

use kafleet_config::Role;
use kafleet_documents::FailureGroup;
use maud::{Markup, html};

use super::chart::bars;
use super::tasks::{type_link, worker_link};
use super::times::time;
use super::{View, count, first_line, search_text};

/// Workers listed in a row.
const LISTED_WORKERS: usize = 3;

/// Query of the tasks of a group.
pub(in super::super) fn group_query(group: &FailureGroup) -> String {
    search_text(&[("type", &group.task_type), ("own", "failed,expired"), ("error", &group.error), ("level", "any")])
}

/// Columns of [`group_row`].
pub(in super::super) const COLUMNS: &[&str] =
    &["#Tasks", "Failed attempts, 24 h", "Type", "Error", "First", "Last", "Workers", ""];

pub(in super::super) fn group_row(view: &View, group: &FailureGroup, at_least: bool) -> Markup {
    let query = group_query(group);
    html! {
        tr id={ "f-" (group.task_type) "-" (group.error) } {
            td.number {
                a.bad href=(view.search(&query)) { @if at_least { "≥ " } (count(group.count)) }
                span.unit { @if group.count == 1 { " task" } @else { " tasks" } }
            }
            td.spark { (bars(&group.attempts_by_hour, "bad", "failed attempts in an hour")) }
            td { (type_link(view, Some(&group.task_type))) }
            td.message {
                span.error title=(first_line(&group.text, 400)) { (first_line(&group.text, 120)) }
                @if group.newest_superseded { span.quiet { " (superseded)" } }
            }
            td.time { (time(&group.first)) }
            td.time { a href=(view.task(&group.newest)) title=(group.newest) { (time(&group.last)) } }
            td { (workers(view, &group.workers)) }
            td.action { @if view.may(Role::Operate) { (retry_button(view, &query)) } }
        }
    }
}

fn workers(view: &View, ids: &[String]) -> Markup {
    let more = ids.len().saturating_sub(LISTED_WORKERS);
    html! {
        @for (n, id) in ids.iter().take(LISTED_WORKERS).enumerate() {
            @if n > 0 { ", " } (worker_link(view, id))
        }
        @if more > 0 { span.quiet { " and " (more) " more" } }
    }
}

fn retry_button(view: &View, query: &str) -> Markup {
    html! {
        a.button href=(view.url_with("/bulk/new", &[("action", "retry"), ("q", query)])) { "Retry…" }
    }
}
