//! What becomes of an attempt: its last word, a retry, or back to the lane.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::failure_policy::Disposition;
use super::{Dispatcher, LONGEST_WAIT, Running, Sleeping};
use crate::config::Order;
use crate::handlers::{Answer, Fail, Failure, TIMEOUT};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::json::RawJson;
use crate::runtime;
use crate::worker::attempt::Ended;
use crate::worker::decode::{InFlight, Input};

impl Dispatcher {
    pub(super) async fn attempt_ended(&mut self, number: u64, ended: Ended) {
        let Some(mut running) = self.running.remove(&number) else { return };
        self.parts.meter.in_flight(self.running.len());
        self.suspect_ended(&running.held);
        let cancelled = !self.open || self.cancelled_assignments.contains(&running.held.tag.slot());
        match ended {
            // Late: the partition has another owner, or the worker is gone.
            _ if cancelled => self.interrupted(running),
            Ended::Interrupted => match running.cancelled.take() {
                Some(verdict) => self.cancel_running(running, *verdict).await,
                None => self.interrupted(running),
            },
            Ended::Answered(answer) => self.finish(running, answer).await,
            Ended::TimedOut => {
                let took = span_text(running.began.elapsed());
                let failure = Failure::retry(format!("the attempt had not ended after {took}")).of_kind(TIMEOUT);
                self.finish(running, Err(failure)).await;
            }
            Ended::Stalled(limit) => {
                let told = format!("the attempt has shown no sign of life for {}", span_text(limit));
                self.finish(running, Err(Failure::retry(told).of_kind("stalled"))).await;
            }
        }
    }

    pub(super) fn interrupted(&mut self, running: Running) {
        self.parts.meter.finished("interrupted", running.began.elapsed());
        self.output.close(&running.cx);
        self.release(running.held);
    }

    pub(super) async fn finish(&mut self, mut running: Running, answer: Answer) {
        self.flush_notes(&mut running).await;
        match answer.and_then(|output| self.deps.check(output)) {
            Ok(output) => self.succeed(running, output).await,
            Err(failure) => self.fail(running, failure).await,
        }
    }

    pub(super) async fn succeed(&mut self, running: Running, output: RawJson) {
        self.parts.meter.finished("succeeded", running.began.elapsed());
        let mut event = self.event(Kind::Succeeded, &running.held);
        event.attempt = running.held.attempts + 1;
        event.started_at_ms = Some(running.began_ms);
        event.output = Some(output);
        self.end(running.held, event).await;
    }

    pub(super) async fn fail(&mut self, mut running: Running, failure: Failure) {
        if let Some(verdict) = running.cancelled.take() {
            return self.cancel_running(running, *verdict).await;
        }
        if self.has_convicted_itself(&running.held, &failure) {
            return self.suspect_died(running, failure).await;
        }
        let attempt = running.held.attempts + 1;
        self.log_failure(&running, &failure);
        self.count_failure(&failure);
        match self.judge(&running.held, attempt, failure) {
            Disposition::Retry { wait, failure } => self.retry(running, wait, failure).await,
            Disposition::Skip { failure } => self.skip(running, failure).await,
            Disposition::End { code, failure } => self.give_up(running, code, failure).await,
        }
    }

    /// It waits here, without a slot, or at the tracker.
    async fn retry(&mut self, mut running: Running, wait: Duration, failure: Failure) {
        self.parts.meter.finished("retried", running.began.elapsed());
        let attempt = running.held.attempts + 1;
        let mut event = self.failure_event(Kind::Retrying, &running, &failure);
        event.due_ms = Some(event.at_ms.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)));
        // What `spawn_now` has published is known here only: such a task is tried again here.
        if self.waits_elsewhere(wait) && !self.output.has_spawned(&running.held.task.id, running.held.task.run) {
            return self.hand_over(running.held, event).await;
        }
        self.say(&mut running.held, event).await;
        if self.closed_assignments.contains(&running.held.tag.slot()) {
            // Nobody waits here for it: the successor tries again.
            return self.release(running.held);
        }
        running.held.attempts = attempt;
        self.sleeping.push(Reverse(Sleeping { until: Instant::now() + wait, held: running.held }));
    }

    /// Passed over: it succeeds, and says that it did not.
    async fn skip(&mut self, mut running: Running, failure: Failure) {
        let mut event = self.event(Kind::Warned, &running.held);
        event.attempt = running.held.attempts + 1;
        event.message = Some(format!("passed over ({}): {}", failure.kind, failure.message));
        self.write_started(&mut running).await;
        self.say(&mut running.held, event).await;
        self.succeed(running, RawJson::null()).await;
    }

    /// Code: why it is kept as a dead letter, if it is.
    async fn give_up(&mut self, running: Running, code: Option<&'static str>, failure: Failure) {
        let kind = if failure.then == Fail::Cancelled { Kind::Cancelled } else { Kind::Failed };
        self.parts.meter.finished(if kind == Kind::Failed { "failed" } else { "cancelled" }, running.began.elapsed());
        let event = self.failure_event(kind, &running, &failure);
        match code {
            Some(code) => self.dead_letter_task(running.held, event, code, failure.message),
            None => self.end(running.held, event).await,
        }
    }

    pub(super) fn failure_event(&self, kind: Kind, running: &Running, failure: &Failure) -> Event {
        let attempt = running.held.attempts + 1;
        let mut event = self.event(kind, &running.held);
        event.attempt = attempt;
        event.started_at_ms = Some(running.began_ms);
        event.error = Some(Box::new(ErrorInfo::new(&failure.kind, failure.message.clone(), attempt)));
        event
    }

    /// For people who look at the worker; the whole story is in the events.
    pub(super) fn log_failure(&mut self, running: &Running, failure: &Failure) {
        if let Some(left_out) = self.failures_logged.pass() {
            let (task, task_type, attempt) = (&running.held.task.id, &self.parts.task_type, running.cx.number);
            tracing::warn!(%task, %task_type, attempt, kind = %failure.kind, reason = %failure.message, left_out, "an attempt failed");
        }
    }

    /// The last word on a task: when Kafka has it, the input is done.
    pub(super) async fn end(&mut self, held: Box<InFlight>, event: Event) {
        self.output.forget(&held.task.id, held.task.run);
        self.parts.events.report(&event, held.tag, &mut self.scratch).await;
        self.pass_turn(&held);
    }

    pub(super) async fn expire(&mut self, held: Box<InFlight>, now: i64) {
        self.parts.meter.finished("expired", Duration::ZERO);
        let mut event = self.event(Kind::Expired, &held);
        let late = now.saturating_sub(held.task.policy.as_ref().and_then(|policy| policy.expires_at_ms).unwrap_or(now));
        event.error = Some(Box::new(ErrorInfo::new("expired", format!("it was not started in time: {late} ms late"), 0)));
        self.end(held, event).await;
    }

    /// Not before its time: it waits here, without a slot.
    pub(super) async fn put_off(&mut self, mut held: Box<InFlight>, at_ms: i64, now: i64) {
        let wait = Duration::from_millis((at_ms - now).max(0) as u64).min(LONGEST_WAIT);
        if self.waits_elsewhere(wait) {
            let mut event = self.event(Kind::Scheduled, &held);
            event.due_ms = Some(at_ms);
            return self.hand_over(held, event).await;
        }
        if !held.announced {
            let mut event = self.event(Kind::Scheduled, &held);
            event.due_ms = Some(at_ms);
            self.say(&mut held, event).await;
        }
        self.sleeping.push(Reverse(Sleeping { until: Instant::now() + wait, held }));
    }

    /// So long a wait is the tracker's, where no order holds the task here.
    fn waits_elsewhere(&self, wait: Duration) -> bool {
        self.parts.registered.policy.order == Order::None && wait > self.parts.config.inline_retry_max.into()
    }

    /// The tracker keeps the task until its time has come: the input is done when Kafka has this event.
    async fn hand_over(&mut self, held: Box<InFlight>, mut event: Event) {
        if held.task.has_foreign_headers || held.has_own_key {
            return self.hand_over_whole(held, event);
        }
        event.record = Some(Box::new(self.parts.events.publisher().kept(&held.task, None)));
        self.end(held, event).await;
    }

    /// What the record says beyond the task is read again, and kept with it. The dispatcher does not wait for it.
    fn hand_over_whole(&mut self, held: Box<InFlight>, mut event: Event) {
        self.output.forget(&held.task.id, held.task.run);
        let (dead_letters, burials, gone) = (self.parts.dead_letters.clone(), self.burials.clone(), self.gone.clone());
        let task_type = self.parts.task_type.clone();
        runtime::spawn(gone.run_until_cancelled_owned(async move {
            let Ok(permit) = burials.acquire_owned().await else { return };
            event.record = Some(Box::new(dead_letters.kept(&task_type, &held.task).await));
            dead_letters.events.report(&event, held.tag, &mut Vec::new()).await;
            drop((permit, held));
        }));
    }

    pub(super) fn release(&mut self, held: Box<InFlight>) {
        self.unfinished |= held.announced;
        self.parts.inbox.returned(held.tag);
        self.output.forget(&held.task.id, held.task.run);
        self.pass_turn(&held);
    }

    /// The next task with the same key has its turn.
    pub(super) fn pass_turn(&mut self, held: &InFlight) {
        if held.key == 0 || !held.holds_key {
            return;
        }
        let Some(followers) = self.keys.get_mut(&held.key) else { return };
        match followers.pop_front() {
            Some(mut next) => {
                next.holds_key = true;
                self.queue.push_front(Input::Task(next));
            }
            None => {
                self.keys.remove(&held.key);
            }
        }
    }
}

/// A span for people: below a second in milliseconds.
fn span_text(span: Duration) -> String {
    match span.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", span.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_span_is_in_milliseconds() {
        let texts = [10, 999, 1_000, 1_540].map(|ms| span_text(Duration::from_millis(ms)));
        assert_eq!(texts, ["10 ms", "999 ms", "1.0 s", "1.5 s"]);
    }
}
