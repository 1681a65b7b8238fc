//! Retry policy and backoff.

use super::units::duration::Millis;

/// Retry policy of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub retries: u32,
    pub min_backoff: Millis,
    pub max_backoff: Millis,
}

impl Default for RetryPolicy {
    /// 5 retries with a backoff of 1 s to 3 s.
    fn default() -> Self {
        Self { retries: 5, min_backoff: Millis::secs(1), max_backoff: Millis::secs(3) }
    }
}

impl RetryPolicy {
    /// Returns true if another attempt is allowed after `attempts`.
    pub fn allows(&self, attempts: u32) -> bool {
        attempts <= self.retries
    }

    /// Backoff after `attempts` failures: `min · 2^(attempts-1)`, at most `max`, plus up to 20 % (`jitter` in 0..1).
    pub fn backoff(&self, attempts: u32, jitter: f64) -> Millis {
        let doublings = attempts.saturating_sub(1).min(62);
        let base = self.min_backoff.0.saturating_mul(1 << doublings).min(self.max_backoff.0);
        Millis(base.saturating_add((base as f64 * 0.2 * jitter.clamp(0.0, 1.0)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let policy = RetryPolicy { retries: 4, min_backoff: Millis(100), max_backoff: Millis(350) };
        assert_eq!((1..=4).map(|n| policy.backoff(n, 0.0).0).collect::<Vec<_>>(), [100, 200, 350, 350]);
        assert_eq!(policy.backoff(3, 1.0), Millis(420));
        assert_eq!(RetryPolicy { max_backoff: Millis(u64::MAX), ..policy }.backoff(u32::MAX, 1.0).0, u64::MAX);
    }

    #[test]
    fn one_attempt_more_than_retries_is_allowed() {
        let policy = RetryPolicy { retries: 2, ..RetryPolicy::default() };
        assert_eq!((1..=4).map(|used| policy.allows(used)).collect::<Vec<_>>(), [true, true, false, false]);
    }
}
