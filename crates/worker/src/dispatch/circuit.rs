//! Circuit of the dispatcher's type: outcomes of attempts, and the effects of its state on failures, metrics and status.
//! Two things open it: error kinds that say that a service is down, after which it closes by itself, and more failures of
//! any kind than `max_failures`, after which it stays open until an operator resumes the type.

use std::sync::Arc;

use kafleet_config::TypePolicy;
use kafleet_fleet::control::CircuitSetting;
use kafleet_handlers::{Answer, Fail, Failure, TIMEOUT};
use kafleet_model::task::id::clip;
use kafleet_model::units::time::time_text;
use kafleet_runtime::{Health, now_ms};
use tokio::time::Instant;

use super::failure_limit::FailureLimit;
use crate::attempt::{AttemptEnd, STALLED};
use crate::child::CRASHED;
use crate::circuit::{Circuit, CircuitChange, Outcome};
use crate::type_metrics::TypeGauges;

/// Circuit breaker of the dispatcher's type.
pub(super) struct CircuitBreaker {
    task_type: Arc<str>,
    /// `None`: no error kind opens the circuit.
    circuit: Option<TypeCircuit>,
    failure_limit: FailureLimit,
    gauges: TypeGauges,
}

/// Circuit of a type, with the kinds of errors that open it.
struct TypeCircuit {
    circuit: Circuit,
    trip_on: Vec<String>,
    /// Kind and message of the latest failure that opened it or kept it open.
    cause: String,
    /// Reason that an operator has given.
    reason: Option<String>,
}

impl TypeCircuit {
    fn new() -> Self {
        Self { circuit: Circuit::new(), trip_on: Vec::new(), cause: String::new(), reason: None }
    }

    fn trips(&self, kind: &str) -> bool {
        self.trip_on.iter().any(|listed| listed == kind)
    }

    /// Outcome of an answer.
    fn outcome(&self, answer: &Answer) -> Outcome {
        match answer {
            Ok(_) => Outcome::Good,
            Err(failure) if self.trips(&failure.kind) => match failure.then {
                Fail::Retry { after } | Fail::Wait { after } => Outcome::Bad(after),
                Fail::Final | Fail::Dead | Fail::Cancelled => Outcome::Bad(None),
            },
            Err(failure) if failure.then == Fail::Cancelled || failure.kind == CRASHED => Outcome::Unknown,
            Err(_) => Outcome::Good,
        }
    }

    fn outcome_of_end(&self, end: &AttemptEnd) -> Outcome {
        match end {
            AttemptEnd::Answered(answer) => self.outcome(answer),
            AttemptEnd::TimedOut if self.trips(TIMEOUT) => Outcome::Bad(None),
            AttemptEnd::Stalled(_) if self.trips(STALLED) => Outcome::Bad(None),
            AttemptEnd::TimedOut | AttemptEnd::Stalled(_) | AttemptEnd::Interrupted => Outcome::Unknown,
        }
    }

    /// Reason why nothing but probes starts, for people.
    fn open_reason(&self) -> Option<String> {
        if !self.circuit.is_open() {
            return None;
        }
        let Some(since) = self.circuit.open_since() else {
            let reason = self.reason.as_ref().map(|reason| format!(": {reason}"));
            return Some(format!("opened by an operator{}", reason.unwrap_or_default()));
        };
        let open_ms = since.elapsed().as_millis() as i64;
        Some(format!("open since {}: {}", time_text(now_ms() - open_ms), self.cause))
    }
}

pub(super) fn cause_of(answer: &Answer) -> String {
    answer.as_ref().err().map(|failure| format!("{}: {}", failure.kind, clip(&failure.message))).unwrap_or_default()
}

impl CircuitBreaker {
    pub(super) fn new(task_type: Arc<str>, health: Health, gauges: TypeGauges) -> Self {
        let failure_limit = FailureLimit::new(task_type.clone(), health, gauges.clone());
        Self { task_type, circuit: None, failure_limit, gauges }
    }

    /// Applies the policy and the state set by an operator. A type with neither has no circuit.
    pub(super) fn set(&mut self, policy: &TypePolicy, setting: Option<&CircuitSetting>, slots: usize) {
        self.failure_limit.set_alarm(policy.alarm());
        // The slots of a circuit that was opened by hand return one after the other, also without `trip_on`.
        let is_recovering =
            self.circuit.as_ref().is_some_and(|type_circuit| type_circuit.circuit.is_held_open_or_growing());
        if policy.trip_on.is_empty() && setting.is_none() && !is_recovering {
            if self.circuit.take().is_some() {
                self.gauges.set_circuit_open(false);
            }
            return;
        }
        let type_circuit = self.circuit.get_or_insert_with(TypeCircuit::new);
        type_circuit.trip_on.clone_from(&policy.trip_on);
        type_circuit.reason = setting.and_then(|setting| setting.reason.clone());
        type_circuit.circuit.set_slots(slots);
        type_circuit.circuit.force(setting.map(|setting| setting.state), Instant::now());
        self.gauges.set_circuit_open(type_circuit.circuit.is_open());
    }

    /// Returns whether another attempt may start beside `running` ones. The circuit advances with time.
    pub(super) fn admits(&mut self, now: Instant, running: usize) -> bool {
        !self.failure_limit.is_exceeded()
            && self.circuit.as_mut().is_none_or(|type_circuit| type_circuit.circuit.admits(now, running))
    }

    /// Registers the start of an attempt, which may be a probe.
    pub(super) fn attempt_started(&mut self, now: Instant) {
        if let Some(type_circuit) = &mut self.circuit {
            type_circuit.circuit.attempt_started(now);
        }
    }

    /// Counts the end of an attempt, or of a call with several. `is_late`: its result does not count.
    pub(super) fn attempt_ended(&mut self, started_at: Instant, end: &AttemptEnd, is_late: bool) {
        let Some(type_circuit) = &self.circuit else { return };
        let outcome = if is_late { Outcome::Unknown } else { type_circuit.outcome_of_end(end) };
        self.count(started_at, outcome, || match end {
            AttemptEnd::Answered(answer) => cause_of(answer),
            AttemptEnd::Stalled(_) => "attempts show no sign of life".to_owned(),
            AttemptEnd::TimedOut | AttemptEnd::Interrupted => "attempts time out".to_owned(),
        });
    }

    /// Counts the answer of an attempt that ended inline.
    pub(super) fn answered(&mut self, started_at: Instant, answer: &Answer) {
        let Some(type_circuit) = &self.circuit else { return };
        let outcome = type_circuit.outcome(answer);
        self.count(started_at, outcome, || cause_of(answer));
    }

    fn count(&mut self, started_at: Instant, outcome: Outcome, cause: impl FnOnce() -> String) {
        let Some(type_circuit) = &mut self.circuit else { return };
        let Some(change) = type_circuit.circuit.attempt_ended(started_at, Instant::now(), outcome, fastrand::f64())
        else {
            return;
        };
        let (task_type, cause) = (&self.task_type, cause());
        match change {
            CircuitChange::Opened => {
                let hint = "only single probes start until the service behind the type answers";
                tracing::warn!(%task_type, reason = %cause, hint, "circuit opened");
                self.gauges.record_circuit_opened();
                type_circuit.cause = cause;
            }
            CircuitChange::Paused(pause) => {
                let pause_ms = pause.as_millis() as u64;
                tracing::info!(%task_type, reason = %cause, pause_ms, "a probe of an open circuit has failed");
                type_circuit.cause = cause;
            }
            CircuitChange::Closed => tracing::info!(%task_type, "circuit closed: the service behind the type answers"),
        }
        self.gauges.set_circuit_open(type_circuit.circuit.is_open());
    }

    /// Counts a failed attempt, which opens the circuit if it is one too many.
    pub(super) fn attempt_failed(&mut self, failure: &Failure) {
        self.failure_limit.record(failure);
    }

    /// Closes the circuit that too many failures opened: an operator has resumed the type.
    pub(super) fn resume(&mut self) {
        self.failure_limit.reset();
    }

    /// Reason why nothing starts until an operator resumes the type, for people.
    pub(super) fn stopped(&self) -> Option<&String> {
        self.failure_limit.reason()
    }

    /// Returns whether nothing but probes starts.
    pub(super) fn is_open(&self) -> bool {
        self.failure_limit.is_exceeded()
            || self.circuit.as_ref().is_some_and(|type_circuit| type_circuit.circuit.is_open())
    }

    /// Reason why nothing but probes starts, for people.
    pub(super) fn open_reason(&self) -> Option<String> {
        self.circuit.as_ref().and_then(TypeCircuit::open_reason)
    }

    /// Time at which more attempts are admitted.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.circuit.as_ref().and_then(|type_circuit| type_circuit.circuit.next_due(now))
    }

    /// Turns a failure into a wait if the circuit is not closed: the service is to blame, not the task.
    pub(super) fn wait_if_open(&self, failure: Failure) -> Failure {
        let is_spared =
            |type_circuit: &TypeCircuit| type_circuit.circuit.makes_waits() && type_circuit.trips(&failure.kind);
        match failure.then {
            Fail::Retry { after } if self.circuit.as_ref().is_some_and(is_spared) => {
                Failure { then: Fail::Wait { after }, ..failure }
            }
            _ => failure,
        }
    }
}
