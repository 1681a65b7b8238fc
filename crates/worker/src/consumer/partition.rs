//! State of one assigned partition: delivered, handed-out and completed offsets, and the window of the next ones.
//!
//! ```text
//!      watermark         next to hand out       window end        next offset
//!  ────────┼─────────────────────┼───────────────────┼──────────────────┼────────▶ offsets
//!  complete  running or complete   waiting, may start  waiting, may not   not delivered
//! ```
//!
//! Records enter with `deliver` and `push`, leave with `pop`, and return with `complete` or `release`. The phase is
//! `Starting` until the first commit of this owner is acknowledged, then `Active`, and `Revoking` while running tasks
//! may finish; `Refused` if an operator has to choose the start offset. With few records the window ends beyond the
//! next offset.
//!
//! Invariant: each input that is handed out returns exactly once. If one did not, the partition would never drain and
//! each rebalance would wait for its deadline; if one returned twice, the partition would be released as clean while a
//! task runs.
//!
//! Read next: `crates/model/src/offsets/mod.rs` (the map of completed offsets), then `commit.rs`.

use std::collections::VecDeque;

use kafleet_broker::{Commit, CommittedOffset, Partition};
use kafleet_model::offsets::{CompletedOffsets, MAX_SPAN, Mark, Metadata, PendingRetries};
use tokio::time::Instant;

use super::crash_history::CrashHistory;
use super::retry_log::RetryLog;
use crate::completions::{DeliveryTag, RecordedRetry};
use crate::decode::{Input, Suspect};

/// Phase of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Hands out nothing until the first commit has announced the window.
    Starting,
    Active,
    /// Revoked by the group: running tasks may finish until the deadline.
    Revoking {
        deadline: Instant,
    },
    /// Not processed: an operator has to choose the start offset.
    Refused,
}

impl Phase {
    /// Returns whether records are delivered in this phase.
    pub(crate) fn is_reading(self) -> bool {
        matches!(self, Self::Starting | Self::Active)
    }
}

/// Offsets that may be handed out. A commit records the end before it is used, which shows a successor the offsets
/// that may have been in flight.
pub(crate) struct Window {
    /// Maximum number of offsets that are handed out and not complete.
    pub size: u64,
    /// First offset that may not be handed out yet.
    end: i64,
}

impl Window {
    /// Number of further offsets that may be handed out.
    fn room(&self, outstanding: u64) -> i64 {
        self.size.saturating_sub(outstanding) as i64
    }
}

pub(crate) struct PartitionState {
    pub partition: Partition,
    /// Distinguishes this assignment from earlier assignments of the same partition.
    pub assignment_id: u32,
    pub phase: Phase,
    /// The client has paused this partition, because its backlog starved others.
    pub paused: bool,
    /// The record that marks the partition as consumed is still to be written.
    pub unmarked: bool,
    /// Crashes of earlier owners.
    pub crashes: CrashHistory,
    pub window: Window,
    completed: CompletedOffsets,
    /// Offset that the sequence numbers of delivery tags are relative to.
    base: i64,
    /// Delivered and not handed out.
    waiting: VecDeque<Input>,
    /// Number of inputs handed out and not complete.
    outstanding: u64,
    /// Something changed since the last commit.
    changed: bool,
    /// The metadata of the last commit was nearly full: nothing new is handed out until it shrinks.
    full: bool,
    pub retries: RetryLog,
}

/// State to apply when the commit is acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitState {
    pub assignment_id: u32,
    window_end: i64,
    /// Sequence number of the last retry that is new in the commit; 0: there is none.
    pub recorded: u64,
}

impl PartitionState {
    /// Resumes a partition from its last commit, or from `first` if there is none. It counts as marked as consumed.
    pub(crate) fn resume_from(
        partition: Partition,
        assignment_id: u32,
        first: i64,
        committed: Option<&CommittedOffset>,
        window: u64,
    ) -> Self {
        let offset = committed.map_or(first, |committed| committed.offset);
        let metadata = committed.and_then(|committed| Metadata::decode(offset, &committed.metadata));
        let crashes = CrashHistory::at_takeover(committed.is_some(), offset, metadata.as_ref());
        let none = || (CompletedOffsets::starting_at(offset), PendingRetries::default());
        let (completed, retries) = metadata.map_or_else(none, |metadata| (metadata.completed, metadata.retries));
        Self {
            partition,
            assignment_id,
            phase: Phase::Starting,
            paused: false,
            unmarked: false,
            crashes,
            base: completed.watermark(),
            completed,
            waiting: VecDeque::new(),
            outstanding: 0,
            window: Window { size: window, end: 0 },
            changed: true,
            full: false,
            retries: RetryLog::resume_from(retries),
        }
    }

    /// Creates the state of a partition that is assigned but not processed.
    pub(crate) fn refused(partition: Partition, assignment_id: u32) -> Self {
        Self { phase: Phase::Refused, ..Self::resume_from(partition, assignment_id, 0, None, 0) }
    }

    /// Registers a delivered record. Returns false if it is already complete, or if the partition is not read.
    pub(crate) fn deliver(&mut self, offset: i64) -> bool {
        let reading = self.phase.is_reading();
        let fresh = reading && self.completed.deliver(offset);
        self.changed |= !fresh && reading;
        fresh
    }

    /// Registers that nothing before `offset` will be delivered any more.
    pub(crate) fn skip_to(&mut self, offset: i64) {
        self.changed |= offset > self.completed.next();
        self.completed.skip_to(offset);
    }

    pub(crate) fn tag(&self, type_index: usize, offset: i64) -> DeliveryTag {
        DeliveryTag::new(type_index, self.assignment_id, offset - self.base)
    }

    pub(crate) fn push(&mut self, mut input: Input) {
        self.retries.resume(&mut input);
        self.waiting.push_back(input);
    }

    /// Number of inputs delivered and not handed out.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the partition is read and has no inputs left.
    pub(crate) fn is_starving(&self) -> bool {
        self.waiting.is_empty() && self.phase.is_reading()
    }

    /// Takes the next input that may be handed out.
    pub(crate) fn pop(&mut self) -> Option<Input> {
        let next = self.waiting.front()?.offset();
        if self.phase != Phase::Active || next >= self.window.end {
            return None;
        }
        self.outstanding += 1;
        let mut work = self.waiting.pop_front();
        if self.crashes.is_suspect(next)
            && let Some(Input::Task(in_flight)) = &mut work
        {
            in_flight.suspect = Some(Suspect::default());
        }
        work
    }

    /// Starts to drain: inputs that were not handed out are dropped, running tasks may finish until the deadline.
    pub(crate) fn revoke(&mut self, deadline: Instant) {
        self.waiting.clear();
        match &mut self.phase {
            // Revoked twice: the first deadline holds.
            Phase::Refused | Phase::Revoking { .. } => {}
            phase => *phase = Phase::Revoking { deadline },
        }
    }

    /// Returns whether the partition can be released: it is drained, its deadline has passed, or it was refused.
    pub(crate) fn is_drained(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Revoking { deadline } => self.outstanding == 0 || now >= deadline,
            Phase::Refused => true,
            _ => false,
        }
    }

    /// Registers that the record which marks the partition as consumed is written.
    pub(crate) fn mark_written(&mut self) {
        self.unmarked = false;
        if self.phase == Phase::Starting && self.window.end > self.watermark() {
            self.phase = Phase::Active;
        }
    }

    /// Registers an input as complete.
    pub(crate) fn complete(&mut self, tag: DeliveryTag) {
        let offset = tag.offset(self.base, self.completed.watermark());
        self.completed.complete(offset);
        self.retries.complete(offset);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.changed = true;
    }

    /// Records what a task has used, for the next commits.
    pub(crate) fn record(&mut self, recorded: &RecordedRetry) {
        self.retries.record(recorded.tag.offset(self.base, self.completed.watermark()), recorded);
        self.changed = true;
    }

    /// Registers an input that was handed out as given up; it stays incomplete.
    pub(crate) fn release(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Number of inputs handed out and not complete.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Offset after the last delivered record.
    pub(crate) fn next_offset(&self) -> i64 {
        self.completed.next()
    }

    /// Offset below which everything is complete.
    pub(crate) fn watermark(&self) -> i64 {
        self.completed.watermark()
    }

    /// Returns whether the metadata of a commit is nearly full, so that one stuck task holds back everything after
    /// it.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Returns whether a commit is due ahead of the interval: a quarter of the window is used, and the
    /// acknowledgement should arrive before the rest is.
    pub(crate) fn needs_window(&self) -> bool {
        let next = next_to_hand_out(self);
        match self.phase {
            Phase::Starting => true,
            // Negative after a gap in the log, when the next offset is already past the window.
            Phase::Active => {
                !self.full
                    && self.window.end - next < self.window.size as i64 * 3 / 4
                    && next + self.window.room(self.outstanding) > self.window.end
            }
            _ => false,
        }
    }

    /// Returns whether something is to be committed.
    pub(crate) fn needs_commit(&self) -> bool {
        self.changed && self.phase.is_reading()
    }

    /// Creates a commit of the completed offsets and the end of the next window.
    pub(crate) fn commit(&mut self) -> (Commit, CommitState) {
        self.crashes.clear_behind(self.completed.watermark());
        let window_end = self.window.end.max(next_to_hand_out(self) + self.window.room(self.outstanding));
        let metadata = encode(self, Mark::Open, window_end);
        let span = self.completed.next() - self.completed.watermark();
        self.full = Metadata::is_nearly_full(&metadata) || span > MAX_SPAN;
        // Offsets within the map that an earlier owner left open do not extend it; completing them shrinks it.
        let window_end = if self.full { self.window.end.max(window_end.min(self.completed.end())) } else { window_end };
        self.changed = false;
        let next = CommitState { assignment_id: self.assignment_id, window_end, recorded: self.retries.begin_commit() };
        (commit_with(&self.partition, &self.completed, metadata), next)
    }

    /// Creates the last commit of this owner: clean if nothing is left running, else late.
    pub(crate) fn final_commit(&mut self) -> Commit {
        self.crashes.clear_behind(self.completed.watermark());
        let mark = if self.outstanding == 0 { Mark::Clean } else { Mark::Late };
        let metadata = encode(self, mark, self.window.end);
        self.retries.report_forgotten(&self.partition, self.completed.watermark(), &metadata);
        commit_with(&self.partition, &self.completed, metadata)
    }

    /// Applies an acknowledged commit.
    pub(crate) fn apply_commit(&mut self, state: CommitState) {
        self.window.end = self.window.end.max(state.window_end);
        if self.phase == Phase::Starting && !self.unmarked {
            self.phase = Phase::Active;
        }
    }

    /// Registers a failed commit, which has to be repeated.
    pub(crate) fn commit_failed(&mut self) {
        self.changed = true;
        self.retries.commit_failed();
    }
}

fn next_to_hand_out(state: &PartitionState) -> i64 {
    let next = state.completed.next();
    state.waiting.front().map_or(next, Input::offset).max(state.completed.watermark())
}

/// Encodes the metadata of a commit.
fn encode(state: &mut PartitionState, mark: Mark, window_end: i64) -> String {
    state.retries.complete_below(state.completed.watermark());
    let takeovers = state.crashes.unclean_takeovers();
    Metadata::encode(&state.completed, mark, window_end, takeovers, &state.retries.pending)
}

fn commit_with(partition: &Partition, completed: &CompletedOffsets, metadata: String) -> Commit {
    Commit { partition: partition.clone(), offset: completed.watermark(), metadata }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoder, InFlight};
    use kafleet_config::Order;

    const WINDOW: u64 = 10;

    fn resume_from(committed: Option<&Commit>) -> PartitionState {
        let committed =
            committed.map(|commit| CommittedOffset { offset: commit.offset, metadata: commit.metadata.clone() });
        let mut state = PartitionState::resume_from(Partition::new("tasks", 0), 1, 0, committed.as_ref(), WINDOW);
        state.unmarked = false;
        state
    }

    /// Delivers offsets up to `end`, commits, and hands out the tasks within the window.
    fn hand_out(state: &mut PartitionState, end: i64) -> (Commit, Vec<InFlight>) {
        let decoder = Decoder::of_order(Order::None);
        for offset in state.next_offset()..end {
            if state.deliver(offset) {
                state.push(decoder.task_at(offset, state.tag(0, offset)));
            }
        }
        let (commit, next) = state.commit();
        state.apply_commit(next);
        let inputs = std::iter::from_fn(|| state.pop());
        let tasks =
            inputs.map(|input| if let Input::Task(task) = input { *task } else { panic!("not a task") }).collect();
        (commit, tasks)
    }

    fn suspects(tasks: &[InFlight]) -> Vec<i64> {
        tasks.iter().filter(|task| task.suspect.is_some()).map(|task| task.record.position.offset).collect()
    }

    #[test]
    fn two_crashes_make_suspects_of_tasks_under_way() {
        let (first, _) = hand_out(&mut resume_from(None), 4);
        let mut second = resume_from(Some(&first));
        assert_eq!((second.crashes.unclean_takeovers(), second.crashes.suspects_until()), (1, None));
        let (commit, tasks) = hand_out(&mut second, 4);
        assert_eq!((tasks.len(), suspects(&tasks)), (4, vec![]));
        let mut third = resume_from(Some(&commit));
        assert_eq!(third.crashes.unclean_takeovers(), 2);
        // Four were in the log at the takeover; the others were appended later.
        third.crashes.limit_to(4);
        let (commit, tasks) = hand_out(&mut third, 8);
        assert_eq!((tasks.len(), suspects(&tasks)), (8, vec![0, 1, 2, 3]));
        assert!(
            Metadata::decode(commit.offset, &commit.metadata).is_some_and(|metadata| metadata.unclean_takeovers == 2)
        );
        (0..4).for_each(|offset| third.complete(DeliveryTag::new(0, 1, offset)));
        let (commit, _) = hand_out(&mut third, 12);
        let metadata = Metadata::decode(commit.offset, &commit.metadata).unwrap();
        assert_eq!((commit.offset, metadata.unclean_takeovers), (4, 0), "cleared once the suspects are complete");
    }

    #[test]
    fn partition_given_back_late_counts_as_no_crash() {
        let (first, _) = hand_out(&mut resume_from(None), 4);
        let mut second = resume_from(Some(&first));
        hand_out(&mut second, 4);
        let late = second.final_commit();
        assert_eq!(Metadata::decode(late.offset, &late.metadata).unwrap().mark, Mark::Late);
        let mut third = resume_from(Some(&late));
        assert_eq!(third.crashes.unclean_takeovers(), 1, "neither increased nor cleared");
        hand_out(&mut third, 4);
        (0..4).for_each(|offset| third.complete(DeliveryTag::new(0, 1, offset)));
        assert_eq!(resume_from(Some(&third.final_commit())).crashes.unclean_takeovers(), 0);
    }

    /// The earlier owner passed over records: only what it had announced may have caused its crash.
    #[test]
    fn suspects_after_an_owner_that_passed_over_are_its_claims() {
        // Complete: 3. In flight: 1, and 4 to 6.
        let committed =
            |metadata: &str| Commit { partition: Partition::new("tasks", 0), offset: 0, metadata: metadata.into() };
        let mut owner = resume_from(Some(&committed("kf2 open 1 6 r:AQECAw r:AwE")));
        assert_eq!((owner.crashes.unclean_takeovers(), owner.crashes.suspects_until()), (2, Some(7)));
        let (commit, tasks) = hand_out(&mut owner, 9);
        let offsets: Vec<i64> = tasks.iter().map(|task| task.record.position.offset).collect();
        assert_eq!((offsets, suspects(&tasks)), (vec![0, 1, 2, 4, 5, 6, 7, 8], vec![1, 4, 5, 6]));
        let metadata = Metadata::decode(commit.offset, &commit.metadata).unwrap();
        assert_eq!(
            (metadata.unclean_takeovers, metadata.pass_over),
            (2, None),
            "this owner keeps the order of the log"
        );
        let clean = resume_from(Some(&committed("kf2 clean 0 6 - r:AwE")));
        assert_eq!(clean.crashes.unclean_takeovers(), 0);
    }

    #[test]
    fn unreadable_metadata_counts_as_one_crash() {
        let unreadable = Commit { partition: Partition::new("tasks", 0), offset: 7, metadata: "?".into() };
        assert_eq!(resume_from(Some(&unreadable)).crashes.unclean_takeovers(), 1);
    }
}
