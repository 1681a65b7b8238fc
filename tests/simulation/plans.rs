//! What recurs: asked for over the api, and held against what the control topic says and the plain arithmetic of times.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use kafleet::broker::Partition;
use kafleet::model::event::{Event, Kind};
use kafleet::model::schedule::{Overlap, stamp};
use kafleet::publish::time_text;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::host::BEGINNING_MS;
use crate::story::{Deed, Mood, Replan, Wish};
use crate::trees::task_type;
use crate::verdict::Records;

/// How late the tracker may hear of a change: while all is well, and in trouble.
const HEARD_MS: [i64; 2] = [2_000, 30_000];

/// Something that was asked to recur.
#[derive(Clone)]
pub struct Plan {
    pub wish: Wish,
    begin_ms: i64,
    end_ms: i64,
}

/// What the control topic says of a schedule, in its order: when, and the value; None: it is taken back.
type Said = Vec<(i64, Option<Value>)>;

impl Fleet {
    pub async fn plan(&self, plan: usize, wish: &Wish, for_ms: u64) {
        let begin_ms = BEGINNING_MS + self.system.elapsed_ms() as i64;
        let end_ms = begin_ms + for_ms as i64;
        self.plans.borrow_mut().insert(plan, Plan { wish: wish.clone(), begin_ms, end_ms });
        let mut spec = json!({
            "end_at": time_text(end_ms),
            "overlap": wish.overlap,
            "task": {"type": task_type(wish.oak), "params": wish.script},
        });
        match wish.cron {
            true => spec["cron"] = json!(format!("*/{} * * * * *", wish.every_s)),
            false => spec["every"] = json!(format!("{}s", wish.every_s)),
        }
        let answer = self.insist(Method::PUT, &format!("/v1/schedules/s{plan}"), Some(spec)).await;
        if answer.as_ref().is_none_or(|answer| answer.0 >= 300) {
            self.violation(format!("schedule {plan} was not taken: {answer:?}"));
        }
    }

    pub async fn replan(&self, plan: usize, how: Replan) {
        let at = format!("/v1/schedules/s{plan}");
        let begin_ms = self.plans.borrow().get(&plan).map_or(BEGINNING_MS, |plan| plan.begin_ms);
        let (method, path) = match how {
            Replan::Pause => (Method::POST, format!("{at}/pause")),
            Replan::Resume => (Method::POST, format!("{at}/resume")),
            Replan::Run => (Method::POST, format!("{at}/run")),
            Replan::Backfill => (Method::POST, format!("{at}/backfill?from={}", time_text(begin_ms - 5_000))),
            Replan::Delete => (Method::DELETE, at),
        };
        self.call(method, &path, None).await;
    }

    /// By key.
    fn control(&self) -> BTreeMap<String, Said> {
        let mut said = BTreeMap::<String, Said>::new();
        self.each_record(&Partition::new(self.names.control(), 0), &mut |record| {
            let key = String::from_utf8_lossy(record.key.unwrap_or_default()).into_owned();
            let value = record.value.map(|value| serde_json::from_slice(value).unwrap());
            said.entry(key).or_default().push((record.timestamp_ms, value));
        });
        said
    }
}

impl Plan {
    /// The times after one and before its end.
    fn times(&self, after_ms: i64) -> impl Iterator<Item = i64> + use<> {
        let (step, end_ms) = (i64::from(self.wish.every_s) * 1_000, self.end_ms);
        (1..).map(move |n| (after_ms.div_euclid(step) + n) * step).take_while(move |time| *time < end_ms)
    }
}

fn last<'a>(control: &'a BTreeMap<String, Said>, key: &str) -> Option<&'a Value> {
    control.get(key)?.last()?.1.as_ref()
}

fn number(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or_default()
}

/// Why something is still to come.
pub fn unrest(fleet: &Fleet) -> Option<String> {
    let plans = fleet.plans.borrow();
    if plans.is_empty() {
        return None;
    }
    let control = fleet.control();
    if let Some((key, _)) = control
        .iter()
        .find(|(key, said)| key.starts_with("schedule-ask/") && said.last().is_some_and(|(_, value)| value.is_some()))
    {
        return Some(format!("`{key}` waits"));
    }
    for (n, plan) in plans.iter() {
        let Some(schedule) = last(&control, &format!("schedule/s{n}")).filter(|schedule| schedule["paused"].is_null()) else {
            continue;
        };
        let Some(time) = plan.times(number(schedule, "from_ms")).last() else { continue };
        let state = last(&control, &format!("schedule-state/s{n}"));
        let decided = state.is_some_and(|state| number(state, "through_ms") >= time && state["waiting_ms"].is_null());
        if !decided {
            return Some(format!("schedule {n} is to go to {}: {state:?}", stamp(time)));
        }
    }
    None
}

/// The tasks of schedules, each with its schedule.
pub fn tasks(fleet: &Fleet, log: &[Event]) -> BTreeMap<String, Plan> {
    let plans = fleet.plans.borrow();
    let mut tasks = BTreeMap::new();
    for event in log.iter().filter(|event| event.kind == Kind::Scheduled) {
        let of = event.id.as_str().split_once('.').and_then(|(name, _)| name.strip_prefix('s')?.parse::<usize>().ok());
        if let Some(plan) = of.and_then(|n| plans.get(&n)) {
            tasks.insert(event.id.to_string(), plan.clone());
        }
    }
    tasks
}

/// Each time that had to come has its task, no other one has, and each was made once.
pub fn judge(fleet: &Fleet, log: &[Event], wrong: &mut Vec<String>) {
    if fleet.plans.borrow().is_empty() {
        return;
    }
    let tasks = tasks(fleet, log);
    for id in tasks.keys() {
        let made = log.iter().filter(|event| event.kind == Kind::Scheduled && event.worker.is_none() && event.id.as_str() == id);
        if made.count() > 1 {
            wrong.push(format!("`{id}` was made twice by its schedule"));
        }
    }
    let control = fleet.control();
    for (n, plan) in fleet.plans.borrow().iter() {
        let empty = Said::new();
        let said = control.get(&format!("schedule/s{n}")).unwrap_or(&empty);
        let asks: BTreeMap<&str, (i64, &Value)> = control
            .iter()
            .filter_map(|(key, said)| Some((key.strip_prefix(&format!("schedule-ask/s{n}/"))?, (said[0].0, said[0].1.as_ref()?))))
            .collect();
        let mine: BTreeSet<&str> = tasks.keys().filter_map(|id| id.strip_prefix(&format!("s{n}."))).collect();
        for name in &mine {
            let fits = match name.strip_prefix("run-") {
                Some(ask) => asks.contains_key(ask),
                None => may_fire(fleet, plan, said, &asks, name),
            };
            if !fits {
                wrong.push(format!("`s{n}.{name}` was made, and nobody wanted it: {said:?} {asks:?}"));
            }
        }
        must_fire(*n, plan, said, &asks, &mine, last(&control, &format!("schedule-state/s{n}")), wrong);
    }
}

/// Some version of it, while it was in force, wanted this time; or it was made up for.
fn may_fire(fleet: &Fleet, plan: &Plan, said: &Said, asks: &BTreeMap<&str, (i64, &Value)>, name: &str) -> bool {
    let late_ms = HEARD_MS[usize::from(fleet.story.mood == Mood::Wild)];
    let Some(time) = plan.times(plan.begin_ms - 60_000).find(|time| stamp(*time) == name) else { return false };
    let wanted = said.iter().enumerate().any(|(n, (_, schedule))| {
        let Some(schedule) = schedule else { return false };
        let until = said.get(n + 1).map_or(i64::MAX, |(at, _)| at + late_ms);
        schedule["paused"].is_null() && number(schedule, "from_ms") < time && time <= until
    });
    let made_up =
        |(_, ask): &(i64, &Value)| number(&ask["backfill"], "from_ms") <= time && time <= number(&ask["backfill"], "to_ms");
    wanted || asks.values().any(made_up)
}

fn must_fire(
    n: usize,
    plan: &Plan,
    said: &Said,
    asks: &BTreeMap<&str, (i64, &Value)>,
    mine: &BTreeSet<&str>,
    state: Option<&Value>,
    wrong: &mut Vec<String>,
) {
    let Some((_, Some(schedule))) = said.last() else { return };
    if schedule["paused"].is_object() {
        return;
    }
    let times: Vec<String> = plan.times(number(schedule, "from_ms")).map(stamp).collect();
    if plan.wish.overlap == Overlap::Allow {
        for time in times.iter().filter(|time| !mine.contains(time.as_str())) {
            wrong.push(format!("`s{n}.{time}` was never made: {state:?}"));
        }
    }
    // Never taken back, never asked for: each time is in one of its counts.
    if said.len() == 1 && asks.is_empty() && !times.is_empty() {
        let count = |name| state.map_or(0, |state| number(state, name));
        let told = [count("fired"), count("skipped"), count("missed")];
        if told.iter().sum::<i64>() != times.len() as i64 || told[0] != mine.len() as i64 {
            wrong.push(format!("schedule {n} had {} times and made {} tasks, and says {told:?}", times.len(), mine.len()));
        }
    }
    if !said.iter().any(|(_, value)| value.is_none()) {
        for (ask, _) in asks.iter().filter(|(_, (_, ask))| ask["backfill"].is_null()) {
            if !mine.contains(format!("run-{ask}").as_str()) {
                wrong.push(format!("the run {ask} of schedule {n} was never made"));
            }
        }
    }
}

/// Where one has to end before the next begins, no two are open: seen by a store that has not lost anything.
pub fn overlaps(fleet: &Fleet, records: &Records, wrong: &mut Vec<String>) {
    let asked = |n: usize| {
        let items = fleet.story.items.iter();
        items.filter(|item| matches!(item.deed, Deed::Replan { plan, how: Replan::Run | Replan::Backfill } if plan == n)).count()
    };
    for (n, plan) in fleet.plans.borrow().iter() {
        let alone = matches!(plan.wish.overlap, Overlap::Skip | Overlap::BufferOne);
        if !alone || fleet.story.mood == Mood::Wild || asked(*n) > 0 || fleet.retried.get() {
            continue;
        }
        let mine = records.iter().filter(|(id, _)| id.starts_with(&format!("s{n}.")));
        let open: Vec<&String> = mine.filter(|(_, node)| !node.state.is_terminal()).map(|(id, _)| id).collect();
        if open.len() > 1 {
            wrong.push(format!("{open:?} are open at once, and the schedule has {:?}", plan.wish.overlap));
        }
    }
}
