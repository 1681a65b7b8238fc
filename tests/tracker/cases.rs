//! What must hold on any broker and store.

use std::future::Future;
use std::time::Instant;

use kafleet::config::TrackerConfig;

use crate::ground::{DEADLINE, Ground, until};
use crate::oracle::Oracle;
use crate::story::{id, story, submitted, succeeded};

/// Asserts that everything in the log is folded, once. A tracker may write events of its own meanwhile.
pub async fn agrees(ground: &Ground) -> Oracle {
    let end = Instant::now() + DEADLINE;
    loop {
        ground.folded().await;
        let oracle = Oracle::of(ground.broker.clone(), &ground.names, ground.partitions).await;
        if let Some(oracle) = oracle.settles(&*ground.store, async |ends| ground.is_at(ends).await).await {
            return oracle;
        }
        assert!(Instant::now() < end, "the log comes to rest within {DEADLINE:?}");
    }
}

/// Events in small batches with a cache that forgets; a tracker that comes late; events twice and out of order.
pub async fn everything_is_folded(ground: Ground, trees: usize) {
    ground.write(&story(1, trees)).await;
    let small = TrackerConfig { batch_events: 7, cache_records: 50, queue_events: 100, ..TrackerConfig::default() };
    let tracker = ground.tracker_with(small).await;
    ground.write(&story(2, trees)).await;
    let oracle = agrees(&ground).await;
    assert!(oracle.tasks() > trees * 2 && oracle.events > oracle.tasks(), "{} tasks", oracle.tasks());
    tracker.is_well().await;
    tracker.stop().await;
}

/// Partitions go from tracker to tracker while events come in.
pub async fn trackers_come_and_go(ground: Ground, trees: usize) {
    let first = ground.tracker().await;
    let writing = tokio::spawn({
        let ground = ground.clone();
        async move {
            for seed in 0..6 {
                ground.write(&story(seed, trees)).await;
            }
        }
    });
    until("the first tracker folds", || async { ground.store.fences(&[0]).await.is_ok_and(|fences| fences[0].is_some()) }).await;
    let second = ground.tracker().await;
    until("the second has partitions", || async { second.reason("tracker").is_none() }).await;
    first.stop().await;
    let third = ground.tracker().await;
    until("the third has partitions", || async { third.reason("tracker").is_none() }).await;
    writing.await.unwrap();
    agrees(&ground).await;
    third.stop().await;
    // What is left belongs to the second alone.
    ground.write(&story(9, trees)).await;
    agrees(&ground).await;
    second.stop().await;
}

/// Something happens to the store, several times while events come in and once when none do.
pub async fn the_store_loses_writes<F: Future<Output = ()>>(ground: Ground, trees: usize, mut happen: impl FnMut(u32) -> F) {
    let tracker = ground.tracker().await;
    for round in 0..4 {
        let writing = tokio::spawn({
            let ground = ground.clone();
            async move { ground.write(&story(u64::from(round), trees)).await }
        });
        until("something is folded", || async {
            let fences = ground.store.fences(&ground.all()).await;
            fences.is_ok_and(|fences| fences.iter().flatten().count() > 0)
        })
        .await;
        happen(round).await;
        writing.await.unwrap();
    }
    agrees(&ground).await;
    happen(99).await;
    // No event comes any more that would show what has happened.
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}

/// An event of a newer build stops its partition where it lies; the others go on.
pub async fn a_newer_event_stops_its_partition(ground: Ground) {
    let tracker = ground.tracker().await;
    let stopped = 1;
    ground.write(&story(3, 100)).await;
    let newer = br#"{"v":2,"kind":"paused_by_moonlight","id":"a new:shape of id","at":"some other way"}"#;
    let at = ground.write_raw(stopped, Some(newer)).await;
    ground.write(&story(4, 100)).await;
    tracker.says(&crate::ground::part(stopped), "upgrade trackers first").await;
    assert!(tracker.reason(&crate::ground::part(stopped)).unwrap().contains("version 2"));
    let mut ends: Vec<i64> = ground.all().into_iter().map(|partition| ground.end(partition)).collect();
    assert!(ends[stopped as usize] > at + 1, "there are events behind it");
    ends[stopped as usize] = at;
    ground.folded_to(&ends).await;
    let fence = ground.store.fences(&[stopped]).await.unwrap()[0].unwrap();
    assert_eq!(fence.offset, at, "nothing is skipped");
    until("nothing else is wrong", || async { tracker.health.reasons().len() == 1 }).await;
    tracker.says(&crate::ground::part(stopped), "upgrade trackers first").await;
    tracker.stop().await;
}

/// A task seen through the store.
pub async fn state_of(ground: &Ground, task: &str) -> Option<kafleet::model::record::TaskRecord> {
    let task = id(task);
    ground.store.nodes(ground.partition_of(task.root()), std::slice::from_ref(&task)).await.unwrap().remove(0)
}

/// A small log: one task done in each partition, and its name.
pub async fn one_each(ground: &Ground, name: &str) -> Vec<String> {
    let mut roots = Vec::new();
    for partition in ground.all() {
        let root = (0..).map(|n| format!("{name}-{n}")).find(|root| ground.partition_of(root) == partition).unwrap();
        ground.write(&[submitted(&root), succeeded(&root)]).await;
        roots.push(root);
    }
    roots
}
