//! Records of a partition that a worker passes over and comes back to, so that a later task can start before earlier
//! ones. Pure: offsets and classes of records in, decisions out.
//!
//! A reader delivers the log in order. A record for which its class has room is *held*; any other one, and any of a
//! class that has passed-over records, is *passed over*: counted, and dropped from memory. Its offset stays open, so no
//! commit can lose it. A second reader *scans* the log again from a *hint*, the lowest offset at which a record of a
//! class may have been passed over, when the class needs more held records.
//!
//! Invariant: no record of a class that is open and not held lies below the hint of its class, but in the part of an
//! earlier owner's log that has not been scanned yet. So the records of a class are held in the order of the log, and
//! none is forgotten.
//!
//! ```text
//!   watermark        takeover: not scanned yet        read
//!  ─────┼──────────────────┼─────────────┼──────────────┼──────▶ offsets
//!  done   done, held or passed over        the same       not delivered
//! ```
//!
//! A new owner reads on at `read` of the commit at once, and scans what lies before it in the background. Counts and
//! hints are in no commit: classes, weights and tenants may change with each restart.
//!
//! Read next: `classes.rs` (room and hints), `scan.rs`, `starts.rs` (claims and commits), `moves.rs` (records appended
//! again).

mod classes;
mod moves;
mod scan;
mod starts;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::offsets::{CompletedOffsets, FULL_MAP_BYTES, MAX_SPAN, Metadata};
use crate::task::priority::{Priority, TaskClass};
use classes::ClassTable;
pub use moves::Moves;
use scan::Scan;
pub use scan::Scans;
pub use starts::{BacklogCommit, CommitId};
use starts::{Starts, has_map_room};

/// Bounds of what is held and of the map of completed offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Held records, and up to 16 of the oldest ones while the map is full. Half of the room is for classes without
    /// passed-over records.
    pub room: usize,
    /// Starts after the last acknowledged commit, at most so many tasks are repeated after a crash.
    pub window: u64,
    /// Classes that are distinguished. Further ones share one for each priority.
    pub classes: usize,
    /// Records that one scan reads.
    pub scan_records: usize,
    /// Distance to the next record of interest beyond which a scan jumps, in offsets.
    pub scan_jump: i64,
    /// Offsets beyond `read` that each commit claims, so that new records start without waiting for the next one.
    pub claimed_ahead: i64,
    /// Distance from the watermark to `read` up to which the map fits into a commit whatever is complete.
    pub bitmap_span: i64,
    /// Encoded map in bytes up to which tasks start.
    pub map_bytes: usize,
    /// Boundaries of the map above which records are appended again.
    pub boundaries: usize,
    /// Distance from the watermark to `read` at which reading on stops.
    pub read_ahead: i64,
}

/// Knowledge of the rest of the worker about classes.
pub trait ClassView {
    /// Slot time of a priority by its weight; the one with the least is first.
    fn used_by_priority(&self, priority: Priority) -> f64;
    /// Slot time of a class by its tenant's weight.
    fn used_by_class(&self, class: TaskClass) -> f64;
    /// Returns whether a tenant may start nothing now: paused, or at its limit.
    fn is_blocked(&self, tenant: u64) -> bool;
    /// Number of records of a tenant that it can start soon; `usize::MAX` for tenants without limits.
    fn held_limit(&self, tenant: u64) -> usize;
    /// Returns whether fewer tasks are ready than twice the slots, so that a class may hold more.
    fn needs_work(&self) -> bool;
}

/// A record that one of the readers has delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredRecord {
    /// Offset of the record.
    pub offset: i64,
    /// Class of its task.
    pub class: TaskClass,
    /// It ends without an attempt, because it is invalid, cancelled or killed: it is held whatever the room.
    pub is_ending: bool,
}

/// Decision about a delivered record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDecision {
    /// The worker holds it from now on.
    Hold,
    /// It is counted and dropped from memory.
    PassOver,
    /// It is complete or held, or a scan skips it.
    Skip,
}

/// State of the records of one partition.
#[derive(Debug)]
pub struct PartitionBacklog {
    limits: BacklogLimits,
    completed: CompletedOffsets,
    /// Offset after the last record that reading on has delivered.
    read: i64,
    held: BTreeMap<i64, HeldRecord>,
    /// Number of records that are being appended again.
    moving: usize,
    classes: ClassTable,
    /// Part of an earlier owner's log that has not been scanned yet.
    takeover: Option<Range<i64>>,
    scan: Option<Scan>,
    /// Records that were counted as passed over and that the log no longer has. Their class is unknown until a scan
    /// misses them.
    vanished: u64,
    /// Number of times that counts were started again because a scan did not find what they promised.
    recounts: u64,
    starts: Starts,
    /// Records can be appended again; otherwise scans keep to the order of the log while the map is large.
    can_move: bool,
}

#[derive(Clone, Copy, Debug)]
struct HeldRecord {
    class: TaskClass,
    phase: HeldPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldPhase {
    Waiting,
    Started,
    /// It ends without an attempt; not in the room.
    Ending,
    /// Being appended again; not in the room.
    Moving,
}

impl BacklogLimits {
    /// Limits for a partition whose part of the worker's room is `room` records, and whose window is `window` starts.
    pub fn new(room: usize, window: u64) -> Self {
        Self {
            room,
            window,
            classes: 10_000,
            scan_records: 4_096,
            scan_jump: 2_000,
            claimed_ahead: 10_000,
            bitmap_span: 17_000,
            map_bytes: FULL_MAP_BYTES,
            boundaries: 1_000,
            read_ahead: MAX_SPAN * 9 / 10,
        }
    }
}

impl PartitionBacklog {
    /// Resumes a partition from its last commit. Of a commit in the format `kf1`, or without metadata, nothing above
    /// the committed offset counts as delivered: reading on continues there, and skips what is complete.
    pub fn resume(offset: i64, metadata: Option<&Metadata>, limits: BacklogLimits) -> Self {
        let completed =
            metadata.map_or_else(|| CompletedOffsets::starting_at(offset), |metadata| metadata.completed.clone());
        let pass_over = metadata.and_then(|metadata| metadata.pass_over.as_ref());
        let read = pass_over.map_or(offset, |pass_over| pass_over.read).max(completed.watermark());
        let unscanned = completed.watermark()..read;
        Self {
            classes: ClassTable::new(limits),
            limits,
            completed,
            read,
            held: BTreeMap::new(),
            moving: 0,
            takeover: Some(unscanned).filter(|unscanned| !unscanned.is_empty()),
            scan: None,
            vanished: 0,
            recounts: 0,
            starts: Starts::default(),
            can_move: true,
        }
    }

    /// Offset below which everything is complete.
    pub fn watermark(&self) -> i64 {
        self.completed.watermark()
    }

    /// Offset at which reading on continues.
    pub fn read_offset(&self) -> i64 {
        self.read
    }

    /// Number of records of a class that are passed over.
    pub fn passed_over(&self, class: TaskClass) -> u64 {
        self.classes.passed_over(class)
    }

    /// Number of times that counts of passed-over records were started again.
    pub fn recounts(&self) -> u64 {
        self.recounts
    }

    /// Scans of the log for the classes that need more held records, and over what an earlier owner has left.
    pub fn scans(&mut self) -> Scans<'_> {
        Scans { backlog: self }
    }

    /// Records that are appended again at the end of the partition.
    pub fn moves(&mut self) -> Moves<'_> {
        Moves { backlog: self }
    }

    /// Returns whether reading on may continue: the map has room for more boundaries, and the reader is not too far
    /// ahead.
    pub fn may_read(&mut self) -> bool {
        let ending = self.held.len().saturating_sub(self.classes.held() + self.moving);
        self.read - self.watermark() < self.limits.read_ahead && ending < self.limits.room && has_map_room(self)
    }

    /// Decides about a record of reading on. Offsets that the log skips before it are complete.
    pub fn read(&mut self, record: DeliveredRecord, view: &impl ClassView) -> ReadDecision {
        if record.offset < self.read {
            return ReadDecision::Skip;
        }
        self.read_to(record.offset);
        self.read = record.offset + 1;
        self.admit(record, view)
    }

    /// Registers that reading on has reached `offset` without a record: markers, or records of aborted transactions.
    pub fn read_to(&mut self, offset: i64) {
        self.complete_unheld(self.read..offset);
        self.read = self.read.max(offset);
    }

    /// Holds a record or passes it over.
    fn admit(&mut self, record: DeliveredRecord, view: &impl ClassView) -> ReadDecision {
        if self.completed.is_done(record.offset) || self.held.contains_key(&record.offset) {
            return ReadDecision::Skip;
        }
        if record.is_ending {
            return self.hold_ending(record);
        }
        let class = self.classes.resolve(record.class);
        if self.classes.has_room_of_others(class, view) {
            self.hold(record.offset, class);
            return ReadDecision::Hold;
        }
        self.classes.pass_over(class, record.offset);
        ReadDecision::PassOver
    }

    fn hold(&mut self, offset: i64, class: TaskClass) {
        self.classes.add_held(class);
        self.held.insert(offset, HeldRecord { class, phase: HeldPhase::Waiting });
    }

    /// Holds a record that ends without an attempt. It is in no class.
    fn hold_ending(&mut self, record: DeliveredRecord) -> ReadDecision {
        self.held.insert(record.offset, HeldRecord { class: record.class, phase: HeldPhase::Ending });
        self.starts.add_running();
        ReadDecision::Hold
    }

    /// Registers the end of a held record: its terminal event is acknowledged.
    pub fn complete(&mut self, offset: i64) {
        let Some(record) = self.held.remove(&offset) else { return };
        match record.phase {
            HeldPhase::Waiting => self.classes.remove_held(record.class),
            HeldPhase::Started => {
                self.classes.remove_held(record.class);
                self.starts.remove_running();
            }
            HeldPhase::Ending => self.starts.remove_running(),
            HeldPhase::Moving => self.moving = self.moving.saturating_sub(1),
        }
        self.completed.complete(offset);
        self.starts.map_changed(1);
    }

    /// Registers that the log begins at `offset`: retention has removed what lay before.
    pub fn log_starts_at(&mut self, offset: i64) {
        let unscanned = self.takeover.clone().unwrap_or(self.read..self.read);
        self.read_to(offset);
        let lost = self.complete_unheld(i64::MIN..offset.min(unscanned.start));
        self.complete_unheld(unscanned.start..offset.min(unscanned.end));
        let after = self.complete_unheld(unscanned.end..offset);
        self.vanished += lost + after;
        self.takeover = Some(unscanned.start.max(offset)..unscanned.end).filter(|unscanned| !unscanned.is_empty());
        self.scans().passed(offset);
    }

    /// Completes the open offsets of a range that are not held: the log has no record there. Returns their number.
    fn complete_unheld(&mut self, range: Range<i64>) -> u64 {
        let mut from = range.start.max(self.watermark());
        let mut number = 0;
        while from < range.end {
            let held = self.held.range(from..range.end).next().map_or(range.end, |(offset, _)| *offset);
            let completed = self.completed.complete_range(from, held);
            self.starts.map_changed(completed.min(1));
            number += completed;
            from = held + 1;
        }
        number
    }
}

#[cfg(test)]
mod tests;
