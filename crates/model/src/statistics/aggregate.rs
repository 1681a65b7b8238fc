//! Aggregate of the statistics: counters and histograms of one series for one span of log time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::encode_error::EncodeError;
use crate::record::state::State;

const MINUTE_MS: i64 = 60_000;
const MINUTES_PER_HOUR: i64 = 60;

/// Counters of one series in one span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// Tasks that became open: their type is known and their own state is pending.
    pub opened: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub expired: u64,
    /// Tasks that stopped being open without an end: removed with their tree, or started again as another type.
    pub dropped: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Terminal events after the first of a run.
    pub duplicates: u64,
    /// Total duration of the attempts that ended, ms.
    pub busy_ms: u64,
    /// Times between readiness and the first start of a run.
    pub wait: Histogram,
    /// Durations of successful attempts.
    pub run: Histogram,
}

impl Aggregate {
    pub fn merge(&mut self, other: &Self) {
        self.opened += other.opened;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.dropped += other.dropped;
        self.retried += other.retried;
        self.duplicates += other.duplicates;
        self.busy_ms = self.busy_ms.saturating_add(other.busy_ms);
        self.wait.merge(&other.wait);
        self.run.merge(&other.run);
    }

    /// Counts an end in this state.
    pub(super) fn count_end(&mut self, state: State) {
        match state {
            State::Succeeded => self.succeeded += 1,
            State::Failed => self.failed += 1,
            State::Cancelled => self.cancelled += 1,
            State::Expired => self.expired += 1,
            _ => debug_assert!(false, "{state} is not an end"),
        }
    }

    pub const fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled + self.expired
    }

    /// Change in the number of open tasks.
    pub const fn open_change(&self) -> i64 {
        self.opened as i64 - self.ended() as i64 - self.dropped as i64
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads bytes of [`Self::encode`]. They carry no version: a change of the format raises the fold version. `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// Length of an aggregate's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    Minute,
    TenMinutes,
    Hour,
    Day,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Minute, Self::TenMinutes, Self::Hour, Self::Day];

    pub const fn minutes(self) -> i64 {
        match self {
            Self::Minute => 1,
            Self::TenMinutes => 10,
            Self::Hour => MINUTES_PER_HOUR,
            Self::Day => 24 * MINUTES_PER_HOUR,
        }
    }

    pub const fn length_ms(self) -> i64 {
        self.minutes() * MINUTE_MS
    }

    /// Time for which aggregates are kept, in hours.
    pub const fn kept_hours(self) -> i64 {
        match self {
            Self::Minute => 3,
            Self::TenMinutes => 24,
            Self::Hour => 7 * 24,
            Self::Day => 31 * 24,
        }
    }

    /// Number of the first aggregate that is kept in this hour.
    pub const fn first_kept(self, hour: i64) -> i64 {
        ((hour - self.kept_hours()) * MINUTES_PER_HOUR).div_euclid(self.minutes())
    }

    const fn letter(self) -> char {
        match self {
            Self::Minute => 'm',
            Self::TenMinutes => 't',
            Self::Hour => 'h',
            Self::Day => 'd',
        }
    }
}

/// Level and number of an aggregate, counted from the epoch; the field in the store, such as `m29401234`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AggregateKey {
    pub level: Level,
    pub number: i64,
}

impl AggregateKey {
    /// Aggregate of this level that contains a minute.
    pub const fn of_minute(level: Level, minute: i64) -> Self {
        Self { level, number: minute.div_euclid(level.minutes()) }
    }

    /// Aggregate of this level that contains a time.
    pub const fn at(level: Level, at_ms: i64) -> Self {
        Self::of_minute(level, minute_of(at_ms))
    }

    pub const fn starts_ms(self) -> i64 {
        self.number * self.level.length_ms()
    }

    pub const fn contains_minute(self, minute: i64) -> bool {
        minute.div_euclid(self.level.minutes()) == self.number
    }
}

impl fmt::Display for AggregateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.level.letter(), self.number)
    }
}

impl FromStr for AggregateKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = Level::ALL.into_iter().find_map(|level| {
            let number = text.strip_prefix(level.letter())?.parse().ok()?;
            Some(Self { level, number })
        });
        parsed.ok_or_else(|| format!("`{text}` is not the name of an aggregate"))
    }
}

/// Minute that contains a time, counted from the epoch.
pub const fn minute_of(at_ms: i64) -> i64 {
    at_ms.div_euclid(MINUTE_MS)
}

/// Hour that contains a minute, counted from the epoch.
pub const fn hour_of(minute: i64) -> i64 {
    minute.div_euclid(MINUTES_PER_HOUR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_aggregates_round_trip() {
        for level in Level::ALL {
            let key = AggregateKey::at(level, 1_764_074_040_000);
            assert_eq!(key.to_string().parse(), Ok(key));
            assert!(key.starts_ms() <= 1_764_074_040_000 && 1_764_074_040_000 < key.starts_ms() + level.length_ms());
        }
        assert_eq!(AggregateKey::at(Level::Minute, 1_764_074_040_000).to_string(), "m29401234");
        assert!("x1".parse::<AggregateKey>().is_err() && "m".parse::<AggregateKey>().is_err());
    }

    #[test]
    fn aggregates_are_kept_for_the_time_of_their_level() {
        let kept = Level::ALL.map(|level| 1_000 * 60 / level.minutes() - level.first_kept(1_000));
        assert_eq!(kept, [180, 144, 168, 31]);
    }

    #[test]
    fn encoded_aggregates_round_trip() {
        let mut aggregate = Aggregate { opened: 3, succeeded: 1, busy_ms: 70, ..Aggregate::default() };
        aggregate.wait.record(70);
        assert_eq!(Aggregate::decode(&aggregate.encode().unwrap()), Some(aggregate.clone()));
        let mut sum = aggregate.clone();
        sum.merge(&aggregate);
        assert_eq!((sum.opened, sum.open_change(), sum.wait.count()), (6, 4, 2));
        assert_eq!(Aggregate::decode(b"\xff"), None);
    }
}
