//! Queues that wake a thread when they become non-empty, so that it can wait for several of them.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};

use super::NativeQueue;

/// Wakes the thread that serves some queues.
#[derive(Default)]
pub(crate) struct Waker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Resets the wake-up. Call it before checking the queues: anything that arrives afterwards wakes again.
    pub(crate) fn reset(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Waits for a wake-up. False on timeout.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(woken, left, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Queue with a waker. Drop it before its client.
pub(crate) struct WakingQueue {
    pub(super) queue: NativeQueue,
    #[expect(dead_code, reason = "librdkafka has its address")]
    waker: Arc<Waker>,
}

// SAFETY: librdkafka's queues may be used by any thread.
unsafe impl Send for WakingQueue {}

impl WakingQueue {
    pub(super) fn new(queue: NativeQueue, waker: &Arc<Waker>) -> Self {
        let address = Arc::as_ptr(waker).cast_mut().cast();
        // SAFETY: the waker lives as long as the queue; after the queue's drop librdkafka does not call it.
        unsafe { sys::rd_kafka_queue_cb_event_enable(queue.0.as_ptr(), Some(wake_callback), address) };
        Self { queue, waker: waker.clone() }
    }

    /// Opens the main queue of a client, which has the outcomes of a producer's sends.
    pub(crate) fn main<C: ClientContext>(client: &Client<C>, waker: &Arc<Waker>) -> Option<Self> {
        NativeQueue::main(client).map(|queue| Self::new(queue, waker))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Drop for WakingQueue {
    fn drop(&mut self) {
        // SAFETY: the queue is ours. It may live on in librdkafka; the callback is removed.
        unsafe { sys::rd_kafka_queue_cb_event_enable(self.queue.0.as_ptr(), None, ptr::null_mut()) };
    }
}

unsafe extern "C" fn wake_callback(_: *mut sys::rd_kafka_t, waker: *mut c_void) {
    // SAFETY: the address of the waker that the queue keeps alive until the callback is removed.
    if let Some(waker) = unsafe { waker.cast::<Waker>().as_ref() } {
        waker.wake();
    }
}
