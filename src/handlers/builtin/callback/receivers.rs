//! Limit of concurrent calls per receiver: a receiver that does not respond occupies only a part of the type's slots,
//! so that deliveries to other receivers continue.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Divisor of the type's slots: a receiver that does not respond gets a quarter of them.
const ONE_IN: u32 = 4;
/// Maximum number of receivers that are remembered.
const MAX_RECEIVERS: usize = 1_000;

/// Receivers of callbacks, by host and port.
pub(super) struct Receivers {
    /// Maximum number of concurrent calls of a receiver that does not respond.
    limit: usize,
    by_host: Mutex<FxHashMap<String, Receiver>>,
}

#[derive(Default)]
struct Receiver {
    running: usize,
    /// The call that ended last got a response.
    responds: bool,
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
        let receiver = by_host.entry(host.to_owned()).or_default();
        if !receiver.responds && receiver.running >= self.limit {
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
