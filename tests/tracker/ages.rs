//! Expiry by log time: finished trees are removed, old open trees end, unannounced tasks expire. The result does not
//! depend on batch boundaries, and counters stay consistent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use kafleet::broker::{ProducerRecord, memory as broker};
use kafleet::config::TrackerConfig;
use kafleet::control::heartbeat::{Heartbeat, HeartbeatState, TypeStatus};
use kafleet::model::event::{AttemptFailure, Event, Kind, Payload};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::retention::Lifetimes;
use kafleet::model::task::id::TaskId;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::memory::MemoryStore;
use kafleet::store::{Store, TypeCount};
use kafleet::tracker::project::projection::{LoggedEvent, Projection};
use kafleet_testkit::oracle::Oracle;
use kafleet_testkit::properties;
use proptest::prelude::*;

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event, id, submitted, succeeded};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually};
use crate::tracker::outbox::{make_topics, read_all, scheduled, task_record, until_state};

const HOUR: i64 = 3_600_000;
const START: i64 = 1_700_000_000_000;

fn lifetimes() -> Lifetimes {
    Lifetimes {
        record_retention_ms: HOUR,
        max_tree_age_ms: 5 * HOUR,
        types: BTreeMap::from([("child".into(), 9 * HOUR)]),
    }
}

pub fn logged(events: Vec<(i64, Event)>) -> Vec<LoggedEvent> {
    let settings = (START, Event::settings(lifetimes(), START));
    let all = std::iter::once(settings).chain(events).enumerate();
    all.map(|(n, (timestamp_ms, event))| LoggedEvent { event, offset: n as i64 * 2, timestamp_ms }).collect()
}

/// Folds a log in batches of these sizes, repeated, each time with an empty cache if `forgets` is set.
async fn fold(events: &[LoggedEvent], sizes: &[usize], forgets: bool) -> (MemoryStore, Vec<(TaskId, TaskRecord)>, u64) {
    let store = MemoryStore::default();
    let mut folding = Projection::open(Arc::new(store.clone()), 0).await.unwrap();
    let (mut rest, mut sizes, mut removed) = (events, sizes.iter().cycle(), 0);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
        let next = later.first().map_or_else(|| batch.last().unwrap().offset + 1, |logged| logged.offset);
        removed += folding.fold(batch, next).await.unwrap().removed;
        if forgets {
            folding = Projection::open(Arc::new(store.clone()), 0).await.unwrap();
        }
        rest = later;
    }
    let task_records =
        folding.working_set().task_records().map(|(id, task_record)| (id.clone(), task_record.clone())).collect();
    (store, task_records, removed)
}

/// Compares the counters with the records.
async fn expect_consistent_counts(store: &MemoryStore, task_records: &[(TaskId, TaskRecord)]) {
    let mut counts: BTreeMap<(Arc<str>, State), u64> = BTreeMap::new();
    for task_record in task_records.iter().map(|(_, task_record)| task_record) {
        if let Some(task_type) = &task_record.task_type {
            *counts.entry((task_type.clone(), task_record.state)).or_default() += 1;
        }
    }
    let stored = store
        .counts(&[0])
        .await
        .unwrap()
        .into_iter()
        .map(|TypeCount { task_type, state, count }| ((task_type, state), count));
    assert_eq!(stored.collect::<BTreeMap<_, _>>(), counts);
    for (id, _) in task_records {
        assert!(task_records.iter().any(|(other, _)| other.as_str() == id.root()), "`{id}` has lost its root");
    }
}

pub const TASKS: [&str; 9] = ["a", "a:1", "a:2", "a:1:x", "b", "b:1", "c", "c:1:y", "d"];

pub fn steps_to_events(steps: &[(usize, u8, i64)]) -> Vec<(i64, Event)> {
    let mut at = START;
    let mut events = Vec::new();
    for (task, step, wait) in steps {
        at += wait * wait * 60_000;
        let task = TASKS[*task];
        let mut failed = event(Kind::Failed, task);
        failed.payload = Payload::Failed(AttemptFailure::new("error", "broken", 1));
        let mut log = event(Kind::Log, task);
        log.payload = Payload::log(vec!["a line".into()]);
        events.push((
            at,
            match step {
                0 | 1 => submitted(task),
                2 => event(Kind::Started, task),
                3..=5 => succeeded(task),
                6 => failed,
                7 => event(Kind::RetryRequested, task),
                8 => event(Kind::CancelRequested, task),
                9 => scheduled(task, at + HOUR),
                10 => log,
                11 => Event::settings(Lifetimes { max_tree_age_ms: (1 + wait) * HOUR, ..lifetimes() }, at),
                _ => Event::tick(at),
            },
        ));
    }
    events
}

proptest! {
    #![proptest_config(properties::config(192))]

    #[test]
    fn batch_boundaries_do_not_change_the_result(
        steps in prop::collection::vec((0..TASKS.len(), 0_u8..13, 0_i64..14), 1..90),
        sizes in prop::collection::vec(1_usize..30, 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let events = logged(steps_to_events(&steps));
            let (store, task_records, removed) = fold(&events, &[usize::MAX], false).await;
            expect_consistent_counts(&store, &task_records).await;
            let oracle = Oracle { store: store.clone(), task_records: vec![task_records], events: events.len(), ends: Vec::new() };
            let all = TASKS.map(id);
            for (sizes, forgets) in [(&sizes[..], false), (&sizes[..], true), (&[1][..], true)] {
                let (other, _, also_removed) = fold(&events, sizes, forgets).await;
                oracle.equals(&other).await;
                assert_eq!(removed, also_removed);
                assert_eq!(store.task_records(0, &all).await.unwrap(), other.task_records(0, &all).await.unwrap());
                assert_eq!(store.checkpoints(&[0]).await.unwrap(), other.checkpoints(&[0]).await.unwrap());
            }
        });
    }
}

/// A tree wider than a step, with branches, logs and superseded tasks, is removed completely; its neighbour stays.
#[tokio::test]
async fn finished_tree_is_removed_completely() {
    let mut events = vec![(START, submitted("w")), (START, submitted("stays")), (START, submitted("w:branch"))];
    for n in 0..1_300 {
        let leaf = if n % 3 == 0 { format!("w:branch:{n}") } else { format!("w:{n}") };
        events.extend([(START, submitted(&leaf)), (START, succeeded(&leaf))]);
    }
    let mut log = event(Kind::Log, "w:1");
    log.payload = Payload::log(vec!["a line".into()]);
    events.extend([(START, log), (START, succeeded("w:branch")), (START, succeeded("w"))]);
    let log = logged(events.iter().cloned().chain([(START + HOUR - 20_000, Event::tick(0))]).collect());
    let (store, task_records, removed) = fold(&log, &[700], true).await;
    assert_eq!((task_records.len(), removed), (0, 0), "the cache is empty, and nothing was removed");
    assert_eq!(store.counts(&[0]).await.unwrap().iter().map(|count| count.count).sum::<u64>(), 1_303);
    let gone = logged(events.into_iter().chain([(START + HOUR + 20_000, Event::tick(0))]).collect());
    let (store, task_records, removed) = fold(&gone, &[usize::MAX], false).await;
    assert_eq!(removed, 1_302);
    assert_eq!(task_records.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["stays"]);
    expect_consistent_counts(&store, &task_records).await;
    assert_eq!(store.log_lines(0, &id("w:1"), 0, 10).await.unwrap().lines, Vec::<String>::new());
}

async fn state_after(events: Vec<(i64, Event)>, task: &str) -> Option<TaskRecord> {
    let (_, task_records, _) = fold(&logged(events), &[usize::MAX], false).await;
    task_records.into_iter().find(|(found, _)| found.as_str() == task).map(|(_, task_record)| task_record)
}

/// The type of the root determines the retention of its tree.
#[tokio::test]
async fn each_type_has_its_own_retention() {
    let mut long = submitted("long");
    long.task.as_mut().unwrap().task_type = "child".into();
    let log = |hours| vec![(START, long.clone()), (START, succeeded("long")), (START + hours * HOUR, Event::tick(0))];
    assert!(state_after(log(8), "long").await.is_some());
    assert!(state_after(log(10), "long").await.is_none());
}

/// An unannounced child holds its parent open for a day, and again once it is announced.
#[tokio::test]
async fn unannounced_task_is_given_up_until_it_is_announced() {
    let mut grandchild = vec![(START, Event::settings(Lifetimes::default(), START))];
    grandchild
        .extend([submitted("p"), succeeded("p"), submitted("p:e:x"), succeeded("p:e:x")].map(|event| (START, event)));
    let after = |more: Vec<(i64, Event)>| grandchild.iter().cloned().chain(more).collect::<Vec<_>>();
    let day = |hours: i64| (START + (24 + hours) * HOUR, Event::tick(0));
    assert_eq!(state_after(after(vec![day(-1)]), "p").await.unwrap().state, State::WaitingForChildren);
    let given_up = state_after(after(vec![day(1)]), "p:e").await.unwrap();
    assert_eq!(
        given_up.outcome.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message)).as_deref(),
        Some("expired: never announced")
    );
    assert_eq!(state_after(after(vec![day(1)]), "p").await.unwrap().state, State::Expired);
    let announced = after(vec![day(1), (START + 25 * HOUR, submitted("p:e"))]);
    assert_eq!(state_after(announced.clone(), "p:e").await.unwrap().state, State::Queued);
    assert_eq!(state_after(announced.clone(), "p").await.unwrap().state, State::WaitingForChildren);
    let ended = announced.into_iter().chain([(START + 25 * HOUR, succeeded("p:e"))]).collect();
    assert_eq!(state_after(ended, "p").await.unwrap().state, State::Succeeded);
}

/// The maximum age of open trees may change after a tree was created: before the tracker has written it to the log
/// for the first time, and when an operator changes it.
#[tokio::test]
async fn open_trees_end_at_a_changed_age() {
    let lifetimes = |hours| Lifetimes { max_tree_age_ms: hours * HOUR, ..Lifetimes::default() };
    let mut log: Vec<(i64, Event)> = (0..1_200).map(|n| (START + n, submitted(&format!("t{n}")))).collect();
    log.push((START + HOUR, Event::settings(lifetimes(3), START)));
    log.push((START + 2 * HOUR, Event::tick(0)));
    let state = async |more: &[(i64, Event)], task| {
        let settings = [(START, Event::settings(lifetimes(720), START))];
        let (store, ..) = fold(&logged([&settings[..], &log, more].concat()), &[usize::MAX], false).await;
        store.task_records(0, &[id(task)]).await.unwrap().pop().flatten().unwrap().state
    };
    assert_eq!(state(&[], "t0").await, State::Queued, "the tree does not end before max_tree_age");
    let later = (START + 4 * HOUR, Event::tick(0));
    assert_eq!(state(std::slice::from_ref(&later), "t0").await, State::Expired);
    assert_eq!(state(std::slice::from_ref(&later), "t1199").await, State::Expired);
    let longer = (START + 2 * HOUR, Event::settings(lifetimes(9), START));
    assert_eq!(state(&[longer, later], "t7").await, State::Queued, "the last setting applies");
}

/// With a real clock: an old tree ends, its running task is cancelled, and later the whole tree is removed.
#[tokio::test(flavor = "multi_thread")]
async fn tree_open_for_too_long_ends() {
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = {
        let ahead = ahead.clone();
        Arc::new(move || now_ms() + ahead.load(SeqCst))
    };
    // Removed topics stay in the group however far the clock advances.
    let options =
        broker::MemoryBrokerOptions { clock, session_timeout: Duration::from_secs(90 * 86_400), ..Default::default() };
    let fixture = Fixture::new(broker::MemoryBroker::new(options), Arc::new(MemoryStore::default()), 1);
    make_topics(&fixture);
    let config = TrackerConfig { tick: Millis(200), ..TrackerConfig::default() };
    let tracker = fixture.tracker_with_lifetimes(config, lifetimes()).await;
    eventually("the lifetimes are published", || async { fixture.end(0) == 1 }).await;
    let mut runs = event(Kind::Started, "old:runs");
    runs.worker = Some("w".into());
    fixture
        .write(&[submitted("old"), succeeded("old"), submitted("old:queued"), runs, submitted("old:queued:deep")])
        .await;
    fixture.write(&[scheduled("old:waits", now_ms() + 20 * HOUR)]).await;
    until_state(&fixture, "old", State::WaitingForChildren).await;
    ahead.store(6 * HOUR, SeqCst);
    for task in ["old:queued", "old:queued:deep", "old:waits", "old:runs", "old"] {
        let ended = until_state(&fixture, task, State::Expired).await;
        let has_reason =
            ended.history.entries.iter().any(|entry| entry.message.as_deref() == Some("open longer than max_tree_age"));
        assert!(has_reason, "{task}: {:?}", ended.history.entries);
    }
    let control = read_all(&fixture, &fixture.names.control());
    let cancel = String::from_utf8_lossy(control[0].value.as_deref().unwrap()).into_owned();
    assert!(cancel.contains("open longer than max_tree_age"), "workers receive the cancel: {cancel}");
    expect_agreement(&fixture).await;
    ahead.store(8 * HOUR, SeqCst);
    eventually("the tree was removed", || async {
        task_record(&fixture, "old").await.is_none() && task_record(&fixture, "old:runs").await.is_none()
    })
    .await;
    expect_agreement(&fixture).await;
    assert_eq!(fixture.store.counts(&fixture.all()).await.unwrap(), []);
    // One more tick may be in flight, decided on while something could still expire.
    let is_quiet = || async {
        let end = fixture.end(0);
        // Not a wait for a condition: five intervals show that no more ticks follow.
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.end(0) == end
    };
    eventually("no ticks are published once nothing can expire", is_quiet).await;
    tracker.stop().await;
}

/// A tracker with short intervals.
pub async fn short_intervals(fixture: &Fixture) -> crate::tracker::fixture::Tracker {
    let config = TrackerConfig { tick: Millis(400), ..TrackerConfig::default() };
    fixture.tracker_with(config).await
}

pub async fn idle_partition_gets_ticks(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = short_intervals(&fixture).await;
    fixture.write(&[submitted("t")]).await;
    let (with, without) = (fixture.partition_of("t"), 1 - fixture.partition_of("t"));
    eventually("a tick is published", || async { fixture.end(with) >= 3 }).await;
    assert_eq!(fixture.end(without), 0, "no ticks are published to an empty partition");
    assert_eq!(task_record(&fixture, "t").await.unwrap().history.entries.len(), 1);
    tracker.stop().await;
    // The last tick may precede the time at which the task expires.
    let next = fixture.tracker().await;
    expect_agreement(&fixture).await;
    next.stop().await;
}

/// Publishes a heartbeat with this interval to the next one.
pub async fn heartbeat(fixture: &Fixture, worker: &str, every_ms: u64, state: HeartbeatState) {
    let topic = fixture.names.workers();
    let part = TypeStatus { task_type: "root".into(), slots: 1, in_flight: 1, ..TypeStatus::default() };
    let heartbeat = Heartbeat {
        v: 1,
        id: worker.into(),
        host: "h".into(),
        pid: 1,
        version: "0".into(),
        state,
        unfinished: state == HeartbeatState::Stopped,
        started_ms: now_ms(),
        at_ms: now_ms(),
        every_ms,
        held_bytes: 0,
        types: vec![part],
        running: Vec::new(),
    };
    let value = serde_json::to_vec(&heartbeat).unwrap();
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: Some(worker.as_bytes()),
        value: Some(&value),
        headers: &[],
    };
    fixture.producer.deliver(record, DEADLINE).await.unwrap();
}

/// Tasks of a silent worker are marked, and a cancel does not wait for it; tasks of a live worker are not.
pub async fn tasks_of_a_silent_worker_are_marked(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = short_intervals(&fixture).await;
    let started = |task: &str, worker: &str| {
        let mut started = event(Kind::Started, task);
        (started.worker, started.attempt) = (Some(worker.into()), 1);
        started
    };
    fixture.write(&[submitted("gone"), started("gone", "w1"), submitted("there"), started("there", "w2")]).await;
    heartbeat(&fixture, "w1", 500, HeartbeatState::Running).await;
    let silent = |task: &'static str| {
        let fixture = fixture.clone();
        async move { task_record(&fixture, task).await.is_some_and(|task_record| task_record.silent) }
    };
    eventually("the task of the silent worker is marked", || async {
        heartbeat(&fixture, "w2", 60_000, HeartbeatState::Running).await;
        silent("gone").await
    })
    .await;
    let record = task_record(&fixture, "gone").await.unwrap();
    assert_eq!(
        (record.state, record.history.entries.last().map(|entry| entry.kind)),
        (State::Running, Some(Kind::WorkerSilent))
    );
    assert!(!silent("there").await, "tasks of the live worker are not marked");
    fixture.write(&[event(Kind::CancelRequested, "gone")]).await;
    until_state(&fixture, "gone", State::Cancelled).await;
    // Searches repeat, and may publish the event again before the first one is folded, without effect.
    let history = task_record(&fixture, "gone").await.unwrap().history.entries;
    assert_eq!(
        history.iter().filter(|entry| entry.kind == Kind::WorkerSilent && !entry.ignored).count(),
        1,
        "{history:?}"
    );
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A worker that has stopped in order is not silent: the tasks that it left wait for another one.
pub async fn tasks_of_a_stopped_worker_are_queued(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = short_intervals(&fixture).await;
    let started = Event { worker: Some("w1".into()), attempt: 1, ..event(Kind::Started, "left") };
    fixture.write(&[submitted("left"), started]).await;
    heartbeat(&fixture, "w1", 500, HeartbeatState::Stopped).await;
    until_state(&fixture, "left", State::Queued).await;
    let record = task_record(&fixture, "left").await.unwrap();
    let last = record.history.entries.last().unwrap();
    assert_eq!((last.kind, last.error_kind.as_deref()), (Kind::Interrupted, Some("worker_stopped")));
    assert!(!record.silent && record.history.entries.iter().all(|entry| entry.kind != Kind::WorkerSilent));
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

mod in_memory {
    #[tokio::test(flavor = "multi_thread")]
    async fn idle_partition_gets_ticks() {
        super::idle_partition_gets_ticks(crate::tracker::memory::fixture(2).0).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tasks_of_a_silent_worker_are_marked() {
        super::tasks_of_a_silent_worker_are_marked(crate::tracker::memory::fixture(2).0).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tasks_of_a_stopped_worker_are_queued() {
        super::tasks_of_a_stopped_worker_are_queued(crate::tracker::memory::fixture(2).0).await;
    }
}
