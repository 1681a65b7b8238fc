//! Status of a worker's types, as in its heartbeats and in the API.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::adaptive::RoundCounts;

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
    /// Number of hosts of which only single probes start: their circuits are open. 0 for types without circuits per host.
    #[serde(default)]
    pub open_hosts: u32,
    /// The first 20 of these hosts by name.
    #[serde(default)]
    pub hosts: Vec<OpenHost>,
    /// Share of the worker in the type's adaptive limit. Null for types without one.
    #[serde(default)]
    pub adaptive: Option<AdaptiveStatus>,
    /// Tasks that wait for others to form a batch. Null for types without batches.
    #[serde(default)]
    pub batches: Option<BatchStatus>,
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

impl TypeStatus {
    /// Attempts that the worker can run at once: its slots, as far as the processes of the type's app have room.
    pub fn usable_slots(&self) -> u64 {
        let capacity = self.capacity.as_ref().map_or(u32::MAX, AppCapacity::total);
        self.slots.min(capacity).into()
    }
}

/// Attempts that a worker with these types can run at once. Types of an app share the capacity of its processes, which counts
/// once for its slots and once for its threads.
pub fn slots_of_worker(types: &[TypeStatus]) -> u64 {
    let mut shared = BTreeMap::<(&str, bool), (u64, u64)>::new();
    let mut own = 0;
    for status in types {
        match &status.capacity {
            Some(capacity) => {
                let (slots, total) = shared.entry((&capacity.app, capacity.threads)).or_default();
                *slots += status.usable_slots();
                *total = capacity.total().into();
            }
            None => own += status.usable_slots(),
        }
    }
    own + shared.values().map(|(slots, total)| slots.min(total)).sum::<u64>()
}

/// Host whose circuit is open in a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenHost {
    /// Host, with the port if it is not that of the URL's scheme.
    pub host: String,
    /// Start of the outage and the last error, for people.
    pub reason: String,
    /// Tasks that wait in the worker for this host.
    pub waiting: u32,
}

/// Adaptive limit of a type in a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdaptiveStatus {
    /// Limit of concurrent attempts in the whole fleet.
    pub limit: f64,
    /// An operator has set the limit; nothing changes it.
    pub fixed: bool,
    /// Attempts that the worker may run at once because of it.
    pub slots: u32,
    /// Smallest limit, as configured.
    pub min: u32,
    /// Time of an attempt that the limit aims at, in milliseconds.
    pub target_ms: Option<u64>,
    /// Counts since the last decision.
    pub counts: RoundCounts,
}

/// Batches of a type that form in a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchStatus {
    /// Tasks in groups that are neither full nor old enough to start.
    pub forming: u32,
    /// Maximum number of tasks in a batch.
    pub max: u32,
    /// Time for which the first task of a batch waits for others, in milliseconds.
    pub wait_ms: u64,
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
    fn capacity_that_types_share_counts_once() {
        let status = |slots: u32, capacity: Option<(u32, bool)>| TypeStatus {
            slots,
            capacity: capacity.map(|(per_process, threads)| AppCapacity {
                app: "shop".into(),
                processes: 1,
                per_process,
                threads,
            }),
            ..TypeStatus::default()
        };
        let types = [status(20, Some((10, false))), status(8, Some((10, false))), status(8, Some((1, true)))];
        assert_eq!(types.each_ref().map(TypeStatus::usable_slots), [10, 8, 1]);
        assert_eq!(slots_of_worker(&types), 11, "10 slots and a thread");
        assert_eq!(
            slots_of_worker(&[&types[..], &[status(4, None)]].concat()),
            15,
            "other types have slots of their own"
        );
        assert_eq!(slots_of_worker(&[status(3, Some((10, false)))]), 3);
    }

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
