//! At most so many log lines a second about one thing; what was left out is counted.

use std::time::Duration;

use tokio::time::Instant;

const LINES_PER_SECOND: u32 = 20;

pub struct LogThrottle {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl LogThrottle {
    pub fn new() -> Self {
        Self { since: Instant::now(), lines: 0, left_out: 0 }
    }

    /// The number of lines left out before this one; none: leave this one out too.
    pub fn pass(&mut self) -> Option<u64> {
        if self.since.elapsed() >= Duration::from_secs(1) {
            (self.since, self.lines) = (Instant::now(), 0);
        }
        self.lines += 1;
        if self.lines > LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_not_written() {
        let mut throttle = LogThrottle::new();
        let passed = (0..1_000).filter(|_| throttle.pass().is_some()).count();
        assert_eq!(passed, LINES_PER_SECOND as usize);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(throttle.pass(), Some(1_000 - passed as u64));
    }
}
