//! Documents of statistics, failures and requests.

use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Statistics over time: `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Length of the span of each point.
    pub step: Millis,
    /// Log time up to which all partitions are folded; later points are incomplete.
    pub complete_to: String,
    /// Time from which counts are exact; `null`: all of them. Set after a fold that began after the log's first event.
    pub exact_from: Option<String>,
    pub series: Vec<StatsSeries>,
    /// Number of types left out: the 100 types with the most tasks are shown.
    pub left_out: u64,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Statistics of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatsSeries {
    /// Task type; `*`: all types, `~`: types beyond the first 200 of a partition.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Points, oldest first.
    pub points: Vec<StatsPoint>,
}

/// Counts in one span of log time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatsPoint {
    /// Start of the span.
    pub at: String,
    /// Tasks that became open: their type became known while their own state was pending, or they were run again.
    pub opened: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub expired: u64,
    /// Tasks that stopped being open without an end: superseded and removed, or run again as another type.
    pub dropped: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Terminal events after the first of a run.
    pub duplicates: u64,
    /// Total duration of the attempts that ended, ms.
    pub busy_ms: u64,
    /// Open tasks at the end of the span.
    pub open: u64,
    /// Time between readiness and the first start of a run.
    pub wait: Durations,
    /// Durations of successful attempts.
    pub run: Durations,
}

impl StatsPoint {
    /// Tasks that ended, in whatever state.
    pub const fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled + self.expired
    }

    /// Tasks that ended without success, other than by a cancel.
    pub const fn unsuccessful(&self) -> u64 {
        self.failed + self.expired
    }
}

impl StatsSeries {
    /// Sum of a count over a range of time. A point that is partly in the range counts in proportion.
    pub fn sum_between(&self, step: Millis, from_ms: i64, to_ms: i64, count: impl Fn(&StatsPoint) -> u64) -> f64 {
        let (step, Some(first)) = (step.as_i64().max(1), self.first_ms()) else { return 0.0 };
        let number = |at_ms: i64| (at_ms.saturating_sub(first).div_euclid(step)).clamp(0, self.points.len() as i64);
        let share = |n: i64| {
            let start = first + n * step;
            let overlap = to_ms.min(start + step) - from_ms.max(start);
            let point = self.points.get(usize::try_from(n).ok()?)?;
            Some(count(point) as f64 * overlap.max(0) as f64 / step as f64)
        };
        (number(from_ms)..=number(to_ms)).filter_map(share).sum()
    }

    /// Point whose span contains a time.
    pub fn point_at(&self, step: Millis, at_ms: i64) -> Option<&StatsPoint> {
        let number = at_ms.checked_sub(self.first_ms()?)?.div_euclid(step.as_i64().max(1));
        self.points.get(usize::try_from(number).ok()?)
    }

    fn first_ms(&self) -> Option<i64> {
        parse_time(&self.points.first()?.at).ok()
    }
}

/// Change from an earlier value in percent, such as `▲ 12 %`. `None`: there was none.
pub fn change_text(now: f64, earlier: f64) -> Option<String> {
    let percent = ((now - earlier) / earlier * 100.0).round();
    match percent {
        _ if earlier <= 0.0 => None,
        percent if percent > 0.0 => Some(format!("▲ {percent} %")),
        percent if percent < 0.0 => Some(format!("▼ {} %", -percent)),
        _ => Some("± 0 %".to_owned()),
    }
}

/// Distribution of durations, ms. Percentiles are at most 6.3 % off, `max` is exact; `null` without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Durations {
    pub count: u64,
    pub p50: Option<u64>,
    pub p95: Option<u64>,
    pub p99: Option<u64>,
    pub max: Option<u64>,
}

/// Distributions of the times of tasks: `GET /v1/stats/durations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DurationStats {
    /// Task type; `*`: all types.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Log time from which, and up to which, times are included.
    pub from: String,
    pub to: String,
    /// Time between readiness and the first start of a run.
    pub wait: DurationHistogram,
    /// Durations of successful attempts.
    pub run: DurationHistogram,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Histogram of durations, with buckets of at most 12.5 % width.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DurationHistogram {
    pub summary: Durations,
    /// Buckets from the first to the last one that is not empty; at most 234.
    pub buckets: Vec<DurationBucket>,
}

/// Number of durations between two bounds, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DurationBucket {
    pub from_ms: u64,
    /// Exclusive; the last bucket has all longer ones.
    pub to_ms: u64,
    pub count: u64,
}

/// Slowest attempts: `GET /v1/stats/slowest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slowest {
    /// Log time from which attempts are included.
    pub from: String,
    /// Attempts, slowest first; at most 5 per type, hour and partition are known.
    pub attempts: Vec<SlowestAttempt>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlowestAttempt {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<String>,
    pub took_ms: u64,
    pub ended_at: String,
}

/// Failed tasks by type and error: `GET /v1/failures`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failures {
    /// Groups, largest first by default.
    pub groups: Vec<FailureGroup>,
    /// Number of groups that match, at least, including those left out.
    pub errors: u64,
    /// A partition has more than 200 errors of a type, a text was searched in more than 200 errors, or, by root, not all
    /// failed tasks were read: counts are lower bounds, and rare errors are missing.
    pub at_least: bool,
    /// There may be more messages of the kinds: a partition has more than 200 errors of a type.
    #[serde(default)]
    pub messages_at_least: bool,
    /// There are more unresolved dead letters than were counted, the newest 5,000: their numbers are lower bounds.
    #[serde(default)]
    pub dead_letters_at_least: bool,
    /// Number of unresolved dead letters that belong to no failed task: records that are not tasks, and tasks whose record
    /// has been removed; `null` while it is not known.
    #[serde(default)]
    pub other_dead_letters: Option<u64>,
    /// Log time since which the counted tasks ended; `null`: all retained tasks are counted.
    #[serde(default)]
    pub since: Option<String>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Tasks of a type whose own state is failed or expired, with similar errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailureGroup {
    #[serde(rename = "type")]
    pub task_type: String,
    /// Name of the error, or of its kind.
    pub error: String,
    /// Kind of the error; `null` if the tasks ended without one.
    #[serde(default)]
    pub kind: Option<String>,
    /// Kind and first line of the newest task's error.
    pub text: String,
    /// Number of tasks that are failed or expired now and ended in the range, including superseded ones until they are
    /// removed. By root: of those that were read.
    pub count: u64,
    /// Number of all retained tasks that are failed or expired now, at any time.
    #[serde(default)]
    pub retained: u64,
    /// Number of unresolved dead letters of the retained tasks; `null` while it is not known, and by root.
    #[serde(default)]
    pub dead_letters: Option<u64>,
    /// Number of different messages of the counted tasks; only by kind.
    #[serde(default)]
    pub messages: Option<u64>,
    /// Type of the roots of the tasks, and number of the roots; only by root.
    #[serde(default)]
    pub root_type: Option<String>,
    #[serde(default)]
    pub roots: Option<u64>,
    /// Log times at which the first and the last of the retained tasks ended; by root: of those that were read.
    pub first: String,
    pub last: String,
    /// Log time at which the error first ended a task: `first`, or an earlier time in the last 24 hours at which it ended a
    /// task that has been retried or removed since.
    #[serde(default)]
    pub first_seen: String,
    /// Id of the task that ended last.
    pub newest: String,
    /// The newest task, or an ancestor of it, belongs to an earlier run of its parent and does not count there.
    pub newest_superseded: bool,
    /// Workers of up to 20 of the newest tasks in the newest one's partition.
    pub workers: Vec<String>,
    /// Failed attempts in each of the last 24 hours, oldest first. Lower bounds if an hour had more than 16 errors.
    pub attempts_by_hour: Vec<u64>,
}

/// Audit log, newest request first: `GET /v1/audit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    pub requests: Vec<AuditDocument>,
    /// Events partitions of which the store has lost data, or which no tracker projects: tasks are missing or outdated.
    #[serde(default)]
    pub incomplete: Vec<u32>,
}

/// Request of a user, whether or not it took effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditDocument {
    pub at: String,
    /// Name of the API token; `null` without tokens.
    pub by: Option<String>,
    /// `cancel`, `retry`, `retry_failed`, `edit`, `start`, `drop`, `redrive`, `pause_type`, `resume_type`, `set_limits`,
    /// `open_circuit`, `close_circuit`, `release_circuit`, `forget_type`,
    /// `set_kill_switch`, `delete_kill_switch`, `set_view`, `delete_view`, `create_schedule`, `update_schedule`, `delete_schedule`,
    /// `pause_schedule`, `resume_schedule`, `run_schedule`, `backfill_schedule`, `bulk_cancel`, `bulk_retry`,
    /// `bulk_retry_failed`, `bulk_start_now`, or an action of a newer build.
    pub action: String,
    /// Task, type, kill switch, view, schedule, dead letter, or the task of a bulk action.
    pub target: String,
    pub reason: Option<String>,
    /// Position of the event, as `partition:offset`.
    pub position: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: &str, opened: u64) -> StatsPoint {
        StatsPoint {
            at: at.into(),
            opened,
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            expired: 0,
            dropped: 0,
            retried: 0,
            duplicates: 0,
            busy_ms: 0,
            open: opened,
            wait: Durations::default(),
            run: Durations::default(),
        }
    }

    #[test]
    fn points_count_with_the_part_that_is_in_the_range() {
        let points = vec![point("2026-11-01T13:00:00.000Z", 60), point("2026-11-01T14:00:00.000Z", 120)];
        let series = StatsSeries { task_type: "*".into(), points };
        let step = Millis::secs(3_600);
        let at = |text: &str| parse_time(text).unwrap();
        let sum = |from: &str, to: &str| series.sum_between(step, at(from), at(to), |point| point.opened);
        assert_eq!(sum("2026-11-01T13:30:00Z", "2026-11-01T14:30:00Z"), 90.0);
        assert_eq!(sum("2026-11-01T12:00:00Z", "2026-11-01T13:30:00Z"), 30.0);
        assert_eq!(sum("2026-11-01T13:00:00Z", "2026-11-01T16:00:00Z"), 180.0);
        assert_eq!(sum("2026-11-01T17:00:00Z", "2026-11-01T18:00:00Z"), 0.0);
        let open = |text: &str| series.point_at(step, at(text)).map(|point| point.open);
        assert_eq!(
            (open("2026-11-01T14:59:00Z"), open("2026-11-01T15:00:00Z"), open("2026-11-01T12:59:00Z")),
            (Some(120), None, None)
        );
    }

    #[test]
    fn change_is_in_percent_of_the_earlier_value() {
        let changes =
            [(112.0, 100.0), (88.4, 100.0), (100.2, 100.0), (5.0, 0.0)].map(|(now, earlier)| change_text(now, earlier));
        assert_eq!(changes.map(Option::unwrap_or_default), ["▲ 12 %", "▼ 12 %", "± 0 %", ""]);
    }
}
