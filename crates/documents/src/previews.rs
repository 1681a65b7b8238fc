//! Documents of requests without effect, which show that of a request.

use kafleet_model::record::state::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problem;

/// Response of `POST /v1/preview`: the outcome that `POST /v1/tasks` with the same body would have now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPreview {
    /// The task would be accepted.
    pub valid: bool,
    /// Reasons why it would be refused; at most 20. Empty if it is valid.
    pub problems: Vec<Problem>,
    /// Id of the task; null if it would get a generated one, or if it is not valid.
    pub id: Option<String>,
    /// The task exists already with the same definition: the request would change nothing.
    pub exists: bool,
    /// Earliest start of the task, if it is later than now.
    pub starts_at: Option<String>,
}

/// Response of `POST /v1/schedules/{id}/preview`: what the schedule would do with this definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulePreview {
    /// The schedule would be accepted.
    pub valid: bool,
    /// Reasons why it would be refused. Empty if it is valid.
    pub problems: Vec<Problem>,
    /// A schedule with this id exists, and would be replaced.
    pub exists: bool,
    /// Times in words; null if they are not valid.
    pub description: Option<String>,
    /// The next times from now on; empty if they are not valid.
    pub times: Vec<String>,
}

/// Response of `GET /v1/schedules/{id}/backfill`: the effect that a backfill of the same range would have now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackfillPreview {
    pub id: String,
    /// Number of times in the range.
    pub times: u64,
    /// Number of these that have a task already.
    pub existing: u64,
    /// Number of tasks that would be created.
    pub missing: u64,
    /// Ids of the first tasks that would be created; at most 10.
    pub tasks: Vec<String>,
}

/// Response of `GET /v1/kill-switches/{name}/preview`: the tasks that the kill switch would cancel if no more came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KillSwitchPreview {
    /// Number of open tasks with the tag.
    pub tagged: u64,
    /// Number of open tasks whose id begins with the name, and that do not have the tag.
    pub prefixed: u64,
    /// Number of open tasks with the params.
    #[serde(default)]
    pub matched: u64,
    /// Number of these tasks that run an attempt, which continues.
    pub running: u64,
    /// False: the search stopped, and there may be more.
    pub exact: bool,
    /// The first of these tasks; at most 10.
    pub tasks: Vec<KilledTask>,
}

/// Task that a kill switch would cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KilledTask {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: Option<String>,
    pub state: State,
}
