//! Documents of operator commands (pauses, limits, kill switches, cancels) and worker status.

use kafleet_model::adaptive::setting::AdaptiveOverride;
use kafleet_model::task::kill::{KillMatch, KillParams};
use kafleet_model::units::rate::Rate;
use kafleet_model::worker_status::TypeStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pause of a type or schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Paused")]
pub struct PauseDocument {
    pub since: String,
    pub reason: Option<String>,
    /// Name of the API token that made the request; null without tokens.
    #[serde(default)]
    pub by: Option<String>,
}

/// Queue of a type: the part of its topic that workers have not completed, as sampled from Kafka at most 5 s ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDocument {
    /// Time of the sample.
    pub at: String,
    /// Number of unfinished records, also of those that the tracker does not know yet.
    pub lag: u64,
    /// `lag` is an upper bound: some of the counted offsets may hold no task, such as transaction markers.
    #[serde(default)]
    pub at_most: bool,
    /// Time of the oldest unfinished record.
    pub oldest_at: Option<String>,
    /// Not all partitions were looked at: an older record is possible.
    #[serde(default)]
    pub oldest_at_least: bool,
    /// Partitions, at most 256.
    pub partitions: Vec<PartitionQueue>,
}

/// Queue of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionQueue {
    pub partition: i32,
    /// Offset after the last record.
    pub end: i64,
    /// Offset below which all tasks are finished.
    pub done: i64,
    pub lag: u64,
    #[serde(default)]
    pub at_most: bool,
    pub oldest_at: Option<String>,
    /// Id of the task that has not ended although later ones of the partition have.
    pub held_by: Option<String>,
    /// Begin of an open transaction of a producer, behind which no worker sees anything. Null if there is none.
    pub open_transaction_since: Option<String>,
}

/// State of the circuit of a type that an operator has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CircuitDocument {
    /// `open` or `closed`.
    pub state: String,
    pub since: String,
    pub reason: Option<String>,
    /// Name of the API token that made the request; null without tokens.
    #[serde(default)]
    pub by: Option<String>,
}

/// Host that a type calls, whose circuit is open in a worker or set by an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostDocument {
    /// Host, with the port if it is not that of the URL's scheme.
    pub host: String,
    /// State of the circuit that an operator has set; null: each worker decides.
    pub circuit: Option<CircuitDocument>,
    /// Number of live workers that start only probes of the host.
    pub workers: u64,
    /// Tasks that wait in these workers for the host.
    pub waiting: u64,
    /// Start of the outage and the last error in one of these workers; null if there is none.
    pub reason: Option<String>,
}

/// Limits of a type. `live` names the limits set at run time; the others come from this API's configuration of the
/// type, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TypeLimits {
    /// Concurrent attempts per worker. Null: one per core, or the type is unknown to this API.
    pub slots: Option<u32>,
    /// Concurrent attempts over all workers.
    pub max_concurrency: Option<u32>,
    pub rate: Option<Rate>,
    /// Adaptive limit that an operator has set: `"off"`, or a number of concurrent attempts over all workers. Null: it is
    /// learned, if the type has one.
    #[serde(default)]
    pub adaptive: Option<AdaptiveOverride>,
    /// Limits set at run time: `slots`, `max_concurrency`, `rate`, `adaptive`.
    pub live: Vec<String>,
    /// Limits of this API's configuration, to which a reset returns.
    #[serde(default)]
    pub configured: ConfiguredLimits,
}

/// Limits of a type in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfiguredLimits {
    /// Null: one per core, or the type is unknown to this API.
    pub slots: Option<u32>,
    pub max_concurrency: Option<u32>,
    pub rate: Option<Rate>,
}

/// Adaptive limit of a type that its live workers apply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdaptiveDocument {
    /// Concurrent attempts over all workers.
    pub limit: f64,
    /// An operator has set the limit; nothing changes it.
    pub fixed: bool,
    /// Time of the last cut; null before the first one.
    #[serde(default)]
    pub cut_at: Option<String>,
    /// Reason of the last cut.
    #[serde(default)]
    pub cut_reason: Option<String>,
}

/// Totals over the live workers of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerTotals {
    pub workers: u64,
    pub slots: u64,
    pub in_flight: u64,
    /// Number of workers that stopped starting tasks of this type after too many failures.
    #[serde(default)]
    pub stopped: u64,
    /// Number of workers that start only probes of this type because its circuit is open.
    #[serde(default)]
    pub circuit_open: u64,
    /// Largest number of hosts of which one worker starts only probes. 0 for types without circuits per host.
    #[serde(default)]
    pub open_hosts: u64,
    /// Partitions that are not consumed because they have no start offset; an operator must set one.
    #[serde(default)]
    pub refused: Vec<i32>,
}

/// Body of `POST /v1/types/{type}/pause`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseType {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /v1/types/{type}/resume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeType {}

/// Body of `PUT /v1/types/{type}/limits`. Omitted limits revert to the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// Concurrent attempts per worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub slots: Option<u32>,
    /// Concurrent attempts over all workers; at least one per partition of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Adaptive limit: `"off"`, or a number of concurrent attempts over all workers that nothing changes. Null: it is learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveOverride>,
    /// Recorded in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// State that an operator gives the circuit of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CircuitState {
    /// Nothing starts, not even a probe.
    Open,
    /// Never opens.
    Closed,
    /// Each worker decides.
    Auto,
}

/// Body of `PUT /v1/types/{type}/circuit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetCircuit {
    pub state: CircuitState,
    /// Host whose circuit is set, with the port if it is not that of the URL's scheme. Only for `kafleet-callback`. Null: the
    /// circuit of the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Shown with the type.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Body of `PUT /v1/kill-switches/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetKillSwitch {
    /// Restricts the kill switch to the tag, or to the prefix of ids. Default: both. Not with `params`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<KillMatch>,
    /// Restricts the kill switch to tasks of this type. Required with `params`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<String>,
    /// Values of params that tasks of the type have, by JSON pointer; at most 4. The name of the kill switch is then neither a
    /// tag nor a prefix of ids. A masked value needs the role `admin`.
    #[serde(default, skip_serializing_if = "KillParams::is_empty")]
    pub params: KillParams,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Active kill switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillSwitchDocument {
    /// Tag or task id prefix that the kill switch matches; with `params` only its name.
    pub name: String,
    /// Null: tasks with the tag, and tasks whose id begins with the name; with `params` neither.
    #[serde(default)]
    pub matches: Option<KillMatch>,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    /// Values of params that tasks of the type have, all of them; empty: the name decides. Masked values are shown to the role
    /// `admin` alone.
    #[serde(default)]
    pub params: KillParams,
    pub reason: Option<String>,
    pub since: String,
    /// Name of the API token that made the request; null without tokens.
    #[serde(default)]
    pub by: Option<String>,
}

/// Response of `GET /v1/kill-switches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillSwitches {
    pub kills: Vec<KillSwitchDocument>,
}

/// Body of `POST /v1/tasks/{id}/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelTask {
    /// Cancel all descendants too. Default true.
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
    /// Position of the request (`partition:offset` of the events topic).
    pub position: String,
    /// Whether an earlier request covers this one. Null: not known yet, because the projection lags.
    pub already_requested: Option<bool>,
}

/// Response of `GET /v1/workers`, sorted by state, then by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workers {
    pub workers: Vec<WorkerDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerDocument {
    pub id: String,
    pub state: WorkerState,
    /// Milliseconds since the last heartbeat.
    pub age_ms: i64,
    pub last_heartbeat_at: String,
    /// Milliseconds by which the clock of its machine was ahead of the brokers' at the last heartbeat; negative if behind. The
    /// clock is not used to decide anything.
    #[serde(default)]
    pub clock_ahead_ms: i64,
    pub started_at: String,
    pub host: String,
    pub pid: u32,
    pub version: String,
    /// Memory of the tasks that the worker has fetched and not completed, in bytes.
    pub held_bytes: u64,
    pub in_flight: u64,
    pub types: Vec<TypeStatus>,
    /// Running attempts, oldest first; at most 100.
    pub running: Vec<RunningDocument>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    Alive,
    /// Shutting down: running attempts finish, no new ones start.
    Draining,
    /// Three heartbeats in a row are missing.
    Silent,
    Stopped,
}

impl WorkerState {
    /// Name in JSON and for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Draining => "draining",
            Self::Silent => "silent",
            Self::Stopped => "stopped",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningDocument {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub attempt: u32,
    /// Start of the attempt.
    pub started_at: String,
}
