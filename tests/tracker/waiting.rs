//! What waits for workers holds nothing else up, and is not forgotten; who does not come back is not waited for.

use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{BrokerError, Commit, Partition, ProducerRecord, TopicSpec};
use kafleet::config::TrackerConfig;
use kafleet::control::heartbeat::HeartbeatState;
use kafleet::model::event::{Event, Kind};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::continuation::Continuation;
use kafleet::model::task::{Policy, Position, Rules};
use kafleet::runtime::now_ms;

use crate::ages::beat;
use crate::cases::agrees;
use crate::firing::{each_lies_where_it_is_said, header, make_topics, node, placed, put_task, read_all, until_state};
use crate::ground::{DEADLINE, Ground, until};
use crate::memory::ground;
use crate::shaky::ShakyBroker;
use crate::story::{event, id, submitted, succeeded};

fn of_type(task: &str, task_type: &str) -> Event {
    let mut event = submitted(task);
    let told = event.task.as_mut().unwrap();
    (told.task_type, told.position) = (task_type.into(), None);
    event
}

fn by(kind: Kind, task: &str, worker: &str) -> Event {
    Event { worker: Some(worker.into()), attempt: 1, ..event(kind, task) }
}

/// What the control topic says last of the cancel of a task.
fn told(ground: &Ground, task: &str) -> Option<Vec<u8>> {
    let key = format!("cancel/{task}");
    let records = read_all(ground, &ground.names.control());
    records.into_iter().rev().find(|record| record.key.as_deref() == Some(key.as_bytes()))?.value
}

async fn is_taken_back(ground: &Ground, task: &str) -> bool {
    node(ground, task).await.is_some_and(|node| node.effects.is_empty()) && told(ground, task).is_none()
}

/// Hundreds of tasks were cancelled before a worker took them, and none comes to pass their records by.
#[tokio::test(flavor = "multi_thread")]
async fn cancels_that_wait_for_workers_hide_nothing_behind_them() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    put_task(&ground, "untaken").await;
    let position = put_task(&ground, "again").await;
    let names: Vec<String> = (0..700).map(|n| format!("c{n}")).collect();
    let asked = names.iter().flat_map(|name| [submitted(name), event(Kind::CancelRequested, name)]);
    ground.write(&asked.collect::<Vec<_>>()).await;
    let tracker = ground.tracker().await;
    let ids: Vec<_> = names.iter().map(|name| id(name)).collect();
    until("all are cancelled, and workers are to forget it later", || async {
        let nodes = ground.store.nodes(0, &ids).await.unwrap();
        nodes.iter().flatten().filter(|node| node.state == State::Cancelled && node.effects.len() == 1).count() == 700
    })
    .await;
    let again = placed("again", position);
    let mut failed = event(Kind::Failed, "again");
    failed.error = Some(Box::new(kafleet::model::event::ErrorInfo::new("error", "broken", 1)));
    ground.write(&[again, failed, event(Kind::RetryRequested, "again")]).await;
    let done = || async { node(&ground, "again").await.is_some_and(|node| node.run == 2 && node.effects.is_empty()) };
    until("the retry of another task is published", done).await;
    assert_eq!(node(&ground, "again").await.unwrap().state, State::Queued);
    assert_eq!(node(&ground, "c0").await.unwrap().effects.len(), 1, "workers have not passed it");
    agrees(&ground).await;
    tracker.stop().await;
}

/// A child that no worker took is cancelled with its parent, which is retried: the child's old record is still to be passed by.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_does_not_make_a_cancel_forget_what_it_has_ended() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let position = put_task(&ground, "p").await;
    let (topic, at) = (ground.names.tasks("child"), Partition::new(ground.names.tasks("child"), 0));
    let record = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: Some(b"p:c"),
        value: Some(b"1"),
        headers: &[("ce_announced", b"1")],
    };
    let end = ground.link.deliver(record, DEADLINE).await.unwrap().offset + 1;
    let parent = placed("p", position);
    let first = ground.tracker().await;
    ground.write(&[parent, of_type("p:c", "child"), by(Kind::Succeeded, "p", "w"), event(Kind::CancelRequested, "p")]).await;
    until_state(&ground, "p", State::Cancelled).await;
    first.stop().await;
    ground.write(&[event(Kind::RetryRequested, "p")]).await;
    let second = ground.tracker().await;
    until_state(&ground, "p", State::Queued).await;
    // Of a type without records; it stands behind the other one, which so has been looked at when this one is done.
    ground.write(&[of_type("y", "nowhere"), event(Kind::CancelRequested, "y")]).await;
    until_state(&ground, "y", State::Cancelled).await;
    until("nobody need know of the other one", || is_taken_back(&ground, "y")).await;
    assert!(told(&ground, "p").is_some(), "a worker that comes back would run the child");
    let commit = Commit { partition: at, offset: end, metadata: String::new() };
    ground.broker.set_group_offsets(&ground.names.group("child"), &[commit], DEADLINE).unwrap();
    until("nobody need know any more", || is_taken_back(&ground, "p")).await;
    agrees(&ground).await;
    second.stop().await;
}

/// Its worker has ended a cancelled task, and may lose its partition before it has committed that: the next one is to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_told_until_what_its_worker_ended_is_committed() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let position = put_task(&ground, "x").await;
    let there = placed("x", position);
    let tracker = ground.tracker().await;
    ground.write(&[there, by(Kind::Started, "x", "w"), event(Kind::CancelRequested, "x")]).await;
    ground.write(&[by(Kind::Cancelled, "x", "w")]).await;
    until_state(&ground, "x", State::Cancelled).await;
    // Of a type without records; it stands behind the other one, which so has been looked at when this one is done.
    ground.write(&[of_type("y", "nowhere"), event(Kind::CancelRequested, "y")]).await;
    until_state(&ground, "y", State::Cancelled).await;
    until("nobody need know of the other one", || is_taken_back(&ground, "y")).await;
    assert!(told(&ground, "x").is_some(), "whoever takes it up once more would run it");
    let at = Partition::new(ground.names.tasks("root"), position.partition);
    let commit = Commit { partition: at, offset: position.offset + 1, metadata: String::new() };
    ground.broker.set_group_offsets(&ground.names.group("root"), &[commit], DEADLINE).unwrap();
    until("nobody need know any more", || is_taken_back(&ground, "x")).await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// Kafka does not say how far the workers are: what others wait for goes out meanwhile, and nobody forgets the cancel.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_cannot_be_asked_hold_nothing_up() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    put_task(&ground, "x").await;
    let (broker, tricks) = ShakyBroker::new(ground.broker.clone());
    *tricks.no_groups.lock().unwrap() = Some(BrokerError::Unavailable("the coordinator is away".into()));
    // The observer asks groups too, and is not well without an answer.
    let config = TrackerConfig { observe: false, ..TrackerConfig::default() };
    let tracker = ground.with(broker, ground.store.clone()).tracker_with(config).await;
    ground.write(&[submitted("x"), event(Kind::CancelRequested, "x")]).await;
    until("it was asked for the group", || async { tricks.groups.load(SeqCst) > 0 }).await;
    ground.write(&[crate::firing::scheduled("late", now_ms() - 1)]).await;
    until_state(&ground, "late", State::Queued).await;
    assert!(told(&ground, "x").is_some());
    tracker.is_well().await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// What could not be started because of its type runs once that is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_that_was_never_published_can_be_retried() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let mut root = submitted("r");
    let rules = Rules { then: vec![Continuation::new("later", serde_json::json!({"n": 1}))], ..Rules::default() };
    root.task.as_mut().unwrap().policy = Some(Box::new(Policy { rules, ..Policy::default() }));
    let tracker = ground.tracker().await;
    ground.write(&[root, succeeded("r")]).await;
    let failed = until_state(&ground, "r:then", State::Failed).await;
    assert!(failed.error.unwrap().message.contains("kafleet topics apply"));
    let topic = ground.names.tasks("later");
    let spec = TopicSpec { name: topic.clone(), partitions: 1, replication: None, config: Vec::new() };
    ground.broker.apply_topics(&[spec], DEADLINE).unwrap();
    ground.write(&[event(Kind::RetryRequested, "r:then")]).await;
    let done = || async { node(&ground, "r:then").await.is_some_and(|node| node.run == 2 && node.effects.is_empty()) };
    until("it is published", done).await;
    assert_eq!(node(&ground, "r:then").await.unwrap().state, State::Queued);
    let records = read_all(&ground, &topic);
    assert_eq!(records.len(), 1);
    assert_eq!((header(&records[0], "ce_id"), header(&records[0], "ce_run")), (Some("r:then"), Some("2")));
    each_lies_where_it_is_said(&ground, &topic).await;
    assert_eq!(records[0].value.as_deref(), Some(&b"{\"n\":1}"[..]));
    agrees(&ground).await;
    tracker.stop().await;
}

/// It was told to stop, and its time was over before its task was: nobody else ends that.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_does_not_wait_for_a_worker_that_has_stopped() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let tracker = ground.tracker().await;
    ground.write(&[submitted("left"), by(Kind::Started, "left", "w")]).await;
    until_state(&ground, "left", State::Running).await;
    beat(&ground, "w", 500, HeartbeatState::Stopped).await;
    until("its task is told", || async { node(&ground, "left").await.unwrap().silent }).await;
    ground.write(&[event(Kind::CancelRequested, "left")]).await;
    until_state(&ground, "left", State::Cancelled).await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// What waited too long at a full tracker, and was refused there, is published when it is asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_comes_from_the_event_that_brought_it_where_it_lies_nowhere_else() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let mut late = crate::firing::scheduled("late", now_ms() - 1);
    late.task.as_mut().unwrap().position = None::<Position>;
    assert!(late.record.as_ref().is_some_and(|record| record.params == RawJson::parse(b"{\"of\":\"late\"}").unwrap()));
    let tracker = ground.tracker().await;
    ground.write(&[late]).await;
    until_state(&ground, "late", State::Queued).await;
    let mut failed = event(Kind::Failed, "late");
    failed.error = Some(Box::new(kafleet::model::event::ErrorInfo::new("error", "broken", 1)));
    ground.write(&[failed, event(Kind::RetryRequested, "late")]).await;
    until("it is published once more", || async {
        let records = read_all(&ground, &ground.names.tasks("root"));
        records.iter().any(|record| header(record, "ce_id") == Some("late") && header(record, "ce_run") == Some("2"))
    })
    .await;
    agrees(&ground).await;
    tracker.stop().await;
}

/// The children of a cancelled task that had not started, and external ones, say with whom they were cancelled, by whom and why.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_children_say_with_whom_by_whom_and_why() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let tracker = ground.tracker().await;
    let mut external = of_type("r:x", "review");
    let rules = Rules { external: true, ..Rules::default() };
    external.task.as_mut().unwrap().policy = Some(Box::new(Policy { rules, ..Policy::default() }));
    let asked = Event { by: Some("ann".into()), message: Some("too dear".into()), ..event(Kind::CancelRequested, "r") };
    ground.write(&[submitted("r"), of_type("r:a", "child"), external, asked]).await;
    for (task, error) in [
        ("r", "cancelled on request, before a worker took it: too dear"),
        ("r:a", "cancelled with `r`, before a worker took it: too dear"),
        ("r:x", "cancelled with `r`: too dear"),
    ] {
        let ended = until_state(&ground, task, State::Cancelled).await;
        assert_eq!(ended.error.unwrap().message, error, "{task}");
        let asked = ended.history.iter().find(|entry| entry.kind == Kind::CancelRequested).unwrap();
        let why = if task == "r" { "too dear" } else { "with `r`: too dear" };
        assert_eq!((asked.message.as_deref(), asked.by.as_deref()), (Some(why), Some("ann")), "{task}");
    }
    let said = String::from_utf8(told(&ground, "r").unwrap()).unwrap();
    assert!(said.contains(r#""reason":"too dear","by":"ann""#), "workers say the same of what runs: {said}");
    agrees(&ground).await;
    tracker.stop().await;
}

/// Nobody has created it: the cancel ends it all the same, and reaches it if somebody does.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_of_an_expected_task_ends_it_and_applies_once_it_is_created() {
    let (ground, _) = ground(1);
    make_topics(&ground);
    let tracker = ground.tracker().await;
    ground.write(&[of_type("r:a", "child"), succeeded("r:a")]).await;
    until_state(&ground, "r", State::Expected).await;
    ground.write(&[event(Kind::CancelRequested, "r")]).await;
    until_state(&ground, "r", State::Cancelled).await;
    until("its walk is done", || async { node(&ground, "r").await.is_some_and(|node| node.effects.len() == 1) }).await;
    let before = read_all(&ground, &ground.names.control()).len();
    let position = put_task(&ground, "r").await;
    ground.write(&[placed("r", position)]).await;
    until("it is cancelled as what it is now", || async {
        node(&ground, "r").await.is_some_and(|node| node.announced && node.state == State::Cancelled)
    })
    .await;
    until("workers are told again", || async { read_all(&ground, &ground.names.control()).len() > before }).await;
    assert!(told(&ground, "r").is_some(), "no worker has passed its record by");
    agrees(&ground).await;
    tracker.stop().await;
}
