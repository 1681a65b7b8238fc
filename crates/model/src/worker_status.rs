//! Status of a worker's types, as in its heartbeats and in the API.

use std::collections::BTreeMap;
use std::fmt;

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
    /// Capacity for attempts in the processes of the type's app, which all its types share. Null for types of no app.
    #[serde(default)]
    pub capacity: Option<AppCapacity>,
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

/// Capacity for attempts in the processes of an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppCapacity {
    pub app: String,
    pub processes: u32,
    /// Attempts that one process runs at once: its slots, or its threads for `sync` types.
    pub per_process: u32,
    /// The attempts take threads, which are counted apart from slots.
    pub threads: bool,
}

impl AppCapacity {
    /// Attempts that all processes run at once.
    pub fn total(&self) -> u32 {
        self.processes.saturating_mul(self.per_process)
    }

    /// Returns the warning if a type may run more attempts at once than the processes.
    pub fn excess(&self, concurrency: u32) -> Option<String> {
        (concurrency > self.total()).then(|| format!("its concurrency of {concurrency} has no effect: {self}"))
    }
}

/// Such as `2 processes × 10 slots = 20 at once`.
impl fmt::Display for AppCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |n: u32, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let processes = match self.processes {
            1 => "1 process".to_owned(),
            n => format!("{n} processes"),
        };
        let capacity = counted(self.per_process, if self.threads { "thread" } else { "slot" });
        write!(f, "{processes} × {capacity} = {} at once", self.total())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_shown_as_a_product() {
        let capacity = AppCapacity { app: "shop".into(), processes: 2, per_process: 10, threads: false };
        assert_eq!(capacity.to_string(), "2 processes × 10 slots = 20 at once");
        assert_eq!(capacity.excess(20), None);
        let excess = capacity.excess(21).unwrap();
        assert_eq!(excess, "its concurrency of 21 has no effect: 2 processes × 10 slots = 20 at once");
        let single = AppCapacity { processes: 1, per_process: 1, threads: true, ..capacity };
        assert_eq!(single.to_string(), "1 process × 1 thread = 1 at once");
    }
}
