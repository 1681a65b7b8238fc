//! Quarantine of suspects: tasks that were in flight when workers crashed. They run in child processes, so that a
//! poison pill crashes only its own process; a suspect that crashes two is declared poison. The second attempt gets a
//! process that has run no other task, so that it is not blamed for the effects of another task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::DispatcherDeps;
use super::exits::{Exit, Wait};
use super::running::Running;
use crate::config::Isolation;
use crate::handlers::{Failure, Handler};
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

/// Decides about a suspect that has crashed its child process: it runs again at once, and is declared poison after the last
/// allowed crash. After a release the next owner of the partition decides.
pub(super) fn judge_crash(running: &mut Running, failure: Failure, is_closed: bool) -> Exit {
    let suspect = running.in_flight.suspect.get_or_insert_default();
    suspect.crashes += 1;
    if suspect.crashes < MAX_CRASHES || is_closed {
        return Exit::Waiting(Wait::Retry { wait: Duration::ZERO, waits: None, failure });
    }
    let task = &running.in_flight.task.id;
    let task_type = &running.in_flight.task.task_type;
    tracing::error!(%task, %task_type, reason = %failure.message, "poison task: it crashed several processes and becomes a dead letter");
    let message = format!(
        "workers crashed while this task was running, and then {MAX_CRASHES} child processes of its own: {}",
        failure.message
    );
    Exit::Failed { failure: Failure::dead(message).of_kind(POISON), code: Some(POISON) }
}
