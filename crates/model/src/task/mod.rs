//! Record on a task topic: params as the value, everything else in CloudEvents headers, all of them optional.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::json::RawJson;
pub use super::retry::RunProgress;
use super::trace::{Origin, SpanContext};
use super::unique::UniqueRule;
pub use super::units::time::parse_time;

#[doc(hidden)]
pub mod action;
pub mod continuation;
#[doc(hidden)]
pub mod decode;
#[doc(hidden)]
pub mod delivery;
pub mod document;
#[doc(hidden)]
pub mod field;
#[doc(hidden)]
pub mod hash;
#[doc(hidden)]
pub mod header;
pub mod id;
pub mod kill;
pub mod limits;
mod members;
#[doc(hidden)]
pub mod param_tags;
#[doc(hidden)]
pub mod partition;
#[doc(hidden)]
pub mod patch;
#[doc(hidden)]
mod policy;
#[doc(hidden)]
pub mod priority;
mod runner;
pub mod start;
#[doc(hidden)]
pub mod structured;
#[cfg(test)]
mod tests;

pub use decode::{RecordSource, read_record, read_task};
use id::{TaskId, clip};
pub use policy::{OnFailure, Policy, Rules, check_tags};
pub use runner::TaskRunner;

/// Content type of structured-mode CloudEvents.
pub const STRUCTURED: &str = "application/cloudevents+json";

/// Maximum number of tags of a task.
pub const MAX_TAGS: usize = 32;
/// Maximum length of names, links, keys and similar texts, in characters.
pub const MAX_TEXT_CHARS: usize = 512;
/// Maximum size of the rules in `ce_policy`, in bytes.
pub const MAX_POLICY_BYTES: usize = 16 * 1024;
/// Maximum number of retries of a task.
pub const MAX_RETRIES: u32 = 1_000;
/// Highest run of a task. A new run is one above the highest in its tree, so the number needs headroom.
pub const MAX_RUN: u32 = 1_000_000;
/// Maximum number of attempts that a record may have used.
pub const MAX_ATTEMPTS: u32 = 1_000_000;

/// Fields of a task: as its record describes them, or will when the task is published.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TaskSpec {
    pub id: TaskId,
    pub task_type: Arc<str>,
    pub run: u32,
    /// Creation time set by the producer (`ce_time`), else the record's timestamp. Epoch milliseconds.
    pub created_at_ms: i64,
    /// Offset in the events partition (`ce_asof`): requests up to it precede the task and do not apply to it.
    pub asof: Option<i64>,
    /// The publisher announces the task with an event of its own.
    pub announced: bool,
    /// The ask of this unique task was decided: it may start.
    pub asked: bool,
    pub hash: Option<Box<str>>,
    /// `None` if all options have their defaults.
    pub policy: Option<Box<Policy>>,
    /// Headers of its trace context; until the task is published, those of its creator's.
    pub trace: Option<Box<Trace>>,
    /// Valid JSON.
    pub params: RawJson,
    /// Ordering key of a task to be published; default: the id. A received task has it in its record.
    pub key: Option<Box<str>>,
    /// The publisher gives the task a trace of its own, with a link to `trace`.
    pub has_own_trace: bool,
    /// The id was generated for this task to be published, so that no other task has it.
    pub has_generated_id: bool,
    /// External task whose own work is done as soon as its batch is published: it groups its children.
    pub is_group: bool,
}

/// Task with what its record adds to it.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ReceivedTask {
    pub task: TaskSpec,
    pub position: Position,
    /// Attempts and waits that the run had used when the record was written.
    pub progress: RunProgress,
    /// The record has headers unknown to kafleet, which are copied when the task is passed on.
    pub has_foreign_headers: bool,
}

impl TaskSpec {
    /// Task to be published, in its first run. The publisher sets its creation time and hash.
    pub fn new(id: TaskId, task_type: impl Into<Arc<str>>, params: RawJson) -> Self {
        Self {
            id,
            task_type: task_type.into(),
            run: 1,
            created_at_ms: 0,
            asof: None,
            announced: false,
            asked: false,
            hash: None,
            policy: None,
            trace: None,
            params,
            key: None,
            has_own_trace: false,
            has_generated_id: false,
            is_group: false,
        }
    }

    /// Sets the options; without any that differs from its default, the record has none.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = (policy != Policy::default()).then(|| Box::new(policy));
    }

    /// Sets the earliest start, epoch milliseconds.
    pub fn at(mut self, at_ms: i64) -> Self {
        self.policy.get_or_insert_default().not_before_ms = Some(at_ms);
        self
    }

    /// Returns true if no worker runs the task: another system reports its states.
    pub fn is_external(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.rules.external)
    }

    /// Uniqueness of a task that must ask before it starts; `None` for any other.
    pub fn ask_rule(&self) -> Option<&UniqueRule> {
        self.policy.as_ref()?.unique.as_ref().filter(|_| !self.asked)
    }

    /// Context of the headers; `None` without a valid one.
    pub fn trace_context(&self) -> Option<SpanContext> {
        SpanContext::parse(&self.trace.as_ref()?.parent)
    }

    /// Origin of the task by the context of its creator.
    pub fn origin(&self) -> Origin {
        match self.trace_context() {
            Some(context) if self.has_own_trace => Origin::Linked(context),
            Some(context) => Origin::Parent(context),
            None => Origin::Unknown,
        }
    }
}

/// Position of a record in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Position {
    /// Number of the partition.
    pub partition: i32,
    /// Offset within the partition.
    pub offset: i64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl std::str::FromStr for Position {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(p, o)| Some((p.parse().ok()?, o.parse().ok()?)));
        match parts {
            Some((partition, offset)) if partition >= 0 && offset >= 0 => Ok(Self { partition, offset }),
            _ => Err(format!("`{}` is not a position: write partition:offset, such as 3:1042", clip(text))),
        }
    }
}

/// W3C trace context of the producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Value of `traceparent`.
    pub parent: String,
    /// Value of `tracestate`.
    pub state: Option<String>,
}

/// Reason why a record is not a valid task. The record goes to the dead-letter topic with it.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Stable code: `empty_value`, `bad_json`, `bad_id`, `bad_header`, `unsupported_version`, `schema`, `too_large`,
    /// …
    pub code: &'static str,
    pub message: String,
    /// Location in the params (JSON pointer).
    pub pointer: Option<String>,
    /// Id and run of the task, if they could be parsed.
    pub task: Option<(TaskId, u32)>,
}

impl Reject {
    #[doc(hidden)]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), pointer: None, task: None }
    }
}
