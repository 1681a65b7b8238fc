//! Expiry by log time, applied when the log enters a new time step ([`retention`](crate::retention)).

use std::sync::atomic::Ordering::Relaxed;

use super::records::Records;
use super::refresh::{refresh, rollup_input};
use super::{Cause, LogPosition, WorkingSet, continuations, requests, tally, unique};
use crate::event::{ErrorInfo, Kind};
use crate::outbox::{CancelRequest, EffectKind, MAX_EFFECTS, OVERDUE, StoredCancel};
use crate::record::HistoryEntry;
use crate::record::state::State;
use crate::retention::{Expiry, ExpiryKind, Lifetimes, NEVER_ANNOUNCED, RECHECK_MS};
use crate::task::id::TaskId;

/// Outcome of expiring a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryOutcome {
    /// The tree has ended and must be removed bottom up with [`WorkingSet::remove`].
    Remove,
    /// The task was expired as never announced, or its tree is being ended.
    Changed,
    /// The task is not due.
    Not,
}

impl WorkingSet {
    /// Returns true if `new` changes the maximum age of open trees.
    pub fn changes_tree_age(&self, new: &Lifetimes) -> bool {
        new.max_tree_age_ms != self.ages.lifetimes.max_tree_age_ms
    }

    /// Applies a new maximum age to a tree that is already open. The record must be loaded.
    pub fn set_tree_age(&mut self, id: &TaskId, max_tree_age_ms: i64) {
        let known_ms = self.ages.lifetimes.max_tree_age_ms;
        let Some(task) = self.task(id.as_str()) else { return };
        let Some(expiry) = task.times.expiry.filter(|expiry| expiry.kind == ExpiryKind::Open) else { return };
        let oldest_ms = task.times.seen_ms.saturating_add(max_tree_age_ms);
        // A tree that was reopened late or rechecked has a due time of its own.
        let has_own = expiry.due_ms != task.times.seen_ms.saturating_add(known_ms);
        let due_ms = if has_own { expiry.due_ms.max(oldest_ms) } else { oldest_ms };
        if due_ms != expiry.due_ms
            && let Some(task) = self.records.task_mut(id)
        {
            task.times.expiry = Some(Expiry { due_ms, ..expiry });
            self.ages.soonest_ms.fetch_min(due_ms, Relaxed);
        }
    }

    /// Returns true if anything changed since [`WorkingSet::clear_due`] is due at this time step.
    pub fn may_have_expired(&self, border_ms: i64) -> bool {
        self.ages.soonest_ms.load(Relaxed) <= border_ms
    }

    /// Resets the earliest due time after everything due has been processed.
    pub fn clear_due(&mut self) {
        self.ages.soonest_ms.store(i64::MAX, Relaxed);
    }

    /// Expires a task at the time step `position.log_time_ms`, entered with the event at `position.offset`, which is
    /// projected afterwards. The record and its ancestors ([`WorkingSet::missing_of`]) must be loaded.
    pub fn expire(&mut self, id: &TaskId, position: LogPosition) -> ExpiryOutcome {
        let due = |expiry: &Expiry| expiry.due_ms <= position.log_time_ms;
        let kind = self.task(id.as_str()).and_then(|task| task.times.expiry).filter(due).map(|expiry| expiry.kind);
        let change = match kind {
            None => return ExpiryOutcome::Not,
            Some(ExpiryKind::Done) => return ExpiryOutcome::Remove,
            Some(ExpiryKind::Expected) => expire_unannounced,
            Some(ExpiryKind::Open) => end_tree,
        };
        self.records.statistics.advance(position.log_time_ms);
        let cause = Cause { id, at_ms: position.log_time_ms, position, ages: &self.ages };
        expire_with(&mut self.records, cause, change)
    }
}

fn expire_with(
    records: &mut Records,
    cause: Cause<'_>,
    change: fn(&mut Records, &TaskId, LogPosition),
) -> ExpiryOutcome {
    let was_open = unique::is_root_open(records, cause.id);
    let outcome = expire_task(records, cause, change);
    if let Some(tag) = cause.id.tag() {
        unique::follow_root(records, tag, was_open, cause);
    }
    outcome
}

fn expire_task(
    records: &mut Records,
    cause: Cause<'_>,
    change: fn(&mut Records, &TaskId, LogPosition),
) -> ExpiryOutcome {
    let Cause { id, position, .. } = cause;
    let Some(task) = records.task(id.as_str()) else { return ExpiryOutcome::Not };
    let (before, counted_before) = (Some(rollup_input(id, task)), tally::CountedState::of(task));
    change(records, id, position);
    if records.task(id.as_str()).is_some_and(continuations::has_due) {
        records.create_continuations(id, cause);
    }
    let Some(task) = records.task_mut(id) else { return ExpiryOutcome::Not };
    refresh(task, cause);
    let observation = tally::compare(counted_before, task, position, None);
    if let Some(expiry) = task.times.expiry.as_mut().filter(|expiry| expiry.kind == ExpiryKind::Open) {
        expiry.due_ms = expiry.due_ms.max(position.log_time_ms + RECHECK_MS);
    }
    records.count(observation);
    records.propagate(id, before, cause);
    ExpiryOutcome::Changed
}

/// Expires a task that was never announced.
fn expire_unannounced(records: &mut Records, id: &TaskId, position: LogPosition) {
    let Some(task) = records.task_mut(id) else { return };
    task.expire_unannounced();
    task.history.push(entry(task.run, NEVER_ANNOUNCED, position));
}

/// Ends an expired root; an effect ends its pending descendants and informs the workers.
fn end_tree(records: &mut Records, id: &TaskId, position: LogPosition) {
    let Some(task) = records.task_mut(id) else { return };
    if task.request_effects() < MAX_EFFECTS {
        requests::replace_cancel_effect(task, position, EffectKind::End { asof: position.offset });
        task.requests.cancel = Some(Box::new(overdue_cancel(position)));
    }
    task.history.push(entry(task.run, OVERDUE, position));
    if task.own.is_terminal() {
        return;
    }
    task.own = State::Expired;
    task.outcome.error = Some(Box::new(ErrorInfo::new("expired", OVERDUE, task.attempt)));
    let stored_bytes = task.deferral.clear_record();
    records.drop_deferred(id, stored_bytes);
}

fn overdue_cancel(position: LogPosition) -> StoredCancel {
    StoredCancel {
        asof: position.offset,
        due_ms: position.log_time_ms,
        named: true,
        subtree: true,
        request: CancelRequest { reason: Some(OVERDUE.into()), ..CancelRequest::default() },
        ..StoredCancel::default()
    }
}

fn entry(run: u32, message: &str, position: LogPosition) -> HistoryEntry {
    HistoryEntry::of_fold(Kind::Expired, run, (position.log_time_ms, position.offset), message.to_owned())
}
