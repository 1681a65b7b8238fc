//! What a worker says of itself every few seconds, on the workers topic, under its id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CONTROL_VERSION;
use super::follow::{Sink, TopicFollower, follow};
use crate::broker::{Broker, RecordRef};
use crate::config::Names;

/// Running tasks that one heartbeat names.
pub const MAX_RUNNING: usize = 100;
/// Workers that are remembered; who was silent longest goes first.
const MAX_WORKERS: usize = 10_000;

/// A heartbeat: the value of a record on the workers topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    pub v: u32,
    pub id: String,
    pub host: String,
    pub pid: u32,
    /// Of kafleet.
    pub version: String,
    pub state: HeartbeatState,
    /// With the last one: it has given back tasks that it had begun, or that waited at it. They are looked for, and what is
    /// shown of them says that it has them no more.
    #[serde(default = "unknown")]
    pub unfinished: bool,
    /// Epoch milliseconds, by the worker's clock.
    pub started_ms: i64,
    pub at_ms: i64,
    /// The next one follows within so many ms. Three missed: the worker is silent.
    pub every_ms: u64,
    pub held_bytes: u64,
    pub types: Vec<TypeStatus>,
    /// At most 100, of all types.
    pub running: Vec<RunningTask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeartbeatState {
    Running,
    /// Told to stop: it finishes what runs.
    Draining,
    /// The last heartbeat.
    Stopped,
}

/// What an earlier build does not say may be so.
fn unknown() -> bool {
    true
}

/// One type's part of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TypeStatus {
    #[serde(rename = "type")]
    pub task_type: String,
    /// Attempts that may run at once.
    pub slots: u32,
    pub in_flight: u32,
    /// Tasks taken from Kafka that do not run: for want of a slot, or until a time.
    pub waiting: u32,
    pub paused: bool,
    /// Partitions of the type's topic that it has.
    pub partitions: Vec<i32>,
    /// Too many attempts have failed, and it starts no more of the type: which, and how many. Null: it does.
    #[serde(default)]
    pub stopped: Option<String>,
    /// Of its partitions those that it does not work on: somebody has to say where to begin.
    #[serde(default)]
    pub refused: Vec<i32>,
    /// Attempts since it started, by outcome.
    pub finished: BTreeMap<String, u64>,
    #[serde(skip)]
    pub running: Vec<RunningTask>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningTask {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub attempt: u32,
    /// Epoch milliseconds.
    pub began_ms: i64,
}

impl Heartbeat {
    /// It has missed three heartbeats without having stopped.
    pub fn is_silent(&self, heard_ms: i64, now_ms: i64) -> bool {
        self.state != HeartbeatState::Stopped && now_ms.saturating_sub(heard_ms) > self.silent_after_ms()
    }

    pub fn silent_after_ms(&self) -> i64 {
        i64::try_from(self.every_ms.saturating_mul(3)).unwrap_or(i64::MAX)
    }
}

/// The last heartbeat of each worker, and when the broker got it (epoch milliseconds).
#[derive(Default)]
pub struct WorkerRegistry {
    beats: RwLock<BTreeMap<String, (i64, Heartbeat)>>,
    /// The place behind the last one read.
    read_to: AtomicI64,
}

impl WorkerRegistry {
    pub fn beats(&self) -> Vec<(i64, Heartbeat)> {
        self.beats.read().values().cloned().collect()
    }

    /// Everything before this place of the workers topic has been read.
    pub fn has_read(&self, offset: i64) -> bool {
        self.read_to.load(Ordering::Acquire) >= offset
    }
}

/// Reads the heartbeats until the returned guard is dropped.
pub fn listen(roll: Arc<WorkerRegistry>, broker: Arc<dyn Broker>, names: &Names) -> TopicFollower {
    follow(broker, names.workers(), Listener { roll, misread: 0 })
}

struct Listener {
    roll: Arc<WorkerRegistry>,
    misread: u64,
}

impl Sink for Listener {
    fn restart(&mut self) {}

    fn record(&mut self, record: &RecordRef<'_>) {
        self.roll.read_to.store(record.offset + 1, Ordering::Release);
        let Some(id) = record.key.and_then(|key| std::str::from_utf8(key).ok()) else { return };
        let mut roll = self.roll.beats.write();
        let Some(value) = record.value else {
            roll.remove(id);
            return;
        };
        match serde_json::from_slice::<Heartbeat>(value) {
            Ok(beat) if beat.v <= CONTROL_VERSION => {
                roll.insert(id.to_owned(), (record.timestamp_ms, beat));
            }
            // Newer builds may say more than is understood here; the others go on being shown.
            _ if self.misread == 0 => {
                self.misread += 1;
                tracing::warn!(
                    topic = record.topic,
                    offset = record.offset,
                    "a heartbeat cannot be read; no more is said of others"
                );
            }
            _ => {}
        }
        if roll.len() > MAX_WORKERS {
            let oldest = roll.iter().min_by_key(|(_, (heard, _))| *heard).map(|(id, _)| id.clone());
            oldest.map(|id| roll.remove(&id));
        }
    }

    fn whole(&mut self) {}

    fn trouble(&mut self, _why: Option<&str>) {}
}
