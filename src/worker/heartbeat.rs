//! The worker tells who it is and what it does, every few seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::dispatch::Command;
use super::memory_budget::MemoryBudget;
use crate::broker::shared_producer::SharedProducer;
use crate::broker::{BrokerError, ProducerRecord};
use crate::config::Names;
use crate::control::CONTROL_VERSION;
pub use crate::control::heartbeat::{Heartbeat, HeartbeatState, MAX_RUNNING, RunningTask, TypeStatus};
use crate::runtime::{Shutdown, now_ms};
use crate::telemetry::Metrics;

const EVERY: Duration = Duration::from_secs(3);
/// How long a dispatcher may take to describe itself; one that is stuck is left out.
const PATIENCE: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(2);
const OUTCOMES: [&str; 6] = ["succeeded", "failed", "cancelled", "expired", "retried", "interrupted"];

/// What heartbeats are made of.
pub struct HeartbeatSender {
    pub worker: Arc<str>,
    pub link: Arc<SharedProducer>,
    pub names: Names,
    pub metrics: Metrics,
    pub memory: Arc<MemoryBudget>,
    pub shutdown: Shutdown,
    pub dispatchers: Vec<(Arc<str>, mpsc::UnboundedSender<Command>)>,
    pub started_ms: i64,
}

impl HeartbeatSender {
    /// Beats until it is dropped.
    pub async fn beat(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut silent = false;
        loop {
            ticks.tick().await;
            let state = if self.shutdown.is_draining() { HeartbeatState::Draining } else { HeartbeatState::Running };
            let written = self.write(state, false).await;
            match &written {
                Err(error) if !silent => tracing::warn!(%error, "heartbeats cannot be written; the worker goes on"),
                _ => {}
            }
            silent = written.is_err();
        }
    }

    /// The last word, and whether tasks are left that it has begun.
    pub async fn stop(&self, unfinished: bool) {
        if let Err(error) = self.write(HeartbeatState::Stopped, unfinished).await {
            tracing::warn!(%error, "the last heartbeat was not written");
        }
    }

    async fn write(&self, state: HeartbeatState, unfinished: bool) -> Result<(), BrokerError> {
        let beat = self.describe(state, unfinished).await;
        let value = serde_json::to_vec(&beat).map_err(|why| BrokerError::Invalid(why.to_string()))?;
        let topic = self.names.workers();
        let key = Some(self.worker.as_bytes());
        let record = ProducerRecord { topic: &topic, partition: Some(0), key, value: Some(&value), headers: &[] };
        self.link.deliver(record, DEADLINE).await.map(drop)
    }

    async fn describe(&self, state: HeartbeatState, unfinished: bool) -> Heartbeat {
        let (mut types, mut running) = (Vec::new(), Vec::new());
        for (task_type, dispatcher) in &self.dispatchers {
            let mut told = self.ask(dispatcher).await.unwrap_or_default();
            told.task_type = task_type.to_string();
            told.finished = self.finished(task_type);
            running.append(&mut told.running);
            types.push(told);
        }
        running.sort_by_key(|task| task.began_ms);
        running.truncate(MAX_RUNNING);
        Heartbeat {
            v: CONTROL_VERSION,
            id: self.worker.to_string(),
            host: super::host(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            state,
            unfinished,
            started_ms: self.started_ms,
            at_ms: now_ms(),
            every_ms: EVERY.as_millis() as u64,
            held_bytes: self.memory.held() as u64,
            types,
            running,
        }
    }

    async fn ask(&self, dispatcher: &mpsc::UnboundedSender<Command>) -> Option<TypeStatus> {
        let (answer, told) = oneshot::channel();
        dispatcher.send(Command::Describe(answer)).ok()?;
        tokio::time::timeout(PATIENCE, told).await.ok()?.ok()
    }

    fn finished(&self, task_type: &str) -> std::collections::BTreeMap<String, u64> {
        let count = |outcome: &str| self.metrics.tasks.finished.with_label_values(&[task_type, outcome]).get();
        OUTCOMES.iter().map(|outcome| ((*outcome).to_owned(), count(outcome))).filter(|(_, count)| *count > 0).collect()
    }
}
