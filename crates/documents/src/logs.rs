//! Documents of logs and attachments.

use kafleet_model::event::log_line::LogStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /v1/tasks/{id}/log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogDocument {
    pub id: String,
    /// Number of the first line on this page; the oldest line ever logged is 0.
    pub from: u64,
    pub lines: Vec<LogLine>,
    pub total: u64,
    /// Number of lines that the worker dropped.
    pub dropped: u32,
}

/// Line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Time at which the line was sent.
    pub at: String,
    /// Run of the task to which the line belongs.
    pub run: u32,
    /// Number of the attempt that wrote the line; 0 for a line that was appended from outside of an attempt.
    pub attempt: u32,
    /// Stream to which the attempt or its process wrote the line; null if the handler, its SDK or a client logged it.
    #[serde(default)]
    pub stream: Option<LogStream>,
    pub text: String,
}

/// Body of `POST /v1/tasks/{id}/log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendLog {
    /// Lines to append; text with line breaks is split. At most 1,000 lines of 16 KiB each, and 64 KiB in total.
    #[schemars(extend("minItems" = 1))]
    pub lines: Vec<String>,
}

/// Result of appending lines to a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogAppended {
    pub id: String,
    /// Number of lines written.
    pub lines: usize,
    /// A read with `?after=` this position includes the lines.
    pub position: String,
}

/// Response of `GET /v1/tasks/{id}/attachments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attachments {
    pub id: String,
    pub attachments: Vec<AttachmentDocument>,
}

/// Small value stored with a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachmentDocument {
    pub name: String,
    /// Media type.
    pub media: String,
    pub bytes: u32,
    pub at: String,
}
