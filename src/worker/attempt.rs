//! One attempt: polled once on the spot, and only if it is not done then given a task of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context as PollContext, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;

use crate::handlers::{Answer, AnswerFuture, Context, Failure, Handler, Misfit};
use crate::model::json::RawJson;

/// How an attempt ended.
#[derive(Debug)]
pub enum Ended {
    Answered(Answer),
    TimedOut,
    /// Told to stop, and it did not answer within the grace.
    Interrupted,
}

/// Begins an attempt, unless its params do not fit; a panic is a failed attempt.
pub fn begin(handler: &dyn Handler, params: RawJson, cx: &Context) -> Result<Result<AnswerFuture, Misfit>, Failure> {
    catch_unwind(AssertUnwindSafe(|| handler.start(params, cx.clone()))).map_err(|panic| panicked(&*panic))
}

/// The first poll. Most short tasks end here and need no task, timer or wake-up.
pub fn poll_once(future: &mut AnswerFuture) -> Option<Answer> {
    // Polled again from its own task if it is not done, so nothing waits on this waker.
    let mut context = PollContext::from_waker(futures::task::noop_waker_ref());
    match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
        Ok(Poll::Ready(answer)) => Some(answer),
        Ok(Poll::Pending) => None,
        Err(panic) => Some(Err(panicked(&*panic))),
    }
}

/// Runs an attempt to its end. At the deadline, and when it is told to stop, its token fires; after the grace it is dropped.
pub async fn drive(future: AnswerFuture, cx: Context, deadline: Instant, grace: Duration) -> Ended {
    let mut future = AssertUnwindSafe(future).catch_unwind();
    let answered = |outcome: Result<Answer, Box<dyn std::any::Any + Send>>| {
        Ended::Answered(outcome.unwrap_or_else(|panic| Err(panicked(&*panic))))
    };
    let token = cx.cancelled().clone();
    tokio::select! {
        biased;
        outcome = &mut future => return answered(outcome),
        () = tokio::time::sleep_until(deadline.into()) => {}
        () = token.cancelled() => {
            // A result in time is a result, also of an attempt that was told to stop.
            return match tokio::time::timeout(grace, &mut future).await {
                Ok(Ok(Ok(output))) => Ended::Answered(Ok(output)),
                _ => Ended::Interrupted,
            };
        }
    }
    token.cancel();
    match tokio::time::timeout(grace, &mut future).await {
        Ok(Ok(Ok(output))) => Ended::Answered(Ok(output)),
        _ => Ended::TimedOut,
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    Failure::retry(format!("the handler panicked: {text}")).of_kind("panic")
}
