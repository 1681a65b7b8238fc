//! Tasks that wait in a dispatcher.

use std::sync::Arc;
use std::time::Duration;

use super::DispatcherDeps;
use super::assignments::AssignmentStates;
use super::circuit::CircuitBreaker;
use super::exits::{Next, Onward};
use super::queue::TaskQueue;
use crate::config::{Order, TypePolicy, WorkerConfig};
use crate::worker::completions::Completions;
use crate::worker::decode::InFlight;
use crate::worker::type_metrics::TypeGauges;

pub(super) struct Tasks {
    pub task_type: Arc<str>,
    pub policy: TypePolicy,
    pub queue: TaskQueue,
    pub assignments: AssignmentStates,
    pub circuit: CircuitBreaker,
    pub(super) completions: Arc<Completions>,
    /// Suspects run in a quarantine of child processes.
    pub(super) has_quarantine: bool,
}

impl Tasks {
    pub(super) fn new(deps: &DispatcherDeps, gauges: &TypeGauges, has_quarantine: bool) -> Self {
        Self {
            task_type: deps.task_type.clone(),
            policy: deps.registered.policy.clone(),
            queue: TaskQueue::default(),
            assignments: AssignmentStates::default(),
            circuit: CircuitBreaker::new(deps.task_type.clone(), deps.health.clone(), gauges.clone()),
            completions: deps.completions.clone(),
            has_quarantine,
        }
    }

    /// Does what an exit has left to the queue. Returns the task if it stays, but its partition has been released.
    pub(super) fn go_on(&mut self, onward: Onward) -> Option<Box<InFlight>> {
        let (mut in_flight, next) = match onward {
            Onward::Left { key } => {
                self.queue.release_key(key);
                return None;
            }
            Onward::Again(in_flight, next) => (in_flight, next),
        };
        if let Next::Retry { due_ms, .. } = next {
            self.record(&mut in_flight, due_ms);
        }
        if self.assignments.is_closed(in_flight.tag) {
            return Some(in_flight);
        }
        match next {
            Next::Start(wait) | Next::Retry { wait, .. } => self.queue.delay(in_flight, wait),
            Next::Restart => {
                // The rate limit has counted the start.
                in_flight.admitted = true;
                match in_flight.restarts.is_alone {
                    true => self.queue.quarantine(in_flight),
                    false => self.queue.push_front(in_flight),
                }
            }
        }
        None
    }
}

/// Returns whether a wait is long enough for the tracker. Tasks of ordered types wait here, where they hold their
/// key.
pub(super) fn waits_at_tracker(policy: &TypePolicy, config: &WorkerConfig, wait: Duration) -> bool {
    policy.order == Order::None && wait > config.inline_retry_max.into()
}
