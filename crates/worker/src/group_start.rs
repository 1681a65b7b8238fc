//! Starts the consumer of a group, and its types.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::Shared as SharedFuture;
use kafleet_broker::{Consumer, ConsumerSpec};
use kafleet_config::Names;
use kafleet_handlers::TypeRegistration;
use kafleet_runtime::Shutdown;
use kafleet_telemetry::Metrics;
use tokio::sync::oneshot;

use super::SharedResources;
use super::consumer::{GroupConsumer, GroupDeps, PollLoopMetrics, health_part};
use super::error::WorkerError;
use super::type_start::{StartedType, TypeStart};

/// Minimum prefetch buffer of a type, in bytes: with a group of its own, and in a shared group. There, a type whose
/// buffer is full is left out of a fetch and must live on its buffer until the fetch ends, which takes up to 500 ms if
/// the other types have nothing. 8 MiB are enough for some 40,000 small records a second even then.
const MIN_PREFETCH: usize = 1 << 20;
const MIN_SHARED_PREFETCH: usize = 8 << 20;

/// A consumer group of a worker, with the types that the worker serves in it.
pub(super) struct ConsumerGroup {
    /// Name of the group: the type's name, unless types share it.
    pub name: Arc<str>,
    pub is_shared: bool,
    /// Types, by their index in the worker.
    pub types: Vec<usize>,
}

/// End of a consumer: it has left its group, or it has panicked.
pub(super) type ConsumerEnd = SharedFuture<oneshot::Receiver<()>>;

/// A group to start.
pub(super) struct GroupStart<'a> {
    pub shared: &'a SharedResources,
    pub group: &'a ConsumerGroup,
    /// All types of the worker.
    pub types: &'a [(Arc<str>, TypeRegistration)],
}

/// Divides types into consumer groups, in the order of their first types.
pub(super) fn groups_of(types: &[(Arc<str>, TypeRegistration)], names: &Names) -> Vec<ConsumerGroup> {
    let mut groups: Vec<ConsumerGroup> = Vec::new();
    for (n, (task_type, _)) in types.iter().enumerate() {
        let name = names.group_name(task_type);
        match groups.iter_mut().find(|group| *group.name == *name) {
            Some(group) => group.types.push(n),
            None => groups.push(ConsumerGroup { name: name.into(), is_shared: *name != **task_type, types: vec![n] }),
        }
    }
    groups
}

impl ConsumerGroup {
    /// Name of the consumer in the health report.
    pub(super) fn health_part(&self) -> String {
        health_part(&self.name, self.is_shared)
    }
}

impl GroupStart<'_> {
    pub(super) async fn start(&self, shutdown: &Shutdown) -> Result<(Vec<StartedType>, ConsumerEnd), WorkerError> {
        let spec = self.consumer_spec();
        let consumer = self.shared.setup.broker.client().consumer(spec.clone()).await;
        let consumer = consumer.map_err(|source| WorkerError::Consumer { group: self.group.name.clone(), source })?;
        let mut consumers = Vec::new();
        let mut started = Vec::new();
        for &type_index in &self.group.types {
            let Some((task_type, registered)) = self.types.get(type_index) else { continue };
            let (consumer, started_type) = TypeStart { shared: self.shared, type_index, task_type, registered }.start();
            consumers.push(consumer);
            started.push(started_type);
        }
        let consumer = GroupConsumer::new(self.group_deps(consumer, spec, shutdown), consumers);
        let name = format!("kafleet-{}", self.group.name);
        let end = kafleet_runtime::thread(&name, consumer.run()).map_err(WorkerError::Thread)?;
        Ok((started, end.shared()))
    }

    fn consumer_spec(&self) -> ConsumerSpec {
        let names = &self.shared.setup.topology.names;
        let memory_limit = self.shared.setup.config.memory_limit.as_usize();
        let min_prefetch = if self.group.is_shared { MIN_SHARED_PREFETCH } else { MIN_PREFETCH };
        let types: Vec<&str> =
            self.group.types.iter().filter_map(|n| self.types.get(*n)).map(|(task_type, _)| &**task_type).collect();
        ConsumerSpec {
            group: types.first().map(|task_type| names.group(task_type)),
            topics: types.iter().map(|task_type| names.tasks(task_type)).collect(),
            prefetch_bytes: (memory_limit / 4 / self.shared.types).max(min_prefetch),
            ..ConsumerSpec::default()
        }
    }

    fn group_deps(&self, consumer: Box<dyn Consumer>, spec: ConsumerSpec, shutdown: &Shutdown) -> GroupDeps {
        let SharedResources { setup, control, events, offsets, .. } = self.shared;
        GroupDeps {
            group: self.group.name.clone(),
            is_shared: self.group.is_shared,
            names: setup.topology.names.clone(),
            broker: setup.broker.clone(),
            producer: events.producer().clone(),
            consumer,
            spec,
            control: control.clone(),
            drain_timeout: setup.config.drain_timeout.into(),
            commit_interval: setup.config.commit_interval.into(),
            shutdown: shutdown.clone(),
            health: setup.health.clone(),
            loop_time: loop_time(&setup.metrics, &self.group.name),
            offsets: offsets.clone(),
        }
    }
}

fn loop_time(metrics: &Metrics, group: &str) -> PollLoopMetrics {
    let part = |part| metrics.worker.poll_loop.with_label_values(&[group, part]);
    PollLoopMetrics { poll: part("poll"), dispatch: part("dispatch"), commit: part("commit"), idle: part("idle") }
}
