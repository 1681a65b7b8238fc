//! Responses of the UI.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kafleet_api::http::problem::ApiError;
use maud::Markup;

use super::cache::{self, HTML};

/// Policy of all pages: styles, scripts and requests of this origin only, nothing inline, no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for \
    'script'; trusted-types kafleet";

pub(super) fn with_tag(mut response: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

pub(super) fn page_response(status: u16, text: &str) -> Response {
    (status_code(status), [(header::CONTENT_TYPE, HTML)], text.to_owned()).into_response()
}

pub(super) fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

pub(super) fn html_page(status: u16, page: Markup) -> Response {
    with_security_headers(page_response(status, &page.into_string()))
}

/// Redirect to a path of this host.
pub(super) fn see_other(path: &str) -> Response {
    match HeaderValue::from_str(path) {
        Ok(path) => (StatusCode::SEE_OTHER, [(header::LOCATION, path)]).into_response(),
        Err(_) => ApiError::internal().into_response(),
    }
}

pub(super) fn with_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let set = |headers: &mut HeaderMap, name: &'static str, value: &'static str| {
        if !headers.contains_key(name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    };
    set(headers, "cache-control", "no-store");
    set(headers, "content-security-policy", CONTENT_SECURITY_POLICY);
    set(headers, "x-content-type-options", "nosniff");
    set(headers, "referrer-policy", "same-origin");
    set(headers, "cross-origin-opener-policy", "same-origin");
    set(headers, "cross-origin-resource-policy", "same-origin");
    headers.insert("kafleet-build", HeaderValue::from_static(cache::build()));
    response
}
