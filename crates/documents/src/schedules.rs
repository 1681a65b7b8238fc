//! Documents of recurring schedules.

use kafleet_model::record::state::State;
use kafleet_model::schedule::Spec;
use kafleet_model::schedule::step::ScheduleOutcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PauseDocument;

/// Body of `POST /v1/schedules`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// 1 to 96 characters of `A-Z a-z 0-9 . _ ~ @ -`; prefix of the ids of the schedule's tasks.
    pub id: String,
    pub spec: Spec,
    /// Create the schedule in paused state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// Recurring schedule with its current status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDocument {
    pub id: String,
    /// Times in words, such as `at 03:00 every day, Europe/Berlin`; null if they are not valid.
    #[serde(default)]
    pub description: Option<String>,
    pub spec: Spec,
    pub paused: Option<PauseDocument>,
    /// Source that manages it by `kafleet schedules apply`: `config` for kafleet.toml, `app/` and the name of an app. Null:
    /// people manage it.
    pub owner: Option<String>,
    pub changed_at: String,
    /// Next five firing times, ignoring any pause.
    pub next: Vec<String>,
    /// Number of times fired, skipped because the previous task had not ended, and missed during outages (lower
    /// bound).
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
    /// Firing time that waits for the previous task to end.
    pub waiting: Option<String>,
    /// Most recently started task.
    pub last: Option<LastFiring>,
    /// Recent decisions, newest first; at most 10.
    pub recent: Vec<ScheduleNote>,
    /// Reason why the schedule cannot fire.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastFiring {
    /// Scheduled time.
    pub time: String,
    /// Time of firing.
    pub at: String,
    pub task: String,
    /// State of the task; null if its record is not visible yet or no longer retained.
    pub state: Option<State>,
}

/// Decision about one or several consecutive scheduled times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleNote {
    pub outcome: ScheduleOutcome,
    /// Scheduled time; the last one of several.
    pub time: String,
    pub at: String,
    pub task: Option<String>,
    /// Number of consecutive times with this outcome.
    pub count: u64,
    /// State of the task; null if there is none, its record is not visible, or, in a list of more than 200 schedules, it was
    /// not read.
    #[serde(default)]
    pub state: Option<State>,
}

/// Response of `GET /v1/schedules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedules {
    pub schedules: Vec<ScheduleDocument>,
}

/// Response of `GET /v1/schedules/{id}/times`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleTimes {
    pub id: String,
    pub times: Vec<String>,
}

/// Response of `POST /v1/schedules/{id}/trigger` and `/backfill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleRequestOutcome {
    pub id: String,
    /// Ids of the requested tasks. A backfill skips tasks that already exist.
    pub tasks: Vec<String>,
    /// False: the tracker has not processed the request yet, but will.
    pub done: bool,
}
