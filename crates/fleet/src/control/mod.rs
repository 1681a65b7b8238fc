//! Runtime control of a fleet through the compacted control topic: cancels, starts, pauses, limits, kill switches
//! and start offsets. A record sets the state of its key, a tombstone removes it; a process that starts later reads the same
//! state.
//!
//! [`ControlState`] holds the contents of the topic. [`ControlWatch`] shares it within a process; without active
//! commands the cost per task is one atomic load. [`follow_control`] keeps it up to date.
//!
//! Invariant: a record is the whole state of its key, never a difference, so that compaction and repeated reading
//! change nothing. A worker starts no task before it has read the topic to its end: it would run tasks that are
//! cancelled, and types that are paused.
//!
//! Read next: `state.rs` (contents, and what they mean for a task), `task_commands.rs`, `watch.rs`, `follow.rs` (reading).

pub mod follow;
mod groups;
pub mod heartbeat;
mod policies;
mod record_value;
pub mod schedules;
mod state;
mod task_commands;
pub mod types;
pub mod views;
mod watch;

pub use groups::{GroupRecords, MisplacedCommits};
pub use policies::{Policies, PolicyUpdates};
pub use record_value::InvalidRecord;
pub use state::{Cancellation, ControlState, MAX_HOST_CIRCUITS, MAX_KILLS};
pub use task_commands::StartNow;
pub use watch::{ControlNotRead, ControlWatch, HEALTH_PART, follow_control};

use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{BrokerError, ProducerRecord};
use kafleet_config::{AdaptiveOverride, Names, Rate};
use kafleet_model::adaptive::AdaptiveLimit;
use kafleet_model::omit::is_true;
use kafleet_model::schedule::Schedule;
use kafleet_model::schedule::step::ScheduleProgress;
use kafleet_model::task::Position;
use kafleet_model::task::id::{TaskId, check_type, clip, is_path_step};
use kafleet_model::task::kill::{KillMatch, KillParams, KillRule};
use kafleet_runtime::clock::skew_text;
use kafleet_runtime::{Backoff, now_ms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::publish::PUBLISH_DEADLINE;

/// Version of the records written by this build, and the highest version it reads.
pub const CONTROL_VERSION: u32 = 1;
/// Only partition of the control topic.
const PARTITION: i32 = 0;
/// Key of the records from whose acknowledgements roles learn the brokers' time.
const CLOCK_KEY: &str = "clock";
/// Maximum length of a host with its port, in bytes.
const MAX_HOST_BYTES: usize = 262;
/// Maximum length of a kill switch's name, in bytes.
pub const MAX_KILL_BYTES: usize = 128;

/// Key of a control record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKey {
    /// Task id.
    Cancel(String),
    Start(String),
    /// Type name.
    Pause(String),
    Slots(String),
    Adaptive(String),
    Rate(String),
    Circuit(String),
    /// Type name and host.
    HostCircuit(String, String),
    /// Tag, or prefix of ids.
    Kill(String),
    /// Partition of a type's topic.
    Offsets(String, i32),
    /// Type name.
    Group(String),
    Type(String),
    /// Name of a view of tasks.
    View(String),
}

impl ControlKey {
    /// Returns `None` for keys outside this module, and an error for invalid keys of these kinds.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidRecord> {
        let Some((kind, rest)) = text.split_once('/') else { return Ok(None) };
        let of_type = |make: fn(String) -> Self| match check_type(rest) {
            Ok(()) => Ok(Some(make(rest.to_owned()))),
            Err(error) => Err(InvalidRecord::Key(error)),
        };
        let of_task = |make: fn(String) -> Self| match TaskId::parse(rest) {
            Ok(_) => Ok(Some(make(rest.to_owned()))),
            Err(error) => Err(InvalidRecord::Key(error.to_string())),
        };
        match kind {
            "cancel" => of_task(Self::Cancel),
            "start" => of_task(Self::Start),
            "pause" => of_type(Self::Pause),
            "slots" => of_type(Self::Slots),
            "adaptive" => of_type(Self::Adaptive),
            "rate" => of_type(Self::Rate),
            "circuit" => match rest.split_once('/') {
                Some((task_type, host)) => {
                    check_type(task_type).and_then(|()| check_host(host)).map_err(InvalidRecord::Key)?;
                    Ok(Some(Self::HostCircuit(task_type.into(), host.into())))
                }
                None => of_type(Self::Circuit),
            },
            "group" => of_type(Self::Group),
            "type" => of_type(Self::Type),
            "view" => {
                views::check_view_name(rest).map_err(InvalidRecord::Key)?;
                Ok(Some(Self::View(rest.into())))
            }
            "kill" => {
                check_kill(rest).map_err(InvalidRecord::Key)?;
                Ok(Some(Self::Kill(rest.into())))
            }
            "offsets" => {
                let (task_type, partition) = rest.rsplit_once('/').ok_or(InvalidRecord::NoPartition)?;
                check_type(task_type).map_err(InvalidRecord::Key)?;
                let partition = partition.parse::<i32>().ok().filter(|number| *number >= 0);
                Ok(Some(Self::Offsets(task_type.into(), partition.ok_or(InvalidRecord::NoPartition)?)))
            }
            _ => Ok(None),
        }
    }
}

impl std::fmt::Display for ControlKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cancel(id) => write!(f, "cancel/{id}"),
            Self::Start(id) => write!(f, "start/{id}"),
            Self::Pause(task_type) => write!(f, "pause/{task_type}"),
            Self::Slots(task_type) => write!(f, "slots/{task_type}"),
            Self::Adaptive(task_type) => write!(f, "adaptive/{task_type}"),
            Self::Rate(task_type) => write!(f, "rate/{task_type}"),
            Self::Circuit(task_type) => write!(f, "circuit/{task_type}"),
            Self::HostCircuit(task_type, host) => write!(f, "circuit/{task_type}/{host}"),
            Self::Group(task_type) => write!(f, "group/{task_type}"),
            Self::Type(task_type) => write!(f, "type/{task_type}"),
            Self::View(name) => write!(f, "view/{name}"),
            Self::Kill(name) => write!(f, "kill/{name}"),
            Self::Offsets(task_type, partition) => write!(f, "offsets/{task_type}/{partition}"),
        }
    }
}

/// Checks a host of a circuit: as in a URL, with the port if it is not that of the scheme.
pub fn check_host(host: &str) -> Result<(), String> {
    let is_host = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    if host.is_empty() || host.len() > MAX_HOST_BYTES || !host.chars().all(is_host) {
        return Err(format!(
            "`{}` is not a host; it is written in lower case, with the port if it is not that of the URL's scheme, such as `hooks.example.com` or `10.0.0.7:8443`",
            clip(host)
        ));
    }
    Ok(())
}

/// Checks the name of a kill switch: a tag, a prefix of ids, or with params any name.
pub fn check_kill(name: &str) -> Result<(), String> {
    let is_broken = name.chars().any(|c| c.is_control() || c == ',') || is_path_step(name);
    if name.is_empty() || name.len() > MAX_KILL_BYTES || is_broken {
        return Err(format!(
            "a kill switch is named by a tag, a prefix of ids or a name: 1 to {MAX_KILL_BYTES} bytes, no comma, not `.` or `..`"
        ));
    }
    Ok(())
}

/// Value of a control record. Times are epoch milliseconds of the writer's clock, for display only.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ControlRecord {
    Cancel(Cancel),
    Start(StartNow),
    Pause(Pause),
    Slots(Slots),
    Adaptive(AdaptiveRecord),
    Rate(RateLimit),
    Circuit(CircuitSetting),
    Kill(Kill),
    Offsets(Offsets),
    Group(Group),
    Type(Box<types::TypeRecord>),
    View(Box<views::ViewRecord>),
}

/// Record with its key.
pub type ControlCommand = (ControlKey, ControlRecord);

/// Values of control records by the prefix of their keys, for the published schema.
#[derive(JsonSchema)]
pub struct ByKey {
    pub cancel: Option<Cancel>,
    pub start: Option<StartNow>,
    pub pause: Option<Pause>,
    pub slots: Option<Slots>,
    pub adaptive: Option<AdaptiveRecord>,
    pub rate: Option<RateLimit>,
    pub circuit: Option<CircuitSetting>,
    pub kill: Option<Kill>,
    pub offsets: Option<Offsets>,
    pub group: Option<Group>,
    #[schemars(rename = "type")]
    pub task_type: Option<types::TypeRecord>,
    pub view: Option<views::ViewRecord>,
    pub schedule: Option<Schedule>,
    #[schemars(rename = "schedule-state")]
    pub schedule_state: Option<ScheduleProgress>,
    #[schemars(rename = "schedule-request")]
    pub schedule_request: Option<schedules::ScheduleRequest>,
}

/// `cancel/<task id>`: ends the task and its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cancel {
    pub v: u32,
    /// Offset of the request in the tree's events partition: it applies to tasks with a lower `ce_asof`.
    pub asof: i64,
    #[serde(default)]
    pub at_ms: i64,
    /// Whether the cancel covers the descendants too.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub subtree: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// `pause/<type>`: no task of the type starts. Running tasks finish; workers keep their partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pause {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// `slots/<type>`: overrides the configured concurrency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Maximum concurrent attempts per worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub slots: Option<u32>,
    /// Maximum concurrent attempts in the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrency: Option<u32>,
    /// Adaptive limit, instead of the learned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveOverride>,
}

/// `adaptive/<type>`: limit of the fleet that the tracker has learned. Workers take their shares of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdaptiveRecord {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(flatten)]
    pub learned: AdaptiveLimit,
}

/// `rate/<type>`: overrides the configured rate limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RateLimit {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(flatten)]
    pub rate: Rate,
}

/// `circuit/<type>`: state of the type's circuit in all workers; `circuit/<type>/<host>`: that of one host of many. Without a record each worker decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CircuitSetting {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    pub state: ForcedCircuit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// State of a circuit that an operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForcedCircuit {
    /// Nothing starts, not even a probe.
    Open,
    /// Never opens.
    Closed,
}

impl ForcedCircuit {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// `kill/<name>`: tasks with this tag or id prefix, or with these params, are cancelled instead of started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kill {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Restricts the switch to tags or to prefixes of ids. With `params` it is `tag`: builds that do not know them then look for a
    /// tag of this name instead of ending all tasks whose ids begin with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<KillMatch>,
    /// Restricts the switch to one type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<String>,
    /// Params that tasks of the type have; the name of the switch is then only a name.
    #[serde(default, skip_serializing_if = "KillParams::is_empty")]
    pub params: KillParams,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the API token that made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Kill {
    /// Conditions of the switch of this name.
    pub fn rule<'a>(&'a self, name: &'a str) -> KillRule<'a> {
        KillRule { name, matches: self.matches, task_type: self.task_type.as_deref(), params: &self.params }
    }
}

/// `offsets/<type>/<partition>`: a worker that refuses the partition resumes it at this offset, then removes the
/// record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offsets {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[schemars(range(min = 0))]
    pub offset: i64,
}

/// `group/<type>`: consumer group that contains the commits of the type. Without a record it is the type's own. Written
/// by the first worker of the type, and by `kafleet offsets move`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    /// Name of the group, as in `[types.<type>] group`.
    pub group: String,
    /// Group to which the commits are being moved: until the move has ended, no worker starts the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<String>,
}

/// Record of a command, for a transaction. `value`: its encoded form.
pub(crate) fn command_record<'a>(topic: &'a str, key: &'a str, value: &'a [u8]) -> ProducerRecord<'a> {
    ProducerRecord { topic, partition: Some(PARTITION), key: Some(key.as_bytes()), value: Some(value), headers: &[] }
}

fn yes() -> bool {
    true
}

/// Writes a record and returns its position.
pub async fn put_record(
    producer: &SharedProducer,
    names: &Names,
    key: &ControlKey,
    record: &ControlRecord,
) -> Result<Position, BrokerError> {
    let value = serde_json::to_vec(record).map_err(|error| BrokerError::Invalid(error.to_string()))?;
    write(producer, names, key, Some(&value)).await
}

/// Records that the commits of a type are in this consumer group, and returns the position of the record.
pub async fn record_group(
    producer: &SharedProducer,
    names: &Names,
    task_type: &str,
    group: &str,
) -> Result<Position, BrokerError> {
    put_group(producer, names, task_type, group, None).await
}

/// Records that the commits of a type are being moved to another consumer group.
pub async fn record_group_move(
    producer: &SharedProducer,
    names: &Names,
    task_type: &str,
    from: &str,
    to: &str,
) -> Result<Position, BrokerError> {
    put_group(producer, names, task_type, from, Some(to.to_owned())).await
}

async fn put_group(
    producer: &SharedProducer,
    names: &Names,
    task_type: &str,
    group: &str,
    moving_to: Option<String>,
) -> Result<Position, BrokerError> {
    let record = Group { v: CONTROL_VERSION, at_ms: now_ms(), group: group.to_owned(), moving_to };
    put_record(producer, names, &ControlKey::Group(task_type.to_owned()), &ControlRecord::Group(record)).await
}

/// Removes a key.
pub async fn delete(producer: &SharedProducer, names: &Names, key: &ControlKey) -> Result<Position, BrokerError> {
    write(producer, names, key, None).await
}

/// Writes a record of a schedule; `None` deletes its key.
pub async fn put_schedule<T: Serialize>(
    producer: &SharedProducer,
    names: &Names,
    key: &schedules::ScheduleKey,
    record: Option<&T>,
) -> Result<Position, BrokerError> {
    let value = record.map(serde_json::to_vec).transpose().map_err(|error| BrokerError::Invalid(error.to_string()))?;
    write(producer, names, key, value.as_deref()).await
}

/// Writes a tombstone, only to learn the brokers' time from its acknowledgement. Roles call this at their start,
/// before they compare any times; later they learn the time from their other records and from heartbeats. Repeats the
/// write until the brokers answer, unless they reject the record.
pub async fn learn_broker_time(producer: &SharedProducer, names: &Names) {
    if !kafleet_runtime::follows_broker_clock() {
        return;
    }
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    while let Err(error) = write(producer, names, &CLOCK_KEY, None).await {
        if matches!(error, BrokerError::Denied(_) | BrokerError::Invalid(_) | BrokerError::TooLarge(_)) {
            tracing::warn!(%error, "the brokers' time is not known yet; this machine's clock is used");
            return;
        }
        tracing::debug!(%error, "the brokers' time is not known yet; retrying");
        tokio::time::sleep(backoff.next_wait()).await;
    }
    if let Some(skew) = skew_text(kafleet_runtime::clock_ahead_ms()) {
        tracing::warn!("the clock of this machine is {skew}; the brokers' is used: synchronise it");
    }
}

async fn write(
    producer: &SharedProducer,
    names: &Names,
    key: &impl std::fmt::Display,
    value: Option<&[u8]>,
) -> Result<Position, BrokerError> {
    let topic = names.control();
    let key = key.to_string();
    let record =
        ProducerRecord { topic: &topic, partition: Some(PARTITION), key: Some(key.as_bytes()), value, headers: &[] };
    producer.deliver(record, PUBLISH_DEADLINE).await
}

pub mod settings;
#[cfg(test)]
mod tests;
