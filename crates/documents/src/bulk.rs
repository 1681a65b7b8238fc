//! Documents of bulk actions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Action on many tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// Cancels open tasks and their descendants.
    Cancel,
    /// Runs ended tasks again; parents that failed only because of a descendant are skipped.
    Retry,
    /// Runs the failed tasks in the trees of ended tasks again.
    RetryFailed,
    /// Starts scheduled tasks now.
    StartNow,
}

impl BulkAction {
    pub const ALL: [Self; 4] = [Self::Cancel, Self::Retry, Self::RetryFailed, Self::StartNow];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RetryFailed => "retry_failed",
            Self::StartNow => "start_now",
        }
    }
}

/// Body of `POST /v1/bulk/preview`: an action, and either `q` or `ids`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkSelection {
    pub action: BulkAction,
    /// Search for the tasks, as in `GET /v1/tasks?q=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Ids of the tasks; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// Response of `POST /v1/bulk/preview`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkPreview {
    /// Number of tasks found that match.
    pub matching: u64,
    /// Number of these that the action would change now.
    pub changing: u64,
    /// False: the search stopped after 2 s, and there may be more.
    pub exact: bool,
    /// Number of tasks that were read.
    pub scanned: u64,
    /// Ids of the first tasks that the action would change; at most 10.
    pub sample: Vec<String>,
}

/// Body of `POST /v1/bulk`: an action, and either `q` or `ids`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    pub action: BulkAction,
    /// Search for the tasks, as in `GET /v1/tasks?q=`. Ages in it count from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Ids of the tasks; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Maximum number of tasks to change. When more would change, the action stops there and fails. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Progress, and with its counts the result, of a bulk action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkProgress {
    /// Name of the API server that runs it; empty while none does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runner: String,
    /// Position in the search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Number of tasks for which the action was requested.
    pub done: u64,
    /// Number of matching tasks to which the action does not apply, or no longer.
    pub skipped: u64,
    /// Number of tasks that cannot be retried: external tasks, and tasks without a stored record.
    pub refused: u64,
}
