//! Tasks that were under way when workers died. They run in child processes, so that only the one that kills comes to
//! harm; one that takes down two is convicted. The second time it has a process that no other task has been in, so that
//! nobody answers for what another one has left behind.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Dispatcher, DispatcherDeps, Running, Sleeping};
use crate::config::Isolation;
use crate::handlers::{Failure, Handler};
use crate::model::event::Kind;
use crate::worker::child::{CRASHED, ChildPool};
use crate::worker::decode::InFlight;

/// The code of the dead letter of a task that takes its worker down.
const CONVICTED: &str = "crashed_worker";
/// Child processes that a suspect may take down before it is convicted.
const DEATHS: u8 = 2;
/// Suspects at once, per core and at least: each has a process of its own.
const AT_ONCE_PER_CORE: usize = 2;
const AT_ONCE_AT_LEAST: usize = 4;

pub(super) struct Quarantine {
    /// Where they run. None where there is nothing to suspect: the handler can take nothing down.
    cells: Option<ChildPool>,
    running: usize,
    at_once: usize,
    /// They hold no slot meanwhile.
    pub waiting: VecDeque<Box<InFlight>>,
}

/// Puts attempts of a type that asks for it into child processes; else these are for suspects.
pub(super) fn isolate(parts: &mut DispatcherDeps) -> Option<ChildPool> {
    let cells = parts.cells.take()?;
    if parts.registered.policy.isolation == Isolation::None {
        return Some(cells);
    }
    parts.registered.handler = Arc::new(cells);
    None
}

impl Quarantine {
    pub fn new(cells: Option<ChildPool>, slots: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = (cores * AT_ONCE_PER_CORE).max(AT_ONCE_AT_LEAST).min(slots as usize).max(1);
        Self { cells, running: 0, at_once, waiting: VecDeque::new() }
    }

    pub fn is_full(&self) -> bool {
        self.cells.is_some() && self.running >= self.at_once
    }

    /// One that has waited, where there is room for it now.
    pub fn next(&mut self) -> Option<Box<InFlight>> {
        if self.waiting.is_empty() || self.is_full() { None } else { self.waiting.pop_front() }
    }

    /// An attempt goes on in a task of its own.
    pub fn begun(&mut self, held: &InFlight) {
        self.running += usize::from(held.suspect);
    }
}

impl Dispatcher {
    pub(super) fn handler_for(&self, held: &InFlight) -> Arc<dyn Handler> {
        match &self.quarantine.cells {
            Some(cells) if held.suspect && held.deaths > 0 => Arc::new(cells.fresh()),
            Some(cells) if held.suspect => Arc::new(cells.clone()),
            _ => self.parts.registered.handler.clone(),
        }
    }

    pub(super) fn suspect_ended(&mut self, held: &InFlight) {
        if held.suspect {
            self.quarantine.running -= 1;
        }
    }

    /// Its process died by its own doing. A worker that gives the partition back does not judge any more.
    pub(super) fn has_convicted_itself(&self, held: &InFlight, failure: &Failure) -> bool {
        held.suspect && self.quarantine.cells.is_some() && failure.kind == CRASHED
    }

    /// At once again, and the second time to the dead letters.
    pub(super) async fn suspect_died(&mut self, mut running: Running, failure: Failure) {
        let closed = self.closed_assignments.contains(&running.held.tag.slot());
        running.held.deaths += 1;
        self.log_failure(&running, &failure);
        if running.held.deaths >= DEATHS && !closed {
            return self.declare_poison(running, failure);
        }
        self.parts.meter.finished("retried", running.began.elapsed());
        let mut event = self.failure_event(Kind::Retrying, &running, &failure);
        event.due_ms = Some(event.at_ms);
        self.say(&mut running.held, event).await;
        if closed {
            return self.release(running.held);
        }
        running.held.attempts += 1;
        self.sleeping.push(Reverse(Sleeping { until: Instant::now(), held: running.held }));
    }

    fn declare_poison(&mut self, running: Running, failure: Failure) {
        let (task, task_type) = (&running.held.task.id, &self.parts.task_type);
        tracing::error!(%task, %task_type, reason = %failure.message, "this task takes its worker down: to the dead letters");
        self.parts.meter.finished("failed", running.began.elapsed());
        let message =
            format!("workers died with this task under way, and then {DEATHS} processes of its own: {}", failure.message);
        let verdict = Failure::dead(message.clone()).of_kind(CONVICTED);
        let event = self.failure_event(Kind::Failed, &running, &verdict);
        self.dead_letter_task(running.held, event, CONVICTED, message);
    }
}
