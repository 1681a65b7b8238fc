//! `GET /v1/suggestions`: completes a search.

use axum::response::Response;

use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::api::http::response::json_answer;
use crate::api::read::query::MAX_QUERY_BYTES;
use crate::api::read::suggest::suggest;
use crate::api::state::Api;

pub(crate) async fn suggestions(request: ApiRequest) -> Result<Response, ApiError> {
    let text = request.query.text("q").unwrap_or_default();
    let at = request.query.number("at", text.chars().count(), 0..=MAX_QUERY_BYTES)?;
    let Api { reads, recent_values, types, .. } = &*request.api;
    Ok(json_answer(200, &suggest(reads, recent_values, types.declared.names(), text, at).await?))
}
