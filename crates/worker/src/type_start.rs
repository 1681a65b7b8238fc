//! Starts the dispatcher of one task type, and creates the type's part of a consumer.

use std::sync::Arc;

use kafleet_handlers::TypeRegistration;
use kafleet_runtime::watch;
use tokio::sync::mpsc;

use super::SharedResources;
use super::child::ChildPool;
use super::consumer::{TypeConsumer, TypeDeps};
use super::dead_letter::DeadLetterWriter;
use super::decode::{Decoder, Input};
use super::dispatch::{Command, Dispatcher, DispatcherDeps};
use super::key_check::KeyCheck;
use super::spans::AttemptSpans;

/// Batches of inputs between a consumer and its dispatcher.
const MAX_BATCHES: usize = 4;

/// A type to start.
pub(super) struct TypeStart<'a> {
    pub shared: &'a SharedResources,
    pub type_index: usize,
    pub task_type: &'a Arc<str>,
    pub registered: &'a TypeRegistration,
}

/// A type that has been started.
pub(super) struct StartedType {
    pub task_type: Arc<str>,
    /// Commands to the dispatcher.
    pub commands: mpsc::UnboundedSender<Command>,
    /// Completes with true if tasks announced by this worker are left to other workers.
    pub dispatcher: tokio::task::JoinHandle<bool>,
}

impl TypeStart<'_> {
    pub(super) fn start(&self) -> (TypeConsumer, StartedType) {
        let (work_sender, work) = mpsc::channel(MAX_BATCHES);
        let (commands, command_receiver) = mpsc::unbounded_channel();
        // Subscribed before the dispatcher reads the control state, so that no change is missed.
        let changes = self.shared.control.changes();
        let dispatcher = Dispatcher::new(self.dispatcher_deps(work, command_receiver));
        let consumer = TypeConsumer::new(self.type_deps(work_sender, commands.clone()));
        kafleet_runtime::spawn(forward_changes(changes, commands.clone()));
        let own_runtime = self.registered.handler.capabilities().permits.and_then(|permits| permits.runtime());
        let dispatcher = match own_runtime {
            Some(own_runtime) => kafleet_runtime::spawn_on(&own_runtime, dispatcher.run()),
            None => kafleet_runtime::spawn(dispatcher.run()),
        };
        (consumer, StartedType { task_type: self.task_type.clone(), commands, dispatcher })
    }

    /// Pool of child processes, if this process can start them and the handler can crash.
    fn children(&self) -> Option<ChildPool> {
        let TypeRegistration { policy, handler, .. } = self.registered;
        let setup = &self.shared.setup;
        ChildPool::new(setup.own_executable.as_ref()?, self.task_type, &**handler, policy, &setup.metrics)
    }

    fn dispatcher_deps(
        &self,
        work: mpsc::Receiver<Vec<Input>>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> DispatcherDeps {
        let SharedResources { setup, control, completions, events, .. } = self.shared;
        let names = &setup.topology.names;
        DispatcherDeps {
            task_type: self.task_type.clone(),
            registered: self.registered.clone(),
            state: setup.registry.state().clone(),
            config: setup.config.clone(),
            limits: setup.limits(),
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
            policies: setup.policies.clone(),
            health: setup.health.clone(),
            metrics: setup.metrics.clone(),
            spans: AttemptSpans::new(setup.tracer.clone(), names.tasks(self.task_type), events.worker.clone()),
            control: control.clone(),
        }
    }

    fn type_deps(&self, work: mpsc::Sender<Vec<Input>>, commands: mpsc::UnboundedSender<Command>) -> TypeDeps {
        let SharedResources { setup, completions, memory, .. } = self.shared;
        let policy = &self.registered.policy;
        TypeDeps {
            task_type: self.task_type.clone(),
            topic: setup.topology.names.tasks(self.task_type).into(),
            decoder: Decoder {
                task_type: self.task_type.clone(),
                order: policy.order,
                limits: setup.limits(),
                policy: policy.clone(),
                memory: memory.clone(),
                type_index: self.type_index,
                has_rate_per_key: false,
                publish_results: policy.publish_results,
                correlation_headers: setup.config.correlation_headers.as_slice().into(),
                keep_headers: policy.keep_headers.as_slice().into(),
                names: setup.topology.names.clone(),
                key_check: KeyCheck {
                    task_type: self.task_type.clone(),
                    partitions: 0,
                    counter: setup.metrics.worker.misplaced_keys.with_label_values(&[&**self.task_type]),
                    misplaced: self.shared.misplaced_keys.clone(),
                },
            },
            completions: completions[self.type_index].clone(),
            work,
            commands,
            policy: policy.clone(),
            policies: setup.policies.clone(),
            health: setup.health.clone(),
            metrics: setup.metrics.clone(),
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
