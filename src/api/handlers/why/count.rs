//! Counts tasks among the places of a log, of which transaction markers and aborted records are none.

use std::ops::Range;
use std::time::Duration;

use crate::broker::{Broker, BrokerError, Partition};
use crate::model::offsets::Completed;

/// Places of one partition that are looked at one by one.
const MAX_PLACES: i64 = 1_000;
/// Partitions that are looked into for one answer.
const MAX_LOOKS: usize = 16;

/// A number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub tasks: u64,
    /// There may be fewer: not all places were looked at.
    pub at_most: bool,
}

impl Count {
    pub fn text(self, task: &str, tasks: &str) -> String {
        let at_most = if self.at_most { "at most " } else { "" };
        format!("{at_most}{} {}", self.tasks, if self.tasks == 1 { task } else { tasks })
    }
}

/// Counts for one answer, within bounds.
pub struct Counter<'a> {
    broker: &'a dyn Broker,
    deadline: Duration,
    looks: usize,
}

impl<'a> Counter<'a> {
    pub fn new(broker: &'a dyn Broker, deadline: Duration) -> Self {
        Self { broker, deadline, looks: 0 }
    }

    /// Tasks below `to` that are not done. Zero is exact, and so is any number up to [`MAX_PLACES`] in the first [`MAX_LOOKS`]
    /// partitions.
    pub fn open_below(&mut self, partition: &Partition, completed: &Completed, to: i64) -> Result<Count, BrokerError> {
        // A worker passes whatever is no record when it is given a later one: below the last done place what is open is a task.
        let certain = completed.open_below(to.min(completed.end()));
        let rest = self.records_in(partition, completed.end()..to)?;
        Ok(Count { tasks: certain + rest.tasks, ..rest })
    }

    fn records_in(&mut self, partition: &Partition, range: Range<i64>) -> Result<Count, BrokerError> {
        if range.is_empty() {
            return Ok(Count::default());
        }
        let places = range.end - range.start;
        if self.looks == MAX_LOOKS {
            return Ok(Count { tasks: places as u64, at_most: true });
        }
        self.looks += 1;
        let most = if places <= MAX_PLACES { MAX_PLACES as usize } else { 1 };
        let listed = self.broker.records_in(partition, range.clone(), most, self.deadline)?;
        let unknown = range.end.saturating_sub(listed.to).max(0) as u64;
        Ok(Count { tasks: listed.offsets.len() as u64 + unknown, at_most: unknown > 0 })
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |all, one| Self { tasks: all.tasks + one.tasks, at_most: all.at_most || one.at_most })
    }
}
