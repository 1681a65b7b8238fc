//! Dependencies of a consumer and of its types, and the calls that need only them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{Broker, BrokerError, Consumer, ConsumerSpec, Partition};
use kafleet_config::{Names, TypePolicy};
use kafleet_fleet::control::{ControlWatch, PolicyUpdates};
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::Metrics;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::completions::Completions;
use crate::decode::{Decoder, Input};
use crate::dispatch::Command;

/// Deadline of the consumer's calls to the broker.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Health reason of a consumer that has no partitions yet.
pub(crate) const NOT_JOINED: &str = "waiting for the consumer group to assign partitions";

/// Committed offset of each partition that this worker owns.
pub(crate) type CommittedOffsets = Arc<Mutex<BTreeMap<Partition, i64>>>;

/// Dependencies of the consumer of a group.
pub(crate) struct GroupDeps {
    /// Name of the group: the type's name, unless types share it.
    pub group: Arc<str>,
    /// The group is not the only type's own.
    pub is_shared: bool,
    pub names: Names,
    pub broker: Arc<dyn Broker>,
    pub producer: Arc<SharedProducer>,
    pub consumer: Box<dyn Consumer>,
    /// Spec of the consumer, to create it again after a fatal error.
    pub spec: ConsumerSpec,
    pub control: Arc<ControlWatch>,
    pub drain_timeout: Duration,
    pub commit_interval: Duration,
    pub shutdown: Shutdown,
    pub health: Health,
    pub loop_time: PollLoopMetrics,
    /// Committed offsets, for the lag metric.
    pub offsets: CommittedOffsets,
}

/// Dependencies of one type of a consumer.
pub(crate) struct TypeDeps {
    pub task_type: Arc<str>,
    pub topic: Arc<str>,
    pub decoder: Decoder,
    pub completions: Arc<Completions>,
    pub work: mpsc::Sender<Vec<Input>>,
    pub commands: mpsc::UnboundedSender<Command>,
    pub policy: TypePolicy,
    pub policies: PolicyUpdates,
    pub health: Health,
    pub metrics: Metrics,
}

/// Time spent in each part of the poll loop, in seconds.
pub(crate) struct PollLoopMetrics {
    pub poll: prometheus::Counter,
    pub dispatch: prometheus::Counter,
    pub commit: prometheus::Counter,
    pub idle: prometheus::Counter,
}

impl GroupDeps {
    pub(super) fn record_time(&self, since: Instant, part: impl Fn(&PollLoopMetrics) -> &prometheus::Counter) {
        part(&self.loop_time).inc_by(since.elapsed().as_secs_f64());
    }

    pub(super) fn log_error(&self, error: &BrokerError) {
        tracing::warn!(group = %self.group, %error, "broker error; continuing");
    }

    pub(super) fn set_health(&self, reason: impl Into<String>) {
        self.health.set(&health_part(&self.group, self.is_shared), reason);
    }

    pub(super) fn clear_health(&self) {
        self.health.clear(&health_part(&self.group, self.is_shared));
    }

    /// Pauses or resumes partitions. Returns false if the broker refuses.
    pub(super) fn pause(&mut self, partitions: &[Partition], paused: bool) -> bool {
        let changed = self.consumer.pause(partitions, paused);
        if let Err(error) = &changed {
            self.log_error(error);
        }
        changed.is_ok()
    }

    /// Counts the partitions of the topics.
    pub(super) fn count_partitions(&self, topics: &[Arc<str>]) -> Result<BTreeMap<String, u32>, BrokerError> {
        let prefix = match topics {
            [only] => only.to_string(),
            _ => self.names.tasks(""),
        };
        let topics = self.broker.topics(&prefix, CALL_DEADLINE)?;
        Ok(topics.into_iter().map(|info| (info.name, info.partitions)).collect())
    }
}

impl TypeDeps {
    pub(super) fn command(&self, command: Command) {
        // The dispatcher outlives its consumer; if it has ended, there is nothing left to command.
        let _ = self.commands.send(command);
    }

    /// Reports that assigned partitions of the type cannot be started.
    pub(super) fn set_start_health(&self, reason: impl Into<String>) {
        self.health.set(&type_health_part(&self.task_type), reason);
    }

    pub(super) fn clear_start_health(&self) {
        self.health.clear(&type_health_part(&self.task_type));
    }

    pub(super) fn set_partition_health(&self, partition: i32, reason: impl Into<String>) {
        self.health.set(&partition_health_part(&self.task_type, partition), reason);
    }

    pub(super) fn clear_partition_health(&self, partition: i32) {
        self.health.clear(&partition_health_part(&self.task_type, partition));
    }

    /// Reports that a partition is not processed until an operator chooses its start offset.
    pub(super) fn report_refused(&self, partition: &Partition, reason: &str) {
        let Partition { topic, index } = partition;
        let message = format!("partition {index} of `{topic}` is not processed: {reason}");
        let hint = format!("kafleet offsets init {}/{index} --at earliest|OFFSET|TIME", self.task_type);
        tracing::error!(%hint, "{message}");
        self.set_partition_health(*index, format!("{message}; choose its start offset with `{hint}`"));
    }

    /// Reports the offset of the task that holds back its partition.
    pub(super) fn set_window_held(&self, partition: i32, offset: i64) {
        self.metrics.worker.window_held.with_label_values(&[&*self.task_type, &partition.to_string()]).set(offset);
    }

    pub(super) fn clear_window_held(&self, partition: i32) {
        // Fails if the gauge was not set.
        let _ = self.metrics.worker.window_held.remove_label_values(&[&*self.task_type, &partition.to_string()]);
    }

    /// Checks that the fleet-wide concurrency limit leaves no partition without a slot. Returns their number.
    pub(super) fn check_partitions(&self, counts: &BTreeMap<String, u32>) -> Result<u32, BrokerError> {
        let partitions = *counts.get(&*self.topic).ok_or_else(|| BrokerError::Unknown(self.topic.to_string()))?;
        match self.policy.max_concurrency {
            Some(limit) if limit < partitions => Err(BrokerError::Invalid(format!(
                "`max_concurrency` {limit} is below the {partitions} partitions of the topic, of which each needs one: raise it"
            ))),
            _ => Ok(partitions),
        }
    }
}

/// Name of a consumer in the health report: a shared group, or the type whose own group it is.
pub(crate) fn health_part(group: &str, is_shared: bool) -> String {
    if is_shared { format!("group {group}") } else { type_health_part(group) }
}

/// Name of a type in the health report.
fn type_health_part(task_type: &str) -> String {
    format!("type {task_type}")
}

/// Name of a partition in the health report.
fn partition_health_part(task_type: &str, partition: i32) -> String {
    format!("type {task_type}/{partition}")
}
