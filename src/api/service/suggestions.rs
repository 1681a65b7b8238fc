//! Completion of a search.

use super::context::Context;
use crate::api::http::problem::ApiError;
use crate::api::read::suggest::suggest;
use crate::documents::Suggestions;

/// Unfinished search.
pub(crate) struct UnfinishedSearch {
    pub text: String,
    /// Position of the text cursor, in characters.
    pub at: usize,
}

pub(crate) async fn suggestions(
    Context { api, .. }: Context,
    UnfinishedSearch { text, at }: UnfinishedSearch,
) -> Result<Suggestions, ApiError> {
    suggest(&api.reads, &api.recent_values, api.types.declared.names(), &text, at).await
}
