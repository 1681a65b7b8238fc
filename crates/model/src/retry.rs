//! Retry policy and backoff, and waits that do not count as attempts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::duration::Millis;

/// Maximum backoff of waits.
pub const MAX_WAIT_BACKOFF: Millis = Millis::secs(600);
/// Default time after the first wait of a run from which on waits count as attempts.
pub const DEFAULT_MAX_WAIT: Millis = Millis::secs(24 * 3_600);

/// Attempts and waits that a run has used. Ordered: each handover of the task's record has used more than the one
/// before. The attempts are compared first, because workers of older builds report no waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunUsage {
    pub attempts: u32,
    pub waits: u32,
}

/// Waits of a run. A wait is an execution that ended early, for a reason outside of the task. It does not count as an
/// attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub number: u32,
    /// Time of the first one, epoch milliseconds; 0 if there is none.
    pub since_ms: i64,
}

impl Waits {
    /// Waits after one more.
    pub fn after_another(self, now_ms: i64) -> Self {
        Self { number: self.number.saturating_add(1), since_ms: self.since_ms_at(now_ms) }
    }

    /// Returns true if another wait counts as an attempt: the first one began `max_wait` ago.
    pub fn are_used_up(self, max_wait: Millis, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.since_ms_at(now_ms)) >= max_wait.as_i64()
    }

    const fn since_ms_at(self, now_ms: i64) -> i64 {
        if self.number == 0 { now_ms } else { self.since_ms }
    }
}

/// The form in `ce_waits`: the number, a comma, and the time of the first one in epoch milliseconds.
impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.number, self.since_ms)
    }
}

impl std::str::FromStr for Waits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(',').and_then(|(number, since)| Some((number.parse().ok()?, since.parse().ok()?)));
        match parts {
            Some((number @ 1.., since_ms @ 0..)) => Ok(Self { number, since_ms }),
            _ => Err("it is not a number of waits and the time of the first one in epoch milliseconds, such as \
                      2,1767225600000"
                .to_owned()),
        }
    }
}

/// Attempts and waits that a run of a task has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    pub attempts: u32,
    pub waits: Waits,
    /// Attempts before the backoff started again.
    pub backoff_from: u32,
}

impl RunProgress {
    /// Counts an attempt that has ended, or else the wait with which it ended. `waits`: those of the run with this one.
    pub const fn use_up(&mut self, waits: Option<Waits>) {
        match waits {
            Some(waits) => self.waits = waits,
            None => self.attempts += 1,
        }
    }
}

/// Retry policy of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub retries: u32,
    pub min_backoff: Millis,
    pub max_backoff: Millis,
    /// Time of an attempt after which its failure counts as the first one for the backoff. `None`: it never does.
    pub backoff_reset: Option<Millis>,
}

impl Default for RetryPolicy {
    /// 5 retries with a backoff of 1 s to 3 s.
    fn default() -> Self {
        Self { retries: 5, min_backoff: Millis::secs(1), max_backoff: Millis::secs(3), backoff_reset: None }
    }
}

impl RetryPolicy {
    /// Returns true if another attempt is allowed after `attempts`.
    pub fn allows(&self, attempts: u32) -> bool {
        attempts <= self.retries
    }

    /// Returns true if the backoff starts again with the failure of an attempt that has taken this time.
    pub fn starts_again(&self, took: Duration) -> bool {
        self.backoff_reset.is_some_and(|reset| took >= Duration::from(reset))
    }

    /// Backoff after `attempts` failures: `min · 2^(attempts-1)`, at most `max`, plus up to 20 % (`jitter` in 0..1).
    pub fn backoff(&self, attempts: u32, jitter: f64) -> Millis {
        self.doubled(attempts, self.max_backoff, jitter)
    }

    /// Time of a wait without a given one: `min · 2^(waits-1)`, at most 10 minutes or `min`, plus up to 20 %. `waits`
    /// includes this one.
    pub fn wait_backoff(&self, waits: u32, jitter: f64) -> Millis {
        self.doubled(waits, MAX_WAIT_BACKOFF.max(self.min_backoff), jitter)
    }

    /// Minimum of a wait that a handler or a service requests: the first waits may be short, the later ones last a second or
    /// longer, so that a task does not start again and again. `waits` includes this one.
    pub fn min_wait(waits: u32) -> Millis {
        waits.checked_sub(2).map_or(Millis(0), |more| Millis((10_u64 << more.min(7)).min(1_000)))
    }

    fn doubled(&self, times: u32, max: Millis, jitter: f64) -> Millis {
        let doublings = times.saturating_sub(1).min(62);
        let base = self.min_backoff.0.saturating_mul(1 << doublings).min(max.0);
        Millis(base.saturating_add((base as f64 * 0.2 * jitter.clamp(0.0, 1.0)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let policy =
            RetryPolicy { retries: 4, min_backoff: Millis(100), max_backoff: Millis(350), backoff_reset: None };
        assert_eq!((1..=4).map(|n| policy.backoff(n, 0.0).0).collect::<Vec<_>>(), [100, 200, 350, 350]);
        assert_eq!(policy.backoff(3, 1.0), Millis(420));
        assert_eq!(RetryPolicy { max_backoff: Millis(u64::MAX), ..policy }.backoff(u32::MAX, 1.0).0, u64::MAX);
    }

    #[test]
    fn backoff_starts_again_after_a_long_attempt() {
        let policy = RetryPolicy { backoff_reset: Some(Millis::secs(10)), ..RetryPolicy::default() };
        let after = |policy: RetryPolicy| [0, 9, 10, 1_000].map(|secs| policy.starts_again(Duration::from_secs(secs)));
        assert_eq!(after(policy), [false, false, true, true]);
        assert_eq!(after(RetryPolicy::default()), [false; 4]);
    }

    #[test]
    fn backoff_of_waits_doubles_up_to_ten_minutes() {
        let policy = RetryPolicy { retries: 0, ..RetryPolicy::default() };
        let waits = [1, 2, 5, 10, 11, u32::MAX].map(|n| policy.wait_backoff(n, 0.0));
        assert_eq!(waits, [1, 2, 16, 512, 600, 600].map(Millis::secs));
        assert_eq!(policy.wait_backoff(1, 1.0), Millis(1_200));
        assert_eq!([1, 2, 3, 8, 9, u32::MAX].map(|n| RetryPolicy::min_wait(n).0), [0, 10, 20, 640, 1_000, 1_000]);
        let slow = RetryPolicy { min_backoff: Millis::secs(3_600), ..policy };
        assert_eq!(slow.wait_backoff(3, 0.0), Millis::secs(3_600), "never below the type's own minimum");
    }

    #[test]
    fn waits_count_as_attempts_after_their_maximum_time() {
        let first = Waits::default().after_another(1_000);
        let second = first.after_another(5_000);
        assert_eq!((first.number, second), (1, Waits { number: 2, since_ms: 1_000 }));
        assert_eq!([5_999, 6_000].map(|now| second.are_used_up(Millis::secs(5), now)), [false, true]);
        assert!(!Waits::default().are_used_up(Millis(1), i64::MAX), "there is no first wait");
        assert!(Waits::default().are_used_up(Millis(0), 1_000), "none is allowed");
    }

    #[test]
    fn waits_have_one_textual_form() {
        let waits = Waits { number: 3, since_ms: 1_800_000_000_000 };
        assert_eq!((waits.to_string().as_str(), waits.to_string().parse()), ("3,1800000000000", Ok(waits)));
        for bad in ["", "3", "0,1", "-1,1", "1,-1", "1,soon", "1,2,3", "4294967296,1"] {
            assert!(bad.parse::<Waits>().is_err(), "{bad}");
        }
    }

    #[test]
    fn more_attempts_count_before_more_waits() {
        let used = |attempts, waits| RunUsage { attempts, waits };
        let in_order = [used(0, 0), used(0, 1), used(0, 9), used(1, 0), used(1, 3), used(2, 0)];
        assert!(in_order.is_sorted());
    }

    #[test]
    fn one_attempt_more_than_retries_is_allowed() {
        let policy = RetryPolicy { retries: 2, ..RetryPolicy::default() };
        assert_eq!((1..=4).map(|used| policy.allows(used)).collect::<Vec<_>>(), [true, true, false, false]);
    }
}
