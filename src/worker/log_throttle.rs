//! Limits the rate of a log message; suppressed lines are counted.

use std::time::Duration;

use tokio::time::Instant;

const LINES_PER_SECOND: u32 = 20;

pub(super) struct LogThrottle {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl LogThrottle {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), lines: 0, suppressed: 0 }
    }

    /// Admits a line and returns the number of lines suppressed since the last one; `None` suppresses this one too.
    pub(super) fn admit(&mut self) -> Option<u64> {
        if self.since.elapsed() >= Duration::from_secs(1) {
            self.since = Instant::now();
            self.lines = 0;
        }
        self.lines += 1;
        if self.lines > LINES_PER_SECOND {
            self.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_rate_are_counted() {
        let mut throttle = LogThrottle::new();
        let admitted = (0..1_000).filter(|_| throttle.admit().is_some()).count();
        assert_eq!(admitted, LINES_PER_SECOND as usize);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.admit(), Some(1_000 - admitted as u64));
    }
}
