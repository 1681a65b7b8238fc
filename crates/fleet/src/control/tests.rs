use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::memory::{MemoryBroker, MemoryBrokerOptions};
use kafleet_broker::*;
use kafleet_model::json::RawJson;
use kafleet_model::task::start::NextStart;
use kafleet_model::task::{Policy, TaskSpec};
use kafleet_runtime::Health;
use kafleet_testkit::faults::{FaultRules, watermarks};
use kafleet_testkit::wait::eventually;

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn apply(key: &str, value: Option<&str>, state: &mut ControlState) -> Result<(), InvalidRecord> {
    state.apply_record(&RecordRef {
        topic: "t.control",
        partition: 0,
        offset: 0,
        timestamp_ms: 0,
        log_append_time: false,
        key: Some(key.as_bytes()),
        value: value.map(str::as_bytes),
        headers: &Vec::new(),
    })
}

fn task(id: &str, asof: Option<i64>, tags: &[&str]) -> TaskSpec {
    let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let id = TaskId::parse(id).unwrap();
    let policy = Some(Box::new(Policy { tags, ..Policy::default() }));
    TaskSpec { asof, announced: true, policy, ..TaskSpec::new(id, "echo", RawJson::null()) }
}

#[test]
fn keys_round_trip() {
    for key in [
        ControlKey::Cancel("a:b".into()),
        ControlKey::Start("a:b".into()),
        ControlKey::Pause("echo".into()),
        ControlKey::Slots("echo".into()),
        ControlKey::Rate("echo".into()),
        ControlKey::Circuit("echo".into()),
        ControlKey::Kill("a/b c".into()),
        ControlKey::Offsets("echo".into(), 3),
    ] {
        assert_eq!(ControlKey::parse(&key.to_string()).unwrap(), Some(key));
    }
    for others in ["fleet", "consumed/echo/3", "schedule/x", ""] {
        assert_eq!(ControlKey::parse(others).unwrap(), None, "{others}");
    }
    for wrong in [
        "cancel/",
        "cancel/a b",
        "start/a b",
        "pause/Echo",
        "kill/",
        "kill/a,b",
        "offsets/echo",
        "offsets/echo/x",
        "offsets/echo/-1",
    ] {
        assert!(ControlKey::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn ends_of_pauses_are_counted() {
    let mut state = ControlState::default();
    apply("pause/echo", None, &mut state).unwrap();
    assert_eq!(state.resumes("echo"), 0, "it was not paused");
    for resumes in 1..=2 {
        apply("pause/echo", Some(r#"{"v":1}"#), &mut state).unwrap();
        apply("pause/echo", None, &mut state).unwrap();
        assert_eq!(state.resumes("echo"), resumes);
    }
    apply("consumed/echo/3", Some(r#"{"v":1,"at_ms":5}"#), &mut state).unwrap();
    assert!(state.consumed.contains(&("echo".to_owned(), 3)));
}

#[test]
fn cancel_applies_to_older_tasks_and_descendants() {
    let mut state = ControlState::default();
    apply("cancel/r:a", Some(r#"{"v":1,"asof":10}"#), &mut state).unwrap();
    apply("cancel/s", Some(r#"{"v":1,"asof":10,"subtree":false}"#), &mut state).unwrap();
    let cancels = |id: &str, asof| state.forbids(&task(id, asof, &[])).is_some();
    for (id, asof, expected) in [
        ("r:a", None, true),
        ("r:a", Some(9), true),
        ("r:a", Some(10), false),
        ("r:a:b:c", None, true),
        ("r:a:b", Some(11), false),
        ("r", None, false),
        ("r:ab", None, false),
        ("s", None, true),
        ("s:a", None, false),
    ] {
        assert_eq!(cancels(id, asof), expected, "{id} {asof:?}");
    }
    apply("cancel/r:a", None, &mut state).unwrap();
    assert_eq!(
        (state.forbids(&task("r:a", None, &[])), state.cancels().len(), state.concerns_tasks()),
        (None, 1, true)
    );
}

#[test]
fn start_applies_to_the_wait_that_it_names() {
    let mut state = ControlState::default();
    let id = TaskId::parse("r:a").unwrap();
    apply("start/r:a", Some(r#"{"v":1,"run":2,"attempts":3,"waits":1}"#), &mut state).unwrap();
    let starts = |state: &ControlState, run, attempts, waits| state.starts_now(&id, NextStart { run, attempts, waits });
    assert!(starts(&state, 2, 3, 1));
    for (run, attempts, waits) in [(1, 3, 1), (2, 2, 1), (2, 4, 1), (2, 3, 0), (2, 3, 2)] {
        assert!(!starts(&state, run, attempts, waits), "{run} {attempts} {waits}");
    }
    assert!(!state.concerns_tasks(), "a start stops no task");
    apply("start/r:a", Some(r#"{"v":1,"run":2,"attempts":4,"waits":1}"#), &mut state).unwrap();
    assert!(!starts(&state, 2, 3, 1) && starts(&state, 2, 4, 1), "only the newest request of a task applies");
    apply("start/r:a", None, &mut state).unwrap();
    assert_eq!(state.starts().len(), 0);
    let mut api = ControlState::without_task_commands();
    apply("start/r:a", Some(r#"{"v":1,"run":2,"attempts":3,"waits":1}"#), &mut api).unwrap();
    assert_eq!(api.starts().len(), 0);
}

#[test]
fn invalid_records_change_nothing() {
    let mut state = ControlState::default();
    apply("slots/echo", Some(r#"{"v":1,"slots":3}"#), &mut state).unwrap();
    let before = state.clone();
    for (key, value) in [
        ("slots/echo", r#"{"v":1}"#),
        ("slots/echo", r#"{"v":1,"slots":100001}"#),
        ("slots/echo", r#"{"v":9,"slots":4}"#),
        ("rate/echo", r#"{"v":1,"count":1,"per":"0s"}"#),
        ("rate/echo", r#"{"v":1,"count":1,"by":"moon"}"#),
        ("offsets/echo/0", r#"{"v":1,"offset":-1}"#),
        ("pause/echo", "[]"),
        ("start/a", r#"{"v":1,"run":1}"#),
        ("start/a", r#"{"v":9,"run":1,"attempts":1,"waits":0}"#),
    ] {
        assert!(apply(key, Some(value), &mut state).is_err(), "{key} {value}");
    }
    assert_eq!(state, before);
}

#[test]
fn cancels_and_kill_switches_are_bounded() {
    let mut state = ControlState::default();
    for n in 0..MAX_KILLS {
        apply(&format!("kill/{n}"), Some(r#"{"v":1}"#), &mut state).unwrap();
    }
    assert!(apply("kill/more", Some(r#"{"v":1}"#), &mut state).is_err());
    apply("kill/0", Some(r#"{"v":1,"reason":"known already"}"#), &mut state).unwrap();
    let mut api = ControlState::without_task_commands();
    apply("cancel/a", Some(r#"{"v":1,"asof":1}"#), &mut api).unwrap();
    assert_eq!(api.cancels().len(), 0);
}

#[test]
fn kill_switch_on_params_forbids_tasks_of_its_type_with_all_of_them() {
    let mut state = ControlState::default();
    let switch = r#"{"v":1,"matches":"tag","type":"echo","params":{"/customer/id":42,"/kind":"import"},"reason":"wrong prices"}"#;
    apply("kill/bad", Some(switch), &mut state).unwrap();
    let of = |params: &str| {
        let params = RawJson::parse(params.as_bytes()).unwrap();
        // The name of a switch with params is neither a tag nor a prefix of ids.
        TaskSpec { params, ..task("bad-1", None, &["bad"]) }
    };
    let hit = of(r#"{"customer":{"id":42.0},"kind":"import"}"#);
    let verdict = state.forbids(&hit).unwrap();
    let message = "the kill switch `bad` is on for params at `/customer/id` and at `/kind`: wrong prices";
    assert_eq!((verdict.kind, verdict.message.as_str()), ("killed", message));
    for other in [r#"{"customer":{"id":42}}"#, r#"{"customer":{"id":7},"kind":"import"}"#, "null", "[]"] {
        assert_eq!(state.forbids(&of(other)), None, "{other}");
    }
    let of_other_type = TaskSpec { task_type: "resize".into(), ..hit.clone() };
    assert_eq!(state.forbids(&of_other_type), None);
    assert_eq!((state.compares_params("echo"), state.compares_params("resize")), (true, false));
    let before = state.clone();
    for wrong in [
        r#"{"v":1,"params":{"/a":1}}"#,
        r#"{"v":1,"type":"echo","params":{"a":1}}"#,
        r#"{"v":1,"type":"echo","params":{"/a":1,"/b":1,"/c":1,"/d":1,"/e":1}}"#,
    ] {
        assert!(apply("kill/bad", Some(wrong), &mut state).is_err(), "{wrong}");
    }
    assert_eq!(state, before);
    apply("kill/bad", None, &mut state).unwrap();
    assert_eq!((state.forbids(&hit), state.compares_params("echo")), (None, false));
}

fn broker() -> Arc<MemoryBroker> {
    let broker = MemoryBroker::new(MemoryBrokerOptions::default());
    let config = vec![("cleanup.policy".to_owned(), "compact".to_owned())];
    let spec = TopicSpec { name: "t.control".into(), partitions: 1, replication: None, config };
    broker.apply_topics(&[spec], DEADLINE).unwrap();
    broker
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("in time")
}

/// The watch receives existing, new and transactional records of a compacted topic.
#[tokio::test(flavor = "multi_thread")]
async fn watch_follows_the_topic() {
    let broker = broker();
    let names = Names::new("t");
    let health = Health::default();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    let pause = ControlRecord::Pause(Pause { v: 1, at_ms: 1, reason: None, by: None });
    put_record(&producer, &names, &ControlKey::Pause("echo".into()), &pause).await.unwrap();
    delete(&producer, &names, &ControlKey::Pause("echo".into())).await.unwrap();
    put_record(&producer, &names, &ControlKey::Pause("foreach".into()), &pause).await.unwrap();
    broker.compact("t.control").unwrap();
    let topic = names.control();
    let sent = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: Some(b"pause/sent"),
        value: Some(b"{\"v\":1}"),
        headers: &[],
    };
    broker.transactional_producer("x").unwrap().send_all(&[sent], DEADLINE).unwrap();
    let watch = ControlWatch::new(ControlState::default());
    let follower = follow_control(watch.clone(), broker.clone(), &names, Some(health.clone()));
    in_time(watch.wait_until_read()).await;
    assert_eq!(watch.state().paused.keys().collect::<Vec<_>>(), ["foreach", "sent"]);
    let before = watch.generation();
    let mut changes = watch.changes();
    let position = put_record(&producer, &names, &ControlKey::Pause("echo".into()), &pause).await.unwrap();
    in_time(watch.wait_for_offset(position.offset)).await;
    assert!(in_time(changes.changed()).await.is_ok() && watch.generation() > before);
    assert!(watch.state().paused.contains_key("echo") && !watch.concerns_tasks());
    let cancel = ControlRecord::Cancel(Cancel { v: 1, asof: 1, at_ms: 1, subtree: true, reason: None, by: None });
    let position = put_record(&producer, &names, &ControlKey::Cancel("a".into()), &cancel).await.unwrap();
    in_time(watch.wait_for_offset(position.offset)).await;
    assert!(watch.concerns_tasks());
    assert_eq!(health.reasons(), []);
    drop(follower);
}

/// A missing topic is reported, and read once it is created.
#[tokio::test(flavor = "multi_thread")]
async fn missing_topic_is_reported_and_awaited() {
    let broker = MemoryBroker::new(MemoryBrokerOptions::default());
    let names = Names::new("t");
    let health = Health::default();
    let watch = ControlWatch::new(ControlState::default());
    let _follower = follow_control(watch.clone(), broker.clone(), &names, Some(health.clone()));
    eventually("the topic is reported", async || !health.reasons().is_empty()).await;
    assert!(
        health.reasons()[0].1.contains("`t.control` cannot be read, no task starts before"),
        "{:?}",
        health.reasons()
    );
    assert!(!watch.is_fully_read());
    let spec = TopicSpec { name: "t.control".into(), partitions: 1, replication: None, config: Vec::new() };
    broker.apply_topics(&[spec], DEADLINE).unwrap();
    in_time(watch.wait_until_read()).await;
    eventually("nothing is reported", async || health.reasons().is_empty()).await;
}

/// The last known state holds while Kafka is unreachable, and health reports it until Kafka is back.
#[tokio::test(flavor = "multi_thread")]
async fn last_known_state_holds_while_the_topic_is_unreachable() {
    let faults = FaultRules::default();
    let broker = faults.broker(broker());
    let names = Names::new("t");
    let health = Health::default();
    let producer = SharedProducer::open(broker.clone(), None).unwrap();
    let pause = ControlRecord::Pause(Pause { v: 1, at_ms: 1, reason: None, by: None });
    put_record(&producer, &names, &ControlKey::Pause("echo".into()), &pause).await.unwrap();
    let watch = ControlWatch::new(ControlState::default());
    let _follower = follow_control(watch.clone(), broker.clone(), &names, Some(health.clone()));
    in_time(watch.wait_until_read()).await;
    let outage = faults.on(watermarks("")).fail(BrokerError::Unavailable("the test took it away".into()));
    let reason = eventually("the outage is reported", async || health.reasons().pop()).await.1;
    assert!(reason.ends_with("using the last known state: the test took it away"), "{reason}");
    assert!(watch.state().paused.contains_key("echo"));
    outage.lift();
    eventually("the outage is over", async || health.reasons().is_empty()).await;
    assert!(watch.state().paused.contains_key("echo"));
}
