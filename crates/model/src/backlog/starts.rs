//! Starts of held records: only what an acknowledged commit has claimed, and for whose end the map has room.

use std::ops::Range;

use super::{HeldPhase, PartitionBacklog};
use crate::offsets::{
    Claims, CompletedOffsets, MapSize, Mark, Metadata, PassOverMetadata, PendingRetries, leb128_bytes,
};

/// Number of the oldest open records that may start although the map is full, because their ends shrink it.
pub(super) const OLDEST_STARTS: usize = 16;

/// Claims of commits, and the starts that they permit.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Claims of the last acknowledged commit.
    acknowledged: Claims,
    /// Claims of commits whose outcome is unknown: Kafka may have any of them.
    unresolved: Option<Claims>,
    in_flight: Option<PendingCommit>,
    commits: u64,
    /// Number of starts, and what it was in the last acknowledged commit.
    started: u64,
    started_before: u64,
    /// Held records that have started or end.
    running: usize,
    map: MapSize,
    /// Changes of the map since it was measured.
    changes: u64,
}

#[derive(Debug)]
struct PendingCommit {
    id: CommitId,
    claims: Claims,
    started: u64,
}

/// Returns whether the map has room for the ends of all started attempts and of one more.
pub(super) fn has_map_room(backlog: &mut PartitionBacklog) -> bool {
    let PartitionBacklog { limits, completed, read, starts, .. } = backlog;
    let span = completed.end().max(*read) - completed.watermark();
    span < limits.bitmap_span || starts.has_room(completed, span, limits.map_bytes)
}

/// Returns whether all open offsets before this one are held, and few.
pub(super) fn is_among_oldest(backlog: &PartitionBacklog, offset: i64) -> bool {
    let open = backlog.completed.runs(backlog.watermark(), offset).filter(|(_, is_done)| !is_done);
    let mut before = open.flat_map(|(run, _)| run).take(OLDEST_STARTS);
    let are_held = before.all(|before| backlog.held.contains_key(&before));
    are_held && backlog.completed.open_below(offset) < OLDEST_STARTS as u64
}

/// Commit whose outcome is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitId(u64);

/// Commit of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogCommit {
    /// Identifies the commit when its outcome is known.
    pub id: CommitId,
    /// Offset to commit.
    pub offset: i64,
    /// Metadata in the format `kf2`.
    pub metadata: String,
}

impl Starts {
    /// Boundaries of the map when it was measured last.
    pub(super) fn boundaries(&self) -> usize {
        self.map.boundaries
    }

    pub(super) fn map_changed(&mut self, changes: u64) {
        self.changes += changes;
    }

    pub(super) fn measure(&mut self, completed: &CompletedOffsets) -> MapSize {
        if self.changes > 0 {
            self.map = completed.map_size();
            self.changes = 0;
        }
        self.map
    }

    /// Returns whether the map stays within `limit` bytes after the ends of all started attempts and of one more.
    pub(super) fn has_room(&mut self, completed: &CompletedOffsets, span: i64, limit: usize) -> bool {
        // An end splits a run of open offsets: one number becomes three, of which one is a single byte.
        let per_end = (4 * (leb128_bytes(span.unsigned_abs()) + 1)).div_ceil(3);
        let bytes = |starts: &Self| starts.map.bytes + per_end * (starts.running + 1 + starts.changes as usize);
        bytes(self) <= limit || {
            self.measure(completed);
            bytes(self) <= limit
        }
    }

    pub(super) fn add_running(&mut self) {
        self.running += 1;
    }

    pub(super) fn remove_running(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    fn is_claimed(&self, offset: i64) -> bool {
        let of_pending = self.in_flight.as_ref().map(|commit| &commit.claims);
        self.acknowledged.contains(offset)
            && [self.unresolved.as_ref(), of_pending].into_iter().flatten().all(|claims| claims.contains(offset))
    }

    fn begin_commit(&mut self, claims: Claims) -> CommitId {
        self.fail_commit();
        self.commits += 1;
        let id = CommitId(self.commits);
        self.in_flight = Some(PendingCommit { id, claims, started: self.started });
        id
    }

    fn fail_commit(&mut self) {
        if let Some(commit) = self.in_flight.take() {
            let both = |unresolved: &Claims| unresolved.intersection(&commit.claims);
            self.unresolved = Some(self.unresolved.as_ref().map_or_else(|| commit.claims.clone(), both));
        }
    }
}

impl PartitionBacklog {
    /// Returns whether a held record may start now: it is claimed by an acknowledged commit, fewer tasks than the
    /// window have started since, and the map has room for its end.
    pub fn may_start(&mut self, offset: i64) -> bool {
        let is_waiting = self.held.get(&offset).is_some_and(|record| record.phase == HeldPhase::Waiting);
        is_waiting
            && self.starts.started - self.starts.started_before < self.limits.window
            && self.starts.is_claimed(offset)
            && (has_map_room(self) || is_among_oldest(self, offset))
    }

    /// Starts a held record. Returns false if it may not start now.
    pub fn start(&mut self, offset: i64) -> bool {
        let may_start = self.may_start(offset);
        if may_start && let Some(record) = self.held.get_mut(&offset) {
            record.phase = HeldPhase::Started;
            self.starts.started += 1;
            self.starts.add_running();
        }
        may_start
    }

    /// Creates a commit. An open one claims what is held, and where records are about to be held: ahead of reading on,
    /// of the scan, and of the scan of a takeover. A late one claims what has started.
    pub fn commit(&mut self, mark: Mark, unclean_takeovers: u32, retries: &PendingRetries) -> BacklogCommit {
        let is_claimed = |phase: HeldPhase| match mark {
            Mark::Open => phase != HeldPhase::Moving,
            Mark::Late => phase == HeldPhase::Started,
            Mark::Clean => false,
        };
        let held = self.held.iter().filter(|(_, record)| is_claimed(record.phase));
        let mut runs: Vec<Range<i64>> = held.map(|(offset, _)| *offset..offset + 1).collect();
        if mark == Mark::Open {
            runs.push(self.read..self.read + self.limits.claimed_ahead);
            let ahead = self.limits.scan_records as i64;
            runs.extend(self.scans().offset().map(|position| position..self.read.min(position + ahead)));
            runs.extend(
                self.takeover.as_ref().map(|unscanned| unscanned.start..unscanned.end.min(unscanned.start + ahead)),
            );
        }
        let pass_over = PassOverMetadata { read: self.read, claims: Claims::covering(runs) };
        let metadata = Metadata::encode_pass_over(&self.completed, mark, &pass_over, unclean_takeovers, retries);
        self.starts.measure(&self.completed);
        BacklogCommit { id: self.starts.begin_commit(pass_over.claims), offset: self.watermark(), metadata }
    }

    /// Registers that Kafka has acknowledged a commit.
    pub fn commit_acknowledged(&mut self, id: CommitId) {
        if let Some(commit) = self.starts.in_flight.take_if(|commit| commit.id == id) {
            self.starts.acknowledged = commit.claims;
            self.starts.unresolved = None;
            self.starts.started_before = commit.started;
        }
    }

    /// Registers that a commit has failed, or has no answer: Kafka may have it or not.
    pub fn commit_failed(&mut self, id: CommitId) {
        if self.starts.in_flight.as_ref().is_some_and(|commit| commit.id == id) {
            self.starts.fail_commit();
        }
    }
}
