//! What log time brings about, when the log has passed a border ([`age`](crate::model::retention)).

use std::sync::atomic::Ordering::Relaxed;

use super::{Ages, Change, Place, Verdict, WorkingSet, refresh, requests, standing};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::{Cancel, CancelRequest, EffectKind, MAX_EFFECTS, OVERDUE};
use crate::model::record::HistoryEntry;
use crate::model::retention::{AGAIN_MS, Expiry, ExpiryKind, Lifetimes, NEVER_ANNOUNCED};
use crate::model::task::id::TaskId;

/// What became of a task whose time had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// Its tree is finished and is to be removed: by [`WorkingSet::remove`], from below.
    Remove,
    /// It was given up, or its tree is being ended.
    Changed,
    /// Nothing is due about it.
    Not,
}

impl WorkingSet {
    pub(super) fn take_settings(&mut self, event: &Event) -> Verdict {
        if let Some(lifetimes) = event.lifetimes.as_deref().filter(|told| **told != self.ages.lifetimes) {
            self.ages = Ages::new(lifetimes.clone(), self.ages.soonest_ms.load(Relaxed));
            self.new_lifetimes = true;
        }
        Verdict::Applied
    }

    /// Open trees are to end at another age than until now.
    pub fn changes_tree_age(&self, told: &Lifetimes) -> bool {
        told.max_tree_age_ms != self.ages.lifetimes.max_tree_age_ms
    }

    /// From here on an open tree ends at this age, the trees that are open already included. The record must be at hand.
    pub fn set_tree_age(&mut self, id: &TaskId, max_tree_age_ms: i64) {
        let known_ms = self.ages.lifetimes.max_tree_age_ms;
        let Some(node) = self.node(id.as_str()) else { return };
        let Some(age) = node.age.filter(|age| age.what == Expiry::Open) else { return };
        let oldest_ms = node.seen_ms.saturating_add(max_tree_age_ms);
        // A tree that was reopened late, or is looked at again, has a time of its own.
        let has_own = age.due_ms != node.seen_ms.saturating_add(known_ms);
        let due_ms = if has_own { age.due_ms.max(oldest_ms) } else { oldest_ms };
        if due_ms != age.due_ms
            && let Some(node) = self.touch(id)
        {
            node.age = Some(ExpiryKind { due_ms, ..age });
            self.ages.soonest_ms.fetch_min(due_ms, Relaxed);
        }
    }

    /// Of what has changed since [`WorkingSet::clear_due`], something is due when the log passes this border.
    pub fn may_be_old(&self, border_ms: i64) -> bool {
        self.ages.soonest_ms.load(Relaxed) <= border_ms
    }

    /// Everything due has been dealt with.
    pub fn clear_due(&mut self) {
        self.ages.soonest_ms.store(i64::MAX, Relaxed);
    }

    /// The log has passed a border, `place.log_time_ms`, with the event at `place.offset`, which is not folded yet. The
    /// record and those above it ([`WorkingSet::missing_of`]) must be at hand.
    pub fn expire(&mut self, id: &TaskId, place: Place) -> Expired {
        let due = |age: &ExpiryKind| age.due_ms <= place.log_time_ms;
        match self.node(id.as_str()).and_then(|node| node.age).filter(due).map(|age| age.what) {
            None => Expired::Not,
            Some(Expiry::Done) => Expired::Remove,
            Some(Expiry::Expected) => self.change_old(id, place, Self::give_up),
            Some(Expiry::Open) => self.change_old(id, place, Self::end_tree),
        }
    }

    fn change_old(&mut self, id: &TaskId, place: Place, change: fn(&mut Self, &TaskId, Place)) -> Expired {
        let ages = self.ages.clone();
        let before = self.node(id.as_str()).map(|node| standing(id, node));
        change(self, id, place);
        let cause = Change { id, at_ms: place.log_time_ms, place, ages: &ages };
        let Some(node) = self.touch(id) else { return Expired::Not };
        refresh(node, cause);
        if let Some(age) = node.age.as_mut().filter(|age| age.what == Expiry::Open) {
            age.due_ms = age.due_ms.max(place.log_time_ms + AGAIN_MS);
        }
        self.propagate(id, before, cause);
        Expired::Changed
    }

    fn give_up(&mut self, id: &TaskId, place: Place) {
        let Some(node) = self.touch(id) else { return };
        node.give_up();
        node.remember(entry(node.run, NEVER_ANNOUNCED, place));
    }

    /// The root ends here; an effect ends what is open below and tells the workers.
    fn end_tree(&mut self, id: &TaskId, place: Place) {
        let kept = self.node(id.as_str()).map_or(0, |node| node.kept);
        let Some(node) = self.touch(id) else { return };
        if node.requests() < MAX_EFFECTS {
            requests::replace(node, place, EffectKind::End { asof: place.offset });
            let (asof, due_ms) = (place.offset, place.log_time_ms);
            let request = CancelRequest { reason: Some(OVERDUE.into()), ..CancelRequest::default() };
            let cancel = Cancel { asof, due_ms, named: true, subtree: true, request, ..Cancel::default() };
            node.cancel = Some(Box::new(cancel));
        }
        node.remember(entry(node.run, OVERDUE, place));
        if node.own.is_terminal() {
            return;
        }
        node.own = crate::model::record::state::State::Expired;
        node.error = Some(Box::new(ErrorInfo::new("expired", OVERDUE, node.attempt)));
        node.kept = 0;
        if kept > 0 {
            self.note_kept(id, super::DeferredRecord::Drop, kept, 0);
        }
    }
}

fn entry(run: u32, message: &str, place: Place) -> HistoryEntry {
    HistoryEntry::of_fold(Kind::Expired, run, (place.log_time_ms, place.offset), message.to_owned())
}
