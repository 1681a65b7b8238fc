//! What the api takes and gives, as types: the server, the command line and the published schemas share them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::event::ErrorInfo;
use crate::model::json::RawJson;
use crate::model::record::state::State;
use crate::model::task::OnFailure;
use crate::model::task::action::{Action, Check};
use crate::model::task::continuation::Continuation;
use crate::model::task::patch::given;
use crate::model::units::duration::Millis;

mod dead_letters;
mod deliveries;
mod operations;
mod schedules;
pub use dead_letters::*;
pub use deliveries::*;
pub use operations::*;
pub use schedules::*;

/// `POST /v1/tasks`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default)]
    pub params: Value,
    /// Default: a UUIDv7. With a parent: one segment, or the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Ordering key; default: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Value>,
    /// Start so long after now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
    /// Start at this time (RFC 3339); not together with `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Not to be started later than so long after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Of all attempts and waits together, from its creation or, where that is later, from when it may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The first failed child that `max_failed` does not allow cancels everything still open below, and the task itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    /// So many direct children may fail, be cancelled or expire without failing the task. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// What follows when it and everything below it have ended; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// What is done when it comes into a state; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Looks at its state at a time; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Run by someone else, who reports its state; needs no topic and no handler.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// External tasks: reports after the end are ignored. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_when_done: Option<bool>,
}

/// `PATCH /v1/tasks/{id}`: what is left out stays, `null` takes it away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchTask {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub tags: Option<Option<Vec<String>>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub link: Option<Option<String>>,
    /// A JSON object, as a whole.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub options: Option<Option<Value>>,
    /// Start so long after now; of a task that is scheduled and has not started yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
    /// Start at this time (RFC 3339); not together with `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Not to be started later than so long after now.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub expires: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub retries: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub min_backoff: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub max_backoff: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub timeout: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub total_timeout: Option<Option<Millis>>,
}

/// The status of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    pub id: String,
    pub parent: Option<String>,
    pub root: String,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    /// Own state combined with the children's.
    pub state: State,
    /// What the task itself reached.
    pub own_state: State,
    pub run: u32,
    pub attempt: u32,
    pub name: Option<String>,
    pub creator: Option<String>,
    pub tags: Vec<String>,
    pub link: Option<String>,
    pub options: Option<Value>,
    pub external: bool,
    #[serde(default)]
    pub fail_fast: bool,
    /// So many direct children may fail.
    #[serde(default)]
    pub max_failed: Option<u32>,
    /// What follows its end.
    #[serde(default)]
    pub then: Vec<Continuation>,
    /// What is done when it comes into a state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Looks at its state at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// What others have been told of it. Only in `GET /v1/tasks/{id}`, and only where there are actions or checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliveries: Option<Deliveries>,
    /// When the producer made it.
    pub created_at: Option<String>,
    /// When the log first spoke of it: the order of lists, and what `from` and `to` are about.
    pub seen_at: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// When the next attempt, or the first, is due.
    pub due_at: Option<String>,
    pub progress: Option<RawJson>,
    pub result: Option<RawJson>,
    pub error: Option<ErrorInfo>,
    pub children: Children,
    pub tree: Tree,
    pub worker: Option<String>,
    /// Where the task's record lies in its topic (`partition:offset`).
    pub record: Option<String>,
    /// The last event that this answer includes (`partition:offset` of the events topic); right after creation the
    /// task's own `submitted` event. A read with `?after=` this position is at least as new.
    pub position: String,
    /// Terminal events after the first of a run.
    pub duplicates: u32,
    /// Its run is below its parent's: it does not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

/// Direct children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Children {
    pub total: u64,
    pub pending: u64,
    pub successful: u64,
    pub failed: u64,
    pub by_state: BTreeMap<State, u64>,
}

/// The task and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tree {
    /// The task itself included.
    pub total: u64,
    pub pending: u64,
    pub successful: u64,
    pub failed: u64,
    /// First start of anything in it, and the task that was it.
    pub started_at: Option<String>,
    pub started_by: Option<String>,
    /// When it all was done, and the task that ended last.
    pub ended_at: Option<String>,
    pub ended_by: Option<String>,
    pub execution_ms: Option<i64>,
}

/// `GET /v1/tasks/{id}/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateDocument {
    pub id: String,
    pub state: State,
    pub position: String,
}

/// A page of tasks, with the cursor of the next one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPage {
    pub tasks: Vec<Status>,
    /// None: this is the last page.
    pub next: Option<String>,
    /// Records looked at to fill this page, where a filter had to scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned: Option<u64>,
    /// The scan ended before the page was full and before all was looked at: `next` goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
    /// With `stopped_early`: how to go on, and what makes the search shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// `GET /v1/tasks/{id}/tree`: a task with what is below it, cut at a depth and a number of tasks.
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
    /// Children that are not in `below`.
    pub cut: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryItem {
    pub kind: String,
    pub at: String,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<String>,
    pub message: Option<String>,
    /// The stable word of its error: what `retry_on` and `fail_on` go by.
    #[serde(default)]
    pub error_kind: Option<String>,
    /// When the attempt began that it ends, where no `started` says so.
    #[serde(default)]
    pub started_at: Option<String>,
    /// Who asked for it: the name of the token.
    #[serde(default)]
    pub by: Option<String>,
    /// The fold did not act on it.
    pub ignored: bool,
    /// Where the event lies (`partition:offset`).
    pub position: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub id: String,
    pub events: Vec<HistoryItem>,
    /// Older events that are no longer kept.
    pub dropped: u32,
    pub duplicates: u32,
}

/// `GET /v1/tasks/{id}/why`: why the task is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    pub id: String,
    pub state: State,
    /// What was found, what weighs most first; never empty.
    pub findings: Vec<Finding>,
}

/// One reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub code: Reason,
    /// For people: what is so, and what can be done about it.
    pub message: String,
    /// The task that it is about, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Tasks that come before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// `ahead` or `lag` is an upper bound: some of the places counted may hold no task, such as transaction markers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_most: bool,
    /// Tasks per second that its partition got through, measured during this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Tasks that the workers of its type have still to do, over all partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// Since the last sign of life of a running task: its last event, or a heartbeat that names it. In milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<u64>,
    /// When its turn should come, at that rate, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_in_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The answer is some events old.
    #[default]
    Behind,
    /// Something named it, and nobody has published it.
    NotPublished,
    /// Its record is no longer in the log: nobody will take it.
    RecordGone,
    /// Its type is paused.
    Paused,
    /// A kill switch means it: it will be cancelled instead of started.
    Killed,
    /// No live worker takes its type.
    NoWorker,
    /// Its worker starts no more of its type, because too many attempts have failed.
    Stopped,
    /// Its partition is not worked on: somebody has to say where to begin.
    Refused,
    /// A limit is reached, or all slots are taken.
    Limited,
    /// No worker has ever taken tasks of its partition.
    NeverTaken,
    /// Others are before it.
    InLine,
    /// One task that does not end keeps its partition from going on.
    HeldBack,
    /// A worker has it, and what became of it is still to be told.
    Taken,
    /// A retry was asked for, and its record is still to be published again.
    Republished,
    Running,
    /// Its worker is not heard of any more.
    WorkerSilent,
    /// It failed and is tried again.
    Retrying,
    Scheduled,
    /// A task below it is open.
    OpenChild,
    /// Run by someone else: it is as it was last reported.
    External,
    Ended,
    /// Nobody ever worked on it: its record is gone, or was never published.
    Lost,
    /// A task below it failed.
    FailedChild,
}

/// `GET /v1/tasks/{id}/log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogDocument {
    pub id: String,
    /// The number of the first line of this page; the oldest line ever is 0.
    pub from: u64,
    pub lines: Vec<String>,
    pub total: u64,
    /// Lines that the worker had to drop.
    pub dropped: u32,
}

/// `POST /v1/tasks/{id}/log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendLog {
    /// A text with line ends is several lines. At most 1,000 lines of 16 KiB each, and 64 KiB together.
    #[schemars(extend("minItems" = 1))]
    pub lines: Vec<String>,
}

/// What became of lines for a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogAppended {
    pub id: String,
    /// So many were written.
    pub lines: usize,
    /// A read with `?after=` this position shows them.
    pub position: String,
}

/// `GET /v1/tasks/{id}/attachments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attachments {
    pub id: String,
    pub attachments: Vec<AttachmentDocument>,
}

/// A small value that is kept with a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachmentDocument {
    pub name: String,
    /// Its media type.
    pub media: String,
    pub bytes: u32,
    pub at: String,
}

/// `GET /v1/tasks/{id}/params`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Params {
    pub id: String,
    pub params: RawJson,
}

/// `PUT /v1/tasks/{id}/state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// queued, running, warning, waiting_for_children, succeeded or failed.
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportOutcome {
    pub status: Status,
    /// The task had already ended: the report is in the history and changed nothing.
    pub ignored: bool,
}

/// `POST /v1/tasks/{id}/retry`; the body may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryTask {
    /// Not the task, but those of its tree (itself included) that have failed, expired or been cancelled themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_failed: bool,
    /// Why, for its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RetryOutcome {
    pub status: Status,
    /// The run of what is started anew.
    pub run: u32,
}

/// The outcome of one item of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchItem {
    /// Its place in the request, from 0.
    pub index: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outcome: ItemOutcome,
    /// Where its `submitted` event lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The task is in the log.
    Accepted,
    /// Nothing of it is.
    Refused,
    /// Kafka did not say whether it is. Sent again with the same id it is not published twice.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchOutcome {
    pub accepted: usize,
    pub refused: usize,
    pub unknown: usize,
    pub items: Vec<BatchItem>,
}

/// The event `changed` of `GET /v1/watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetChange {
    /// None: any task may have changed; look again at what you show.
    pub ids: Option<Vec<String>>,
    /// The events partition; None: all of them.
    pub partition: Option<u32>,
    /// A read with `?after=` this position sees the change.
    pub position: Option<String>,
}

/// The last event, `end`, of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamEnd {
    pub reason: EndReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The task has ended; this is all.
    Finished,
    /// The task's record is no longer kept.
    Gone,
    /// The api stops: connect again.
    Shutdown,
    /// The client took too long to read: connect again.
    Slow,
}

/// `GET /v1/types`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Types {
    pub types: Vec<TypeDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TypeDocument {
    #[serde(rename = "type")]
    pub name: String,
    /// It has a topic.
    pub topic: bool,
    pub counts: BTreeMap<State, u64>,
    /// Queued and running (with a warning too): what scaling should follow.
    pub backlog: u64,
    /// It is paused: nothing of it is started.
    #[serde(default)]
    pub paused: Option<Paused>,
    /// What holds now.
    #[serde(default)]
    pub limits: TypeLimits,
    /// Kill switches that mean some of its tasks.
    #[serde(default)]
    pub kills: Vec<String>,
    /// The workers that live and work on it; null: none.
    #[serde(default)]
    pub at_work: Option<WorkerType>,
    /// The schema of its params, where this api knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// `GET /v1/types/{type}/backlog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backlog {
    pub backlog: u64,
}

/// An RFC 9457 problem document (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `about:blank`: the code says it.
    #[serde(rename = "type")]
    pub problem_type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// Stable, for programs: `not_found`, `duplicate_id`, `schema`, …
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Where in the request (JSON pointer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The task that is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
}
