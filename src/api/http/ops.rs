//! Health, readiness and metrics endpoints, and the index page.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use super::problem::{ApiError, Code};
use super::request::ApiRequest;
use super::router::{unknown_route, wrong_method};
use crate::api::backends::{KAFKA_DEADLINE, stored};
use crate::api::handlers::task::json_answer;
use crate::runtime::{Health, Shutdown};
use crate::telemetry::Metrics;

/// Dependencies of the operational endpoints.
#[derive(Clone)]
pub struct Ops {
    pub metrics: Metrics,
    pub health: Health,
    pub shutdown: Shutdown,
}

impl Ops {
    pub fn record_request(&self, route: &str, status: u16, took: Duration) {
        self.metrics.http.requests.with_label_values(&[route, &status.to_string()]).inc();
        self.metrics.http.time.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    fn ready(&self) -> Result<(), ApiError> {
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

    fn render_metrics(&self) -> Response {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.metrics.render()).into_response()
    }
}

/// Routes of a role without an API.
pub fn router(ops: Ops) -> Router {
    Router::new()
        .route("/healthz", get(|| async { ok_response() }))
        .route("/readyz", get(|State(ops): State<Ops>| async move { ops.ready().map(|()| ready_response()) }))
        .route("/metrics", get(|State(ops): State<Ops>| async move { ops.render_metrics() }))
        .fallback(|request| async move { unknown_route(&request) })
        .method_not_allowed_fallback(|request| async move { wrong_method(&request) })
        .with_state(ops)
}

fn ok_response() -> Response {
    json_answer(200, &json!({"status": "ok"}))
}

fn ready_response() -> Response {
    json_answer(200, &json!({"status": "ready"}))
}

/// `GET /healthz`: the process responds.
pub async fn healthz(_request: ApiRequest) -> Result<Response, ApiError> {
    Ok(ok_response())
}

/// `GET /readyz`: the process, the store and Kafka are ready.
pub async fn readyz(request: ApiRequest) -> Result<Response, ApiError> {
    let api = &request.api;
    api.ops.ready()?;
    let not_ready = |error: ApiError| ApiError::new(Code::NotReady, error.document().detail);
    stored(api.store.check()).await.map_err(not_ready)?;
    api.event_ends(0, KAFKA_DEADLINE).await.map_err(not_ready)?;
    Ok(ready_response())
}

/// `GET /metrics`.
pub async fn metrics(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(request.api.ops.render_metrics())
}

/// `GET /openapi.json`.
pub async fn openapi(_request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &crate::api::openapi_document()))
}

/// `GET /`: lists the endpoints.
pub async fn index(_request: ApiRequest) -> Result<Response, ApiError> {
    let mut page = format!("kafleet {}\n\nHTTP API; described by /openapi.json\n\n", env!("CARGO_PKG_VERSION"));
    for route in super::routes::routes() {
        page.push_str(&format!("{:<32} {}\n", route.label(), route.summary));
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response())
}
