//! Quarantine of suspects: tasks that were in flight when workers crashed. They run in child processes, so that a
//! poison pill crashes only its own process; a suspect that crashes two is declared poison. The second attempt gets a
//! process that has run no other task, so that it is not blamed for the effects of another task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kafleet_config::Isolation;
use kafleet_handlers::Failure;

use super::DispatcherDeps;
use super::exits::{Exit, Wait};
use super::running::RunningAttempt;
use crate::dead_letter::POISON;
use crate::decode::InFlight;

/// Number of child processes that a suspect may crash before it is declared poison.
const MAX_CRASHES: u8 = 2;
/// Maximum number of concurrent suspects, per core and at least: each has its own process.
const MAX_PER_CORE: usize = 2;
const MAX_AT_LEAST: usize = 4;

/// Places for suspects.
pub(super) struct Quarantine {
    /// Suspects run in child processes. Those of a handler that cannot crash the worker run like other tasks.
    is_enabled: bool,
    max_running: usize,
    /// Suspects that wait for a child process, without a slot.
    pub waiting: VecDeque<Box<InFlight>>,
}

/// Runs all attempts of a type with `isolation = "process"` in child processes; those of any other type remain for its
/// suspects.
pub(super) fn isolate(deps: &mut DispatcherDeps) {
    if deps.registered.policy.isolation == Isolation::Process
        && let Some(children) = deps.children.take()
    {
        deps.registered.handler = Arc::new(children);
    }
}

impl Quarantine {
    pub(super) fn new(is_enabled: bool, slots: u32) -> Self {
        Self { is_enabled, max_running: max_running(slots), waiting: VecDeque::new() }
    }

    /// Limits the suspects to a number of slots.
    pub(super) fn set_slots(&mut self, slots: u32) {
        self.max_running = max_running(slots);
    }

    /// Returns whether no suspect may start beside `running` ones.
    pub(super) fn is_full(&self, running: usize) -> bool {
        self.is_enabled && running >= self.max_running
    }

    /// Takes the next waiting suspect, if one may start beside `running` ones.
    pub(super) fn pop(&mut self, running: usize) -> Option<Box<InFlight>> {
        if self.waiting.is_empty() || self.is_full(running) { None } else { self.waiting.pop_front() }
    }
}

fn max_running(slots: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * MAX_PER_CORE).max(MAX_AT_LEAST).min(slots as usize).max(1)
}

/// Decides about a suspect that has crashed its child process: it runs again at once, and is declared poison after the last
/// allowed crash. After a release the next owner of the partition decides.
pub(super) fn judge_crash(running: &mut RunningAttempt, failure: Failure, is_closed: bool) -> Exit {
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
