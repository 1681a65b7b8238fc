//! Tasks whose record Kafka has removed: they expire unless a worker may still hold them.

use std::sync::Arc;

use kafleet::broker::{Broker, Commit, Partition, ProducerRecord, memory as broker};
use kafleet::config::TrackerConfig;
use kafleet::control::heartbeat::HeartbeatState;
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use kafleet::model::units::duration::Millis;
use kafleet::store::memory::MemoryStore;
use kafleet_testkit::faults::{group_offsets, polls_of_groups, read_checkpoints};

use crate::tracker::ages::{heartbeat, short_intervals};
use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event, submitted, succeeded};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually};
use crate::tracker::outbox::{make_topics, task_record, until_state};

/// Publishes task records whose events are written only by these tests.
async fn put_records(fixture: &Fixture, topic: &str, count: usize) {
    for n in 0..count {
        let key = format!("k{n}");
        let headers: [(&str, &[u8]); 1] = [("ce_announced", b"1")];
        let record = ProducerRecord {
            topic,
            partition: Some(0),
            key: Some(key.as_bytes()),
            value: Some(b"1"),
            headers: &headers,
        };
        fixture.producer.deliver(record, DEADLINE).await.unwrap();
    }
}

/// A `submitted` event with the position of the task's record.
fn lies_at(task: &str, offset: i64) -> Event {
    let mut event = submitted(task);
    let task = event.task.as_mut().unwrap();
    (task.position, task.task_type) = (Some(Position { partition: 0, offset }), "root".into());
    event
}

/// A queued task whose record Kafka has removed expires.
#[tokio::test(flavor = "multi_thread")]
async fn queued_task_expires_when_its_record_is_removed() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 2);
    make_topics(&fixture);
    let topic = fixture.names.tasks("root");
    put_records(&fixture, &topic, 3).await;
    fixture
        .write(&[
            lies_at("lost", 0),
            submitted("p"),
            succeeded("p"),
            lies_at("p:lost", 1),
            lies_at("kept", 2),
            lies_at("done", 0),
            succeeded("done"),
        ])
        .await;
    let tracker = short_intervals(&fixture).await;
    memory.truncate_before(&Partition::new(topic.as_str(), 0), 2).unwrap();
    for task in ["lost", "p:lost"] {
        let expired = until_state(&fixture, task, State::Expired).await;
        let error = expired.outcome.error.map(|error| format!("{}: {}", error.kind, error.message));
        assert_eq!(error.as_deref(), Some("expired: removed by retention"));
    }
    until_state(&fixture, "p", State::Expired).await;
    until_state(&fixture, "done", State::Succeeded).await;
    until_state(&fixture, "kept", State::Queued).await;
    eventually("two are counted", || async { tracker.metrics.tracker.lost.with_label_values(&["root"]).get() == 2 })
        .await;
    expect_agreement(&fixture).await;
    assert_eq!(task_record(&fixture, "kept").await.unwrap().state, State::Queued);
    tracker.stop().await;
}

/// A worker may have fetched a record before Kafka removed it: the task is lost once the group has committed past it,
/// or when no worker is left.
#[tokio::test(flavor = "multi_thread")]
async fn removed_record_is_lost_only_if_no_worker_can_hold_it() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 2);
    make_topics(&fixture);
    let partition = Partition::new(fixture.names.tasks("root"), 0);
    put_records(&fixture, &partition.topic, 4).await;
    let tasks = ["held", "passed", "waits", "last"];
    fixture.write(&[lies_at("held", 0), lies_at("passed", 1), lies_at("waits", 2), lies_at("last", 3)]).await;
    heartbeat(&fixture, "w1", 600_000, HeartbeatState::Running).await;
    let commit = |metadata: &str| {
        let commit = Commit { partition: partition.clone(), offset: 0, metadata: metadata.to_owned() };
        memory.set_group_offsets(&fixture.names.group("root"), &[commit], DEADLINE).unwrap();
    };
    commit("kf1 open 100 0 -");
    memory.truncate_before(&partition, 4).unwrap();
    let tracker = short_intervals(&fixture).await;
    for task in tasks {
        until_state(&fixture, task, State::Queued).await;
    }
    // Committed without an event: the worker never received it.
    commit("kf1 open 100 0 r:AQE");
    until_state(&fixture, "passed", State::Expired).await;
    for task in ["held", "waits", "last"] {
        assert_eq!(
            task_record(&fixture, task).await.unwrap().state,
            State::Queued,
            "`{task}` may be held by the worker"
        );
    }
    fixture.write(&[succeeded("held")]).await;
    until_state(&fixture, "held", State::Succeeded).await;
    heartbeat(&fixture, "w1", 600_000, HeartbeatState::Stopped).await;
    for task in ["waits", "last"] {
        until_state(&fixture, task, State::Expired).await;
    }
    assert_eq!(task_record(&fixture, "held").await.unwrap().state, State::Succeeded);
    eventually("three are counted", || async { tracker.metrics.tracker.lost.with_label_values(&["root"]).get() == 3 })
        .await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// The commits are in a shared group that this tracker's configuration does not name.
#[tokio::test(flavor = "multi_thread")]
async fn lost_tasks_are_found_by_the_commits_of_the_recorded_group() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 2);
    make_topics(&fixture);
    kafleet::control::record_group(&fixture.producer, &fixture.names, "root", "small").await.unwrap();
    let partition = Partition::new(fixture.names.tasks("root"), 0);
    put_records(&fixture, &partition.topic, 2).await;
    fixture.write(&[lies_at("waits", 0), lies_at("passed", 1)]).await;
    heartbeat(&fixture, "w1", 600_000, HeartbeatState::Running).await;
    // The worker has passed the record of `passed`, but not the first one.
    let commit = Commit { partition: partition.clone(), offset: 0, metadata: "kf1 open 100 0 r:AQE".to_owned() };
    memory.set_group_offsets(&fixture.names.group_id("root", "small"), &[commit], DEADLINE).unwrap();
    memory.truncate_before(&partition, 2).unwrap();
    let tracker = short_intervals(&fixture).await;
    until_state(&fixture, "passed", State::Expired).await;
    assert_eq!(task_record(&fixture, "waits").await.unwrap().state, State::Queued);
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A worker dies after Kafka has removed the record of its running task, which no other worker can receive.
#[tokio::test(flavor = "multi_thread")]
async fn running_task_of_a_dead_worker_expires_when_its_record_is_removed() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 2);
    make_topics(&fixture);
    let partition = Partition::new(fixture.names.tasks("root"), 0);
    put_records(&fixture, &partition.topic, 2).await;
    let started = |task: &str, worker: &str| {
        let mut started = event(Kind::Started, task);
        (started.worker, started.attempt) = (Some(worker.into()), 1);
        started
    };
    fixture.write(&[lies_at("there", 0), lies_at("gone", 1), started("there", "w1"), started("gone", "w2")]).await;
    // The group has passed the record of `gone`.
    let metadata = "kf1 open 100 0 r:AQE".to_owned();
    let commit = Commit { partition: partition.clone(), offset: 0, metadata };
    memory.set_group_offsets(&fixture.names.group("root"), &[commit], DEADLINE).unwrap();
    memory.truncate_before(&partition, 2).unwrap();
    heartbeat(&fixture, "w1", 600_000, HeartbeatState::Running).await;
    heartbeat(&fixture, "w2", 500, HeartbeatState::Running).await;
    let tracker = short_intervals(&fixture).await;
    let expired = until_state(&fixture, "gone", State::Expired).await;
    assert_eq!(expired.outcome.error.map(|error| error.message).as_deref(), Some("removed by retention"));
    assert_eq!(task_record(&fixture, "there").await.unwrap().state, State::Running, "its worker lives");
    heartbeat(&fixture, "w1", 500, HeartbeatState::Stopped).await;
    until_state(&fixture, "there", State::Expired).await;
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

/// A tracker that lags detects the gap before the task is projected.
#[tokio::test(flavor = "multi_thread")]
async fn task_folded_after_its_record_was_removed_expires() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let fixture = Fixture::new(memory.clone(), Arc::new(MemoryStore::default()), 1);
    make_topics(&fixture);
    let topic = fixture.names.tasks("root");
    put_records(&fixture, &topic, 2).await;
    fixture.write(&[lies_at("lost", 0), lies_at("kept", 1)]).await;
    memory.truncate_before(&Partition::new(topic.as_str(), 0), 1).unwrap();
    let (faulty, faults) = fixture.with_faults();
    let records = faults.on(polls_of_groups).records(0);
    let groups = faults.count(group_offsets);
    let reads = faults.count(read_checkpoints);
    let config = TrackerConfig { tick: Millis(400), observe: false, ..TrackerConfig::default() };
    let tracker = faulty.tracker_with(config).await;
    eventually("the gap is detected", || async { groups.hits() > 0 }).await;
    // Let time pass: an immediate search would not find the task.
    let before = reads.hits();
    eventually("time passes", || async { reads.hits() >= before + 2 }).await;
    assert_eq!(task_record(&fixture, "lost").await, None, "no event is folded");
    records.lift();
    until_state(&fixture, "lost", State::Expired).await;
    expect_agreement(&fixture).await;
    assert_eq!(task_record(&fixture, "kept").await.unwrap().state, State::Queued);
    tracker.stop().await;
}
