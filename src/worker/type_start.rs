//! Starts the consumer and the dispatcher of one task type.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::child::ChildPool;
use super::consumer::{ConsumerDeps, PollLoopMetrics, TypeConsumer};
use super::dead_letter::DeadLetterWriter;
use super::decode::{Decoder, Input};
use super::dispatch::{Command, Dispatcher, DispatcherDeps};
use super::error::WorkerError;
use crate::broker::{Consumer, ConsumerSpec};
use crate::handlers::Registered;
use crate::runtime::{self, Shutdown, watch};
use crate::telemetry::Metrics;

/// Batches of inputs between a consumer and its dispatcher.
const MAX_BATCHES: usize = 4;
/// Minimum prefetch buffer of a consumer, in bytes.
const MIN_PREFETCH: usize = 1 << 20;

/// A type to start.
pub(super) struct TypeStart<'a> {
    pub shared: &'a Shared,
    pub type_index: usize,
    pub task_type: &'a Arc<str>,
    pub registered: &'a Registered,
}

/// A type that has been started.
pub(super) struct Started {
    /// Commands to the dispatcher.
    pub commands: mpsc::UnboundedSender<Command>,
    /// Completes when the consumer has left its group.
    pub consumer_end: oneshot::Receiver<()>,
    /// Completes with true if tasks announced by this worker are left to other workers.
    pub dispatcher: tokio::task::JoinHandle<bool>,
}

impl TypeStart<'_> {
    pub(super) async fn start(&self, shutdown: &Shutdown) -> Result<Started, WorkerError> {
        let spec = self.consumer_spec();
        let consumer = self.shared.setup.broker.client().consumer(spec.clone()).await;
        let consumer =
            consumer.map_err(|source| WorkerError::Consumer { task_type: self.task_type.clone(), source })?;
        let (work_sender, work) = mpsc::channel(MAX_BATCHES);
        let (command_sender, commands) = mpsc::unbounded_channel();
        // Subscribed before the dispatcher reads the control state, so that no change is missed.
        let changes = self.shared.control.changes();
        let dispatcher = Dispatcher::new(self.dispatcher_deps(work, commands));
        let consumer =
            TypeConsumer::new(self.consumer_deps(consumer, spec, work_sender, command_sender.clone(), shutdown));
        let consumer_end =
            runtime::thread(&format!("kafleet-{}", self.task_type), consumer.run()).map_err(WorkerError::Thread)?;
        runtime::spawn(forward_changes(changes, command_sender.clone()));
        Ok(Started { commands: command_sender, consumer_end, dispatcher: runtime::spawn(dispatcher.run()) })
    }

    fn consumer_spec(&self) -> ConsumerSpec {
        let names = &self.shared.setup.names;
        let memory_limit = self.shared.setup.config.memory_limit.as_usize();
        ConsumerSpec {
            group: Some(names.group(self.task_type)),
            topics: vec![names.tasks(self.task_type)],
            prefetch_bytes: (memory_limit / 4 / self.shared.types).max(MIN_PREFETCH),
            ..ConsumerSpec::default()
        }
    }

    /// Pool of child processes, if this process can start them and the handler can crash.
    fn children(&self) -> Option<ChildPool> {
        let Registered { policy, handler, .. } = self.registered;
        let setup = &self.shared.setup;
        ChildPool::new(setup.reentry.as_ref()?, self.task_type, &**handler, policy.child_limits, &setup.metrics)
    }

    fn dispatcher_deps(
        &self,
        work: mpsc::Receiver<Vec<Input>>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> DispatcherDeps {
        let Shared { setup, control, completions, events, .. } = self.shared;
        DispatcherDeps {
            task_type: self.task_type.clone(),
            registered: self.registered.clone(),
            state: setup.registry.state().clone(),
            config: setup.config.clone(),
            events: events.clone(),
            dead_letters: DeadLetterWriter {
                broker: setup.broker.clone(),
                events: events.clone(),
                health: setup.health.clone(),
            },
            completions: completions[self.type_index].clone(),
            work,
            commands,
            children: self.children(),
            health: setup.health.clone(),
            metrics: setup.metrics.clone(),
            control: control.clone(),
        }
    }

    fn consumer_deps(
        &self,
        consumer: Box<dyn Consumer>,
        spec: ConsumerSpec,
        work: mpsc::Sender<Vec<Input>>,
        commands: mpsc::UnboundedSender<Command>,
        shutdown: &Shutdown,
    ) -> ConsumerDeps {
        let Shared { setup, control, completions, events, memory, offsets, .. } = self.shared;
        let policy = &self.registered.policy;
        ConsumerDeps {
            task_type: self.task_type.clone(),
            names: setup.names.clone(),
            broker: setup.broker.clone(),
            producer: events.producer().clone(),
            consumer,
            spec,
            decoder: Decoder {
                task_type: self.task_type.clone(),
                order: policy.order,
                max_params: setup.config.max_params.as_usize(),
                memory: memory.clone(),
                type_index: self.type_index,
                has_rate_per_key: false,
            },
            completions: completions[self.type_index].clone(),
            work,
            commands,
            policy: policy.clone(),
            control: control.clone(),
            drain_timeout: setup.config.drain_timeout.into(),
            commit_interval: setup.config.commit_interval.into(),
            shutdown: shutdown.clone(),
            health: setup.health.clone(),
            loop_time: loop_time(&setup.metrics, self.task_type),
            metrics: setup.metrics.clone(),
            offsets: offsets.clone(),
        }
    }
}

/// Forwards changes of the control topic to a dispatcher until it ends.
async fn forward_changes(mut changes: watch::Receiver<u64>, commands: mpsc::UnboundedSender<Command>) {
    loop {
        tokio::select! {
            biased;
            changed = changes.changed() => if changed.is_err() || commands.send(Command::ApplyControl).is_err() { return },
            () = commands.closed() => return,
        }
    }
}

fn loop_time(metrics: &Metrics, task_type: &str) -> PollLoopMetrics {
    let part = |part| metrics.worker.poll_loop.with_label_values(&[task_type, part]);
    PollLoopMetrics { poll: part("poll"), dispatch: part("dispatch"), commit: part("commit"), idle: part("idle") }
}
