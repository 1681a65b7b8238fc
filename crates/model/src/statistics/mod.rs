//! Statistics of a partition: counters by type and span of log time, commonest errors, slowest attempts.
//!
//! One minute is open. Before the first event past its end, its aggregates are added to the aggregates of the ten minutes, the
//! hour and the day that contain it; readers add the open minute to these. Log time never runs back, so closed minutes
//! never change. [`crate::projection`] decides what counts.

pub mod aggregate;
pub mod errors;
pub mod histogram;
mod series;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::encode_error::EncodeError;
use crate::error_fingerprint::Fingerprint;
use crate::record::state::State;
use aggregate::{Aggregate, AggregateKey, Level, hour_of, minute_of};
use errors::{ErrorSummary, KEPT_HOURS, SlowAttempt};
use series::Series;

/// Maximum number of types with a series of their own; further types share [`OTHERS`].
pub const MAX_TYPES: usize = 200;
/// Series of all types together.
pub const ALL: &str = "*";
/// Series of the types beyond [`MAX_TYPES`].
pub const OTHERS: &str = "~";

/// Series in the store, and the open minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The open minute, counted from the epoch; `None` before the first event.
    pub minute: Option<i64>,
    /// Offset at which the fold began.
    pub began: i64,
    /// Log time of the first event, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// Series in the order of their first aggregates.
    pub series: Vec<ListedSeries>,
}

/// A series, and the day of its newest aggregate in days since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSeries {
    pub name: Arc<str>,
    pub day: i64,
}

impl Overview {
    pub const fn new(began: i64) -> Self {
        Self { minute: None, began, first_ms: None, series: Vec::new() }
    }

    /// Aggregates of each series that may still change.
    pub fn open_aggregates(&self) -> Vec<AggregateKey> {
        let of = |minute| Level::ALL.map(|level| AggregateKey::of_minute(level, minute)).to_vec();
        self.minute.map(of).unwrap_or_default()
    }

    /// Hour of the errors that may still change.
    pub fn open_hour(&self) -> Option<i64> {
        self.minute.map(hour_of)
    }

    /// JSON, which scripts in the store can read.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads bytes of [`Self::encode`]. They carry no version: a change of the format raises the fold version. `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Counts caused by one change of a record.
#[derive(Debug, Default)]
pub struct Observation {
    /// Type of the task after the change. `None`: unknown, and only `dropped` may count.
    pub task_type: Option<Arc<str>>,
    pub opened: bool,
    /// Own state in which the task ended.
    pub ended: Option<State>,
    /// Type under which the task stopped being open without an end.
    pub dropped: Option<Arc<str>>,
    pub retried: bool,
    pub duplicates: u32,
    pub wait_ms: Option<u64>,
    /// Attempt that ended.
    pub attempt: Option<SlowAttempt>,
    /// The attempt succeeded.
    pub succeeded: bool,
    /// Errors with their text, and the log time at which each ended the task.
    pub errors: Vec<(Fingerprint, Box<str>, Option<i64>)>,
}

/// Changes of the statistics in one batch. Later entries of one key replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsChanges {
    /// [`Overview`], encoded.
    pub overview: Option<Vec<u8>>,
    /// Aggregates by series; `None` removes one, which need not exist.
    pub aggregates: Vec<(Arc<str>, AggregateKey, Option<Vec<u8>>)>,
    /// [`ErrorSummary`]s by series and hour; `None` removes one, which need not exist.
    pub errors: Vec<(Arc<str>, i64, Option<Vec<u8>>)>,
    /// Change in the number of open tasks.
    pub open: i64,
}

impl StatisticsChanges {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Changes of the statistics, not yet encoded.
#[derive(Debug, Default)]
struct Pending {
    aggregates: Vec<(Arc<str>, AggregateKey, Option<Aggregate>)>,
    errors: Vec<(Arc<str>, i64, Option<ErrorSummary>)>,
    open: i64,
}

/// Stored statistics from which a writer resumes: the overview, and the aggregates that may still change.
#[derive(Clone, Debug, Default)]
pub struct StoredStatistics {
    pub overview: Option<Overview>,
    pub aggregates: Vec<(Arc<str>, AggregateKey, Aggregate)>,
    pub errors: Vec<(Arc<str>, ErrorSummary)>,
}

/// Statistics of one partition, with the aggregates that may still change.
#[derive(Debug)]
pub struct Statistics {
    overview: Overview,
    overview_changed: bool,
    all: Series,
    series: Vec<Series>,
    indexes: FxHashMap<Arc<str>, usize>,
    /// Index of the series counted last.
    last: usize,
    pending: Pending,
}

impl Default for Statistics {
    fn default() -> Self {
        Self::begin(0)
    }
}

impl Statistics {
    /// Begins empty statistics of a fold that begins at this offset.
    pub fn begin(offset: i64) -> Self {
        let mut statistics = Self::resume(StoredStatistics::default(), offset);
        statistics.overview_changed = true;
        statistics
    }

    /// Continues from the store. Without stored statistics the fold begins at `offset`.
    pub fn resume(stored: StoredStatistics, offset: i64) -> Self {
        let StoredStatistics { overview, aggregates, errors } = stored;
        let overview = overview.unwrap_or_else(|| Overview::new(offset));
        let names: Vec<Arc<str>> =
            overview.series.iter().map(|listed| listed.name.clone()).filter(|name| &**name != ALL).collect();
        let indexes = names.iter().cloned().zip(0..).collect();
        let mut statistics = Self {
            all: Series::new(ALL.into()),
            series: names.into_iter().map(Series::new).collect(),
            indexes,
            last: 0,
            overview,
            overview_changed: false,
            pending: Pending::default(),
        };
        for (name, key, aggregate) in aggregates {
            statistics.series_mut(&name).into_iter().for_each(|series| series.load(key, aggregate.clone()));
        }
        let hour = statistics.overview.open_hour().unwrap_or_default();
        for (name, errors) in errors {
            statistics.series_mut(&name).into_iter().for_each(|series| series.load_errors(hour, errors.clone()));
        }
        statistics
    }

    pub const fn overview(&self) -> &Overview {
        &self.overview
    }

    fn series_mut(&mut self, name: &str) -> Option<&mut Series> {
        match name {
            ALL => Some(&mut self.all),
            name => self.indexes.get(name).and_then(|index| self.series.get_mut(*index)),
        }
    }

    /// Closes the open minute if the log has passed its end. Called before anything at this log time counts.
    pub fn advance(&mut self, log_time_ms: i64) {
        let minute = minute_of(log_time_ms);
        if self.overview.minute.is_none_or(|open| open < minute) {
            self.open_minute(minute, log_time_ms);
        }
    }

    fn open_minute(&mut self, minute: i64, log_time_ms: i64) {
        self.overview.first_ms.get_or_insert(log_time_ms);
        let closed = self.overview.minute.replace(minute);
        self.overview_changed = true;
        let Some(closed) = closed else { return };
        let is_new_hour = hour_of(closed) < hour_of(minute);
        for series in std::iter::once(&mut self.all).chain(&mut self.series) {
            series.close(closed, &mut self.pending);
            if is_new_hour {
                // Written before old aggregates are dropped: this one may be among them.
                series.take_changes(closed, &mut self.pending);
            }
        }
        if is_new_hour {
            self.drop_old(hour_of(closed), hour_of(minute));
        }
    }

    /// Drops the aggregates that the new hour makes too old, and series without any.
    fn drop_old(&mut self, closed: i64, hour: i64) {
        for listed in &self.overview.series {
            let name = &listed.name;
            for level in Level::ALL {
                let last = (closed + 1) * Level::Hour.minutes() / level.minutes();
                for number in level.first_kept(closed)..level.first_kept(hour).min(last + 1) {
                    self.pending.aggregates.push((name.clone(), AggregateKey { level, number }, None));
                }
            }
            if &**name == ALL {
                continue;
            }
            for old in closed - KEPT_HOURS..(hour - KEPT_HOURS).min(closed + 1) {
                self.pending.errors.push((name.clone(), old, None));
            }
        }
        self.drop_series(Level::Day.first_kept(hour));
    }

    /// Drops the series without a count since this day.
    fn drop_series(&mut self, first_day: i64) {
        if self.overview.series.iter().any(|listed| listed.day < first_day) {
            self.overview.series.retain(|listed| listed.day >= first_day);
            let kept: Vec<Arc<str>> = self.overview.series.iter().map(|listed| listed.name.clone()).collect();
            self.series.retain(|series| kept.contains(&series.name));
            self.indexes = self.series.iter().map(|series| series.name.clone()).zip(0..).collect();
        }
    }

    /// Counts a change of a record in the open minute.
    pub fn record(&mut self, observation: Observation) {
        let Some(minute) = self.overview.minute else { return };
        if let Some(task_type) = &observation.dropped {
            self.pending.open -= 1;
            self.select(task_type, minute);
            for series in [&mut self.all, &mut self.series[self.last]] {
                series.open_aggregate().dropped += 1;
            }
        }
        let Some(task_type) = &observation.task_type else { return };
        self.pending.open += i64::from(observation.opened) - i64::from(observation.ended.is_some());
        self.select(task_type, minute);
        for series in [&mut self.all, &mut self.series[self.last]] {
            series.count(&observation);
        }
        self.series[self.last].count_errors(observation, hour_of(minute));
    }

    /// Sets `last` to the index of a type's series, which is created if needed.
    fn select(&mut self, task_type: &Arc<str>, minute: i64) {
        if self.series.get(self.last).is_some_and(|series| series.name == *task_type) {
            return self.list(minute);
        }
        let is_full = || self.indexes.len() - usize::from(self.indexes.contains_key(OTHERS)) >= MAX_TYPES;
        let name = match self.indexes.get(task_type) {
            None if is_full() => OTHERS.into(),
            _ => task_type.clone(),
        };
        self.last = *self.indexes.entry(name.clone()).or_insert_with(|| {
            self.series.push(Series::new(name));
            self.series.len() - 1
        });
        self.list(minute);
    }

    /// Lists the series counted now under the current day.
    fn list(&mut self, minute: i64) {
        let day = AggregateKey::of_minute(Level::Day, minute).number;
        for series in [&mut self.all, &mut self.series[self.last]] {
            if series.listed == Some(day) {
                continue;
            }
            series.listed = Some(day);
            match self.overview.series.iter_mut().find(|listed| listed.name == series.name) {
                Some(listed) if listed.day == day => continue,
                Some(listed) => listed.day = day,
                None => self.overview.series.push(ListedSeries { name: series.name.clone(), day }),
            }
            self.overview_changed = true;
        }
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Result<StatisticsChanges, EncodeError> {
        let mut pending = std::mem::take(&mut self.pending);
        if let Some(minute) = self.overview.minute {
            for series in std::iter::once(&mut self.all).chain(&mut self.series) {
                series.take_changes(minute, &mut pending);
            }
        }
        let is_changed = std::mem::take(&mut self.overview_changed);
        let overview = is_changed.then(|| self.overview.encode()).transpose()?;
        let mut changes = StatisticsChanges { overview, open: pending.open, ..StatisticsChanges::default() };
        for (name, key, aggregate) in pending.aggregates {
            changes.aggregates.push((name, key, aggregate.map(|aggregate| aggregate.encode()).transpose()?));
        }
        for (name, hour, errors) in pending.errors {
            changes.errors.push((name, hour, errors.map(|errors| errors.encode()).transpose()?));
        }
        Ok(changes)
    }
}
