//! A request becomes a call: who is it, what does it ask, is it well-formed; and whatever goes wrong becomes a problem
//! document.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures::FutureExt;
use tokio::time::Instant;

use super::ops::Ops;
use super::problem::{ApiError, Code};
use super::request::{ApiRequest, Query, check_media, check_optional_media};
use super::routes::{Route, Takes, Verb, routes};
use crate::api::Api;
use crate::model::task::id::{TaskId, clip};

/// The label of requests that no route takes.
const UNMATCHED: &str = "unmatched";

pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in routes() {
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
    let counted = api.ops.clone();
    let counted_too = api.ops.clone();
    router
        .fallback(move |request| std::future::ready(unmatched(&counted, unknown_route(&request))))
        .method_not_allowed_fallback(move |request| std::future::ready(unmatched(&counted_too, wrong_method(&request))))
        .with_state(api)
}

type Segments = Result<RawPathParams, RawPathParamsRejection>;

async fn dispatch(api: Arc<Api>, route: &'static Route, segments: Segments, request: Request) -> Response {
    let begun = Instant::now();
    let path = request.uri().path().to_owned();
    let answer = AssertUnwindSafe(answer(api.clone(), route, segments, request)).catch_unwind().await;
    let response = match answer {
        Ok(Ok(response)) => response,
        Ok(Err(refusal)) => refusal.into_response(),
        Err(_) => {
            tracing::error!(route = route.path, path, "a request panicked");
            ApiError::internal().into_response()
        }
    };
    let status = response.status().as_u16();
    let took = begun.elapsed();
    api.ops.count(&route.label(), status, took);
    tracing::debug!(route = route.path, path, status, took_ms = took.as_millis() as u64, "answered");
    finished(response)
}

async fn answer(api: Arc<Api>, route: &'static Route, segments: Segments, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    if !route.any_host {
        api.access.check_host(&head.headers)?;
    }
    let token = route.role.map(|role| api.access.check(&head.headers, role)).transpose()?.flatten();
    let by: Option<Arc<str>> = token.map(Into::into);
    let segments = segments.map_err(|why| ApiError::new(Code::BadRequest, format!("the path cannot be read: {why}")))?;
    let mut segments = segments.iter().map(|(_, value)| value.to_owned());
    let (segment, name) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    let query = Query::read(&head.uri, route.query)?;
    let (body, room) = match route.takes {
        Takes::Nothing => (Default::default(), None),
        Takes::Bytes | Takes::Json(_) | Takes::JsonOrLines(_) | Takes::MaybeJson(_) => {
            match route.takes {
                Takes::MaybeJson(_) => check_optional_media(&head.headers)?,
                Takes::Bytes => {}
                _ => check_media(&head.headers, matches!(route.takes, Takes::JsonOrLines(_)))?,
            }
            let (body, room) = api.read_body(&head.headers, body).await?;
            (body, Some(room))
        }
    };
    (route.run)(ApiRequest { api, by, segment, name, query, headers: head.headers, body, room }).await
}

/// Headers that every answer has.
fn finished(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn unmatched(ops: &Ops, refusal: ApiError) -> Response {
    let response = refusal.into_response();
    ops.count(UNMATCHED, response.status().as_u16(), std::time::Duration::ZERO);
    finished(response)
}

pub fn unknown_route(request: &Request) -> ApiError {
    // An empty id leaves nothing but the slash before it.
    match request.uri().path() {
        "/v1/tasks/" => {
            let why = TaskId::parse("").err().map(|why| why.to_string()).unwrap_or_default();
            return ApiError::new(Code::BadId, why);
        }
        path if path.starts_with("/v1/") && path.ends_with('/') => {
            let why = format!("the path ends behind `{}`, where a name is needed", clip(path));
            return ApiError::new(Code::BadRequest, why);
        }
        _ => {}
    }
    ApiError::new(Code::UnknownRoute, format!("there is no `{}`", clip(request.uri().path())))
        .hint("GET /openapi.json lists every call")
}

pub fn wrong_method(request: &Request) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("`{}` cannot be called with {}", clip(request.uri().path()), request.method()))
        .hint("the header `allow` says with which")
}
