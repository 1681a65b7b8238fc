//! Records of recurring schedules on the control topic: their specs, their progress, and requests to the tracker.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_broker::RecordRef;
use kafleet_model::schedule::step::ScheduleProgress;
use kafleet_model::schedule::{Schedule, check_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record_value::{InvalidRecord, read};

/// Maximum number of schedules; further ones are refused.
pub const MAX_SCHEDULES: usize = 10_000;
/// Maximum number of pending requests.
pub const MAX_REQUESTS: usize = 1_000;
const MAX_REQUEST_CHARS: usize = 64;

const SCHEDULE: &str = "schedule/";
const STATE: &str = "schedule-state/";
const REQUEST: &str = "schedule-request/";

/// `schedule-request/<schedule>/<request>`: one-time request, removed in the transaction that carries it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleRequest {
    pub v: u32,
    /// Requester's clock, epoch milliseconds.
    pub at_ms: i64,
    /// Create tasks for the times in this range that have none. `None`: trigger one run now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<ScheduleSpan>,
}

/// Inclusive range of times, epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleSpan {
    pub from_ms: i64,
    pub to_ms: i64,
}

/// Key of a schedule's control record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScheduleKey {
    Schedule(String),
    State(String),
    ScheduleRequest(String, String),
}

impl ScheduleKey {
    /// Returns `None` for keys outside this module, and an error for invalid keys of these kinds.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidRecord> {
        let named = |name: &str| check_name(name).map(|()| name.to_owned()).map_err(InvalidRecord::Key);
        if let Some(name) = text.strip_prefix(SCHEDULE) {
            return Ok(Some(Self::Schedule(named(name)?)));
        }
        if let Some(name) = text.strip_prefix(STATE) {
            return Ok(Some(Self::State(named(name)?)));
        }
        let Some(rest) = text.strip_prefix(REQUEST) else { return Ok(None) };
        let (name, request) = rest.split_once('/').ok_or(InvalidRecord::NoRequest)?;
        let fits = (1..=MAX_REQUEST_CHARS).contains(&request.len()) && check_name(request).is_ok();
        if fits {
            Ok(Some(Self::ScheduleRequest(named(name)?, request.to_owned())))
        } else {
            Err(InvalidRecord::NoRequest)
        }
    }
}

impl std::fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Schedule(name) => write!(f, "{SCHEDULE}{name}"),
            Self::State(name) => write!(f, "{STATE}{name}"),
            Self::ScheduleRequest(name, request) => write!(f, "{REQUEST}{name}/{request}"),
        }
    }
}

/// Schedules, their progress and pending requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScheduleState {
    pub schedules: BTreeMap<String, Arc<Schedule>>,
    pub states: BTreeMap<String, Arc<ScheduleProgress>>,
    /// Keyed by schedule, then by request.
    pub requests: BTreeMap<(String, String), ScheduleRequest>,
}

impl ScheduleState {
    pub fn is_empty(&self) -> bool {
        self.schedules.is_empty() && self.states.is_empty() && self.requests.is_empty()
    }

    /// Applies one record. A record that cannot be decoded is an error and changes nothing.
    pub(super) fn apply_record(&mut self, key: ScheduleKey, record: &RecordRef<'_>) -> Result<(), InvalidRecord> {
        match (key, record.value) {
            (ScheduleKey::Schedule(name), Some(value)) => {
                if self.schedules.len() >= MAX_SCHEDULES && !self.schedules.contains_key(&name) {
                    return Err(InvalidRecord::TooMany { limit: MAX_SCHEDULES, records: "schedules" });
                }
                self.schedules.insert(name, Arc::new(read(value)?));
            }
            (ScheduleKey::State(name), Some(value)) => {
                self.states.insert(name, Arc::new(read(value)?));
            }
            (ScheduleKey::ScheduleRequest(name, request), Some(value)) => {
                if self.requests.len() >= MAX_REQUESTS {
                    return Err(InvalidRecord::TooMany { limit: MAX_REQUESTS, records: "pending requests" });
                }
                self.requests.insert((name, request), read(value)?);
            }
            (ScheduleKey::Schedule(name), None) => drop(self.schedules.remove(&name)),
            (ScheduleKey::State(name), None) => drop(self.states.remove(&name)),
            (ScheduleKey::ScheduleRequest(name, request), None) => drop(self.requests.remove(&(name, request))),
        }
        Ok(())
    }
}
