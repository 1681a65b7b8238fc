//! Requests of users, newest first.

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::After;
use kafleet_api::service::statistics;
use kafleet_documents::AuditDocument;
use maud::{Markup, html};

use crate::parts::command::{commands, curl_get};
use crate::parts::notice::empty;
use crate::parts::table::{cards, pager};
use crate::parts::times::time;
use crate::parts::{View, encoded, task_path, visible};
use crate::visit::{Body, PageAnswer, Visit, stored};

/// Requests of a page, and of the longest one.
const PAGE: usize = 100;
const MAX_PAGE_ROWS: usize = 1_000;

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let view = &visit.view;
    let is_long = visit.query.is_set("all");
    let limit = if is_long { MAX_PAGE_ROWS } else { PAGE };
    let audit = stored(statistics::audit(visit.context(), limit, After::default())).await?;
    let rows: Vec<Markup> = audit.requests.iter().map(|request| row(view, request)).collect();
    let more = (!is_long && rows.len() == PAGE).then(|| view.url_with("/audit", &[("all", "1")]));
    let main = html! {
        h1 { "Audit" }
        p.quiet { "Requests of users, whether or not they took effect. The newest 1,000 of each partition are kept." }
        @if rows.is_empty() {
            (empty("Nobody has cancelled, retried, paused or changed anything yet.", &[]))
        } @else {
            section.panel { (cards(&["Time", "By", "Action", "Target", "Reason"], &rows)) }
        }
        (pager(None, more.as_deref(), ""))
        (commands(&["kafleet audit".to_owned(), curl_get("/v1/audit")]))
    };
    Ok(Body::new("Audit", main).into())
}

fn row(view: &View, request: &AuditDocument) -> Markup {
    html! {
        tr id={ "a-" (request.position) } {
            td.time { (time(&request.at)) }
            td { @match &request.by { Some(by) => { (visible(by)) } None => { span.quiet { "–" } } } }
            td { (request.action.replace('_', " ")) }
            td.id {
                @match path(request) {
                    Some(path) => { a href=(view.url(&path)) { (visible(&request.target)) } }
                    None => { code { (visible(&request.target)) } }
                }
            }
            td.message { (visible(request.reason.as_deref().unwrap_or_default())) }
        }
    }
}

/// Page of the target, as far as it is known.
fn path(request: &AuditDocument) -> Option<String> {
    let target = &request.target;
    match request.action.as_str() {
        "cancel" | "retry" | "retry_failed" | "edit" => Some(task_path(target)),
        action if action.starts_with("bulk_") => Some(task_path(target)),
        // The drop of a task's dead letter names the letter in its reason.
        "drop" if request.reason.is_some() => Some(task_path(target)),
        "drop" | "redrive" => Some(format!("/dead-letters/{}", encoded(target))),
        "pause_type" | "resume_type" | "set_limits" | "open_circuit" | "close_circuit" | "release_circuit"
        | "forget_type" => Some(format!("/types/{}", encoded(target))),
        "set_kill_switch" | "delete_kill_switch" => Some("/kill-switches".to_owned()),
        action if action.ends_with("_schedule") => Some(format!("/schedules/{}", encoded(target))),
        _ => None,
    }
}
