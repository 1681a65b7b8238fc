//! Health, readiness and metrics of a process.

use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::problem::{ApiError, Code};
use crate::api::http::response::json_answer;
use crate::runtime::{Health, Shutdown};
use crate::telemetry::Metrics;

/// Dependencies of the operational endpoints.
#[derive(Clone)]
pub(crate) struct Ops {
    pub metrics: Metrics,
    pub health: Health,
    pub shutdown: Shutdown,
}

impl Ops {
    pub(crate) fn record_request(&self, route: &str, status: u16, took: Duration) {
        self.metrics.http.requests.with_label_values(&[route, &status.to_string()]).inc();
        self.metrics.http.time.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        let mut reasons = self.health.reasons();
        if self.shutdown.is_draining() {
            reasons.push(("process".into(), "stopping".into()));
        }
        if reasons.is_empty() {
            return Ok(());
        }
        let details: Vec<String> = reasons.iter().map(|(part, why)| format!("{part}: {why}")).collect();
        Err(ApiError::new(Code::NotReady, details.join("; ")))
    }

    pub(crate) fn render_metrics(&self) -> Response {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.metrics.render()).into_response()
    }
}

pub(crate) fn ok_response() -> Response {
    json_answer(200, &json!({"status": "ok"}))
}

pub(crate) fn ready_response() -> Response {
    json_answer(200, &json!({"status": "ready"}))
}
