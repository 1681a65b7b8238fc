//! Cases for any broker and store.

use std::future::Future;

use kafleet::config::TrackerConfig;
use kafleet_testkit::oracle::Oracle;

use crate::tracker::event_log::{event_log, id, submitted, succeeded};
use crate::tracker::fixture::{Fixture, eventually};

/// Asserts that everything in the log is folded exactly once. A tracker may publish events meanwhile.
pub async fn expect_agreement(fixture: &Fixture) -> Oracle {
    eventually("the log comes to rest", async || {
        fixture.folded().await;
        let oracle = Oracle::of(fixture.broker.clone(), &fixture.names, fixture.partitions).await;
        oracle.settles(&*fixture.store, async |ends| fixture.is_at(ends).await).await
    })
    .await
}

/// Small batches with a tiny cache; a tracker that starts late; duplicate events out of order.
pub async fn all_events_are_folded_once(fixture: Fixture, trees: usize) {
    fixture.write(&event_log(1, trees)).await;
    let small = TrackerConfig { batch_events: 7, cache_records: 50, queue_events: 100, ..TrackerConfig::default() };
    let tracker = fixture.tracker_with(small).await;
    fixture.write(&event_log(2, trees)).await;
    let oracle = expect_agreement(&fixture).await;
    assert!(oracle.tasks() > trees * 2 && oracle.events > oracle.tasks(), "{} tasks", oracle.tasks());
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Partitions move from tracker to tracker while events arrive.
pub async fn trackers_start_and_stop_under_load(fixture: Fixture, trees: usize) {
    let first = fixture.tracker().await;
    let writing = tokio::spawn({
        let fixture = fixture.clone();
        async move {
            for seed in 0..6 {
                fixture.write(&event_log(seed, trees)).await;
            }
        }
    });
    eventually("the first tracker has folded events", || async {
        fixture.store.checkpoints(&[0]).await.is_ok_and(|checkpoints| checkpoints[0].is_some())
    })
    .await;
    let second = fixture.tracker().await;
    eventually("the second tracker has partitions", || async { second.reason("tracker").is_none() }).await;
    first.stop().await;
    let third = fixture.tracker().await;
    eventually("the third tracker has partitions", || async { third.reason("tracker").is_none() }).await;
    writing.await.unwrap();
    expect_agreement(&fixture).await;
    third.stop().await;
    // The remaining partitions belong to the second tracker alone.
    fixture.write(&event_log(9, trees)).await;
    expect_agreement(&fixture).await;
    second.stop().await;
}

/// Disturbs the store several times while events arrive, and once while none do.
pub async fn store_loses_writes<F: Future<Output = ()>>(
    fixture: Fixture,
    trees: usize,
    mut happen: impl FnMut(u32) -> F,
) {
    let tracker = fixture.tracker().await;
    for round in 0..4 {
        let writing = tokio::spawn({
            let fixture = fixture.clone();
            async move { fixture.write(&event_log(u64::from(round), trees)).await }
        });
        eventually("some events are folded", || async {
            let checkpoints = fixture.store.checkpoints(&fixture.all()).await;
            checkpoints.is_ok_and(|checkpoints| checkpoints.iter().flatten().count() > 0)
        })
        .await;
        happen(round).await;
        writing.await.unwrap();
    }
    expect_agreement(&fixture).await;
    happen(99).await;
    // No further event arrives that would reveal the loss.
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// An event of a newer build stops its partition at its offset; other partitions continue.
pub async fn newer_event_stops_its_partition(fixture: Fixture) {
    let tracker = fixture.tracker().await;
    let stopped = 1;
    fixture.write(&event_log(3, 100)).await;
    let newer = br#"{"v":4,"kind":"paused_by_moonlight","id":"a new:shape of id","at":"some other way"}"#;
    let at = fixture.write_raw(stopped, Some(newer)).await;
    fixture.write(&event_log(4, 100)).await;
    tracker.expect_reason(&crate::tracker::fixture::part(stopped), "upgrade trackers first").await;
    assert!(tracker.reason(&crate::tracker::fixture::part(stopped)).unwrap().contains("version 4"));
    let mut ends: Vec<i64> = fixture.all().into_iter().map(|partition| fixture.end(partition)).collect();
    assert!(ends[stopped as usize] > at + 1, "there are later events in the partition");
    ends[stopped as usize] = at;
    fixture.folded_to(&ends).await;
    let checkpoint = fixture.store.checkpoints(&[stopped]).await.unwrap()[0].unwrap();
    assert_eq!(checkpoint.offset, at, "no event is skipped");
    eventually("no other reason is reported", || async { tracker.health.reasons().len() == 1 }).await;
    tracker.expect_reason(&crate::tracker::fixture::part(stopped), "upgrade trackers first").await;
    tracker.stop().await;
}

/// Reads a task from the store.
pub async fn state_of(fixture: &Fixture, task: &str) -> Option<kafleet::model::record::TaskRecord> {
    let task = id(task);
    fixture.store.task_records(fixture.partition_of(task.root()), std::slice::from_ref(&task)).await.unwrap().remove(0)
}

/// Writes one finished task per partition and returns their ids.
pub async fn one_each(fixture: &Fixture, name: &str) -> Vec<String> {
    let mut roots = Vec::new();
    for partition in fixture.all() {
        let root = (0..).map(|n| format!("{name}-{n}")).find(|root| fixture.partition_of(root) == partition).unwrap();
        fixture.write(&[submitted(&root), succeeded(&root)]).await;
        roots.push(root);
    }
    roots
}
