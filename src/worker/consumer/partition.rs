//! One assigned partition of a lane: what was delivered, handed out and done, and what may be handed out next.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::broker::{Commit, Committed, Partition};
use crate::model::offsets::{Completed, FULL_METADATA_BYTES, MAX_SPAN, Mark, Metadata};
use crate::worker::completions::DeliveryTag;
use crate::worker::decode::Input;

/// After so many unclean takeovers in a row the window's tasks are suspects.
const SUSPECT_AFTER: u32 = 2;

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

pub struct PartitionState {
    pub partition: Partition,
    /// Tells this assignment from earlier ones of the same partition.
    pub slot: u32,
    pub phase: Phase,
    /// Delivers nothing for a while: others had nothing left because of all that waits here.
    pub paused: bool,
    /// The mark that the partition has been consumed is still to be written.
    pub unmarked: bool,
    completed: Completed,
    /// Where tickets count from.
    base: i64,
    /// Delivered and not handed out.
    waiting: VecDeque<Input>,
    /// Handed out and not done.
    outstanding: u64,
    /// How many offsets may be handed out and not committed as done.
    window: u64,
    /// A commit has said that nothing from here on is handed out.
    window_end: i64,
    /// Unclean takeovers in a row, and the window's end that has to be passed to forget them.
    unclean_takeovers: u32,
    unclean_until: i64,
    /// Something changed since the last commit.
    changed: bool,
    /// The map has taken most of its room: nothing new until it shrinks.
    full: bool,
}

/// How many takeovers from the now dead, counting this one. One that gave back late is not dead: nothing is added for it,
/// and nothing forgotten.
fn unclean_takeovers(committed: bool, metadata: Option<&Metadata>) -> u32 {
    match metadata {
        _ if !committed => 0,
        None => 1,
        Some(metadata) => match metadata.mark {
            Mark::Clean => 0,
            Mark::Late => metadata.unclean_takeovers,
            Mark::Open => metadata.unclean_takeovers.saturating_add(1),
        },
    }
}

/// What a commit, once acknowledged, makes true.
#[derive(Clone, Copy, Debug)]
pub struct CommitState {
    pub slot: u32,
    window_end: i64,
}

impl PartitionState {
    /// Takes up a partition where the last owner left it; `committed` is none for a partition never consumed.
    pub fn resume_from(partition: Partition, slot: u32, first: i64, committed: Option<&Committed>, window: u64) -> Self {
        let offset = committed.map_or(first, |committed| committed.offset);
        let metadata = committed.and_then(|committed| Metadata::decode(offset, &committed.metadata));
        let unclean_takeovers = unclean_takeovers(committed.is_some(), metadata.as_ref());
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
            unclean_takeovers,
            unclean_until,
            changed: true,
            full: false,
        }
    }

    /// A partition that is held but not worked on.
    pub fn refused(partition: Partition, slot: u32) -> Self {
        Self { phase: Phase::Refused, ..Self::resume_from(partition, slot, 0, None, 0) }
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

    /// Notes that the log begins here: what was not delivered before it never will be.
    pub fn skip_to(&mut self, offset: i64) {
        self.changed |= offset > self.completed.next();
        self.completed.skip_to(offset);
    }

    pub fn tag(&self, lane: usize, offset: i64) -> DeliveryTag {
        DeliveryTag::new(lane, self.slot, offset - self.base)
    }

    pub fn push(&mut self, work: Input) {
        self.waiting.push_back(work);
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// It would take records and has none.
    pub fn is_starving(&self) -> bool {
        self.waiting.is_empty() && matches!(self.phase, Phase::Starting | Phase::Active)
    }

    /// The next work that may be handed out.
    pub fn pop(&mut self) -> Option<Input> {
        let next = self.waiting.front()?.offset();
        if self.phase != Phase::Active || next >= self.window_end {
            return None;
        }
        self.outstanding += 1;
        let mut work = self.waiting.pop_front();
        if self.unclean_takeovers >= SUSPECT_AFTER
            && next < self.unclean_until
            && let Some(Input::Task(held)) = &mut work
        {
            held.suspect = true;
        }
        work
    }

    /// Asked back: what was not handed out is given up, what runs may finish until the deadline.
    pub fn revoke(&mut self, deadline: Instant) {
        self.waiting.clear();
        match &mut self.phase {
            // Asked twice: the first deadline holds.
            Phase::Refused | Phase::Revoking { .. } => {}
            phase => *phase = Phase::Revoking { deadline },
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

    pub fn done(&mut self, tag: DeliveryTag) {
        self.completed.complete(self.base + tag.sequence());
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

    pub fn unclean_takeovers(&self) -> u32 {
        self.unclean_takeovers
    }

    /// What was not in the log when it was taken over was under way nowhere.
    pub fn bound_suspects(&mut self, end: i64) {
        self.unclean_until = self.unclean_until.min(end);
    }

    /// Up to here tasks are suspects: one of them may have taken two workers down.
    pub fn suspects_until(&self) -> Option<i64> {
        (self.unclean_takeovers >= SUSPECT_AFTER).then_some(self.unclean_until)
    }

    /// The map holds so much that one stuck task keeps back everything behind it.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// A quarter of the window is handed out: a commit is due before its time, so that its answer comes before the rest is.
    pub fn wants_window(&self) -> bool {
        match self.phase {
            Phase::Starting => true,
            // Below zero behind a gap in the log: the next offset lies past the window.
            Phase::Active => !self.full && self.window_end - self.next_to_hand_out() < self.window as i64 * 3 / 4 && self.moved(),
            _ => false,
        }
    }

    pub fn needs_commit(&self) -> bool {
        self.changed && matches!(self.phase, Phase::Starting | Phase::Active)
    }

    /// The commit that says what is done and how far will be handed out next.
    pub fn commit(&mut self) -> (Commit, CommitState) {
        self.forget_crashes();
        let room = self.window.saturating_sub(self.outstanding) as i64;
        let window_end = self.window_end.max(self.next_to_hand_out() + room);
        let metadata = Metadata::encode(&self.completed, Mark::Open, window_end, self.unclean_takeovers);
        let span = self.completed.next() - self.completed.watermark();
        self.full = metadata.len() > FULL_METADATA_BYTES || span > MAX_SPAN;
        // What lies within the map, left open by an earlier owner, does not make it longer: only by doing it does it shrink.
        let window_end = if self.full { self.window_end.max(window_end.min(self.completed.end())) } else { window_end };
        self.changed = false;
        (self.commit_of(metadata), CommitState { slot: self.slot, window_end })
    }

    /// The last commit of an owner: clean when nothing is left running.
    pub fn final_commit(&mut self) -> Commit {
        self.forget_crashes();
        let mark = if self.outstanding == 0 { Mark::Clean } else { Mark::Late };
        let metadata = Metadata::encode(&self.completed, mark, self.window_end, self.unclean_takeovers);
        self.commit_of(metadata)
    }

    pub fn keep(&mut self, promise: CommitState) {
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
        self.waiting.front().map_or(self.completed.next(), Input::offset).max(self.completed.watermark())
    }

    /// A new commit would name a larger window than the last one did.
    fn moved(&self) -> bool {
        let room = self.window.saturating_sub(self.outstanding) as i64;
        self.next_to_hand_out() + room > self.window_end
    }

    fn forget_crashes(&mut self) {
        if self.completed.watermark() >= self.unclean_until {
            self.unclean_takeovers = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{OwnedHeaders, RecordRef};
    use crate::config::Order;
    use crate::worker::decode::Decoder;
    use crate::worker::memory_budget::MemoryBudget;

    const WINDOW: u64 = 10;

    fn resume_from(committed: Option<&Commit>) -> PartitionState {
        let committed = committed.map(|commit| Committed { offset: commit.offset, metadata: commit.metadata.clone() });
        let mut share = PartitionState::resume_from(Partition::new("tasks", 0), 1, 0, committed.as_ref(), WINDOW);
        share.unmarked = false;
        share
    }

    /// Delivers offsets up to `end`, commits, and hands out what the window allows.
    fn hand_out(share: &mut PartitionState, end: i64) -> (Commit, Vec<crate::worker::decode::InFlight>) {
        let memory = MemoryBudget::new(1, 1 << 20);
        let intake = Decoder { task_type: "t".into(), order: Order::None, max_params: 100, memory, lane: 0, by_key: false };
        for offset in share.read_to()..end {
            let headers = OwnedHeaders::new();
            let record = RecordRef {
                topic: "tasks",
                partition: 0,
                offset,
                timestamp_ms: 0,
                log_append_time: true,
                key: None,
                value: Some(b"1"),
                headers: &headers,
            };
            share.deliver(offset).then(|| share.push(intake.turn().read(&record, share.tag(0, offset))));
        }
        let (commit, promise) = share.commit();
        share.keep(promise);
        let work = std::iter::from_fn(|| share.pop());
        let held = work.map(|work| if let Input::Task(held) = work { *held } else { panic!("a task") }).collect();
        (commit, held)
    }

    fn quarantine(held: &[crate::worker::decode::InFlight]) -> Vec<i64> {
        held.iter().filter(|held| held.suspect).map(|held| held.task.position.offset).collect()
    }

    #[test]
    fn two_deaths_make_suspects_of_what_was_under_way() {
        let (first, _) = hand_out(&mut resume_from(None), 4);
        let mut second = resume_from(Some(&first));
        assert_eq!((second.unclean_takeovers(), second.suspects_until()), (1, None));
        let (commit, held) = hand_out(&mut second, 4);
        assert_eq!((held.len(), quarantine(&held)), (4, vec![]));
        let mut third = resume_from(Some(&commit));
        assert_eq!(third.unclean_takeovers(), 2);
        // Four were there when it was taken over; the others have come since.
        third.bound_suspects(4);
        let (commit, held) = hand_out(&mut third, 8);
        assert_eq!((held.len(), quarantine(&held)), (8, vec![0, 1, 2, 3]));
        assert!(Metadata::decode(commit.offset, &commit.metadata).is_some_and(|metadata| metadata.unclean_takeovers == 2));
        (0..4).for_each(|offset| third.done(DeliveryTag::new(0, 1, offset)));
        let (commit, _) = hand_out(&mut third, 12);
        let metadata = Metadata::decode(commit.offset, &commit.metadata).unwrap();
        assert_eq!((commit.offset, metadata.unclean_takeovers), (4, 0), "what was under way is done: forgotten");
    }

    #[test]
    fn a_partition_that_is_given_back_tells_of_no_death() {
        let (first, _) = hand_out(&mut resume_from(None), 4);
        let mut second = resume_from(Some(&first));
        hand_out(&mut second, 4);
        let late = second.final_commit();
        assert_eq!(Metadata::decode(late.offset, &late.metadata).unwrap().mark, Mark::Late);
        let mut third = resume_from(Some(&late));
        assert_eq!(third.unclean_takeovers(), 1, "neither one more nor forgotten");
        hand_out(&mut third, 4);
        (0..4).for_each(|offset| third.done(DeliveryTag::new(0, 1, offset)));
        assert_eq!(resume_from(Some(&third.final_commit())).unclean_takeovers(), 0);
    }

    #[test]
    fn what_cannot_be_read_counts_as_one_death() {
        let strange = Commit { partition: Partition::new("tasks", 0), offset: 7, metadata: "?".into() };
        assert_eq!(resume_from(Some(&strange)).unclean_takeovers(), 1);
    }
}
