//! Search for partitions whose position is outside their log. The client's error usually names the partition; an error
//! that arrives over the client's own queue does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::native::PartitionEntry;
use crate::{BrokerError, GroupEvent, Partition};

/// Maximum time of the lookups in one poll.
const SEARCH_DEADLINE: Duration = Duration::from_secs(5);
/// Pause before partitions that could not be looked up are looked up again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two searches through all partitions.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Partitions that are, or may be, outside their log.
#[derive(Default)]
pub(super) struct OutOfRange {
    /// Reported and not moved since.
    reported: BTreeSet<Partition>,
    /// To be looked up, from this time on.
    suspects: BTreeMap<Partition, Instant>,
    /// Time from which all partitions are looked up, because an error named none.
    search_at: Option<Instant>,
    last_search: Option<Instant>,
    /// Text of the last error.
    reason: String,
}

impl OutOfRange {
    /// Registers an error, and the partition that it names.
    pub(super) fn add(&mut self, partition: Option<Partition>, reason: String, now: Instant) {
        self.reason = reason;
        match partition {
            Some(partition) => drop(self.suspects.entry(partition).or_insert(now)),
            None => {
                let earliest = self.last_search.map_or(now, |last| last + MIN_SEARCH_INTERVAL);
                self.search_at.get_or_insert(earliest.max(now));
            }
        }
    }

    /// Registers that a partition has been moved or released.
    pub(super) fn forget(&mut self, partition: &Partition) {
        self.reported.remove(partition);
        self.suspects.remove(partition);
    }

    /// Returns whether a partition is, or may be, outside its log. Its position says nothing then: librdkafka has advanced it
    /// past the offset of the error, as if that were the offset of a record.
    pub(super) fn may_be(&self, partition: &Partition) -> bool {
        self.search_at.is_some() || self.reported.contains(partition) || self.suspects.contains_key(partition)
    }

    /// Returns whether any partition is to be looked up now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.search_at.iter().chain(self.suspects.values()).any(|at| now >= *at)
    }

    /// Looks up partitions; `lookup` returns `None` if the broker did not answer in time. Returns those outside their
    /// log.
    pub(super) fn search(
        &mut self,
        positions: Vec<PartitionEntry>,
        now: Instant,
        mut lookup: impl FnMut(&PartitionEntry, Duration) -> Option<bool>,
    ) -> Vec<GroupEvent> {
        let searches_all = self.search_at.is_some_and(|at| now >= at);
        if searches_all {
            (self.search_at, self.last_search) = (None, Some(now));
        }
        let is_due = |at: &Instant| now >= *at;
        let mut due: BTreeSet<Partition> =
            self.suspects.extract_if(.., |_, at| is_due(at)).map(|(partition, _)| partition).collect();
        let mut events = Vec::new();
        for entry in positions {
            let is_suspect = due.remove(&entry.partition);
            if !(is_suspect || searches_all) || entry.offset < 0 || self.reported.contains(&entry.partition) {
                continue;
            }
            match lookup(&entry, (now + SEARCH_DEADLINE).saturating_duration_since(Instant::now())) {
                None => drop(self.suspects.insert(entry.partition, now + RETRY_INTERVAL)),
                Some(false) => {}
                Some(true) => {
                    self.reported.insert(entry.partition.clone());
                    events.push(GroupEvent::OutOfRange(entry.partition));
                }
            }
        }
        if events.is_empty() {
            let reason = &self.reason;
            let error = BrokerError::Unavailable(format!("no valid position to read from: {reason}"));
            events.push(GroupEvent::ClientError(error));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaErrorCode;

    use super::*;

    fn positions(count: i32) -> Vec<PartitionEntry> {
        let entry = |index| PartitionEntry {
            partition: Partition::new("t", index),
            offset: 5,
            metadata: String::new(),
            error: RDKafkaErrorCode::NoError,
        };
        (0..count).map(entry).collect()
    }

    /// Searches until nothing is due; returns the number of lookups and of partitions found.
    fn search_all(
        out_of_range: &mut OutOfRange,
        now: Instant,
        mut lookup: impl FnMut(i32) -> Option<bool>,
    ) -> (usize, usize) {
        let (mut lookups, mut outside) = (0, 0);
        while out_of_range.is_due(now) {
            let events = out_of_range.search(positions(100), now, |entry, _| {
                lookups += 1;
                lookup(entry.partition.index)
            });
            outside += events.iter().filter(|event| matches!(event, GroupEvent::OutOfRange(_))).count();
        }
        (lookups, outside)
    }

    #[test]
    fn positions_count_again_once_their_partitions_have_been_looked_up() {
        let (now, mut out_of_range, at) = (Instant::now(), OutOfRange::default(), |index| Partition::new("t", index));
        out_of_range.add(None, String::new(), now);
        assert!((0..100).all(|index| out_of_range.may_be(&at(index))), "the error names no partition");
        search_all(&mut out_of_range, now, |index| Some(index == 3));
        assert!((0..100).all(|index| out_of_range.may_be(&at(index)) == (index == 3)), "one of them is outside");
        out_of_range.forget(&at(3));
        assert!(!out_of_range.may_be(&at(3)), "it has been moved");
        out_of_range.add(Some(at(7)), String::new(), now);
        assert!(out_of_range.may_be(&at(7)) && !out_of_range.may_be(&at(8)), "the error names one");
    }

    #[test]
    fn named_partitions_are_looked_up_once_each() {
        let (now, mut out_of_range, mut total) = (Instant::now(), OutOfRange::default(), (0, 0));
        for index in 0..100 {
            out_of_range.add(Some(Partition::new("t", index)), String::new(), now);
            let (lookups, outside) = search_all(&mut out_of_range, now, |_| Some(true));
            total = (total.0 + lookups, total.1 + outside);
        }
        assert_eq!(total, (100, 100));
        // Reported once, until it is moved.
        out_of_range.add(Some(Partition::new("t", 3)), String::new(), now);
        assert_eq!(search_all(&mut out_of_range, now, |_| Some(true)), (0, 0));
        out_of_range.forget(&Partition::new("t", 3));
        out_of_range.add(Some(Partition::new("t", 3)), String::new(), now);
        assert_eq!(search_all(&mut out_of_range, now, |_| Some(true)), (1, 1));
    }

    #[test]
    fn errors_without_a_name_share_a_search() {
        let (now, mut out_of_range) = (Instant::now(), OutOfRange::default());
        let mut add_and_search = |at| {
            out_of_range.add(None, String::new(), at);
            search_all(&mut out_of_range, at, |index| Some(index < 50))
        };
        assert_eq!(add_and_search(now), (100, 50));
        assert_eq!(add_and_search(now), (0, 0), "at most one search per second");
        assert_eq!(add_and_search(now + MIN_SEARCH_INTERVAL), (50, 0));
    }

    #[test]
    fn partition_without_an_answer_is_looked_up_again() {
        let (now, mut out_of_range) = (Instant::now(), OutOfRange::default());
        out_of_range.add(Some(Partition::new("t", 7)), String::new(), now);
        assert_eq!(search_all(&mut out_of_range, now, |_| None), (1, 0));
        assert_eq!(search_all(&mut out_of_range, now + RETRY_INTERVAL, |_| Some(true)), (1, 1));
    }
}
