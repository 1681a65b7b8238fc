//! Execution of one attempt: polled once inline, and moved to a task of its own only if it is still pending.
//!
//! In: the handler with params and context, time limits, and the token that stops the attempt. Out: one [`AttemptEnd`].
//! Meanwhile [`output`] collects progress, log lines and attachments; after a success [`publish_children`] publishes
//! children and continuations, before the dispatcher writes the result.
//!
//! Invariant: code of users ends nothing but its attempt. A panic in the call, in a poll or in a drop is caught, and a
//! future that ignores its deadline or its cancellation is dropped after the grace period. Otherwise a panic would end
//! the dispatcher, or the attempt would keep its slot, and its partition could not commit past it.
//!
//! Read next: `publish_children.rs`, `output.rs`, then `dispatch/attempts.rs` (the caller).

pub(crate) mod children;
pub(crate) mod output;
pub(crate) mod publish_children;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use futures::FutureExt;
use kafleet_handlers::context::{Attempt, CancelReason};
use kafleet_handlers::{Answer, AnswerFuture, BatchContext, Context, Failure, Handler, ParamsError, RunFuture};
use kafleet_model::json::RawJson;
use kafleet_model::trace::{SpanContext, SpanId, TraceId};
use kafleet_runtime::error_text::panic_text;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;
use tracing::field::{DisplayValue, display};

/// Failure kind of an attempt that showed no sign of life.
pub(super) const STALLED: &str = "stalled";

/// End of an attempt, or of a call with several.
#[derive(Debug)]
pub(super) enum AttemptEnd<T = RawJson> {
    Answered(Result<T, Failure>),
    TimedOut,
    /// No sign of life for this long.
    Stalled(Duration),
    /// Cancelled by the worker, without an answer within the grace period.
    Interrupted,
}

/// Context of an attempt, or of a call with several.
pub(super) trait Interruptible {
    /// Counter that changes with each sign of life.
    fn activity(&self) -> u32;
    /// Cancels the token of the handler. A reason that has been set before is kept.
    fn interrupt(&self, reason: CancelReason);
}

impl Interruptible for Context {
    fn activity(&self) -> u32 {
        Attempt::activity(self)
    }

    fn interrupt(&self, reason: CancelReason) {
        self.interruption.set_cancel_reason(reason);
        self.cancelled().cancel();
    }
}

impl Interruptible for BatchContext {
    fn activity(&self) -> u32 {
        Self::activity(self)
    }

    fn interrupt(&self, reason: CancelReason) {
        Self::interrupt(self, reason);
    }
}

/// Time limits of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    pub deadline: Instant,
    /// Maximum time without a sign of life.
    pub stall: Option<Duration>,
    /// Time to stop after a cancellation.
    pub grace: Duration,
}

/// Span of the log lines of a handler that is not silent.
pub(super) fn span(is_silent: bool, cx: &Context) -> Span {
    if is_silent {
        return Span::none();
    }
    let (trace_id, span_id) = trace_ids(cx);
    tracing::info_span!("attempt", task = %cx.id, task_type = cx.task_type(), attempt = cx.number, trace_id, span_id)
}

/// Span of the log lines of a call with several attempts, if its handler is not silent.
pub(super) fn span_of_call(is_silent: bool, cx: &BatchContext) -> Span {
    if is_silent {
        return Span::none();
    }
    tracing::info_span!("batch", task_type = cx.task_type(), tasks = cx.size())
}

/// Ids of the attempt's trace context, for log lines.
pub(super) fn trace_ids(cx: &Context) -> (Option<DisplayValue<TraceId>>, Option<DisplayValue<SpanId>>) {
    let context = cx.trace.as_ref().and_then(|trace| SpanContext::parse(&trace.parent));
    context.map(|context| (display(context.trace_id), display(context.span_id))).unzip()
}

/// Starts the handler, unless the params do not match its type; a panic is a failed attempt.
pub(super) fn start(
    handler: &dyn Handler,
    params: &RawJson,
    cx: &Context,
) -> Result<Result<AnswerFuture, ParamsError>, Failure> {
    catch_unwind(AssertUnwindSafe(|| handler.run(params, cx.clone()))).map_err(|panic| panic_failure(&*panic))
}

/// Polls an attempt for the first time; returns the future if it is pending. Most short tasks end here and need no
/// task, timer or wake-up.
pub(super) fn poll_once(mut future: AnswerFuture) -> Result<Answer, AnswerFuture> {
    // A pending future is polled again in its own task, so nothing depends on this waker.
    let mut context = PollContext::from_waker(futures::task::noop_waker_ref());
    let answer = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
        Ok(Poll::Ready(answer)) => answer,
        Ok(Poll::Pending) => return Err(future),
        Err(panic) => Err(panic_failure(&*panic)),
    };
    // Dropping runs user code too; a panic there does not change the answer.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
    Ok(answer)
}

/// Runs an attempt without time limits; a panic is a failed attempt.
pub(super) async fn run_to_completion(future: AnswerFuture) -> Answer {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panic_failure(&*panic)))
}

/// Runs an attempt, or a call with several, to its end. A panic, also one while the future is dropped, is a failure.
pub(super) async fn run<T>(
    future: RunFuture<T>,
    cx: impl Interruptible,
    stop: CancellationToken,
    limits: TimeLimits,
) -> AttemptEnd<T> {
    let driven = AssertUnwindSafe(drive(future, cx, stop, limits)).catch_unwind();
    driven.await.unwrap_or_else(|panic| AttemptEnd::Answered(Err(panic_failure(&*panic))))
}

/// Cancels the attempt's token at the deadline, on a stall and when `stop` fires, and drops the attempt after the
/// grace period.
async fn drive<T>(
    future: RunFuture<T>,
    cx: impl Interruptible,
    stop: CancellationToken,
    limits: TimeLimits,
) -> AttemptEnd<T> {
    let mut future = AssertUnwindSafe(future).catch_unwind();
    let end = tokio::select! {
        biased;
        answer = &mut future => return AttemptEnd::Answered(answer.unwrap_or_else(|panic| Err(panic_failure(&*panic)))),
        () = tokio::time::sleep_until(limits.deadline) => AttemptEnd::TimedOut,
        () = stop.cancelled() => AttemptEnd::Interrupted,
        stalled = stalled(&cx, limits.stall) => stalled,
    };
    cx.interrupt(match end {
        AttemptEnd::TimedOut => CancelReason::Timeout,
        AttemptEnd::Stalled(_) => CancelReason::Stalled,
        // The reason is set if the task has been cancelled.
        AttemptEnd::Interrupted | AttemptEnd::Answered(_) => CancelReason::Shutdown,
    });
    // A success within the grace period counts, also after a cancellation.
    match tokio::time::timeout(limits.grace, &mut future).await {
        Ok(Ok(Ok(output))) => AttemptEnd::Answered(Ok(output)),
        _ => end,
    }
}

/// Completes when the attempt has shown no sign of life for `limit`, or up to an eighth longer.
async fn stalled<T>(cx: &impl Interruptible, limit: Option<Duration>) -> AttemptEnd<T> {
    let Some(limit) = limit else { return std::future::pending().await };
    let interval = (limit / 8).max(Duration::from_millis(1));
    let mut last_activity = cx.activity();
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(interval).await;
        let activity = cx.activity();
        if activity != last_activity {
            last_activity = activity;
            since = Instant::now();
        } else if since.elapsed() >= limit {
            return AttemptEnd::Stalled(limit);
        }
    }
}

fn panic_failure(panic: &(dyn std::any::Any + Send)) -> Failure {
    Failure::retry(format!("the handler panicked: {}", panic_text(panic))).of_kind("panic")
}
