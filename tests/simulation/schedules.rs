//! Schedules: requested over the API, and checked against the control topic and plain arithmetic on times.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use kafleet::broker::Partition;
use kafleet::model::event::{Event, Kind};
use kafleet::model::schedule::{Overlap, stamp};
use kafleet::model::units::time::time_text;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::host::START_MS;
use crate::requests::Client;
use crate::scenario::FaultMode;
use crate::step::{ScheduleChange, ScheduleSpec, Step};
use crate::task_types::task_type;
use crate::verdict::Records;

/// Maximum delay until the tracker applies a change: without and with faults.
const MAX_DELAY_MS: [i64; 2] = [2_000, 30_000];

/// Expected behaviour of a schedule.
#[derive(Clone)]
pub struct ExpectedSchedule {
    pub spec: ScheduleSpec,
    begin_ms: i64,
    end_ms: i64,
}

/// Values of a key of the control topic with their timestamps, in order; `None` for a tombstone.
type RecordHistory = Vec<(i64, Option<Value>)>;

impl Client<'_> {
    pub async fn create_schedule(&self, number: usize, spec: &ScheduleSpec, for_ms: u64) {
        let begin_ms = START_MS + self.fleet.system.elapsed_ms() as i64;
        let end_ms = begin_ms + for_ms as i64;
        self.fleet
            .requests
            .schedules
            .borrow_mut()
            .insert(number, ExpectedSchedule { spec: spec.clone(), begin_ms, end_ms });
        let mut body = json!({
            "end_at": time_text(end_ms),
            "overlap": spec.overlap,
            "task": {"type": task_type(spec.unordered), "params": spec.script},
        });
        if spec.cron {
            body["cron"] = json!(format!("*/{} * * * * *", spec.every_s));
        } else {
            body["every"] = json!(format!("{}s", spec.every_s));
        }
        let response = self.repeat_call(Method::PUT, &format!("/v1/schedules/s{number}"), Some(body)).await;
        if response.as_ref().is_none_or(|response| response.0 >= 300) {
            self.fleet.violation(format!("schedule {number} was not accepted: {response:?}"));
        }
    }

    pub async fn change_schedule(&self, number: usize, change: ScheduleChange) {
        let at = format!("/v1/schedules/s{number}");
        let begin_ms =
            self.fleet.requests.schedules.borrow().get(&number).map_or(START_MS, |expected| expected.begin_ms);
        let (method, path) = match change {
            ScheduleChange::Pause => (Method::POST, format!("{at}/pause")),
            ScheduleChange::Resume => (Method::POST, format!("{at}/resume")),
            ScheduleChange::Run => (Method::POST, format!("{at}/trigger")),
            ScheduleChange::Backfill => (Method::POST, format!("{at}/backfill?from={}", time_text(begin_ms - 5_000))),
            ScheduleChange::Delete => (Method::DELETE, at),
        };
        self.call(method, &path, None).await;
    }
}

/// Records of the control topic by key.
fn control_records(fleet: &Fleet) -> BTreeMap<String, RecordHistory> {
    let mut records = BTreeMap::<String, RecordHistory>::new();
    fleet.each_record(&Partition::new(fleet.names.control(), 0), &mut |record| {
        let key = String::from_utf8_lossy(record.key.unwrap_or_default()).into_owned();
        let value = record.value.map(|value| serde_json::from_slice(value).unwrap());
        records.entry(key).or_default().push((record.timestamp_ms, value));
    });
    records
}

impl ExpectedSchedule {
    /// Times of the schedule after a time and before its end.
    fn times(&self, after_ms: i64) -> impl Iterator<Item = i64> + use<> {
        let (step, end_ms) = (i64::from(self.spec.every_s) * 1_000, self.end_ms);
        (1..).map(move |n| (after_ms.div_euclid(step) + n) * step).take_while(move |time| *time < end_ms)
    }
}

fn last<'a>(control: &'a BTreeMap<String, RecordHistory>, key: &str) -> Option<&'a Value> {
    control.get(key)?.last()?.1.as_ref()
}

fn number(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or_default()
}

/// Describes pending work of schedules.
pub fn pending_work(fleet: &Fleet) -> Option<String> {
    let schedules = fleet.requests.schedules.borrow();
    if schedules.is_empty() {
        return None;
    }
    let control = control_records(fleet);
    if let Some((key, _)) = control.iter().find(|(key, versions)| {
        key.starts_with("schedule-request/") && versions.last().is_some_and(|(_, value)| value.is_some())
    }) {
        return Some(format!("`{key}` is not processed"));
    }
    for (n, expected) in schedules.iter() {
        let Some(schedule) = last(&control, &format!("schedule/s{n}")).filter(|schedule| schedule["paused"].is_null())
        else {
            continue;
        };
        let Some(time) = expected.times(number(schedule, "from_ms")).last() else { continue };
        let state = last(&control, &format!("schedule-state/s{n}"));
        let decided = state.is_some_and(|state| number(state, "through_ms") >= time && state["waiting_ms"].is_null());
        if !decided {
            return Some(format!("schedule {n} is not processed up to {}: {state:?}", stamp(time)));
        }
    }
    None
}

/// Tasks of schedules by id, each with its schedule.
pub fn tasks(fleet: &Fleet, log: &[Event]) -> BTreeMap<String, ExpectedSchedule> {
    let schedules = fleet.requests.schedules.borrow();
    let mut tasks = BTreeMap::new();
    for event in log.iter().filter(|event| event.kind() == Kind::Scheduled) {
        let number =
            event.id.as_str().split_once('.').and_then(|(name, _)| name.strip_prefix('s')?.parse::<usize>().ok());
        if let Some(expected) = number.and_then(|n| schedules.get(&n)) {
            tasks.insert(event.id.to_string(), expected.clone());
        }
    }
    tasks
}

/// Checks that each due time has exactly one task and that there are no others.
pub fn judge(fleet: &Fleet, log: &[Event], violations: &mut Vec<String>) {
    if fleet.requests.schedules.borrow().is_empty() {
        return;
    }
    let tasks = tasks(fleet, log);
    for id in tasks.keys() {
        let created = log
            .iter()
            .filter(|event| event.kind() == Kind::Scheduled && event.worker.is_none() && event.id.as_str() == id);
        if created.count() > 1 {
            violations.push(format!("`{id}` was created twice"));
        }
    }
    let control = control_records(fleet);
    for (n, expected) in fleet.requests.schedules.borrow().iter() {
        let empty = RecordHistory::new();
        let versions = control.get(&format!("schedule/s{n}")).unwrap_or(&empty);
        let schedule_requests: BTreeMap<&str, (i64, &Value)> = control
            .iter()
            .filter_map(|(key, versions)| {
                Some((key.strip_prefix(&format!("schedule-request/s{n}/"))?, (versions[0].0, versions[0].1.as_ref()?)))
            })
            .collect();
        let mine: BTreeSet<&str> = tasks.keys().filter_map(|id| id.strip_prefix(&format!("s{n}."))).collect();
        for name in &mine {
            let is_permitted = match name.strip_prefix("run-") {
                Some(request) => schedule_requests.contains_key(request),
                None => may_create(fleet, expected, versions, &schedule_requests, name),
            };
            if !is_permitted {
                violations
                    .push(format!("`s{n}.{name}` was created without a reason: {versions:?} {schedule_requests:?}"));
            }
        }
        check_completeness(
            *n,
            expected,
            versions,
            &schedule_requests,
            &mine,
            last(&control, &format!("schedule-state/s{n}")),
            violations,
        );
    }
}

/// Whether a version of the schedule in force, or a backfill, includes the time.
fn may_create(
    fleet: &Fleet,
    expected: &ExpectedSchedule,
    versions: &RecordHistory,
    schedule_requests: &BTreeMap<&str, (i64, &Value)>,
    name: &str,
) -> bool {
    let delay_ms = MAX_DELAY_MS[usize::from(fleet.scenario.fault_mode == FaultMode::All)];
    let Some(time) = expected.times(expected.begin_ms - 60_000).find(|time| stamp(*time) == name) else { return false };
    let in_force = versions.iter().enumerate().any(|(n, (_, schedule))| {
        let Some(schedule) = schedule else { return false };
        let until = versions.get(n + 1).map_or(i64::MAX, |(at, _)| at + delay_ms);
        schedule["paused"].is_null() && number(schedule, "from_ms") < time && time <= until
    });
    let is_backfilled = |(_, request): &(i64, &Value)| {
        number(&request["backfill"], "from_ms") <= time && time <= number(&request["backfill"], "to_ms")
    };
    in_force || schedule_requests.values().any(is_backfilled)
}

fn check_completeness(
    n: usize,
    expected: &ExpectedSchedule,
    versions: &RecordHistory,
    schedule_requests: &BTreeMap<&str, (i64, &Value)>,
    mine: &BTreeSet<&str>,
    state: Option<&Value>,
    violations: &mut Vec<String>,
) {
    let Some((_, Some(schedule))) = versions.last() else { return };
    if schedule["paused"].is_object() {
        return;
    }
    let times: Vec<String> = expected.times(number(schedule, "from_ms")).map(stamp).collect();
    if expected.spec.overlap == Overlap::Allow {
        for time in times.iter().filter(|time| !mine.contains(time.as_str())) {
            violations.push(format!("`s{n}.{time}` was not created: {state:?}"));
        }
    }
    // Without deletions and requests, the counts add up to the number of times.
    if versions.len() == 1 && schedule_requests.is_empty() && !times.is_empty() {
        let count = |name| state.map_or(0, |state| number(state, name));
        let counts = [count("fired"), count("skipped"), count("missed")];
        if counts.iter().sum::<i64>() != times.len() as i64 || counts[0] != mine.len() as i64 {
            violations.push(format!(
                "schedule {n} has {} times, created {} tasks, and counts {counts:?}",
                times.len(),
                mine.len()
            ));
        }
    }
    if !versions.iter().any(|(_, value)| value.is_none()) {
        for (request, _) in schedule_requests.iter().filter(|(_, (_, request))| request["backfill"].is_null()) {
            if !mine.contains(format!("run-{request}").as_str()) {
                violations.push(format!("the run {request} of schedule {n} was not created"));
            }
        }
    }
}

/// Checks that at most one task is open under overlap policies that exclude more, where the store has lost nothing.
pub fn overlaps(fleet: &Fleet, records: &Records, violations: &mut Vec<String>) {
    let requests_of = |n: usize| {
        let items = fleet.scenario.steps.iter();
        items.filter(|timed| matches!(timed.step, Step::ChangeSchedule { schedule, change: ScheduleChange::Run | ScheduleChange::Backfill } if schedule == n)).count()
    };
    for (n, expected) in fleet.requests.schedules.borrow().iter() {
        let exclusive = matches!(expected.spec.overlap, Overlap::Skip | Overlap::BufferOne);
        if !exclusive
            || fleet.scenario.fault_mode == FaultMode::All
            || requests_of(*n) > 0
            || fleet.requests.retried.get()
        {
            continue;
        }
        let mine = records.iter().filter(|(id, _)| id.starts_with(&format!("s{n}.")));
        let open: Vec<&String> =
            mine.filter(|(_, task_record)| !task_record.state.is_terminal()).map(|(id, _)| id).collect();
        if open.len() > 1 {
            violations.push(format!("{open:?} are open at once with overlap {:?}", expected.spec.overlap));
        }
    }
}
