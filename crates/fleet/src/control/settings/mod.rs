//! Fleet-wide settings on the compacted control topic: the number of events partitions, the task partitions that have
//! been consumed before, and the consumer groups that contain the commits of types.
//!
//! Keys: `fleet` → `{"v":1,"events_partitions":16}`; `consumed/<type>/<partition>` → `{"v":1,"at_ms":…}`;
//! `group/<type>` → `{"v":1,"at_ms":…,"group":"small"}`. A tombstone removes a key. Other keys are ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{
    Broker, BrokerClient, BrokerError, ConsumerSpec, Partition, ProducerRecord, RecordRef, StartOffset, Watermarks,
};
use kafleet_config::{Names, Topology};
use kafleet_model::json::short_reason;
use kafleet_model::task::id::check_type;
use kafleet_runtime::now_ms;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use crate::control::{Group, GroupRecords};
use crate::publish::PUBLISH_DEADLINE;

/// Version of the settings written by this build, and the highest version it reads.
pub const FLEET_VERSION: u32 = 1;

const FLEET_KEY: &str = "fleet";
const CONSUMED: &str = "consumed/";
const GROUP: &str = "group/";
/// Only partition of the control topic.
const PARTITION: i32 = 0;
const POLL_RECORDS: usize = 1_000;
const POLL_WAIT: Duration = Duration::from_millis(100);

/// Value of the `fleet` record: settings fixed by `kafleet topics apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FleetRecord {
    pub v: u32,
    pub events_partitions: u32,
}

/// Settings read from the control topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSettings {
    /// `None`: topics have not been applied.
    pub events_partitions: Option<u32>,
    /// Task partitions that a worker has consumed before, by type and number.
    pub consumed: BTreeSet<(String, i32)>,
    /// Records of the consumer groups that contain the commits of types.
    pub groups: GroupRecords,
}

/// Reason why the control topic cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetSettingsError {
    #[error("the topic `{0}` does not exist\n\nhint: run `kafleet topics apply`")]
    Missing(String),
    #[error("the topic `{0}` has no record of the number of events partitions\n\nhint: run `kafleet topics apply`")]
    NotApplied(String),
    #[error(
        "the fleet's settings in `{topic}` have version {version}, this build reads up to {FLEET_VERSION}: upgrade this process"
    )]
    Newer { topic: String, version: u32 },
    #[error(
        "the record `fleet` at offset {offset} of `{topic}` cannot be read: {reason}\n\nhint: run `kafleet topics apply`"
    )]
    Unreadable { topic: String, offset: i64, reason: String },
    #[error("`{topic}` was read only up to offset {next} of {end} within {waited_ms} ms")]
    Late { topic: String, next: i64, end: i64, waited_ms: u128 },
    #[error("reading the control topic: {0}")]
    Broker(#[from] BrokerError),
}

/// Classifies the error for callers that retry and report the reason.
impl From<FleetSettingsError> for BrokerError {
    fn from(error: FleetSettingsError) -> Self {
        match error {
            FleetSettingsError::Broker(error) => error,
            FleetSettingsError::Missing(_) => Self::Unknown(error.to_string()),
            FleetSettingsError::Late { .. } => Self::Unavailable(error.to_string()),
            _ => Self::Invalid(error.to_string()),
        }
    }
}

impl FleetSettings {
    /// Returns the topology of the fleet with these names, or an error with a hint.
    pub fn topology(&self, names: &Names) -> Result<Topology, FleetSettingsError> {
        let not_applied = || FleetSettingsError::NotApplied(names.control());
        Ok(Topology::new(names.clone(), self.events_partitions.ok_or_else(not_applied)?))
    }

    /// Returns whether any partition of the type has been consumed.
    pub fn is_type_consumed(&self, task_type: &str) -> bool {
        self.consumed.iter().any(|(name, _)| name == task_type)
    }

    /// Returns whether a partition of the type has been consumed.
    pub fn is_consumed(&self, task_type: &str, partition: i32) -> bool {
        self.consumed.contains(&(task_type.to_owned(), partition))
    }

    /// Returns the name of the consumer group that contains a type's commits: the type's own name, unless it shares
    /// one.
    pub fn group_of<'a>(&'a self, task_type: &'a str) -> &'a str {
        self.groups.group_of(task_type)
    }

    /// Applies one record. The last record of a key wins.
    pub fn apply_record(&mut self, record: &RecordRef<'_>) -> Result<(), FleetSettingsError> {
        let Some(key) = record.key.and_then(|key| std::str::from_utf8(key).ok()) else { return Ok(()) };
        if apply_consumed(&mut self.consumed, key, record.value) {
            return Ok(());
        }
        if key == FLEET_KEY {
            self.events_partitions = match record.value {
                Some(value) => Some(read_fleet(value, record)?.events_partitions),
                None => None,
            };
        } else if let Some(task_type) = key.strip_prefix(GROUP) {
            self.apply_group(task_type, record.value);
        }
        Ok(())
    }
}

impl FleetSettings {
    fn apply_group(&mut self, task_type: &str, value: Option<&[u8]>) {
        let Some(value) = value else {
            self.groups.0.remove(task_type);
            return;
        };
        // A record that cannot be decoded is ignored, as by processes that follow the topic.
        if let Ok(record) = serde_json::from_slice::<Group>(value)
            && check_type(&record.group).is_ok()
        {
            self.groups.0.insert(task_type.to_owned(), record);
        }
    }
}

/// Reads the whole control topic up to its current end, within the client's deadline.
pub async fn read_control(client: &BrokerClient, names: &Names) -> Result<FleetSettings, FleetSettingsError> {
    let names = names.clone();
    client.call(move |broker, deadline| read_control_blocking(broker, &names, deadline)).await
}

/// Reads the whole control topic up to its current end, on a thread that may block. Blocks for at most `deadline`.
pub fn read_control_blocking(
    broker: &dyn Broker,
    names: &Names,
    deadline: Duration,
) -> Result<FleetSettings, FleetSettingsError> {
    let topic = names.control();
    let begun = Instant::now();
    let left = || deadline.saturating_sub(begun.elapsed());
    if !broker.topics(&topic, left())?.iter().any(|info| info.name == topic) {
        return Err(FleetSettingsError::Missing(topic));
    }
    let partition = Partition::new(topic.as_str(), PARTITION);
    let ends = broker.watermarks(&partition, left())?;
    let mut control = FleetSettings::default();
    let mut reading = ReadProgress::new(ends);
    // The last record of the fleet counts.
    let mut fleet = Ok(());
    if reading.is_done() {
        return Ok(control);
    }
    // These keys are never written in transactions, so there is no need to wait for open ones.
    let mut consumer = broker.consumer(&ConsumerSpec { read_uncommitted: true, ..ConsumerSpec::default() })?;
    consumer.assign(&[(partition.clone(), StartOffset::Beginning)])?;
    while !reading.is_done() {
        if left().is_zero() {
            let ReadProgress { next, end } = reading;
            return Err(FleetSettingsError::Late { topic, next, end, waited_ms: deadline.as_millis() });
        }
        consumer.poll(POLL_RECORDS, POLL_WAIT.min(left()), &mut |record| {
            if reading.advance_past(record) {
                let taken = control.apply_record(record);
                if taken.is_err() || record.key == Some(FLEET_KEY.as_bytes()) {
                    fleet = taken;
                }
            }
        })?;
        // The last offsets may hold no record: transaction markers take one offset each and are never delivered.
        if let Some((_, offset)) = consumer.positions()?.first() {
            reading.advance_to(*offset);
        }
    }
    consumer.close(left().max(POLL_WAIT));
    fleet.map(|()| control)
}

/// Progress of reading a topic up to the end it had at the start.
pub(crate) struct ReadProgress {
    next: i64,
    end: i64,
}

impl ReadProgress {
    pub(crate) fn new(ends: Watermarks) -> Self {
        Self { next: ends.low, end: ends.high }
    }

    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Advances to `offset`: nothing visible lies between.
    pub(crate) fn advance_to(&mut self, offset: i64) {
        self.next = self.next.max(offset);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.end
    }

    /// Advances past a record. Returns false if the record was written after the initial end.
    pub(crate) fn advance_past(&mut self, record: &RecordRef<'_>) -> bool {
        let within = record.offset < self.end;
        self.next = self.next.max(record.offset + 1);
        within
    }
}

fn read_fleet(value: &[u8], record: &RecordRef<'_>) -> Result<FleetRecord, FleetSettingsError> {
    #[derive(Deserialize)]
    struct FleetRecordVersion {
        v: u32,
    }
    let topic = record.topic.to_owned();
    let offset = record.offset;
    let unreadable = |reason: String| FleetSettingsError::Unreadable { topic: topic.clone(), offset, reason };
    let FleetRecordVersion { v } = serde_json::from_slice(value).map_err(|error| unreadable(short_reason(&error)))?;
    if v > FLEET_VERSION {
        return Err(FleetSettingsError::Newer { topic, version: v });
    }
    let fleet: FleetRecord = serde_json::from_slice(value).map_err(|error| unreadable(short_reason(&error)))?;
    if fleet.events_partitions == 0 {
        return Err(unreadable("`events_partitions` is 0".into()));
    }
    Ok(fleet)
}

/// Applies the record of a key such as `consumed/echo/3` to the set of consumed partitions. Returns false for other keys.
pub(super) fn apply_consumed(consumed: &mut BTreeSet<(String, i32)>, key: &str, value: Option<&[u8]>) -> bool {
    let partition = key.strip_prefix(CONSUMED).and_then(|rest| rest.rsplit_once('/'));
    let partition = partition.and_then(|(task_type, number)| Some((task_type.to_owned(), number.parse().ok()?)));
    let Some(partition) = partition else { return false };
    match value {
        Some(_) => consumed.insert(partition),
        None => consumed.remove(&partition),
    };
    true
}

/// Records that a task partition has been consumed. From then on a missing commit means that the commit was lost, not
/// that the partition is new.
pub async fn mark_partition_consumed(
    producer: &SharedProducer,
    names: &Names,
    task_type: &str,
    partition: i32,
) -> Result<(), BrokerError> {
    let value = json!({"v": FLEET_VERSION, "at_ms": now_ms()}).to_string();
    write(producer, names, &format!("{CONSUMED}{task_type}/{partition}"), &value).await
}

/// Writes the fleet's settings.
pub async fn set_fleet(producer: &SharedProducer, names: &Names, events_partitions: u32) -> Result<(), BrokerError> {
    let value = json!(FleetRecord { v: FLEET_VERSION, events_partitions }).to_string();
    write(producer, names, FLEET_KEY, &value).await
}

async fn write(producer: &SharedProducer, names: &Names, key: &str, value: &str) -> Result<(), BrokerError> {
    let record = ProducerRecord {
        topic: &names.control(),
        partition: Some(PARTITION),
        key: Some(key.as_bytes()),
        value: Some(value.as_bytes()),
        headers: &[],
    };
    producer.deliver(record, PUBLISH_DEADLINE).await.map(drop)
}

#[cfg(test)]
mod tests;
