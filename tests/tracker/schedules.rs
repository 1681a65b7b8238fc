//! Recurring schedules: each time fires exactly once, whatever happens to the tracker.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet::broker::{Partition, TopicSpec, memory as broker};
use kafleet::control::schedules::{ScheduleKey, ScheduleRequest, ScheduleSpan, ScheduleState};
use kafleet::control::{CONTROL_VERSION, ControlState, ControlWatch, follow_control, put_schedule};
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::state::State as TaskState;
use kafleet::model::schedule::step::{ScheduleOutcome, ScheduleProgress};
use kafleet::model::schedule::{Overlap, Schedule, SchedulePause, Spec, Template, task_of};
use kafleet::model::task::Policy;
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;
use kafleet::store::memory::MemoryStore;
use kafleet_testkit::faults::{apply, open_transactional_producer};
use serde_json::json;

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::succeeded;
use crate::tracker::fixture::{DEADLINE, Fixture, Tracker, eventually};
use crate::tracker::memory::fixture;
use crate::tracker::outbox::{header, make_topics, read_all, task_record, until_state};
use crate::tracker::steps::Step;

const TYPE: &str = "root";
const HOUR: i64 = 3_600_000;

/// A schedule with this many times, one per second, all in the past and unfired.
fn past(times: i64, overlap: Overlap) -> Schedule {
    let from_ms = now_ms() / 1_000 * 1_000 - HOUR;
    let policy = Policy { tags: vec!["x".into()], ..Policy::default() };
    let task = Template { task_type: TYPE.into(), params: json!({"n": 1}).into(), policy, ..Template::default() };
    let end_at = Some(time_text(from_ms + (times + 1) * 1_000));
    let spec = Spec { every: Some("1s".parse().unwrap()), end_at, overlap, task, ..Spec::default() };
    Schedule { v: CONTROL_VERSION, at_ms: now_ms(), from_ms, paused: None, owner: None, spec }
}

/// A schedule that starts now.
fn open(overlap: Overlap) -> Schedule {
    let mut schedule = past(1, overlap);
    (schedule.spec.end_at, schedule.from_ms) = (None, now_ms());
    schedule
}

fn task(schedule: &Schedule, name: &str, n: i64) -> String {
    task_of(name, schedule.from_ms + n * 1_000)
}

async fn put(fixture: &Fixture, name: &str, schedule: &Schedule) {
    put_schedule(&fixture.producer, &fixture.names, &ScheduleKey::Schedule(name.into()), Some(schedule)).await.unwrap();
}

async fn delete(fixture: &Fixture, name: &str) {
    put_schedule(&fixture.producer, &fixture.names, &ScheduleKey::Schedule(name.into()), None::<&Schedule>)
        .await
        .unwrap();
}

async fn ask(fixture: &Fixture, name: &str, ask: &str, backfill: Option<ScheduleSpan>) {
    let record = ScheduleRequest { v: CONTROL_VERSION, at_ms: now_ms(), backfill };
    put_schedule(
        &fixture.producer,
        &fixture.names,
        &ScheduleKey::ScheduleRequest(name.into(), ask.into()),
        Some(&record),
    )
    .await
    .unwrap();
}

/// Reads the control topic as a new follower does.
async fn plan(fixture: &Fixture) -> ScheduleState {
    let control = ControlWatch::new(ControlState::without_task_commands().with_schedules());
    let _reading = follow_control(control.clone(), fixture.broker.clone(), &fixture.names, None);
    tokio::time::timeout(DEADLINE, control.wait_until_read()).await.expect("the control topic is read");
    control.state().plan.clone()
}

async fn state(fixture: &Fixture, name: &str) -> ScheduleProgress {
    plan(fixture).await.states.get(name).map(|state| (**state).clone()).unwrap_or_default()
}

/// Times that a schedule has fired, also while it has no state.
fn times_fired(plan: &ScheduleState, name: &str) -> u64 {
    plan.states.get(name).map_or(0, |state| state.fired)
}

async fn until_plan(fixture: &Fixture, subject: &str, holds: impl Fn(&ScheduleState) -> bool) {
    eventually(subject, || async { holds(&plan(fixture).await) }).await;
}

/// Number of `scheduled` events and of published records per task.
fn fired(fixture: &Fixture) -> BTreeMap<String, (usize, usize)> {
    let mut times = BTreeMap::<String, (usize, usize)>::new();
    for record in read_all(fixture, &fixture.names.events()) {
        let Some(event) = record.value.and_then(|value| Event::decode(&value).ok()) else { continue };
        if event.kind() == Kind::Scheduled {
            times.entry(event.id.to_string()).or_default().0 += 1;
        }
    }
    for record in read_all(fixture, &fixture.names.tasks(TYPE)) {
        times.entry(header(&record, "ce_id").unwrap().to_owned()).or_default().1 += 1;
    }
    times
}

/// Checks that exactly these tasks were fired and published once.
async fn exactly(fixture: &Fixture, tasks: Vec<String>) {
    let released = || async { fired(fixture).values().filter(|(_, published)| *published > 0).count() >= tasks.len() };
    eventually(&format!("{} tasks are published", tasks.len()), released).await;
    let expected: BTreeMap<String, (usize, usize)> = tasks.into_iter().map(|task| (task, (1, 1))).collect();
    assert_eq!(fired(fixture), expected);
    expect_agreement(fixture).await;
}

pub async fn each_time_fires_once(fixture: Fixture) {
    make_topics(&fixture);
    let schedule = past(30, Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    let tracker = fixture.tracker().await;
    exactly(&fixture, (1..=30).map(|n| task(&schedule, "s", n)).collect()).await;
    let first = task(&schedule, "s", 1);
    let made = until_state(&fixture, &first, TaskState::Queued).await;
    let policy = made.definition.policy.unwrap();
    assert_eq!((policy.creator.as_deref(), policy.tags), (Some("schedule/s"), vec!["x".to_owned()]));
    let scheduled_for = time_text(schedule.from_ms + 1_000);
    assert_eq!(policy.rules.options, Some(json!({"schedule": "s", "scheduled_for": scheduled_for}).into()));
    let records = read_all(&fixture, &fixture.names.tasks(TYPE));
    assert!(records.iter().all(|record| record.value.as_deref() == Some(b"{\"n\":1}")));
    let state = state(&fixture, "s").await;
    assert_eq!((state.fired, state.skipped, state.missed, state.recent.len()), (30, 0, 0, 10));
    assert_eq!(state.last.unwrap().task, task(&schedule, "s", 30));
    let metric = |outcome: &str| tracker.metrics.schedules.times.with_label_values(&[outcome]).get();
    // Counted after the transaction has returned.
    eventually("the firings are counted", || async { metric("fired") == 30 }).await;
    assert_eq!(metric("skipped"), 0);
    let submitted = || tracker.metrics.tasks.submitted.with_label_values(&[TYPE]).get();
    eventually("the tasks are counted", || async { submitted() == 30 }).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Owners start and stop, gracefully or not, while hundreds of times are due.
pub async fn owners_change_while_times_are_due(fixture: Fixture) {
    make_topics(&fixture);
    let schedules: Vec<Schedule> = (0..4).map(|_| past(150, Overlap::Allow)).collect();
    let first = fixture.tracker().await;
    for (n, schedule) in schedules.iter().enumerate() {
        put(&fixture, &format!("s{n}"), schedule).await;
    }
    let second = fixture.tracker().await;
    eventually("a task is fired", || async { !fired(&fixture).is_empty() }).await;
    first.running.abort();
    first.shutdown.abort();
    let third = fixture.tracker().await;
    second.stop().await;
    let of = |(n, schedule): (usize, &Schedule)| {
        (1..=150).map(|time| task(schedule, &format!("s{n}"), time)).collect::<Vec<_>>()
    };
    exactly(&fixture, schedules.iter().enumerate().flat_map(of).collect()).await;
    third.stop().await;
}

async fn ends(fixture: &Fixture, task: &str) {
    fixture.write(&[succeeded(task)]).await;
}

/// While the previous task runs, times are skipped or buffered, or replace it, as the overlap policy requests.
pub async fn overlap_policies_are_applied(fixture: Fixture) {
    make_topics(&fixture);
    for (name, overlap) in [("skip", Overlap::Skip), ("buffer", Overlap::BufferOne), ("replace", Overlap::Replace)] {
        put(&fixture, name, &open(overlap)).await;
    }
    let tracker = fixture.tracker().await;
    until_plan(&fixture, "times are skipped", |plan| {
        let many = |name: &str| plan.states.get(name).is_some_and(|state| state.skipped >= 1);
        many("skip") && many("buffer") && plan.states.get("replace").is_some_and(|state| state.fired >= 2)
    })
    .await;
    let (skipping, buffering) = (state(&fixture, "skip").await, state(&fixture, "buffer").await);
    assert_eq!((skipping.fired, buffering.fired), (1, 1), "the first tasks have not ended");
    assert!(buffering.waiting_ms.is_some());
    let replaced = fired(&fixture).into_keys().find(|task| task.starts_with("replace.")).unwrap();
    let replaced = until_state(&fixture, &replaced, TaskState::Cancelled).await;
    assert!(
        replaced
            .history
            .entries
            .iter()
            .any(|entry| entry.message.as_deref().is_some_and(|reason| reason.contains("schedule `replace`")))
    );
    let buffered = task_of("buffer", buffering.waiting_ms.unwrap());
    for last in [skipping.last.unwrap().task, buffering.last.unwrap().task] {
        ends(&fixture, &last).await;
    }
    until_plan(&fixture, "the next tasks are fired", |plan| {
        times_fired(plan, "skip") == 2
            && plan.states.get("buffer").and_then(|state| state.last.as_ref()).is_some_and(|last| last.task == buffered)
    })
    .await;
    tracker.stop().await;
    let unique = fired(&fixture);
    assert!(unique.values().all(|(fired, published)| *fired == 1 && *published <= 1), "{unique:?}");
}

/// While the store is behind, it may show an ended task as open: no time is skipped because of it.
#[tokio::test(flavor = "multi_thread")]
async fn no_time_is_skipped_before_the_store_is_up_to_date() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    put(&fixture, "skip", &open(Overlap::Skip)).await;
    put(&fixture, "other", &open(Overlap::Allow)).await;
    let first = fixture.tracker().await;
    until_plan(&fixture, "the first task is fired", |plan| plan.states.contains_key("skip")).await;
    let last = state(&fixture, "skip").await.last.unwrap().task;
    until_state(&fixture, &last, TaskState::Queued).await;
    first.stop().await;
    let before = (state(&fixture, "skip").await, state(&fixture, "other").await);
    ends(&fixture, &last).await;
    let frozen = faults.on(apply).hang();
    let second = fixture.tracker().await;
    until_plan(&fixture, "other times are fired", |plan| times_fired(plan, "other") >= before.1.fired + 2).await;
    let behind = state(&fixture, "skip").await;
    assert_eq!((behind.fired, behind.skipped), (before.0.fired, before.0.skipped), "the decision waits");
    frozen.lift();
    second.shutdown.begin();
    let third = fixture.tracker().await;
    until_plan(&fixture, "the next task is fired", |plan| times_fired(plan, "skip") > before.0.fired).await;
    third.stop().await;
}

pub async fn schedule_changes_are_applied(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let mut schedule = open(Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    until_plan(&fixture, "the schedule has fired", |plan| plan.states.get("s").is_some_and(|state| state.fired >= 1))
        .await;
    schedule.paused = Some(SchedulePause { at_ms: now_ms(), reason: None, by: None });
    put(&fixture, "s", &schedule).await;
    // Requests are processed after the pause, because they are later in the topic.
    ask(&fixture, "s", "one", None).await;
    until_plan(&fixture, "the first request is processed during the pause", |plan| plan.requests.is_empty()).await;
    let paused = state(&fixture, "s").await;
    assert_eq!((paused.recent[0].outcome, paused.recent[0].task.as_deref()), (ScheduleOutcome::Run, Some("s.run-one")));
    until_state(&fixture, "s.run-one", TaskState::Queued).await;
    ask(&fixture, "s", "two", None).await;
    until_plan(&fixture, "the second request is processed", |plan| plan.requests.is_empty()).await;
    assert_eq!(state(&fixture, "s").await.fired, paused.fired, "a paused schedule does not fire");
    // The times of the pause are not made up for.
    (schedule.paused, schedule.from_ms) = (None, now_ms());
    put(&fixture, "s", &schedule).await;
    until_plan(&fixture, "the resumed schedule fires", |plan| times_fired(plan, "s") > paused.fired).await;
    let went_on = state(&fixture, "s").await;
    assert!(went_on.recent[0].time_ms > schedule.from_ms && went_on.missed == 0);
    delete(&fixture, "s").await;
    until_plan(&fixture, "the deleted schedule has no state", ScheduleState::is_empty).await;
    ask(&fixture, "s", "three", None).await;
    until_plan(&fixture, "a request for a deleted schedule is removed", ScheduleState::is_empty).await;
    tracker.expect_ready().await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Times that already have a task are skipped.
pub async fn backfill_fires_missing_times(fixture: Fixture) {
    make_topics(&fixture);
    let mut schedule = past(20, Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    let tracker = fixture.tracker().await;
    exactly(&fixture, (1..=20).map(|n| task(&schedule, "s", n)).collect()).await;
    let from_ms = schedule.from_ms;
    schedule.spec.end_at = Some(time_text(from_ms + 10_000_000));
    // The future of the schedule must not start with these changed times.
    schedule.paused = Some(SchedulePause { at_ms: 0, reason: None, by: None });
    put(&fixture, "s", &schedule).await;
    let span = ScheduleSpan { from_ms: from_ms - 9_000, to_ms: from_ms + 250_000 };
    ask(&fixture, "s", "b", Some(span)).await;
    exactly(&fixture, (-9..=250).map(|n| task(&schedule, "s", n)).collect()).await;
    until_plan(&fixture, "the backfill is processed", |plan| plan.requests.is_empty()).await;
    ask(&fixture, "s", "again", Some(span)).await;
    until_plan(&fixture, "the repeated backfill is processed", |plan| plan.requests.is_empty()).await;
    exactly(&fixture, (-9..=250).map(|n| task(&schedule, "s", n)).collect()).await;
    let recent = state(&fixture, "s").await.recent;
    assert_eq!((recent[0].outcome, recent[0].count), (ScheduleOutcome::Backfilled, 240));
    tracker.stop().await;
}

pub async fn blocked_schedule_reports_the_reason(fixture: Fixture) {
    make_topics(&fixture);
    let mut nowhere = past(3, Overlap::Allow);
    nowhere.spec.task.task_type = "nowhere".into();
    let good = past(3, Overlap::Allow);
    put(&fixture, "nowhere", &nowhere).await;
    put(&fixture, "s", &good).await;
    let tracker = fixture.tracker().await;
    tracker.expect_reason("schedules", "the schedule `nowhere` cannot fire: the topic").await;
    exactly(&fixture, (1..=3).map(|n| task(&good, "s", n)).collect()).await;
    let spec = TopicSpec { name: fixture.names.tasks("nowhere"), partitions: 1, replication: None, config: Vec::new() };
    fixture.broker.apply_topics(&[spec], DEADLINE).unwrap();
    until_state(&fixture, &task(&nowhere, "nowhere", 3), TaskState::Queued).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

everywhere! {
    each_time_fires_once,
    owners_change_while_times_are_due,
    overlap_policies_are_applied,
    schedule_changes_are_applied,
    backfill_fires_missing_times,
    blocked_schedule_reports_the_reason,
}

async fn stops_at(step: Step) {
    let (fixture, _) = fixture(2);
    make_topics(&fixture);
    let (first, faults) = fixture.with_faults();
    let stopping = step.stop(&faults);
    let schedule = past(260, Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    let stopped: Tracker = first.tracker().await;
    match step {
        Step::Frozen => eventually("the transaction is frozen", || async { stopping.hits() > 0 }).await,
        Step::Before => stopped.expect_reason("schedules", "on purpose").await,
        Step::After => eventually("a task was fired", || async { !fired(&fixture).is_empty() }).await,
    }
    stopped.shutdown.begin();
    let second = fixture.tracker().await;
    let tasks = |name: &str, schedule: &Schedule| (1..=260).map(|n| task(schedule, name, n)).collect::<Vec<_>>();
    exactly(&fixture, tasks("s", &schedule)).await;
    // The frozen owner resumes and is fenced.
    stopping.lift();
    let more = past(260, Overlap::Allow);
    put(&fixture, "t", &more).await;
    exactly(&fixture, [tasks("s", &schedule), tasks("t", &more)].concat()).await;
    stopped.stop().await;
    second.stop().await;
    exactly(&fixture, [tasks("s", &schedule), tasks("t", &more)].concat()).await;
}

/// An owner ends or is frozen at each step of publishing.
#[tokio::test(flavor = "multi_thread")]
async fn owner_stopped_at_any_step_fires_nothing_twice() {
    for step in Step::ALL {
        stops_at(step).await;
    }
}

/// A transaction that is neither committed nor aborted is resolved by the next owner, even if none follows.
#[tokio::test(flavor = "multi_thread")]
async fn transaction_of_unknown_outcome_is_resolved() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 1);
    make_topics(&fixture);
    let name = format!("{}.schedules", fixture.names.events());
    memory.hold_transactions(&name, true);
    let schedule = past(5, Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    let tracker = fixture.tracker().await;
    tracker.expect_reason("schedules", "held open").await;
    memory.hold_transactions(&name, false);
    exactly(&fixture, (1..=5).map(|n| task(&schedule, "s", n)).collect()).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A backfill defers a time that waits for another task, and continues after it.
#[tokio::test(flavor = "multi_thread")]
async fn backfill_continues_behind_a_waiting_time() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let schedule = past(230, Overlap::BufferOne);
    put(&fixture, "s", &schedule).await;
    let tracker = fixture.tracker().await;
    until_plan(&fixture, "all times are decided", |plan| {
        plan.states.get("s").is_some_and(|state| state.through_ms >= schedule.from_ms + 230_000)
    })
    .await;
    let decided = state(&fixture, "s").await;
    let waits = decided.waiting_ms.unwrap();
    assert!(waits <= schedule.from_ms + 100_000, "the waiting time is in the first step of the backfill");
    ask(&fixture, "s", "b", Some(ScheduleSpan { from_ms: schedule.from_ms + 1, to_ms: schedule.from_ms + 230_000 }))
        .await;
    until_plan(&fixture, "the backfill is processed", |plan| plan.requests.is_empty()).await;
    let waiting = task_of("s", waits);
    exactly(&fixture, (1..=230).map(|n| task(&schedule, "s", n)).filter(|task| *task != waiting).collect()).await;
    tracker.stop().await;
}

/// Without schedules no transactional producer is opened.
#[tokio::test(flavor = "multi_thread")]
async fn no_producer_is_opened_without_schedules() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    let opened = faults.count(open_transactional_producer);
    let tracker = fixture.tracker().await;
    fixture.write(&[crate::tracker::event_log::submitted("a"), succeeded("a")]).await;
    until_state(&fixture, "a", TaskState::Succeeded).await;
    assert_eq!(opened.hits(), 0);
    let schedule = past(1, Overlap::Allow);
    put(&fixture, "s", &schedule).await;
    eventually("the schedule has fired", || async { task_record(&fixture, &task(&schedule, "s", 1)).await.is_some() })
        .await;
    assert!(fixture.broker.watermarks(&Partition::new(fixture.names.control(), 0), DEADLINE).unwrap().high > 1);
    tracker.stop().await;
}
