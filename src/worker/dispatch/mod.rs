//! Dispatcher of one task type: assigns inputs to slots and handles the outcomes of their attempts.

mod assignments;
mod circuit;
mod commands;
mod control;
mod dead_letters;
mod exits;
mod failure_limit;
mod failure_policy;
mod inline;
mod limits;
mod observers;
mod outcome;
mod permits;
mod quarantine;
mod queue;
mod reporter;
mod reports;
mod retries;
mod running;
mod start;
mod tasks;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

pub(super) use commands::Command;
use exits::{Exit, Exits, Leaving};
use inline::{Clock, InlinePolling};
use limits::Limits;
use permits::Permits;
use quarantine::{Quarantine, isolate};
use running::{Running, RunningAttempts};
use tasks::Tasks;

use super::attempt::output::OutputBuffer;
use super::attempt::publish_children::OutputPublisher;
use super::child::ChildPool;
use super::completions::Completions;
use super::dead_letter::DeadLetterWriter;
use super::decode::Input;
use super::events::EventWriter;
use crate::config::WorkerConfig;
use crate::control::{ControlWatch, PolicyUpdates};
use crate::handlers::blocking_pool::BlockingPool;
use crate::handlers::context::TypeEnv;
use crate::handlers::{Registered, Schema, SharedState};
use crate::model::task::limits::TaskLimits;
use crate::runtime::Health;
use crate::telemetry::Metrics;
use crate::worker::spans::AttemptSpans;
use crate::worker::type_metrics::TypeGauges;

/// Maximum number of inputs handed out or started at once.
pub(super) const HAND_OUT: usize = 512;
/// Maximum length of a timer; a longer wait is computed again when it fires.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);

/// Dependencies of a dispatcher.
pub(super) struct DispatcherDeps {
    pub task_type: Arc<str>,
    pub registered: Registered,
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

pub(super) struct Dispatcher {
    registered: Registered,
    env: Arc<TypeEnv>,
    work: mpsc::Receiver<Vec<Input>>,
    commands: mpsc::UnboundedReceiver<Command>,
    tasks: Tasks,
    exits: Exits,
    publisher: Arc<OutputPublisher>,
    gauges: TypeGauges,
    running: RunningAttempts,
    inline: InlinePolling,
    clock: Clock,
    quarantine: Quarantine,
    limits: Limits,
    permits: Permits,
    control: Arc<ControlWatch>,
    policies: PolicyUpdates,
    /// Generation of the control state that is applied.
    control_generation: u64,
    /// Number of times that the type was resumed, as of the applied state.
    resumes: u64,
    health: Health,
    /// Slots held by attempts that have ended but do not return.
    stuck_slots: usize,
    /// The consumer has not ended.
    open: bool,
}

impl Dispatcher {
    pub(super) fn new(mut deps: DispatcherDeps) -> Self {
        if deps.registered.handler.checks_schema() {
            deps.registered.schema = Schema::any();
        }
        let quarantine = Quarantine::new(isolate(&mut deps), deps.registered.policy.slots());
        let output = Arc::new(OutputBuffer::new(deps.events.publisher().clone(), deps.events.worker.clone()));
        let env = Arc::new(TypeEnv {
            task_type: deps.task_type.clone(),
            worker: deps.events.worker.clone(),
            state: deps.state.clone(),
            sink: output.clone(),
            limits: deps.limits,
            blocking_pool: BlockingPool::new(&deps.task_type),
        });
        let gauges = TypeGauges::new(&deps.metrics, &deps.task_type);
        let tasks = Tasks::new(&deps, &gauges, quarantine.is_enabled());
        let exits = Exits::new(&deps, output);
        let publisher = deps.events.publisher().clone();
        let mut dispatcher = Self {
            limits: Limits::new(&deps.registered.policy),
            permits: Permits::new(&deps.registered),
            registered: deps.registered,
            env,
            work: deps.work,
            commands: deps.commands,
            tasks,
            exits,
            publisher: Arc::new(OutputPublisher { publisher, max_output: deps.config.max_output }),
            gauges,
            running: RunningAttempts::new(),
            inline: InlinePolling::default(),
            clock: Clock::read(),
            quarantine,
            control: deps.control,
            policies: deps.policies,
            control_generation: 0,
            resumes: 0,
            health: deps.health,
            stuck_slots: 0,
            open: true,
        };
        dispatcher.apply_limits();
        dispatcher
    }

    /// Runs until the consumer has ended and nothing runs. Returns whether tasks that this worker announced are left
    /// to other workers.
    pub(super) async fn run(mut self) -> bool {
        while self.open || !self.running.is_empty() {
            let more = self.start_ready().await;
            let due = self.next_due();
            if due.is_some_and(|due| due <= Instant::now()) {
                // Also under constant load, when the select below always has something else to do.
                self.run_due().await;
            }
            tokio::select! {
                biased;
                Some(command) = self.commands.recv() => self.handle_command(command).await,
                Some((id, end)) = self.running.ends.recv() => self.attempt_ended(id, end).await,
                () = self.permits.granted(), if self.permits.is_waiting() => {}
                work = self.work.recv(), if self.open && self.tasks.queue.ready() < HAND_OUT => match work {
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
    async fn leave(&mut self, leaving: impl Into<Leaving>, exit: Exit) {
        let mut onward = self.exits.carry_out(leaving.into(), exit).await;
        // A task whose partition has been released meanwhile goes on with the next owner.
        while let Some(in_flight) = self.tasks.go_on(onward) {
            onward = self.exits.carry_out(in_flight.into(), Exit::Released(None)).await;
        }
    }

    async fn receive(&mut self, work: Vec<Input>) {
        self.tasks.queue.extend(work);
        if self.limits.is_paused() || self.tasks.circuit.is_open() {
            // Cancelled tasks are otherwise found when tasks are started, and none is started now.
            self.cancel_queued().await;
        }
    }

    /// Stops everything: the consumer has ended, and running tasks belong to the next owners of their partitions.
    fn close(&mut self) {
        self.open = false;
        self.tasks.queue.clear();
        self.limits.clear();
        self.permits.clear();
        self.quarantine.waiting.clear();
        self.running.iter().for_each(Running::stop);
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
