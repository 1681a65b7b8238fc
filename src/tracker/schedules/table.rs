//! What the owner knows of the schedules: what people want, as the control topic tells it, and how far each is, as the
//! owner itself has written it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::transaction::ScheduleTransaction;
use crate::control::CONTROL_VERSION;
use crate::control::schedules::{ScheduleRequest, ScheduleState};
use crate::model::schedule::step::State;
use crate::model::schedule::{Schedule, Times};
use crate::model::task::id::TaskId;

pub struct Entry {
    pub schedule: Arc<Schedule>,
    /// None: this build cannot read them.
    pub times: Option<Times>,
    pub state: State,
    /// When something is to be decided.
    pub due_ms: Option<i64>,
    /// A task that the store does not know, and how far it has to be folded until that means something.
    pub sought: Option<(TaskId, i64)>,
}

impl Entry {
    fn new(name: &str, schedule: &Arc<Schedule>, state: State) -> Self {
        let state = State { v: CONTROL_VERSION, ..state };
        let times = Times::of(&schedule.spec).ok();
        let mut entry = Self { schedule: schedule.clone(), times, state, due_ms: None, sought: None };
        entry.plan(name);
        entry
    }

    fn plan(&mut self, name: &str) {
        self.due_ms = self.times.as_ref().and_then(|times| self.state.due_at(name, &self.schedule, times));
    }
}

/// Schedule and request.
pub type ScheduleRequestName = (String, String);

/// A request that is done is soon gone from the topic. One that stays was asked for once more, by somebody who had no answer.
const GONE_SOON: Duration = Duration::from_secs(10);

/// A request that waits, or is done and still in the topic.
pub struct Open {
    pub ask: ScheduleRequest,
    pub done: Option<Instant>,
    /// Events partitions and how far they have to be folded before it is known which tasks there are.
    pub ends: Option<Vec<(u32, i64)>>,
}

#[derive(Default)]
pub struct ScheduleTable {
    pub entries: BTreeMap<String, Entry>,
    pub asks: BTreeMap<ScheduleRequestName, Open>,
    /// Schedules that are gone, and whose states are to go.
    pub orphans: BTreeSet<String>,
}

impl ScheduleTable {
    /// As the topic has it.
    pub fn of(plan: &ScheduleState) -> Self {
        let state = |name: &str| plan.states.get(name).map(|state| (**state).clone()).unwrap_or_default();
        let entries = plan.schedules.iter().map(|(name, schedule)| (name.clone(), Entry::new(name, schedule, state(name))));
        let orphans = plan.states.keys().filter(|name| !plan.schedules.contains_key(*name)).cloned().collect();
        Self { entries: entries.collect(), asks: BTreeMap::new(), orphans }
    }

    /// What people have changed. States are the owner's own.
    pub fn sync(&mut self, plan: &ScheduleState) {
        for (name, schedule) in &plan.schedules {
            self.orphans.remove(name);
            match self.entries.get_mut(name) {
                Some(entry) if Arc::ptr_eq(&entry.schedule, schedule) => {}
                Some(entry) => *entry = Entry::new(name, schedule, std::mem::take(&mut entry.state)),
                None => drop(self.entries.insert(name.clone(), Entry::new(name, schedule, State::default()))),
            }
        }
        let gone = self.entries.extract_if(.., |name, _| !plan.schedules.contains_key(name));
        self.orphans.extend(gone.map(|(name, _)| name));
        self.asks.retain(|name, _| plan.asks.contains_key(name));
        self.asks.retain(|_, open| open.done.is_none_or(|at| at.elapsed() < GONE_SOON));
        for (name, ask) in &plan.asks {
            self.asks.entry(name.clone()).or_insert_with(|| Open { ask: ask.clone(), done: None, ends: None });
        }
    }

    /// What was written counts from now on.
    pub fn done(&mut self, burst: ScheduleTransaction) {
        for (name, state) in burst.states {
            // What was fired now may be among the times that a backfill means.
            let backfills = self.asks.iter_mut().filter(|((of, _), open)| *of == name && open.ask.backfill.is_some());
            backfills.for_each(|(_, open)| open.ends = None);
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            entry.state = state;
            entry.plan(&name);
        }
        for (name, rest) in burst.asks {
            let Some(open) = self.asks.get_mut(&name) else { continue };
            match rest {
                Some(rest) => open.ask = rest,
                None => open.done = Some(Instant::now()),
            }
        }
        self.orphans.retain(|name| !burst.orphans.contains(name));
    }

    /// When the next thing is due that is not due yet.
    pub fn next_due(&self, now_ms: i64) -> Option<i64> {
        self.entries.values().filter_map(|entry| entry.due_ms).filter(|due| *due > now_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_stays_in_the_topic_is_looked_at_once_more() {
        let name: ScheduleRequestName = ("nightly".into(), "now".into());
        let mut plan = ScheduleState::default();
        plan.asks.insert(name.clone(), ScheduleRequest { v: CONTROL_VERSION, at_ms: 1, backfill: None });
        let mut book = ScheduleTable::default();
        book.sync(&plan);
        assert!(book.asks[&name].done.is_none());
        book.done(ScheduleTransaction { asks: vec![(name.clone(), None)], ..ScheduleTransaction::default() });
        book.sync(&plan);
        assert!(book.asks[&name].done.is_some(), "its end is on the way");
        tokio::time::advance(GONE_SOON).await;
        book.sync(&plan);
        assert!(book.asks[&name].done.is_none(), "it was asked for again");
        book.sync(&ScheduleState::default());
        assert!(book.asks.is_empty());
    }
}
