//! Inline polling: most short attempts end in their first poll, which then needs no task, timer or wake-up.

use std::time::Duration;

use kafleet_runtime::now_ms;
use tokio::time::Instant;

/// Duration above which a first poll counts as slow. Single slow polls may be due to other load: the next attempts
/// are not polled inline only if more than one in `ONE_SLOW_IN` is slow.
const SLOW_POLL: Duration = Duration::from_micros(100);
const ONE_SLOW_IN: u32 = 8;
const ATTEMPTS_NOT_INLINE: u32 = 256;

/// Decides whether attempts of a type are polled inline.
#[derive(Default)]
pub(super) struct InlinePolling {
    /// Number of next attempts that are not polled inline.
    skip: u32,
    slowness: u32,
}

impl InlinePolling {
    /// Returns whether the next attempt is polled inline.
    pub(super) fn admit(&mut self) -> bool {
        if self.skip == 0 {
            return true;
        }
        self.skip -= 1;
        false
    }

    /// Registers the duration of a first poll.
    pub(super) fn record(&mut self, took: Duration) {
        self.slowness = if took > SLOW_POLL { self.slowness + ONE_SLOW_IN } else { self.slowness.saturating_sub(1) };
        if self.slowness > 2 * ONE_SLOW_IN {
            self.slowness = 0;
            self.skip = ATTEMPTS_NOT_INLINE;
        }
    }
}

/// Clock that is read once per inline attempt: the end of one is the start of the next.
pub(super) struct Clock {
    read_at: Instant,
    read_ms: i64,
    pub now: Instant,
}

impl Clock {
    pub(super) fn read() -> Self {
        let now = Instant::now();
        Self { read_at: now, read_ms: now_ms(), now }
    }

    /// Advances to the present; returns the time since the last reading.
    pub(super) fn advance(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.now, Instant::now());
        self.now.duration_since(before)
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.read_ms + self.now.duration_since(self.read_at).as_millis() as i64
    }
}
