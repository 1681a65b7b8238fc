//! The fleet's settings, on the compacted control topic: read whole at start by every role.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::broker::link::Link;
use crate::broker::{Broker, BrokerError, ConsumerSpec, Outgoing, Partition, RecordRef, Start};
use crate::config::Names;
use crate::publish::PUBLISH_DEADLINE;
use crate::runtime::now_ms;

/// The key of the settings record; `consumed/<type>/<partition>` are the keys of the marks.
const FLEET_KEY: &str = "fleet";
const CONSUMED: &str = "consumed/";

/// What the control topic says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Partitions of the events topic: fixed once topics are applied.
    pub events_partitions: Option<u32>,
    /// Task partitions that have been consumed, by type: "no commit" there means that the commit is gone.
    pub consumed: BTreeSet<(String, i32)>,
}

/// The value of the `fleet` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FleetRecord {
    pub v: u32,
    pub events_partitions: u32,
}

/// Reads the control topic from its beginning to the end it has now.
pub fn read_control(broker: &dyn Broker, names: &Names, deadline: Duration) -> Result<Control, BrokerError> {
    let until = Instant::now() + deadline;
    let partition = Partition::new(names.control(), 0);
    let ends = broker.ends(&partition, deadline).map_err(|error| match error {
        BrokerError::Unknown(_) => BrokerError::Unknown(format!("`{}` (hint: run `kafleet topics apply`)", partition.topic)),
        error => error,
    })?;
    let mut control = Control::default();
    if ends.end <= ends.first {
        return Ok(control);
    }
    let mut consumer = broker.consumer(&ConsumerSpec { read_uncommitted: true, ..ConsumerSpec::default() })?;
    consumer.assign(&[(partition.clone(), Start::Beginning)])?;
    // The last offset may be a gap that compaction left: what counts is that nothing came for a while at the end.
    let mut next = ends.first;
    let mut quiet = 0;
    while next < ends.end && quiet < 5 {
        let before = next;
        consumer.poll(1_000, Duration::from_millis(200), &mut |record| {
            next = record.offset + 1;
            control.take(record);
        })?;
        quiet = if next == before && next > ends.first { quiet + 1 } else { 0 };
        if Instant::now() >= until {
            let told = format!("`{}` could not be read to its end within {} s", partition.topic, deadline.as_secs());
            return Err(BrokerError::Unavailable(told));
        }
    }
    consumer.close(Duration::from_secs(1));
    Ok(control)
}

impl Control {
    fn take(&mut self, record: &RecordRef<'_>) {
        let Some(key) = record.key.and_then(|key| std::str::from_utf8(key).ok()) else { return };
        if key == FLEET_KEY {
            let fleet = record.value.and_then(|value| serde_json::from_slice::<FleetRecord>(value).ok());
            self.events_partitions = fleet.map(|fleet| fleet.events_partitions);
        } else if let Some(mark) = parse_mark(key) {
            match record.value {
                Some(_) => self.consumed.insert(mark),
                None => self.consumed.remove(&mark),
            };
        }
    }
}

fn parse_mark(key: &str) -> Option<(String, i32)> {
    let (task_type, partition) = key.strip_prefix(CONSUMED)?.rsplit_once('/')?;
    Some((task_type.to_owned(), partition.parse().ok()?))
}

/// Records the number of events partitions.
pub async fn set_fleet(link: &Link, names: &Names, events_partitions: u32) -> Result<(), BrokerError> {
    let value =
        serde_json::to_vec(&FleetRecord { v: 1, events_partitions }).map_err(|why| BrokerError::Invalid(why.to_string()))?;
    write(link, names, FLEET_KEY, &value).await
}

/// Records that a task partition has been consumed.
pub async fn mark_consumed(link: &Link, names: &Names, task_type: &str, partition: i32) -> Result<(), BrokerError> {
    let value = format!("{{\"at_ms\":{}}}", now_ms());
    write(link, names, &format!("{CONSUMED}{task_type}/{partition}"), value.as_bytes()).await
}

async fn write(link: &Link, names: &Names, key: &str, value: &[u8]) -> Result<(), BrokerError> {
    let topic = names.control();
    let record = Outgoing { topic: &topic, partition: Some(0), key: Some(key.as_bytes()), value: Some(value), headers: &[] };
    link.deliver(record, PUBLISH_DEADLINE).await.map(drop)
}
