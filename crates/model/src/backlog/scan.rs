//! Scans: reading the log again from a hint, for the classes that need more held records, and over what an earlier
//! owner left.

use super::starts::{has_map_room, is_among_oldest};
use super::{ClassView, DeliveredRecord, PartitionBacklog, ReadDecision};
use crate::backlog::classes::{ClassTable, ScanPart, ScanPhase};
use crate::task::priority::{Priority, TaskClass};

/// Part of the boundaries of a full map up to which the class with the least slot time is scanned first. Above it the
/// one with the lowest hint is, which leaves fewer boundaries.
const SMALL_MAP: usize = 5;

/// A scan that is going on.
#[derive(Debug)]
pub(super) struct Scan {
    /// Offset of the next record to read.
    position: i64,
    /// Offset at which it ends.
    end: i64,
    /// It ends where reading on stood at its beginning, so that nothing of its classes is left behind it.
    is_whole: bool,
    /// The map is so large that only the oldest records shrink it: these are held whatever the room.
    keeps_order: bool,
    /// Records that it may still read.
    left: usize,
    /// Classes whose hints it has not reached, the next one last.
    ahead: Vec<(i64, TaskClass)>,
    /// Classes whose records it holds.
    active: usize,
    classes: Vec<TaskClass>,
}

/// Scans of a partition's log.
#[derive(Debug)]
pub struct Scans<'a> {
    pub(super) backlog: &'a mut PartitionBacklog,
}

impl Scans<'_> {
    /// Begins a scan if a class needs more held records and none goes on. Returns the offset of its first record.
    pub fn begin(&mut self, view: &impl ClassView) -> Option<i64> {
        if self.backlog.scan.is_some() {
            return None;
        }
        let is_map_large = self.backlog.starts.boundaries() > self.backlog.limits.boundaries;
        let keeps_order = !has_map_room(self.backlog) || (is_map_large && !self.backlog.can_move);
        let hungry = if keeps_order { self.backlog.classes.startable(view) } else { self.backlog.classes.hungry(view) };
        let hungry = hungry.into_iter().map(|(hint, class)| (self.scan_start(hint), class));
        let mut hungry: Vec<(i64, TaskClass)> = hungry.filter(|(from, _)| *from < self.backlog.read).collect();
        let start = if keeps_order { self.oldest_start(&hungry, view) } else { self.choose_start(&hungry, view) }?;
        let before_takeover = self.backlog.takeover.as_ref().filter(|unscanned| start < unscanned.start);
        let end = before_takeover.map_or(self.backlog.read, |unscanned| unscanned.start);
        hungry.retain(|(from, _)| (start..end).contains(from));
        hungry.sort_unstable_by(|a, b| b.cmp(a));
        let classes: Vec<TaskClass> = hungry.iter().map(|(_, class)| *class).collect();
        for class in &classes {
            self.backlog
                .classes
                .update(*class, |state| state.scan = Some(ScanPart { phase: ScanPhase::Ahead, added: 0 }));
        }
        let is_whole = before_takeover.is_none();
        let left = self.backlog.limits.scan_records;
        self.backlog.scan =
            Some(Scan { position: start, end, is_whole, keeps_order, left, ahead: hungry, active: 0, classes });
        Some(start)
    }

    /// First offset at which a scan can find a record that was passed over at or after `hint`: it leaves out what a
    /// takeover has not scanned yet, where nothing is counted.
    fn scan_start(&self, hint: i64) -> i64 {
        self.backlog
            .takeover
            .as_ref()
            .filter(|unscanned| unscanned.contains(&hint))
            .map_or(hint, |unscanned| unscanned.end)
    }

    /// Lowest hint, if a record there can be held.
    fn oldest_start(&self, startable: &[(i64, TaskClass)], view: &impl ClassView) -> Option<i64> {
        let lowest = startable.iter().map(|(from, _)| *from).min()?;
        let has_room = || startable.iter().any(|(_, class)| self.backlog.classes.has_room_of_deferred(*class, view));
        (is_among_oldest(self.backlog, lowest) || has_room()).then_some(lowest)
    }

    fn choose_start(&self, hungry: &[(i64, TaskClass)], view: &impl ClassView) -> Option<i64> {
        let boundaries = self.backlog.starts.boundaries();
        let used = |priority: &Priority| view.used_by_priority(*priority);
        let has_class = |priority: &Priority| hungry.iter().any(|(_, class)| class.priority == *priority);
        let priority = Priority::ALL.into_iter().rev().filter(has_class).min_by(|a, b| used(a).total_cmp(&used(b)))?;
        let of_priority = hungry.iter().filter(|(_, class)| class.priority == priority);
        if boundaries >= self.backlog.limits.boundaries / SMALL_MAP {
            return of_priority.map(|(from, _)| *from).min();
        }
        let used = |class: &TaskClass| view.used_by_class(*class);
        of_priority.min_by(|(_, a), (_, b)| used(a).total_cmp(&used(b))).map(|(from, _)| *from)
    }

    /// Offset of the record that the scan reads next. `None`: no scan goes on.
    pub fn offset(&self) -> Option<i64> {
        self.backlog.scan.as_ref().map(|scan| scan.position)
    }

    /// Decides about a record of the scan.
    pub fn record(&mut self, record: DeliveredRecord, view: &impl ClassView) -> ReadDecision {
        let Some(end) = self.backlog.scan.as_ref().filter(|scan| record.offset >= scan.position).map(|scan| scan.end)
        else {
            return ReadDecision::Skip;
        };
        self.passed(record.offset.min(end));
        self.activate_below(record.offset + 1);
        let Some(scan) = &mut self.backlog.scan else { return ReadDecision::Skip };
        scan.position = record.offset + 1;
        scan.left = scan.left.saturating_sub(1);
        let delivery = self.decide_scanned(record, view);
        self.jump_or_end();
        delivery
    }

    /// Lets the classes take part whose hints lie below `offset`.
    fn activate_below(&mut self, offset: i64) {
        let Some(scan) = &mut self.backlog.scan else { return };
        while scan.ahead.last().is_some_and(|(hint, _)| *hint < offset) {
            if let Some((_, class)) = scan.ahead.pop()
                && let Some(part) = self.backlog.classes.part_ahead(class)
            {
                part.phase = ScanPhase::Active;
                scan.active += 1;
            }
        }
    }

    fn decide_scanned(&mut self, record: DeliveredRecord, view: &impl ClassView) -> ReadDecision {
        let offset = record.offset;
        if self.backlog.completed.is_done(offset) || self.backlog.held.contains_key(&offset) {
            return ReadDecision::Skip;
        }
        let class = self.backlog.classes.resolve(record.class);
        if record.is_ending {
            return if self.take(class, offset) { self.backlog.hold_ending(record) } else { ReadDecision::Skip };
        }
        if self.backlog.classes.state(class).scan.is_none_or(|part| part.phase != ScanPhase::Active) {
            return ReadDecision::Skip;
        }
        let keeps_order = self.backlog.scan.as_ref().is_some_and(|scan| scan.keeps_order);
        if self.backlog.classes.has_room_of_deferred(class, view)
            || (keeps_order && is_among_oldest(self.backlog, offset))
        {
            self.take(class, offset);
            self.backlog.hold(offset, class);
            return ReadDecision::Hold;
        }
        self.backlog.classes.update(class, |state| {
            state.hint = offset;
            state.scan.iter_mut().for_each(|part| part.phase = ScanPhase::Full);
        });
        leave_active(&mut self.backlog.scan);
        ReadDecision::Skip
    }

    fn take(&mut self, class: TaskClass, offset: i64) -> bool {
        take_passed_over(&mut self.backlog.classes, &mut self.backlog.scan, class, offset)
    }

    /// Registers that the scan has reached `offset` without a record. What was open there and not held is complete: a
    /// marker, an aborted record, or one that retention has removed.
    pub fn passed(&mut self, offset: i64) {
        let Some(scan) = &mut self.backlog.scan else { return };
        let (from, to, end) = (scan.position, offset.min(scan.end), scan.end);
        scan.position = scan.position.max(to);
        self.activate_below(to);
        self.backlog.vanished += self.backlog.complete_unheld(from..to);
        if to >= end {
            self.finish();
        }
    }

    /// Jumps to the next class, or ends, if the scan has nothing more to find where it is.
    fn jump_or_end(&mut self) {
        let Some(scan) = &mut self.backlog.scan else { return };
        if scan.active == 0 {
            while scan.ahead.last().is_some_and(|(_, class)| self.backlog.classes.part_ahead(*class).is_none()) {
                scan.ahead.pop();
            }
            match scan.ahead.last() {
                Some((hint, _)) if hint - scan.position > self.backlog.limits.scan_jump => scan.position = *hint,
                Some(_) => {}
                None => return self.finish(),
            }
        }
        if scan.left == 0 || scan.position >= scan.end {
            self.finish();
        }
    }

    /// Ends the scan where it is, such as when it has read enough bytes.
    pub fn finish(&mut self) {
        let Some(scan) = self.backlog.scan.take() else { return };
        let is_at_end = scan.is_whole && scan.position >= scan.end;
        let mut is_missing = false;
        for class in scan.classes {
            let mut vanished = self.backlog.vanished;
            is_missing |= self.backlog.classes.update(class, |state| {
                let Some(part) = state.scan.take().filter(|part| part.phase == ScanPhase::Active) else { return false };
                state.hint = state.hint.max(scan.position);
                if !is_at_end || state.passed_over == part.added {
                    return false;
                }
                // The hint lies at the end of the scan: all that is left has been passed over since its beginning.
                let missing = state.passed_over.saturating_sub(part.added);
                state.passed_over = part.added;
                let is_explained = (1..=vanished).contains(&missing);
                vanished -= if is_explained { missing } else { 0 };
                !is_explained
            });
            self.backlog.vanished = vanished;
        }
        if is_missing {
            self.count_again();
        }
    }

    /// Counts all passed-over records again, from the watermark.
    fn count_again(&mut self) {
        self.backlog.classes.forget_passed_over();
        let unscanned = self.backlog.watermark()..self.backlog.read;
        self.backlog.takeover = Some(unscanned).filter(|unscanned| !unscanned.is_empty());
        self.backlog.vanished = 0;
        self.backlog.recounts += 1;
    }

    /// Offset of the next record of an earlier owner's log to be counted. `None`: all are.
    pub fn takeover_offset(&self) -> Option<i64> {
        self.backlog.takeover.as_ref().map(|unscanned| unscanned.start)
    }

    /// Decides about a record of an earlier owner's log.
    pub fn take_over(&mut self, record: DeliveredRecord, view: &impl ClassView) -> ReadDecision {
        let Some(unscanned) = self.backlog.takeover.clone().filter(|unscanned| record.offset >= unscanned.start) else {
            return ReadDecision::Skip;
        };
        self.takeover_passed(record.offset);
        if record.offset >= unscanned.end {
            return ReadDecision::Skip;
        }
        self.advance_takeover(record.offset + 1);
        let class = self.backlog.classes.resolve(record.class);
        let is_open = !self.backlog.completed.is_done(record.offset) && !self.backlog.held.contains_key(&record.offset);
        if is_open && !record.is_ending && !self.backlog.classes.has_room_of_others(class, view) {
            pass_over_behind(&mut self.backlog.classes, &mut self.backlog.scan, class, record.offset);
            return ReadDecision::PassOver;
        }
        self.backlog.admit(record, view)
    }

    /// Registers that the background scan of an earlier owner's log has reached `offset` without a record.
    pub fn takeover_passed(&mut self, offset: i64) {
        let Some(unscanned) = self.backlog.takeover.clone() else { return };
        self.backlog.complete_unheld(unscanned.start..offset.min(unscanned.end));
        self.advance_takeover(offset);
    }

    fn advance_takeover(&mut self, offset: i64) {
        self.backlog.takeover =
            self.backlog.takeover.take().map(|unscanned| unscanned.start.max(offset)..unscanned.end);
        self.backlog.takeover = self.backlog.takeover.take().filter(|unscanned| !unscanned.is_empty());
    }
}

/// Counts a record as no longer passed over. A class without further ones leaves the scan. Returns false if it has
/// none.
pub(super) fn take_passed_over(
    classes: &mut ClassTable,
    scan: &mut Option<Scan>,
    class: TaskClass,
    offset: i64,
) -> bool {
    let end = scan.as_ref().map_or(i64::MAX, |scan| scan.end);
    let (is_known, has_left) = classes.update(class, |state| {
        let is_known = state.passed_over > 0;
        state.passed_over = state.passed_over.saturating_sub(1);
        if let Some(part) = state.scan.as_mut().filter(|_| offset >= end) {
            part.added = part.added.saturating_sub(1);
        }
        let part = if state.passed_over == 0 { state.scan.take() } else { None };
        (is_known, part.is_some_and(|part| part.phase == ScanPhase::Active))
    });
    if has_left {
        leave_active(scan);
    }
    is_known
}

/// Counts a record as passed over that lies behind the scan, or where it does not look. Its class begins again
/// there.
pub(super) fn pass_over_behind(classes: &mut ClassTable, scan: &mut Option<Scan>, class: TaskClass, offset: i64) {
    let position = scan.as_ref().map_or(i64::MIN, |scan| scan.position);
    let was_active = classes.update(class, |state| {
        let is_active = state.scan.is_some_and(|part| part.phase == ScanPhase::Active);
        let hint = if is_active { state.hint.max(position) } else { state.hint };
        state.hint = if state.passed_over > 0 { hint.min(offset) } else { offset };
        state.passed_over += 1;
        state.scan.iter_mut().for_each(|part| part.phase = ScanPhase::Full);
        is_active
    });
    if was_active {
        leave_active(scan);
    }
}

fn leave_active(scan: &mut Option<Scan>) {
    if let Some(scan) = scan {
        scan.active = scan.active.saturating_sub(1);
    }
}
