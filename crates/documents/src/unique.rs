//! Documents of unique tasks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Key of unique tasks: the tasks that stand for it, and the asks so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "UniqueKey")]
pub struct UniqueKeyDocument {
    #[serde(rename = "type")]
    pub task_type: String,
    pub key: String,
    /// Beginning of the ids of the tasks of the key, before `~~`.
    pub tag: String,
    /// Ids of the open tasks: at most one, unless a task was retried by hand.
    pub open: Vec<String>,
    /// Task that waits for its start.
    pub kept: Option<KeptTaskDocument>,
    /// Id of the task that started last.
    pub last: Option<String>,
    /// Time of the last start.
    pub last_start: Option<String>,
    /// Time of the last ask.
    pub last_ask: Option<String>,
    /// Number of asks whose tasks started at once.
    pub started: u64,
    /// Number of asks that were kept, or that replaced a kept one.
    pub kept_asks: u64,
    /// Number of asks for which another task stands.
    pub joined: u64,
}

/// Unique task that is kept until it may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "KeptTask")]
pub struct KeptTaskDocument {
    pub id: String,
    /// Earliest start.
    pub due_at: String,
    /// The task also waits for the end of the open one.
    pub waits_for_open: bool,
    /// Time of the first ask since the last start.
    pub first_ask: String,
}
