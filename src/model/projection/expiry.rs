//! Expiry by log time, applied when the log enters a new time step ([`retention`](crate::model::retention)).

use std::sync::atomic::Ordering::Relaxed;

use super::{Ages, Change, Place, Verdict, WorkingSet, refresh, requests, rollup_input};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::{Cancel, CancelRequest, EffectKind, MAX_EFFECTS, OVERDUE};
use crate::model::record::HistoryEntry;
use crate::model::retention::{Expiry, ExpiryKind, Lifetimes, NEVER_ANNOUNCED, RECHECK_MS};
use crate::model::task::id::TaskId;

/// Outcome of expiring a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// The tree has ended and must be removed bottom up with [`WorkingSet::remove`].
    Remove,
    /// The task was expired as never announced, or its tree is being ended.
    Changed,
    /// Nothing is due for the task.
    Not,
}

impl WorkingSet {
    pub(super) fn take_settings(&mut self, event: &Event) -> Verdict {
        if let Some(lifetimes) = event.lifetimes.as_deref().filter(|new| **new != self.ages.lifetimes) {
            self.ages = Ages::new(lifetimes.clone(), self.ages.soonest_ms.load(Relaxed));
            self.new_lifetimes = true;
        }
        Verdict::Applied
    }

    /// Returns true if `new` changes the maximum age of open trees.
    pub fn changes_tree_age(&self, new: &Lifetimes) -> bool {
        new.max_tree_age_ms != self.ages.lifetimes.max_tree_age_ms
    }

    /// Applies a new maximum age to a tree that is already open. The record must be loaded.
    pub fn set_tree_age(&mut self, id: &TaskId, max_tree_age_ms: i64) {
        let known_ms = self.ages.lifetimes.max_tree_age_ms;
        let Some(node) = self.node(id.as_str()) else { return };
        let Some(age) = node.age.filter(|age| age.what == Expiry::Open) else { return };
        let oldest_ms = node.seen_ms.saturating_add(max_tree_age_ms);
        // A tree that was reopened late or rechecked has a due time of its own.
        let has_own = age.due_ms != node.seen_ms.saturating_add(known_ms);
        let due_ms = if has_own { age.due_ms.max(oldest_ms) } else { oldest_ms };
        if due_ms != age.due_ms
            && let Some(node) = self.node_mut(id)
        {
            node.age = Some(ExpiryKind { due_ms, ..age });
            self.ages.soonest_ms.fetch_min(due_ms, Relaxed);
        }
    }

    /// Returns true if anything changed since [`WorkingSet::clear_due`] is due at this time step.
    pub fn may_be_old(&self, border_ms: i64) -> bool {
        self.ages.soonest_ms.load(Relaxed) <= border_ms
    }

    /// Resets the earliest due time after everything due has been processed.
    pub fn clear_due(&mut self) {
        self.ages.soonest_ms.store(i64::MAX, Relaxed);
    }

    /// Expires a task at the time step `place.log_time_ms`, entered with the event at `place.offset`, which is
    /// projected afterwards. The record and its ancestors ([`WorkingSet::missing_of`]) must be loaded.
    pub fn expire(&mut self, id: &TaskId, place: Place) -> Expired {
        let due = |age: &ExpiryKind| age.due_ms <= place.log_time_ms;
        match self.node(id.as_str()).and_then(|node| node.age).filter(due).map(|age| age.what) {
            None => Expired::Not,
            Some(Expiry::Done) => Expired::Remove,
            Some(Expiry::Expected) => self.expire_with(id, place, Self::expire_unannounced),
            Some(Expiry::Open) => self.expire_with(id, place, Self::end_tree),
        }
    }

    fn expire_with(&mut self, id: &TaskId, place: Place, change: fn(&mut Self, &TaskId, Place)) -> Expired {
        let ages = self.ages.clone();
        let before = self.node(id.as_str()).map(|node| rollup_input(id, node));
        change(self, id, place);
        let cause = Change { id, at_ms: place.log_time_ms, place, ages: &ages };
        let Some(node) = self.node_mut(id) else { return Expired::Not };
        refresh(node, cause);
        if let Some(age) = node.age.as_mut().filter(|age| age.what == Expiry::Open) {
            age.due_ms = age.due_ms.max(place.log_time_ms + RECHECK_MS);
        }
        self.propagate(id, before, cause);
        Expired::Changed
    }

    fn expire_unannounced(&mut self, id: &TaskId, place: Place) {
        let Some(node) = self.node_mut(id) else { return };
        node.expire_unannounced();
        node.push_history(entry(node.run, NEVER_ANNOUNCED, place));
    }

    /// Ends an expired root; an effect ends its pending descendants and informs the workers.
    fn end_tree(&mut self, id: &TaskId, place: Place) {
        let kept = self.node(id.as_str()).map_or(0, |node| node.kept);
        let Some(node) = self.node_mut(id) else { return };
        if node.requests() < MAX_EFFECTS {
            requests::replace_cancel_effect(node, place, EffectKind::End { asof: place.offset });
            let (asof, due_ms) = (place.offset, place.log_time_ms);
            let request = CancelRequest { reason: Some(OVERDUE.into()), ..CancelRequest::default() };
            let cancel = Cancel { asof, due_ms, named: true, subtree: true, request, ..Cancel::default() };
            node.cancel = Some(Box::new(cancel));
        }
        node.push_history(entry(node.run, OVERDUE, place));
        if node.own.is_terminal() {
            return;
        }
        node.own = crate::model::record::state::State::Expired;
        node.error = Some(Box::new(ErrorInfo::new("expired", OVERDUE, node.attempt)));
        node.kept = 0;
        if kept > 0 {
            self.record_deferred(id, super::DeferredRecord::Drop, kept, 0);
        }
    }
}

fn entry(run: u32, message: &str, place: Place) -> HistoryEntry {
    HistoryEntry::of_fold(Kind::Expired, run, (place.log_time_ms, place.offset), message.to_owned())
}
