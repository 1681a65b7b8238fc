//! Dispatcher of one task type: assigns inputs to slots and handles the outcomes of their attempts.
//!
//! ```text
//!  inputs ──▶ Admission ──▶ Attempts ──answer──▶ judge ──Exit──▶ Exits ──▶ events, dead letters, releases
//!                 ▲  └──Exit of a task that must not start───────▶ │
//!                 └──────────────────── Onward ────────────────────┘
//! ```
//!
//! Three parts, each of which can be read alone: [`admission`] holds the waiting tasks and the condition of each,
//! [`attempts`] the handler and the running attempts, [`exits`] the ways in which a task leaves. They do not call each
//! other; the [`Dispatcher`] passes values from one to the next, on one task of the runtime, so that nothing needs a
//! lock. It never waits for an attempt, and for Kafka only while the producer is full.
//!
//! Invariant: each input that is handed out is completed or released once, or the partition's commits stop at it.

mod adaptive;
mod admission;
mod assignments;
mod attempts;
mod background;
mod batch_end;
mod batch_start;
mod batches;
mod circuit;
mod commands;
mod control;
mod exits;
mod failure_limit;
mod failure_policy;
mod hosts;
mod inline;
mod limits;
mod outcome;
mod permits;
mod quarantine;
mod queue;
mod reporter;
mod reports;
mod running;
mod start;
mod timers;

use crate::observers::Observers;
use std::sync::Arc;
use std::time::Duration;

use kafleet_config::WorkerConfig;
use kafleet_fleet::control::{ControlWatch, PolicyUpdates};
use kafleet_handlers::{Schema, SharedState, TypeRegistration};
use kafleet_model::task::limits::TaskLimits;
use kafleet_runtime::Health;
use kafleet_telemetry::Metrics;
use tokio::sync::mpsc;
use tokio::time::Instant;

use admission::Admission;
use attempts::Attempts;
pub(super) use commands::Command;
use control::LiveSettings;
use exits::{Exit, Exits, LeavingTask};
use inline::Clock;
use quarantine::isolate;
use running::EndMessage;

use super::attempt::output::OutputBuffer;
use super::child::ChildPool;
use super::completions::Completions;
use super::dead_letter::DeadLetterWriter;
use super::decode::Input;
use super::events::EventWriter;
use super::spans::AttemptSpans;
use super::type_metrics::TypeGauges;

/// Maximum number of inputs handed out or started at once.
pub(super) const HAND_OUT: usize = 512;
/// Maximum length of a timer; a longer wait is computed again when it fires.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);

/// Dependencies of a dispatcher.
pub(super) struct DispatcherDeps {
    pub task_type: Arc<str>,
    pub registered: TypeRegistration,
    pub state: SharedState,
    pub config: WorkerConfig,
    pub limits: TaskLimits,
    pub events: EventWriter,
    pub dead_letters: DeadLetterWriter,
    pub completions: Arc<Completions>,
    pub work: mpsc::Receiver<Vec<Input>>,
    pub commands: mpsc::UnboundedReceiver<Command>,
    pub metrics: Metrics,
    pub spans: AttemptSpans,
    pub control: Arc<ControlWatch>,
    /// Child processes for attempts, if the handler can crash the worker.
    pub children: Option<ChildPool>,
    pub policies: PolicyUpdates,
    pub health: Health,
}

impl DispatcherDeps {
    fn observers(&self) -> Observers {
        Observers::new(&self.state.hooks.observers, &self.metrics)
    }
}

pub(super) struct Dispatcher {
    work: mpsc::Receiver<Vec<Input>>,
    commands: mpsc::UnboundedReceiver<Command>,
    settings: LiveSettings,
    admission: Admission,
    attempts: Attempts,
    exits: Exits,
    clock: Clock,
    /// The consumer has not ended.
    open: bool,
}

impl Dispatcher {
    pub(super) fn new(mut deps: DispatcherDeps) -> Self {
        if deps.registered.handler.capabilities().checks_schema {
            deps.registered.schema = Schema::any();
        }
        isolate(&mut deps);
        let policy = Arc::new(deps.registered.policy.clone());
        let output =
            Arc::new(OutputBuffer::new(deps.events.publisher().clone(), deps.events.worker.clone(), deps.observers()));
        let gauges = TypeGauges::new(&deps.metrics, &deps.task_type);
        let mut dispatcher = Self {
            settings: LiveSettings::new(&deps, &policy, &gauges),
            admission: Admission::new(&deps, &policy, &gauges),
            attempts: Attempts::new(&mut deps, &policy, &output, &gauges),
            exits: Exits::new(&deps, output),
            work: deps.work,
            commands: deps.commands,
            clock: Clock::read(),
            open: true,
        };
        dispatcher.apply_limits();
        dispatcher
    }

    /// Runs until the consumer has ended and nothing runs. Returns whether tasks that this worker announced are left
    /// to other workers.
    pub(super) async fn run(mut self) -> bool {
        while self.open || !self.attempts.running.is_empty() {
            let more = self.start_ready().await;
            let due = self.next_due();
            if due.is_some_and(|due| due <= Instant::now()) {
                // Also under constant load, when the select below always has something else to do.
                self.run_due().await;
            }
            tokio::select! {
                biased;
                Some(command) = self.commands.recv() => self.handle_command(command).await,
                Some(ended) = self.attempts.running.ends.recv() => match ended {
                    EndMessage::Attempt(id, end) => self.attempt_ended(id, end).await,
                    EndMessage::Call(id, end) => self.call_ended(id, end).await,
                },
                () = self.admission.permits.granted(), if self.admission.permits.is_waiting() => {}
                work = self.work.recv(), if self.open && self.admission.queue.ready() < HAND_OUT => match work {
                    Some(work) => self.receive(work).await,
                    None => self.close(),
                },
                () = sleep_until(due) => self.run_due().await,
                () = std::future::ready(()), if more => {}
            }
        }
        self.exits.background.stop();
        self.exits.reports.metrics.flush();
        self.exits.unfinished
    }

    /// Lets a task leave, or its attempt end.
    async fn leave(&mut self, leaving: impl Into<LeavingTask>, exit: Exit) {
        let mut onward = self.exits.carry_out(leaving.into(), exit).await;
        // If its partition has been released meanwhile, the next owner continues the task.
        while let Some(in_flight) = self.admission.apply_onward(onward) {
            onward = self.exits.carry_out(in_flight.into(), Exit::Released(None)).await;
        }
    }

    async fn receive(&mut self, work: Vec<Input>) {
        self.admission.queue.extend(work);
        if self.admission.is_stopped() {
            // Cancelled tasks are otherwise found when tasks are started, and none is started now.
            self.cancel_queued().await;
        }
    }

    /// Stops everything: the consumer has ended, and running tasks belong to the next owners of their partitions.
    fn close(&mut self) {
        self.open = false;
        self.admission.clear();
        self.attempts.stop(|_| true);
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
