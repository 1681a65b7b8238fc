//! Limit of concurrent calls per receiver: a receiver that does not respond occupies only a part of the type's slots,
//! so that deliveries to other receivers continue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// Divisor of the type's slots: a receiver that does not respond gets a quarter of them.
const ONE_IN: u32 = 4;
/// Maximum number of receivers that are remembered.
const MAX_RECEIVERS: usize = 1_000;
/// Time with running calls and without a response after which a receiver counts as one that does not respond: its calls
/// take up to their timeout to prove it, and would use all slots until then.
const MAX_QUIET: Duration = Duration::from_secs(2);

/// Receivers of callbacks, by host and port.
pub(super) struct Receivers {
    /// Maximum number of concurrent calls of a receiver that does not respond.
    limit: usize,
    by_host: Mutex<FxHashMap<String, Receiver>>,
}

struct Receiver {
    running: usize,
    /// The call that ended last got a response.
    responds: bool,
    /// Time of the last response or, if it is later, of the start of the first call that runs.
    quiet_since: Instant,
}

/// Slot of a running call. A call that is dropped got no response.
pub(super) struct Slot {
    receivers: Arc<Receivers>,
    host: String,
    responded: bool,
}

impl Receivers {
    /// Creates the limits. `slots`: number of slots of the type.
    pub(super) fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self { limit: (slots / ONE_IN).max(1) as usize, by_host: Mutex::default() })
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns a slot for a call; `None` if the receiver has not responded to its last call, or never yet, and its
    /// limit is reached.
    pub(super) fn acquire(self: &Arc<Self>, host: &str) -> Option<Slot> {
        let mut by_host = self.by_host.lock();
        if by_host.len() >= MAX_RECEIVERS && !by_host.contains_key(host) {
            // A receiver that is forgotten starts again as one that has never responded.
            by_host.retain(|_, receiver| receiver.running > 0);
        }
        let now = Instant::now();
        let first = || Receiver { running: 0, responds: false, quiet_since: now };
        let receiver = by_host.entry(host.to_owned()).or_insert_with(first);
        if receiver.running == 0 {
            receiver.quiet_since = now;
        }
        let responds = receiver.responds && now.duration_since(receiver.quiet_since) <= MAX_QUIET;
        if !responds && receiver.running >= self.limit {
            return None;
        }
        receiver.running += 1;
        Some(Slot { receivers: self.clone(), host: host.to_owned(), responded: false })
    }
}

impl Slot {
    /// Gives the slot back after a response, whatever its status.
    pub(super) fn responded(mut self) {
        self.responded = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(receiver) = self.receivers.by_host.lock().get_mut(&self.host) {
            receiver.running -= 1;
            receiver.responds = self.responded;
            if self.responded {
                receiver.quiet_since = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire(receivers: &Arc<Receivers>, host: &str, calls: usize) -> Vec<Slot> {
        (0..calls).map_while(|_| receivers.acquire(host)).collect()
    }

    #[test]
    fn silent_receiver_uses_a_quarter_of_the_slots() {
        let receivers = Receivers::new(32);
        let silent = acquire(&receivers, "silent", 100);
        assert_eq!(silent.len(), 8);
        assert_eq!(acquire(&receivers, "other", 3).len(), 3);
        drop(silent);
        assert_eq!(acquire(&receivers, "silent", 100).len(), 8, "none of the calls got a response");
    }

    #[test]
    fn receiver_that_responds_uses_all_slots_until_it_does_not() {
        let receivers = Receivers::new(32);
        receivers.acquire("a").unwrap().responded();
        let mut calls = acquire(&receivers, "a", 32);
        assert_eq!(calls.len(), 32);
        drop(calls.pop());
        assert!(receivers.acquire("a").is_none(), "the last call got no response, and 31 are running");
        calls.pop().unwrap().responded();
        assert!(receivers.acquire("a").is_some());
    }

    /// Calls of a receiver prove only with their timeout that it is silent; by then they would hold all slots.
    #[tokio::test(start_paused = true)]
    async fn receiver_that_falls_silent_is_limited_before_its_calls_time_out() {
        let receivers = Receivers::new(32);
        receivers.acquire("a").unwrap().responded();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let burst = acquire(&receivers, "a", 20);
        assert_eq!(burst.len(), 20, "a burst after an idle time");
        tokio::time::advance(MAX_QUIET + Duration::from_millis(1)).await;
        assert!(receivers.acquire("a").is_none(), "none of the 20 calls got a response");
        let mut burst = burst.into_iter();
        burst.next().unwrap().responded();
        assert_eq!(acquire(&receivers, "a", 20).len(), 20, "it is slow, but responds");
    }

    #[test]
    fn every_receiver_gets_a_slot_of_a_small_type() {
        let receivers = Receivers::new(1);
        assert_eq!(acquire(&receivers, "a", 2).len(), 1);
    }

    #[test]
    fn remembered_receivers_are_bounded() {
        let receivers = Receivers::new(4);
        let running = receivers.acquire("running").unwrap();
        for n in 0..3 * MAX_RECEIVERS {
            receivers.acquire(&format!("host-{n}")).unwrap().responded();
        }
        assert!(receivers.by_host.lock().len() <= MAX_RECEIVERS);
        assert!(receivers.acquire("running").is_none(), "a running call is not forgotten");
        drop(running);
    }
}
