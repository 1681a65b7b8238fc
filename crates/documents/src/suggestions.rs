//! Documents of suggestions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TextSpan;

/// Response of `GET /v1/suggestions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Suggestions {
    /// Part of the search that a suggestion replaces.
    pub replace: TextSpan,
    /// At most 10; the commonest values first.
    pub suggestions: Vec<Suggestion>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Qualifier with its colon, or value, quoted if it needs quotes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Suggestion {
    pub text: String,
    #[serde(default)]
    pub description: Option<String>,
    /// Number of tasks with a type or state, or of the newest 1,000 root tasks with another value.
    #[serde(default)]
    pub tasks: Option<u64>,
}
