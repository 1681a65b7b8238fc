//! Request and response documents of the REST API, shared by the server, the pages, the command line, the client and
//! the published schemas.
//!
//! In: JSON bodies, whose fields become structs. Out: the same structs as JSON, and as schemas for `/openapi.json`,
//! `schemas/api.json` and the SDKs. The doc comments of types and fields are the descriptions there, and the names of
//! types are the names of the schemas; `#[serde(rename)]` and `#[schemars(rename)]` keep a published name where the
//! Rust name differs.
//!
//! Invariant: the documents have no IO, and depend on no crate of the product but `kafleet-model`. A light client has
//! them without Kafka and without a server; with an arrow to either it would get both. Structs of the same name in the
//! client and the server would be two contracts, which differ with the next field.
//!
//! Read next: [`CreateTask`] and [`Status`] in this file, then `why.rs` and `diagram.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::collections::BTreeMap;

use kafleet_model::event::ErrorInfo;
use kafleet_model::json::RawJson;
use kafleet_model::record::state::State;
use kafleet_model::task::continuation::On;
use kafleet_model::task::document::{ChangeFields, CreateFields, ShownFields, document};
use kafleet_model::task::field::Scope;
use kafleet_model::task::param_tags::is_param_tag;
use kafleet_model::task::patch::{FieldChanges, given};
use kafleet_model::task::start::check_delay;
use kafleet_model::task::{Policy, TaskRunner};
use kafleet_model::unique::AskVerdict;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::Expires;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod bulk;
mod dead_letters;
mod deliveries;
pub mod diagram;
mod export;
pub mod flow;
mod logs;
mod operations;
mod previews;
mod schedules;
pub mod statistics;
mod suggestions;
mod system;
mod task_columns;
mod task_lists;
mod types;
mod unique;
mod views;
mod why;
pub use bulk::*;
pub use dead_letters::*;
pub use deliveries::*;
pub use export::*;
pub use flow::{FlowDocument, FlowVerdict};
pub use logs::*;
pub use operations::*;
pub use previews::*;
pub use schedules::*;
pub use statistics::*;
pub use suggestions::*;
pub use system::*;
pub use task_columns::*;
pub use task_lists::*;
pub use types::*;
pub use unique::*;
pub use views::*;
pub use why::*;

/// Body of `POST /v1/tasks`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CreateTask {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default)]
    pub params: RawJson,
    /// Task id. Default: a UUIDv7. With a parent: one path segment, or the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Beginning of the id, to which a UUIDv7 is added: `order-` gives `order-0192…`. Mutually exclusive with `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Ordering key. Default: the task id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Delay before the task starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
    /// Start time (RFC 3339). Mutually exclusive with `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Expire the task if it has not started within this time after creation, or at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expires>,
    /// External tasks: ignore reports after the task has ended. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_when_done: Option<bool>,
    /// External tasks in atomic batches: the state reported as soon as the batch is published. Only `waiting_for_children`: the
    /// task groups its children, and ends with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing, with = "CreateFields")]
    pub policy: Policy,
}

document!(CreateTask, Scope::Create, policy);

/// Body of `PATCH /v1/tasks/{id}`. Omitted fields stay as they are; `null` clears a field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct PatchTask {
    /// Delay before the task starts (scheduled tasks only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
    /// Start time (RFC 3339). Mutually exclusive with `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Expire the task if it has not started within this time from now, or at this time.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub expires: Option<Option<Expires>>,
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing, with = "ChangeFields")]
    pub changes: FieldChanges,
}

document!(PatchTask, Scope::Change, changes);

/// Status of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub struct Status {
    pub id: String,
    pub parent: Option<String>,
    pub root: String,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    /// Combined state of the task and its children.
    pub state: State,
    /// State of the task itself, without its children.
    pub own_state: State,
    pub run: u32,
    pub attempt: u32,
    /// Waits of the run, which do not count as attempts.
    #[serde(default)]
    pub waits: u32,
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub fields: ShownFields,
    /// Notifications sent so far. Only in `GET /v1/tasks/{id}`, and only for tasks with actions or checks.
    #[serde(default)]
    pub deliveries: Option<Deliveries>,
    /// Creation time, as given by the producer.
    pub created_at: Option<String>,
    /// Time of the task's first event. Lists are sorted by it, and `from` and `to` filter on it.
    pub seen_at: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Time of the first or next attempt.
    pub due_at: Option<String>,
    /// Time since which an open task is in its state: of a running one the start of its attempt.
    #[serde(default)]
    pub state_since: Option<String>,
    pub progress: Option<RawJson>,
    pub result: Option<RawJson>,
    pub error: Option<ErrorInfo>,
    pub children: Children,
    pub tree: Tree,
    pub worker: Option<String>,
    /// Position of the task's record in its topic (`partition:offset`).
    pub record: Option<String>,
    /// Verdict about the submission of a unique task, in the answer to it: the task may be another one than the submitted. Null in
    /// all other documents.
    #[serde(default)]
    pub verdict: Option<AskVerdict>,
    /// Position of the last event included in this response (`partition:offset` of the events topic); right after
    /// creation, the position of the task's `submitted` event. A read with `?after=` this position is at least as
    /// recent.
    pub position: String,
    /// Terminal events after the first one of a run.
    pub duplicates: u32,
    /// Starts of attempts of the run that ended without an outcome, such as by a stop of their worker, and do not count as
    /// attempts.
    #[serde(default)]
    pub interruptions: u32,
    /// The task, or one of its ancestors, belongs to an earlier run of its parent and is excluded from its counts.
    #[serde(default)]
    pub superseded: bool,
    /// Trace of the task's run, if it is sampled: 32 hexadecimal digits.
    #[serde(default)]
    pub trace_id: Option<String>,
}

document!(Status, Scope::Status, fields);

impl Status {
    /// Returns the tags that its creator has given: without those of declared params.
    pub fn own_tags(&self) -> Vec<String> {
        self.fields.tags.iter().filter(|tag| !is_param_tag(tag)).cloned().collect()
    }

    /// Returns the runner of the task.
    pub fn runner(&self) -> TaskRunner {
        TaskRunner::of(self.task_type.as_deref(), Some(&self.fields))
    }

    /// Returns whether the task waits for a time that a request can end.
    pub fn waits_for_a_time(&self) -> bool {
        check_delay(self.runner(), self.own_state, self.state).is_ok()
    }
}

/// Counts of direct children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Children {
    pub total: u64,
    pub pending: u64,
    pub successful: u64,
    pub failed: u64,
    pub by_state: BTreeMap<State, u64>,
}

/// Totals over the task and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tree {
    /// Number of tasks, including the task itself.
    pub total: u64,
    pub pending: u64,
    pub successful: u64,
    pub failed: u64,
    /// Earliest start in the tree, and the id of the task that started then.
    pub started_at: Option<String>,
    pub started_by: Option<String>,
    /// Time when the whole tree had ended, and the id of the last task to end.
    pub ended_at: Option<String>,
    pub ended_by: Option<String>,
    pub execution_ms: Option<i64>,
}

/// Response of `GET /v1/tasks/{id}/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateDocument {
    pub id: String,
    pub state: State,
    pub position: String,
}

/// `GET /v1/tasks/{id}/tree`: a task and its descendants, limited by depth and by number of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TreeNode {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    pub state: State,
    pub name: Option<String>,
    pub attempt: u32,
    pub error: Option<ErrorInfo>,
    pub progress: Option<RawJson>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub children: Children,
    pub tree: Tree,
    pub below: Vec<TreeNode>,
    /// Number of direct children omitted from `below`.
    pub omitted: u64,
    /// Continuations that the outcome of the ended task has not started.
    #[serde(default)]
    pub not_started: Vec<UnstartedContinuation>,
}

/// Continuation of an ended task that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnstartedContinuation {
    /// Id that it would have.
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    /// Outcome of the task that starts it.
    pub on: On,
}

impl UnstartedContinuation {
    /// Last part of its id.
    pub fn segment(&self) -> &str {
        self.id.rsplit(':').next().unwrap_or(&self.id)
    }

    /// Words for the outcome that starts it.
    pub const fn condition(&self) -> &'static str {
        match self.on {
            On::Succeeded => "starts only if the task and its children succeed",
            On::Failed => "starts only if the task or a child of it fails",
            On::Ended => "starts when the task and its children have ended",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryItem {
    /// Kind of the event; `continuations_added` for a `started` that adds the continuations of a handler to its running attempt.
    pub kind: String,
    pub at: String,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<String>,
    pub message: Option<String>,
    /// Stable error kind, as matched by `retry_on` and `fail_on`.
    #[serde(default)]
    pub error_kind: Option<String>,
    /// Waits of the run, if this event reports one.
    #[serde(default)]
    pub waits: u32,
    /// Start of the attempt that this event ends, if the event states it.
    #[serde(default)]
    pub started_at: Option<String>,
    /// Name of the token that made the request.
    #[serde(default)]
    pub by: Option<String>,
    /// The event had no effect on the task.
    pub ignored: bool,
    /// Position of the event (`partition:offset`).
    pub position: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub id: String,
    pub events: Vec<HistoryItem>,
    /// Number of older events that are no longer retained.
    pub dropped: u32,
    pub duplicates: u32,
}

/// Response of `GET /v1/tasks/{id}/params`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Params {
    pub id: String,
    pub params: RawJson,
}

/// Body of `PUT /v1/tasks/{id}/state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `queued`, `running`, `warning`, `waiting_for_children`, `succeeded` or `failed`.
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RawJson>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportOutcome {
    pub status: Status,
    /// The task had already ended: the report was added to its history and changed nothing.
    pub ignored: bool,
}

/// Body of `POST /v1/tasks/{id}/retry`; optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryTask {
    /// Retry only the tasks of the tree (including the task itself) that have themselves failed, expired or been
    /// cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_failed: bool,
    /// Reason, recorded in the task's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RetryOutcome {
    pub status: Status,
    /// Number of the new run.
    pub run: u32,
}

/// Body of `POST /v1/tasks/{id}/start`; optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartTask {
    /// Reason, recorded in the task's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartOutcome {
    pub status: Status,
    /// Reasons for which the task does not start yet, besides its delay: a pause, an open circuit, used up slots.
    #[serde(default)]
    pub held_by: Vec<Finding>,
}

/// Result of one batch item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchItem {
    /// Index of the item in the request, from 0.
    pub index: usize,
    #[serde(default)]
    pub id: Option<String>,
    pub outcome: ItemOutcome,
    /// Position of the task's `submitted` event, or of a later event if the task existed.
    #[serde(default)]
    pub position: Option<String>,
    /// Verdict about a unique task. Null for other tasks, and for one that was not accepted.
    #[serde(default)]
    pub verdict: Option<AskVerdict>,
    #[serde(default)]
    pub problem: Option<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The task is in the log.
    Accepted,
    /// No part of the task was written.
    Refused,
    /// Kafka did not acknowledge the write. Repeating the item with the same id does not publish it twice.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchOutcome {
    pub accepted: usize,
    pub refused: usize,
    pub unknown: usize,
    pub items: Vec<BatchItem>,
}

/// Event `changed` of `GET /v1/watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetChange {
    /// Ids of changed tasks; null if any task may have changed, so everything shown must be read again.
    pub ids: Option<Vec<String>>,
    /// Events partition; null for all partitions.
    pub partition: Option<u32>,
    /// A read with `?after=` this position includes the change.
    pub position: Option<String>,
}

/// Last event of a stream, `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamEnd {
    pub reason: EndReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The task has ended; no more events follow.
    Finished,
    /// The task's record is no longer retained.
    Gone,
    /// The API is shutting down; reconnect.
    Shutdown,
    /// The client read too slowly; reconnect.
    Slow,
}

/// RFC 9457 problem document (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Always `about:blank`; `code` identifies the problem.
    #[serde(rename = "type")]
    pub problem_type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// Stable machine-readable code: `not_found`, `duplicate_id`, `schema`, …
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// JSON pointer into the request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Wrong part of the query parameter `q`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<TextSpan>,
    /// Id of the existing or created task that the problem refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
}

/// Part of a text, in characters from 0; empty if something is missing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextSpan {
    pub start: usize,
    pub end: usize,
}
