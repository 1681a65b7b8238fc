//! Types that share a consumer group.

use std::collections::BTreeMap;

use kafleet::broker::{Commit, CommittedOffset, Partition};
use kafleet::config::TypeGroups;
use kafleet::control::{ControlKey, ControlRecord, Group};
use kafleet::model::event::{Event, Kind as EventKind};
use kafleet::runtime::blocking;

use crate::worker::fleet::{DEADLINE, Fleet, bytes, eventually, kafka, kafka_with, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated};

/// Number of tasks of a type beyond which its consumer takes no more of its records.
const BACKLOG: usize = 12_000;

impl Fleet {
    /// Lets types share the group `small`.
    pub fn share(&mut self, types: &[&str]) {
        let by_type = types.iter().map(|name| ((*name).to_owned(), "small".to_owned()));
        let groups = TypeGroups { by_type: by_type.collect(), default: None };
        self.names = self.names.clone().with_groups(groups);
    }
}

/// Returns the commits of a type in a group.
async fn commits_in(fleet: &Fleet, group: String, task_type: &str, partitions: i32) -> Vec<Commit> {
    let topic = fleet.names.tasks(task_type);
    let all: Vec<Partition> = (0..partitions).map(|index| Partition::new(topic.as_str(), index)).collect();
    let broker = fleet.broker.clone();
    let read = move || broker.group_offsets(&group, &all, DEADLINE).map(|found| (all, found));
    let (all, found) = blocking(read).await.unwrap().unwrap();
    let commit = |(partition, found): (Partition, Option<CommittedOffset>)| {
        found.map(|found| Commit { partition, offset: found.offset, metadata: found.metadata })
    };
    all.into_iter().zip(found).filter_map(commit).collect()
}

/// Moves a type to another group, as `kafleet offsets move` does.
async fn move_type(fleet: &Fleet, task_type: &str, to: &str, partitions: i32) {
    let commits = commits_in(fleet, fleet.names.tasks(task_type), task_type, partitions).await;
    let broker = fleet.broker.clone();
    let group = fleet.names.group_id(task_type, to);
    blocking(move || broker.set_group_offsets(&group, &commits, DEADLINE)).await.unwrap().unwrap();
    record_group(fleet, task_type, to).await;
}

async fn record_group(fleet: &Fleet, task_type: &str, group: &str) {
    let record = Group { v: 1, at_ms: 0, group: group.to_owned(), moving_to: None };
    fleet.put_control(ControlKey::Group(task_type.into()), ControlRecord::Group(record)).await;
}

/// Asserts that each task has run once and succeeded at its first attempt.
pub fn assert_once(fleet: &Fleet, journal: &Journal, count: usize) {
    let is_lost = |event: &&Event| (event.kind(), event.attempt) != (EventKind::Succeeded, 1);
    assert_eq!(fleet.results().iter().find(is_lost), None);
    let repeated: Vec<_> = journal.counts().into_iter().filter(|(_, count)| *count != 1).collect();
    assert_eq!((repeated, journal.started()), (vec![], count));
}

fn three(journal: &Journal) -> [Kind; 3] {
    ["a", "b", "c"].map(|name| counted(name, journal))
}

/// Two types share a group and the third has its own; each runs and is committed in its group.
async fn shared_and_own(mut fleet: Fleet, journal: Journal) {
    fleet.share(&["a", "b"]);
    for name in ["a", "b", "c"] {
        fleet.send_many(name, name, 200, "0").await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(600).await;
    worker.ready().await;
    worker.stop().await;
    assert_once(&fleet, &journal, 600);
    for name in ["a", "b", "c"] {
        fleet.assert_clean(name).await;
    }
    let commits = commits_in(&fleet, fleet.names.tasks("a"), "a", 2).await;
    assert_eq!(commits, [], "nothing is committed in the type's own group");
    let small = fleet.names.group_id("a", "small");
    assert_eq!(commits_in(&fleet, small.clone(), "b", 2).await.len(), 2);
    assert_eq!(commits_in(&fleet, small, "c", 2).await, []);
    // A second worker continues at the commits.
    let worker = fleet.worker();
    fleet.send("a", "last", "0").await;
    fleet.wait_for_results(601).await;
    worker.stop().await;
    assert_once(&fleet, &journal, 601);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_group_runs_and_commits_each_type() {
    let journal = Journal::default();
    let (fleet, _) = memory(2, &three(&journal)).await;
    shared_and_own(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_group_runs_and_commits_each_type_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(2, &three(&journal)).await else { return };
    shared_and_own(fleet, journal).await;
}

/// Workers of one group serve different types; one joins, the other leaves, nothing is repeated.
async fn different_types(mut fleet: Fleet, journal: Journal) {
    fleet.share(&["a", "b", "c"]);
    let [a, b, c] = three(&journal);
    let first = fleet.worker_of(&[a.clone(), b.clone()]);
    fleet.send_many("a", "a", 100, "0").await;
    fleet.send_many("b", "b", 100, "0").await;
    fleet.send_many("c", "c", 100, "0").await;
    fleet.wait_for_results(200).await;
    assert!(!journal.starts().iter().any(|id| id.starts_with('c')), "no worker serves this type yet");
    let second = fleet.worker_of(&[b, c]);
    fleet.wait_for_results(300).await;
    for round in 0..5 {
        for name in ["a", "b", "c"] {
            fleet.send_many(name, &format!("{name}{round}-"), 100, "0").await;
        }
    }
    fleet.wait_for_results(1_800).await;
    first.stop().await;
    fleet.send_many("b", "more-b", 100, "0").await;
    fleet.send_many("c", "more-c", 100, "0").await;
    fleet.send_many("a", "more-a", 100, "0").await;
    fleet.wait_for_results(2_000).await;
    assert!(!journal.starts().iter().any(|id| id.starts_with("more-a")), "no worker serves this type any more");
    let third = fleet.worker_of(&[a]);
    fleet.wait_for_results(2_100).await;
    second.stop().await;
    third.stop().await;
    assert_once(&fleet, &journal, 2_100);
    for name in ["a", "b", "c"] {
        fleet.assert_clean(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_group_serve_different_types() {
    let journal = Journal::default();
    let (fleet, _) = memory(4, &three(&journal)).await;
    different_types(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_group_serve_different_types_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(4, &three(&journal)).await else { return };
    different_types(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_group_serve_different_types_with_consumer_protocol() {
    let journal = Journal::default();
    let Some(fleet) = kafka_with(&[("group.protocol", "consumer")], 4, &three(&journal)).await else { return };
    different_types(fleet, journal).await;
}

/// A type with a full backlog waits; the other type of the group runs.
async fn full_backlog(mut fleet: Fleet, journal: Journal, gate: Gate) {
    fleet.share(&["full", "free"]);
    fleet.send_many("full", "full", BACKLOG, "0").await;
    let worker = fleet.worker();
    // 8,192 inputs of at least 512 bytes each.
    eventually("the backlog is full", async || worker.metric("kafleet_worker_held_bytes", "") >= 8_192.0 * 512.0).await;
    for round in 0..10 {
        fleet.send_many("free", &format!("free{round}-"), 100, "0").await;
        fleet.wait_for_results((round + 1) * 100).await;
    }
    assert_eq!(journal.running(), 1);
    gate.open();
    fleet.wait_for_results(BACKLOG + 1_000).await;
    worker.stop().await;
    assert_once(&fleet, &journal, BACKLOG + 1_000);
    fleet.assert_clean("full").await;
    fleet.assert_clean("free").await;
}

fn full_and_free(journal: &Journal, gate: &Gate) -> [Kind; 2] {
    [gated("full", journal, gate).slots(1), counted("free", journal)]
}

#[tokio::test(flavor = "multi_thread")]
async fn full_type_delays_only_its_own_partitions() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(2, &full_and_free(&journal, &gate)).await;
    full_backlog(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_type_delays_only_its_own_partitions_on_kafka() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let Some(fleet) = kafka(2, &full_and_free(&journal, &gate)).await else { return };
    full_backlog(fleet, journal, gate).await;
}

/// A paused type with a full backlog waits; the other type of the group runs, and the paused one after its resumption.
#[tokio::test(flavor = "multi_thread")]
async fn paused_type_delays_only_its_own_partitions() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("paused", &journal), counted("free", &journal)]).await;
    fleet.share(&["paused", "free"]);
    fleet.pause("paused").await;
    fleet.send_many("paused", "paused", BACKLOG, "0").await;
    let worker = fleet.worker();
    eventually("the backlog is full", async || worker.metric("kafleet_worker_held_bytes", "") >= 8_192.0 * 512.0).await;
    fleet.send_many("free", "free", 1_000, "0").await;
    fleet.wait_for_results(1_000).await;
    assert!(!journal.starts().iter().any(|id| id.starts_with("paused")));
    fleet.delete_control(ControlKey::Pause("paused".into())).await;
    fleet.wait_for_results(BACKLOG + 1_000).await;
    worker.stop().await;
    assert_once(&fleet, &journal, BACKLOG + 1_000);
}

/// A type whose tasks use up their part of the memory waits; the other type of the group runs.
#[tokio::test(flavor = "multi_thread")]
async fn type_without_memory_delays_only_its_own_partitions() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(2, &full_and_free(&journal, &gate)).await;
    fleet.share(&["full", "free"]);
    fleet.config.memory_limit = bytes(16 << 20);
    let params = format!("\"{}\"", "x".repeat(100_000));
    fleet.send_many("full", "full", 300, &params).await;
    let worker = fleet.worker();
    // Its reserved quarter of the 8 MiB for tasks in flight, and the common half.
    eventually("the memory of the type is used up", async || worker.metric("kafleet_worker_held_bytes", "") >= 5.9e6)
        .await;
    fleet.send_many("free", "free", 1_000, "0").await;
    fleet.wait_for_results(1_000).await;
    gate.open();
    fleet.wait_for_results(1_300).await;
    worker.stop().await;
    assert_once(&fleet, &journal, 1_300);
}

/// A slow type that drains delays neither the other type of the worker nor its stop.
#[tokio::test(flavor = "multi_thread")]
async fn draining_type_does_not_delay_the_others() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (mut fleet, _) = memory(2, &[gated("slow", &journal, &gate), counted("free", &journal)]).await;
    fleet.share(&["slow", "free"]);
    fleet.send_many("slow", "slow", 8, "0").await;
    let first = fleet.worker();
    eventually("all slow tasks run", async || journal.running() == 8).await;
    // Half of the partitions move to the second worker; those of the slow type are held by their running tasks.
    let second = fleet.worker();
    for round in 0..10 {
        fleet.send_many("free", &format!("free{round}-"), 100, "0").await;
        fleet.wait_for_results((round + 1) * 100).await;
    }
    gate.open();
    fleet.wait_for_results(1_008).await;
    first.stop().await;
    second.stop().await;
    assert_once(&fleet, &journal, 1_008);
    fleet.assert_clean("slow").await;
}

/// Workers join and leave while tasks of two types are published; no task is lost or repeated.
async fn rolling(mut fleet: Fleet, journal: Journal) {
    fleet.share(&["a", "b", "c"]);
    let mut workers = vec![fleet.worker()];
    for step in 0..5 {
        for name in ["a", "b", "c"] {
            fleet.send_many(name, &format!("{name}{step}-"), 300, "0").await;
        }
        eventually("tasks are being processed", async || journal.started() > step * 900).await;
        workers.push(fleet.worker());
        if step >= 2 {
            workers.remove(0).stop().await;
        }
    }
    fleet.wait_for_results(4_500).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_once(&fleet, &journal, 4_500);
    for name in ["a", "b", "c"] {
        fleet.assert_clean(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_of_a_shared_group_repeats_nothing() {
    let journal = Journal::default();
    let (fleet, _) = memory(4, &three(&journal)).await;
    rolling(fleet, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_of_a_shared_group_repeats_nothing_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(4, &three(&journal)).await else { return };
    rolling(fleet, journal).await;
}

/// A type whose commits are in its own group is not started in another one before they are moved there.
#[tokio::test(flavor = "multi_thread")]
async fn worker_is_refused_while_the_commits_are_in_another_group() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &three(&journal)).await;
    fleet.send_many("a", "own", 100, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(100).await;
    worker.stop().await;
    fleet.share(&["a", "b"]);
    let error = fleet.worker().failure().await;
    assert!(error.contains("the commits of the type `a` are in the consumer group `a`"), "{error}");
    assert!(error.contains("its configured group is `small`"), "{error}");
    assert!(error.contains("kafleet offsets move a --to small"), "{error}");
    move_type(&fleet, "a", "small", 2).await;
    move_type(&fleet, "b", "small", 2).await;
    fleet.send_many("a", "shared", 100, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(200).await;
    worker.stop().await;
    assert_once(&fleet, &journal, 200);
    fleet.assert_clean("a").await;
}

/// Two workers name different groups for a type: only one of the groups gets it.
#[tokio::test(flavor = "multi_thread")]
async fn type_in_two_groups_is_refused() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &three(&journal)).await;
    let earlier = fleet.names.clone();
    fleet.share(&["a"]);
    fleet.send_many("a", "t", 100, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(100).await;
    let shared = std::mem::replace(&mut fleet.names, earlier);
    let error = fleet.worker().failure().await;
    assert!(error.contains("the commits of the type `a` are in the consumer group `small`"), "{error}");
    assert!(error.contains("kafleet offsets move a --to a"), "{error}");
    fleet.names = shared;
    worker.stop().await;
    assert_once(&fleet, &journal, 100);
}

/// A worker that comes back after its type was moved without it does not process the type twice.
#[tokio::test(flavor = "multi_thread")]
async fn worker_stops_when_its_type_is_moved() {
    let journal = Journal::default();
    let (fleet, _) = memory(2, &three(&journal)).await;
    fleet.send_many("a", "t", 100, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(100).await;
    record_group(&fleet, "a", "small").await;
    let error = worker.failure().await;
    assert!(error.contains("the commits of the type `a` are in the consumer group `small`"), "{error}");
    assert_once(&fleet, &journal, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn group_named_like_a_type_is_refused() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(1, &three(&journal)).await;
    let groups = TypeGroups { by_type: BTreeMap::from([("a".to_owned(), "b".to_owned())]), default: None };
    fleet.names = fleet.names.clone().with_groups(groups);
    let error = fleet.worker().failure().await;
    assert!(error.contains("the consumer group `b` is named like the type `b`"), "{error}");
}
