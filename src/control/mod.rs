//! What people tell a running fleet, on the compacted control topic: cancels, pauses, limits, kill switches, and where to
//! begin. A record per key says how it is, a record without a value takes it back; whoever starts later reads the same.
//!
//! [`ControlState`] is what the topic says, record by record; [`ControlWatch`] holds it for a process and costs who has nothing to
//! obey one look at a number; [`tail`] keeps it true.

pub mod follow;
pub mod heartbeat;
pub mod schedules;
mod state;
mod watch;

pub use state::{ControlState, MAX_KILLS, Verdict};
pub use watch::{ControlWatch, HEALTH_PART, keep};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::broker::shared_producer::SharedProducer;
use crate::broker::{BrokerError, ProducerRecord};
use crate::config::{Names, Rate};
use crate::model::schedule::Schedule;
use crate::model::schedule::step::State;
use crate::model::task::Position;
use crate::model::task::id::check_type;
use crate::publish::PUBLISH_DEADLINE;

/// The version of the records that this build writes and the highest it can read.
pub const CONTROL_VERSION: u32 = 1;
/// The control topic has one partition.
const PARTITION: i32 = 0;
/// The longest name of a kill switch, in bytes.
pub const MAX_KILL_BYTES: usize = 128;

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKey {
    /// A task, by id.
    Cancel(String),
    /// A type.
    Pause(String),
    Slots(String),
    Rate(String),
    /// A tag, or how ids begin.
    Kill(String),
    /// A partition of a type's topic.
    Offsets(String, i32),
}

impl ControlKey {
    /// None: the key belongs to others. An error: it is one of these, and wrong.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = text.split_once('/') else { return Ok(None) };
        let of_type = |make: fn(String) -> Self| check_type(rest).map(|()| Some(make(rest.to_owned())));
        match kind {
            "cancel" => crate::model::task::id::TaskId::parse(rest)
                .map(|_| Some(Self::Cancel(rest.into())))
                .map_err(|why| why.to_string()),
            "pause" => of_type(Self::Pause),
            "slots" => of_type(Self::Slots),
            "rate" => of_type(Self::Rate),
            "kill" => check_kill(rest).map(|()| Some(Self::Kill(rest.into()))),
            "offsets" => {
                let (task_type, partition) = rest.rsplit_once('/').ok_or("it names no partition")?;
                check_type(task_type)?;
                let partition = partition.parse::<i32>().ok().filter(|number| *number >= 0);
                Ok(Some(Self::Offsets(task_type.into(), partition.ok_or("its partition is no number")?)))
            }
            _ => Ok(None),
        }
    }
}

impl std::fmt::Display for ControlKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cancel(id) => write!(f, "cancel/{id}"),
            Self::Pause(task_type) => write!(f, "pause/{task_type}"),
            Self::Slots(task_type) => write!(f, "slots/{task_type}"),
            Self::Rate(task_type) => write!(f, "rate/{task_type}"),
            Self::Kill(name) => write!(f, "kill/{name}"),
            Self::Offsets(task_type, partition) => write!(f, "offsets/{task_type}/{partition}"),
        }
    }
}

/// The name of a kill switch: a tag, or how ids begin.
pub fn check_kill(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_KILL_BYTES || name.chars().any(|c| c.is_control() || c == ',') {
        return Err(format!("the name of a kill switch is a tag or how ids begin: 1 to {MAX_KILL_BYTES} bytes, no comma"));
    }
    Ok(())
}

/// What a record says. Times are epoch milliseconds of whoever wrote it, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ControlRecord {
    Cancel(Cancel),
    Pause(Pause),
    Slots(Slots),
    Rate(RateLimit),
    Kill(Kill),
    Offsets(Offsets),
}

/// The values of control records, by how their keys begin: the published schema.
#[derive(JsonSchema)]
pub struct ByKey {
    pub cancel: Option<Cancel>,
    pub pause: Option<Pause>,
    pub slots: Option<Slots>,
    pub rate: Option<RateLimit>,
    pub kill: Option<Kill>,
    pub offsets: Option<Offsets>,
    pub schedule: Option<Schedule>,
    #[schemars(rename = "schedule-state")]
    pub schedule_state: Option<State>,
    #[schemars(rename = "schedule-ask")]
    pub schedule_ask: Option<schedules::ScheduleRequest>,
}

/// `cancel/<task id>`: the task, and what is below it, is to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cancel {
    pub v: u32,
    /// Where the request lies in the tree's events partition: it applies to tasks whose `ce_asof` is lower.
    pub asof: i64,
    #[serde(default)]
    pub at_ms: i64,
    /// Also what is below the task.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub subtree: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who asked for it: the name of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// `pause/<type>`: nothing of the type is started; what runs ends, partitions stay where they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pause {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `slots/<type>`: in place of what the configuration says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Attempts at once in each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub slots: Option<u32>,
    /// Attempts at once in the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
}

/// `rate/<type>`: in place of what the configuration says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RateLimit {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(flatten)]
    pub rate: Rate,
}

/// `kill/<name>`: tasks with this tag, or whose ids begin so, are not started but cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kill {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Only tasks of this type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `offsets/<type>/<partition>`: a worker that refuses the partition takes it up here, then removes the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offsets {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[schemars(range(min = 0))]
    pub offset: i64,
}

fn yes() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

/// Says how it is from now on; returns where that is written.
pub async fn order(
    link: &SharedProducer,
    names: &Names,
    key: &ControlKey,
    said: &ControlRecord,
) -> Result<Position, BrokerError> {
    let value = serde_json::to_vec(said).map_err(|why| BrokerError::Invalid(why.to_string()))?;
    write(link, names, key, Some(&value)).await
}

/// Takes it back.
pub async fn withdraw(link: &SharedProducer, names: &Names, key: &ControlKey) -> Result<Position, BrokerError> {
    write(link, names, key, None).await
}

/// Says something of schedules, or takes it back.
pub async fn arrange<T: Serialize>(
    link: &SharedProducer,
    names: &Names,
    key: &schedules::ScheduleKey,
    said: Option<&T>,
) -> Result<Position, BrokerError> {
    let value = said.map(serde_json::to_vec).transpose().map_err(|why| BrokerError::Invalid(why.to_string()))?;
    write(link, names, key, value.as_deref()).await
}

async fn write(
    link: &SharedProducer,
    names: &Names,
    key: &impl std::fmt::Display,
    value: Option<&[u8]>,
) -> Result<Position, BrokerError> {
    let (topic, key) = (names.control(), key.to_string());
    let record = ProducerRecord { topic: &topic, partition: Some(PARTITION), key: Some(key.as_bytes()), value, headers: &[] };
    link.deliver(record, PUBLISH_DEADLINE).await
}

pub mod settings;
#[cfg(test)]
mod tests;
