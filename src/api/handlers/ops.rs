//! Health, readiness and metrics endpoints, and the index page.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::api::backends::KAFKA_DEADLINE;
use crate::api::http::openapi;
use crate::api::http::ops::{ok_response, ready_response};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::http::response::json_answer;
use crate::api::http::routes::routes;

/// `GET /healthz`: the process responds.
pub(crate) async fn healthz(_request: ApiRequest) -> Result<Response, ApiError> {
    Ok(ok_response())
}

/// `GET /readyz`: the process, the store and Kafka are ready. An incomplete store is no reason to take all APIs out of
/// service at once: they still accept tasks, and answer what they know.
pub(crate) async fn readyz(request: ApiRequest) -> Result<Response, ApiError> {
    let api = &request.api;
    api.ops.ready()?;
    let not_ready = |error: ApiError| {
        let problem = error.document();
        let error = ApiError::new(Code::NotReady, problem.detail);
        problem.hint.into_iter().fold(error, ApiError::hint)
    };
    api.reads.check_store().await.map_err(not_ready)?;
    api.reads.event_ends(0, KAFKA_DEADLINE).await.map_err(not_ready)?;
    Ok(ready_response(&api.reads.incomplete().await.map_err(not_ready)?))
}

/// `GET /metrics`.
pub(crate) async fn metrics(request: ApiRequest) -> Result<Response, ApiError> {
    Ok(request.api.ops.render_metrics())
}

/// `GET /openapi.json`.
pub(crate) async fn openapi(_request: ApiRequest) -> Result<Response, ApiError> {
    Ok(json_answer(200, &openapi::document()))
}

/// `GET /v1`, and `GET /` for clients that do not ask for a page: lists the endpoints.
pub(crate) async fn index(_request: ApiRequest) -> Result<Response, ApiError> {
    Ok(index_text())
}

pub(crate) fn index_text() -> Response {
    let mut page = format!("kafleet {}\n\nHTTP API; described by /openapi.json\n\n", env!("CARGO_PKG_VERSION"));
    for route in routes() {
        page.push_str(&format!("{:<32} {}\n", route.label(), route.summary));
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}
