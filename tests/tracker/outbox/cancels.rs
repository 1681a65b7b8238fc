//! Cancels and subtree commands: published to workers, applied to trees, and withdrawn.

use kafleet_testkit::faults::{open_transactional_producer, transaction};

use super::*;

/// A cancel ends tasks that no worker holds and is published to workers; its control record is deleted once all have
/// ended.
pub async fn cancel_ends_waiting_tasks_and_is_sent_to_workers(fixture: Fixture) {
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let mut runs = event(Kind::Started, "c:runs");
    runs.worker = Some("w".into());
    let waits = scheduled("c:waits", now_ms() + 600_000);
    fixture.write(&[submitted("c"), waits, submitted("c:queued"), submitted("c:runs"), runs, succeeded("c")]).await;
    let deep: Vec<Event> = (0..600).map(|n| submitted(&format!("c:queued:{n}"))).collect();
    fixture.write(&deep).await;
    fixture.write(&[event(Kind::CancelRequested, "c")]).await;
    for task in ["c:waits", "c:queued", "c:queued:599"] {
        until_state(&fixture, task, State::Cancelled).await;
    }
    assert_eq!(until_state(&fixture, "c:runs", State::Cancelling).await.own, State::Running);
    let control = || read_all(&fixture, &fixture.names.control());
    let asof = task_record(&fixture, "c").await.unwrap().requests.cancel.unwrap().asof;
    // Once, or again by a relay that has restarted meanwhile.
    let control_records = control();
    assert!(!control_records.is_empty());
    for record in control_records {
        let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        assert_eq!(
            (record.key.as_deref(), &value["v"], &value["asof"]),
            (Some(&b"cancel/c"[..]), &json!(1), &json!(asof))
        );
    }
    fixture.write(&[ended(Payload::Cancelled, "c:runs")]).await;
    until_state(&fixture, "c", State::Cancelled).await;
    eventually("the cancel is withdrawn", || async { control().last().unwrap().value.is_none() }).await;
    assert!(published(&fixture).is_empty(), "a cancelled task is not released");
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A task cancelled before a worker took it is still in its topic: the cancel stays until workers have committed past
/// it. The task is followed by an aborted transaction, which workers never receive and do not commit.
pub async fn cancel_stays_until_workers_have_passed_it(fixture: Fixture) {
    make_topics(&fixture);
    let position = put_task(&fixture, "x").await;
    abort_transaction(&fixture);
    let there = placed("x", position);
    let tracker = fixture.tracker().await;
    fixture.write(&[there, event(Kind::CancelRequested, "x")]).await;
    until_state(&fixture, "x", State::Cancelled).await;
    eventually("the cancel is published", || async {
        let effects = task_record(&fixture, "x").await.unwrap().effects;
        matches!(effects.as_slice(), [only] if only.id().starts_with("uncancel-"))
    })
    .await;
    let control = || read_all(&fixture, &fixture.names.control());
    assert!(control().last().unwrap().value.is_some());
    let (group, at) = (fixture.names.group(TYPE), Partition::new(fixture.names.tasks(TYPE), position.partition));
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    fixture.broker.set_group_offsets(&group, &[commit], DEADLINE).unwrap();
    eventually("the cancel is withdrawn", || async { control().last().unwrap().value.is_none() }).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A cancel whose tree and records are gone is withdrawn. Cancels stay if their tree is known, their tasks may still
/// be in Kafka, or the log is not folded yet.
pub async fn cancel_without_a_tree_is_withdrawn(fixture: Fixture) {
    make_topics(&fixture);
    let long_ago = 1_000;
    fixture.write(&[submitted("known"), succeeded("known")]).await;
    let gone: BTreeSet<String> = (0..20).map(|n| format!("gone{n}")).collect();
    let stay = [("known", 0, long_ago), ("recent", 0, now_ms()), ("ahead", 1 << 40, long_ago)];
    let stay = stay.map(|(task, asof, at_ms)| (task.to_owned(), asof, at_ms));
    for (task, asof, at_ms) in stay.into_iter().chain(gone.iter().map(|task| (task.clone(), 0, long_ago))) {
        let cancel = Cancel { v: CONTROL_VERSION, asof, at_ms, subtree: true, reason: None, by: None };
        let key = ControlKey::Cancel(task);
        control::put_record(&fixture.producer, &fixture.names, &key, &ControlRecord::Cancel(cancel)).await.unwrap();
    }
    // Each partition needs a log time.
    let roots = (0..20).map(|n| submitted(&format!("r{n}")));
    fixture.write(&roots.collect::<Vec<_>>()).await;
    let tracker = fixture.tracker_with(TrackerConfig { tick: Millis(100), ..TrackerConfig::default() }).await;
    let taken = || {
        let records = read_all(&fixture, &fixture.names.control()).into_iter().filter(|record| record.value.is_none());
        let keys = records.filter_map(|record| String::from_utf8(record.key?).ok());
        keys.map(|key| key.trim_start_matches("cancel/").to_owned()).collect::<BTreeSet<_>>()
    };
    eventually("the stale cancels are withdrawn", || async { taken().is_superset(&gone) }).await;
    assert_eq!(taken(), gone);
    tracker.stop().await;
}

/// A start is withdrawn an hour after its request, once the task no longer waits for it.
pub async fn start_of_a_task_that_has_started_is_withdrawn(fixture: Fixture) {
    make_topics(&fixture);
    let waits = |task: &str| Event { attempt: 1, worker: Some("w".into()), ..event(Kind::Retrying, task) };
    let runs = Event { attempt: 2, ..event(Kind::Started, "runs") };
    fixture.write(&[submitted("waits"), waits("waits"), submitted("runs"), waits("runs"), runs]).await;
    for (task, age_ms) in [("waits", 7_200_000), ("runs", 7_200_000), ("gone", 7_200_000), ("recent", 1_000)] {
        let next_start = NextStart { run: 1, attempts: 1, waits: 0 };
        let start = StartNow { v: CONTROL_VERSION, at_ms: now_ms() - age_ms, next_start };
        let key = ControlKey::Start(task.to_owned());
        control::put_record(&fixture.producer, &fixture.names, &key, &ControlRecord::Start(start)).await.unwrap();
    }
    // Each partition needs a log time.
    let roots = (0..20).map(|n| submitted(&format!("r{n}")));
    fixture.write(&roots.collect::<Vec<_>>()).await;
    let tracker = fixture.tracker_with(TrackerConfig { tick: Millis(100), ..TrackerConfig::default() }).await;
    let taken = || {
        let records = read_all(&fixture, &fixture.names.control()).into_iter().filter(|record| record.value.is_none());
        let keys = records.filter_map(|record| String::from_utf8(record.key?).ok());
        keys.filter_map(|key| Some(key.strip_prefix("start/")?.to_owned())).collect::<BTreeSet<_>>()
    };
    let over = BTreeSet::from(["gone".to_owned(), "runs".to_owned()]);
    eventually("the stale starts are withdrawn", || async { taken().is_superset(&over) }).await;
    assert_eq!(taken(), over);
    tracker.stop().await;
}

/// Writes an aborted transaction to the task's partition.
fn abort_transaction(fixture: &Fixture) {
    let topic = fixture.names.tasks(TYPE);
    let record = ProducerRecord { topic: &topic, partition: Some(1), key: None, value: Some(b"{}"), headers: &[] };
    let mut nowhere = |_: &[(i32, i64)]| {
        Ok(vec![DependentRecord { topic: topic.as_str().into(), partition: 99, key: Vec::new(), value: Vec::new() }])
    };
    let name = format!("{topic}.given-up");
    let given_up =
        fixture.broker.transactional_producer(&name).unwrap().send_with_dependents(&[record], &mut nowhere, DEADLINE);
    assert!(matches!(given_up, Err(BrokerError::Unknown(_))), "{given_up:?}");
}

/// Starts the relay after all events are folded; returns the log of the only partition once these cancels are
/// complete.
async fn log_of_cancels(event_log: &[Event], cancelled: &[String]) -> (Vec<Event>, usize) {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    let transactions = faults.count(transaction(""));
    let unopened = faults.on(open_transactional_producer).fail(BrokerError::Unavailable("not yet".into()));
    let tracker = fixture.tracker().await;
    fixture.write(event_log).await;
    let asked: Vec<Event> = cancelled.iter().map(|task| event(Kind::CancelRequested, task)).collect();
    fixture.write(&asked).await;
    fixture.folded().await;
    unopened.lift();
    for task in cancelled {
        let walks =
            |task_record: &TaskRecord| task_record.effects.iter().any(|effect| effect.id().starts_with("cancel-"));
        eventually(&format!("the subtree command of `{task}` is complete"), || async {
            !walks(&task_record(&fixture, task).await.unwrap())
        })
        .await;
    }
    let records = read_all(&fixture, &fixture.names.events());
    tracker.stop().await;
    let events = records.iter().filter_map(|record| Event::decode(record.value.as_deref()?).ok());
    (events.collect(), transactions.hits())
}

/// Cancels of many small trees run concurrently, several per transaction.
#[tokio::test(flavor = "multi_thread")]
async fn cancels_of_many_trees_share_transactions() {
    const TREES: usize = 200;
    let trees: Vec<String> = (0..TREES).map(|n| format!("t{n}")).collect();
    let later = now_ms() + 600_000;
    let event_log: Vec<Event> = trees
        .iter()
        .flat_map(|tree| [submitted(tree), scheduled(&format!("{tree}:waits"), later), succeeded(tree)])
        .collect();
    let (log, sends) = log_of_cancels(&event_log, &trees).await;
    let reached = log.iter().filter(|event| event.kind() == Kind::CancelRequested && event.id.segment() == "waits");
    assert_eq!(reached.count(), TREES);
    assert!(sends < TREES / 2, "{sends} transactions for {TREES} cancels");
}

/// A subtree command over a large tree blocks neither timers nor the cancel of a small tree.
#[tokio::test(flavor = "multi_thread")]
async fn long_subtree_command_blocks_nothing() {
    const CHILDREN: usize = 6_000;
    const DUE: usize = 1_200;
    let mut event_log = vec![submitted("big"), succeeded("big"), submitted("small"), submitted("small:0")];
    event_log.extend((0..CHILDREN).map(|n| submitted(&format!("big:{n}"))));
    event_log.extend((0..DUE).map(|n| scheduled(&format!("due-{n}"), now_ms() - 1)));
    let (log, _) = log_of_cancels(&event_log, &["big".to_owned(), "small".to_owned()]).await;
    let positions = |is: &dyn Fn(&Event) -> bool| -> Vec<usize> {
        log.iter().enumerate().filter(|(_, event)| is(event)).map(|(position, _)| position).collect()
    };
    let walked = positions(&|event| event.kind() == Kind::CancelRequested && event.id.as_str().starts_with("big:"));
    let released = positions(&|event| event.kind() == Kind::Released);
    let small = positions(&|event| event.kind() == Kind::EffectDone && event.id == id("small"));
    assert_eq!((walked.len(), released.len()), (CHILDREN, DUE));
    let end = walked[CHILDREN - 1];
    assert!(released[DUE - 1] < end, "all timers fire before the command is complete");
    assert!(small[0] < end, "the small tree does not wait for the large one");
}
