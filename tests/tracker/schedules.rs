//! Recurring schedules: each time is fired once, whatever happens to the tracker that fires them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{Partition, TopicSpec, memory as broker};
use kafleet::control::schedules::{ScheduleKey, ScheduleRequest, ScheduleState, Span};
use kafleet::control::{CONTROL_VERSION, ControlState, ControlWatch, arrange, keep};
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::state::State as TaskState;
use kafleet::model::schedule::step::{Outcome, State};
use kafleet::model::schedule::{Overlap, Paused, Schedule, Spec, Template, task_of};
use kafleet::publish::time_text;
use kafleet::runtime::now_ms;
use kafleet::store::memory::Memory;
use serde_json::json;

use crate::cases::agrees;
use crate::firing::{header, make_topics, node, read_all, until_state};
use crate::ground::{DEADLINE, Ground, Tracker, until};
use crate::memory::ground;
use crate::shaky::{ShakyBroker, Step};
use crate::story::succeeded;

const TYPE: &str = "root";
const HOUR: i64 = 3_600_000;

/// Every second, so many times, which have all been while nothing could fire them.
fn past(times: i64, overlap: Overlap) -> Schedule {
    let from_ms = now_ms() / 1_000 * 1_000 - HOUR;
    let task = Template { task_type: TYPE.into(), params: json!({"n": 1}), tags: vec!["x".into()], ..Template::default() };
    let end_at = Some(time_text(from_ms + (times + 1) * 1_000));
    let spec = Spec { every: Some("1s".parse().unwrap()), end_at, overlap, task, ..Spec::default() };
    Schedule { v: CONTROL_VERSION, at_ms: now_ms(), from_ms, paused: None, applied: false, spec }
}

/// From now on.
fn open(overlap: Overlap) -> Schedule {
    let mut schedule = past(1, overlap);
    (schedule.spec.end_at, schedule.from_ms) = (None, now_ms());
    schedule
}

fn task(schedule: &Schedule, name: &str, n: i64) -> String {
    task_of(name, schedule.from_ms + n * 1_000)
}

async fn put(ground: &Ground, name: &str, schedule: &Schedule) {
    arrange(&ground.link, &ground.names, &ScheduleKey::Schedule(name.into()), Some(schedule)).await.unwrap();
}

async fn delete(ground: &Ground, name: &str) {
    arrange(&ground.link, &ground.names, &ScheduleKey::Schedule(name.into()), None::<&Schedule>).await.unwrap();
}

async fn ask(ground: &Ground, name: &str, ask: &str, backfill: Option<Span>) {
    let said = ScheduleRequest { v: CONTROL_VERSION, at_ms: now_ms(), backfill };
    arrange(&ground.link, &ground.names, &ScheduleKey::ScheduleRequest(name.into(), ask.into()), Some(&said)).await.unwrap();
}

/// As whoever reads the control topic now.
async fn plan(ground: &Ground) -> ScheduleState {
    let board = ControlWatch::new(ControlState::without_cancels().with_plan());
    let _reading = keep(board.clone(), ground.broker.clone(), &ground.names, None);
    tokio::time::timeout(DEADLINE, board.whole()).await.expect("the control topic is read");
    board.orders().plan.clone()
}

async fn state(ground: &Ground, name: &str) -> State {
    plan(ground).await.states.get(name).map(|state| (**state).clone()).unwrap_or_default()
}

async fn until_plan(ground: &Ground, what: &str, holds: impl Fn(&ScheduleState) -> bool) {
    until(what, || async { holds(&plan(ground).await) }).await;
}

/// How often each id was fired, and how often it was published.
fn fired(ground: &Ground) -> BTreeMap<String, (usize, usize)> {
    let mut times = BTreeMap::<String, (usize, usize)>::new();
    for record in read_all(ground, &ground.names.events()) {
        let Some(event) = record.value.and_then(|value| Event::decode(&value).ok()) else { continue };
        if event.kind == Kind::Scheduled {
            times.entry(event.id.to_string()).or_default().0 += 1;
        }
    }
    for record in read_all(ground, &ground.names.tasks(TYPE)) {
        times.entry(header(&record, "ce_id").unwrap().to_owned()).or_default().1 += 1;
    }
    times
}

/// These tasks, each fired and published once, and no others.
async fn exactly(ground: &Ground, tasks: Vec<String>) {
    let released = || async { fired(ground).values().filter(|(_, published)| *published > 0).count() >= tasks.len() };
    until(&format!("{} tasks are published", tasks.len()), released).await;
    let wanted: BTreeMap<String, (usize, usize)> = tasks.into_iter().map(|task| (task, (1, 1))).collect();
    assert_eq!(fired(ground), wanted);
    agrees(ground).await;
}

pub async fn each_time_is_fired_once(ground: Ground) {
    make_topics(&ground);
    let schedule = past(30, Overlap::Allow);
    put(&ground, "s", &schedule).await;
    let tracker = ground.tracker().await;
    exactly(&ground, (1..=30).map(|n| task(&schedule, "s", n)).collect()).await;
    let first = task(&schedule, "s", 1);
    let made = until_state(&ground, &first, TaskState::Queued).await;
    let policy = made.policy.unwrap();
    assert_eq!((policy.creator.as_deref(), policy.tags), (Some("schedule/s"), vec!["x".to_owned()]));
    let scheduled_for = time_text(schedule.from_ms + 1_000);
    assert_eq!(policy.rules.options, Some(json!({"schedule": "s", "scheduled_for": scheduled_for})));
    let records = read_all(&ground, &ground.names.tasks(TYPE));
    assert!(records.iter().all(|record| record.value.as_deref() == Some(b"{\"n\":1}")));
    let state = state(&ground, "s").await;
    assert_eq!((state.fired, state.skipped, state.missed, state.recent.len()), (30, 0, 0, 10));
    assert_eq!(state.last.unwrap().task, task(&schedule, "s", 30));
    let metric = |outcome: &str| tracker.metrics.schedules.times.with_label_values(&[outcome]).get();
    // Counted only when the transaction has returned.
    until("they are counted", || async { metric("fired") == 30 }).await;
    assert_eq!(metric("skipped"), 0);
    tracker.is_well().await;
    tracker.stop().await;
}

/// Owners come and go, told to stop or just gone, while hundreds of times are due.
pub async fn owners_change_while_times_are_due(ground: Ground) {
    make_topics(&ground);
    let schedules: Vec<Schedule> = (0..4).map(|_| past(150, Overlap::Allow)).collect();
    let first = ground.tracker().await;
    for (n, schedule) in schedules.iter().enumerate() {
        put(&ground, &format!("s{n}"), schedule).await;
    }
    let second = ground.tracker().await;
    until("something is fired", || async { !fired(&ground).is_empty() }).await;
    first.running.abort();
    first.shutdown.abort();
    let third = ground.tracker().await;
    second.stop().await;
    let of = |(n, schedule): (usize, &Schedule)| (1..=150).map(|time| task(schedule, &format!("s{n}"), time)).collect::<Vec<_>>();
    exactly(&ground, schedules.iter().enumerate().flat_map(of).collect()).await;
    third.stop().await;
}

async fn ends(ground: &Ground, task: &str) {
    ground.write(&[succeeded(task)]).await;
}

/// While its task runs, times are left out, or wait, or replace it.
pub async fn overlaps_are_as_asked_for(ground: Ground) {
    make_topics(&ground);
    for (name, overlap) in [("skip", Overlap::Skip), ("buffer", Overlap::BufferOne), ("replace", Overlap::Replace)] {
        put(&ground, name, &open(overlap)).await;
    }
    let tracker = ground.tracker().await;
    until_plan(&ground, "times are left out", |plan| {
        let many = |name: &str| plan.states.get(name).is_some_and(|state| state.skipped >= 1);
        many("skip") && many("buffer") && plan.states.get("replace").is_some_and(|state| state.fired >= 2)
    })
    .await;
    let (skipping, buffering) = (state(&ground, "skip").await, state(&ground, "buffer").await);
    assert_eq!((skipping.fired, buffering.fired), (1, 1), "their tasks have not ended");
    assert!(buffering.waiting_ms.is_some());
    let replaced = fired(&ground).into_keys().find(|task| task.starts_with("replace.")).unwrap();
    let replaced = until_state(&ground, &replaced, TaskState::Cancelled).await;
    assert!(replaced.history.iter().any(|entry| entry.message.as_deref().is_some_and(|why| why.contains("schedule `replace`"))));
    let buffered = task_of("buffer", buffering.waiting_ms.unwrap());
    for last in [skipping.last.unwrap().task, buffering.last.unwrap().task] {
        ends(&ground, &last).await;
    }
    until_plan(&ground, "the next ones are fired", |plan| {
        plan.states["skip"].fired == 2 && plan.states["buffer"].last.as_ref().is_some_and(|last| last.task == buffered)
    })
    .await;
    tracker.stop().await;
    let unique = fired(&ground);
    assert!(unique.values().all(|(fired, published)| *fired == 1 && *published <= 1), "{unique:?}");
}

pub async fn people_change_schedules(ground: Ground) {
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let mut schedule = open(Overlap::Allow);
    put(&ground, "s", &schedule).await;
    until_plan(&ground, "it is fired", |plan| plan.states.get("s").is_some_and(|state| state.fired >= 1)).await;
    schedule.paused = Some(Paused { at_ms: now_ms(), reason: None });
    put(&ground, "s", &schedule).await;
    // A run that is asked for later is done later than the pause is seen.
    ask(&ground, "s", "one", None).await;
    until_plan(&ground, "it runs while it is paused", |plan| plan.asks.is_empty()).await;
    let paused = state(&ground, "s").await;
    assert_eq!((paused.recent[0].outcome, paused.recent[0].task.as_deref()), (Outcome::Run, Some("s.run-one")));
    until_state(&ground, "s.run-one", TaskState::Queued).await;
    ask(&ground, "s", "two", None).await;
    until_plan(&ground, "it runs again", |plan| plan.asks.is_empty()).await;
    assert_eq!(state(&ground, "s").await.fired, paused.fired, "nothing else is fired");
    // What was between is not made up for.
    (schedule.paused, schedule.from_ms) = (None, now_ms());
    put(&ground, "s", &schedule).await;
    until_plan(&ground, "it goes on", |plan| plan.states["s"].fired > paused.fired).await;
    let went_on = state(&ground, "s").await;
    assert!(went_on.recent[0].time_ms > schedule.from_ms && went_on.missed == 0);
    delete(&ground, "s").await;
    until_plan(&ground, "nothing is left of it", ScheduleState::is_empty).await;
    ask(&ground, "s", "three", None).await;
    until_plan(&ground, "a request of nothing goes", ScheduleState::is_empty).await;
    tracker.is_well().await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// Times that have a task are left alone.
pub async fn a_backfill_fires_what_is_missing(ground: Ground) {
    make_topics(&ground);
    let mut schedule = past(20, Overlap::Allow);
    put(&ground, "s", &schedule).await;
    let tracker = ground.tracker().await;
    exactly(&ground, (1..=20).map(|n| task(&schedule, "s", n)).collect()).await;
    let from_ms = schedule.from_ms;
    schedule.spec.end_at = Some(time_text(from_ms + 10_000_000));
    // Given other times, it has a future that is not to begin here.
    schedule.paused = Some(Paused { at_ms: 0, reason: None });
    put(&ground, "s", &schedule).await;
    let span = Span { from_ms: from_ms - 9_000, to_ms: from_ms + 250_000 };
    ask(&ground, "s", "b", Some(span)).await;
    exactly(&ground, (-9..=250).map(|n| task(&schedule, "s", n)).collect()).await;
    until_plan(&ground, "it is done", |plan| plan.asks.is_empty()).await;
    ask(&ground, "s", "again", Some(span)).await;
    until_plan(&ground, "there is nothing left to do", |plan| plan.asks.is_empty()).await;
    exactly(&ground, (-9..=250).map(|n| task(&schedule, "s", n)).collect()).await;
    let recent = state(&ground, "s").await.recent;
    assert_eq!((recent[0].outcome, recent[0].count), (Outcome::Backfilled, 240));
    tracker.stop().await;
}

pub async fn what_cannot_fire_says_why(ground: Ground) {
    make_topics(&ground);
    let mut nowhere = past(3, Overlap::Allow);
    nowhere.spec.task.task_type = "nowhere".into();
    let good = past(3, Overlap::Allow);
    put(&ground, "nowhere", &nowhere).await;
    put(&ground, "s", &good).await;
    let tracker = ground.tracker().await;
    tracker.says("schedules", "the schedule `nowhere` cannot fire: the topic").await;
    exactly(&ground, (1..=3).map(|n| task(&good, "s", n)).collect()).await;
    let spec = TopicSpec { name: ground.names.tasks("nowhere"), partitions: 1, replication: None, config: Vec::new() };
    ground.broker.apply_topics(&[spec], DEADLINE).unwrap();
    until_state(&ground, &task(&nowhere, "nowhere", 3), TaskState::Queued).await;
    tracker.is_well().await;
    tracker.stop().await;
}

everywhere! {
    each_time_is_fired_once,
    owners_change_while_times_are_due,
    overlaps_are_as_asked_for,
    people_change_schedules,
    a_backfill_fires_what_is_missing,
    what_cannot_fire_says_why,
}

async fn stops_at(step: Step) {
    let (ground, _) = ground(2);
    make_topics(&ground);
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    let first = ground.with(broker, ground.store.clone());
    *tricks.step.lock().unwrap() = step;
    let schedule = past(260, Overlap::Allow);
    put(&ground, "s", &schedule).await;
    let stopped: Tracker = first.tracker().await;
    match step {
        Step::Frozen => until("it is stopped in the middle", || async { tricks.frozen.load(SeqCst) }).await,
        Step::Before => stopped.says("schedules", "on purpose").await,
        _ => until("something was fired", || async { !fired(&ground).is_empty() }).await,
    }
    stopped.shutdown.begin();
    let second = ground.tracker().await;
    let tasks = |name: &str, schedule: &Schedule| (1..=260).map(|n| task(schedule, name, n)).collect::<Vec<_>>();
    exactly(&ground, tasks("s", &schedule)).await;
    // It comes back, and finds that another one has taken over.
    *tricks.step.lock().unwrap() = Step::Done;
    let more = past(260, Overlap::Allow);
    put(&ground, "t", &more).await;
    exactly(&ground, [tasks("s", &schedule), tasks("t", &more)].concat()).await;
    stopped.stop().await;
    second.stop().await;
    exactly(&ground, [tasks("s", &schedule), tasks("t", &more)].concat()).await;
}

/// An owner ends, or is stopped for a while, at each step of firing.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stops_at_any_step_fires_nothing_twice() {
    for step in [Step::Before, Step::After, Step::Frozen] {
        stops_at(step).await;
    }
}

/// A transaction that is neither committed nor aborted is cleared up by the next owner, also where nothing comes after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_unknown_outcome_is_cleared_up() {
    let memory = broker::Memory::new(broker::MemoryOptions::default());
    let ground = Ground::new(memory.clone(), Arc::new(Memory::default()), 1);
    make_topics(&ground);
    let name = format!("{}.schedules", ground.names.events());
    memory.hold_atomic(&name, true);
    let schedule = past(5, Overlap::Allow);
    put(&ground, "s", &schedule).await;
    let tracker = ground.tracker().await;
    tracker.says("schedules", "held open").await;
    memory.hold_atomic(&name, false);
    exactly(&ground, (1..=5).map(|n| task(&schedule, "s", n)).collect()).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// One that waits for the end of another is left out of a backfill, and nothing behind it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_goes_on_behind_a_time_that_waits() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let schedule = past(230, Overlap::BufferOne);
    put(&ground, "s", &schedule).await;
    let tracker = ground.tracker().await;
    until_plan(&ground, "all its times are decided", |plan| {
        plan.states.get("s").is_some_and(|state| state.through_ms >= schedule.from_ms + 230_000)
    })
    .await;
    let decided = state(&ground, "s").await;
    let waits = decided.waiting_ms.unwrap();
    assert!(waits <= schedule.from_ms + 100_000, "it lies in the first step of the backfill");
    ask(&ground, "s", "b", Some(Span { from_ms: schedule.from_ms + 1, to_ms: schedule.from_ms + 230_000 })).await;
    until_plan(&ground, "it is done", |plan| plan.asks.is_empty()).await;
    let waiting = task_of("s", waits);
    exactly(&ground, (1..=230).map(|n| task(&schedule, "s", n)).filter(|task| *task != waiting).collect()).await;
    tracker.stop().await;
}

/// A fleet without schedules opens nothing for them.
#[tokio::test(flavor = "multi_thread")]
async fn no_schedules_cost_no_transaction() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    let ground = ground.with(broker, ground.store.clone());
    let tracker = ground.tracker().await;
    ground.write(&[crate::story::submitted("a"), succeeded("a")]).await;
    until_state(&ground, "a", TaskState::Succeeded).await;
    assert_eq!(tricks.atomics.load(SeqCst), 0);
    let schedule = past(1, Overlap::Allow);
    put(&ground, "s", &schedule).await;
    until("it is fired", || async { node(&ground, &task(&schedule, "s", 1)).await.is_some() }).await;
    assert!(ground.broker.ends(&Partition::new(ground.names.control(), 0), DEADLINE).unwrap().end > 1);
    tracker.stop().await;
}
