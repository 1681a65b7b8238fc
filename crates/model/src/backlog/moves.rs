//! Records that are appended again at the end of their partition, so that the map of completed offsets stays small.

use std::ops::Range;

use super::scan::{pass_over_behind, take_passed_over};
use super::starts::has_map_room;
use super::{DeliveredRecord, HeldPhase, HeldRecord, PartitionBacklog};

/// Part of the limits of the map that is left after records have been appended again.
const AFTER_MOVES: f64 = 0.7;
/// Number of complete offsets above the watermark from which on the oldest open records are appended again.
const MAX_DONE_ABOVE: u64 = 1_000_000;

/// Records of a partition that are appended again.
#[derive(Debug)]
pub struct Moves<'a> {
    pub(super) backlog: &'a mut PartitionBacklog,
}

impl Moves<'_> {
    /// Runs of open offsets whose records are to be appended again, of at most `budget` offsets together: the shortest
    /// ones that are not held, while the map is too large for a commit; the oldest ones, while more than a million
    /// offsets above them are complete and fewer are open.
    pub fn due(&mut self, budget: usize) -> Vec<Range<i64>> {
        let size = self.backlog.starts.measure(&self.backlog.completed);
        let is_long = self.backlog.read - self.backlog.watermark() > self.backlog.limits.bitmap_span * 15 / 16;
        if is_long && (size.boundaries > self.backlog.limits.boundaries || !has_map_room(self.backlog)) {
            let by_bytes = size.boundaries as f64 * self.backlog.limits.map_bytes as f64 / size.bytes.max(1) as f64;
            let left = AFTER_MOVES * by_bytes.min(self.backlog.limits.boundaries as f64);
            let runs = (size.boundaries.saturating_sub(left as usize)).div_ceil(2);
            return within(self.shortest_runs(runs), budget);
        }
        if self.backlog.completed.done_above()
            > MAX_DONE_ABOVE.max(self.backlog.completed.open_below(self.backlog.read))
        {
            return self.oldest(budget);
        }
        Vec::new()
    }

    /// Oldest open records that are not held, of at most `budget` offsets: for those that retention is about to remove.
    pub fn oldest(&self, budget: usize) -> Vec<Range<i64>> {
        within(self.movable_runs(self.backlog.read).take(budget.max(1)), budget)
    }

    /// Runs of open offsets below `end` of which nothing is held, and which have been counted.
    fn movable_runs(&self, end: i64) -> impl Iterator<Item = Range<i64>> {
        let unscanned = self.backlog.takeover.clone().unwrap_or(self.backlog.read..self.backlog.read);
        let parts = [self.backlog.watermark()..unscanned.start.min(end), unscanned.end..end];
        parts.into_iter().flat_map(move |part| {
            let open = self.backlog.completed.runs(part.start, part.end).filter(|(_, is_done)| !is_done);
            open.map(|(run, _)| run).filter(move |run| self.backlog.held.range(run.clone()).next().is_none())
        })
    }

    fn shortest_runs(&self, number: usize) -> Vec<Range<i64>> {
        // The open offsets behind the last complete one are no run of the map.
        let mut runs: Vec<Range<i64>> =
            self.movable_runs(self.backlog.completed.end().min(self.backlog.read)).collect();
        runs.sort_by_key(|run| run.end - run.start);
        runs.truncate(number);
        runs
    }

    /// Registers that a record is being appended again. Returns false if it must not be: it is complete, held, or not
    /// counted yet.
    pub fn begin(&mut self, record: DeliveredRecord) -> bool {
        let is_moving = self.hold_moving(record);
        self.backlog.moving += usize::from(is_moving);
        is_moving
    }

    /// Takes a passed-over record out of its class. It occupies no room.
    fn hold_moving(&mut self, record: DeliveredRecord) -> bool {
        let PartitionBacklog { completed, read, held, classes, takeover, scan, .. } = &mut *self.backlog;
        let offset = record.offset;
        let is_counted = offset < *read && takeover.as_ref().is_none_or(|unscanned| !unscanned.contains(&offset));
        let is_open = !completed.is_done(offset) && !held.contains_key(&offset);
        let class = classes.resolve(record.class);
        let is_taken = is_counted && is_open && take_passed_over(classes, scan, class, offset);
        if is_taken {
            held.insert(offset, HeldRecord { class: record.class, phase: HeldPhase::Moving });
        }
        is_taken
    }

    /// Registers that the new record and its event are acknowledged: the old offset is complete.
    pub fn moved(&mut self, offset: i64) {
        if self.end_move(offset).is_some() {
            self.backlog.completed.complete(offset);
            self.backlog.starts.map_changed(1);
        }
    }

    /// Registers that a record could not be appended again: it is passed over as before.
    pub fn failed(&mut self, offset: i64) {
        if let Some(record) = self.end_move(offset) {
            let class = self.backlog.classes.resolve(record.class);
            pass_over_behind(&mut self.backlog.classes, &mut self.backlog.scan, class, offset);
        }
    }

    fn end_move(&mut self, offset: i64) -> Option<HeldRecord> {
        let record = self.backlog.held.get(&offset).copied().filter(|record| record.phase == HeldPhase::Moving)?;
        self.backlog.held.remove(&offset);
        self.backlog.moving = self.backlog.moving.saturating_sub(1);
        Some(record)
    }

    /// Sets whether records can be appended again. Where they cannot, scans keep to the order of the log while the map
    /// is large.
    pub fn set_possible(&mut self, can_move: bool) {
        self.backlog.can_move = can_move;
    }
}

/// Takes runs up to a number of offsets; the last one may be cut.
fn within(runs: impl IntoIterator<Item = Range<i64>>, budget: usize) -> Vec<Range<i64>> {
    let mut left = budget as i64;
    let cut = runs.into_iter().map(|run| {
        let run = run.start..run.end.min(run.start.saturating_add(left));
        left -= run.end - run.start;
        run
    });
    cut.take_while(|run| !run.is_empty()).collect()
}
