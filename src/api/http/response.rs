//! JSON responses.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::ApiError;

/// Maximum page size of task lists.
pub(crate) const MAX_PAGE: usize = 200;
/// Default page size of task lists.
pub(crate) const PAGE: usize = 50;

pub(crate) fn json_answer<T: Serialize>(status: u16, document: &T) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_vec(document) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode a response as JSON");
            ApiError::internal().into_response()
        }
    }
}
