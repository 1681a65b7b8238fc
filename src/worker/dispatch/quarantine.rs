//! Quarantine of suspects: tasks that were in flight when workers crashed. They run in child processes, so that a
//! poison pill crashes only its own process; a suspect that crashes two is declared poison. The second attempt gets a
//! process that has run no other task, so that it is not blamed for the effects of another task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::running::Running;
use super::tasks::Tasks;
use super::{DispatcherDeps, retries};
use crate::config::Isolation;
use crate::handlers::{Failure, Handler};
use crate::model::event::Payload;
use crate::worker::child::ChildPool;
use crate::worker::dead_letter::POISON;
use crate::worker::decode::InFlight;

/// Number of child processes that a suspect may crash before it is declared poison.
const MAX_CRASHES: u8 = 2;
/// Maximum number of concurrent suspects, per core and at least: each has its own process.
const MAX_PER_CORE: usize = 2;
const MAX_AT_LEAST: usize = 4;

pub(super) struct Quarantine {
    /// Child processes for suspects. `None` if the handler cannot crash the worker.
    children: Option<ChildPool>,
    running: usize,
    max_running: usize,
    /// Suspects that wait for a child process, without a slot.
    pub waiting: VecDeque<Box<InFlight>>,
}

/// Runs all attempts of a type with `isolation = "process"` in child processes; for any other type, returns the pool
/// for its suspects.
pub(super) fn isolate(deps: &mut DispatcherDeps) -> Option<ChildPool> {
    let children = deps.children.take()?;
    if deps.registered.policy.isolation == Isolation::None {
        return Some(children);
    }
    deps.registered.handler = Arc::new(children);
    None
}

impl Quarantine {
    pub(super) fn new(children: Option<ChildPool>, slots: u32) -> Self {
        Self { children, running: 0, max_running: max_running(slots), waiting: VecDeque::new() }
    }

    /// Limits the suspects to a number of slots.
    pub(super) fn set_slots(&mut self, slots: u32) {
        self.max_running = max_running(slots);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.children.is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_enabled() && self.running >= self.max_running
    }

    /// Takes the next waiting suspect, if a quarantine process is free.
    pub(super) fn pop(&mut self) -> Option<Box<InFlight>> {
        if self.waiting.is_empty() || self.is_full() { None } else { self.waiting.pop_front() }
    }

    /// Returns the handler for a task: that of its type, or a child process for a suspect.
    pub(super) fn handler_for(&self, in_flight: &InFlight, default: &Arc<dyn Handler>) -> Arc<dyn Handler> {
        match &self.children {
            Some(children) if in_flight.suspect.is_some_and(|suspect| suspect.crashes > 0) => {
                Arc::new(children.fresh())
            }
            Some(children) if in_flight.suspect.is_some() => Arc::new(children.clone()),
            _ => default.clone(),
        }
    }

    /// Registers an attempt that runs in a task of its own.
    pub(super) fn attempt_started(&mut self, in_flight: &InFlight) {
        self.running += usize::from(in_flight.suspect.is_some());
    }

    pub(super) fn attempt_ended(&mut self, in_flight: &InFlight) {
        self.running -= usize::from(in_flight.suspect.is_some());
    }
}

fn max_running(slots: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * MAX_PER_CORE).max(MAX_AT_LEAST).min(slots as usize).max(1)
}

impl Tasks {
    /// Retries a crashed suspect at once; declares it poison after the last allowed crash. If the partition is being
    /// released, that decision is left to its next owner.
    pub(super) async fn suspect_crashed(&mut self, mut running: Running, failure: Failure) {
        let closed = self.assignments.is_closed(running.in_flight.tag);
        let suspect = running.in_flight.suspect.get_or_insert_default();
        suspect.crashes += 1;
        let is_poison = suspect.crashes >= MAX_CRASHES;
        self.log_failure(&running, &failure);
        if is_poison && !closed {
            return self.declare_poison(running, failure);
        }
        self.metrics.record_outcome("retried", running.started_at.elapsed());
        running.end_span(&self.spans, "retried", Some((&failure.kind, &failure.message)));
        self.observers.notify(|observer| observer.on_retry(&running.cx, &failure, Duration::ZERO));
        let event = self.reporter.retrying(&running, &failure, Duration::ZERO, 0);
        let due_ms = event.payload.due_ms();
        self.reporter.publish(&mut running.in_flight, event).await;
        running.in_flight.attempts += 1;
        retries::record(self, &mut running.in_flight, due_ms);
        if closed {
            return self.release(running.in_flight);
        }
        self.queue.delay(running.in_flight, Duration::ZERO);
    }

    fn declare_poison(&mut self, mut running: Running, failure: Failure) {
        running.end_span(&self.spans, "failed", Some((POISON, &failure.message)));
        let task = &running.in_flight.task.id;
        let task_type = &self.task_type;
        tracing::error!(%task, %task_type, reason = %failure.message, "poison task: it crashed several processes and becomes a dead letter");
        self.metrics.record_outcome("failed", running.started_at.elapsed());
        let message = format!(
            "workers crashed while this task was running, and then {MAX_CRASHES} child processes of its own: {}",
            failure.message
        );
        self.observers.notify_failure(&running, &Failure::dead(message.as_str()).of_kind(POISON));
        let payload = Payload::Failed(running.failure(POISON, message.clone()));
        let event = self.reporter.event_of_attempt(payload, &running);
        self.dead_letter_task(running.in_flight, event, POISON, message);
    }
}
