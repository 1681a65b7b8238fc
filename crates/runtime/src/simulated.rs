//! Interface for simulations, which run a whole fleet on one thread under a simulated clock: a [`Host`] replaces the
//! system. Without a host, as in production, the cost is one read of a thread-local per spawned task, thread or blocking
//! call, and per read of the wall clock.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::clock::BrokerClock;

/// Id of a process in a simulated fleet.
pub type Process = u64;

/// Replacement of the system in a simulation.
pub trait Host {
    /// Current time by the clock of the running process's machine, in epoch milliseconds.
    fn now_ms(&self) -> i64;
    /// The brokers' clock as the running process knows it.
    fn broker_clock(&self) -> Rc<BrokerClock>;
    /// Called when the running task spawns another one. Returns the process to which the new task belongs.
    fn begun(&self) -> Process;
    /// Registers the handle that aborts a task when its process dies.
    fn ends(&self, process: Process, task: AbortHandle);
    /// Called before a task of the process is polled. `Pending` postpones the poll until the waker is used.
    fn enter(&self, process: Process, waker: &Waker) -> Poll<()>;
    /// Called after the poll.
    fn leave(&self);
    /// Returns the simulated duration, up to `longest`, of a call to another process or of a poll.
    fn takes(&self, longest: Duration) -> Duration;
    /// Advances the time during a blocking wait; no other task runs meanwhile.
    fn pass(&self, wait: Duration);
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// Sets or removes the host of this thread.
pub fn simulate(host: Option<Rc<dyn Host>>) {
    HOST.set(host);
}

pub(super) fn host() -> Option<Rc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Task of a simulated process, polled only when the host permits it.
pub(super) struct HostedTask<F> {
    process: Process,
    future: Pin<Box<F>>,
}

impl<F> HostedTask<F> {
    pub(super) fn new(process: Process, future: F) -> Self {
        Self { process, future: Box::pin(future) }
    }
}

impl<F: Future> Future for HostedTask<F> {
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
