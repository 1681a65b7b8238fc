//! Self-check of debug builds: a successful JSON response must match its description in `/openapi.json`.
//!
//! All tests that use the API run it, so that a document and its description cannot drift apart unnoticed. Release
//! builds do not contain it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, to_bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::Value;

use super::answer::ResponseBody;
use super::openapi;
use super::problem::ApiError;
use super::routes::route::Route;

static DESCRIPTION: LazyLock<Value> = LazyLock::new(openapi::document);
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// Returns the response, or an internal error that names the violation if it differs from its description.
pub(crate) async fn checked(route: &'static Route, response: Response) -> Response {
    if !matches!(route.response, ResponseBody::Json(_)) {
        return response;
    }
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|media| media == "application/json");
    if !is_json || !response.status().is_success() {
        return response;
    }
    let (head, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return ApiError::internal().into_response() };
    match violation(route, head.status.as_u16(), &bytes) {
        None => Response::from_parts(head, Body::from(bytes)),
        Some(violation) => {
            tracing::error!(route = route.label(), violation, "a response does not match openapi.json");
            ApiError::internal().hint(format!("{}: {violation}", route.label())).into_response()
        }
    }
}

fn violation(route: &Route, status: u16, body: &[u8]) -> Option<String> {
    if !route.successes.iter().any(|(described, _)| *described == status) {
        return Some(format!("status {status} is not described"));
    }
    // A number beyond the range of floating-point numbers is exact in the response, but no value for a validator.
    let document: Value = serde_json::from_slice(body).ok()?;
    let validator = match validator(route, status) {
        Ok(validator) => validator,
        Err(reason) => return Some(reason),
    };
    validator.iter_errors(&document).next().map(|error| format!("{error} at `{}`", error.instance_path()))
}

fn validator(route: &Route, status: u16) -> Result<Arc<Validator>, String> {
    let mut validators = VALIDATORS.lock();
    if let Some(validator) = validators.get(&route.label()) {
        return Ok(validator.clone());
    }
    let method = route.method().to_ascii_lowercase();
    let response = &DESCRIPTION["paths"][route.path][&method]["responses"][status.to_string()];
    let mut schema = response["content"]["application/json"]["schema"].clone();
    if !schema.is_object() {
        return Err("no JSON response is described".into());
    }
    schema["components"] = DESCRIPTION["components"].clone();
    let validator = jsonschema::validator_for(&schema).map(Arc::new).map_err(|error| error.to_string())?;
    validators.insert(route.label(), validator.clone());
    Ok(validator)
}
