//! Documents for listing and resolving dead letters.

use std::fmt;

use kafleet_model::event::ErrorInfo;
use kafleet_model::json::RawJson;
use kafleet_model::query::quoted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A record that kafleet will not retry on its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetter {
    /// `<type>:<partition>:<offset>` in the type's dead-letter topic.
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    /// Task id from the record, if it has one. Without `run` the record is not a task, because of another header.
    pub task: Option<String>,
    /// Run of the task that the record belongs to; null if the record could not be read as a task.
    #[serde(default)]
    pub run: Option<u32>,
    /// Stable reason code: `bad_json`, `schema`, `exhausted`, …
    pub code: String,
    /// Kind of the error with which the task ended; null if it is not known, as of a record that is not a task.
    #[serde(default)]
    pub kind: Option<String>,
    pub error: String,
    /// JSON pointer into the params.
    pub pointer: Option<String>,
    pub at: String,
    pub worker: Option<String>,
    /// Origin of the record (`topic/partition:offset`).
    pub source: Option<String>,
    /// The dead letter does not contain the record, which was too large. The record is read from `source` as long as
    /// Kafka retains it.
    #[serde(default)]
    pub by_reference: bool,
}

impl DeadLetter {
    /// Kind and message of the error, for people. The kind is left out if the code says the same.
    pub fn error_text(&self) -> String {
        match self.kind.as_deref().filter(|kind| *kind != self.code) {
            Some(kind) => ErrorInfo::new(kind, &*self.error, 0).text().into_owned(),
            None => self.error.clone(),
        }
    }
}

/// `GET /v1/dead-letters`, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterPage {
    pub letters: Vec<DeadLetter>,
    /// Cursor of the next page; null on the last page.
    pub next: Option<String>,
    /// Records scanned to fill this page, including records that did not match.
    pub scanned: u64,
    /// Events partitions of which the store has lost data, or which no tracker projects: dead letters are listed whose tasks
    /// have moved on.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Resolution of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterOutcome {
    Dropped,
    Redriven,
    /// The task has started a later run or ended in another way.
    Superseded,
}

/// `GET /v1/dead-letters/{letter}`: a dead letter with its original record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterDetail {
    pub letter: DeadLetter,
    /// Resolution; null while the dead letter is unresolved.
    pub outcome: Option<DeadLetterOutcome>,
    /// Record key; base64 if it is not UTF-8.
    pub key: Option<String>,
    pub headers: Vec<(String, Option<String>)>,
    /// Record value, if it is JSON.
    pub params: Option<RawJson>,
    /// Record value in base64, if it is not JSON.
    #[serde(default)]
    pub value_base64: Option<String>,
}

/// Maximum of [`DeadLetterSelection::limit`].
pub const MAX_SELECTED: usize = 1_000;

/// `POST /v1/dead-letters/drop`: filter for dead letters; the newest `limit` matches are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterSelection {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Only letters of tasks that ended with an error of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only letters of tasks that ended with this error: its `error` in `GET /v1/failures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only records dead-lettered at or after this time (RFC 3339 or epoch milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Only records dead-lettered before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Maximum number of dead letters, 1 to 1,000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Reason, recorded in the histories of the tasks and in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Dead letters of a type for a bulk action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterFilter {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Only letters of tasks that ended with an error of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only letters of tasks that ended with this error: its `error` in `GET /v1/failures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only records dead-lettered at or after this time (RFC 3339 or epoch milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Only records dead-lettered before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl DeadLetterSelection {
    /// Conditions of the selection.
    pub fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter {
            task_type: self.task_type.clone(),
            code: self.code.clone(),
            kind: self.kind.clone(),
            error: self.error.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
        }
    }
}

impl DeadLetterFilter {
    /// Names and values of the conditions, as parameters of a request and options of the command line.
    pub fn conditions(&self) -> Vec<(&'static str, &str)> {
        let optional = [
            ("code", &self.code),
            ("kind", &self.kind),
            ("error", &self.error),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        std::iter::once(("type", &*self.task_type)).chain(optional).collect()
    }
}

/// The conditions, in the form of a search.
impl fmt::Display for DeadLetterFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions: Vec<String> =
            self.conditions().into_iter().map(|(name, value)| format!("{name}:{}", quoted(value))).collect();
        f.write_str(&conditions.join(" "))
    }
}

/// `POST /v1/dead-letters/{letter}/redrive`: changes of the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedriveDeadLetter {
    /// Params instead of those of the record; checked against the schema of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<RawJson>,
    /// Reason, recorded in the history of the task and in the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/dead-letters/{letter}/drop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DropDeadLetter {
    /// Reason, recorded in the history of the task and in the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Result per dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterResults {
    pub done: Vec<String>,
    pub refused: Vec<DeadLetterRejection>,
    /// More dead letters match; repeat the request.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterRejection {
    pub letter: String,
    #[serde(rename = "why")]
    pub reason: String,
}
