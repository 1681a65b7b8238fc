//! Periodic heartbeats of a worker: its identity, its types and its running attempts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{BrokerError, ProducerRecord};
use kafleet_config::Names;
use kafleet_fleet::control::CONTROL_VERSION;
use kafleet_runtime::{Shutdown, local_ms, now_ms};
use kafleet_telemetry::Metrics;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::dispatch::Command;
use super::key_check::MisplacedKeys;
use super::memory_budget::MemoryBudget;
pub(super) use kafleet_fleet::control::heartbeat::{Heartbeat, HeartbeatState, MAX_RUNNING, RunningTask, TypeStatus};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum time to wait for a dispatcher's status. A type whose dispatcher does not answer in time is reported with zero
/// slots and no partitions.
const STATUS_DEADLINE: Duration = Duration::from_millis(500);
const PUBLISH_DEADLINE: Duration = Duration::from_secs(2);
const OUTCOMES: [&str; 6] = ["succeeded", "failed", "cancelled", "expired", "retried", "interrupted"];

/// Publishes the heartbeats of a worker.
pub(super) struct HeartbeatSender {
    pub worker: Arc<str>,
    pub producer: Arc<SharedProducer>,
    pub names: Names,
    pub metrics: Metrics,
    pub memory: Arc<MemoryBudget>,
    pub misplaced_keys: MisplacedKeys,
    pub shutdown: Shutdown,
    pub dispatchers: Vec<(Arc<str>, mpsc::UnboundedSender<Command>)>,
    pub started: Instant,
}

impl HeartbeatSender {
    /// Publishes a heartbeat every [`HEARTBEAT_INTERVAL`] until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            ticks.tick().await;
            let state = if self.shutdown.is_draining() { HeartbeatState::Draining } else { HeartbeatState::Running };
            let published = self.publish(state, false).await;
            match &published {
                Err(error) if !failing => {
                    tracing::warn!(%error, "heartbeats cannot be published; the worker continues");
                }
                _ => {}
            }
            failing = published.is_err();
        }
    }

    /// Publishes the last heartbeat. `unfinished`: some tasks that this worker announced are left to other workers.
    pub(super) async fn publish_stopped(&self, unfinished: bool) {
        if let Err(error) = self.publish(HeartbeatState::Stopped, unfinished).await {
            tracing::warn!(%error, "the last heartbeat was not published");
        }
    }

    async fn publish(&self, state: HeartbeatState, unfinished: bool) -> Result<(), BrokerError> {
        let heartbeat = self.heartbeat(state, unfinished).await;
        let value = serde_json::to_vec(&heartbeat).map_err(|error| BrokerError::Invalid(error.to_string()))?;
        let topic = self.names.workers();
        let key = Some(self.worker.as_bytes());
        let record = ProducerRecord { topic: &topic, partition: Some(0), key, value: Some(&value), headers: &[] };
        self.producer.deliver(record, PUBLISH_DEADLINE).await.map(drop)
    }

    async fn heartbeat(&self, state: HeartbeatState, unfinished: bool) -> Heartbeat {
        let mut types = Vec::new();
        let mut running = Vec::new();
        for (task_type, dispatcher) in &self.dispatchers {
            let mut status = request_status(dispatcher).await.unwrap_or_default();
            status.task_type = task_type.to_string();
            status.finished = self.finished(task_type);
            status.misplaced_keys = self.misplaced_keys.lock().get(task_type).cloned();
            let group = self.names.group_name(task_type);
            status.group = (*group != **task_type).then(|| group.to_owned());
            running.append(&mut status.running);
            types.push(status);
        }
        running.sort_by_key(|task| task.started_ms);
        running.truncate(MAX_RUNNING);
        Heartbeat {
            v: CONTROL_VERSION,
            id: self.worker.to_string(),
            host: super::host(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            state,
            unfinished,
            started_ms: now_ms().saturating_sub(i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)),
            at_ms: local_ms(),
            every_ms: HEARTBEAT_INTERVAL.as_millis() as u64,
            held_bytes: self.memory.used() as u64,
            types,
            running,
        }
    }

    /// Number of finished attempts by outcome.
    fn finished(&self, task_type: &str) -> BTreeMap<String, u64> {
        let count = |outcome: &str| self.metrics.tasks.finished.with_label_values(&[task_type, outcome]).get();
        OUTCOMES.iter().map(|outcome| ((*outcome).to_owned(), count(outcome))).filter(|(_, count)| *count > 0).collect()
    }
}

async fn request_status(dispatcher: &mpsc::UnboundedSender<Command>) -> Option<TypeStatus> {
    let (reply, status) = oneshot::channel();
    dispatcher.send(Command::Describe(reply)).ok()?;
    tokio::time::timeout(STATUS_DEADLINE, status).await.ok()?.ok()
}
