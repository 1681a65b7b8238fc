//! Outcomes of attempts: what became of an attempt is turned into the way out of its task.

use std::time::Duration;

use kafleet_handlers::{Answer, Failure, TIMEOUT};
use kafleet_model::event::InterruptionReason;
use kafleet_runtime::now_ms;
use tokio::time::Instant;

use super::Dispatcher;
use super::exits::Exit;
use super::failure_policy;
use super::quarantine::judge_crash;
use super::running::RunningAttempt;
use crate::attempt::{AttemptEnd, STALLED};
use crate::child::CRASHED;
use crate::decode::Restarts;

/// Maximum number of repetitions of an attempt whose process has ended.
const MAX_RESTARTS: u8 = 3;
/// Delay between the timeout of an attempt and its end that messages name.
const NOTABLE_DELAY: Duration = Duration::from_millis(100);

impl Dispatcher {
    pub(super) async fn attempt_ended(&mut self, id: u64, end: AttemptEnd) {
        let Some(mut running) = self.attempts.remove(id) else { return };
        let late = self.admission.assignments.late_reason(running.in_flight.tag, self.open);
        let is_late = late.is_some() || running.cancelled.is_some();
        self.admission.circuit.attempt_ended(running.started_at, &end, is_late);
        self.admission.end_host_call(&running, &end, late.is_some());
        self.admission.adaptive.attempt_ended(running.started_at, &end, is_late);
        let exit = self.exit_of(&mut running, late, end);
        self.leave(running, exit).await;
    }

    /// Decides what follows the end of an attempt. `late`: why its outcome no longer counts.
    pub(super) fn exit_of(
        &mut self,
        running: &mut RunningAttempt,
        late: Option<InterruptionReason>,
        end: AttemptEnd,
    ) -> Exit {
        if let Some(reason) = late {
            return Exit::Released(Some(reason));
        }
        match end {
            AttemptEnd::Answered(answer) => self.judge(running, answer),
            AttemptEnd::Interrupted => match running.cancelled.take() {
                Some(verdict) => Exit::Cancelled(*verdict),
                None => Exit::Released(Some(InterruptionReason::WorkerStopped)),
            },
            end => match failure_of_end(running.started_at, running.cx.deadline, end) {
                Some(failure) => self.judge_failure(running, failure),
                None => Exit::Released(Some(InterruptionReason::WorkerStopped)),
            },
        }
    }

    /// Decides what follows the answer of an attempt.
    pub(super) fn judge(&mut self, running: &mut RunningAttempt, answer: Answer) -> Exit {
        match answer {
            Ok(output) => Exit::Completed { output, skipped: None },
            Err(failure) => self.judge_failure(running, failure),
        }
    }

    pub(super) fn judge_failure(&mut self, running: &mut RunningAttempt, mut failure: Failure) -> Exit {
        running.cx.hidden.hide_in(&mut failure.message);
        if let Some(verdict) = running.cancelled.take() {
            return Exit::Cancelled(*verdict);
        }
        if failure.kind == CRASHED {
            if running.in_flight.suspect.is_some() && self.attempts.has_quarantine() {
                self.exits.reports.log_failure(running, &failure);
                return judge_crash(running, failure, self.admission.assignments.is_closed(running.in_flight.tag));
            }
            if let Some(restart) = running.cx.interruption.restart()
                && (!Restarts::counts(restart) || running.in_flight.restarts.number < MAX_RESTARTS)
            {
                return Exit::Restarted { restart, failure };
            }
        }
        let policy = &self.settings.policy;
        let failure = self.admission.circuit.wait_if_open(failure);
        let failure = self.admission.wait_if_host_open(running, failure);
        if !failure_policy::is_wait(policy, &running.in_flight, &failure, now_ms()) {
            self.exits.reports.log_failure(running, &failure);
            self.admission.circuit.attempt_failed(&failure);
        }
        if failure_policy::backoff_starts_again(policy, &running.in_flight, running.started_at.elapsed()) {
            let progress = &mut running.in_flight.progress;
            progress.backoff_from = progress.attempts;
        }
        match failure_policy::decide(policy, &running.in_flight, running.attempt(), failure) {
            Exit::Waiting(wait) => {
                // Only this worker has recorded the children published by `spawn_now`.
                let is_bound = self.exits.reporter.output.has_spawned(&running.cx.id, running.cx.run);
                self.admission.decide_wait(&mut running.in_flight, wait, is_bound)
            }
            exit => exit,
        }
    }
}

/// Failure of an attempt, or of a call with several, that has ended without a result. `None`: it was interrupted.
pub(super) fn failure_of_end<T>(
    started_at: Instant,
    deadline: Option<std::time::Instant>,
    end: AttemptEnd<T>,
) -> Option<Failure> {
    match end {
        AttemptEnd::Answered(answer) => answer.err(),
        AttemptEnd::TimedOut => {
            let ended_at = Instant::now();
            let message = timeout_text(started_at, deadline.map_or(ended_at, Instant::from_std), ended_at);
            Some(Failure::retry(message).of_kind(TIMEOUT))
        }
        AttemptEnd::Stalled(limit) => {
            let message = format!("the attempt showed no sign of life for {}", duration_text(limit));
            Some(Failure::retry(message).of_kind(STALLED))
        }
        AttemptEnd::Interrupted => None,
    }
}

/// Message about an attempt that was stopped at its deadline, such as `timeout of 6.0 s, stopped 5.0 s later`.
fn timeout_text(started_at: Instant, deadline: Instant, ended_at: Instant) -> String {
    let limit = duration_text(deadline.saturating_duration_since(started_at));
    let late = ended_at.saturating_duration_since(deadline);
    let stopped = if late < NOTABLE_DELAY { String::new() } else { format!(", stopped {} later", duration_text(late)) };
    format!("timeout of {limit}{stopped}")
}

/// Formats a duration for messages: in milliseconds below a second.
fn duration_text(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", duration.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_end_after_a_timeout_is_named() {
        let start = Instant::now();
        let text = |limit_ms, took_ms| {
            timeout_text(start, start + Duration::from_millis(limit_ms), start + Duration::from_millis(took_ms))
        };
        assert_eq!(text(6_000, 6_010), "timeout of 6.0 s");
        assert_eq!(text(6_000, 11_000), "timeout of 6.0 s, stopped 5.0 s later");
    }

    #[test]
    fn short_duration_is_in_milliseconds() {
        let texts = [10, 999, 1_000, 1_540].map(|ms| duration_text(Duration::from_millis(ms)));
        assert_eq!(texts, ["10 ms", "999 ms", "1.0 s", "1.5 s"]);
    }
}
