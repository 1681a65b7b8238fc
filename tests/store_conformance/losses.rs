//! Keys that Redis has lost or other clients have removed, and a Redis that is full.

use kafleet::model::error_fingerprint::Fingerprint;
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::state::State;
use kafleet::model::statistics::aggregate::{Aggregate, AggregateKey, Level};
use kafleet::model::statistics::{ListedSeries, Overview};
use kafleet::store::{Index, StoreError};
use kafleet_testkit::redis::Server;

use crate::store_conformance::fixture::*;
use crate::store_conformance::redis_only::server;

fn is_damaged(result: &Result<(), StoreError>, expected: &str) -> bool {
    matches!(result, Err(StoreError::Damaged(text)) if text.contains(expected))
}

/// The next open empties the partition and returns the reason; the one after it starts from scratch.
async fn expect_emptied(server: &Server, fixture: &Fixture, reason: &str) {
    let opened = fixture.store.open(0).await.map(drop);
    assert!(matches!(&opened, Err(StoreError::Emptied(text)) if text.contains(reason)), "{opened:?}");
    let left: Vec<String> = server.call(&["KEYS", "kafleet:{p0}:*"]).unwrap();
    assert_eq!(left, Vec::<String>::new());
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, None);
    assert_eq!((writer.check().await, writer.verify_totals().await), (Ok(()), Ok(None)));
}

fn evicted(server: &Server) -> u64 {
    let stats: String = server.call(&["INFO", "stats"]).unwrap();
    stats.lines().find_map(|line| line.strip_prefix("evicted_keys:")).unwrap().trim().parse().unwrap()
}

/// Makes Redis evict a foreign key, then restores its configuration.
fn evict(server: &Server) {
    let before = evicted(server);
    let _: String = server.call(&["SET", "another:key", "", "EX", "3600"]).unwrap();
    let _: String = server.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).unwrap();
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    while evicted(server) == before {
        let _: redis::RedisResult<String> = server.call(&["SET", "yet:another:key", ""]);
    }
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    let _: String = server.call(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
}

#[tokio::test]
async fn evictions_are_detected_by_the_writer() {
    let Some((server, fixture)) = server(&[]).await else { return };
    evict(&server);
    fixture.put(0, full_batch("a")).await;
    let (mut writer, _) = fixture.open(0).await;
    assert_eq!(writer.check().await, Ok(()), "earlier evictions do not affect this partition");
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    let _: String = server.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).unwrap();
    let checked = writer.check().await;
    assert!(
        matches!(&checked, Err(StoreError::Misconfigured(message)) if message.contains("`volatile-ttl`")),
        "{checked:?}"
    );
    let opened = fixture.store.open(0).await.map(drop);
    assert!(
        matches!(&opened, Err(StoreError::Misconfigured(message)) if message.contains("`volatile-ttl`")),
        "{opened:?}"
    );
}

#[tokio::test]
async fn evictions_without_a_writer_are_detected_on_open() {
    let Some((server, fixture)) = server(&[]).await else { return };
    fixture.put(0, full_batch("a")).await;
    let (mut writer, _) = fixture.open(0).await;
    evict(&server);
    let checked = writer.check().await;
    assert!(is_damaged(&checked, "redis has evicted 1 keys"), "{checked:?}");
    expect_emptied(&server, &fixture, "redis has evicted 1 keys").await;
    fixture.put(0, full_batch("a")).await;
    evict(&server);
    let opened = fixture.store.open(0).await.map(drop);
    assert!(is_damaged(&opened, "redis has evicted 1 keys"), "{opened:?}");
    expect_emptied(&server, &fixture, "redis has evicted 1 keys").await;
}

#[tokio::test]
async fn deleted_keys_are_detected_by_sizes() {
    for (key, expected) in [
        ("counts", "the counters add up to 0 tasks instead of 2"),
        ("roots", "`kafleet:{p0}:roots` has 0 entries instead of 1"),
        ("due", "`kafleet:{p0}:due` has 0 entries instead of 1"),
        ("m:echo:failed", "the index of `echo/failed` has 0 entries instead of 1"),
        ("failed:echo:0000000000000007", "`kafleet:{p0}:failed:echo:0000000000000007` has 0 entries instead of 1"),
        ("failed:echo:0000000000000000", "`kafleet:{p0}:failed:echo:0000000000000000` has 0 entries instead of 1"),
        ("fingerprints:echo", "the errors add up to 0 failed tasks instead of 1"),
        ("kinds:echo", "the errors add up to 0 failed tasks instead of 1"),
        ("statistics:echo", "`kafleet:{p0}:statistics:echo` is missing or has a TTL"),
        ("batches", "has 1 entries instead of 0"),
    ] {
        let Some((server, fixture)) = server(&[]).await else { return };
        let mut changes = full_batch("a");
        changes.added.push((Index::Timers, entry(9, "a")));
        changes.added.push((Index::Members { task_type: "echo".into(), state: State::Failed }, entry(9, "b")));
        changes.counts.push(("echo".into(), State::Failed, 1));
        for error in [Fingerprint(7), Fingerprint(0)] {
            changes.added.push((Index::Failed { task_type: "echo".into(), error }, entry(9, "b")));
        }
        changes.errors.push(("echo".into(), Fingerprint(7), 1));
        let listed = ListedSeries { name: "echo".into(), day: 1 };
        let overview = Overview { series: vec![listed], ..Overview::new(0) };
        let day = AggregateKey { level: Level::Day, number: 1 };
        changes.statistics.overview = Some(overview.encode().unwrap());
        changes.statistics.aggregates = vec![("echo".into(), day, Some(Aggregate::default().encode().unwrap()))];
        fixture.put(0, changes).await;
        let (mut writer, _) = fixture.open(0).await;
        assert_eq!(writer.verify_totals().await, Ok(None));
        assert_eq!(server.call::<i64>(&["DEL", &format!("kafleet:{{p0}}:{key}")]).unwrap(), 1);
        let fault = writer.verify_totals().await.unwrap();
        assert!(fault.as_ref().is_some_and(|fault| fault.contains(expected)), "{key}: {fault:?}");
        writer.mark_damaged(&fault.unwrap()).await.unwrap();
        expect_emptied(&server, &fixture, expected).await;
    }
}

#[tokio::test]
async fn missing_checkpoint_or_batch_counts_are_detected_on_open() {
    for (key, expected) in
        [("checkpoint", "its checkpoint is missing"), ("batches", "the counts of its batches are missing")]
    {
        let Some((server, fixture)) = server(&[]).await else { return };
        fixture.put(0, full_batch("a")).await;
        assert_eq!(server.call::<i64>(&["DEL", &format!("kafleet:{{p0}}:{key}")]).unwrap(), 1);
        let opened = fixture.store.open(0).await.map(drop);
        assert!(is_damaged(&opened, expected), "{key}: {opened:?}");
        expect_emptied(&server, &fixture, expected).await;
    }
}

#[tokio::test]
async fn remaining_keys_without_checkpoint_and_batch_counts_are_removed_on_open() {
    let Some((server, fixture)) = server(&[]).await else { return };
    fixture.put(0, full_batch("a")).await;
    let _: i64 = server.call(&["DEL", "kafleet:{p0}:checkpoint", "kafleet:{p0}:batches"]).unwrap();
    let opened = fixture.store.open(0).await.map(drop);
    assert!(is_damaged(&opened, "other keys exist"), "{opened:?}");
    expect_emptied(&server, &fixture, "other keys exist").await;
}

#[tokio::test]
async fn negative_counter_is_detected_by_the_batch() {
    let Some((server, fixture)) = server(&[]).await else { return };
    fixture.put(0, full_batch("a")).await;
    let (mut writer, found) = fixture.open(0).await;
    let _: i64 = server.call(&["DEL", "kafleet:{p0}:counts"]).unwrap();
    let ended = vec![("echo".into(), State::Queued, -1), ("echo".into(), State::Succeeded, 1)];
    let changes = Changes { counts: ended, ..Changes::default() };
    let applied = writer.apply(&changes, found, checkpoint(2)).await;
    assert!(is_damaged(&applied, "`echo/queued` is negative"), "{applied:?}");
    expect_emptied(&server, &fixture, "`echo/queued` is negative").await;
}

#[tokio::test]
async fn integrity_check_finds_missing_and_expiring_records() {
    let Some((server, fixture)) = server(&[]).await else { return };
    fixture.put(0, full_batch("a")).await;
    fixture.put(0, Changes { task_records: vec![record("b", 1)], ..adds(&Index::Roots, [entry(6, "b")]) }).await;
    let (mut writer, _) = fixture.open(0).await;
    let first = writer.indexed_tasks(&Index::Roots, None, 1).await.unwrap();
    assert!(first.more && first.tasks.len() == 1 && first.tasks[0].entry == entry(5, "a"), "{first:?}");
    let rest = writer.indexed_tasks(&Index::Roots, Some(&first.tasks[0].entry), 10).await.unwrap();
    assert!(!rest.more && rest.tasks.len() == 1 && rest.tasks[0].fault().is_none(), "{rest:?}");
    for (words, expected) in [
        (&["PEXPIRE", "kafleet:{p0}:t:b", "3600000"][..], "has a TTL"),
        (&["DEL", "kafleet:{p0}:t:b"], "the record of `b` is missing"),
    ] {
        let _: i64 = server.call(words).unwrap();
        let page = writer.indexed_tasks(&Index::Roots, None, 10).await.unwrap();
        let fault = page.tasks[1].fault();
        assert!(fault.as_ref().is_some_and(|fault| fault.contains(expected)), "{fault:?}");
    }
}

#[tokio::test]
async fn partition_of_another_writer_is_not_marked_damaged() {
    let Some((_server, fixture)) = server(&[]).await else { return };
    fixture.put(0, full_batch("a")).await;
    let (mut zombie, _) = fixture.open(0).await;
    let to = fixture.put(0, full_batch("b")).await;
    let refused = zombie.mark_damaged("").await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    assert_eq!(fixture.open(0).await.1, Some(to));
}

#[tokio::test]
async fn full_server_is_detected_without_a_batch() {
    let Some((server, fixture)) = server(&["--maxmemory-policy", "noeviction"]).await else { return };
    fixture.put(0, full_batch("a")).await;
    let (mut writer, _) = fixture.open(0).await;
    assert_eq!(fixture.store.memory().await.unwrap(), []);
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let checked = writer.check().await;
    assert!(
        is_unavailable(&checked, "out of memory") && is_unavailable(&checked, "hint: raise its `maxmemory`"),
        "{checked:?}"
    );
    let memory = fixture.store.memory().await.unwrap();
    assert!(memory.len() == 1 && memory[0].limit_bytes == 1 && memory[0].used_bytes > 1, "{memory:?}");
}
