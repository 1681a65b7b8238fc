//! Router of the REST API: from an HTTP request to the function that answers it.
//!
//! Each request passes these steps: host and token (`auth.rs`), query and content type, the body within a memory budget
//! (`request.rs`), then [`Route::respond`], which reads the arguments of the service and calls it. An error of any step
//! becomes a problem document, a panic a 500. Metrics and common headers are added to every response.
//!
//! Invariant: access is checked before the body is read, so that a caller without a token costs no memory. Requests to
//! unknown paths share one metric label; otherwise a scanner could create any number of time series.
//!
//! Read next: `routes/route.rs` (the table of endpoints), then `input.rs` (arguments).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use futures::FutureExt;
use kafleet_config::Role;
use kafleet_model::task::id::{TaskId, clip};
use tokio::time::Instant;

use super::input::RequestBody;
use super::ops::{Ops, ok_response, ready_response};
use super::problem::{ApiError, Code};
use super::request::{ApiRequest, Query, check_media, check_optional_media, read_body};
use super::routes::route::{Route, Verb};
use super::routes::routes;
use crate::pages::Pages;
use crate::service::context::RequestContext;
use crate::state::Api;

/// Metric label of requests without a route.
const UNMATCHED: &str = "unmatched";

/// Routes of the endpoints and of the pages beside them.
pub(crate) fn router(api: &Arc<Api>, pages: &Option<Pages>) -> Router {
    let has_page = |path: &str| path == "/" && pages.as_ref().is_some_and(|pages| pages.has_root);
    let mut router = Router::new();
    for route in routes().filter(|route| !has_page(route.path)) {
        let filter = match route.verb {
            Verb::Get => MethodFilter::GET,
            Verb::Post => MethodFilter::POST,
            Verb::Put => MethodFilter::PUT,
            Verb::Patch => MethodFilter::PATCH,
            Verb::Delete => MethodFilter::DELETE,
        };
        let handler = move |State(api), segments, request| dispatch(api, route, segments, request);
        router = router.route(route.path, on(filter, handler));
    }
    let missing = pages.as_ref().map(|pages| pages.missing);
    let (fallback_api, fallback_ops) = (api.clone(), api.ops.clone());
    let method_ops = api.ops.clone();
    let page_routes = pages.as_ref().map(|pages| pages.router.clone()).unwrap_or_default();
    router
        .with_state(api.clone())
        .merge(page_routes)
        .fallback(move |request| {
            let page = missing.and_then(|page| page(&fallback_api, &request));
            std::future::ready(page.unwrap_or_else(|| unmatched(&fallback_ops, unknown_route(&request))))
        })
        .method_not_allowed_fallback(move |request| std::future::ready(unmatched(&method_ops, wrong_method(&request))))
}

type Segments = Result<RawPathParams, RawPathParamsRejection>;

async fn dispatch(api: Arc<Api>, route: &'static Route, segments: Segments, request: Request) -> Response {
    let started = Instant::now();
    let path = request.uri().path().to_owned();
    let handle = AssertUnwindSafe(handle(api.clone(), route, segments, request)).catch_unwind().await;
    let response = match handle {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => error.into_response(),
        Err(_) => {
            tracing::error!(route = route.path, path, "request handler panicked");
            ApiError::internal().into_response()
        }
    };
    #[cfg(debug_assertions)]
    let response = super::self_check::checked(route, response).await;
    let status = response.status().as_u16();
    let took = started.elapsed();
    api.ops.record_request(&route.label(), status, took);
    tracing::debug!(route = route.path, path, status, took_ms = took.as_millis() as u64, "answered");
    with_common_headers(response)
}

async fn handle(
    api: Arc<Api>,
    route: &'static Route,
    segments: Segments,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    if !route.any_host {
        api.access.current().check_host(&head.headers)?;
    }
    let access = api.access.current();
    let token = route.role.map(|role| access.check(&head.headers, role)).transpose()?.flatten();
    let by: Option<Arc<str>> = token.map(|token| token.name.as_str().into());
    let role = token.map_or(Role::Admin, |token| token.role);
    let segments = segments.map_err(|error| ApiError::new(Code::BadRequest, format!("malformed path: {error}")))?;
    let segments: Vec<String> = segments.iter().map(|(_, value)| value.to_owned()).collect();
    let query = Query::read(&head.uri, &route.query)?;
    let (body, memory) = match route.request {
        RequestBody::Nothing => {
            // Pages of other sites can send such requests too.
            if !head.method.is_safe() {
                check_optional_media(&head.headers)?;
            }
            (Default::default(), None)
        }
        RequestBody::Bytes | RequestBody::Json(_) | RequestBody::JsonOrLines(_) | RequestBody::MaybeJson(_) => {
            match route.request {
                RequestBody::MaybeJson(_) => check_optional_media(&head.headers)?,
                RequestBody::Bytes => {}
                _ => check_media(&head.headers, matches!(route.request, RequestBody::JsonOrLines(_)))?,
            }
            let (body, memory) = read_body(&api, &head.headers, body).await?;
            (body, Some(memory))
        }
    };
    let (context, segments) = (RequestContext { api, by, role }, segments.into_iter());
    route.respond(ApiRequest { context, segments, query, headers: head.headers, body, memory }).await
}

/// Adds the headers common to all responses.
fn with_common_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    // A stream has a stricter value.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn unmatched(ops: &Ops, error: ApiError) -> Response {
    let response = error.into_response();
    ops.record_request(UNMATCHED, response.status().as_u16(), std::time::Duration::ZERO);
    with_common_headers(response)
}

pub(crate) fn unknown_route(request: &Request) -> ApiError {
    // An empty id leaves only the slash before it.
    match request.uri().path() {
        "/v1/tasks/" => {
            let reason = TaskId::parse("").err().map(|reason| reason.to_string()).unwrap_or_default();
            return ApiError::new(Code::BadId, reason);
        }
        path if path.starts_with("/v1/") && path.ends_with('/') => {
            let reason = format!("the path ends after `{}`, where a name is required", clip(path));
            return ApiError::new(Code::BadRequest, reason);
        }
        _ => {}
    }
    ApiError::new(Code::UnknownRoute, format!("there is no endpoint `{}`", clip(request.uri().path())))
        .hint("GET /openapi.json describes all endpoints")
}

pub(crate) fn wrong_method(request: &Request) -> ApiError {
    ApiError::new(
        Code::MethodNotAllowed,
        format!("`{}` does not support {}", clip(request.uri().path()), request.method()),
    )
    .hint("the `allow` header lists the supported methods")
}

/// Routes of a role without an API.
pub(crate) fn ops_router(ops: Ops) -> Router {
    Router::new()
        .route("/healthz", get(|| async { ok_response() }))
        .route("/readyz", get(|State(ops): State<Ops>| async move { ops.ready().map(|()| ready_response(&[])) }))
        .route("/metrics", get(|State(ops): State<Ops>| async move { ops.render_metrics() }))
        .fallback(|request| async move { unknown_route(&request) })
        .method_not_allowed_fallback(|request| async move { wrong_method(&request) })
        .with_state(ops)
}
