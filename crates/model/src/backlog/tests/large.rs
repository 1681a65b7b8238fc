//! The limits of a real partition: long logs, maps at their bounds.

use super::*;
use crate::offsets::MAX_METADATA_BYTES;

const ROOM: usize = 512;
const SLOTS: usize = 64;

/// Partition with a flood of tenant 1 and light tasks of others between its records.
struct Flood {
    backlog: PartitionBacklog,
    log: Vec<TaskClass>,
    running: Vec<i64>,
    rng: fastrand::Rng,
    moved: usize,
}

impl Flood {
    fn new(records: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut class = || {
            let is_light = rng.u8(..) < 12;
            let tenant = if is_light { 2 + rng.u64(..40) } else { 1 };
            TaskClass { priority: Priority::Normal, tenant }
        };
        let log = (0..records).map(|_| class()).collect();
        let backlog = PartitionBacklog::resume(0, None, BacklogLimits::new(ROOM, 1_000));
        Self { backlog, log, running: Vec::new(), rng, moved: 0 }
    }

    fn record(&self, offset: i64) -> DeliveredRecord {
        DeliveredRecord { offset, class: self.log[offset as usize], is_ending: false }
    }

    /// Reads on, scans, ends a few attempts, commits, and starts what may start.
    fn turn(&mut self) {
        for _ in 0..512 {
            let offset = self.backlog.read_offset();
            if offset >= self.log.len() as i64 || !self.backlog.may_read() {
                break;
            }
            self.backlog.read(self.record(offset), &DrawnView::OPEN);
        }
        self.backlog.scans().begin(&DrawnView::OPEN);
        while let Some(offset) = self.backlog.scans().offset() {
            let record = self.record(offset);
            self.backlog.scans().record(record, &DrawnView::OPEN);
        }
        self.rng.shuffle(&mut self.running);
        let ends = self.running.split_off(self.running.len() / 2);
        ends.into_iter().for_each(|offset| self.backlog.complete(offset));
        let commit = self.backlog.commit(Mark::Open, 0, &PendingRetries::default());
        assert!(commit.metadata.len() <= MAX_METADATA_BYTES);
        self.backlog.commit_acknowledged(commit.id);
        let waiting = self.backlog.held.iter().filter(|(_, record)| record.phase == HeldPhase::Waiting);
        let mut waiting: Vec<i64> = waiting.map(|(offset, _)| *offset).collect();
        self.rng.shuffle(&mut waiting);
        for offset in waiting {
            if self.running.len() < SLOTS && self.backlog.start(offset) {
                self.running.push(offset);
            }
        }
    }

    fn append_again(&mut self) {
        for offset in self.backlog.moves().due(1_000).into_iter().flatten() {
            let record = self.record(offset);
            if self.backlog.moves().begin(record) {
                self.log.push(self.log[offset as usize]);
                self.backlog.moves().moved(offset);
                self.moved += 1;
            }
        }
    }

    /// Ends everything, and returns whether the last commit names all of it.
    fn stops_cleanly(&mut self) -> bool {
        self.running.drain(..).for_each(|offset| self.backlog.complete(offset));
        let commit = self.backlog.commit(Mark::Clean, 0, &PendingRetries::default());
        let read = CompletedOffsets::of_commit(commit.offset, &commit.metadata);
        (commit.offset..self.backlog.read_offset())
            .all(|offset| read.is_done(offset) == self.backlog.completed.is_done(offset))
    }
}

/// Waiting records start in any order, so that the map has many boundaries. Whenever the worker stops, its commit is
/// whole.
#[test]
fn clean_stop_repeats_nothing_with_a_map_at_its_bounds() {
    for (seed, moves) in [(1, true), (2, false)] {
        let mut flood = Flood::new(40_000, seed);
        let mut most = 0;
        for turn in 0..250 {
            flood.turn();
            most = most.max(flood.backlog.completed.map_size().boundaries);
            if moves {
                flood.append_again();
            }
            if turn % 20 == 0 {
                assert!(flood.stops_cleanly(), "in turn {turn}, with moves: {moves}");
            }
        }
        assert!(most > 700, "{most} boundaries do not test the bounds");
        assert_eq!(moves, flood.moved > 0);
        assert!(flood.backlog.watermark() > 0, "the partition moves on: {}", flood.backlog.watermark());
    }
}

#[test]
fn moves_leave_seven_tenths_of_the_boundaries() {
    let mut backlog = PartitionBacklog::resume(0, None, BacklogLimits::new(ROOM, 1_000));
    let class = TaskClass { priority: Priority::Low, tenant: 1 };
    let ending = |offset: i64| offset % 20 == 7;
    for offset in 0..20_000 {
        backlog.read(DeliveredRecord { offset, class, is_ending: ending(offset) }, &DrawnView::OPEN);
        if ending(offset) {
            backlog.complete(offset);
        }
    }
    assert_eq!(backlog.completed.map_size().boundaries, 2_000);
    let runs = backlog.moves().due(usize::MAX >> 1);
    for offset in runs.into_iter().flatten() {
        assert!(backlog.moves().begin(DeliveredRecord { offset, class, is_ending: false }));
        backlog.moves().moved(offset);
    }
    let after = backlog.completed.map_size();
    assert!((600..=700).contains(&after.boundaries), "{after:?}");
    assert!(backlog.moves().due(1_000).is_empty());
}

/// The ends of all started attempts leave a map that fits into a commit, so that a clean stop repeats nothing; reading on stops at a
/// full one.
#[test]
fn map_has_room_for_the_ends_of_all_started_attempts() {
    let limits = BacklogLimits { room: 4_000, window: 10_000, read_ahead: 10_000, ..limits() };
    let mut backlog = PartitionBacklog::resume(0, None, limits);
    let class = TaskClass { priority: Priority::Normal, tenant: 1 };
    for offset in 0..600 {
        let record = DeliveredRecord { offset, class, is_ending: false };
        assert_eq!(backlog.read(record, &DrawnView::OPEN), ReadDecision::Hold);
    }
    let commit = backlog.commit(Mark::Open, 0, &PendingRetries::default());
    backlog.commit_acknowledged(commit.id);
    // Far from the oldest records, which start whatever the room.
    let started: Vec<i64> = (300..600).step_by(3).filter(|offset| backlog.start(*offset)).collect();
    assert!((1..100).contains(&started.len()), "{}", started.len());
    assert!(!backlog.may_read());
    started.iter().for_each(|offset| backlog.complete(*offset));
    assert!(backlog.completed.map_size().bytes <= limits.map_bytes);
}
