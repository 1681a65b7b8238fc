//! Limits the rate of a log message; suppressed lines are counted.

use std::time::Duration;

use tokio::time::Instant;

const LINES_PER_PERIOD: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

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
        if self.since.elapsed() >= PERIOD {
            self.since = Instant::now();
            self.lines = 0;
        }
        self.lines += 1;
        if self.lines > LINES_PER_PERIOD {
            self.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Time at which suppressed lines are to be reported, unless another line reports them before.
    pub(super) fn next_report(&self) -> Option<Instant> {
        (self.suppressed > 0).then(|| self.since + PERIOD)
    }

    /// Takes the number of suppressed lines at the end of a flood.
    pub(super) fn take_report(&mut self, now: Instant) -> Option<u64> {
        self.next_report().filter(|at| *at <= now).map(|_| std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_rate_are_counted() {
        let mut throttle = LogThrottle::new();
        let admitted = (0..1_000).filter(|_| throttle.admit().is_some()).count();
        assert_eq!(admitted, LINES_PER_PERIOD as usize);
        tokio::time::advance(PERIOD).await;
        assert_eq!(throttle.admit(), Some(1_000 - admitted as u64));
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_a_flood_reports_the_suppressed_lines_once() {
        let mut throttle = LogThrottle::new();
        assert_eq!(throttle.next_report(), None);
        (0..50).for_each(|_| _ = throttle.admit());
        let at = throttle.next_report().unwrap();
        assert_eq!(throttle.take_report(Instant::now()), None, "the flood may go on");
        tokio::time::advance(PERIOD).await;
        assert_eq!((throttle.take_report(at), throttle.next_report()), (Some(30), None));
    }
}
