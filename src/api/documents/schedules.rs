//! Recurring schedules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Paused;
use crate::model::record::state::State;
use crate::model::schedule::Spec;
use crate::model::schedule::step::Outcome;

/// `POST /v1/schedules`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// 1 to 96 characters of `A-Z a-z 0-9 . _ ~ @ -`: the ids of its tasks begin with it.
    pub id: String,
    pub spec: Spec,
    /// It is created paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// A recurring schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDocument {
    pub id: String,
    pub spec: Spec,
    pub paused: Option<Paused>,
    /// It comes from a configuration file, by `kafleet schedules apply`.
    pub applied: bool,
    pub changed_at: String,
    /// The next five times, as they would be if it were not paused.
    pub next: Vec<String>,
    /// Times fired, left out because the task before had not ended, and missed in an outage (at least).
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
    /// A time whose firing waits for the end of the task before.
    pub waiting: Option<String>,
    /// The task started last.
    pub last: Option<LastFiring>,
    /// At most 10, newest first.
    pub recent: Vec<ScheduleNote>,
    /// Why it cannot fire.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastFiring {
    /// The time it was for.
    pub time: String,
    /// When it was fired.
    pub at: String,
    pub task: String,
    /// None: its record is not folded yet, or no longer kept.
    pub state: Option<State>,
}

/// Something that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ScheduleNoteDocument")]
pub struct ScheduleNote {
    pub outcome: Outcome,
    /// The time it was for; of several in a row, the last one.
    pub time: String,
    pub at: String,
    pub task: Option<String>,
    /// Of several in a row: how many.
    pub count: u64,
}

/// `GET /v1/schedules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Schedules {
    pub schedules: Vec<ScheduleDocument>,
}

/// `GET /v1/schedules/{id}/times`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleTimes {
    pub id: String,
    pub times: Vec<String>,
}

/// `POST /v1/schedules/{id}/run` and `/backfill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleAsked {
    pub id: String,
    /// The tasks of what was asked for. Of a backfill those that there are already are left alone.
    pub tasks: Vec<String>,
    /// False: the tracker has not got so far, but it will.
    pub done: bool,
}
