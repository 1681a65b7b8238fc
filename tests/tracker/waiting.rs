//! Effects that wait for workers or Kafka block no other effects and are not lost; stopped workers are not waited
//! for.

use kafleet::broker::{BrokerError, Commit, Partition, ProducerRecord, TopicSpec};
use kafleet::config::TrackerConfig;
use kafleet::control::heartbeat::HeartbeatState;
use kafleet::model::event::{AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::continuation::Continuation;
use kafleet::model::task::{Policy, Position, Rules};
use kafleet::runtime::now_ms;
use kafleet_testkit::faults::group_offsets;

use crate::tracker::ages::heartbeat;
use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event, id, submitted, succeeded};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually};
use crate::tracker::memory::fixture;
use crate::tracker::outbox::{
    header, make_topics, placed, positions_match_newest_records, put_task, read_all, task_record, until_state,
};

fn of_type(task: &str, task_type: &str) -> Event {
    let mut event = submitted(task);
    let task = event.task.as_mut().unwrap();
    (task.task_type, task.position) = (task_type.into(), None);
    event
}

fn by(kind: Kind, task: &str, worker: &str) -> Event {
    Event { worker: Some(worker.into()), attempt: 1, ..event(kind, task) }
}

/// Latest control record of a task's cancel.
fn cancel_record(fixture: &Fixture, task: &str) -> Option<Vec<u8>> {
    let key = format!("cancel/{task}");
    let records = read_all(fixture, &fixture.names.control());
    records.into_iter().rev().find(|record| record.key.as_deref() == Some(key.as_bytes()))?.value
}

async fn is_withdrawn(fixture: &Fixture, task: &str) -> bool {
    task_record(fixture, task).await.is_some_and(|task_record| task_record.effects.is_empty())
        && cancel_record(fixture, task).is_none()
}

/// Hundreds of tasks were cancelled before a worker took them, and no worker consumes their records.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_cancels_block_no_other_effects() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    put_task(&fixture, "untaken").await;
    let position = put_task(&fixture, "again").await;
    let names: Vec<String> = (0..700).map(|n| format!("c{n}")).collect();
    let asked = names.iter().flat_map(|name| [submitted(name), event(Kind::CancelRequested, name)]);
    fixture.write(&asked.collect::<Vec<_>>()).await;
    let tracker = fixture.tracker().await;
    let ids: Vec<_> = names.iter().map(|name| id(name)).collect();
    eventually("all are cancelled, and the withdrawals are pending", || async {
        let task_records = fixture.store.task_records(0, &ids).await.unwrap();
        task_records
            .iter()
            .flatten()
            .filter(|task_record| task_record.state == State::Cancelled && task_record.effects.len() == 1)
            .count()
            == 700
    })
    .await;
    let again = placed("again", position);
    let mut failed = event(Kind::Failed, "again");
    failed.payload = Payload::Failed(AttemptFailure::new("error", "broken", 1));
    fixture.write(&[again, failed, event(Kind::RetryRequested, "again")]).await;
    let done = || async {
        task_record(&fixture, "again")
            .await
            .is_some_and(|task_record| task_record.run == 2 && task_record.effects.is_empty())
    };
    eventually("the retry of another task is published", done).await;
    assert_eq!(task_record(&fixture, "again").await.unwrap().state, State::Queued);
    assert_eq!(
        task_record(&fixture, "c0").await.unwrap().effects.len(),
        1,
        "workers have not committed past the record"
    );
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A child that no worker took is cancelled with its parent, which is then retried, before workers have committed
/// past the child's record.
#[tokio::test(flavor = "multi_thread")]
async fn retry_keeps_the_cancel_of_a_child() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let position = put_task(&fixture, "p").await;
    let (topic, at) = (fixture.names.tasks("child"), Partition::new(fixture.names.tasks("child"), 0));
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: Some(b"p:c"),
        value: Some(b"1"),
        headers: &[("ce_announced", b"1")],
    };
    let end = fixture.producer.deliver(record, DEADLINE).await.unwrap().offset + 1;
    let parent = placed("p", position);
    let first = fixture.tracker().await;
    fixture
        .write(&[parent, of_type("p:c", "child"), by(Kind::Succeeded, "p", "w"), event(Kind::CancelRequested, "p")])
        .await;
    until_state(&fixture, "p", State::Cancelled).await;
    first.stop().await;
    fixture.write(&[event(Kind::RetryRequested, "p")]).await;
    let second = fixture.tracker().await;
    until_state(&fixture, "p", State::Queued).await;
    // A type without records: its cancel is examined after the one of `p`, so its withdrawal shows that both were.
    fixture.write(&[of_type("y", "nowhere"), event(Kind::CancelRequested, "y")]).await;
    until_state(&fixture, "y", State::Cancelled).await;
    eventually("the cancel of `y` is withdrawn", || is_withdrawn(&fixture, "y")).await;
    assert!(cancel_record(&fixture, "p").is_some(), "the cancel of `p` stays: a restarted worker would run the child");
    let commit = Commit { partition: at, offset: end, metadata: String::new() };
    fixture.broker.set_group_offsets(&fixture.names.group("child"), &[commit], DEADLINE).unwrap();
    eventually("the cancel of `p` is withdrawn", || is_withdrawn(&fixture, "p")).await;
    expect_agreement(&fixture).await;
    second.stop().await;
}

/// A worker has ended a cancelled task and may lose its partition before the commit: the cancel must stay for its
/// successor.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_stays_until_its_worker_has_committed() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let position = put_task(&fixture, "x").await;
    let there = placed("x", position);
    let tracker = fixture.tracker().await;
    fixture.write(&[there, by(Kind::Started, "x", "w"), event(Kind::CancelRequested, "x")]).await;
    fixture.write(&[by(Kind::Cancelled, "x", "w")]).await;
    until_state(&fixture, "x", State::Cancelled).await;
    // A type without records: its cancel is examined after the one of `x`, so its withdrawal shows that both were.
    fixture.write(&[of_type("y", "nowhere"), event(Kind::CancelRequested, "y")]).await;
    until_state(&fixture, "y", State::Cancelled).await;
    eventually("the cancel of `y` is withdrawn", || is_withdrawn(&fixture, "y")).await;
    assert!(
        cancel_record(&fixture, "x").is_some(),
        "the cancel of `x` stays: the partition's next owner would run the task"
    );
    let at = Partition::new(fixture.names.tasks("root"), position.partition);
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    fixture.broker.set_group_offsets(&fixture.names.group("root"), &[commit], DEADLINE).unwrap();
    eventually("the cancel of `x` is withdrawn", || is_withdrawn(&fixture, "x")).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// The commits are in a shared group that this tracker's configuration does not name.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_is_withdrawn_after_the_commit_of_the_recorded_group() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    kafleet::control::record_group(&fixture.producer, &fixture.names, "root", "small").await.unwrap();
    let position = put_task(&fixture, "x").await;
    let tracker = fixture.tracker().await;
    fixture.write(&[placed("x", position), by(Kind::Started, "x", "w"), event(Kind::CancelRequested, "x")]).await;
    fixture.write(&[by(Kind::Cancelled, "x", "w")]).await;
    until_state(&fixture, "x", State::Cancelled).await;
    let at = Partition::new(fixture.names.tasks("root"), position.partition);
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    let group = fixture.names.group_id("root", "small");
    fixture.broker.set_group_offsets(&group, &[commit], DEADLINE).unwrap();
    eventually("the cancel of `x` is withdrawn", || is_withdrawn(&fixture, "x")).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A task of the parent's first run appears after the second run has ended: the parent does not wait for it, but its
/// cancel does.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_a_late_superseded_task_is_kept_until_its_record_is_committed() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let position = put_task(&fixture, "p:x").await;
    let tracker = fixture.tracker().await;
    fixture.write(&[of_type("p", "nowhere"), event(Kind::CancelRequested, "p")]).await;
    until_state(&fixture, "p", State::Cancelled).await;
    eventually("the first cancel is withdrawn", || is_withdrawn(&fixture, "p")).await;
    let later = |event: Event| Event { run: 2, ..event };
    let mut again = of_type("p", "nowhere");
    // Created after the cancel, which is at offset 1.
    again.task.as_mut().unwrap().asof = Some(1);
    let mut held = Event { task: placed("p:x", position).task, ..by(Kind::Started, "p:x", "w") };
    held.task.as_mut().unwrap().task_type = "root".into();
    fixture.write(&[later(again), later(by(Kind::Succeeded, "p", "w")), held]).await;
    eventually("the cancel is published again", || async { cancel_record(&fixture, "p").is_some() }).await;
    assert_eq!(task_record(&fixture, "p").await.unwrap().state, State::Succeeded);
    // A type without records: its cancel is examined after the one of `p`, so its withdrawal shows that both were.
    fixture.write(&[of_type("y", "nowhere"), event(Kind::CancelRequested, "y")]).await;
    until_state(&fixture, "y", State::Cancelled).await;
    eventually("the cancel of `y` is withdrawn", || is_withdrawn(&fixture, "y")).await;
    assert!(cancel_record(&fixture, "p").is_some(), "the cancel stays until the record is committed");
    let at = Partition::new(fixture.names.tasks("root"), position.partition);
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    fixture.broker.set_group_offsets(&fixture.names.group("root"), &[commit], DEADLINE).unwrap();
    eventually("the cancel is withdrawn", || is_withdrawn(&fixture, "p")).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Kafka does not report the workers' offsets: other effects are published meanwhile, and the cancel stays.
#[tokio::test(flavor = "multi_thread")]
async fn unavailable_group_offsets_block_nothing() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    put_task(&fixture, "x").await;
    let (faulty, faults) = fixture.with_faults();
    let away = BrokerError::Unavailable("the coordinator is away".into());
    let requests = faults.on(group_offsets).fail(away);
    // The announcer reads group offsets too and reports the error.
    let config = TrackerConfig { observe: false, ..TrackerConfig::default() };
    let tracker = faulty.tracker_with(config).await;
    fixture.write(&[submitted("x"), event(Kind::CancelRequested, "x")]).await;
    eventually("group offsets were requested", || async { requests.hits() > 0 }).await;
    fixture.write(&[crate::tracker::outbox::scheduled("late", now_ms() - 1)]).await;
    until_state(&fixture, "late", State::Queued).await;
    assert!(cancel_record(&fixture, "x").is_some());
    tracker.expect_ready().await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A continuation that failed because of a missing type can be retried once the type exists.
#[tokio::test(flavor = "multi_thread")]
async fn unpublished_continuation_can_be_retried() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let mut root = submitted("r");
    let rules = Rules { then: vec![Continuation::new("later", serde_json::json!({"n": 1}))], ..Rules::default() };
    root.task.as_mut().unwrap().policy = Some(Box::new(Policy { rules, ..Policy::default() }));
    let tracker = fixture.tracker().await;
    fixture.write(&[root, succeeded("r")]).await;
    let failed = until_state(&fixture, "r:then", State::Failed).await;
    assert!(failed.outcome.error.unwrap().message.contains("kafleet topics apply"));
    let topic = fixture.names.tasks("later");
    let spec = TopicSpec { name: topic.clone(), partitions: 1, replication: None, config: Vec::new() };
    fixture.broker.apply_topics(&[spec], DEADLINE).unwrap();
    fixture.write(&[event(Kind::RetryRequested, "r:then")]).await;
    let done = || async {
        task_record(&fixture, "r:then")
            .await
            .is_some_and(|task_record| task_record.run == 2 && task_record.effects.is_empty())
    };
    eventually("the continuation is published", done).await;
    assert_eq!(task_record(&fixture, "r:then").await.unwrap().state, State::Queued);
    let records = read_all(&fixture, &topic);
    assert_eq!(records.len(), 1);
    assert_eq!((header(&records[0], "ce_id"), header(&records[0], "ce_run")), (Some("r:then"), Some("2")));
    positions_match_newest_records(&fixture, &topic).await;
    assert_eq!(records[0].value.as_deref(), Some(&b"{\"n\":1}"[..]));
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A worker stops before its task ends: no other worker would end the task.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_does_not_wait_for_a_stopped_worker() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    fixture.write(&[submitted("left"), by(Kind::Started, "left", "w")]).await;
    until_state(&fixture, "left", State::Running).await;
    heartbeat(&fixture, "w", 500, HeartbeatState::Stopped).await;
    until_state(&fixture, "left", State::Queued).await;
    fixture.write(&[event(Kind::CancelRequested, "left")]).await;
    until_state(&fixture, "left", State::Cancelled).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A record that was deferred for too long at a full tracker is contained only in an event, from which a retry
/// publishes it.
#[tokio::test(flavor = "multi_thread")]
async fn retry_publishes_a_record_contained_in_an_event() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let mut late = crate::tracker::outbox::scheduled("late", now_ms() - 1);
    late.task.as_mut().unwrap().position = None::<Position>;
    assert!(late.payload.record().is_some_and(|record| record.params == RawJson::parse(b"{\"of\":\"late\"}").unwrap()));
    let tracker = fixture.tracker().await;
    fixture.write(&[late]).await;
    until_state(&fixture, "late", State::Queued).await;
    let mut failed = event(Kind::Failed, "late");
    failed.payload = Payload::Failed(AttemptFailure::new("error", "broken", 1));
    fixture.write(&[failed, event(Kind::RetryRequested, "late")]).await;
    eventually("the task is published in run 2", || async {
        let records = read_all(&fixture, &fixture.names.tasks("root"));
        records.iter().any(|record| header(record, "ce_id") == Some("late") && header(record, "ce_run") == Some("2"))
    })
    .await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// Children of a cancelled task that had not started, and external ones, name the parent, the requester and the
/// reason.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_children_name_parent_requester_and_reason() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    let mut external = of_type("r:x", "review");
    let rules = Rules { external: true, ..Rules::default() };
    external.task.as_mut().unwrap().policy = Some(Box::new(Policy { rules, ..Policy::default() }));
    let asked = Event { by: Some("ann".into()), message: Some("too dear".into()), ..event(Kind::CancelRequested, "r") };
    fixture.write(&[submitted("r"), of_type("r:a", "child"), external, asked]).await;
    for (task, error) in [
        ("r", "Job was cancelled. On request, before a worker took it: too dear"),
        ("r:a", "Job was cancelled. With `r`, before a worker took it: too dear"),
        ("r:x", "Job was cancelled. With `r`: too dear"),
    ] {
        let ended = until_state(&fixture, task, State::Cancelled).await;
        assert_eq!(ended.outcome.error.unwrap().message, error, "{task}");
        let asked = ended.history.entries.iter().find(|entry| entry.kind == Kind::CancelRequested).unwrap();
        let message = if task == "r" { "too dear" } else { "with `r`: too dear" };
        assert_eq!((asked.message.as_deref(), asked.by.as_deref()), (Some(message), Some("ann")), "{task}");
    }
    let text = String::from_utf8(cancel_record(&fixture, "r").unwrap()).unwrap();
    assert!(
        text.contains(r#""reason":"too dear","by":"ann""#),
        "the workers' cancel record has reason and requester: {text}"
    );
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A cancel of an expected task ends it, and applies to it if it is created later.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_an_expected_task_ends_it_and_applies_once_it_is_created() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    fixture.write(&[of_type("r:a", "child"), succeeded("r:a")]).await;
    until_state(&fixture, "r", State::Expected).await;
    fixture.write(&[event(Kind::CancelRequested, "r")]).await;
    until_state(&fixture, "r", State::Cancelled).await;
    eventually("the subtree command is complete", || async {
        task_record(&fixture, "r").await.is_some_and(|task_record| task_record.effects.len() == 1)
    })
    .await;
    let before = read_all(&fixture, &fixture.names.control()).len();
    let position = put_task(&fixture, "r").await;
    fixture.write(&[placed("r", position)]).await;
    eventually("the created task is cancelled", || async {
        task_record(&fixture, "r")
            .await
            .is_some_and(|task_record| task_record.definition.announced && task_record.state == State::Cancelled)
    })
    .await;
    eventually("the cancel is published again", || async {
        read_all(&fixture, &fixture.names.control()).len() > before
    })
    .await;
    assert!(cancel_record(&fixture, "r").is_some(), "the cancel stays until workers have committed past the record");
    expect_agreement(&fixture).await;
    tracker.stop().await;
}
