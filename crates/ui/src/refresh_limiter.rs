//! Limit of the rate at which a process renders refreshes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::visit::PAGE_DEADLINE;

/// Time between two refreshes: 250 a second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(4);

/// Schedule of the refreshes of a process.
pub(super) struct RefreshLimiter {
    next: Mutex<Instant>,
}

impl Default for RefreshLimiter {
    fn default() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }
}

impl RefreshLimiter {
    /// Reserves the next free time and returns the wait until then. `None` if that is too long.
    pub(super) fn reserve(&self, now: Instant) -> Option<Duration> {
        let mut next = self.next.lock();
        let start = (*next).max(now);
        let wait = start - now;
        if wait > PAGE_DEADLINE {
            return None;
        }
        *next = start + REFRESH_INTERVAL;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refreshes_are_refused_when_the_wait_for_a_turn_is_too_long() {
        let (limiter, now) = (RefreshLimiter::default(), Instant::now());
        let waits: Vec<_> = (0..502).map(|_| limiter.reserve(now)).collect();
        assert_eq!((waits[0], waits[1]), (Some(Duration::ZERO), Some(REFRESH_INTERVAL)));
        assert_eq!((waits[500], waits[501]), (Some(PAGE_DEADLINE), None), "250 a second");
        assert_eq!(limiter.reserve(now + PAGE_DEADLINE * 2), Some(Duration::ZERO));
    }
}
