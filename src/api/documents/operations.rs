//! What people tell a running fleet, and what workers tell of themselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Rate;
use crate::control::heartbeat::TypeStatus;

/// Since when, and why, a type is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paused {
    pub since: String,
    pub reason: Option<String>,
}

/// The limits of a type. `live` names those that were set on the running fleet; the others come from the configuration of
/// this api, where it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TypeLimits {
    /// Attempts at once in each worker. Null: as many as each has cores, or this api does not know the type.
    pub slots: Option<u32>,
    /// Attempts at once in all workers together.
    pub max_concurrency: Option<u32>,
    pub rate: Option<Rate>,
    /// `slots`, `max_concurrency`, `rate`.
    pub live: Vec<String>,
}

/// What the live workers of a type have together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerType {
    pub workers: u64,
    pub slots: u64,
    pub in_flight: u64,
    /// So many of them start no more of it, because too many attempts have failed.
    #[serde(default)]
    pub stopped: u64,
    /// Partitions that are not worked on: somebody has to say where to begin.
    #[serde(default)]
    pub refused: Vec<i32>,
}

/// `POST /v1/types/{type}/pause`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseType {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/types/{type}/resume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeType {}

/// `PUT /v1/types/{type}/limits`: what is left out is again as the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// Attempts at once in each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub slots: Option<u32>,
    /// Attempts at once in all workers together; at least one per partition of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// `PUT /v1/kill/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetKill {
    /// Only tasks of this type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A kill switch that is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillDocument {
    /// A tag, or how ids begin.
    pub name: String,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    pub reason: Option<String>,
    pub since: String,
}

/// `GET /v1/kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kills {
    pub kills: Vec<KillDocument>,
}

/// `POST /v1/tasks/{id}/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelTask {
    /// Also what is below the task. Default true.
    #[serde(default = "yes")]
    pub subtree: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn yes() -> bool {
    true
}

impl Default for CancelTask {
    fn default() -> Self {
        Self { subtree: true, reason: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelOutcome {
    pub id: String,
    /// Where the request lies (`partition:offset` of the events topic).
    pub position: String,
    /// An earlier request asked for the same. Null: the tracker is too far behind to tell.
    pub already_requested: Option<bool>,
}

/// `GET /v1/workers`: by state, then by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workers {
    pub workers: Vec<WorkerDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerDocument {
    pub id: String,
    pub state: WorkerState,
    /// Since its last heartbeat.
    pub age_ms: i64,
    pub heard_at: String,
    pub started_at: String,
    pub host: String,
    pub pid: u32,
    pub version: String,
    /// Of tasks.
    pub held_bytes: u64,
    pub in_flight: u64,
    pub types: Vec<TypeStatus>,
    /// At most 100, the oldest first.
    pub running: Vec<RunningDocument>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Alive,
    /// Told to stop: it finishes what runs.
    Draining,
    /// Three heartbeats are missing.
    Silent,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningDocument {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub attempt: u32,
    pub began_at: String,
}
