//! Possible contents of the events topic and the store: written by hand, by older or newer builds, or by mistake.

use std::sync::Arc;

use kafleet::broker::memory as broker;
use kafleet::model::projection::FOLD_VERSION;
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::log_line::StoredLine;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use kafleet::store::memory::MemoryStore;
use kafleet::store::{Checkpoint, Index, Store};
use serde_json::json;

use crate::tracker::cases::{expect_agreement, one_each, state_of};
use crate::tracker::event_log::id;
use crate::tracker::fixture::{Fixture, eventually, part};
use crate::tracker::memory::fixture;

/// The documented examples as they stand in the file, each line a record.
#[tokio::test(flavor = "multi_thread")]
async fn documented_example_events_are_folded() {
    let (fixture, _) = fixture(4);
    let lines = include_str!("../../schemas/examples/events.jsonl");
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let root = id(value["id"].as_str().unwrap()).root().to_owned();
        fixture.write_raw(fixture.partition_of(&root), Some(line.as_bytes())).await;
    }
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    let fetch = state_of(&fixture, "order-42:fetch").await.unwrap();
    assert_eq!((fetch.state, fetch.run, fetch.attempt, fetch.log.dropped), (State::Succeeded, 2, 2, 4));
    assert_eq!(fetch.outcome.output.unwrap().value().unwrap(), json!({"bytes": 1024}));
    assert_eq!(fetch.outcome.progress.unwrap().value().unwrap(), json!({"done": 3, "of": 10}));
    let log = fixture.store.log_lines(fixture.partition_of("order-42"), &id("order-42:fetch"), 0, 10).await.unwrap();
    let lines: Vec<StoredLine<'_>> = log.lines.iter().map(|line| StoredLine::decode(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line.text).collect::<Vec<_>>(), ["first line", "second line"]);
    assert!(lines.iter().all(|line| line.at_ms > 0), "{lines:?}");
    let order = state_of(&fixture, "order-42").await.unwrap();
    let (children, ..) = children_of(&order.tree.below);
    assert_eq!((order.own, order.state), (State::Succeeded, State::Failed), "the child's failure is rolled up");
    assert_eq!((children.total(), children.get(State::Failed), children.get(State::Expired)), (4, 1, 1));
    let policy = order.definition.policy.unwrap();
    assert_eq!((policy.retries, policy.tags.as_slice()), (Some(2), ["a".to_owned()].as_slice()));
    assert_eq!(
        state_of(&fixture, "job-7").await.unwrap().state,
        State::Succeeded,
        "the external task was reported as succeeded"
    );
    tracker.stop().await;
}

/// Other tasks with the id of a task are counted; the same one again is not.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_the_id_of_another_are_counted() {
    let (fixture, _) = fixture(1);
    for task_type in ["a", "a", "b", "c"] {
        let line = json!({"v": 2, "kind": "submitted", "id": "x", "at_ms": 1, "task": {"type": task_type, "created_at_ms": 1}});
        fixture.write_raw(0, Some(line.to_string().as_bytes())).await;
    }
    let tracker = fixture.tracker().await;
    let counted = || tracker.metrics.tracker.id_conflicts.with_label_values(&["0"]).get();
    eventually("both are counted", async || counted() == 2).await;
    let warnings = state_of(&fixture, "x").await.unwrap().history.entries.into_iter().filter_map(|entry| entry.message);
    assert_eq!(warnings.filter(|text| text.contains("submitted again with another type")).count(), 2);
    tracker.stop().await;
}

/// Minimal events, and events with an unknown kind or field of a newer build.
#[tokio::test(flavor = "multi_thread")]
async fn minimal_and_extended_events_are_folded() {
    let (fixture, _) = fixture(1);
    for line in [
        r#"{"v":2,"kind":"succeeded","id":"least","at_ms":1}"#,
        r#"{"v":2,"kind":"started","id":"more","at_ms":1,"gpu":{"name":"x"}}"#,
        r#"{"v":2,"kind":"admired","id":"more","at_ms":2,"by":"all"}"#,
        r#"{"v":2,"kind":"admired","id":"unheard-of","at_ms":2}"#,
    ] {
        fixture.write_raw(0, Some(line.as_bytes())).await;
    }
    let tracker = fixture.tracker().await;
    expect_agreement(&fixture).await;
    assert_eq!(state_of(&fixture, "least").await.unwrap().state, State::Succeeded);
    assert_eq!(state_of(&fixture, "more").await.unwrap().state, State::Running);
    assert_eq!(state_of(&fixture, "unheard-of").await, None);
    assert_eq!(tracker.skipped(0), 0);
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_records_are_skipped_and_counted() {
    let (fixture, _) = fixture(2);
    let garbage: &[Option<&[u8]>] = &[
        None,
        Some(b""),
        Some(b"hello"),
        Some(b"{\"v\":1"),
        Some(b"[]"),
        Some(b"\xff\xfe\x00"),
        Some(br#"{"kind":"succeeded","id":"no-version","at_ms":1}"#),
        Some(br#"{"v":2,"kind":"succeeded","id":"a b","at_ms":1}"#),
        Some(br#"{"v":2,"kind":"succeeded","id":"","at_ms":1}"#),
        Some(br#"{"v":2,"kind":"succeeded","id":"x","at_ms":"noon"}"#),
        Some(br#"{"v":-2,"kind":"succeeded","id":"x","at_ms":1}"#),
    ];
    for value in garbage {
        fixture.write_raw(0, *value).await;
    }
    let roots = one_each(&fixture, "after").await;
    // The last record of a partition may also be one of these.
    fixture.write_raw(0, Some(b"the end")).await;
    let tracker = fixture.tracker().await;
    let oracle = expect_agreement(&fixture).await;
    assert_eq!((tracker.skipped(0), tracker.skipped(1)), (garbage.len() as u64 + 1, 0));
    assert_eq!(oracle.tasks(), roots.len());
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// An event in the wrong partition would create a second record that no lookup by id finds; an announcement without a
/// task would create one that cannot run.
#[tokio::test(flavor = "multi_thread")]
async fn misplaced_and_empty_announcements_make_no_task() {
    let (fixture, _) = fixture(2);
    let line = br#"{"v":2,"kind":"submitted","id":"kafleet","at_ms":1,"task":{"type":"root","created_at_ms":1}}"#;
    let home = fixture.partition_of("kafleet");
    for partition in [home, 1 - home] {
        fixture.write_raw(partition, Some(line)).await;
        fixture.write_raw(partition, Some(br#"{"v":2,"kind":"submitted","id":"untyped","at_ms":1}"#)).await;
    }
    let tracker = fixture.tracker().await;
    fixture.folded().await;
    let mut roots = Vec::new();
    for partition in fixture.all() {
        let page = fixture.store.page(partition, &Index::Roots, None, 10).await.unwrap();
        roots.extend(page.into_iter().map(|entry| (partition, entry.id.to_string())));
    }
    assert_eq!(roots, [(home, "kafleet".to_owned())]);
    assert_eq!((tracker.skipped(home), tracker.skipped(1 - home)), (1, 2));
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Writes a checkpoint into an empty partition.
async fn put_checkpoint(store: &MemoryStore, partition: u32, checkpoint: Checkpoint) {
    let (mut writer, found) = store.open(partition).await.unwrap();
    writer.apply(&Changes::default(), found, checkpoint).await.unwrap();
}

/// Checkpoints that do not match this build or log stop the partition with a reason and stay unchanged. Once the
/// store is emptied, as the hint suggests, everything is folded without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn unsuitable_checkpoint_stops_the_partition_with_a_reason() {
    let memory = broker::MemoryBroker::new(broker::MemoryBrokerOptions::default());
    let store = MemoryStore::default();
    let fixture = Fixture::new(memory.clone(), Arc::new(store.clone()), 5);
    for _ in 0..3 {
        one_each(&fixture, "t").await;
    }
    memory.truncate_before(&fixture.partition(3), 4).unwrap();
    let checkpoint = |offset, version| Checkpoint { offset, version, log_time_ms: 7, ..Checkpoint::default() };
    let bad = [
        (0, checkpoint(2, FOLD_VERSION + 1), "upgrade this tracker"),
        (1, checkpoint(2, FOLD_VERSION - 1), "project into another, empty database"),
        (2, checkpoint(1_000, FOLD_VERSION), "the log holds 0 to 6"),
        (3, checkpoint(1, FOLD_VERSION), "the log holds 4 to 6"),
    ];
    for (partition, checkpoint, _) in bad {
        put_checkpoint(&store, partition, checkpoint).await;
    }
    let tracker = fixture.tracker().await;
    for (partition, checkpoint, words) in bad {
        tracker.expect_reason(&part(partition), words).await;
        assert_eq!(
            store.checkpoints(&[partition]).await.unwrap(),
            [Some(checkpoint)],
            "the refused checkpoint is unchanged"
        );
    }
    fixture.folded_to(&[0, 0, 0, 0, 6]).await;
    eventually("no other reason is reported", || async { tracker.health.reasons().len() == bad.len() }).await;
    store.wipe();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A newer event at the start of a partition, and in one that was folded before.
#[tokio::test(flavor = "multi_thread")]
async fn tracker_reports_a_newer_event_at_start() {
    let (fixture, _) = fixture(2);
    fixture.write_raw(0, Some(br#"{"v":9,"kind":"x"}"#)).await;
    one_each(&fixture, "t").await;
    let first = fixture.tracker().await;
    first.expect_reason(&part(0), "version 9").await;
    eventually("the other partition is folded", || async {
        fixture.store.checkpoints(&[1]).await.unwrap()[0].is_some_and(|f| f.offset == 2)
    })
    .await;
    first.stop().await;
    let second = fixture.tracker().await;
    second.expect_reason(&part(0), "upgrade trackers first").await;
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap()[0].unwrap().offset, 0);
    assert_eq!(state_of(&fixture, "t-0").await.is_some(), fixture.partition_of("t-0") == 1, "no later event is folded");
    second.stop().await;
}
