//! Documents of bulk actions.

use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeadLetterFilter, Status};

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
    /// Starts tasks now that wait for their start or their next attempt.
    StartNow,
    /// Runs the tasks of dead letters again, also with changed params.
    Redrive,
}

impl BulkAction {
    pub const ALL: [Self; 5] = [Self::Cancel, Self::Retry, Self::RetryFailed, Self::StartNow, Self::Redrive];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RetryFailed => "retry_failed",
            Self::StartNow => "start_now",
            Self::Redrive => "redrive",
        }
    }
}

/// Body of `POST /v1/bulk/preview`: an action, and either `q` or `ids`; for `redrive`, either `letters` or `ids`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkSelection {
    pub action: BulkAction,
    /// Search for the tasks, as in `GET /v1/tasks?q=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Ids of the tasks, or for `redrive` of the dead letters; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Dead letters to redrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letters: Option<DeadLetterFilter>,
    /// Merge patch (RFC 7386) of the params of each redriven task; checked against the schema of its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<RawJson>,
}

/// Response of `POST /v1/bulk/preview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkPreview {
    /// Number of tasks, or of dead letters, found that match.
    pub matching: u64,
    /// Number of these that the action would change now.
    pub changing: u64,
    /// False: the search stopped after 2 s, and there may be more.
    pub exact: bool,
    /// Number of tasks that were read.
    pub scanned: u64,
    /// Ids of the first tasks, or dead letters, that the action would change; at most 10.
    pub sample: Vec<String>,
    /// The first tasks that the action would change; at most 20.
    #[serde(default)]
    pub tasks: Vec<BulkSample>,
    /// Reasons for which the other tasks found would stay as they are.
    #[serde(default)]
    pub unchanged: Vec<UnchangedTasks>,
}

/// Task that a bulk action would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkSample {
    /// Id of the task; null for a dead letter that is not a task.
    pub id: Option<String>,
    /// State of the task, if its record is known.
    pub state: Option<State>,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    pub name: Option<String>,
    pub error: Option<String>,
    /// Dead letter that would be redriven.
    #[serde(default)]
    pub letter: Option<String>,
}

/// Matching tasks that a bulk action would not change, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnchangedTasks {
    pub cause: String,
    pub tasks: u64,
    /// Cause in detail of the first of them, if it is refused.
    #[serde(default)]
    pub example: Option<String>,
}

/// Specification of a bulk action: the `options` of its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkOptions {
    pub action: BulkAction,
    /// Search for the tasks, with absolute times; empty for dead letters.
    pub q: String,
    /// Filter of the dead letters, with absolute times.
    #[serde(default)]
    pub letters: Option<DeadLetterFilter>,
    /// Ids of dead letters, instead of a filter.
    #[serde(default)]
    pub ids: Vec<String>,
    /// Merge patch of the params.
    #[serde(default)]
    pub patch: Option<RawJson>,
    /// Maximum number of tasks to change.
    pub limit: u64,
    /// Name of the token.
    #[serde(default)]
    pub by: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
    /// Error of the first matching task, if the search names errors.
    #[serde(default)]
    pub error: Option<String>,
}

impl BulkOptions {
    /// Reads the specification from the task of a bulk action.
    pub fn of(task: &Status) -> Option<Self> {
        serde_json::from_str(task.fields.rules.options.as_ref()?.text()).ok()
    }

    /// Tasks or dead letters, in the form of a search.
    pub fn selection(&self) -> String {
        match (&self.letters, self.ids.is_empty()) {
            (Some(letters), _) => letters.to_string(),
            (None, false) => self.ids.join(" "),
            (None, true) => self.q.clone(),
        }
    }
}

/// Body of `POST /v1/bulk`: an action, and either `q` or `ids`; for `redrive`, either `letters` or `ids`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    pub action: BulkAction,
    /// Search for the tasks, as in `GET /v1/tasks?q=`. Ages in it count from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// Ids of the tasks, or for `redrive` of the dead letters; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Dead letters to redrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letters: Option<DeadLetterFilter>,
    /// Merge patch (RFC 7386) of the params of each redriven task; checked against the schema of its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<RawJson>,
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
    /// Number of tasks that cannot be retried: external tasks, tasks without a stored record, and those whose changed
    /// params are invalid.
    pub refused: u64,
    /// Ids of the first tasks for which the action was requested; at most 100, and 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The first of the refused tasks; at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<BulkRefusal>,
}

impl BulkProgress {
    /// Reads the progress from the task of a bulk action.
    pub fn of(task: &Status) -> Self {
        let progress = task.progress.as_ref().and_then(|progress| serde_json::from_str(progress.text()).ok());
        progress.unwrap_or_default()
    }
}

/// Task that a bulk action cannot change, and the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkRefusal {
    /// Id of the task, or of the dead letter.
    pub id: String,
    pub cause: String,
}
