//! Status of a worker's types, as in its heartbeats and in the API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of one type in a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TypeStatus {
    #[serde(rename = "type")]
    pub task_type: String,
    /// Consumer group, if the type shares one with others.
    #[serde(default)]
    pub group: Option<String>,
    /// Maximum concurrent attempts.
    pub slots: u32,
    /// Running attempts.
    pub in_flight: u32,
    /// Tasks fetched from Kafka but not running, for lack of a slot or until a given time.
    pub waiting: u32,
    pub paused: bool,
    /// Assigned partitions of the type's topic.
    pub partitions: Vec<i32>,
    /// Reason why the type is stopped, with the number of failures. Null while it is not.
    #[serde(default)]
    pub stopped: Option<String>,
    /// Reason why only single probes of the type start: its circuit is open. Null while it is not.
    #[serde(default)]
    pub circuit: Option<String>,
    /// Reason why no process of the type's app has served for long. Null if one does, and for types of no app.
    #[serde(default)]
    pub app_down: Option<String>,
    /// First record whose key belongs into another partition: attempts of one key may overlap. Null if there is none, and for
    /// types without order or rate by key.
    #[serde(default)]
    pub misplaced_keys: Option<String>,
    /// Assigned partitions that the worker refuses to process until an operator sets a start offset.
    #[serde(default)]
    pub refused: Vec<i32>,
    /// Attempts that succeeded, failed, were cancelled, retried or interrupted, and tasks that expired before a start, since
    /// the worker started. Waits and restarts are not included.
    pub finished: BTreeMap<String, u64>,
    #[serde(skip)]
    pub running: Vec<RunningTask>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningTask {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub attempt: u32,
    /// Start of the attempt, epoch milliseconds.
    pub started_ms: i64,
}
