//! What may lie on the events topic and in the store: written by hand, by an older build, by a newer one, by mistake.

use std::sync::Arc;

use kafleet::broker::memory as broker;
use kafleet::model::projection::FOLD_VERSION;
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use kafleet::store::memory::Memory;
use kafleet::store::{Checkpoint, Index, Store};
use serde_json::json;

use crate::cases::{agrees, one_each, state_of};
use crate::ground::{Ground, part, until};
use crate::memory::ground;
use crate::story::id;

/// The documented examples, as they stand in the file, each line a record.
#[tokio::test(flavor = "multi_thread")]
async fn events_written_by_hand_are_read() {
    let (ground, _) = ground(4);
    let lines = include_str!("../../schemas/examples/events.jsonl");
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let root = id(value["id"].as_str().unwrap()).root().to_owned();
        ground.write_raw(ground.partition_of(&root), Some(line.as_bytes())).await;
    }
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    let fetch = state_of(&ground, "order-42:fetch").await.unwrap();
    assert_eq!((fetch.state, fetch.run, fetch.attempt, fetch.log_dropped), (State::Succeeded, 2, 2, 4));
    assert_eq!(fetch.output.unwrap().value().unwrap(), json!({"bytes": 1024}));
    assert_eq!(fetch.progress.unwrap().value().unwrap(), json!({"done": 3, "of": 10}));
    let log = ground.store.log_lines(ground.partition_of("order-42"), &id("order-42:fetch"), 0, 10).await.unwrap();
    assert_eq!(log.lines, ["first line", "second line"]);
    let order = state_of(&ground, "order-42").await.unwrap();
    let (children, ..) = children_of(&order.below);
    assert_eq!((order.own, order.state), (State::Succeeded, State::Failed), "a child has failed");
    assert_eq!((children.total(), children.get(State::Failed), children.get(State::Expired)), (4, 1, 1));
    let policy = order.policy.unwrap();
    assert_eq!((policy.retries, policy.tags.as_slice()), (Some(2), ["a".to_owned()].as_slice()));
    assert_eq!(state_of(&ground, "job-7").await.unwrap().state, State::Succeeded, "an external task, reported done");
    tracker.stop().await;
}

/// The least that an event may say; a kind and a field of a newer build.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_is_enough_and_more_does_not_hurt() {
    let (ground, _) = ground(1);
    for line in [
        r#"{"v":1,"kind":"succeeded","id":"least","at_ms":1}"#,
        r#"{"v":1,"kind":"started","id":"more","at_ms":1,"gpu":{"name":"x"}}"#,
        r#"{"v":1,"kind":"admired","id":"more","at_ms":2,"by":"all"}"#,
        r#"{"v":1,"kind":"admired","id":"unheard-of","at_ms":2}"#,
    ] {
        ground.write_raw(0, Some(line.as_bytes())).await;
    }
    let tracker = ground.tracker().await;
    agrees(&ground).await;
    assert_eq!(state_of(&ground, "least").await.unwrap().state, State::Succeeded);
    assert_eq!(state_of(&ground, "more").await.unwrap().state, State::Running);
    assert_eq!(state_of(&ground, "unheard-of").await, None);
    assert_eq!(tracker.skipped(0), 0);
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_is_skipped_and_counted() {
    let (ground, _) = ground(2);
    let garbage: &[Option<&[u8]>] = &[
        None,
        Some(b""),
        Some(b"hello"),
        Some(b"{\"v\":1"),
        Some(b"[]"),
        Some(b"\xff\xfe\x00"),
        Some(br#"{"kind":"succeeded","id":"no-version","at_ms":1}"#),
        Some(br#"{"v":1,"kind":"succeeded","id":"a b","at_ms":1}"#),
        Some(br#"{"v":1,"kind":"succeeded","id":"","at_ms":1}"#),
        Some(br#"{"v":1,"kind":"succeeded","id":"x","at_ms":"noon"}"#),
        Some(br#"{"v":-2,"kind":"succeeded","id":"x","at_ms":1}"#),
    ];
    for value in garbage {
        ground.write_raw(0, *value).await;
    }
    let roots = one_each(&ground, "after").await;
    // The last record of a partition may be one of these, too.
    ground.write_raw(0, Some(b"the end")).await;
    let tracker = ground.tracker().await;
    let oracle = agrees(&ground).await;
    assert_eq!((tracker.skipped(0), tracker.skipped(1)), (garbage.len() as u64 + 1, 0));
    assert_eq!(oracle.tasks(), roots.len());
    tracker.is_well().await;
    tracker.stop().await;
}

/// Written by hand with another partitioner, an event would make a second record of a task, which nobody finds by its id; one
/// that announces a task and says nothing of it would make one that nobody can run.
#[tokio::test(flavor = "multi_thread")]
async fn misplaced_and_empty_announcements_make_no_task() {
    let (ground, _) = ground(2);
    let line = br#"{"v":1,"kind":"submitted","id":"kafleet","at_ms":1,"task":{"type":"root","created_at_ms":1}}"#;
    let home = ground.partition_of("kafleet");
    for partition in [home, 1 - home] {
        ground.write_raw(partition, Some(line)).await;
        ground.write_raw(partition, Some(br#"{"v":1,"kind":"submitted","id":"untyped","at_ms":1}"#)).await;
    }
    let tracker = ground.tracker().await;
    ground.folded().await;
    let mut roots = Vec::new();
    for partition in ground.all() {
        let page = ground.store.page(partition, &Index::Roots, None, 10).await.unwrap();
        roots.extend(page.into_iter().map(|entry| (partition, entry.id.to_string())));
    }
    assert_eq!(roots, [(home, "kafleet".to_owned())]);
    assert_eq!((tracker.skipped(home), tracker.skipped(1 - home)), (1, 2));
    tracker.is_well().await;
    tracker.stop().await;
}

/// Puts a fence into an empty partition.
async fn put_fence(store: &Memory, partition: u32, fence: Checkpoint) {
    let (mut writer, found) = store.open(partition).await.unwrap();
    writer.apply(&Changes::default(), found, fence).await.unwrap();
}

/// Fences that this build must not go on from, each with its reason; what nobody understands stays as it is. Once the
/// store is emptied, as the hint says, everything is folded without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_does_not_fit_stops_with_its_reason() {
    let memory = broker::Memory::new(broker::MemoryOptions::default());
    let store = Memory::default();
    let ground = Ground::new(memory.clone(), Arc::new(store.clone()), 5);
    for _ in 0..3 {
        one_each(&ground, "t").await;
    }
    memory.truncate_before(&ground.place(3), 4).unwrap();
    let fence = |offset, version| Checkpoint { offset, version, log_time_ms: 7, ..Checkpoint::default() };
    let bad = [
        (0, fence(2, FOLD_VERSION + 1), "upgrade trackers first"),
        (1, fence(2, FOLD_VERSION - 1), "fold into an empty store"),
        (2, fence(1_000, FOLD_VERSION), "the log holds 0 to 6"),
        (3, fence(1, FOLD_VERSION), "the log holds 4 to 6"),
    ];
    for (partition, fence, _) in bad {
        put_fence(&store, partition, fence).await;
    }
    let tracker = ground.tracker().await;
    for (partition, fence, words) in bad {
        tracker.says(&part(partition), words).await;
        assert_eq!(store.fences(&[partition]).await.unwrap(), [Some(fence)], "nothing is written under it");
    }
    ground.folded_to(&[0, 0, 0, 0, 6]).await;
    until("nothing else is wrong", || async { tracker.health.reasons().len() == bad.len() }).await;
    store.wipe();
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// A newer event at the very start of a partition, and in one that has been folded before.
#[tokio::test(flavor = "multi_thread")]
async fn a_tracker_that_starts_before_a_newer_event_says_so() {
    let (ground, _) = ground(2);
    ground.write_raw(0, Some(br#"{"v":9,"kind":"x"}"#)).await;
    one_each(&ground, "t").await;
    let first = ground.tracker().await;
    first.says(&part(0), "version 9").await;
    until("the other one is folded", || async { ground.store.fences(&[1]).await.unwrap()[0].is_some_and(|f| f.offset == 2) })
        .await;
    first.stop().await;
    let second = ground.tracker().await;
    second.says(&part(0), "upgrade trackers first").await;
    assert_eq!(ground.store.fences(&[0]).await.unwrap()[0].unwrap().offset, 0);
    assert_eq!(state_of(&ground, "t-0").await.is_some(), ground.partition_of("t-0") == 1, "nothing behind it is folded");
    second.stop().await;
}
