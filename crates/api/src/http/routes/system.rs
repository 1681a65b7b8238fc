//! Routes of health, metrics and the API description.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::route::{Route, get, open, probe};
use super::routes;
use crate::backends::KAFKA_DEADLINE;
use crate::http::answer::{AnyJsonAnswer, TextAnswer, json_answer};
use crate::http::openapi;
use crate::http::ops::{ok_response, ready_response};
use crate::http::problem::{ApiError, Code};
use crate::service::context::RequestContext;
use crate::service::system;

pub(super) fn all() -> Vec<Route> {
    vec![
        probe("/healthz", "Liveness probe", async |_| Ok(AnyJsonAnswer(ok_response()))),
        probe("/readyz", "Readiness probe", readyz).problems([Code::NotReady]),
        probe("/metrics", "Metrics in the Prometheus text format", metrics),
        get("/v1/system", "Get versions, the memory of the store and the progress of the projection", system::system),
        open("/openapi.json", "OpenAPI description", description),
        open("/", "Web UI for `accept: text/html`, else a list of the endpoints", index),
        open("/v1", "List of endpoints", index),
    ]
}

/// Answers whether the process, the store and Kafka are ready. An incomplete store is no reason to take all APIs out of
/// service at once: they still accept tasks, and answer what they know.
async fn readyz(RequestContext { api, .. }: RequestContext) -> Result<AnyJsonAnswer, ApiError> {
    api.ops.ready()?;
    let not_ready = |error: ApiError| {
        let problem = error.document();
        let error = ApiError::new(Code::NotReady, problem.detail);
        problem.hint.into_iter().fold(error, ApiError::hint)
    };
    api.reads.check_store().await.map_err(not_ready)?;
    api.reads.event_ends(0, KAFKA_DEADLINE).await.map_err(not_ready)?;
    Ok(AnyJsonAnswer(ready_response(&api.reads.incomplete().await.map_err(not_ready)?)))
}

async fn metrics(RequestContext { api, .. }: RequestContext) -> Result<TextAnswer, ApiError> {
    Ok(TextAnswer(api.ops.render_metrics()))
}

async fn description(_: RequestContext) -> Result<AnyJsonAnswer, ApiError> {
    Ok(AnyJsonAnswer(json_answer(200, &openapi::document())))
}

/// Lists the endpoints, for clients that do not ask for a page.
async fn index(_: RequestContext) -> Result<TextAnswer, ApiError> {
    Ok(TextAnswer(index_text()))
}

pub fn index_text() -> Response {
    let mut page = format!("kafleet {}\n\nHTTP API; described by /openapi.json\n\n", env!("CARGO_PKG_VERSION"));
    for route in routes() {
        page.push_str(&format!("{:<32} {}\n", route.label(), route.summary));
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}
