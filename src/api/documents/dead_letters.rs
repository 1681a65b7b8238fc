//! Dead letters: what is shown of them, and what is done with them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::json::RawJson;

/// A record that is not tried again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetter {
    /// `<type>:<partition>:<offset>` in its dead-letter topic.
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    /// The id that the record names, where it names one.
    pub task: Option<String>,
    /// The run of that task that the record was of.
    #[serde(default)]
    pub run: Option<u32>,
    /// Stable: `bad_json`, `schema`, `exhausted`, …
    pub code: String,
    pub error: String,
    /// Where in the params (JSON pointer).
    pub pointer: Option<String>,
    pub at: String,
    pub worker: Option<String>,
    /// Where the record came from (`topic/partition:offset`).
    pub source: Option<String>,
    /// The letter holds no record: it was too large, and is read from its source for as long as that is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_reference: bool,
}

/// `GET /v1/dead`: newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadPage {
    pub letters: Vec<DeadLetter>,
    /// None: this is the last page.
    pub next: Option<String>,
    /// Records looked at to fill this page, those that are not listed included.
    pub scanned: u64,
}

/// What has become of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LetterOutcome {
    Dropped,
    Redriven,
    /// Its task began a later run without it, or ended otherwise.
    MovedOn,
}

/// `GET /v1/dead/{letter}`: with the original record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadRecord {
    pub letter: DeadLetter,
    /// What has become of it; none: it waits to be redriven or dropped.
    pub outcome: Option<LetterOutcome>,
    /// The record's own key; base64 where it is not UTF-8.
    pub key: Option<String>,
    pub headers: Vec<(String, Option<String>)>,
    /// The value, where it is JSON.
    pub params: Option<RawJson>,
    /// The value in base64, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// `POST /v1/dead/redrive` and `/drop`: which letters; at most `limit`, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadSelection {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Given up at this time or later (RFC 3339, or epoch milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Given up before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// What became of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadOutcome {
    pub done: Vec<String>,
    pub refused: Vec<DeadRefusal>,
    /// There are more such letters: call again.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadRefusal {
    pub letter: String,
    pub why: String,
}
