//! The seam for a simulation, which runs a whole fleet on one thread, under a clock of its own: there the host of the
//! simulation stands in for the system. Without one, which is how it is in production, this costs a look at a thread-local
//! where a task, a thread or a blocking call is made, or the wall clock is read.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::AbortHandle;

/// One of the processes of a simulated fleet.
pub type Process = u64;

/// What a simulation does in the system's place.
pub trait Host {
    /// Epoch milliseconds.
    fn now_ms(&self) -> i64;
    /// The process whose task is being run has begun this task too. It belongs to the process that is returned.
    fn begun(&self) -> Process;
    /// How this task is ended when its process dies.
    fn ends(&self, process: Process, task: AbortHandle);
    /// A task of this process is about to run a step. Pending: not now; the waker is used later.
    fn enter(&self, process: Process, waker: &Waker) -> Poll<()>;
    /// The step is over.
    fn leave(&self);
    /// How long a wait takes that was to take so long at most: the time of a call to another process, or of a poll.
    fn takes(&self, longest: Duration) -> Duration;
    /// A blocking call waits: time passes, and everything else stands still.
    fn pass(&self, wait: Duration);
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// From now on this thread simulates; None: no more.
pub fn simulate(host: Option<Rc<dyn Host>>) {
    HOST.set(host);
}

pub(super) fn host() -> Option<Rc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// A task of a simulated process: it goes on when the host lets it.
pub(super) struct Hosted<F> {
    process: Process,
    future: Pin<Box<F>>,
}

impl<F> Hosted<F> {
    pub fn new(process: Process, future: F) -> Self {
        Self { process, future: Box::pin(future) }
    }
}

impl<F: Future> Future for Hosted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(host) = host() else { return self.future.as_mut().poll(cx) };
        if host.enter(self.process, cx.waker()).is_pending() {
            return Poll::Pending;
        }
        let polled = self.future.as_mut().poll(cx);
        host.leave();
        polled
    }
}
