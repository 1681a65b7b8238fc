//! Attempts that run in tasks of their own.

use std::collections::VecDeque;
use std::sync::Arc;

use kafleet_fleet::control::Cancellation;
use kafleet_handlers::Context;
use kafleet_handlers::context::CancelReason;
use kafleet_model::event::{Announcement, AttemptFailure};
use kafleet_telemetry::otel::{AttemptSpan, nanos};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::attempt::{AttemptEnd, Interruptible as _};
use crate::decode::InFlight;
use crate::spans::AttemptSpans;

/// A task with the attempt that runs.
pub(super) struct RunningAttempt {
    pub in_flight: Box<InFlight>,
    pub cx: Context,
    /// Host that the attempt calls, if its type has circuits per host.
    pub host: Option<Arc<str>>,
    /// Number of tasks in the call of which the attempt is a part. `None`: it is not in a batch.
    pub batch_size: Option<usize>,
    /// Stops the attempt, whose outcome no longer counts. `None` while it is polled inline.
    pub stop: Option<CancellationToken>,
    pub started_at: Instant,
    pub started_at_ms: i64,
    /// The `started` event is published.
    pub announced_start: bool,
    /// Set once the task is cancelled and the attempt is stopped for it.
    pub cancelled: Option<Box<Cancellation>>,
    /// Span of the attempt, until it has ended. `None` if its trace is not sampled.
    pub span: Option<Box<AttemptSpan>>,
}

impl RunningAttempt {
    /// Number of this attempt, from 1.
    pub(super) fn attempt(&self) -> u32 {
        self.in_flight.progress.attempts + 1
    }

    pub(super) fn announcement(&self) -> Announcement {
        Announcement::of(&self.in_flight.task, Some(self.in_flight.record.position))
    }

    /// Failure of this attempt.
    pub(super) fn failure(&self, kind: &str, message: String) -> AttemptFailure {
        let started_at_ms = Some(self.started_at_ms);
        AttemptFailure { started_at_ms, ..AttemptFailure::new(kind, message, self.attempt()) }
    }

    /// Returns the token that stops the attempt, and creates it if necessary.
    pub(super) fn stop_token(&mut self) -> CancellationToken {
        self.stop.get_or_insert_default().clone()
    }

    /// Ends the span of the attempt, if there is one. `failure`: kind and message.
    pub(super) fn end_span(&mut self, spans: &AttemptSpans, outcome: &'static str, failure: Option<(&str, &str)>) {
        if let Some(span) = self.span.take() {
            let start = nanos(self.started_at_ms);
            let took = u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let times = (start, start.saturating_add(took));
            spans.end(&mut self.in_flight, &span, times, outcome, failure);
        }
    }

    /// Stops the attempt. A call goes on for its other attempts: only the token of this one is cancelled.
    pub(super) fn stop(&self) {
        self.stop.iter().for_each(CancellationToken::cancel);
        if self.batch_size.is_some() {
            self.cx.interrupt(CancelReason::Shutdown);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

/// Call of a handler with several attempts, which occupies one slot.
pub(super) struct RunningCall {
    /// Ids of the attempts, in their order in the call.
    attempts: Vec<u64>,
    /// Stops the call, which has no attempt left whose outcome counts.
    stop: CancellationToken,
    pub started_at: Instant,
}

/// End of an attempt in a slot of its own, or of a call with several.
pub(super) enum EndMessage {
    Attempt(u64, AttemptEnd),
    Call(u64, AttemptEnd<Vec<AttemptEnd>>),
}

/// Attempts in tasks of their own, by id.
pub(super) struct RunningAttempts {
    by_id: FxHashMap<u64, RunningAttempt>,
    calls: FxHashMap<u64, RunningCall>,
    /// Number of attempts that are parts of calls.
    in_calls: usize,
    next_id: u64,
    /// Number of those that are suspects.
    suspects: usize,
    /// Attempts without a `started` event, in the order in which it is due.
    unannounced: VecDeque<(Instant, u64)>,
    pub ends: mpsc::UnboundedReceiver<EndMessage>,
    end_sender: mpsc::UnboundedSender<EndMessage>,
}

/// An aborted dispatcher stops its attempts: they run in tasks of their own.
impl Drop for RunningAttempts {
    fn drop(&mut self) {
        self.by_id.values().for_each(RunningAttempt::stop);
        self.calls.values().for_each(|call| call.stop.cancel());
    }
}

impl RunningAttempts {
    pub(super) fn new() -> Self {
        let (end_sender, ends) = mpsc::unbounded_channel();
        Self {
            by_id: FxHashMap::default(),
            calls: FxHashMap::default(),
            in_calls: 0,
            next_id: 0,
            suspects: 0,
            unannounced: VecDeque::new(),
            ends,
            end_sender,
        }
    }

    /// Number of slots that are in use: those of attempts and of calls.
    pub(super) fn slots(&self) -> usize {
        self.by_id.len() - self.in_calls + self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds an attempt whose `started` event is due at `announce_at`; returns its id.
    pub(super) fn insert(&mut self, running: RunningAttempt, announce_at: Instant) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.unannounced.push_back((announce_at, id));
        self.suspects += usize::from(running.in_flight.suspect.is_some());
        self.by_id.insert(id, running);
        id
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<RunningAttempt> {
        let running = self.by_id.remove(&id)?;
        self.suspects -= usize::from(running.in_flight.suspect.is_some());
        Some(running)
    }

    /// Adds a call with several attempts; returns its id.
    pub(super) fn insert_call(
        &mut self,
        attempts: Vec<RunningAttempt>,
        stop: CancellationToken,
        started_at: Instant,
        announce_at: Instant,
    ) -> u64 {
        let call = self.next_id;
        self.next_id += 1;
        let batch_size = Some(attempts.len());
        let of_call = |attempt| RunningAttempt { batch_size, ..attempt };
        let attempts: Vec<u64> =
            attempts.into_iter().map(|attempt| self.insert(of_call(attempt), announce_at)).collect();
        self.in_calls += attempts.len();
        self.calls.insert(call, RunningCall { attempts, stop, started_at });
        call
    }

    /// Removes a call, with its attempts in their order.
    pub(super) fn remove_call(&mut self, id: u64) -> Option<(RunningCall, Vec<RunningAttempt>)> {
        let call = self.calls.remove(&id)?;
        self.in_calls -= call.attempts.len();
        let attempts = call.attempts.iter().filter_map(|id| self.remove(*id)).collect();
        Some((call, attempts))
    }

    /// Stops the calls of which all attempts are stopped.
    pub(super) fn stop_unneeded_calls(&self) {
        let is_stopped = |id: &u64| self.by_id.get(id).is_none_or(RunningAttempt::is_stopped);
        self.calls.values().filter(|call| call.attempts.iter().all(is_stopped)).for_each(|call| call.stop.cancel());
    }

    /// Number of attempts of suspects.
    pub(super) fn suspects(&self) -> usize {
        self.suspects
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RunningAttempt> {
        self.by_id.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RunningAttempt> {
        self.by_id.values_mut()
    }

    /// Channel to which attempts send their ends. The dispatcher outlives its attempts.
    pub(super) fn end_sender(&self) -> mpsc::UnboundedSender<EndMessage> {
        self.end_sender.clone()
    }

    /// Time at which the next `started` event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.unannounced.front().map(|(at, _)| *at)
    }

    /// Takes the next attempt without a `started` event: one whose event is due at `until`, or any without a time.
    pub(super) fn next_unannounced(&mut self, until: Option<Instant>) -> Option<&mut RunningAttempt> {
        loop {
            let (_, id) = self.unannounced.pop_front_if(|(at, _)| until.is_none_or(|until| *at <= until))?;
            // Attempts that have ended meanwhile are still in the list.
            if self.by_id.contains_key(&id) {
                return self.by_id.get_mut(&id);
            }
        }
    }
}
