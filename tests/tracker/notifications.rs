//! Notifications: each transition becomes one delivery, whatever happens to the tracker in between.

use std::collections::BTreeMap;

use kafleet::broker::TopicSpec;
use kafleet::control::types::{DeclaredLimits, TypeRecord};
use kafleet::control::{CONTROL_VERSION, ControlKey, ControlRecord, put_record};
use kafleet::handlers::builtin::callback::TYPE;
use kafleet::model::event::{Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use kafleet::model::task::action::{Action, Callback, Check, NotifyAction};
use kafleet::model::task::{Policy, Rules};
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use kafleet::store::memory::MemoryStore;
use kafleet_testkit::faults::open_transactional_producer;

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{submitted, succeeded};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually};
use crate::tracker::memory::fixture;
use crate::tracker::outbox::{header, make_topics, read_all, scheduled, until_state};
use crate::tracker::steps::Step;

fn make_callback_topic(fixture: &Fixture) {
    make_topics(fixture);
    let spec = TopicSpec { name: fixture.names.tasks(TYPE), partitions: 2, replication: None, config: Vec::new() };
    fixture.broker.apply_topics(&[spec], DEADLINE).unwrap();
}

/// A task that notifies of its success and of a state check that is due at once.
fn notifying_task(task: &str) -> Event {
    let payload = Some(serde_json::json!({"order": 7}).into());
    let callback = Callback { payload, ..Callback::to("https://hooks.example.com") };
    let notify = Some(NotifyAction { callback: Some(callback.clone()), email: None });
    let check = Check { after: Some(Millis(1)), at: None, expect: vec![State::Failed], passed: None, failed: notify };
    let actions = vec![Action { on: vec![State::Succeeded], callback: Some(callback), email: None }];
    let rules = Rules { actions, checks: vec![check], ..Rules::default() };
    let mut event = submitted(task);
    let announced = event.task.as_mut().unwrap();
    (announced.policy, announced.created_at_ms) = (Some(Box::new(Policy { rules, ..Policy::default() })), now_ms());
    event
}

/// Number of publications per delivery, and the number of tasks they refer to.
fn published(fixture: &Fixture) -> (BTreeMap<String, usize>, usize) {
    let mut times = BTreeMap::new();
    let records = read_all(fixture, &fixture.names.tasks(TYPE));
    for record in &records {
        *times.entry(header(record, "ce_id").unwrap().to_owned()).or_default() += 1;
    }
    let about = |value: &[u8]| {
        let NotificationRecord { body } = serde_json::from_slice(value).unwrap();
        assert_eq!(body.payload, serde_json::json!({"order": 7}), "each action has its payload");
        body.data["id"].text().to_owned()
    };
    let tasks: std::collections::BTreeSet<_> =
        records.iter().map(|record| about(record.value.as_deref().unwrap())).collect();
    (times, tasks.len())
}

/// Params of a delivery.
#[derive(serde::Deserialize)]
struct NotificationRecord {
    body: DeliveredBody,
}

#[derive(serde::Deserialize)]
struct DeliveredBody {
    payload: serde_json::Value,
    data: BTreeMap<String, RawJson>,
}

async fn all_notified(fixture: &Fixture, tasks: usize) {
    eventually("all deliveries are published", || async { published(fixture).0.len() == 2 * tasks }).await;
    expect_agreement(fixture).await;
    let (times, notice_of) = published(fixture);
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "published zero or several times: {twice:?}");
    assert_eq!((times.len(), notice_of), (2 * tasks, tasks));
}

fn event_log(prefix: &str, tasks: usize) -> Vec<Event> {
    (0..tasks).flat_map(|n| [notifying_task(&format!("{prefix}-{n}")), succeeded(&format!("{prefix}-{n}"))]).collect()
}

/// A tracker is stopped at each step, and another one takes over.
#[tokio::test(flavor = "multi_thread")]
async fn each_transition_notifies_once_when_a_tracker_stops() {
    for step in Step::ALL {
        let (fixture, _) = fixture(2);
        make_callback_topic(&fixture);
        let (faulty, faults) = fixture.with_faults();
        let attempts = faults.count(open_transactional_producer);
        let stopping = step.stop(&faults);
        let stopped = faulty.tracker().await;
        fixture.write(&event_log("a", 20)).await;
        match step {
            Step::Frozen => eventually("the transaction is frozen", || async { stopping.hits() > 0 }).await,
            _ => eventually("a transaction was attempted", || async { attempts.hits() > 0 }).await,
        }
        stopped.shutdown.begin();
        let next = fixture.tracker().await;
        fixture.write(&event_log("b", 20)).await;
        all_notified(&fixture, 40).await;
        stopping.lift();
        stopped.stop().await;
        all_notified(&fixture, 40).await;
        next.stop().await;
    }
}

/// A wiped store is folded again, and no notification is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn refold_repeats_no_notification() {
    let (fixture, _) = fixture(2);
    make_callback_topic(&fixture);
    let tracker = fixture.tracker().await;
    fixture.write(&event_log("a", 20)).await;
    all_notified(&fixture, 20).await;
    tracker.stop().await;
    let again = fixture.with(fixture.broker.clone(), std::sync::Arc::new(MemoryStore::default()));
    let tracker = again.tracker().await;
    again.write(&event_log("b", 5)).await;
    all_notified(&again, 25).await;
    tracker.stop().await;
}

/// A callback leaves the fleet: the type declares what it must not contain.
#[tokio::test(flavor = "multi_thread")]
async fn notification_contains_no_masked_value() {
    let (fixture, _) = fixture(1);
    make_callback_topic(&fixture);
    let policy = DeclaredLimits { mask: vec!["/card".into()], ..DeclaredLimits::default() };
    let declared = TypeRecord { v: CONTROL_VERSION, policy, ..TypeRecord::default() };
    let key = ControlKey::Type("root".to_owned());
    let record = ControlRecord::Type(Box::new(declared));
    put_record(&fixture.producer, &fixture.names, &key, &record).await.unwrap();
    let tracker = fixture.tracker().await;
    let mut paid = succeeded("a");
    let output = RawJson::parse(br#"{"card":"4111","n":1}"#).ok();
    paid.payload = Payload::Succeeded { started_at_ms: None, output };
    fixture.write(&[notifying_task("a"), paid]).await;
    all_notified(&fixture, 1).await;
    for record in read_all(&fixture, &fixture.names.tasks(TYPE)) {
        let NotificationRecord { body } = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        assert_eq!(body.data["result"].text(), r#"{"card":"•••","n":1}"#);
    }
    tracker.stop().await;
}

/// A result that is nested too deeply to be part of a notification is left out, and holds up nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_result_is_sent_as_it_is() {
    const LEVELS: usize = 9_000;
    let (fixture, _) = fixture(1);
    make_callback_topic(&fixture);
    let tracker = fixture.tracker().await;
    let mut nested = succeeded("a");
    let output = "[".repeat(LEVELS) + &"]".repeat(LEVELS);
    nested.payload = Payload::Succeeded { started_at_ms: None, output: RawJson::parse(output.as_bytes()).ok() };
    fixture.write(&[notifying_task("a"), nested, scheduled("delayed", now_ms())]).await;
    all_notified(&fixture, 1).await;
    until_state(&fixture, "delayed", State::Queued).await;
    for record in read_all(&fixture, &fixture.names.tasks(TYPE)) {
        let NotificationRecord { body } = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        assert_eq!((body.data["id"].text(), body.data["result"].text()), (r#""a""#, &*output));
    }
    tracker.stop().await;
}

/// Without the callback type its topic is missing: the delivery fails, and its task reports the reason.
#[tokio::test(flavor = "multi_thread")]
async fn missing_callback_topic_is_reported() {
    let (fixture, _) = fixture(2);
    make_topics(&fixture);
    let tracker = fixture.tracker().await;
    fixture.write(&event_log("a", 1)).await;
    let failed = || async {
        let counts = fixture.store.counts(&fixture.all()).await.unwrap();
        counts.iter().any(|count| &*count.task_type == TYPE && count.state == State::Failed && count.count == 2)
    };
    eventually("both deliveries have failed", failed).await;
    let task = crate::tracker::outbox::task_record(&fixture, "a-0").await.unwrap();
    assert_eq!(task.history.entries.iter().filter(|entry| entry.kind == Kind::Checked).count(), 1);
    let rules = &task.definition.policy.as_ref().unwrap().rules;
    for one in &task.notifications.as_ref().unwrap().deliveries {
        let id = one.id(&crate::tracker::event_log::id("a-0"), one.rule.notification(rules).unwrap());
        let error = crate::tracker::outbox::task_record(&fixture, &id).await.unwrap().outcome.error.unwrap();
        assert!(error.message.contains("does not exist"), "{}", error.message);
    }
    tracker.stop().await;
}
