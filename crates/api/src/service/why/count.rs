//! Counting of tasks in an offset range, which may also contain transaction markers and aborted records.

use std::ops::Range;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition, RecordListing};
use kafleet_model::offsets::CompletedOffsets;

/// Maximum offsets of one partition that are inspected one by one.
const MAX_OFFSETS: i64 = 1_000;
/// Maximum partitions inspected per request.
const MAX_INSPECTED_PARTITIONS: usize = 16;

/// Number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
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
        completed: &CompletedOffsets,
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

/// Offsets of the first records of a partition after a completed one. Records do not change, so it remains true when more
/// offsets are completed.
pub(super) struct Listing {
    from: i64,
    records: RecordListing,
}

impl Listing {
    pub(super) fn read(
        broker: &dyn Broker,
        partition: &Partition,
        from: i64,
        deadline: Duration,
    ) -> Result<Self, BrokerError> {
        let range = from..from.saturating_add(MAX_OFFSETS);
        Ok(Self { from, records: broker.list_records(partition, range, MAX_OFFSETS as usize, deadline)? })
    }

    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.records.offsets)
    }

    /// Counts unfinished tasks below `to`: exact where the records are listed, otherwise an upper bound.
    pub(super) fn open_below(&self, completed: &CompletedOffsets, to: i64) -> Count {
        let certain = completed.open_below(to.min(completed.end()));
        let from = completed.end().min(to);
        let listed_to = if from < self.from { from } else { self.records.to.clamp(from, to) };
        let listed = self.records.offsets.iter().filter(|offset| (from..listed_to).contains(offset)).count() as u64;
        let unknown = (to - listed_to) as u64;
        Count { tasks: certain + listed + unknown, at_most: unknown > 0 }
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self {
            tasks: sum.tasks + count.tasks,
            at_most: sum.at_most || count.at_most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_counts_exactly_where_it_knows_the_records() {
        // Offset 12 is a marker.
        let listing = Listing { from: 10, records: RecordListing { offsets: vec![10, 11, 13, 14], to: 15 } };
        let count = |completed: i64, to: i64| {
            let count = listing.open_below(&CompletedOffsets::starting_at(completed), to);
            (count.tasks, count.at_most)
        };
        assert_eq!(count(10, 10), (0, false));
        assert_eq!(count(10, 14), (3, false));
        assert_eq!(count(12, 15), (2, false), "more offsets were completed since");
        assert_eq!(count(10, 20), (9, true), "the list ends at 15");
        assert_eq!(count(9, 12), (3, true), "an offset before the list");
        assert_eq!(count(30, 40), (10, true), "all of the list is completed");
        assert_eq!(count(30, 20), (0, false), "the task is completed");
    }
}
