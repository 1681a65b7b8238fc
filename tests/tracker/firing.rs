//! Timers and effects: what is due is published once, whatever happens to trackers, store and broker.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use kafleet::broker::{
    Broker, BrokerError, Commit, ConsumerSpec, DependentRecord, Partition, ProducerRecord, Record, StartOffset, TopicSpec,
    memory as broker,
};
use kafleet::config::TrackerConfig;
use kafleet::control::{self, CONTROL_VERSION, Cancel, ControlKey, ControlRecord};
use kafleet::model::event::{Event, Kind};
use kafleet::model::json::RawJson;
use kafleet::model::outbox::KeptRecord;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::memory::Memory;
use serde_json::json;

use crate::cases::agrees;
use crate::ground::{DEADLINE, Ground, until, until_known};
use crate::memory::ground;
use crate::shaky::{ShakyBroker, ShakyStore, Step};
use crate::story::{event, id, submitted, succeeded};

const TYPE: &str = "root";

pub fn make_topics(ground: &Ground) {
    let spec = |name: String, partitions| TopicSpec { name, partitions, replication: None, config: Vec::new() };
    let (control, workers) = (spec(ground.names.control(), 1), spec(ground.names.workers(), 1));
    let topics = [spec(ground.names.tasks(TYPE), 2), spec(ground.names.tasks("child"), 1), control, workers];
    ground.broker.apply_topics(&topics, DEADLINE).unwrap();
    topics.iter().for_each(|topic| until_known(&*ground.broker, &topic.name, topic.partitions));
}

/// A task that waits for its time.
pub fn scheduled(task: &str, due_ms: i64) -> Event {
    let mut event = submitted(task);
    event.kind = Kind::Scheduled;
    event.due_ms = Some(due_ms);
    event.task.as_mut().unwrap().position = None;
    let headers = [("ce_id", task), ("ce_notbefore", "2030-01-01T00:00:00Z"), ("ce_announced", "1")];
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    let params = RawJson::parse(format!("{{\"of\":\"{task}\"}}").as_bytes()).unwrap();
    event.record = Some(Box::new(KeptRecord::of(None, headers, params)));
    event
}

/// All records of a topic that are committed now.
pub fn read_all(ground: &Ground, topic: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let known = ground.broker.topics(topic, DEADLINE).unwrap();
    let partitions = known.iter().find(|info| info.name == topic).unwrap().partitions;
    for index in 0..partitions as i32 {
        let at = Partition::new(topic, index);
        let ends = ground.broker.ends(&at, DEADLINE).unwrap();
        let mut consumer = ground.broker.consumer(&ConsumerSpec::default()).unwrap();
        consumer.assign(&[(at, StartOffset::Beginning)]).unwrap();
        let end = Instant::now() + DEADLINE;
        let mut next = ends.first;
        while next < ends.end {
            assert!(Instant::now() < end, "read to {next} of {ends:?}");
            consumer.poll(1_000, Duration::from_millis(20), &mut |record| records.push(record.to_owned())).unwrap();
            next = consumer.positions().unwrap().first().map_or(next, |(_, place)| *place);
        }
        consumer.close(DEADLINE);
    }
    records
}

pub fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let value = record.headers.iter().find(|(own, _)| own == name)?.1.as_deref()?;
    std::str::from_utf8(value).ok()
}

/// How often each id is in the topic.
pub fn published(ground: &Ground) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for record in read_all(ground, &ground.names.tasks(TYPE)) {
        *times.entry(header(&record, "ce_id").unwrap().to_owned()).or_default() += 1;
    }
    times
}

pub async fn node(ground: &Ground, task: &str) -> Option<TaskRecord> {
    let task = id(task);
    ground.store.nodes(ground.partition_of(task.root()), &[task]).await.unwrap().pop()?
}

pub async fn until_state(ground: &Ground, task: &str, state: State) -> TaskRecord {
    let seen = RefCell::new(None);
    until(&format!("`{task}` is {state}"), || async {
        let found = node(ground, task).await.filter(|node| node.state == state);
        seen.replace(found);
        seen.borrow().is_some()
    })
    .await;
    seen.into_inner().unwrap()
}

async fn all_released(ground: &Ground, count: usize) {
    let queued = || async {
        let counts = ground.store.counts(&ground.all()).await.unwrap_or_default();
        counts.iter().find(|count| count.state == State::Queued).is_some_and(|found| found.count == count as u64)
    };
    until("everything is released", queued).await;
    let times = published(ground);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "not once: {twice:?}");
    assert_eq!(times.len(), count);
    each_lies_where_it_is_said(ground, &ground.names.tasks(TYPE)).await;
    agrees(ground).await;
}

/// The newest record of each task in a topic.
pub async fn each_lies_where_it_is_said(ground: &Ground, topic: &str) {
    let records = read_all(ground, topic);
    let last: BTreeMap<_, _> = records
        .iter()
        .map(|record| (header(record, "ce_id").unwrap(), Position { partition: record.partition, offset: record.offset }))
        .collect();
    for (task, position) in last {
        assert_eq!(node(ground, task).await.unwrap().position, Some(position), "`{task}`");
    }
}

/// Due soon, now, and long ago, over all partitions.
pub fn many(count: usize, prefix: &str) -> Vec<Event> {
    let now = now_ms();
    (0..count).map(|n| scheduled(&format!("{prefix}-{n}"), now - 500 + (n as i64 * 37) % 2_000)).collect()
}

pub async fn each_task_is_released_once_at_its_time(ground: Ground) {
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let (due_ms, far_ms) = (now_ms() + 2_000, now_ms() + 3_600_000);
    ground.write(&[scheduled("one", due_ms), scheduled("far", far_ms)]).await;
    let waiting = until_state(&ground, "far", State::Scheduled).await;
    assert_eq!((waiting.due_ms, waiting.kept > 0), (Some(far_ms), true));
    until_state(&ground, "one", State::Queued).await;
    ground.write(&many(400, "m")).await;
    all_released(&ground, 401).await;
    let records = read_all(&ground, &ground.names.tasks(TYPE));
    let one = records.iter().find(|record| header(record, "ce_id") == Some("one")).unwrap();
    assert!(one.timestamp_ms >= due_ms, "not before its time: {} for {due_ms}", one.timestamp_ms);
    assert_eq!((one.value.as_deref(), one.key.as_deref()), (Some(&b"{\"of\":\"one\"}"[..]), Some(&b"one"[..])));
    assert_eq!((header(one, "ce_notbefore"), header(one, "ce_attempt")), (None, None));
    tracker.is_well().await;
    tracker.stop().await;
}

/// Trackers come and go while things are due.
pub async fn trackers_change_while_things_are_due(ground: Ground) {
    make_topics(&ground);
    let first = ground.tracker().await;
    ground.write(&many(500, "a")).await;
    let second = ground.tracker().await;
    until("the second has partitions", || async { second.reason("tracker").is_none() }).await;
    // Not told to stop: gone.
    first.running.abort();
    first.shutdown.abort();
    ground.write(&many(500, "b")).await;
    let third = ground.tracker().await;
    second.stop().await;
    all_released(&ground, 1_000).await;
    third.stop().await;
}

/// The task's record, where it lies.
pub async fn put_task(ground: &Ground, task: &str) -> Position {
    let link = kafleet::broker::shared_producer::SharedProducer::open(ground.broker.clone(), None).unwrap();
    let topic = ground.names.tasks(TYPE);
    let headers: [(&str, &[u8]); 3] = [("ce_id", task.as_bytes()), ("ce_announced", b"1"), ("x-own", b"kept")];
    let record =
        ProducerRecord { topic: &topic, partition: Some(1), key: Some(b"key"), value: Some(b"{\"n\":7}"), headers: &headers };
    link.deliver(record, DEADLINE).await.unwrap()
}

/// The task, with the place of its record.
pub fn placed(task: &str, position: Position) -> Event {
    let mut event = submitted(task);
    event.task.as_mut().unwrap().position = Some(position);
    event
}

fn ended(kind: Kind, task: &str) -> Event {
    let mut event = event(kind, task);
    event.error = Some(Box::new(kafleet::model::event::ErrorInfo::new("error", "broken", 1)));
    event
}

pub async fn a_retry_publishes_the_record_again(ground: Ground) {
    make_topics(&ground);
    let position = put_task(&ground, "again").await;
    let there = placed("again", position);
    let gone = placed("gone", Position { partition: 1, offset: 999 });
    let mut waited = vec![scheduled("waited", now_ms() - 1)];
    waited.push(ended(Kind::Failed, "waited"));
    let tracker = ground.tracker().await;
    ground.write(&[there, ended(Kind::Failed, "again"), gone, ended(Kind::Failed, "gone")]).await;
    ground.write(&waited).await;
    ground.write(&["again", "gone", "waited"].map(|task| event(Kind::RetryRequested, task))).await;
    let failed = until_state(&ground, "gone", State::Failed).await;
    until("the retries are decided", || async {
        node(&ground, "gone").await.is_some_and(|node| node.run == 2 && node.effects.is_empty())
    })
    .await;
    assert!(node(&ground, "gone").await.unwrap().error.unwrap().message.contains("no longer in Kafka"), "{failed:?}");
    for task in ["again", "waited"] {
        until("its effect is done", || async {
            node(&ground, task).await.is_some_and(|node| node.run == 2 && node.effects.is_empty())
        })
        .await;
        let queued = node(&ground, task).await.unwrap();
        assert_eq!((queued.state, queued.error.is_none()), (State::Queued, true));
    }
    let records = read_all(&ground, &ground.names.tasks(TYPE));
    let of = |task: &str| {
        records
            .iter()
            .filter(|record| header(record, "ce_run") == Some("2") && header(record, "ce_id") == Some(task))
            .collect::<Vec<_>>()
    };
    let again = of("again");
    assert_eq!((again.len(), of("waited").len(), of("gone").len()), (1, 1, 0));
    assert_eq!((again[0].value.as_deref(), again[0].key.as_deref()), (Some(&b"{\"n\":7}"[..]), Some(&b"key"[..])));
    assert_eq!((header(again[0], "x-own"), header(again[0], "ce_announced")), (Some("kept"), Some("1")));
    each_lies_where_it_is_said(&ground, &ground.names.tasks(TYPE)).await;
    let asked = node(&ground, "again").await.unwrap().asof;
    assert_eq!(header(again[0], "ce_asof"), Some(asked.to_string().as_str()));
    agrees(&ground).await;
    tracker.stop().await;
}

/// Of a wide tree only what failed starts again, all of it in one run.
pub async fn a_retry_of_what_failed_walks_the_tree(ground: Ground) {
    make_topics(&ground);
    let mut story = vec![submitted("r"), succeeded("r")];
    for n in 0..700 {
        story.push(submitted(&format!("r:{n}")));
        story.push(if n % 10 == 0 { ended(Kind::Failed, &format!("r:{n}")) } else { succeeded(&format!("r:{n}")) });
    }
    ground.write(&story).await;
    let mut only = event(Kind::RetryRequested, "r");
    only.only_failed = true;
    let tracker = ground.tracker().await;
    until_state(&ground, "r", State::Failed).await;
    ground.write(&[only]).await;
    // Their records are at a place that is not there: each of them fails again, in the new run.
    for n in (0..700).step_by(10) {
        let failed = |node: TaskRecord| node.run == 2 && node.state == State::Failed && node.effects.is_empty();
        until("it has failed again", || async { node(&ground, &format!("r:{n}")).await.is_some_and(failed) }).await;
    }
    until("all are done", || async { node(&ground, "r").await.unwrap().state == State::Failed }).await;
    let oracle = agrees(&ground).await;
    let runs: Vec<u32> = oracle.nodes.iter().flatten().map(|(_, node)| node.run).collect();
    assert_eq!(runs.iter().filter(|run| **run == 2).count(), 70);
    tracker.stop().await;
}

/// What no worker holds ends by itself; what runs is told, and the control record goes when all has ended.
pub async fn a_cancel_reaches_what_waits_and_tells_the_workers(ground: Ground) {
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let mut runs = event(Kind::Started, "c:runs");
    runs.worker = Some("w".into());
    let waits = scheduled("c:waits", now_ms() + 600_000);
    ground.write(&[submitted("c"), waits, submitted("c:queued"), submitted("c:runs"), runs, succeeded("c")]).await;
    let deep: Vec<Event> = (0..600).map(|n| submitted(&format!("c:queued:{n}"))).collect();
    ground.write(&deep).await;
    ground.write(&[event(Kind::CancelRequested, "c")]).await;
    for task in ["c:waits", "c:queued", "c:queued:599"] {
        until_state(&ground, task, State::Cancelled).await;
    }
    assert_eq!(until_state(&ground, "c:runs", State::Cancelling).await.own, State::Running);
    let control = || read_all(&ground, &ground.names.control());
    let asof = node(&ground, "c").await.unwrap().cancel.unwrap().asof;
    // Once, or again by a firing that was begun anew meanwhile.
    let told = control();
    assert!(!told.is_empty());
    for record in told {
        let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        assert_eq!((record.key.as_deref(), &value["v"], &value["asof"]), (Some(&b"cancel/c"[..]), &json!(1), &json!(asof)));
    }
    ground.write(&[ended(Kind::Cancelled, "c:runs")]).await;
    until_state(&ground, "c", State::Cancelled).await;
    until("workers need not know any more", || async { control().last().unwrap().value.is_none() }).await;
    assert!(published(&ground).is_empty(), "its release is dropped");
    agrees(&ground).await;
    tracker.stop().await;
}

/// Something that cannot be published holds nobody up.
pub async fn what_cannot_be_published_fails(ground: Ground) {
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let mut nowhere = scheduled("nowhere", now_ms() - 1);
    nowhere.task.as_mut().unwrap().task_type = "unknown".into();
    let mut late = scheduled("late", now_ms() + 600_000);
    late.task.as_mut().unwrap().policy.get_or_insert_default().expires_at_ms = Some(now_ms() + 300);
    ground.write(&[nowhere, scheduled("good", now_ms() - 1), late]).await;
    let failed = until_state(&ground, "nowhere", State::Failed).await;
    assert!(failed.error.unwrap().message.contains("kafleet topics apply"));
    until_state(&ground, "good", State::Queued).await;
    until_state(&ground, "late", State::Expired).await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// A task that was cancelled before a worker took it still lies in its topic: workers have to know until they are past it.
/// Behind it lies what was given up with its transaction: workers are never given that, and commit nothing of it.
pub async fn a_cancel_is_told_until_workers_are_past_it(ground: Ground) {
    make_topics(&ground);
    let position = put_task(&ground, "x").await;
    give_up(&ground);
    let there = placed("x", position);
    let tracker = ground.tracker().await;
    ground.write(&[there, event(Kind::CancelRequested, "x")]).await;
    until_state(&ground, "x", State::Cancelled).await;
    until("the workers are told", || async {
        let effects = node(&ground, "x").await.unwrap().effects;
        matches!(effects.as_slice(), [only] if only.id().starts_with("uncancel-"))
    })
    .await;
    let control = || read_all(&ground, &ground.names.control());
    assert!(control().last().unwrap().value.is_some());
    let (group, at) = (ground.names.group(TYPE), Partition::new(ground.names.tasks(TYPE), position.partition));
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    ground.broker.set_group_offsets(&group, &[commit], DEADLINE).unwrap();
    until("workers need not know any more", || async { control().last().unwrap().value.is_none() }).await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// Nobody is there to take it back any more: its tree is gone, and so is what Kafka had of it. Nothing is taken back of a
/// tree that is still known, or whose tasks may still lie in Kafka, or of which the log is not folded yet.
pub async fn a_cancel_that_has_outlived_its_tree_is_taken_back(ground: Ground) {
    make_topics(&ground);
    let long_ago = 1_000;
    ground.write(&[submitted("known"), succeeded("known")]).await;
    let gone: BTreeSet<String> = (0..20).map(|n| format!("gone{n}")).collect();
    let stay = [("known", 0, long_ago), ("recent", 0, now_ms()), ("ahead", 1 << 40, long_ago)];
    let stay = stay.map(|(task, asof, at_ms)| (task.to_owned(), asof, at_ms));
    for (task, asof, at_ms) in stay.into_iter().chain(gone.iter().map(|task| (task.clone(), 0, long_ago))) {
        let cancel = Cancel { v: CONTROL_VERSION, asof, at_ms, subtree: true, reason: None, by: None };
        let key = ControlKey::Cancel(task);
        control::order(&ground.link, &ground.names, &key, &ControlRecord::Cancel(cancel)).await.unwrap();
    }
    // So that each partition has a time.
    let roots = (0..20).map(|n| submitted(&format!("r{n}")));
    ground.write(&roots.collect::<Vec<_>>()).await;
    let tracker = ground.tracker_with(TrackerConfig { tick: Millis(100), ..TrackerConfig::default() }).await;
    let taken = || {
        let records = read_all(&ground, &ground.names.control()).into_iter().filter(|record| record.value.is_none());
        let keys = records.filter_map(|record| String::from_utf8(record.key?).ok());
        keys.map(|key| key.trim_start_matches("cancel/").to_owned()).collect::<BTreeSet<_>>()
    };
    until("the old cancels are taken back", || async { taken().is_superset(&gone) }).await;
    assert_eq!(taken(), gone);
    tracker.stop().await;
}

/// A transaction in the task's partition that ends in nothing.
fn give_up(ground: &Ground) {
    let topic = ground.names.tasks(TYPE);
    let record = ProducerRecord { topic: &topic, partition: Some(1), key: None, value: Some(b"{}"), headers: &[] };
    let mut nowhere = |_: &[(i32, i64)]| {
        vec![DependentRecord { topic: topic.as_str().into(), partition: 99, key: Vec::new(), value: Vec::new() }]
    };
    let name = format!("{topic}.given-up");
    let given_up = ground.broker.atomic_producer(&name).unwrap().send_with_dependents(&[record], &mut nowhere, DEADLINE);
    assert!(matches!(given_up, Err(BrokerError::Unknown(_))), "{given_up:?}");
}

/// Much is due, for some seconds: it is published soon after its time. Each on its own would take minutes.
pub async fn a_thousand_due_a_second_are_not_late(ground: Ground) {
    const PER_SECOND: usize = 1_000;
    const COUNT: usize = 4 * PER_SECOND;
    const LATE_MS: i64 = 30_000;
    make_topics(&ground);
    let tracker = ground.tracker().await;
    tracker.is_well().await;
    let begin = now_ms() + 3_000;
    let due = |n: usize| begin + (n * 1_000 / PER_SECOND) as i64;
    let all: Vec<Event> = (0..COUNT).map(|n| scheduled(&format!("t{n}"), due(n))).collect();
    ground.write(&all).await;
    let written = now_ms();
    all_released(&ground, COUNT).await;
    let records = read_all(&ground, &ground.names.tasks(TYPE));
    let times = records.iter().map(|record| {
        let n: usize = header(record, "ce_id").unwrap()[1..].parse().unwrap();
        (record.timestamp_ms, due(n))
    });
    assert!(times.clone().all(|(at, due)| at >= due), "before its time");
    // What is due is late from the moment on at which it is there.
    let mut late: Vec<i64> = times.map(|(at, due)| at - due.max(written)).collect();
    late.sort_unstable();
    let (median, p99, most) = (late[COUNT / 2], late[COUNT * 99 / 100], late[COUNT - 1]);
    println!("{PER_SECOND} due a second: late by {median} ms (median), {p99} ms (p99), {most} ms (most)");
    assert!(p99 < LATE_MS, "late by {median}, {p99}, {most} ms");
    tracker.stop().await;
}

everywhere! {
    a_cancel_is_told_until_workers_are_past_it,
    a_cancel_that_has_outlived_its_tree_is_taken_back,
    a_thousand_due_a_second_are_not_late,
    each_task_is_released_once_at_its_time,
    trackers_change_while_things_are_due,
    a_retry_publishes_the_record_again,
    a_retry_of_what_failed_walks_the_tree,
    a_cancel_reaches_what_waits_and_tells_the_workers,
    what_cannot_be_published_fails,
}

/// The store forgets everything, or the last second, while things are due: what was released stays released.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_loses_writes_releases_nothing_twice() {
    let (ground, store) = ground(2);
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let saved = store.snapshot();
    for round in 0..5 {
        ground.write(&many(120, &format!("r{round}"))).await;
        until("some are released", || async { published(&ground).len() > round * 120 }).await;
        if round % 2 == 0 { store.wipe() } else { store.restore(&saved) }
    }
    all_released(&ground, 600).await;
    tracker.stop().await;
}

/// The outcome of a transaction is unknown: it may be open, aborted or committed. Each is found out before anything more.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_unknown_outcome_is_cleared_up() {
    let memory = broker::Memory::new(broker::MemoryOptions::default());
    let ground = Ground::new(memory.clone(), Arc::new(Memory::default()), 1);
    make_topics(&ground);
    let name = format!("{}.firing.0", ground.names.events());
    memory.hold_atomic(&name, true);
    let tracker = ground.tracker().await;
    ground.write(&many(50, "a")).await;
    tracker.says("timers of events partition 0", "held open").await;
    memory.hold_atomic(&name, false);
    all_released(&ground, 50).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// A record that lies behind somebody's open transaction is not gone: its retry waits, and nothing else waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_for_a_record_that_is_not_committed_yet() {
    let memory = broker::Memory::new(broker::MemoryOptions::default());
    let ground = Ground::new(memory.clone(), Arc::new(Memory::default()), 1);
    make_topics(&ground);
    let topic = ground.names.tasks(TYPE);
    let strangers =
        ProducerRecord { topic: &topic, partition: Some(1), key: None, value: Some(b"{}"), headers: &[("ce_id", b"s")] };
    memory.hold_atomic("stranger", true);
    memory.atomic_producer("stranger").unwrap().send_all(&[strangers], DEADLINE).unwrap_err();
    let position = put_task(&ground, "x").await;
    let there = placed("x", position);
    let tracker = ground.tracker().await;
    ground.write(&[there, ended(Kind::Failed, "x"), event(Kind::RetryRequested, "x")]).await;
    until("the retry is to be published", || async { node(&ground, "x").await.is_some_and(|node| node.effects.len() == 1) })
        .await;
    ground.write(&many(20, "a")).await;
    until_state(&ground, "a-19", State::Queued).await;
    assert_eq!(node(&ground, "x").await.unwrap().effects.len(), 1, "it waits");
    assert!(memory.settle_atomic("stranger", true));
    until("it is published", || async { node(&ground, "x").await.unwrap().effects.is_empty() }).await;
    assert_eq!(node(&ground, "x").await.unwrap().state, State::Queued);
    assert_eq!(published(&ground)["x"], 2);
    tracker.stop().await;
}

/// Folding goes on while nothing can be fired, and it says why.
#[tokio::test(flavor = "multi_thread")]
async fn folding_goes_on_while_nothing_can_be_fired() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let store = ShakyStore::new(ground.store.clone());
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    let ground = ground.with(broker, Arc::new(store));
    *tricks.no_atomic.lock().unwrap() = Some(BrokerError::Unavailable("no coordinator".into()));
    let tracker = ground.tracker().await;
    ground.write(&many(20, "a")).await;
    tracker.says("timers of events partition 0", "no coordinator").await;
    ground.write(&[submitted("meanwhile"), succeeded("meanwhile")]).await;
    until_state(&ground, "meanwhile", State::Succeeded).await;
    let tries = tricks.atomics.load(SeqCst);
    assert!(tries < 30, "{tries} tries: it spins");
    *tricks.no_atomic.lock().unwrap() = None;
    all_released(&ground, 20).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// Nothing is fired before all of this is folded: returns the log of the only partition once these cancels are done.
async fn log_of_cancels(story: &[Event], cancelled: &[String]) -> (Vec<Event>, u32) {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    let ground = ground.with(broker, ground.store.clone());
    *tricks.no_atomic.lock().unwrap() = Some(BrokerError::Unavailable("not yet".into()));
    let tracker = ground.tracker().await;
    ground.write(story).await;
    let asked: Vec<Event> = cancelled.iter().map(|task| event(Kind::CancelRequested, task)).collect();
    ground.write(&asked).await;
    ground.folded().await;
    *tricks.no_atomic.lock().unwrap() = None;
    for task in cancelled {
        let walks = |node: &TaskRecord| node.effects.iter().any(|effect| effect.id().starts_with("cancel-"));
        until(&format!("the walk below `{task}` is done"), || async { !walks(&node(&ground, task).await.unwrap()) }).await;
    }
    let records = read_all(&ground, &ground.names.events());
    tracker.stop().await;
    let events = records.iter().filter_map(|record| Event::decode(record.value.as_deref()?).ok());
    (events.collect(), tricks.sends.load(SeqCst))
}

/// Many small trees that are cancelled at once do not wait for each other, a transaction for each.
#[tokio::test(flavor = "multi_thread")]
async fn cancels_of_many_trees_share_transactions() {
    const TREES: usize = 200;
    let trees: Vec<String> = (0..TREES).map(|n| format!("t{n}")).collect();
    let later = now_ms() + 600_000;
    let story: Vec<Event> =
        trees.iter().flat_map(|tree| [submitted(tree), scheduled(&format!("{tree}:waits"), later), succeeded(tree)]).collect();
    let (log, sends) = log_of_cancels(&story, &trees).await;
    let reached = log.iter().filter(|event| event.kind == Kind::CancelRequested && event.id.segment() == "waits");
    assert_eq!(reached.count(), TREES);
    assert!((sends as usize) < TREES / 2, "{sends} transactions for {TREES} cancels");
}

/// A walk over a large tree holds up neither timers nor the cancel of a small tree.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_walk_lets_others_by() {
    const CHILDREN: usize = 6_000;
    const DUE: usize = 1_200;
    let mut story = vec![submitted("big"), succeeded("big"), submitted("small"), submitted("small:0")];
    story.extend((0..CHILDREN).map(|n| submitted(&format!("big:{n}"))));
    story.extend((0..DUE).map(|n| scheduled(&format!("due-{n}"), now_ms() - 1)));
    let (log, _) = log_of_cancels(&story, &["big".to_owned(), "small".to_owned()]).await;
    let places = |is: &dyn Fn(&Event) -> bool| -> Vec<usize> {
        log.iter().enumerate().filter(|(_, event)| is(event)).map(|(place, _)| place).collect()
    };
    let walked = places(&|event| event.kind == Kind::CancelRequested && event.id.as_str().starts_with("big:"));
    let released = places(&|event| event.kind == Kind::Released);
    let small = places(&|event| event.kind == Kind::EffectDone && event.id == id("small"));
    assert_eq!((walked.len(), released.len()), (CHILDREN, DUE));
    let end = walked[CHILDREN - 1];
    assert!(released[DUE - 1] < end, "all that was due is released before the walk is over");
    assert!(small[0] < end, "the small tree does not wait for the large one");
}

/// A tracker ends, or is stopped for a while, at each step of firing: the next one finds out how far it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_that_stops_at_any_step_releases_nothing_twice() {
    for step in [Step::Before, Step::After, Step::Frozen] {
        let (ground, _) = ground(2);
        make_topics(&ground);
        let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
        let first = ground.with(broker, ground.store.clone());
        *tricks.step.lock().unwrap() = step;
        let stopped = first.tracker().await;
        ground.write(&many(60, "a")).await;
        match step {
            Step::Frozen => until("it is stopped in the middle", || async { tricks.frozen.load(SeqCst) }).await,
            Step::Before => stopped.says("timers of events partition 0", "on purpose").await,
            // What was sent is found when it begins again, and not sent once more.
            _ => until("something was sent", || async { !published(&ground).is_empty() }).await,
        }
        stopped.shutdown.begin();
        let second = ground.tracker().await;
        all_released(&ground, 60).await;
        // It comes back, and finds that another one has taken over.
        *tricks.step.lock().unwrap() = Step::Done;
        ground.write(&many(60, "b")).await;
        all_released(&ground, 120).await;
        stopped.stop().await;
        assert_eq!(published(&ground).values().sum::<usize>(), 120, "{step:?}");
        second.stop().await;
    }
}
