//! Plain list of records with what has become of each, by which the decisions are judged.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::backlog::starts::OLDEST_STARTS;

#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// A marker, or a record of an aborted transaction.
    Gap,
    Task(DeliveredRecord),
}

#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub log: Vec<Slot>,
    pub low: i64,
    /// Tasks that have ended, or are elsewhere in the log.
    ended: BTreeSet<i64>,
    /// Offsets that the present owner knows to be complete, holds and has started.
    done: BTreeSet<i64>,
    held: BTreeMap<i64, DeliveredRecord>,
    started: BTreeSet<i64>,
    has_lost: bool,
}

impl Oracle {
    pub(super) fn append(&mut self, drawn: u64) {
        let offset = self.log.len() as i64;
        let drawn = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let class = TaskClass { priority: Priority::ALL[(drawn / 64 % 3) as usize], tenant: drawn / 192 % TENANTS };
        let is_gap = drawn.is_multiple_of(8);
        let record = DeliveredRecord { offset, class, is_ending: drawn % 32 == 1 };
        self.log.push(if is_gap { Slot::Gap } else { Slot::Task(record) });
    }

    pub(super) fn append_again(&mut self, offset: i64) {
        if let Slot::Task(record) = self.log[offset as usize] {
            self.log.push(Slot::Task(DeliveredRecord { offset: self.log.len() as i64, ..record }));
        }
        self.ended.insert(offset);
        self.done.insert(offset);
    }

    fn record_at(&self, offset: i64) -> Option<DeliveredRecord> {
        match self.log.get(offset as usize)? {
            Slot::Task(record) if offset >= self.low => Some(*record),
            _ => None,
        }
    }

    pub(super) fn next_record(&self, from: i64) -> Option<i64> {
        (from.max(self.low)..self.log.len() as i64).find(|offset| self.record_at(*offset).is_some())
    }

    /// Records that are open, not held, and that the owner has counted.
    fn passed_over<'a>(&'a self, backlog: &'a PartitionBacklog) -> impl Iterator<Item = DeliveredRecord> + 'a {
        let unscanned = backlog.takeover.clone().unwrap_or(0..0);
        let offsets = (self.low..backlog.read_offset()).filter(move |offset| !unscanned.contains(offset));
        let open = offsets.filter(|offset| !self.done.contains(offset) && !self.held.contains_key(offset));
        open.filter_map(|offset| self.record_at(offset))
    }

    pub(super) fn held(&mut self, record: DeliveredRecord, backlog: &PartitionBacklog) {
        let offset = record.offset;
        assert!(!self.done.contains(&offset), "offset {offset} is complete and held again");
        assert!(!self.held.contains_key(&offset), "offset {offset} is held twice");
        let before = self.passed_over(backlog).find(|other| other.offset < offset && other.class == record.class);
        assert!(record.is_ending || before.is_none(), "{record:?} is held before {before:?}");
        self.held.insert(offset, record);
    }

    pub(super) fn waiting(&self) -> Vec<i64> {
        let waiting = self.held.iter().filter(|(offset, record)| !record.is_ending && !self.started.contains(offset));
        waiting.map(|(offset, _)| *offset).collect()
    }

    pub(super) fn running(&self) -> Vec<i64> {
        let running = self.held.iter().filter(|(offset, record)| record.is_ending || self.started.contains(offset));
        running.map(|(offset, _)| *offset).collect()
    }

    pub(super) fn start(&mut self, offset: i64, kafka: Option<&(i64, String)>) {
        assert!(self.started.insert(offset), "offset {offset} starts twice");
        assert!(is_claimed(offset, kafka), "offset {offset} starts outside of the claims of {kafka:?}");
    }

    pub(super) fn complete(&mut self, offset: i64) {
        self.held.remove(&offset);
        self.done.insert(offset);
        self.ended.insert(offset);
    }

    /// Compares counts and bounds.
    pub(super) fn check(&self, backlog: &PartitionBacklog) {
        let counted: u64 = backlog.classes.total_passed_over();
        let expected = self.passed_over(backlog).count() as u64;
        assert!(
            counted == expected || (self.has_lost && counted > expected),
            "{counted} counted of {expected}: {backlog:?}"
        );
        assert_eq!(backlog.recounts(), 0);
        let of_classes = self.held.values().filter(|record| !record.is_ending).count();
        assert!(of_classes <= backlog.limits.room + OLDEST_STARTS, "{of_classes} records are held");
        assert!(backlog.classes.number() <= backlog.limits.classes + 3);
        let open = (self.low..backlog.watermark()).filter_map(|offset| self.record_at(offset));
        let open = open.map(|record| record.offset).find(|offset| !self.done.contains(offset));
        assert_eq!(open, None, "the watermark {} has passed an open record", backlog.watermark());
    }

    /// Checks that the next owner finds each task that has started and not ended among the suspects.
    pub(super) fn check_crash(&self, kafka: Option<&(i64, String)>) {
        for offset in self.started.iter().filter(|offset| self.held.contains_key(offset)) {
            assert!(is_claimed(*offset, kafka), "offset {offset} was in flight, and {kafka:?} does not claim it");
        }
    }

    /// Checks that the last commit of an owner names everything that is complete.
    pub(super) fn check_clean_stop(&self, offset: i64, metadata: &str) {
        let map = CompletedOffsets::of_commit(offset, metadata);
        let repeated = self.done.iter().find(|done| !map.is_done(**done));
        assert_eq!(repeated, None, "a complete task is repeated after a clean stop with {metadata}");
    }

    pub(super) fn new_owner(&mut self, offset: i64, metadata: Option<&Metadata>) {
        let map = metadata.map_or_else(|| CompletedOffsets::starting_at(offset), |metadata| metadata.completed.clone());
        self.done = (0..self.log.len() as i64).filter(|offset| map.is_done(*offset)).collect();
        self.held.clear();
        self.started.clear();
        let unended =
            self.done.iter().find(|offset| self.record_at(**offset).is_some() && !self.ended.contains(offset));
        assert_eq!(unended, None, "the commit names a task as complete that has not ended");
    }

    pub(super) fn remove_before(&mut self, low: i64) {
        self.has_lost |= low > self.low;
        self.low = low;
    }

    pub(super) fn check_all_ended(&self) {
        let open = (self.low..self.log.len() as i64).filter_map(|offset| self.record_at(offset));
        let forgotten = open.map(|record| record.offset).find(|offset| !self.ended.contains(offset));
        assert_eq!(forgotten, None, "forgotten");
    }
}

fn is_claimed(offset: i64, kafka: Option<&(i64, String)>) -> bool {
    let metadata = kafka.and_then(|(committed, text)| Metadata::decode(*committed, text));
    metadata.is_some_and(|metadata| metadata.may_have_started(offset))
}
