//! Requests of users, newest first, by person, action, target and time.

use kafleet_api::http::problem::ApiError;
use kafleet_api::http::request::bad_parameter;
use kafleet_api::service::context::After;
use kafleet_api::service::statistics::{self, AuditQuery};
use kafleet_documents::AuditDocument;
use maud::{Markup, Render, html};

use crate::parts::command::{commands, curl_get, quoted};
use crate::parts::form::{Input, filter_buttons};
use crate::parts::notice::empty;
use crate::parts::table::{pager, table};
use crate::parts::times::{time, time_hint};
use crate::parts::{View, encoded, query_text, task_path, visible};
use crate::visit::{Body, Fields, PageAnswer, Visit, stored};

/// Requests of a page, and of the longest one.
const PAGE: usize = 100;
const MAX_PAGE_ROWS: usize = 1_000;
/// Parameters of the page, with the same names as those of the API.
const FILTERS: [&str; 5] = ["by", "action", "target", "from", "to"];
/// Actions that are suggested.
const ACTIONS: [&str; 25] = [
    "cancel",
    "retry",
    "retry_failed",
    "edit",
    "drop",
    "redrive",
    "bulk_cancel",
    "bulk_retry",
    "bulk_retry_failed",
    "bulk_start_now",
    "pause_type",
    "resume_type",
    "set_limits",
    "open_circuit",
    "close_circuit",
    "release_circuit",
    "forget_type",
    "set_kill_switch",
    "delete_kill_switch",
    "create_schedule",
    "update_schedule",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
];

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let (view, fields) = (&visit.view, &visit.query);
    let is_long = fields.is_set("all");
    let query = query_of(fields, if is_long { MAX_PAGE_ROWS } else { PAGE })?;
    let audit = stored(statistics::audit(visit.context(), query, After::default())).await?;
    let rows: Vec<Markup> = audit.requests.iter().map(|request| row(view, request)).collect();
    let filters = fields.select(&FILTERS);
    let pairs: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let all = || view.url_with("/audit", &pairs.iter().copied().chain([("all", "1")]).collect::<Vec<_>>());
    let more = (!is_long && rows.len() == PAGE).then(all);
    let main = html! {
        h1 { "Audit" }
        p.quiet { "Requests of users, whether or not they took effect. The newest 1,000 of each partition are kept." }
        (filter(view, fields))
        @if rows.is_empty() {
            @let nothing = if pairs.is_empty() { "Nobody has cancelled, retried, paused or changed anything yet." } else { "No request matches these filters." };
            (empty(nothing, &[]))
        } @else {
            section.panel { (table(&["Time", "By", "Action", "Target", "Reason"], &rows)) }
        }
        (pager(None, more.as_deref(), ""))
        (commands(&lines(fields, &pairs)))
    };
    Ok(Body::new("Audit", main).into())
}

fn query_of(fields: &Fields, limit: usize) -> Result<AuditQuery, ApiError> {
    let text = |name: &str| fields.get(name).map(|text| text.trim().to_owned());
    let (from_ms, to_ms) = (fields.time_ms("from")?, fields.time_ms("to")?);
    if from_ms.zip(to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
        return Err(bad_parameter("from", "it must not be later than `to`"));
    }
    // Lists show actions without their underscores.
    let action = text("action").map(|action| action.replace(' ', "_"));
    Ok(AuditQuery { by: text("by"), action, target: text("target"), from_ms, to_ms, limit })
}

fn filter(view: &View, fields: &Fields) -> Markup {
    let actions = ACTIONS.map(str::to_owned);
    let is_filtered = FILTERS.iter().any(|name| fields.is_set(name));
    html! {
        form.filters action=(view.url("/audit")) role="search" aria-label="Filters" {
            (Input::new("by", "By", fields.get("by")).hint("name of an API token").render())
            (Input::new("action", "Action", fields.get("action")).suggestions(&actions).render())
            (Input::new("target", "Target", fields.get("target")).hint("a part of it").render())
            (Input::new("from", "From", fields.get("from")).hint(&time_hint(view)).render())
            (Input::new("to", "To", fields.get("to")).hint(&time_hint(view)).render())
            (filter_buttons(is_filtered.then(|| view.url("/audit")).as_deref()))
        }
    }
}

/// Commands that list the same.
fn lines(fields: &Fields, pairs: &[(&str, &str)]) -> [String; 2] {
    let as_recorded = |name: &str, value: &str| match name {
        "action" => value.replace(' ', "_"),
        _ => value.to_owned(),
    };
    let option = |(name, value): &(&str, &str)| format!(" --{name} {}", quoted(&as_recorded(name, value)));
    let options: String = pairs.iter().map(option).collect();
    // The API knows no ages.
    let resolved: Vec<(String, String)> = fields
        .select_with_times(&FILTERS)
        .into_iter()
        .map(|(name, value)| (name.clone(), as_recorded(&name, &value)))
        .collect();
    let resolved: Vec<(&str, &str)> = resolved.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let query = if resolved.is_empty() { String::new() } else { format!("?{}", query_text(&resolved)) };
    [format!("kafleet audit{options}"), curl_get(&format!("/v1/audit{query}"))]
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
        "cancel" | "retry" | "retry_failed" | "edit" | "start" => Some(task_path(target)),
        action if action.starts_with("bulk_") => Some(task_path(target)),
        // The drop of a task's dead letter names the letter in its reason.
        "drop" if request.reason.is_some() => Some(task_path(target)),
        "drop" | "redrive" => Some(format!("/dead-letters/{}", encoded(target))),
        "pause_type" | "resume_type" | "set_limits" | "open_circuit" | "close_circuit" | "release_circuit"
        | "forget_type" => Some(format!("/types/{}", encoded(target))),
        "set_kill_switch" | "delete_kill_switch" => Some("/kill-switches".to_owned()),
        "set_view" => Some(format!("/v/{}", encoded(target))),
        "delete_view" => Some("/v".to_owned()),
        action if action.ends_with("_schedule") => Some(format!("/schedules/{}", encoded(target))),
        _ => None,
    }
}
