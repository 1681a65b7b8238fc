//! Worker heartbeats on the workers topic, keyed by worker id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kafleet_broker::{Broker, RecordRef, Watermarks};
use kafleet_config::Names;
use kafleet_runtime::observe_broker_time;
use parking_lot::RwLock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CONTROL_VERSION;
use super::follow::{Sink, TopicFollower, follow};
pub use kafleet_model::worker_status::{RunningTask, TypeStatus};

/// Maximum number of running tasks listed in one heartbeat.
pub const MAX_RUNNING: usize = 100;
/// Maximum number of workers kept; those silent for longest are dropped first.
const MAX_WORKERS: usize = 10_000;

/// Heartbeat: value of a record on the workers topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Version of the format.
    pub v: u32,
    pub id: String,
    pub host: String,
    pub pid: u32,
    /// Version of kafleet.
    pub version: String,
    pub state: HeartbeatState,
    /// Set in the last heartbeat of a worker that released started or waiting tasks. The tracker then checks these
    /// tasks, and they are no longer shown as held by the worker.
    #[serde(default = "unknown")]
    pub unfinished: bool,
    /// Start of the worker by the brokers' clock, epoch milliseconds.
    pub started_ms: i64,
    /// Time of the heartbeat by the clock of the worker's machine, epoch milliseconds. Its difference to the timestamp of
    /// the record, which the broker sets, shows how wrong that clock is.
    pub at_ms: i64,
    /// Interval to the next heartbeat, ms. After three missed ones the worker counts as silent.
    pub every_ms: u64,
    /// Memory of tasks that are fetched and not completed, bytes.
    pub held_bytes: u64,
    pub types: Vec<TypeStatus>,
    /// Running tasks of all types; at most 100.
    pub running: Vec<RunningTask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeartbeatState {
    Running,
    /// The worker is stopping and finishes its running tasks.
    Draining,
    /// Last heartbeat of the worker.
    Stopped,
}

/// Default for heartbeats of builds without the field: the worker may have unfinished tasks.
fn unknown() -> bool {
    true
}

impl Heartbeat {
    /// Returns true if the worker missed three heartbeats without having stopped.
    pub fn is_silent(&self, received_ms: i64, now_ms: i64) -> bool {
        self.state != HeartbeatState::Stopped && now_ms.saturating_sub(received_ms) > self.silent_after_ms()
    }

    /// Time by which the clock of the worker's machine is ahead of the broker's, in milliseconds. `received_ms`: timestamp of
    /// the record.
    pub fn clock_ahead_ms(&self, received_ms: i64) -> i64 {
        self.at_ms.saturating_sub(received_ms)
    }

    pub fn silent_after_ms(&self) -> i64 {
        i64::try_from(self.every_ms.saturating_mul(3)).unwrap_or(i64::MAX)
    }
}

/// Last heartbeat of each worker with its broker timestamp (epoch milliseconds).
#[derive(Default)]
pub struct WorkerRegistry {
    heartbeats: RwLock<BTreeMap<String, (i64, Heartbeat)>>,
    /// Offset after the last record read.
    read_to: AtomicI64,
}

impl WorkerRegistry {
    pub fn heartbeats(&self) -> Vec<(i64, Heartbeat)> {
        self.heartbeats.read().values().cloned().collect()
    }

    /// Returns true if the workers topic has been read to its end. Of an idle fleet all heartbeats may have been removed.
    pub fn has_read(&self, topic: Watermarks) -> bool {
        topic.low == topic.high || self.read_to.load(Ordering::Acquire) >= topic.high
    }
}

/// Follows the workers topic until the returned guard is dropped.
pub fn listen(registry: Arc<WorkerRegistry>, broker: Arc<dyn Broker>, names: &Names) -> TopicFollower {
    follow(broker, names.workers(), Listener { registry, misread: 0, is_caught_up: false })
}

struct Listener {
    registry: Arc<WorkerRegistry>,
    misread: u64,
    /// The heartbeats that are read were just written.
    is_caught_up: bool,
}

impl Sink for Listener {
    fn restart(&mut self) {
        self.is_caught_up = false;
    }

    fn record(&mut self, record: &RecordRef<'_>) {
        self.registry.read_to.store(record.offset + 1, Ordering::Release);
        if self.is_caught_up && record.log_append_time {
            observe_broker_time(record.timestamp_ms);
        }
        let Some(id) = record.key.and_then(|key| std::str::from_utf8(key).ok()) else { return };
        let mut heartbeats = self.registry.heartbeats.write();
        let Some(value) = record.value else {
            heartbeats.remove(id);
            return;
        };
        match serde_json::from_slice::<Heartbeat>(value) {
            Ok(heartbeat) if heartbeat.v <= CONTROL_VERSION => {
                heartbeats.insert(id.to_owned(), (record.timestamp_ms, heartbeat));
            }
            // Heartbeats of newer builds may be incompatible; one warning is enough.
            _ if self.misread == 0 => {
                self.misread += 1;
                warn_misread(record);
            }
            _ => {}
        }
        if heartbeats.len() > MAX_WORKERS {
            let oldest = heartbeats.iter().min_by_key(|(_, (heard, _))| *heard).map(|(id, _)| id.clone());
            oldest.map(|id| heartbeats.remove(&id));
        }
    }

    fn caught_up(&mut self) {
        self.is_caught_up = true;
    }

    fn report_problem(&mut self, _reason: Option<&str>) {}
}

fn warn_misread(record: &RecordRef<'_>) {
    let (topic, offset) = (record.topic, record.offset);
    tracing::warn!(topic, offset, "a heartbeat cannot be decoded; further ones are not logged");
}
