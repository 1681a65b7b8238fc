//! A cluster, and a master behind sentinels: the whole suite, and behaviour while slots and masters move.

use futures::StreamExt;
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Index, Notice, Reservation, Stage, Store, StoreError};
use kafleet_testkit::redis::{Cluster, Sentinels, patient};

use crate::store_conformance::fixture::*;

fn options(url: String, case: &str) -> RedisOptions {
    RedisOptions { prefix: format!("test-{}", &case[..case.len().min(40)]), ..patient(url) }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_passes_every_case() {
    if test_redis().is_none() {
        return;
    }
    let cluster = Cluster::start();
    let nodes = || cluster.servers.iter().map(kafleet_testkit::redis::Server::url).collect();
    crate::store_conformance::every_case(|case| Fixture::over_nodes(options(cluster.url(), case), nodes())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn master_behind_sentinels_passes_every_case() {
    if test_redis().is_none() {
        return;
    }
    let sentinels = Sentinels::start();
    crate::store_conformance::every_case(|case| {
        Fixture::over_nodes(options(sentinels.url(), case), vec![sentinels.master.url()])
    })
    .await;
}

#[tokio::test]
async fn cluster_serves_every_partition() {
    if test_redis().is_none() {
        return;
    }
    let cluster = Cluster::start();
    let fixture = Fixture::over(patient(cluster.url()));
    assert_eq!(fixture.store.check().await, Ok(()));
    let mut notices = fixture.store.notices().await.unwrap();
    assert_eq!(notices.next().await, Some(Notice::Gap));
    let partitions: Vec<u32> = (0..16).collect();
    for &partition in &partitions {
        let (mut writer, found) = fixture.open(partition).await;
        writer.apply(&full_batch("a"), found, checkpoint(1)).await.unwrap();
        assert_eq!(writer.task_records(&[id("a")]).await.unwrap(), [Some(task_record(1))]);
        writer.apply(&full_batch("b"), Some(checkpoint(1)), checkpoint(2)).await.unwrap();
        assert_eq!(
            fixture.store.task_records(partition, &[id("a"), id("b")]).await.unwrap(),
            [Some(task_record(1)), Some(task_record(1))]
        );
        let first = fixture.store.page(partition, &Index::Roots, None, 1).await.unwrap();
        assert_eq!(ids(&fixture.store.page(partition, &Index::Roots, first.last(), 9).await.unwrap()), ["a"]);
        assert_eq!(fixture.store.log_lines(partition, &id("a"), 0, 9).await.unwrap().lines, ["a line"]);
        assert_eq!(fixture.store.outbox(partition, 9).await.unwrap().checkpoint, Some(checkpoint(2)));
        assert_eq!(fixture.store.deferred(partition, &[id("a"), id("b")]).await.unwrap(), [None, None]);
        let mark = Reservation { hash: "h".into(), stage: Stage::InDoubt };
        assert_eq!(fixture.store.reserve(partition, &id("a"), 1, &mark).await.unwrap(), None);
    }
    assert_eq!(fixture.store.checkpoints(&partitions).await.unwrap(), vec![Some(checkpoint(2)); 16]);
    assert_eq!(fixture.store.counts(&partitions).await.unwrap()[0].count, 32);
    for _ in 0..32 {
        let notice = tokio::time::timeout(DEADLINE, notices.next()).await.expect("no notice arrived");
        assert!(matches!(notice, Some(Notice::Changed { .. })), "{notice:?}");
    }
    let lone = Redis::connect(RedisOptions::new(cluster.servers[0].url())).unwrap();
    let Err(StoreError::Misconfigured(notice)) = lone.check().await else { panic!("accepted") };
    assert!(notice.contains("redis-cluster://"), "{notice}");
}

/// A batch is atomic, so it waits until its slot is migrated; reads do not wait.
#[tokio::test]
async fn slot_migrates_under_a_writer() {
    if test_redis().is_none() {
        return;
    }
    let cluster = Cluster::start();
    let fixture = Fixture::over(patient(cluster.url()));
    let all: Vec<String> = (0..40).map(|n| format!("a{n}")).collect();
    for text in &all {
        fixture.put(0, full_batch(text)).await;
    }
    let (mut writer, found) = fixture.open(0).await;
    let moving = cluster.begin_move(0);
    for _ in 0..8 {
        moving.keys(12);
        everything_is_read(&*fixture.store, &all).await;
    }
    let refused = writer.apply(&full_batch("b"), found, checkpoint(100)).await;
    assert!(is_unavailable(&refused, "slot is being migrated"), "{refused:?}");
    moving.keys(1_000);
    let refused = fixture.store.open(0).await.map(drop);
    assert!(is_unavailable(&refused, "slot is being migrated"), "{refused:?}");
    moving.end();
    everything_is_read(&*fixture.store, &all).await;
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, Some(checkpoint(40)), "nothing of the refused batch is stored");
    writer.apply(&full_batch("b"), found, checkpoint(41)).await.unwrap();
    // Again while a writer is open and idle.
    cluster.begin_move(0).end();
    let moved = writer.apply(&full_batch("c"), Some(checkpoint(41)), checkpoint(42)).await;
    assert!(matches!(moved, Err(StoreError::Unavailable(_) | StoreError::Conflict { .. })), "{moved:?}");
    assert_eq!(fixture.open(0).await.1, Some(checkpoint(41)));
}

async fn everything_is_read(store: &dyn Store, all: &[String]) {
    let mut ids: Vec<_> = all.iter().map(|text| id(text)).collect();
    ids.push(id("nobody"));
    let nodes = store.task_records(0, &ids).await.unwrap();
    assert!(nodes[..all.len()].iter().all(|found| *found == Some(task_record(1))) && nodes[all.len()].is_none());
    let page = store.page(0, &Index::Roots, None, 25).await.unwrap();
    let rest = store.page(0, &Index::Roots, page.last(), 25).await.unwrap();
    assert_eq!(page.len() + rest.len(), all.len());
    for text in all {
        assert_eq!(store.log_lines(0, &id(text), 0, 9).await.unwrap().lines, ["a line"]);
    }
    assert_eq!(store.deferred(0, &ids).await.unwrap().iter().flatten().count(), 0);
    assert_eq!(store.counts(&[0, 1, 2]).await.unwrap()[0].count, all.len() as u64);
    let mark = Reservation { hash: "h".into(), stage: Stage::InDoubt };
    let held = store.reserve(0, &id("reserved"), 1, &mark).await.unwrap();
    assert!(held.is_none_or(|held| held == mark));
}

/// Readers abandon a deposed master that still answers.
#[tokio::test]
async fn readers_follow_the_sentinels() {
    if test_redis().is_none() {
        return;
    }
    let sentinels = Sentinels::start();
    let fixture = Fixture::over(RedisOptions::new(sentinels.url()));
    fixture.put(0, full_batch("a")).await;
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [Some(checkpoint(1))]);
    sentinels.depose();
    let old: String = sentinels.master.call(&["INFO", "replication"]).unwrap();
    assert!(old.contains("role:master"), "the old master still considers itself the master");
    let (mut writer, found) = fixture.open(0).await;
    writer.apply(&full_batch("b"), found, checkpoint(2)).await.unwrap();
    let is_seen = || async {
        fixture.store.checkpoints(&[0]).await.is_ok_and(|checkpoints| checkpoints == [Some(checkpoint(2))])
    };
    eventually("readers see the contents of the new master", is_seen).await;
    let stale: String = sentinels.master.call(&["GET", "kafleet:{p0}:checkpoint"]).unwrap();
    assert!(stale.starts_with("1 "), "{stale}");
}
