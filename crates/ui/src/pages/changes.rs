//! Changes of the fleet beside its numbers: pauses, limits and kill switches from the audit log, and new versions of workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_api::service::context::After;
use kafleet_api::service::statistics::{self, AuditQuery};
use kafleet_documents::{Audit, AuditDocument, WorkerDocument, WorkerState, Workers};
use kafleet_runtime::now_ms;
use maud::{Markup, html};

use crate::parts::statistics::FleetChange;
use crate::parts::times::{millis, time_in_words};
use crate::parts::{View, counted, first_line};
use crate::visit::{Visit, stored};

/// Newest requests of which the changes are shown.
const READ_REQUESTS: usize = 200;
const HOUR_MS: i64 = 3_600_000;

/// Requests that change how the tasks of a type are run. The target is the type.
const TYPE_CHANGES: [&str; 6] =
    ["pause_type", "resume_type", "set_limits", "open_circuit", "close_circuit", "release_circuit"];
/// Further requests that change what the fleet does.
const FLEET_CHANGES: [&str; 9] = [
    "set_kill_switch",
    "delete_kill_switch",
    "create_schedule",
    "update_schedule",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "forget_type",
    "backfill_schedule",
];

/// Newest requests, which the pages of a second share; `None` if they cannot be read.
pub(super) async fn newest_requests(visit: &Visit) -> Option<Arc<Audit>> {
    let read = statistics::audit(visit.context(), AuditQuery::newest(READ_REQUESTS), After::default());
    stored(visit.live.requests.get(Some(String::new()), read)).await.ok()
}

/// Changes of a type, or of the whole fleet.
pub(super) fn changes_of(audit: Option<&Audit>, workers: &Workers, task_type: Option<&str>) -> Vec<FleetChange> {
    let requests = audit.into_iter().flat_map(|audit| &audit.requests);
    let concerns = |request: &&AuditDocument| match task_type {
        Some(name) => request.target == name && TYPE_CHANGES.contains(&&*request.action),
        None => TYPE_CHANGES.contains(&&*request.action) || FLEET_CHANGES.contains(&&*request.action),
    };
    let of_request = |request: &AuditDocument| Some(FleetChange { at_ms: millis(&request.at)?, text: line(request) });
    requests.filter(concerns).filter_map(of_request).chain(versions(workers, task_type)).collect()
}

/// Line of the audit log, such as `07:38:02 pause type echo by ada: disk full`.
fn line(request: &AuditDocument) -> String {
    let at = millis(&request.at).map_or_else(|| request.at.clone(), time_in_words);
    let by = request.by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    let reason = request.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", first_line(reason, 120)));
    format!("{at} {} {}{by}{reason}", request.action.replace('_', " "), request.target)
}

/// First start of each version among the live workers, but for the version that has run the longest.
fn versions(workers: &Workers, task_type: Option<&str>) -> Vec<FleetChange> {
    let takes = |worker: &&WorkerDocument| {
        task_type.is_none_or(|name| worker.types.iter().any(|status| status.task_type == name))
    };
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for worker in workers.workers.iter().filter(|worker| worker.state == WorkerState::Alive).filter(takes) {
        let at = first.entry(&worker.version).or_insert(&worker.started_at);
        *at = (*at).min(&worker.started_at);
    }
    let oldest = first.values().min().copied();
    let change = |(version, at): (&str, &str)| {
        let at_ms = millis(at)?;
        let text = format!("{} first of the live workers with version {version}", time_in_words(at_ms));
        Some(FleetChange { at_ms, text })
    };
    first.into_iter().filter(|(_, at)| Some(*at) != oldest).filter_map(change).collect()
}

/// Name of the user who has requested a change of a target last, if it is known.
pub(super) fn requested_by<'a>(audit: &'a Audit, action: &str, target: &str) -> Option<&'a str> {
    let is_of = |request: &&AuditDocument| request.action == action && request.target == target;
    audit.requests.iter().find(is_of)?.by.as_deref()
}

/// Number of changes in the last hour, as a link to them.
pub(super) fn last_hour(view: &View, changes: &[FleetChange]) -> Markup {
    let since = now_ms() - HOUR_MS;
    let recent = changes.iter().filter(|change| change.at_ms >= since).count() as u64;
    html! {
        @if recent > 0 {
            p.quiet #changes { a href=(view.url("/audit")) { (counted(recent, "change", "changes")) } " in the last hour" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::units::time::time_text;

    fn request(action: &str, target: &str, by: Option<&str>) -> AuditDocument {
        AuditDocument {
            at: time_text(now_ms()),
            by: by.map(str::to_owned),
            action: action.into(),
            target: target.into(),
            reason: Some("disk full".into()),
            position: "0:1".into(),
        }
    }

    fn worker(version: &str, started_at: &str) -> WorkerDocument {
        WorkerDocument {
            id: "w".into(),
            state: WorkerState::Alive,
            age_ms: 0,
            last_heartbeat_at: String::new(),
            clock_ahead_ms: 0,
            started_at: started_at.into(),
            host: String::new(),
            pid: 1,
            version: version.into(),
            held_bytes: 0,
            in_flight: 0,
            types: Vec::new(),
            running: Vec::new(),
        }
    }

    #[test]
    fn changes_are_lines_of_the_audit_log_without_requests_about_tasks() {
        let requests = vec![
            request("pause_type", "echo", Some("ada")),
            request("retry", "order-1", Some("ada")),
            request("set_kill_switch", "batch", None),
            request("pause_type", "mail", None),
        ];
        let (audit, workers) = (Audit { requests, incomplete: Vec::new() }, Workers { workers: Vec::new() });
        let of_type = changes_of(Some(&audit), &workers, Some("echo"));
        assert_eq!(of_type.len(), 1);
        assert!(of_type[0].text.ends_with(" pause type echo by ada: disk full"), "{}", of_type[0].text);
        let all = changes_of(Some(&audit), &workers, None);
        assert_eq!(all.len(), 3);
        let paused_by = |target: &str| requested_by(&audit, "pause_type", target);
        assert_eq!((paused_by("echo"), paused_by("mail")), (Some("ada"), None));
        assert_eq!(requested_by(&audit, "resume_type", "echo"), None);
        let view = View::for_tests(kafleet_config::Role::Read);
        assert!(last_hour(&view, &all).into_string().contains("<a href=\"/audit\">3 changes</a> in the last hour"));
    }

    #[test]
    fn newer_versions_of_workers_are_changes() {
        let (old, new) = ("2026-11-01T10:00:00.000Z", "2026-11-01T12:00:00.000Z");
        let workers =
            Workers { workers: vec![worker("1", old), worker("2", "2026-11-01T13:00:00.000Z"), worker("2", new)] };
        let changes = changes_of(None, &workers, None);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].text, "1 Nov 2026 12:00:00 first of the live workers with version 2");
    }
}
