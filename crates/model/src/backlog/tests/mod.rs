//! Random sequences of reading, scans, starts, ends, commits, takeovers and retention, compared with a plain list of
//! records.

mod flood;
mod large;
mod oracle;

use proptest::prelude::*;

use super::*;
use crate::offsets::{Mark, PendingRetries};
use oracle::{Oracle, Slot};

const TENANTS: u64 = 6;

pub(super) fn limits() -> BacklogLimits {
    BacklogLimits {
        classes: 9,
        scan_records: 24,
        scan_jump: 8,
        claimed_ahead: 12,
        bitmap_span: 60,
        map_bytes: 40,
        boundaries: 20,
        read_ahead: 400,
        ..BacklogLimits::new(24, 10)
    }
}

/// Answers of the rest of the worker, drawn by a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnView {
    seed: u64,
    blocked: Option<u64>,
    limit: usize,
    needs_work: bool,
}

impl DrawnView {
    pub(super) const OPEN: Self = Self { seed: 0, blocked: None, limit: usize::MAX, needs_work: true };

    fn drawn(number: u64) -> Self {
        let blocked = number.is_multiple_of(3).then_some(number / 3 % TENANTS);
        let limit = if number.is_multiple_of(5) { 3 } else { usize::MAX };
        Self { seed: number, blocked, limit, needs_work: number.is_multiple_of(2) }
    }
}

impl ClassView for DrawnView {
    fn used_by_priority(&self, priority: Priority) -> f64 {
        ((self.seed >> (2 * priority.index())) % 4) as f64
    }

    fn used_by_class(&self, class: TaskClass) -> f64 {
        (self.seed.wrapping_mul(class.tenant.wrapping_mul(2).wrapping_add(3)) % 7) as f64
    }

    fn is_blocked(&self, tenant: u64) -> bool {
        self.blocked == Some(tenant)
    }

    fn held_limit(&self, tenant: u64) -> usize {
        if tenant.is_multiple_of(2) { self.limit } else { usize::MAX }
    }

    fn needs_work(&self) -> bool {
        self.needs_work
    }
}

/// Worker, log and Kafka's copy of the last commit.
struct World {
    backlog: PartitionBacklog,
    oracle: Oracle,
    view: DrawnView,
    /// Commit in Kafka.
    kafka: Option<(i64, String)>,
    in_flight: Option<BacklogCommit>,
}

impl World {
    fn new() -> Self {
        let backlog = PartitionBacklog::resume(0, None, limits());
        Self { backlog, oracle: Oracle::default(), view: DrawnView::OPEN, kafka: None, in_flight: None }
    }

    fn step(&mut self, kind: u8, number: u16) {
        let many = usize::from(number) % 20;
        match kind {
            0 | 1 => (0..many).for_each(|n| self.oracle.append(u64::from(number) * 31 + 7 * n as u64)),
            2 | 3 => self.read(many),
            4 => self.scan(many),
            5 => self.take_over(many),
            6 => self.start(many),
            7 => self.complete(many, number),
            8 => self.commit(number),
            9 => self.view = DrawnView::drawn(u64::from(number)),
            10 => self.move_records(many, number),
            11 if number.is_multiple_of(4) => self.change_owner(number),
            12 if number.is_multiple_of(6) => self.retain(many),
            _ => {}
        }
        self.oracle.check(&self.backlog);
    }

    fn deliver(&mut self, offset: i64, by: fn(&mut PartitionBacklog, DeliveredRecord, &DrawnView) -> ReadDecision) {
        let Slot::Task(record) = self.oracle.log[offset as usize] else { return };
        let delivery = by(&mut self.backlog, record, &self.view);
        if delivery == ReadDecision::Hold {
            self.oracle.held(record, &self.backlog);
        }
    }

    fn read(&mut self, many: usize) {
        for _ in 0..many {
            if !self.backlog.may_read() {
                return;
            }
            match self.oracle.next_record(self.backlog.read_offset()) {
                Some(offset) => self.deliver(offset, PartitionBacklog::read),
                None => return self.backlog.read_to(self.oracle.log.len() as i64),
            }
        }
    }

    fn scan(&mut self, many: usize) {
        for _ in 0..many {
            self.backlog.scans().begin(&self.view);
            let Some(position) = self.backlog.scans().offset() else { return };
            match self.oracle.next_record(position) {
                Some(offset) => self.deliver(offset, |backlog, record, view| backlog.scans().record(record, view)),
                None => self.backlog.scans().passed(self.oracle.log.len() as i64),
            }
        }
    }

    fn take_over(&mut self, many: usize) {
        for _ in 0..many {
            let Some(position) = self.backlog.scans().takeover_offset() else { return };
            match self.oracle.next_record(position) {
                Some(offset) => self.deliver(offset, |backlog, record, view| backlog.scans().take_over(record, view)),
                None => self.backlog.scans().takeover_passed(self.oracle.log.len() as i64),
            }
        }
    }

    /// Starts waiting records, each class in the order of the log.
    fn start(&mut self, many: usize) {
        for offset in self.oracle.waiting().into_iter().take(many) {
            if self.backlog.start(offset) {
                self.oracle.start(offset, self.kafka.as_ref());
            }
        }
    }

    fn complete(&mut self, many: usize, number: u16) {
        for n in 0..many {
            let running = self.oracle.running();
            if running.is_empty() {
                return;
            }
            let offset = running[(usize::from(number) * 7 + n * 13) % running.len()];
            self.backlog.complete(offset);
            self.oracle.complete(offset);
        }
    }

    fn commit(&mut self, number: u16) {
        if let Some(commit) = self.in_flight.take() {
            // An answer that comes late; the commit has arrived.
            return self.backlog.commit_acknowledged(commit.id);
        }
        let commit = self.backlog.commit(Mark::Open, 0, &PendingRetries::default());
        assert!(commit.metadata.len() <= crate::offsets::MAX_METADATA_BYTES);
        if !number.is_multiple_of(5) {
            self.kafka = Some((commit.offset, commit.metadata.clone()));
        }
        match number % 5 {
            0 | 1 => self.backlog.commit_failed(commit.id),
            2 => self.in_flight = Some(commit),
            _ => self.backlog.commit_acknowledged(commit.id),
        }
    }

    fn move_records(&mut self, many: usize, number: u16) {
        let runs = if number.is_multiple_of(2) {
            self.backlog.moves().due(many)
        } else {
            self.backlog.moves().oldest(many / 4)
        };
        for offset in runs.into_iter().flatten() {
            if let Slot::Task(record) = self.oracle.log[offset as usize]
                && self.backlog.moves().begin(record)
            {
                if number.is_multiple_of(7) {
                    self.backlog.moves().failed(offset);
                } else {
                    self.oracle.append_again(offset);
                    self.backlog.moves().moved(offset);
                }
            }
        }
        self.backlog.moves().set_possible(!number.is_multiple_of(11));
    }

    /// A crash, or a clean stop after which nothing is repeated.
    fn change_owner(&mut self, number: u16) {
        if number.is_multiple_of(8) {
            self.oracle.running().into_iter().for_each(|offset| {
                self.backlog.complete(offset);
                self.oracle.complete(offset);
            });
            let commit = self.backlog.commit(Mark::Clean, 0, &PendingRetries::default());
            self.oracle.check_clean_stop(commit.offset, &commit.metadata);
            self.kafka = Some((commit.offset, commit.metadata));
        } else {
            self.oracle.check_crash(self.kafka.as_ref());
        }
        let metadata = self.kafka.as_ref().map(|(offset, text)| (*offset, Metadata::decode(*offset, text)));
        let (offset, metadata) = metadata.unwrap_or((0, None));
        self.backlog = PartitionBacklog::resume(offset, metadata.as_ref(), limits());
        self.backlog.log_starts_at(self.oracle.low);
        self.oracle.new_owner(offset, metadata.as_ref());
        self.in_flight = None;
    }

    fn retain(&mut self, many: usize) {
        self.oracle.remove_before((self.oracle.low + many as i64).min(self.oracle.log.len() as i64));
        self.backlog.log_starts_at(self.oracle.low);
    }

    /// Processes all that is left; what is never held has been forgotten.
    fn finish(&mut self) {
        self.view = DrawnView::OPEN;
        let end = self.oracle.log.len() as i64;
        for _ in 0..4_000 {
            if self.backlog.watermark() >= end {
                return self.oracle.check_all_ended();
            }
            self.read(20);
            self.scan(40);
            self.take_over(40);
            self.start(100);
            self.complete(100, 0);
            self.in_flight = None;
            self.commit(3);
            self.oracle.check(&self.backlog);
        }
        panic!(
            "records are forgotten: the watermark {} stays below {end}: {:?}",
            self.backlog.watermark(),
            self.backlog
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Each record starts once per owner and within claims, classes keep their order, bounds hold, and nothing is
    /// forgotten.
    #[test]
    fn records_start_once_in_the_order_of_their_class(steps in prop::collection::vec((0u8..13, any::<u16>()), 1..250)) {
        let mut world = World::new();
        steps.into_iter().for_each(|(kind, number)| world.step(kind, number));
        world.finish();
    }
}

fn record(offset: i64, priority: Priority, tenant: u64) -> DeliveredRecord {
    DeliveredRecord { offset, class: TaskClass { priority, tenant }, is_ending: false }
}

/// Backlog after reading records of tenant 1, of which a few are held, and the offsets of these.
fn flooded(records: i64) -> (PartitionBacklog, Vec<i64>) {
    let mut backlog = PartitionBacklog::resume(0, None, BacklogLimits::new(64, 100));
    let mut read = |offset| backlog.read(record(offset, Priority::Normal, 1), &DrawnView::OPEN) == ReadDecision::Hold;
    let held = (0..records).filter(|offset| read(*offset)).collect();
    (backlog, held)
}

#[test]
fn later_task_of_another_class_is_held_beside_a_flood() {
    let (mut backlog, held) = flooded(1_000);
    assert_eq!(held, (0..16).collect::<Vec<_>>(), "a quarter of the room");
    assert_eq!(backlog.read(record(1_000, Priority::High, 2), &DrawnView::OPEN), ReadDecision::Hold);
    assert_eq!(backlog.passed_over(record(0, Priority::Normal, 1).class), 984);
}

#[test]
fn nothing_starts_outside_of_acknowledged_claims() {
    let (mut backlog, _) = flooded(20);
    assert!(!backlog.start(0), "nothing is committed yet");
    let commit = backlog.commit(Mark::Open, 0, &PendingRetries::default());
    assert!(!backlog.start(0), "the commit has no answer");
    backlog.commit_acknowledged(commit.id);
    assert!(backlog.start(0) && !backlog.start(0), "once");
    assert_eq!(backlog.read(record(10_020, Priority::Normal, 2), &DrawnView::OPEN), ReadDecision::Hold);
    assert!(!backlog.start(10_020), "beyond the claims, which end 10,000 offsets after the first 20 records");
}

/// A commit that Kafka may have applied or not: only what both it and the one before claim may start.
#[test]
fn commit_without_an_answer_restricts_starts() {
    let (mut backlog, _) = flooded(20);
    let first = backlog.commit(Mark::Open, 0, &PendingRetries::default());
    backlog.commit_acknowledged(first.id);
    backlog.read_to(15_000);
    let lost = backlog.commit(Mark::Open, 0, &PendingRetries::default());
    backlog.commit_failed(lost.id);
    assert_eq!(backlog.read(record(15_000, Priority::Normal, 2), &DrawnView::OPEN), ReadDecision::Hold);
    assert!(!backlog.may_start(15_000) && backlog.may_start(3));
    let next = backlog.commit(Mark::Open, 0, &PendingRetries::default());
    backlog.commit_acknowledged(next.id);
    assert!(backlog.may_start(15_000));
}

#[test]
fn high_tasks_keep_a_part_of_each_half() {
    let mut backlog = PartitionBacklog::resume(0, None, BacklogLimits::new(64, 100));
    let mut held = [0; 3];
    for offset in 0..300 {
        // The low ones come first, then the normal ones, each of a tenant of its own.
        let priority = Priority::ALL[(offset / 100) as usize];
        let delivery = backlog.read(record(offset, priority, offset as u64), &DrawnView::OPEN);
        held[priority.index()] += usize::from(delivery == ReadDecision::Hold);
    }
    assert_eq!(held, [24, 4, 4], "three quarters, an eighth and the last eighth of 32");
}

#[test]
fn cancelled_records_are_held_without_room() {
    let (mut backlog, _) = flooded(100);
    for offset in 100..150 {
        let ending = DeliveredRecord { is_ending: true, ..record(offset, Priority::Low, 1) };
        assert_eq!(backlog.read(ending, &DrawnView::OPEN), ReadDecision::Hold);
        backlog.complete(offset);
    }
    assert_eq!((backlog.passed_over(record(0, Priority::Normal, 1).class), backlog.watermark()), (84, 0));
}

/// The log loses records that were passed over: a scan finds none of them, which is no error of the counts.
#[test]
fn records_removed_by_retention_are_not_counted_for_ever() {
    let (mut backlog, held) = flooded(100);
    held.iter().for_each(|offset| backlog.complete(*offset));
    backlog.log_starts_at(100);
    assert_eq!(backlog.scans().begin(&DrawnView::OPEN), Some(16));
    backlog.scans().passed(100);
    assert_eq!(
        (backlog.passed_over(record(0, Priority::Normal, 1).class), backlog.watermark(), backlog.recounts()),
        (0, 100, 0)
    );
}

/// Planted defect: a record that is lost from its class makes the scan count again, and it is found.
#[test]
fn records_behind_a_wrong_count_are_counted_again() {
    let (mut backlog, held) = flooded(40);
    held.iter().for_each(|offset| backlog.complete(*offset));
    let class = record(0, Priority::Normal, 1).class;
    backlog.classes.update(class, |state| state.hint = 30);
    backlog.scans().begin(&DrawnView::OPEN).unwrap();
    for offset in 30..40 {
        backlog.scans().record(record(offset, Priority::Normal, 1), &DrawnView::OPEN);
    }
    assert_eq!((backlog.recounts(), backlog.scans().takeover_offset()), (1, Some(16)));
    for offset in 16..30 {
        backlog.scans().take_over(record(offset, Priority::Normal, 1), &DrawnView::OPEN);
    }
    assert!(backlog.held.contains_key(&16));
}
