//! One assigned partition of a lane: what was delivered, handed out and done, and what may be handed out next.

use std::collections::VecDeque;
use std::time::Instant;

use super::intake::Work;
use super::ticket::Ticket;
use crate::broker::{Commit, Committed, Partition};
use crate::model::offsets::{Completed, FULL_METADATA_BYTES, MAX_SPAN, Metadata};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Hands out nothing until the first commit has named its window.
    Starting,
    Active,
    /// Asked back: finishes what runs, until the deadline.
    Revoking {
        deadline: Instant,
    },
    /// Not taken up: somebody has to decide where to start.
    Refused,
}

pub struct Share {
    pub partition: Partition,
    /// Tells this assignment from earlier ones of the same partition.
    pub slot: u32,
    pub phase: Phase,
    /// Delivers nothing for a while: enough waits, or memory is short.
    pub paused: bool,
    /// The mark that the partition has been consumed is still to be written.
    pub unmarked: bool,
    completed: Completed,
    /// Where tickets count from.
    base: i64,
    /// Delivered and not handed out.
    waiting: VecDeque<Work>,
    /// Handed out and not done.
    outstanding: u64,
    /// How many offsets may be handed out and not committed as done.
    window: u64,
    /// A commit has said that nothing from here on is handed out.
    window_end: i64,
    /// Unclean takeovers in a row, and the window's end that has to be passed to forget them.
    unclean: u32,
    unclean_until: i64,
    /// Something changed since the last commit.
    changed: bool,
    /// The map has taken most of its room: nothing new until it shrinks.
    full: bool,
}

/// What a commit, once acknowledged, makes true.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    pub slot: u32,
    window_end: i64,
}

impl Share {
    /// Takes up a partition where the last owner left it; `committed` is none for a partition never consumed.
    pub fn take_up(partition: Partition, slot: u32, first: i64, committed: Option<&Committed>, window: u64) -> Self {
        let offset = committed.map_or(first, |committed| committed.offset);
        let metadata = committed.and_then(|committed| Metadata::decode(offset, &committed.metadata));
        let clean = committed.is_none() || metadata.as_ref().is_some_and(|metadata| metadata.clean);
        let unclean_before = metadata.as_ref().map_or(0, |metadata| metadata.unclean);
        let unclean_until = metadata.as_ref().map_or(offset, |metadata| metadata.window_end);
        let completed = metadata.map_or_else(|| Completed::starting_at(offset), |metadata| metadata.completed);
        Self {
            partition,
            slot,
            phase: Phase::Starting,
            paused: false,
            unmarked: committed.is_none(),
            base: completed.watermark(),
            completed,
            waiting: VecDeque::new(),
            outstanding: 0,
            window,
            window_end: 0,
            unclean: if clean { 0 } else { unclean_before.saturating_add(1) },
            unclean_until,
            changed: true,
            full: false,
        }
    }

    /// A partition that is held but not worked on.
    pub fn refused(partition: Partition, slot: u32) -> Self {
        Self { phase: Phase::Refused, ..Self::take_up(partition, slot, 0, None, 0) }
    }

    /// How much may be handed out and not be done from now on.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// Where to read from.
    pub fn start(&self) -> i64 {
        self.completed.watermark()
    }

    /// Notes a delivered record. False: it is done already, or this share takes nothing.
    pub fn deliver(&mut self, offset: i64) -> bool {
        let wanted = matches!(self.phase, Phase::Starting | Phase::Active);
        let fresh = wanted && self.completed.deliver(offset);
        self.changed |= !fresh && wanted;
        fresh
    }

    pub fn ticket(&self, lane: usize, offset: i64) -> Ticket {
        Ticket::new(lane, self.slot, offset - self.base)
    }

    pub fn push(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next work that may be handed out.
    pub fn pop(&mut self) -> Option<Work> {
        let next = self.waiting.front()?.offset();
        if self.phase != Phase::Active || next >= self.window_end {
            return None;
        }
        self.outstanding += 1;
        self.waiting.pop_front()
    }

    /// Asked back: what was not handed out is given up, what runs may finish until the deadline.
    pub fn revoke(&mut self, deadline: Instant) {
        self.waiting.clear();
        if self.phase != Phase::Refused {
            self.phase = Phase::Revoking { deadline };
        }
    }

    /// Nothing is left to wait for before it is given back.
    pub fn is_settled(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Revoking { deadline } => self.outstanding == 0 || now >= deadline,
            Phase::Refused => true,
            _ => false,
        }
    }

    /// The mark that it has been consumed is written.
    pub fn marked(&mut self) {
        self.unmarked = false;
        if self.phase == Phase::Starting && self.window_end > self.start() {
            self.phase = Phase::Active;
        }
    }

    pub fn done(&mut self, ticket: Ticket) {
        self.completed.complete(self.base + ticket.sequence());
        self.outstanding = self.outstanding.saturating_sub(1);
        self.changed = true;
    }

    pub fn returned(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The place after the last record delivered.
    pub fn read_to(&self) -> i64 {
        self.completed.next()
    }

    pub fn watermark(&self) -> i64 {
        self.completed.watermark()
    }

    pub fn unclean(&self) -> u32 {
        self.unclean
    }

    /// The map holds so much that one stuck task keeps back everything behind it.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Less than half of the window is left to hand out: a commit is due before its time.
    pub fn wants_window(&self) -> bool {
        match self.phase {
            Phase::Starting => true,
            // Below zero behind a gap in the log: the next offset lies past the window.
            Phase::Active => !self.full && self.window_end - self.next_to_hand_out() < self.window as i64 / 2 && self.moved(),
            _ => false,
        }
    }

    pub fn needs_commit(&self) -> bool {
        self.changed && matches!(self.phase, Phase::Starting | Phase::Active)
    }

    /// The commit that says what is done and how far will be handed out next.
    pub fn commit(&mut self) -> (Commit, Promise) {
        self.forget_crashes();
        let room = self.window.saturating_sub(self.outstanding) as i64;
        let window_end = self.window_end.max(self.next_to_hand_out() + room);
        let metadata = Metadata::encode(&self.completed, false, window_end, self.unclean);
        let span = self.completed.next() - self.completed.watermark();
        self.full = metadata.len() > FULL_METADATA_BYTES || span > MAX_SPAN;
        // What lies within the map, left open by an earlier owner, does not make it longer: only by doing it does it shrink.
        let window_end = if self.full { self.window_end.max(window_end.min(self.completed.end())) } else { window_end };
        self.changed = false;
        (self.commit_of(metadata), Promise { slot: self.slot, window_end })
    }

    /// The last commit of an owner: clean when nothing is left running.
    pub fn final_commit(&mut self) -> Commit {
        self.forget_crashes();
        let clean = self.outstanding == 0;
        let metadata = Metadata::encode(&self.completed, clean, self.window_end, self.unclean);
        self.commit_of(metadata)
    }

    pub fn keep(&mut self, promise: Promise) {
        self.window_end = self.window_end.max(promise.window_end);
        if self.phase == Phase::Starting && !self.unmarked {
            self.phase = Phase::Active;
        }
    }

    /// A commit was refused: what it said is to be said again.
    pub fn commit_failed(&mut self) {
        self.changed = true;
    }

    fn commit_of(&self, metadata: String) -> Commit {
        Commit { partition: self.partition.clone(), offset: self.completed.watermark(), metadata }
    }

    fn next_to_hand_out(&self) -> i64 {
        self.waiting.front().map_or(self.completed.next(), Work::offset).max(self.completed.watermark())
    }

    /// A new commit would name a larger window than the last one did.
    fn moved(&self) -> bool {
        let room = self.window.saturating_sub(self.outstanding) as i64;
        self.next_to_hand_out() + room > self.window_end
    }

    fn forget_crashes(&mut self) {
        if self.completed.watermark() >= self.unclean_until {
            self.unclean = 0;
        }
    }
}
