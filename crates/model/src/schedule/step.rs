//! Decisions of a schedule at a given time. All decisions go into its [`ScheduleProgress`], which is written in one transaction
//! with the fired tasks: another tracker resumes from that state and decides nothing twice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CATCH_UP, Overlap, Schedule, Times, task_of};

/// Maximum number of recent decisions kept in a state.
pub const MAX_RECENT: usize = 10;
/// Maximum number of times decided in one step.
const MAX_TIMES: usize = 100;
/// Maximum number of missed times counted exactly.
pub const MAX_MISSED: u64 = 10_000;

/// Progress of a schedule: the value of `schedule-state/<name>` on the control topic, written by the tracker only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleProgress {
    pub v: u32,
    /// Times up to this one are decided, epoch milliseconds.
    pub through_ms: i64,
    /// Number of times fired, skipped because of an overlap, and missed in an outage (at least).
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
    /// Task started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleFiring>,
    /// Time whose firing waits for the end of the last task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<i64>,
    /// Recent decisions, newest first; at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<ScheduleDecision>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ScheduleLast")]
pub struct ScheduleFiring {
    /// Scheduled time.
    pub time_ms: i64,
    /// Actual time of the firing.
    pub at_ms: i64,
    pub task: String,
}

/// Decision about one or several consecutive times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDecision {
    pub outcome: ScheduleOutcome,
    /// Scheduled time; of several consecutive ones, the last.
    pub time_ms: i64,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Number of consecutive times.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleOutcome {
    Fired,
    /// The previous task had not ended.
    Skipped,
    /// The firing waits for the previous task to end.
    Buffered,
    /// Not fired in time by any tracker.
    Missed,
    /// Manually triggered.
    Run,
    Backfilled,
}

impl ScheduleOutcome {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Skipped => "skipped",
            Self::Buffered => "buffered",
            Self::Missed => "missed",
            Self::Run => "run",
            Self::Backfilled => "backfilled",
        }
    }
}

/// Task to create for a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueFiring {
    pub task: String,
    pub time_ms: i64,
    /// Id of the task to cancel.
    pub replaces: Option<String>,
}

impl ScheduleProgress {
    /// First undecided time.
    pub fn next(&self, schedule: &Schedule, times: &Times) -> Option<i64> {
        times.after(self.through_ms.max(schedule.from_ms))
    }

    /// Next times from now on, at most `most`. Times that have been decided are not among them, even if the clock was set
    /// back since.
    pub fn upcoming(&self, schedule: &Schedule, times: &Times, now_ms: i64, most: usize) -> Vec<i64> {
        times.upcoming(now_ms.max(self.through_ms).max(schedule.from_ms), most)
    }

    /// Time of the next decision, epoch milliseconds.
    pub fn due_at(&self, name: &str, schedule: &Schedule, times: &Times) -> Option<i64> {
        if schedule.paused.is_some() {
            return None;
        }
        self.next(schedule, times).map(|time| times.firing_time_ms(name, time))
    }

    /// Decides everything due now. `runs`: the task started last has not ended. An empty result may still have
    /// changed the state. Call repeatedly until nothing changes.
    pub fn step(&mut self, name: &str, schedule: &Schedule, times: &Times, runs: bool, now_ms: i64) -> Vec<DueFiring> {
        let mut fires = Vec::new();
        if schedule.paused.is_some() {
            if let Some(time_ms) = self.waiting_ms.take() {
                self.skip(time_ms, now_ms);
            }
            return fires;
        }
        let mut runs = runs;
        if !runs && let Some(time_ms) = self.waiting_ms.take() {
            fires.push(self.fire(name, time_ms, None, now_ms));
            runs = true;
        }
        self.record_missed(name, schedule, times, now_ms);
        for _ in 0..MAX_TIMES {
            let Some(time_ms) = self.next(schedule, times).filter(|time| times.firing_time_ms(name, *time) <= now_ms)
            else {
                break;
            };
            self.through_ms = time_ms;
            let is_due = |time: i64| times.firing_time_ms(name, time) <= now_ms;
            match schedule.spec.overlap {
                // If several times are due, only the task of the last one would survive.
                Overlap::Replace if self.next(schedule, times).is_some_and(is_due) => self.skip(time_ms, now_ms),
                Overlap::Skip if runs => self.skip(time_ms, now_ms),
                Overlap::BufferOne if runs && self.waiting_ms.is_some() => self.skip(time_ms, now_ms),
                Overlap::BufferOne if runs => {
                    self.waiting_ms = Some(time_ms);
                    self.record_decision(ScheduleOutcome::Buffered, time_ms, now_ms, None, 1);
                }
                overlap => {
                    let replaces = self.last.as_ref().filter(|_| runs && overlap == Overlap::Replace);
                    let replaces = replaces.map(|last| last.task.clone());
                    fires.push(self.fire(name, time_ms, replaces, now_ms));
                    runs = true;
                }
            }
        }
        fires
    }

    /// Records times older than the window of `catch_up` as missed.
    fn record_missed(&mut self, name: &str, schedule: &Schedule, times: &Times, now_ms: i64) {
        let oldest = now_ms.saturating_sub(schedule.spec.catch_up.unwrap_or(CATCH_UP).as_i64());
        let is_missed = |time: &i64| times.firing_time_ms(name, *time) < oldest;
        let mut count = 0;
        let mut last = None;
        while let Some(time) = self.next(schedule, times).filter(is_missed) {
            (self.through_ms, last) = (time, Some(time));
            count += 1;
            if count == MAX_MISSED {
                self.through_ms = time.max(times.all_fired_at(oldest));
                break;
            }
        }
        if let Some(time_ms) = last {
            self.missed += count;
            self.record_decision(ScheduleOutcome::Missed, time_ms, now_ms, None, count);
        }
    }

    fn fire(&mut self, name: &str, time_ms: i64, replaces: Option<String>, at_ms: i64) -> DueFiring {
        let task = task_of(name, time_ms);
        self.fired += 1;
        self.last = Some(ScheduleFiring { time_ms, at_ms, task: task.clone() });
        self.record_decision(ScheduleOutcome::Fired, time_ms, at_ms, Some(task.clone()), 1);
        DueFiring { task, time_ms, replaces }
    }

    /// Records a manually triggered run.
    pub fn record_run(&mut self, task: &str, at_ms: i64) {
        self.last = Some(ScheduleFiring { time_ms: at_ms, at_ms, task: task.to_owned() });
        self.record_decision(ScheduleOutcome::Run, at_ms, at_ms, Some(task.to_owned()), 1);
    }

    /// Records a backfill of past times.
    pub fn record_backfill(&mut self, last_ms: i64, count: u64, at_ms: i64) {
        self.record_decision(ScheduleOutcome::Backfilled, last_ms, at_ms, None, count);
    }

    fn skip(&mut self, time_ms: i64, at_ms: i64) {
        self.skipped += 1;
        self.record_decision(ScheduleOutcome::Skipped, time_ms, at_ms, None, 1);
    }

    fn record_decision(
        &mut self,
        outcome: ScheduleOutcome,
        time_ms: i64,
        at_ms: i64,
        task: Option<String>,
        count: u64,
    ) {
        if let Some(newest) = self.recent.first_mut().filter(|newest| task.is_none() && newest.outcome == outcome) {
            (newest.time_ms, newest.at_ms, newest.count) = (time_ms, at_ms, newest.count + count);
            return;
        }
        self.recent.insert(0, ScheduleDecision { outcome, time_ms, at_ms, task, count });
        self.recent.truncate(MAX_RECENT);
    }
}

fn one() -> u64 {
    1
}

fn is_one(count: &u64) -> bool {
    *count == 1
}
