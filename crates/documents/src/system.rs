//! Documents of the services behind a fleet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Services behind a fleet, as one API sees them: `GET /v1/system`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SystemDocument {
    /// Version of the API that answers.
    pub version: String,
    /// Start of that API.
    pub started_at: String,
    /// Version of the projection that trackers of this build write.
    pub fold_version: u32,
    /// Reason why the API is not ready; null if it is.
    pub not_ready: Option<String>,
    pub events_topic: String,
    pub control_topic: String,
    /// Offset after the last record of the control topic that the API has read.
    pub control_read_to: i64,
    /// Maximum age of an open tree, ms.
    pub max_tree_age_ms: i64,
    /// Memory of the Redis servers that have a limit.
    pub stores: Vec<StoreMemory>,
    /// Projection of each events partition.
    pub partitions: Vec<ProjectionDocument>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Memory of a server of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreMemory {
    pub server: String,
    pub used_bytes: u64,
    pub limit_bytes: u64,
}

/// Progress of the projection of an events partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectionDocument {
    pub partition: u32,
    /// Offset up to which a tracker has projected it; null before its first batch.
    pub projected: Option<i64>,
    /// End of the partition.
    pub end: i64,
    /// Version of the projection that wrote it.
    pub fold_version: Option<u32>,
    /// Log time of the newest projected event.
    pub log_time: Option<String>,
}

impl ProjectionDocument {
    /// Offsets that are not projected yet. The end of a transaction takes an offset without an event.
    pub const fn behind(&self) -> i64 {
        let projected = match self.projected {
            Some(projected) => projected,
            None => 0,
        };
        if self.end > projected { self.end - projected } else { 0 }
    }
}
