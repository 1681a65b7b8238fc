//! Faults of one type of a shared group, which must not concern the others, and changes of groups at a bad moment.

use std::time::Duration;

use kafleet::broker::{BrokerError, Commit, GroupEvent, Partition, Watermarks};
use kafleet::control::{ControlKey, ControlRecord, Group};
use kafleet::runtime::blocking;
use kafleet_testkit::faults::{Call, FaultRules, Rule, read_commits, watermarks};

use crate::worker::fleet::{DEADLINE, Fleet, Worker, eventually, memory};
use crate::worker::shared_groups::assert_once;
use crate::worker::types::{Journal, counted};

fn denied() -> BrokerError {
    BrokerError::Denied("topic authorization failed".into())
}

/// A fleet with the types `a` and `b` of one group, on a broker with faults.
async fn faulty(partitions: u32, journal: &Journal) -> (Fleet, FaultRules) {
    let (mut fleet, _) = memory(partitions, &["a", "b"].map(|name| counted(name, journal))).await;
    fleet.share(&["a", "b"]);
    let faults = fleet.add_faults();
    (fleet, faults)
}

fn has_reason(worker: &Worker, part: &str) -> bool {
    worker.health.reasons().iter().any(|(name, _)| name == part)
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_commits_of_one_type_do_not_stop_the_others() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(2, &journal).await;
    let is_of_a = |call: &Call<'_>| matches!(call, Call::Commit(_, partition) if partition.topic.ends_with(".a"));
    let denied_commits = faults.on(is_of_a).fail(denied());
    fleet.send_many("a", "a", 50, "0").await;
    // Many windows: each needs a commit.
    fleet.send_many("b", "b", 5_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(5_000).await;
    assert!(!journal.starts().iter().any(|id| id.starts_with('a')), "no task starts before a window is committed");
    denied_commits.lift();
    fleet.wait_for_results(5_050).await;
    worker.stop().await;
    assert_once(&fleet, &journal, 5_050);
    fleet.assert_clean("a").await;
    fleet.assert_clean("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn type_that_cannot_start_does_not_stop_the_others() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(2, &journal).await;
    let denied_reads = faults.on(read_commits("tasks.a")).fail(denied());
    fleet.send_many("a", "a", 10, "0").await;
    fleet.send_many("b", "b", 1_000, "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(1_000).await;
    eventually("the health report names the type", async || has_reason(&worker, "type a")).await;
    assert!(!has_reason(&worker, "group small"), "{:?}", worker.health.reasons());
    denied_reads.lift();
    fleet.wait_for_results(1_010).await;
    worker.ready().await;
    worker.stop().await;
    assert_once(&fleet, &journal, 1_010);
}

/// Another worker, which can read the commits, takes the type over.
#[tokio::test(flavor = "multi_thread")]
async fn worker_is_ready_once_partitions_that_it_cannot_start_are_revoked() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(1, &journal).await;
    faults.on(read_commits("tasks.a")).fail(denied());
    let first = fleet.worker();
    eventually("the health report names the type", async || has_reason(&first, "type a")).await;
    let second = fleet.worker_of(&[counted("a", &journal)]);
    fleet.send("a", "moved", "0").await;
    fleet.result_of("moved").await;
    first.ready().await;
    first.stop().await;
    second.stop().await;
}

/// Commits of one type follow one another without a pause; a partition of the other type moves nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn drained_partition_is_released_while_others_commit() {
    let journal = Journal::default();
    let (fleet, faults) = faulty(1, &journal).await;
    faults.on(|call| matches!(call, Call::CommitOutcome)).delay(Duration::from_millis(30));
    let first = fleet.worker();
    fleet.send("a", "a-first", "0").await;
    let before = fleet.result_of("a-first").await.worker;
    let second = fleet.worker_of(&[counted("a", &journal)]);
    let mut n = 0;
    eventually("the partition has moved", async || {
        fleet.send_many("b", &format!("b{n}-"), 20, "0").await;
        fleet.send("a", &format!("a{n}"), "0").await;
        n += 1;
        fleet.results().iter().any(|event| event.id.as_str().starts_with('a') && event.worker != before)
    })
    .await;
    first.stop().await;
    second.stop().await;
}

/// Commits that `kafleet offsets init` made before any worker has run.
#[tokio::test(flavor = "multi_thread")]
async fn worker_is_refused_if_an_unused_type_has_commits_in_another_group() {
    let journal = Journal::default();
    let (mut fleet, _) = memory(2, &[counted("a", &journal)]).await;
    fleet.send_many("a", "t", 100, "0").await;
    let commit = Commit { partition: Partition::new(fleet.names.tasks("a"), 1), offset: 7, metadata: String::new() };
    let (broker, topic) = (fleet.broker.clone(), fleet.names.tasks("a"));
    blocking(move || broker.set_group_offsets(&topic, &[commit], DEADLINE)).await.unwrap().unwrap();
    fleet.share(&["a"]);
    let error = fleet.worker().failure().await;
    assert!(error.contains("the commits of the type `a` are in the consumer group `a`"), "{error}");
    assert_eq!(journal.started(), 0);
}

/// Runs a task of the type `a`, then lets the next worker follow the control topic late; readers that read it once are
/// up to date. Returns the rule that holds its records back.
async fn lagging(journal: &Journal, shares: bool) -> (Fleet, FaultRules, Rule) {
    let (mut fleet, _) = memory(2, &[counted("a", journal)]).await;
    if shares {
        fleet.share(&["a"]);
    }
    fleet.send("a", "first", "0").await;
    let worker = fleet.worker();
    fleet.result_of("first").await;
    worker.stop().await;
    let faults = fleet.add_faults();
    // The first call is that of the follower, which finds the topic empty.
    faults.on(watermarks(fleet.names.control())).times(1).answer(Watermarks { low: 0, high: 0 });
    let follows = |call: &Call<'_>| matches!(call, Call::Poll(reader) if reader.spec.group.is_none() && !reader.spec.read_uncommitted);
    let lag = faults.on(follows).answer(Vec::<GroupEvent>::new());
    (fleet, faults, lag)
}

async fn record_move(fleet: &Fleet, moving_to: Option<&str>) {
    let record = Group { v: 1, at_ms: 0, group: "a".into(), moving_to: moving_to.map(str::to_owned) };
    fleet.put_control(ControlKey::Group("a".into()), ControlRecord::Group(record)).await;
}

/// Another worker has recorded the group and consumed the type between the two reads of the control topic.
#[tokio::test(flavor = "multi_thread")]
async fn worker_that_follows_the_control_topic_late_is_not_refused() {
    let journal = Journal::default();
    let (fleet, faults, lag) = lagging(&journal, true).await;
    let reads = |call: &Call<'_>| matches!(call, Call::OpenConsumer(spec) if spec.read_uncommitted);
    let reads = faults.count(reads);
    let worker = fleet.worker();
    eventually("the control topic is read", async || reads.hits() > 0).await;
    lag.lift();
    fleet.send("a", "second", "0").await;
    fleet.result_of("second").await;
    worker.stop().await;
    assert_once(&fleet, &journal, 2);
}

/// A worker that began before the move was recorded, and joined its group after that, processes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn type_is_not_started_while_its_commits_are_moved() {
    let journal = Journal::default();
    let (fleet, _, lag) = lagging(&journal, false).await;
    record_move(&fleet, Some("small")).await;
    fleet.send("a", "second", "0").await;
    let worker = fleet.worker();
    let is_held = || worker.health.reasons().iter().any(|(_, reason)| reason.contains("are being moved"));
    eventually("the type is not started", async || is_held()).await;
    assert_eq!(journal.started(), 1);
    lag.lift();
    record_move(&fleet, None).await;
    fleet.result_of("second").await;
    worker.ready().await;
    worker.stop().await;
    assert_once(&fleet, &journal, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_is_refused_while_a_move_has_not_ended() {
    let journal = Journal::default();
    let (fleet, _) = memory(2, &[counted("a", &journal)]).await;
    record_move(&fleet, Some("small")).await;
    let error = fleet.worker().failure().await;
    assert!(error.contains("are being moved from the consumer group `a` to `small`"), "{error}");
    assert!(error.contains("kafleet offsets move a --to small"), "{error}");
}
