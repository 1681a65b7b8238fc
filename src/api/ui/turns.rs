//! Turns of refreshes, which limit their rate.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::visit::PAGE_DEADLINE;

/// Time between two turns: 250 refreshes a second.
const TURN: Duration = Duration::from_millis(4);

/// Order of the refreshes of a process.
pub(super) struct RefreshLimiter {
    next: Mutex<Instant>,
}

impl Default for RefreshLimiter {
    fn default() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }
}

impl RefreshLimiter {
    /// Returns the wait until the turn of a new refresh. `None` if that is too long.
    pub(super) fn take(&self, now: Instant) -> Option<Duration> {
        let mut next = self.next.lock();
        let turn = (*next).max(now);
        let wait = turn - now;
        if wait > PAGE_DEADLINE {
            return None;
        }
        *next = turn + TURN;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refreshes_are_refused_when_the_wait_for_a_turn_is_too_long() {
        let (turns, now) = (RefreshLimiter::default(), Instant::now());
        let waits: Vec<_> = (0..502).map(|_| turns.take(now)).collect();
        assert_eq!((waits[0], waits[1]), (Some(Duration::ZERO), Some(TURN)));
        assert_eq!((waits[500], waits[501]), (Some(PAGE_DEADLINE), None), "250 a second");
        assert_eq!(turns.take(now + PAGE_DEADLINE * 2), Some(Duration::ZERO));
    }
}
