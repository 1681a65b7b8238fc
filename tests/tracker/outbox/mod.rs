//! Timers and effects are published exactly once, whatever happens to trackers, store and broker.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafleet::broker::{
    Broker, BrokerError, Commit, ConsumerSpec, DependentRecord, Partition, ProducerRecord, Record, StartOffset,
    TopicSpec, memory as broker,
};
use kafleet::config::TrackerConfig;
use kafleet::control::{self, CONTROL_VERSION, Cancel, ControlKey, ControlRecord, StartNow};
use kafleet::model::event::{AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::outbox::RecordCopy;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use kafleet::model::task::start::NextStart;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::memory::MemoryStore;
use kafleet_testkit::faults::open_transactional_producer;
use serde_json::json;

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event, id, submitted, succeeded};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually, until_known};
use crate::tracker::memory::fixture;
use crate::tracker::steps::Step;

mod cancels;
mod releases;

pub use cancels::*;
pub use releases::*;

const TYPE: &str = "root";

pub fn make_topics(fixture: &Fixture) {
    let spec = |name: String, partitions| TopicSpec { name, partitions, replication: None, config: Vec::new() };
    let (control, workers) = (spec(fixture.names.control(), 1), spec(fixture.names.workers(), 1));
    let topics = [spec(fixture.names.tasks(TYPE), 2), spec(fixture.names.tasks("child"), 1), control, workers];
    fixture.broker.apply_topics(&topics, DEADLINE).unwrap();
    topics.iter().for_each(|topic| until_known(&*fixture.broker, &topic.name, topic.partitions));
}

/// `scheduled` event of a delayed task, with its deferred record.
pub fn scheduled(task: &str, due_ms: i64) -> Event {
    let mut event = submitted(task);
    event.task.as_mut().unwrap().position = None;
    let headers = [("ce_id", task), ("ce_notbefore", "2030-01-01T00:00:00Z"), ("ce_announced", "1")];
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    let params = RawJson::parse(format!("{{\"of\":\"{task}\"}}").as_bytes()).unwrap();
    let record = Some(Box::new(RecordCopy::of(None, headers, params)));
    event.payload = Payload::Scheduled { due_ms: Some(due_ms), record };
    event
}

/// Reads all committed records of a topic.
pub fn read_all(fixture: &Fixture, topic: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let topics = fixture.broker.topics(topic, DEADLINE).unwrap();
    let partitions = topics.iter().find(|info| info.name == topic).unwrap().partitions;
    for index in 0..partitions as i32 {
        let at = Partition::new(topic, index);
        let ends = fixture.broker.watermarks(&at, DEADLINE).unwrap();
        let mut consumer = fixture.broker.consumer(&ConsumerSpec::default()).unwrap();
        consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
        let end = Instant::now() + DEADLINE;
        let mut next = ends.low;
        while next < ends.high {
            assert!(Instant::now() < end, "read to {next} of {ends:?}");
            consumer.poll(1_000, Duration::from_millis(20), &mut |record| records.push(record.to_owned())).unwrap();
            next = consumer.positions().unwrap().first().map_or(next, |(_, position)| *position);
        }
        consumer.close(DEADLINE);
    }
    records
}

pub fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let value = record.headers.iter().find(|(key, _)| key == name)?.1.as_deref()?;
    std::str::from_utf8(value).ok()
}

/// Number of records per task id in the topic.
pub fn published(fixture: &Fixture) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for record in read_all(fixture, &fixture.names.tasks(TYPE)) {
        *times.entry(header(&record, "ce_id").unwrap().to_owned()).or_default() += 1;
    }
    times
}

pub async fn task_record(fixture: &Fixture, task: &str) -> Option<TaskRecord> {
    let task = id(task);
    fixture.store.task_records(fixture.partition_of(task.root()), &[task]).await.unwrap().pop()?
}

pub async fn until_state(fixture: &Fixture, task: &str, state: State) -> TaskRecord {
    let seen = RefCell::new(None);
    eventually(&format!("`{task}` is {state}"), || async {
        let found = task_record(fixture, task).await.filter(|task_record| task_record.state == state);
        seen.replace(found);
        seen.borrow().is_some()
    })
    .await;
    seen.into_inner().unwrap()
}

/// Waits until `count` tasks are queued, and checks that each was released exactly once.
async fn all_released(fixture: &Fixture, count: usize) {
    let queued = || async {
        let counts = fixture.store.counts(&fixture.all()).await.unwrap_or_default();
        counts.iter().find(|count| count.state == State::Queued).is_some_and(|queued| queued.count == count as u64)
    };
    eventually("all tasks are released", queued).await;
    let times = published(fixture);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "released zero or several times: {twice:?}");
    assert_eq!(times.len(), count);
    positions_match_newest_records(fixture, &fixture.names.tasks(TYPE)).await;
    expect_agreement(fixture).await;
}

/// Checks that the position in each task's record is that of its newest record in a topic.
pub async fn positions_match_newest_records(fixture: &Fixture, topic: &str) {
    let records = read_all(fixture, topic);
    let last: BTreeMap<_, _> = records
        .iter()
        .map(|record| {
            (header(record, "ce_id").unwrap(), Position { partition: record.partition, offset: record.offset })
        })
        .collect();
    for (task, position) in last {
        assert_eq!(task_record(fixture, task).await.unwrap().definition.position, Some(position), "`{task}`");
    }
}

/// Delayed tasks that are due between half a second ago and 1.5 s from now, in all partitions.
pub fn many(count: usize, prefix: &str) -> Vec<Event> {
    let now = now_ms();
    (0..count).map(|n| scheduled(&format!("{prefix}-{n}"), now - 500 + (n as i64 * 37) % 2_000)).collect()
}

pub async fn each_task_is_released_once_when_due(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let (due_ms, far_ms) = (now_ms() + 2_000, now_ms() + 3_600_000);
    fixture.write(&[scheduled("one", due_ms), scheduled("far", far_ms)]).await;
    let waiting = until_state(&fixture, "far", State::Scheduled).await;
    assert_eq!((waiting.times.due_ms, waiting.deferral.record_bytes > 0), (Some(far_ms), true));
    until_state(&fixture, "one", State::Queued).await;
    fixture.write(&many(400, "m")).await;
    all_released(&fixture, 401).await;
    let records = read_all(&fixture, &fixture.names.tasks(TYPE));
    let one = records.iter().find(|record| header(record, "ce_id") == Some("one")).unwrap();
    assert!(one.timestamp_ms >= due_ms, "released too early: {} for {due_ms}", one.timestamp_ms);
    assert_eq!((one.value.as_deref(), one.key.as_deref()), (Some(&b"{\"of\":\"one\"}"[..]), Some(&b"one"[..])));
    assert_eq!((header(one, "ce_notbefore"), header(one, "ce_attempt")), (None, None));
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Trackers start and stop while timers are due.
pub async fn trackers_change_while_timers_are_due(fixture: Fixture) {
    make_topics(&fixture);
    let first = fixture.tracker().await;
    fixture.write(&many(500, "a")).await;
    let second = fixture.tracker().await;
    eventually("the second tracker has partitions", || async { second.reason("tracker").is_none() }).await;
    // The tracker is aborted, as in a crash, not stopped.
    first.running.abort();
    first.shutdown.abort();
    fixture.write(&many(500, "b")).await;
    let third = fixture.tracker().await;
    second.stop().await;
    all_released(&fixture, 1_000).await;
    third.stop().await;
}

/// Publishes a task's record and returns its position.
pub async fn put_task(fixture: &Fixture, task: &str) -> Position {
    let producer = kafleet::broker::shared_producer::SharedProducer::open(fixture.broker.clone(), None).unwrap();
    let topic = fixture.names.tasks(TYPE);
    let headers: [(&str, &[u8]); 3] = [("ce_id", task.as_bytes()), ("ce_announced", b"1"), ("x-own", b"kept")];
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(1),
        key: Some(b"key"),
        value: Some(b"{\"n\":7}"),
        headers: &headers,
    };
    producer.deliver(record, DEADLINE).await.unwrap()
}

/// `submitted` event of a task whose record is at this position.
pub fn placed(task: &str, position: Position) -> Event {
    let mut event = submitted(task);
    event.task.as_mut().unwrap().position = Some(position);
    event
}

/// Event of a task that has ended; `kind` is the constructor of its payload.
fn ended(kind: fn(AttemptFailure) -> Payload, task: &str) -> Event {
    Event { payload: kind(AttemptFailure::new("error", "broken", 1)), ..event(Kind::Failed, task) }
}

pub async fn retry_publishes_the_record_again(fixture: Fixture) {
    make_topics(&fixture);
    let position = put_task(&fixture, "again").await;
    let retained = placed("again", position);
    let gone = placed("gone", Position { partition: 1, offset: 999 });
    // As after the topic was deleted and created again: the position has another task's record.
    let replaced = placed("replaced", position);
    let waited = [scheduled("waited", now_ms() - 1), ended(Payload::Failed, "waited")];
    let tracker = fixture.tracker().await;
    fixture.write(&[retained, ended(Payload::Failed, "again"), gone, ended(Payload::Failed, "gone")]).await;
    fixture.write(&waited).await;
    fixture.write(&[replaced, ended(Payload::Failed, "replaced")]).await;
    fixture.write(&["again", "gone", "replaced", "waited"].map(|task| event(Kind::RetryRequested, task))).await;
    for task in ["gone", "replaced"] {
        eventually("the retry without a record is decided", || async {
            task_record(&fixture, task)
                .await
                .is_some_and(|task_record| task_record.run == 2 && task_record.effects.is_empty())
        })
        .await;
        let decided = task_record(&fixture, task).await.unwrap();
        let message = decided.outcome.error.map(|error| error.message).unwrap_or_default();
        assert!(decided.state == State::Failed && message.contains("no longer in Kafka"), "{task}: {message}");
    }
    for task in ["again", "waited"] {
        eventually("the retry is published", || async {
            task_record(&fixture, task)
                .await
                .is_some_and(|task_record| task_record.run == 2 && task_record.effects.is_empty())
        })
        .await;
        let queued = task_record(&fixture, task).await.unwrap();
        assert_eq!((queued.state, queued.outcome.error.is_none()), (State::Queued, true));
    }
    let records = read_all(&fixture, &fixture.names.tasks(TYPE));
    let of = |task: &str| {
        records
            .iter()
            .filter(|record| header(record, "ce_run") == Some("2") && header(record, "ce_id") == Some(task))
            .collect::<Vec<_>>()
    };
    let again = of("again");
    assert_eq!((again.len(), of("waited").len(), of("gone").len(), of("replaced").len()), (1, 1, 0, 0));
    assert_eq!((again[0].value.as_deref(), again[0].key.as_deref()), (Some(&b"{\"n\":7}"[..]), Some(&b"key"[..])));
    assert_eq!((header(again[0], "x-own"), header(again[0], "ce_announced")), (Some("kept"), Some("1")));
    positions_match_newest_records(&fixture, &fixture.names.tasks(TYPE)).await;
    let asked = task_record(&fixture, "again").await.unwrap().requests.asof;
    assert_eq!(header(again[0], "ce_asof"), Some(asked.to_string().as_str()));
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A retry of the failed tasks of a wide tree restarts only these, all in the same run.
pub async fn retry_of_failed_tasks_restarts_only_those(fixture: Fixture) {
    make_topics(&fixture);
    let mut event_log = vec![submitted("r"), succeeded("r")];
    for n in 0..700 {
        event_log.push(submitted(&format!("r:{n}")));
        event_log.push(if n % 10 == 0 {
            ended(Payload::Failed, &format!("r:{n}"))
        } else {
            succeeded(&format!("r:{n}"))
        });
    }
    fixture.write(&event_log).await;
    let mut only = event(Kind::RetryRequested, "r");
    only.payload = Payload::RetryRequested { only_failed: true, new_run: None, record: None };
    let tracker = fixture.tracker().await;
    until_state(&fixture, "r", State::Failed).await;
    fixture.write(&[only]).await;
    // There is no record at the positions of these tasks, so each of them fails again in the new run.
    for n in (0..700).step_by(10) {
        let failed = |task_record: TaskRecord| {
            task_record.run == 2 && task_record.state == State::Failed && task_record.effects.is_empty()
        };
        eventually("the task has failed again", || async {
            task_record(&fixture, &format!("r:{n}")).await.is_some_and(failed)
        })
        .await;
    }
    eventually("the root has failed again", || async {
        task_record(&fixture, "r").await.unwrap().state == State::Failed
    })
    .await;
    let oracle = expect_agreement(&fixture).await;
    let runs: Vec<u32> = oracle.task_records.iter().flatten().map(|(_, task_record)| task_record.run).collect();
    assert_eq!(runs.iter().filter(|run| **run == 2).count(), 70);
    tracker.stop().await;
}

/// An effect that cannot be published fails its task and does not block others.
pub async fn unpublishable_effect_fails_its_task(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let mut without_topic = scheduled("nowhere", now_ms() - 1);
    without_topic.task.as_mut().unwrap().task_type = "unknown".into();
    let mut late = scheduled("late", now_ms() + 600_000);
    late.task.as_mut().unwrap().policy.get_or_insert_default().expires_at_ms = Some(now_ms() + 300);
    fixture.write(&[without_topic, scheduled("good", now_ms() - 1), late]).await;
    let failed = until_state(&fixture, "nowhere", State::Failed).await;
    assert!(failed.outcome.error.unwrap().message.contains("kafleet topics apply"));
    until_state(&fixture, "good", State::Queued).await;
    until_state(&fixture, "late", State::Expired).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Many timers due within seconds are published shortly after their time. One transaction each would take minutes.
pub async fn thousand_timers_per_second_fire_on_time(fixture: Fixture) {
    const PER_SECOND: usize = 1_000;
    const COUNT: usize = 4 * PER_SECOND;
    const LATE_MS: i64 = 30_000;
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    tracker.expect_ready().await;
    let begin = now_ms() + 3_000;
    let due = |n: usize| begin + (n * 1_000 / PER_SECOND) as i64;
    let all: Vec<Event> = (0..COUNT).map(|n| scheduled(&format!("t{n}"), due(n))).collect();
    fixture.write(&all).await;
    let written = now_ms();
    all_released(&fixture, COUNT).await;
    let records = read_all(&fixture, &fixture.names.tasks(TYPE));
    let times = records.iter().map(|record| {
        let n: usize = header(record, "ce_id").unwrap()[1..].parse().unwrap();
        (record.timestamp_ms, due(n))
    });
    assert!(times.clone().all(|(at, due)| at >= due), "published too early");
    // Lateness counts from the moment at which the timer exists.
    let mut late: Vec<i64> = times.map(|(at, due)| at - due.max(written)).collect();
    late.sort_unstable();
    let (median, p99, max) = (late[COUNT / 2], late[COUNT * 99 / 100], late[COUNT - 1]);
    println!("{PER_SECOND} timers per second: late by {median} ms (median), {p99} ms (p99), {max} ms (maximum)");
    assert!(p99 < LATE_MS, "late by {median} ms (median), {p99} ms (p99), {max} ms (maximum)");
    tracker.stop().await;
}

everywhere! {
    cancel_stays_until_workers_have_passed_it,
    cancel_without_a_tree_is_withdrawn,
    start_of_a_task_that_has_started_is_withdrawn,
    thousand_timers_per_second_fire_on_time,
    each_task_is_released_once_when_due,
    records_without_room_in_the_store_are_released_from_the_log,
    trackers_change_while_timers_are_due,
    retry_publishes_the_record_again,
    retry_of_failed_tasks_restarts_only_those,
    cancel_ends_waiting_tasks_and_is_sent_to_workers,
    unpublishable_effect_fails_its_task,
}

/// The store is wiped, or restored to an early snapshot, while timers are due: no task is released again.
#[tokio::test(flavor = "multi_thread")]
async fn lossy_store_releases_nothing_twice() {
    let (fixture, store) = fixture(2);
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let saved = store.snapshot();
    for round in 0..5 {
        fixture.write(&many(120, &format!("r{round}"))).await;
        eventually("some tasks are released", || async { published(&fixture).len() > round * 120 }).await;
        if round % 2 == 0 { store.wipe() } else { store.restore(&saved) }
    }
    all_released(&fixture, 600).await;
    tracker.stop().await;
}

/// While it is unknown whether a transaction was committed or aborted, or is still open, nothing else is published.
#[tokio::test(flavor = "multi_thread")]
async fn transaction_of_unknown_outcome_is_resolved() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 1);
    make_topics(&fixture);
    let name = format!("{}.outbox.0", fixture.names.events());
    memory.hold_transactions(&name, true);
    let tracker = fixture.tracker().await;
    fixture.write(&many(50, "a")).await;
    tracker.expect_reason("timers of events partition 0", "held open").await;
    memory.hold_transactions(&name, false);
    all_released(&fixture, 50).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A record behind another producer's open transaction does not count as removed: its retry waits, others do not.
#[tokio::test(flavor = "multi_thread")]
async fn retry_waits_for_an_uncommitted_record() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 1);
    make_topics(&fixture);
    let topic = fixture.names.tasks(TYPE);
    let foreign_record = ProducerRecord {
        topic: &topic,
        partition: Some(1),
        key: None,
        value: Some(b"{}"),
        headers: &[("ce_id", b"s")],
    };
    memory.hold_transactions("stranger", true);
    memory.transactional_producer("stranger").unwrap().send_all(&[foreign_record], DEADLINE).unwrap_err();
    let position = put_task(&fixture, "x").await;
    let there = placed("x", position);
    let tracker = fixture.tracker().await;
    fixture.write(&[there, ended(Payload::Failed, "x"), event(Kind::RetryRequested, "x")]).await;
    eventually("the retry is pending", || async {
        task_record(&fixture, "x").await.is_some_and(|task_record| task_record.effects.len() == 1)
    })
    .await;
    fixture.write(&many(20, "a")).await;
    until_state(&fixture, "a-19", State::Queued).await;
    assert_eq!(task_record(&fixture, "x").await.unwrap().effects.len(), 1, "the retry waits");
    assert!(memory.end_transaction("stranger", true));
    eventually("the retry is published", || async { task_record(&fixture, "x").await.unwrap().effects.is_empty() })
        .await;
    assert_eq!(task_record(&fixture, "x").await.unwrap().state, State::Queued);
    assert_eq!(published(&fixture)["x"], 2);
    tracker.stop().await;
}

/// Folding continues while nothing can be published, and the reason is reported.
#[tokio::test(flavor = "multi_thread")]
async fn folding_continues_while_publishing_fails() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    let no_coordinator = BrokerError::Unavailable("no coordinator".into());
    let unopened = faults.on(open_transactional_producer).fail(no_coordinator);
    let tracker = fixture.tracker().await;
    fixture.write(&many(20, "a")).await;
    tracker.expect_reason("timers of events partition 0", "no coordinator").await;
    fixture.write(&[submitted("meanwhile"), succeeded("meanwhile")]).await;
    until_state(&fixture, "meanwhile", State::Succeeded).await;
    let tries = unopened.hits();
    assert!(tries < 30, "{tries} transactions without a pause");
    unopened.lift();
    all_released(&fixture, 20).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A tracker stops or freezes before, during or after a transaction: the next one detects which tasks were released.
#[tokio::test(flavor = "multi_thread")]
async fn tracker_stopped_at_any_step_releases_nothing_twice() {
    for step in Step::ALL {
        let (fixture, _) = fixture(2);
        make_topics(&fixture);
        let (first, faults) = fixture.with_faults();
        let stopping = step.stop(&faults);
        let stopped = first.tracker().await;
        fixture.write(&many(60, "a")).await;
        match step {
            Step::Frozen => eventually("the transaction is frozen", || async { stopping.hits() > 0 }).await,
            Step::Before => stopped.expect_reason("timers of events partition 0", "on purpose").await,
            // Committed records are detected after the restart and not published again.
            Step::After => eventually("a record was sent", || async { !published(&fixture).is_empty() }).await,
        }
        stopped.shutdown.begin();
        let second = fixture.tracker().await;
        all_released(&fixture, 60).await;
        // The frozen tracker resumes and is fenced.
        stopping.lift();
        fixture.write(&many(60, "b")).await;
        all_released(&fixture, 120).await;
        stopped.stop().await;
        assert_eq!(published(&fixture).values().sum::<usize>(), 120, "{step:?}");
        second.stop().await;
    }
}
