//! Counting of tasks in an offset range, which may also contain transaction markers and aborted records.

use std::ops::Range;
use std::time::Duration;

use crate::broker::{Broker, BrokerError, Partition};
use crate::model::offsets::Completed;

/// Maximum offsets of one partition that are inspected one by one.
const MAX_OFFSETS: i64 = 1_000;
/// Maximum partitions inspected per request.
const MAX_INSPECTED_PARTITIONS: usize = 16;

/// Number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub tasks: u64,
    /// The count is an upper bound, because not all offsets were inspected.
    pub at_most: bool,
}

impl Count {
    pub(super) fn text(self, task: &str, tasks: &str) -> String {
        let at_most = if self.at_most { "at most " } else { "" };
        format!("{at_most}{} {}", self.tasks, if self.tasks == 1 { task } else { tasks })
    }
}

/// Counter with a budget for one request.
pub(super) struct Counter<'a> {
    broker: &'a dyn Broker,
    deadline: Duration,
    inspected_partitions: usize,
}

impl<'a> Counter<'a> {
    pub(super) fn new(broker: &'a dyn Broker, deadline: Duration) -> Self {
        Self { broker, deadline, inspected_partitions: 0 }
    }

    /// Counts unfinished tasks below `to`. Zero is exact, as is any count up to [`MAX_OFFSETS`] in the first
    /// [`MAX_INSPECTED_PARTITIONS`] partitions.
    pub(super) fn open_below(
        &mut self,
        partition: &Partition,
        completed: &Completed,
        to: i64,
    ) -> Result<Count, BrokerError> {
        // A consumer that receives a record has passed everything before it that is not a record: below the highest
        // completed offset, each open offset is a task.
        let certain = completed.open_below(to.min(completed.end()));
        let rest = self.list_records(partition, completed.end()..to)?;
        Ok(Count { tasks: certain + rest.tasks, ..rest })
    }

    fn list_records(&mut self, partition: &Partition, range: Range<i64>) -> Result<Count, BrokerError> {
        if range.is_empty() {
            return Ok(Count::default());
        }
        let offsets = range.end - range.start;
        if self.inspected_partitions == MAX_INSPECTED_PARTITIONS {
            return Ok(Count { tasks: offsets as u64, at_most: true });
        }
        self.inspected_partitions += 1;
        let most = if offsets <= MAX_OFFSETS { MAX_OFFSETS as usize } else { 1 };
        let listed = self.broker.list_records(partition, range.clone(), most, self.deadline)?;
        let unknown = range.end.saturating_sub(listed.to).max(0) as u64;
        Ok(Count { tasks: listed.offsets.len() as u64 + unknown, at_most: unknown > 0 })
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |all, one| Self {
            tasks: all.tasks + one.tasks,
            at_most: all.at_most || one.at_most,
        })
    }
}
