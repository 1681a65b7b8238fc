//! A value that tasks can wait for, like tokio's `watch`, but its waiting tasks are woken in the order in which they began
//! to wait. Tokio's order is random, so the same seed of a simulation would not give the same run.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The sender was dropped, so the value does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderDropped;

struct WatchedValue<T> {
    value: T,
    version: u64,
    closed: bool,
}

struct WatchState<T> {
    state: Mutex<WatchedValue<T>>,
    changed: Notify,
}

/// Sets the value.
pub struct Sender<T>(Arc<WatchState<T>>);

/// Reads the value and waits for changes.
pub struct Receiver<T> {
    shared: Arc<WatchState<T>>,
    /// Version that this receiver has seen.
    seen: u64,
}

impl<T: Copy> Sender<T> {
    /// Creates the value.
    pub fn new(value: T) -> Self {
        let state = Mutex::new(WatchedValue { value, version: 0, closed: false });
        Self(Arc::new(WatchState { state, changed: Notify::new() }))
    }

    /// Returns a receiver that has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { shared: self.0.clone(), seen: self.0.state.lock().version }
    }

    /// Returns the number of receivers.
    pub fn receiver_count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Returns the current value.
    pub fn get(&self) -> T {
        self.0.state.lock().value
    }

    /// Replaces the value and wakes all waiting tasks.
    pub fn send(&self, value: T) {
        self.send_modify(|current| *current = value);
    }

    /// Changes the value and wakes all waiting tasks.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        let mut state = self.0.state.lock();
        change(&mut state.value);
        state.version += 1;
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_waiters();
    }
}

impl<T: Copy> Receiver<T> {
    /// Returns the current value.
    pub fn get(&self) -> T {
        self.shared.state.lock().value
    }

    /// Returns the current value and marks it as seen.
    pub fn get_and_mark(&mut self) -> T {
        let state = self.shared.state.lock();
        self.seen = state.version;
        state.value
    }

    /// Returns whether the value was sent again since it was last marked as seen.
    pub fn has_changed(&self) -> bool {
        self.shared.state.lock().version != self.seen
    }

    /// Waits until the value is sent again after the version seen last, and marks it as seen.
    pub async fn changed(&mut self) -> Result<(), SenderDropped> {
        let seen = self.seen;
        self.wait(|state| state.version != seen).await.map(drop)
    }

    /// Waits until the value meets the condition, and marks it as seen.
    pub async fn wait_for(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<T, SenderDropped> {
        self.wait(|state| condition(&state.value)).await
    }

    async fn wait(&mut self, mut condition: impl FnMut(&WatchedValue<T>) -> bool) -> Result<T, SenderDropped> {
        // A caller that waits in a loop, also after the end, does not keep other tasks from running.
        tokio::task::coop::consume_budget().await;
        loop {
            // Created before the check, so that no change between the check and the wait is missed.
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.state.lock();
                if condition(&state) {
                    self.seen = state.version;
                    return Ok(state.value);
                }
                if state.closed {
                    return Err(SenderDropped);
                }
            }
            changed.await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::stream::{FuturesUnordered, StreamExt};

    use super::*;

    #[test]
    fn receivers_see_each_change_once_and_the_end() {
        let sender = Sender::new(1);
        let mut receiver = sender.subscribe();
        assert_eq!(receiver.changed().now_or_never(), None);
        sender.send(2);
        sender.send_modify(|value| *value += 1);
        assert!(receiver.has_changed());
        assert_eq!(receiver.changed().now_or_never(), Some(Ok(())));
        assert_eq!((receiver.get(), receiver.has_changed()), (3, false));
        assert_eq!(receiver.changed().now_or_never(), None);
        assert_eq!(receiver.wait_for(|&value| value == 3).now_or_never(), Some(Ok(3)));
        sender.send(4);
        assert_eq!(receiver.get_and_mark(), 4);
        assert_eq!(receiver.changed().now_or_never(), None);
        drop(sender);
        assert_eq!(receiver.changed().now_or_never(), Some(Err(SenderDropped)));
        assert_eq!(receiver.wait_for(|&value| value == 5).now_or_never(), Some(Err(SenderDropped)));
    }

    #[tokio::test]
    async fn loop_over_a_closed_value_lets_other_tasks_run() {
        let mut receiver = Sender::new(1).subscribe();
        let other = tokio::spawn(async {});
        for _ in 0..10_000 {
            assert_eq!(receiver.changed().await, Err(SenderDropped));
        }
        assert!(other.is_finished());
    }

    #[test]
    fn tasks_are_woken_in_the_order_in_which_they_began_to_wait() {
        for _ in 0..20 {
            let sender = Sender::new(false);
            let mut waits: FuturesUnordered<_> = (0..6)
                .map(|number| {
                    let mut receiver = sender.subscribe();
                    async move { receiver.changed().await.map(|()| number) }
                })
                .collect();
            // The futures are polled in the order in which they were added, later in the order of the wake-ups.
            assert_eq!(waits.next().now_or_never(), None);
            sender.send(true);
            let woken: Vec<_> = std::iter::from_fn(|| waits.next().now_or_never().flatten()).collect();
            assert_eq!(woken, (0..6).map(Ok).collect::<Vec<_>>());
        }
    }
}
