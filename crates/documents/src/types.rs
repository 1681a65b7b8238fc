//! Documents of task types and their queues.

use std::collections::BTreeMap;

use kafleet_model::record::state::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    AdaptiveDocument, CircuitDocument, FlowDocument, HostDocument, PauseDocument, QueueDocument, TypeLimits,
    WorkerTotals,
};

/// Response of `GET /v1/types`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Types {
    pub types: Vec<TypeDocument>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Returns the schema of the params that people give: without those that a chain fills, which an `if` selects.
pub fn given_params(schema: &Value) -> &Value {
    schema.get("else").unwrap_or(schema)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TypeDocument {
    #[serde(rename = "type")]
    pub name: String,
    /// Whether the type has a topic.
    pub topic: bool,
    pub counts: BTreeMap<State, u64>,
    /// Number of queued and running tasks (including state `warning`), suitable as a scaling metric.
    pub backlog: u64,
    /// Number of retained tasks whose own state is failed or expired, without those that failed through a child. Null where
    /// it was not read.
    #[serde(default)]
    pub own_failed: Option<OwnFailed>,
    /// Rates of the last minutes and the verdict on the backlog; null where they were not read.
    #[serde(default)]
    pub flow: Option<FlowDocument>,
    /// Present while the type is paused; no tasks of it are started.
    #[serde(default)]
    pub paused: Option<PauseDocument>,
    /// Limits in effect.
    #[serde(default)]
    pub limits: TypeLimits,
    /// State of the circuit that an operator has set; null: each worker decides.
    #[serde(default)]
    pub circuit: Option<CircuitDocument>,
    /// Adaptive limit that the live workers apply; null if they have none.
    #[serde(default)]
    pub adaptive: Option<AdaptiveDocument>,
    /// Hosts whose circuits are open in a worker or set by an operator, by name: at most 100, of each worker its first 20.
    #[serde(default)]
    pub hosts: Vec<HostDocument>,
    /// Names of kill switches that can match tasks of this type.
    #[serde(default)]
    pub kills: Vec<String>,
    /// Totals over the live workers that take this type; null if there are none.
    #[serde(default)]
    pub worker_totals: Option<WorkerTotals>,
    /// Name of the app that declares the type.
    #[serde(default)]
    pub app: Option<String>,
    /// Description of the type.
    #[serde(default)]
    pub doc: Option<String>,
    /// JSON Schema of the params, if this API has the type or `kafleet topics apply` has declared it.
    #[serde(default)]
    pub schema: Option<Value>,
    /// JSON Schema of the result.
    #[serde(default)]
    pub output: Option<Value>,
    /// Params that the type declares.
    #[serde(default)]
    pub declared: DeclaredParams,
    /// Queue of the type. Only in `GET /v1/types/{type}`, and only if Kafka has answered.
    #[serde(default)]
    pub queue: Option<QueueDocument>,
    /// Events partitions that the store does not cover, as in the list of types. Only in a response with one type.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Params that a type declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeclaredParams {
    /// Terms of searches for tasks by their params, such as `params.order.id`.
    pub index: Vec<String>,
    /// JSON pointers to values of params and results that only the role `admin` sees.
    pub mask: Vec<String>,
}

/// Number of tasks that failed by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnFailed {
    pub tasks: u64,
    /// A partition has more than 200 different errors of the type: the number is a lower bound.
    pub at_least: bool,
}

/// Response of `GET /v1/types/{type}/backlog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backlog {
    pub backlog: u64,
}
