//! The brokers' clock, as this process knows it.
//!
//! Deadlines, ages and due times compare times of different machines, whose clocks may be wrong or jump. All roles
//! therefore use the brokers' clock: whenever a broker reports the time at which it has just appended a
//! record, [`BrokerClock::observe`] relates that time to the monotonic clock of this process. In between, the monotonic
//! clock advances the time, so that a jump of this machine's clock has no effect.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Difference to the brokers' clock from which on it is reported, in milliseconds.
pub const NOTABLE_SKEW_MS: i64 = 5_000;
/// Time for which an observation counts, at least: once and at most twice as long. Afterwards only later ones do, so that
/// the estimate follows a broker's clock that was set back, and clocks that drift.
const OBSERVATION_WINDOW: Duration = Duration::from_secs(60);
/// Value of an estimate that does not exist.
const UNKNOWN_ESTIMATE: i64 = i64::MIN;

/// Estimate of the brokers' time.
#[derive(Debug)]
pub struct BrokerClock {
    /// Start of the count of monotonic milliseconds.
    base: Instant,
    /// Brokers' time at `base`, epoch milliseconds.
    at_base_ms: AtomicI64,
    windows: Mutex<Windows>,
}

/// Highest estimates of the current window and of the one before.
#[derive(Debug)]
struct Windows {
    current_ms: i64,
    previous_ms: i64,
    begun: Instant,
}

impl Default for BrokerClock {
    fn default() -> Self {
        let base = Instant::now();
        let windows = Windows { current_ms: UNKNOWN_ESTIMATE, previous_ms: UNKNOWN_ESTIMATE, begun: base };
        Self { base, at_base_ms: AtomicI64::new(UNKNOWN_ESTIMATE), windows: Mutex::new(windows) }
    }
}

impl BrokerClock {
    /// Takes the time at which a broker appended a record that was just acknowledged or received. That time has passed by
    /// now; the observation with the shortest delay is the best one, and it gives the highest estimate.
    pub fn observe(&self, append_ms: i64) {
        let now = Instant::now();
        let estimate_ms = append_ms.saturating_sub(self.elapsed_ms(now));
        let mut windows = self.windows.lock();
        if now.duration_since(windows.begun) >= OBSERVATION_WINDOW {
            windows.previous_ms = std::mem::replace(&mut windows.current_ms, UNKNOWN_ESTIMATE);
            windows.begun = now;
        }
        windows.current_ms = windows.current_ms.max(estimate_ms);
        self.at_base_ms.store(windows.current_ms.max(windows.previous_ms), Ordering::Release);
    }

    /// Current time by the brokers' clock, epoch milliseconds; `None` before the first observation.
    pub fn now_ms(&self) -> Option<i64> {
        let at_base_ms = self.at_base_ms.load(Ordering::Acquire);
        (at_base_ms != UNKNOWN_ESTIMATE).then(|| at_base_ms.saturating_add(self.elapsed_ms(Instant::now())))
    }

    fn elapsed_ms(&self, now: Instant) -> i64 {
        i64::try_from(now.duration_since(self.base).as_millis()).unwrap_or(i64::MAX)
    }
}

/// Describes the difference between a machine's clock and the brokers', if it is notable. `ahead_ms` is negative for a clock
/// that is behind.
pub fn skew_text(ahead_ms: i64) -> Option<String> {
    let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let seconds = ahead_ms.unsigned_abs() / 1_000;
    (ahead_ms.saturating_abs() >= NOTABLE_SKEW_MS).then(|| format!("{seconds} s {direction} the brokers'"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_advances_between_observations() {
        let clock = BrokerClock::default();
        assert_eq!(clock.now_ms(), None);
        clock.observe(1_000_000);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now_ms(), Some(1_090_000));
    }

    #[tokio::test(start_paused = true)]
    async fn late_observations_do_not_move_the_clock_back() {
        let clock = BrokerClock::default();
        clock.observe(1_000_000);
        tokio::time::advance(Duration::from_secs(10)).await;
        clock.observe(1_003_000);
        assert_eq!(clock.now_ms(), Some(1_010_000), "the record was on its way for 7 s");
        clock.observe(1_010_500);
        assert_eq!(clock.now_ms(), Some(1_010_500), "the first one was, for half a second");
    }

    #[tokio::test(start_paused = true)]
    async fn broker_clock_that_was_set_back_is_followed() {
        let clock = BrokerClock::default();
        clock.observe(90_000_000);
        for second in 0..=120 {
            clock.observe(1_000_000 + second * 1_000);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(clock.now_ms(), Some(1_121_000));
    }

    #[test]
    fn only_notable_skews_are_described() {
        for (ahead_ms, expected) in [
            (0, None),
            (4_999, None),
            (-4_999, None),
            (90_000, Some("90 s ahead of the brokers'")),
            (-5_000, Some("5 s behind the brokers'")),
            (i64::MIN, Some("9223372036854775 s behind the brokers'")),
        ] {
            assert_eq!(skew_text(ahead_ms).as_deref(), expected, "{ahead_ms}");
        }
    }

    proptest! {
        /// The estimate is behind the brokers' clock by at most the shortest delay of the last minute, and never ahead of
        /// it, with any delays of the observations.
        #[test]
        fn estimate_is_off_by_the_shortest_delay(steps in prop::collection::vec((0_u64..5_000, 0_i64..3_000), 1..40)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (clock, start) = (BrokerClock::default(), Instant::now());
                let mut delays: Vec<(Instant, i64)> = Vec::new();
                for (pause_ms, delay_ms) in steps {
                    tokio::time::advance(Duration::from_millis(pause_ms)).await;
                    let true_ms = 1_000_000 + start.elapsed().as_millis() as i64;
                    clock.observe(true_ms - delay_ms);
                    delays.push((Instant::now(), delay_ms));
                    let recent = delays.iter().filter(|(at, _)| at.elapsed() < OBSERVATION_WINDOW).map(|(_, delay_ms)| *delay_ms);
                    let behind_ms = true_ms - clock.now_ms().unwrap();
                    assert!((0..=recent.min().unwrap()).contains(&behind_ms), "{behind_ms}");
                }
            });
        }
    }
}
