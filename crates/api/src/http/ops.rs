//! Health, readiness and metrics of a process.

use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use kafleet_runtime::error_text::split_hint;
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::Metrics;
use serde_json::json;

use super::problem::{ApiError, Code};
use crate::http::answer::json_answer;

/// Dependencies of the operational endpoints.
#[derive(Clone)]
pub struct Ops {
    pub metrics: Metrics,
    pub health: Health,
    pub shutdown: Shutdown,
    /// Start of the process's server, epoch milliseconds.
    pub started_ms: i64,
}

impl Ops {
    pub fn record_request(&self, route: &str, status: u16, took: Duration) {
        self.metrics.http.requests.with_label_values(&[route, &status.to_string()]).inc();
        self.metrics.http.time.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    pub fn ready(&self) -> Result<(), ApiError> {
        let mut reasons = self.health.reasons();
        if self.shutdown.is_draining() {
            reasons.push(("process".into(), "stopping".into()));
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(not_ready(&reasons))
    }

    pub(crate) fn render_metrics(&self) -> Response {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.metrics.render()).into_response()
    }
}

/// Describes the parts that are not ready: each reason once with its parts, and each hint once.
fn not_ready(reasons: &[(String, String)]) -> ApiError {
    let (mut by_reason, mut hints) = (Vec::<(&str, Vec<&str>)>::new(), Vec::new());
    for (part, text) in reasons {
        let (reason, hint) = split_hint(text);
        match by_reason.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, parts)) => parts.push(part),
            None => by_reason.push((reason, vec![part])),
        }
        hints.extend(hint.filter(|hint| !hints.contains(hint)));
    }
    let details = by_reason.into_iter().map(|(reason, parts)| format!("{}: {reason}", join_parts(&parts)));
    let error = ApiError::new(Code::NotReady, details.collect::<Vec<_>>().join("; "));
    if hints.is_empty() { error } else { error.hint(hints.join("; ")) }
}

/// Lists parts. Numbered parts of one kind share their name: `events partitions 0, 1, 2`.
fn join_parts(parts: &[&str]) -> String {
    let numbered = |part: &str| {
        let (name, number) = part.rsplit_once(' ')?;
        Some((name.to_owned(), number.parse::<u32>().ok()?))
    };
    let mut kinds: Vec<(String, Vec<u32>)> = Vec::new();
    for part in parts {
        let (name, number) = numbered(part).map_or(((*part).to_owned(), None), |(name, number)| (name, Some(number)));
        match kinds.iter_mut().find(|(other, numbers)| *other == name && !numbers.is_empty()) {
            Some((_, numbers)) => numbers.extend(number),
            None => kinds.push((name, Vec::from_iter(number))),
        }
    }
    let shown = kinds.into_iter().map(|(name, mut numbers)| {
        numbers.sort_unstable();
        let listed: Vec<String> = numbers.iter().map(u32::to_string).collect();
        match listed.len() {
            0 => name,
            1 => format!("{name} {}", listed[0]),
            _ => format!("{name}s {}", listed.join(", ")),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

pub(crate) fn ok_response() -> Response {
    json_answer(200, &json!({"status": "ok"}))
}

/// Response of a process that is ready. `incomplete`: events partitions that the store does not cover.
pub(crate) fn ready_response(incomplete: &[u32]) -> Response {
    if incomplete.is_empty() {
        return json_answer(200, &json!({"status": "ready"}));
    }
    let reason = "the store has lost data of these events partitions, or no tracker projects them";
    json_answer(200, &json!({"status": "degraded", "incomplete": incomplete, "reason": reason}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_with_the_same_reason_share_it_and_its_hint() {
        let evicts = "redis evicts keys\n\nhint: set maxmemory-policy to noeviction";
        let reasons = [
            ("control", "cannot be read"),
            ("events partition 0", evicts),
            ("events partition 10", evicts),
            ("events partition 2", evicts),
            ("events partition 3", "unreachable"),
            ("tracker's topics", evicts),
        ];
        let problem = not_ready(&reasons.map(|(part, error)| (part.to_owned(), error.to_owned()))).document();
        assert_eq!(
            problem.detail,
            "control: cannot be read; events partitions 0, 2, 10, tracker's topics: redis evicts keys; \
             events partition 3: unreachable"
        );
        assert_eq!(problem.hint.as_deref(), Some("set maxmemory-policy to noeviction"));
        assert_eq!(not_ready(&[("tracker".into(), "waiting".into())]).document().hint, None);
    }
}
