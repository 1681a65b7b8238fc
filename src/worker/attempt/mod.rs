//! One attempt: polled once on the spot, and only if it is not done then given a task of its own.

pub(crate) mod children;
pub(crate) mod output;
pub(crate) mod publish_children;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as PollContext, Poll};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, ParamsError};
use crate::model::json::RawJson;

/// How an attempt ended.
#[derive(Debug)]
pub enum Ended {
    Answered(Answer),
    TimedOut,
    /// For so long it showed no sign of life.
    Stalled(Duration),
    /// Told to stop, and it did not answer within the grace.
    Interrupted,
}

/// How long an attempt may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub deadline: Instant,
    /// Without a sign of life.
    pub stall: Option<Duration>,
    /// To stop when told to.
    pub grace: Duration,
}

/// What the handler's own log lines say besides their message.
pub fn span(handler: &dyn Handler, cx: &Context) -> Span {
    if !handler.logs() {
        return Span::none();
    }
    let trace = cx.trace.as_ref().map(|trace| trace.parent.as_str());
    tracing::info_span!("attempt", task = %cx.id, task_type = cx.task_type(), attempt = cx.number, trace)
}

/// Begins an attempt, unless its params do not fit; a panic is a failed attempt.
pub fn begin(handler: &dyn Handler, params: &RawJson, cx: &Context) -> Result<Result<AnswerFuture, ParamsError>, Failure> {
    catch_unwind(AssertUnwindSafe(|| handler.start(params, cx.clone()))).map_err(|panic| panicked(&*panic))
}

/// The first poll. Most short tasks end here and need no task, timer or wake-up; what is not done comes back.
pub fn poll_once(mut future: AnswerFuture) -> Result<Answer, AnswerFuture> {
    // Polled again from its own task if it is not done, so nothing waits on this waker.
    let mut context = PollContext::from_waker(futures::task::noop_waker_ref());
    let answer = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
        Ok(Poll::Ready(answer)) => answer,
        Ok(Poll::Pending) => return Err(future),
        Err(panic) => Err(panicked(&*panic)),
    };
    // Dropping is user code too; it comes after the answer and does not change it.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
    Ok(answer)
}

/// Runs an attempt that nobody interrupts; a panic is a failed attempt.
pub async fn to_its_end(future: AnswerFuture) -> Answer {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Runs an attempt to its end, whatever it does, also while it is dropped.
pub async fn run(future: AnswerFuture, cx: Context, stop: CancellationToken, bounds: Bounds) -> Ended {
    let driven = AssertUnwindSafe(drive(future, cx, stop, bounds)).catch_unwind();
    driven.await.unwrap_or_else(|panic| Ended::Answered(Err(panicked(&*panic))))
}

/// At the deadline, when it stalls, and when the worker says `stop`, the attempt's token fires; after the grace it is dropped.
async fn drive(future: AnswerFuture, cx: Context, stop: CancellationToken, bounds: Bounds) -> Ended {
    let mut future = AssertUnwindSafe(future).catch_unwind();
    let ended = tokio::select! {
        biased;
        outcome = &mut future => return Ended::Answered(outcome.unwrap_or_else(|panic| Err(panicked(&*panic)))),
        () = tokio::time::sleep_until(bounds.deadline) => Ended::TimedOut,
        () = stop.cancelled() => Ended::Interrupted,
        stalled = stalled(&cx, bounds.stall) => stalled,
    };
    cx.cancelled().cancel();
    // A result in time is a result, also of an attempt that was told to stop.
    match tokio::time::timeout(bounds.grace, &mut future).await {
        Ok(Ok(Ok(output))) => Ended::Answered(Ok(output)),
        _ => ended,
    }
}

/// Ends when the attempt has shown no sign of life for this long, or up to an eighth longer.
async fn stalled(cx: &Context, limit: Option<Duration>) -> Ended {
    let Some(limit) = limit else { return std::future::pending().await };
    let look = (limit / 8).max(Duration::from_millis(1));
    let (mut known, mut since) = (cx.signs(), Instant::now());
    loop {
        tokio::time::sleep(look).await;
        let signs = cx.signs();
        if signs != known {
            (known, since) = (signs, Instant::now());
        } else if since.elapsed() >= limit {
            return Ended::Stalled(limit);
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    Failure::retry(format!("the handler panicked: {text}")).of_kind("panic")
}
