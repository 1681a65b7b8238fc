//! Circuits per host of the dispatcher's type: before a start, after the end of an attempt, in status and metrics. A type whose
//! handler names no hosts has none of this.

use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::ForcedCircuit;
use kafleet_handlers::{Answer, BUSY, Fail, Failure, HostOf, TIMEOUT, UNREACHABLE};
use kafleet_model::units::time::time_text;
use kafleet_model::worker_status::OpenHost;
use kafleet_runtime::now_ms;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::admission::{Admission, SlotLoad};
use super::circuit::cause_of;
use super::running::RunningAttempt;
use crate::attempt::AttemptEnd;
use crate::child::CRASHED;
use crate::circuit::hosts::{HostCircuits, HostOutage};
use crate::circuit::{CircuitChange, Outcome};
use crate::consumer::control::window;
use crate::decode::InFlight;
use crate::type_metrics::TypeGauges;

/// Maximum number of open hosts in a heartbeat.
const MAX_LISTED: usize = 20;
/// Kinds of errors that open the circuit of a host.
const TRIP_ON: [&str; 3] = [UNREACHABLE, TIMEOUT, BUSY];
/// Part of a partition's window that tasks of open hosts may occupy. Further ones wait at the tracker, so that tasks of other
/// hosts behind them are still handed out.
const WINDOW_PART: u64 = 4;

/// Circuits of the hosts that attempts of the type call.
pub(super) struct Hosts {
    task_type: Arc<str>,
    host_of: HostOf,
    circuits: HostCircuits<Box<InFlight>>,
    /// Held tasks by assignment.
    held: FxHashMap<u32, u64>,
    /// Maximum number of held tasks of an assignment.
    quota: u64,
    /// Longest time for which a task is held. `None`: tasks of ordered types do not leave.
    longest: Option<Duration>,
    /// Host of the task that was admitted last.
    admitted: Option<Arc<str>>,
    gauges: TypeGauges,
}

/// Decision about the start of a task by the circuit of its host.
pub(super) enum HostVerdict {
    Admitted(Box<InFlight>),
    /// The task waits here.
    Waits,
    /// The task has waited here for long, or too many do: it waits elsewhere. The failure names the host.
    Full(Box<InFlight>, Failure),
}

impl Hosts {
    pub(super) fn new(task_type: Arc<str>, host_of: HostOf, gauges: TypeGauges) -> Self {
        gauges.set_open_hosts(0);
        Self {
            task_type,
            host_of,
            circuits: HostCircuits::new(),
            held: FxHashMap::default(),
            quota: 0,
            longest: None,
            admitted: None,
            gauges,
        }
    }

    /// Applies the slots of the type, the states that operators have set, and the longest time for which a task is held.
    pub(super) fn set<'a>(
        &mut self,
        slots: usize,
        longest: Option<Duration>,
        forced: impl Iterator<Item = (&'a str, ForcedCircuit)>,
    ) {
        self.quota = window(u32::try_from(slots).unwrap_or(u32::MAX)) / WINDOW_PART;
        self.longest = longest;
        self.circuits.set(slots, forced, Instant::now());
        self.count_open();
    }

    /// Decides whether the circuit of the task's host admits it. `is_due`: the task has used up its waits and starts in any case.
    pub(super) fn admit(&mut self, mut in_flight: Box<InFlight>, now: Instant, is_due: bool) -> HostVerdict {
        self.admitted = (self.host_of)(&in_flight.task.params).map(Arc::from);
        let Some(host) = self.admitted.clone() else { return HostVerdict::Admitted(in_flight) };
        if is_due || self.circuits.admits(&host, now) {
            return HostVerdict::Admitted(in_flight);
        }
        self.admitted = None;
        // A host that an operator has opened is first known here.
        self.count_open();
        let assignment_id = in_flight.tag.assignment_id();
        let held = self.held.get(&assignment_id).copied().unwrap_or_default();
        let is_full = self.longest.is_some_and(|longest| held >= self.quota || in_flight.waited >= longest);
        if is_full {
            let message = format!("the circuit of the host `{host}` is open: it has not answered its last calls");
            in_flight.waited = Duration::ZERO;
            return HostVerdict::Full(in_flight, Failure::wait(None, message).of_kind(UNREACHABLE));
        }
        match self.circuits.hold(&host, in_flight, now) {
            Some(in_flight) => HostVerdict::Admitted(in_flight),
            None => {
                self.held.insert(assignment_id, held + 1);
                HostVerdict::Waits
            }
        }
    }

    /// Takes the host of the attempt that starts now.
    pub(super) fn start(&mut self, now: Instant) -> Option<Arc<str>> {
        let host = self.admitted.take()?;
        self.circuits.attempt_started(&host, now);
        Some(host)
    }

    /// Counts the end of an attempt that called the host. `is_unknown`: its result does not count.
    pub(super) fn attempt_ended(&mut self, host: &str, started_at: Instant, end: &AttemptEnd, is_unknown: bool) {
        let outcome = if is_unknown { Outcome::Unknown } else { outcome_of_end(end) };
        let cause = || match end {
            AttemptEnd::Answered(answer) => cause_of(answer),
            _ => "attempts time out".to_owned(),
        };
        let times = (started_at, Instant::now());
        let Some(change) = self.circuits.attempt_ended(host, times, outcome, fastrand::f64(), cause) else { return };
        let task_type = &self.task_type;
        match change {
            CircuitChange::Opened => {
                let hint = "tasks of this host wait, and single probes find out whether it answers";
                tracing::warn!(%task_type, host, hint, "circuit of a host opened");
                self.gauges.record_host_opened();
            }
            CircuitChange::Paused(pause) => {
                let pause_ms = pause.as_millis() as u64;
                tracing::info!(%task_type, host, pause_ms, "a probe of a host with an open circuit has failed");
            }
            CircuitChange::Closed => tracing::info!(%task_type, host, "circuit of a host closed: it answers"),
        }
        self.count_open();
    }

    /// Turns a failure into a wait if the circuit of its host is not closed: the host is to blame, not the task.
    pub(super) fn wait_if_open(&self, host: &str, failure: Failure) -> Failure {
        match failure.then {
            Fail::Retry { after } if trips(&failure.kind) && self.circuits.makes_waits(host) => {
                Failure { then: Fail::Wait { after }, ..failure }
            }
            _ => failure,
        }
    }

    /// Takes the tasks that may start now, and those that have waited here for long.
    #[expect(clippy::vec_box, reason = "tasks move between queues as boxes")]
    pub(super) fn take_ready(&mut self, now: Instant) -> Vec<Box<InFlight>> {
        let before = self.longest.and_then(|longest| now.checked_sub(longest));
        let ready = self.circuits.take_ready(now, before);
        let ready: Vec<_> = ready
            .into_iter()
            .map(|(since, mut in_flight)| {
                in_flight.waited = in_flight.waited.saturating_add(now.duration_since(since));
                in_flight
            })
            .collect();
        ready.iter().for_each(|in_flight| self.forget(in_flight.tag.assignment_id()));
        ready
    }

    /// Takes out the selected tasks of those that wait here.
    #[expect(clippy::vec_box, reason = "tasks move between queues as boxes")]
    pub(super) fn extract(&mut self, is_selected: &mut dyn FnMut(&InFlight) -> bool) -> Vec<Box<InFlight>> {
        let taken = self.circuits.extract(&mut |in_flight| is_selected(in_flight));
        taken.iter().for_each(|in_flight| self.forget(in_flight.tag.assignment_id()));
        taken
    }

    fn forget(&mut self, assignment_id: u32) {
        if let Some(held) = self.held.get_mut(&assignment_id) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(&assignment_id);
            }
        }
    }

    /// Time at which a task that waits here may start, or leaves.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.circuits.next_due(now, self.longest)
    }

    /// Number of tasks that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.circuits.waiting()
    }

    /// Number of hosts whose circuits are open, and the first of them by name for the status of the type.
    pub(super) fn open(&self) -> (u32, Vec<OpenHost>) {
        let mut open: Vec<_> = self.circuits.open().collect();
        open.sort_unstable_by_key(|open| open.host);
        let number = open.len() as u32;
        let describe = |open: &HostOutage<'_>| OpenHost {
            host: open.host.to_owned(),
            reason: match open.since {
                Some(since) => {
                    let open_ms = since.elapsed().as_millis() as i64;
                    format!("open since {}: {}", time_text(now_ms().saturating_sub(open_ms)), open.cause)
                }
                None => "opened by an operator".to_owned(),
            },
            waiting: open.waiting as u32,
        };
        (number, open.iter().take(MAX_LISTED).map(describe).collect())
    }

    fn count_open(&self) {
        self.gauges.set_open_hosts(self.circuits.open().count());
    }
}

/// Ends of attempts, as the circuits of their hosts count them.
impl Admission {
    /// Counts the end of an attempt for the circuit of its host. `is_late`: its result does not count.
    pub(super) fn end_host_call(&mut self, running: &RunningAttempt, end: &AttemptEnd, is_late: bool) {
        if let (Some(hosts), Some(host)) = (&mut self.hosts, &running.host) {
            hosts.attempt_ended(host, running.started_at, end, is_late || running.cancelled.is_some());
            self.release_held(Instant::now());
        }
    }

    /// Counts the answer of an attempt that ended inline, for its host and the adaptive limit, and returns it.
    pub(super) fn count_answer(&mut self, running: &RunningAttempt, answer: Answer, load: SlotLoad) -> Answer {
        if running.host.is_none() && !self.adaptive.is_on() {
            return answer;
        }
        let end = AttemptEnd::Answered(answer);
        self.end_host_call(running, &end, false);
        self.adaptive.attempt_started(load.attempts);
        self.adaptive.attempt_ended(running.started_at, &end, false);
        match end {
            AttemptEnd::Answered(answer) => answer,
            _ => Err(Failure::cancelled()),
        }
    }

    /// Turns a failure into a wait if the circuit of the attempt's host is not closed.
    pub(super) fn wait_if_host_open(&self, running: &RunningAttempt, failure: Failure) -> Failure {
        match (&self.hosts, &running.host) {
            (Some(hosts), Some(host)) => hosts.wait_if_open(host, failure),
            _ => failure,
        }
    }

    /// Makes the tasks ready that the circuits of their hosts admit now, and those that they have held for long.
    pub(super) fn release_held(&mut self, now: Instant) {
        let Some(hosts) = &mut self.hosts else { return };
        for in_flight in hosts.take_ready(now).into_iter().rev() {
            self.queue.push_front(in_flight);
        }
    }
}

fn trips(kind: &str) -> bool {
    TRIP_ON.contains(&kind)
}

fn outcome_of_end(end: &AttemptEnd) -> Outcome {
    match end {
        AttemptEnd::Answered(answer) => outcome(answer),
        AttemptEnd::TimedOut | AttemptEnd::Stalled(_) => Outcome::Bad(None),
        AttemptEnd::Interrupted => Outcome::Unknown,
    }
}

fn outcome(answer: &Answer) -> Outcome {
    let Err(failure) = answer else { return Outcome::Good };
    match failure.then {
        // The receiver was not called, because as many calls as it may have without a response run already.
        Fail::Wait { .. } if failure.kind == UNREACHABLE => Outcome::Unknown,
        Fail::Retry { after } | Fail::Wait { after } if trips(&failure.kind) => Outcome::Bad(after),
        Fail::Cancelled => Outcome::Unknown,
        _ if failure.kind == CRASHED || failure.kind == "secret" => Outcome::Unknown,
        _ => Outcome::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_silence_are_bad_and_answers_are_good() {
        let after = Some(Duration::from_secs(9));
        let of = |failure: Failure| outcome(&Err(failure));
        assert_eq!(of(Failure::wait(after, "429").of_kind(BUSY)), Outcome::Bad(after));
        assert_eq!(of(Failure::retry("no answer").of_kind(TIMEOUT)), Outcome::Bad(None));
        assert_eq!(of(Failure::retry("404").of_kind("http_status")), Outcome::Good);
        assert_eq!(of(Failure::wait(None, "8 calls run").of_kind(UNREACHABLE)), Outcome::Unknown);
        assert_eq!(of(Failure::retry("no such secret").of_kind("secret")), Outcome::Unknown);
    }
}
