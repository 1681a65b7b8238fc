//! Dependencies of a consumer, and the calls that need only them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, BrokerError, Consumer, ConsumerSpec, Partition};
use crate::config::{Names, TypePolicy};
use crate::control::ControlWatch;
use crate::runtime::{Health, Shutdown};
use crate::telemetry::Metrics;
use crate::worker::completions::Completions;
use crate::worker::decode::{Decoder, Input};
use crate::worker::dispatch::Command;

/// Deadline of the consumer's calls to the broker.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Health reason of a consumer that has no partitions yet.
pub(crate) const NOT_JOINED: &str = "waiting for the consumer group to assign partitions";

/// Committed offset of each partition that this worker owns.
pub(crate) type CommittedOffsets = Arc<Mutex<BTreeMap<Partition, i64>>>;

/// Dependencies of a consumer.
pub(crate) struct ConsumerDeps {
    pub task_type: Arc<str>,
    pub names: Names,
    pub broker: Arc<dyn Broker>,
    pub producer: Arc<SharedProducer>,
    pub consumer: Box<dyn Consumer>,
    /// Spec of the consumer, to create it again after a fatal error.
    pub spec: ConsumerSpec,
    pub decoder: Decoder,
    pub completions: Arc<Completions>,
    pub work: mpsc::Sender<Vec<Input>>,
    pub commands: mpsc::UnboundedSender<Command>,
    pub policy: TypePolicy,
    pub control: Arc<ControlWatch>,
    pub drain_timeout: Duration,
    pub commit_interval: Duration,
    pub shutdown: Shutdown,
    pub health: Health,
    pub loop_time: PollLoopMetrics,
    pub metrics: Metrics,
    /// Committed offsets, for the lag metric.
    pub offsets: CommittedOffsets,
}

/// Time spent in each part of the poll loop, in seconds.
pub(crate) struct PollLoopMetrics {
    pub poll: prometheus::Counter,
    pub dispatch: prometheus::Counter,
    pub commit: prometheus::Counter,
    pub idle: prometheus::Counter,
}

impl ConsumerDeps {
    pub(super) fn record_time(&self, since: Instant, part: impl Fn(&PollLoopMetrics) -> &prometheus::Counter) {
        part(&self.loop_time).inc_by(since.elapsed().as_secs_f64());
    }

    pub(super) fn command(&self, command: Command) {
        // The dispatcher outlives its consumer; if it has ended, there is nothing left to command.
        let _ = self.commands.send(command);
    }

    pub(super) fn log_error(&self, error: &BrokerError) {
        tracing::warn!(task_type = %self.task_type, %error, "broker error; continuing");
    }

    pub(super) fn set_health(&self, reason: impl Into<String>) {
        self.health.set(&health_part(&self.task_type), reason);
    }

    pub(super) fn clear_health(&self) {
        self.health.clear(&health_part(&self.task_type));
    }

    pub(super) fn set_partition_health(&self, partition: i32, reason: impl Into<String>) {
        self.health.set(&partition_health_part(&self.task_type, partition), reason);
    }

    pub(super) fn clear_partition_health(&self, partition: i32) {
        self.health.clear(&partition_health_part(&self.task_type, partition));
    }

    /// Reports that a partition is not processed until an operator chooses its start offset.
    pub(super) fn report_refused(&self, partition: &Partition, why: &str) {
        let Partition { topic, index } = partition;
        let message = format!("partition {index} of `{topic}` is not processed: {why}");
        let hint = format!("kafleet offsets init {}/{index} --at earliest|OFFSET|TIME", self.task_type);
        tracing::error!(%hint, "{message}");
        self.set_partition_health(*index, format!("{message}; choose its start offset with `{hint}`"));
    }

    /// Releases partitions to the group.
    pub(super) fn release(&mut self, partitions: &[Partition]) {
        self.offsets.lock().retain(|partition, _| !partitions.contains(partition));
        for partition in partitions {
            self.clear_partition_health(partition.index);
            self.clear_window_held(partition);
        }
        if let Err(error) = self.consumer.release(partitions) {
            self.log_error(&error);
        }
    }

    /// Reports the offset of the task that holds back its partition.
    pub(super) fn set_window_held(&self, partition: &Partition, offset: i64) {
        self.metrics
            .worker
            .window_held
            .with_label_values(&[&*self.task_type, &partition.index.to_string()])
            .set(offset);
    }

    pub(super) fn clear_window_held(&self, partition: &Partition) {
        // Fails if the gauge was not set.
        let _ = self.metrics.worker.window_held.remove_label_values(&[&*self.task_type, &partition.index.to_string()]);
    }

    /// Counts the partitions of the topic. Fails if the fleet-wide concurrency limit leaves some without a slot.
    pub(super) fn count_partitions(&self) -> Result<u32, BrokerError> {
        let topic = self.names.tasks(&self.task_type);
        let topics = self.broker.topics(&topic, CALL_DEADLINE)?;
        let found = topics.into_iter().find(|info| info.name == topic);
        let partitions = found.map(|info| info.partitions).ok_or(BrokerError::Unknown(topic))?;
        match self.policy.max_concurrency {
            Some(limit) if limit < partitions => Err(BrokerError::Invalid(format!(
                "`max_concurrency` {limit} is below the {partitions} partitions of the topic, of which each needs one: raise it"
            ))),
            _ => Ok(partitions),
        }
    }
}

/// Name of a consumer in the health report.
pub(crate) fn health_part(task_type: &str) -> String {
    format!("type {task_type}")
}

/// Name of a partition in the health report.
fn partition_health_part(task_type: &str, partition: i32) -> String {
    format!("{}/{partition}", health_part(task_type))
}
