//! Schedules known to the owner: definitions and requests as read from the control topic, and states as written by
//! the owner itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::CONTROL_VERSION;
use kafleet_fleet::control::schedules::{ScheduleRequest, ScheduleState};
use kafleet_model::schedule::step::ScheduleProgress;
use kafleet_model::schedule::{Schedule, Times};
use kafleet_model::task::id::TaskId;
use tokio::time::Instant;

use super::transaction::ScheduleTransaction;

pub(super) struct ScheduleEntry {
    pub schedule: Arc<Schedule>,
    /// `None` if this build cannot parse them.
    pub times: Option<Times>,
    pub state: ScheduleProgress,
    /// Time of the next decision.
    pub due_ms: Option<i64>,
    /// Last task while it seems open, and the offset up to which the store must be folded to be sure.
    pub pending_lookup: Option<(TaskId, i64)>,
}

impl ScheduleEntry {
    fn new(name: &str, schedule: &Arc<Schedule>, state: ScheduleProgress) -> Self {
        let state = ScheduleProgress { v: CONTROL_VERSION, ..state };
        let times = Times::of(&schedule.spec).ok();
        let mut entry = Self { schedule: schedule.clone(), times, state, due_ms: None, pending_lookup: None };
        entry.plan(name);
        entry
    }

    fn plan(&mut self, name: &str) {
        self.due_ms = self.times.as_ref().and_then(|times| self.state.due_at(name, &self.schedule, times));
    }
}

/// Names of a schedule and a request.
pub(super) type ScheduleRequestName = (String, String);

/// Time for a completed request to disappear from the topic. A request that stays longer was repeated by a client
/// that received no answer.
const REPETITION_TIME: Duration = Duration::from_secs(10);

/// A request that is pending, or completed but still in the topic.
pub(super) struct PendingRequest {
    pub request: ScheduleRequest,
    pub done: Option<Instant>,
    /// Events partitions with the offsets up to which they must be folded before all existing tasks are known.
    pub ends: Option<Vec<(u32, i64)>>,
}

impl PendingRequest {
    fn of(request: &ScheduleRequest) -> Self {
        Self { request: request.clone(), done: None, ends: None }
    }
}

#[derive(Default)]
pub(super) struct ScheduleTable {
    pub entries: BTreeMap<String, ScheduleEntry>,
    pub requests: BTreeMap<ScheduleRequestName, PendingRequest>,
    /// States without a schedule, to be deleted.
    pub orphans: BTreeSet<String>,
}

impl ScheduleTable {
    /// Builds the table from the topic's contents.
    pub(super) fn of(plan: &ScheduleState) -> Self {
        let state = |name: &str| plan.states.get(name).map(|state| (**state).clone()).unwrap_or_default();
        let entries = plan
            .schedules
            .iter()
            .map(|(name, schedule)| (name.clone(), ScheduleEntry::new(name, schedule, state(name))));
        let orphans = plan.states.keys().filter(|name| !plan.schedules.contains_key(*name)).cloned().collect();
        Self { entries: entries.collect(), requests: BTreeMap::new(), orphans }
    }

    /// Applies changed schedules and requests. States are written by the owner only.
    pub(super) fn sync(&mut self, plan: &ScheduleState) {
        for (name, schedule) in &plan.schedules {
            self.orphans.remove(name);
            match self.entries.get_mut(name) {
                Some(entry) if Arc::ptr_eq(&entry.schedule, schedule) => {}
                Some(entry) => *entry = ScheduleEntry::new(name, schedule, std::mem::take(&mut entry.state)),
                None => {
                    drop(
                        self.entries
                            .insert(name.clone(), ScheduleEntry::new(name, schedule, ScheduleProgress::default())),
                    );
                }
            }
        }
        let removed = self.entries.extract_if(.., |name, _| !plan.schedules.contains_key(name));
        self.orphans.extend(removed.map(|(name, _)| name));
        self.requests.retain(|name, _| plan.requests.contains_key(name));
        self.requests.retain(|_, open| open.done.is_none_or(|at| at.elapsed() < REPETITION_TIME));
        for (name, request) in &plan.requests {
            self.requests.entry(name.clone()).or_insert_with(|| PendingRequest::of(request));
        }
    }

    /// Applies a committed transaction.
    pub(super) fn done(&mut self, transaction: ScheduleTransaction) {
        for (name, state) in transaction.states {
            // The tasks just fired may lie within the range of a backfill.
            let backfills =
                self.requests.iter_mut().filter(|((of, _), open)| *of == name && open.request.backfill.is_some());
            backfills.for_each(|(_, open)| open.ends = None);
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            entry.state = state;
            entry.plan(&name);
        }
        for (name, next_wait) in transaction.requests {
            let Some(open) = self.requests.get_mut(&name) else { continue };
            match next_wait {
                Some(next_wait) => open.request = next_wait,
                None => open.done = Some(Instant::now()),
            }
        }
        self.orphans.retain(|name| !transaction.orphans.contains(name));
    }

    /// Next time at which something is due after `now_ms`.
    pub(super) fn next_due(&self, now_ms: i64) -> Option<i64> {
        self.entries.values().filter_map(|entry| entry.due_ms).filter(|due| *due > now_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn completed_request_is_processed_again_if_it_stays_in_the_topic() {
        let name: ScheduleRequestName = ("nightly".into(), "now".into());
        let mut plan = ScheduleState::default();
        plan.requests.insert(name.clone(), ScheduleRequest { v: CONTROL_VERSION, at_ms: 1, backfill: None });
        let mut table = ScheduleTable::default();
        table.sync(&plan);
        assert!(table.requests[&name].done.is_none());
        table.done(ScheduleTransaction { requests: vec![(name.clone(), None)], ..ScheduleTransaction::default() });
        table.sync(&plan);
        assert!(table.requests[&name].done.is_some(), "its deletion is pending");
        tokio::time::advance(REPETITION_TIME).await;
        table.sync(&plan);
        assert!(table.requests[&name].done.is_none(), "the request was repeated");
        table.sync(&ScheduleState::default());
        assert!(table.requests.is_empty());
    }
}
