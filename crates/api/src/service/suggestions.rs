//! Completion of a search.

use kafleet_documents::Suggestions;

use super::context::RequestContext;
use crate::http::problem::ApiError;
use crate::read::suggest::suggest;

/// Unfinished search.
pub(crate) struct UnfinishedSearch {
    pub text: String,
    /// Position of the text cursor, in characters.
    pub at: usize,
}

pub(crate) async fn suggestions(
    RequestContext { api, .. }: RequestContext,
    UnfinishedSearch { text, at }: UnfinishedSearch,
) -> Result<Suggestions, ApiError> {
    suggest(&api.reads, &api.recent_values, api.types.declared_names(), &text, at).await
}
