//! Attempts of a session: start, cancellation, answer, and the end without an answer.

use std::borrow::Cow;

use kafleet_handlers::context::Restart;
use kafleet_handlers::excerpt;
use kafleet_handlers::task_labels::TaskLabels;
use kafleet_handlers::{Answer, Context, Fail, Failure};
use kafleet_model::json::RawJson;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Cause, Session, SessionEvent, SessionPhase, StuckCounter, death};
use crate::protocol::{
    self, AttemptError, AttemptSuccess, ErrorOutcome, Start, ToApp, TraceFields, Violation, valid_kind,
};

/// Maximum length of a message of an app, in characters.
const MAX_MESSAGE_CHARS: usize = 4_000;

/// Attempt that the app runs.
pub(super) struct AttemptEntry {
    pub cx: Context,
    answer: oneshot::Sender<AnsweredAttempt>,
    /// Start of the attempt's message in the stream.
    pub start: u64,
    /// Number and size (bytes) of the children to publish with the result.
    pub children: usize,
    pub children_bytes: usize,
    /// Reason why the children cannot be published.
    pub bad_children: Option<Failure>,
    /// Publications of `spawn` calls.
    pub calls: Vec<SpawnCall>,
}

/// Publication of the children of a `spawn` call; aborted when dropped.
pub(super) struct SpawnCall(pub JoinHandle<()>);

impl Drop for SpawnCall {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// End of an attempt, with its calls.
struct AnsweredAttempt {
    ended: AttemptAnswer,
    calls: Vec<SpawnCall>,
}

/// End of an attempt.
#[derive(Debug, PartialEq)]
pub struct AttemptAnswer {
    pub answer: Answer,
    /// The attempt is repeated if it has not been repeated too often; the answer applies otherwise.
    pub restart: Option<Restart>,
    /// The process ended soon after its start, with this attempt alone: the app may be to blame.
    pub is_early: bool,
}

/// Attempt in a process. If it is dropped before its end, its slot in the process is lost.
pub struct RunningAttempt {
    session: Session,
    n: u64,
    cx: Context,
    stuck: StuckCounter,
    /// `None` once the attempt has ended.
    answer: Option<oneshot::Receiver<AnsweredAttempt>>,
}

impl AttemptEntry {
    fn new(cx: Context, answer: oneshot::Sender<AnsweredAttempt>, start: u64) -> Self {
        Self { cx, answer, start, children: 0, children_bytes: 0, bad_children: None, calls: Vec::new() }
    }

    pub(super) fn end(self, ended: AttemptAnswer) {
        // The receiver is dropped if the attempt has been abandoned.
        let _ = self.answer.send(AnsweredAttempt { ended, calls: self.calls });
    }
}

impl AttemptAnswer {
    pub(super) fn of_answer(answer: Answer) -> Self {
        Self { answer, restart: None, is_early: false }
    }

    /// End of an attempt that was not sent.
    pub(crate) fn unsent() -> Self {
        Self {
            answer: Err(death(&Cause::Unread, "the process of the app ended before the attempt was sent")),
            restart: Some(Restart::Unsent),
            is_early: false,
        }
    }

    /// Returns the answer, and requests the repetition of the attempt.
    pub(crate) fn into_answer(self, cx: &Context) -> Answer {
        if let Some(restart) = self.restart {
            cx.interruption.request_restart(restart);
        }
        self.answer
    }

    /// End of an attempt whose process has ended. `is_only`: no other attempt was running.
    pub(super) fn of_cause(cause: &Cause, message: &str, is_only: bool) -> Self {
        let restart = match cause {
            Cause::Unread => Some(Restart::Shared),
            Cause::Killed(restart) => Some(*restart),
            Cause::Crashed | Cause::CrashedEarly | Cause::OutOfMemory if !is_only => Some(Restart::Alone),
            Cause::Crashed | Cause::CrashedEarly | Cause::OutOfMemory | Cause::Garbled => None,
        };
        let is_early = restart.is_none() && matches!(cause, Cause::CrashedEarly);
        Self { answer: Err(death(cause, message)), restart, is_early }
    }
}

impl Session {
    /// Sends an attempt to the app.
    ///
    /// # Errors
    /// The process has ended or gets no more attempts, or the params do not fit into a line.
    pub fn start(
        &self,
        params: &RawJson,
        cx: &Context,
        stuck: &StuckCounter,
    ) -> Result<RunningAttempt, Box<AttemptAnswer>> {
        // Output before the attempt is not its own.
        self.log_output();
        let mut state = self.0.state.lock();
        if !matches!(state.phase, SessionPhase::Serving) {
            return Err(Box::new(AttemptAnswer::unsent()));
        }
        let n = state.last + 1;
        let line = attempt_line(n, params, cx).map_err(|failure| Box::new(AttemptAnswer::of_answer(Err(failure))))?;
        state.last = n;
        let (answer, receiver) = oneshot::channel();
        // Under the lock, so that attempts are sent in the order of their numbers.
        let start = self.0.out.send_attempt(&line);
        state.attempts.insert(n, AttemptEntry::new(cx.clone(), answer, start));
        drop(state);
        Ok(RunningAttempt { session: self.clone(), n, cx: cx.clone(), stuck: stuck.clone(), answer: Some(receiver) })
    }

    pub(super) fn succeed(&self, success: AttemptSuccess) -> Result<(), Violation> {
        self.end_attempt(success.n, |bad_children| match bad_children {
            Some(failure) => Err(failure),
            None => success.output.try_into().map_err(|error| {
                Failure::fail(format!("the result has more than one meaning: {error}")).of_kind("bad_output")
            }),
        })
    }

    pub(super) fn fail(&self, error: AttemptError) -> Result<(), Violation> {
        if let Some(stack) = &error.stack
            && let Some(cx) = self.context(error.n)?
        {
            stack.lines().for_each(|line| cx.log(line));
        }
        self.end_attempt(error.n, |_| Err(failure_of(error)))
    }

    /// Ends an attempt. A second answer is ignored; a late one frees a stuck slot.
    fn end_attempt(&self, n: u64, answer: impl FnOnce(Option<Failure>) -> Answer) -> Result<(), Violation> {
        self.log_output();
        let mut state = self.0.state.lock();
        state.check_number(n)?;
        // An app that answers without reading would get more and more attempts.
        if state.attempts.get(&n).is_some_and(|entry| !self.0.out.is_begun(entry.start)) {
            return Err(Violation(format!("an answer to the attempt {n}, which the app has not read")));
        }
        let stuck = state.stuck.remove(&n);
        let entry = state.attempts.remove(&n);
        drop((state, stuck));
        if let Some(mut entry) = entry {
            let answer = answer(entry.bad_children.take());
            entry.end(AttemptAnswer::of_answer(answer));
        }
        Ok(())
    }

    fn cancel(&self, n: u64, cx: &Context) {
        if self.0.state.lock().is_responsive {
            let reason = cx.interruption.cancel_reason();
            self.0.out.send(&protocol::line(&ToApp::Cancel { n, reason }));
        }
    }

    /// Gives up an attempt without an answer.
    fn abandon(&self, n: u64, stuck: &StuckCounter) {
        let mut state = self.0.state.lock();
        let Some(entry) = state.attempts.remove(&n) else { return };
        state.stuck.insert(n, stuck.add());
        drop(state);
        drop(entry);
        self.report(SessionEvent::Overrun);
    }
}

impl RunningAttempt {
    /// Waits for the end of the attempt, and passes a cancellation on to the app.
    pub async fn end(mut self) -> AttemptAnswer {
        let Some(answer) = &mut self.answer else { return lost() };
        let answered = tokio::select! {
            biased;
            answered = &mut *answer => answered,
            () = self.cx.cancelled().cancelled() => {
                self.session.cancel(self.n, &self.cx);
                answer.await
            }
        };
        self.answer = None;
        let Ok(answered) = answered else { return lost() };
        // The result follows its children.
        for mut call in answered.calls {
            let _ = (&mut call.0).await;
        }
        answered.ended
    }
}

impl Drop for RunningAttempt {
    fn drop(&mut self) {
        if self.answer.is_some() {
            self.session.abandon(self.n, &self.stuck);
        }
    }
}

/// End of an attempt whose session was dropped.
fn lost() -> AttemptAnswer {
    AttemptAnswer::of_cause(&Cause::Unread, "the worker has ended the process of the app", true)
}

fn attempt_line(n: u64, params: &RawJson, cx: &Context) -> Result<Vec<u8>, Failure> {
    let left = cx.deadline.map(|at| at.saturating_duration_since(Instant::now().into_std()));
    let trace = cx.trace.as_ref().map(|trace| TraceFields { parent: &trace.parent, state: trace.state.as_deref() });
    let start = Start {
        n,
        task_type: cx.task_type(),
        id: cx.id.as_str(),
        run: cx.run,
        number: cx.number,
        left_ms: left.map_or(u64::from(u32::MAX), |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        trace,
        labels: labels_of(cx),
        params,
    };
    let line = start.line();
    if line.len() <= protocol::MAX_LINE_BYTES {
        return Ok(line);
    }
    let reason = format!("the attempt has {} bytes: at most {} are allowed", line.len(), protocol::MAX_LINE_BYTES);
    Err(Failure::fail(reason).of_kind("too_large"))
}

/// Labels of the task, with the headers of its record that its type keeps.
fn labels_of(cx: &Context) -> Option<Cow<'_, TaskLabels>> {
    let labels = cx.labels().map(Cow::Borrowed);
    let Some(kept) = cx.kept_headers() else { return labels };
    let mut labels = labels.unwrap_or_default().into_owned();
    labels.headers.extend(kept.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    Some(Cow::Owned(labels))
}

fn failure_of(error: AttemptError) -> Failure {
    let after = error.after_ms.map(std::time::Duration::from_millis);
    let then = match error.outcome {
        ErrorOutcome::Retry => Fail::Retry { after },
        ErrorOutcome::Wait => Fail::Wait { after },
        ErrorOutcome::Fail => Fail::Final,
        ErrorOutcome::Dead => Fail::Dead,
        ErrorOutcome::Cancelled => Fail::Cancelled,
    };
    let message = excerpt(error.message.as_bytes(), MAX_MESSAGE_CHARS);
    Failure { then, message, kind: valid_kind(error.kind).into() }
}
