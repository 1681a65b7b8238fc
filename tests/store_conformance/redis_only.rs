//! Faults that only Redis can have, on servers of the test's own.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::state::State;
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Index, Notice, PartitionWriter, Store, StoreError};
use kafleet_testkit::redis::{Server, free_port, patient};

use crate::store_conformance::fixture::*;

const SECRET: &str = "very-secret-word";

/// A server with its fixture; `None` if Redis tests are disabled.
pub async fn server(arguments: &[&str]) -> Option<(Server, Fixture)> {
    test_redis()?;
    let server = Server::start_with(arguments);
    let fixture = Fixture::over(patient(server.url()));
    Some((server, fixture))
}

fn impatient(url: &str) -> RedisOptions {
    let mut options = RedisOptions::new(url);
    options.connect_timeout = Duration::from_millis(300);
    options.response_timeout = Duration::from_millis(300);
    options.read_timeout = Duration::from_millis(600);
    options
}

/// A writer of a store with short deadlines, retried because a busy machine may miss them.
async fn opened(redis: &Redis) -> Box<dyn PartitionWriter> {
    eventually("a writer is opened", async || redis.open(0).await.map(|(writer, _)| writer)).await
}

#[tokio::test]
async fn cut_connection_closes_the_writer_and_the_next_continues() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&Changes::default(), None, checkpoint(1)).await.unwrap();
    let _: i64 = server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    let cut = writer.apply(&full_batch("a"), Some(checkpoint(1)), checkpoint(2)).await;
    assert!(matches!(cut, Err(StoreError::Unavailable(_))), "{cut:?}");
    assert!(is_unavailable(&writer.apply(&full_batch("a"), Some(checkpoint(1)), checkpoint(2)).await, "closed"));
    expect_untouched(&*fixture.store, "a").await;
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, Some(checkpoint(1)));
    writer.apply(&full_batch("a"), found, checkpoint(2)).await.unwrap();
}

#[tokio::test]
async fn flushall_is_detected() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&full_batch("a"), None, checkpoint(1)).await.unwrap();
    let _: String = server.call(&["FLUSHALL"]).unwrap();
    assert_eq!(
        writer.apply(&full_batch("b"), Some(checkpoint(1)), checkpoint(2)).await,
        Err(StoreError::Conflict { stored: None })
    );
}

#[tokio::test]
async fn wrong_password_is_reported_without_showing_it() {
    let Some((server, _)) = server(&["--requirepass", "right"]).await else { return };
    let options = RedisOptions::new(format!("redis://:{SECRET}@127.0.0.1:{}", server.port));
    assert!(!format!("{options:?}").contains(SECRET));
    let with_field = RedisOptions { password: Some(SECRET.into()), ..RedisOptions::new(server.url()) };
    assert!(!format!("{with_field:?}").contains(SECRET) && !format!("{with_field:?}").contains("right"));
    for options in [options, with_field] {
        let redis = Redis::connect(options).unwrap();
        let errors =
            [redis.check().await, redis.open(0).await.map(drop), redis.task_records(0, &[id("a")]).await.map(drop)];
        for error in errors {
            let Err(StoreError::Misconfigured(message)) = error else { panic!("{error:?}") };
            assert!(
                message.contains("rejects the user") && message.contains("hint: ") && !message.contains(SECRET),
                "{message}"
            );
        }
    }
    let right = RedisOptions {
        password: Some("right".into()),
        ..RedisOptions::new(format!("redis://127.0.0.1:{}", server.port))
    };
    assert_eq!(Redis::connect(right).unwrap().check().await, Ok(()));
}

#[tokio::test]
async fn calls_end_within_their_deadline() {
    if test_redis().is_none() {
        return;
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [free_port(), silent.local_addr().unwrap().port()] {
        let redis = Redis::connect(impatient(&format!("redis://:{SECRET}@127.0.0.1:{port}"))).unwrap();
        let start = Instant::now();
        let errors = [
            redis.open(0).await.map(drop),
            redis.task_records(0, &[id("a")]).await.map(drop),
            redis.page(0, &Index::Roots, None, 1).await.map(drop),
            redis.check().await,
        ];
        for error in errors {
            let Err(StoreError::Unavailable(message)) = error else { panic!("{error:?}") };
            assert!(message.contains(&format!("127.0.0.1:{port}")) && !message.contains(SECRET), "{message}");
        }
        // With production deadlines it would take more than 20 s.
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn silent_server_fails_the_batch_within_the_deadline() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let redis = Redis::connect(impatient(&server.url())).unwrap();
    let mut writer = opened(&redis).await;
    server.freeze();
    let start = Instant::now();
    let silent = writer.apply(&full_batch("a"), None, checkpoint(1)).await;
    assert!(matches!(silent, Err(StoreError::Unavailable(_))), "{silent:?}");
    assert!(is_unavailable(&redis.checkpoints(&[0]).await.map(drop), "gave up after 600ms"));
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    server.thaw();
    let is_back = || async { redis.checkpoints(&[0]).await.is_ok() };
    eventually("reads succeed again", is_back).await;
    // The batch may have been applied nevertheless, as the checkpoint shows.
    let (mut writer, found) = fixture.open(0).await;
    writer.apply(&full_batch("a"), found, checkpoint(2)).await.unwrap();
}

#[tokio::test]
async fn reads_resume_with_the_server() {
    let Some((mut server, _)) = server(&[]).await else { return };
    let redis = Redis::connect(impatient(&server.url())).unwrap();
    let is_there = || async { redis.checkpoints(&[0]).await == Ok(vec![None]) };
    eventually("reads work", is_there).await;
    server.kill();
    let away = redis.checkpoints(&[0]).await;
    assert!(
        matches!(&away, Err(StoreError::Unavailable(message)) if message.contains("gave up after 600ms")),
        "{away:?}"
    );
    server.restart();
    let is_back = || async { redis.checkpoints(&[0]).await.is_ok() };
    eventually("reads succeed again", is_back).await;
}

#[tokio::test]
async fn reconnected_listener_receives_a_gap() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let mut notices = fixture.store.notices().await.unwrap();
    let mut next = async || tokio::time::timeout(DEADLINE, notices.next()).await.expect("no notice came");
    assert_eq!(next().await, Some(Notice::Gap));
    let killed: i64 = server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    assert_eq!(killed, 1);
    assert_eq!(next().await, Some(Notice::Gap));
    let at = fixture.put(0, full_batch("a")).await;
    let types = Some(vec!["echo".into()]);
    assert_eq!(
        next().await,
        Some(Notice::Changed { partition: 0, offset: at.offset, ids: Some(vec![id("a")]), types })
    );
    drop(notices);
    let is_gone = || async {
        let listeners: String = server.call(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
        listeners.is_empty()
    };
    eventually("the connection ends with its stream", is_gone).await;
}

#[tokio::test]
async fn eviction_policy_is_rejected() {
    let Some((_server, fixture)) = server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await else {
        return;
    };
    let Err(StoreError::Misconfigured(message)) = fixture.store.check().await else { panic!("accepted") };
    assert!(
        message.contains("`allkeys-lru`") && message.contains("hint: set maxmemory-policy to noeviction"),
        "{message}"
    );
}

#[tokio::test]
async fn batch_without_memory_changes_nothing() {
    let Some((server, fixture)) = server(&["--maxmemory-policy", "noeviction"]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let refused = writer.apply(&full_batch("a"), None, checkpoint(1)).await;
    assert!(is_unavailable(&refused, "OOM"), "{refused:?}");
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    expect_untouched(&*fixture.store, "a").await;
    let (mut writer, found) = fixture.open(0).await;
    writer.apply(&full_batch("a"), found, checkpoint(1)).await.unwrap();
}

#[tokio::test]
async fn unreadable_values_are_named() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let _: String = server.call(&["SET", "kafleet:{p0}:checkpoint", "12 nonsense"]).unwrap();
    let _: String = server.call(&["SET", "kafleet:{p0}:t:a", "\u{1}"]).unwrap();
    let _: i64 = server.call(&["HSET", "kafleet:{p0}:counts", "nonsense", "1"]).unwrap();
    for (error, expected) in [
        (fixture.store.open(0).await.map(drop), ["`kafleet:{p0}:checkpoint`", "`12 nonsense`"]),
        (fixture.store.checkpoints(&[0]).await.map(drop), ["`kafleet:{p0}:checkpoint`", "`12 nonsense`"]),
        (
            fixture.store.task_records(0, &[id("a")]).await.map(drop),
            ["`a` in partition 0", "was written by another version"],
        ),
        (fixture.store.counts(&[0]).await.map(drop), ["`nonsense`", "counter"]),
    ] {
        let Err(StoreError::Invalid(message)) = error else { panic!("{error:?}") };
        assert!(expected.iter().all(|expected| message.contains(expected)), "{message}");
    }
}

#[tokio::test]
async fn partial_batch_stops_the_partition() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    let _: String = server.call(&["SET", "kafleet:{p0}:roots", "of another type"]).unwrap();
    let broken = writer.apply(&full_batch("a"), None, checkpoint(1)).await;
    assert!(matches!(&broken, Err(StoreError::Invalid(message)) if message.contains("WRONGTYPE")), "{broken:?}");
    let Err(StoreError::Invalid(message)) = fixture.store.open(0).await.map(drop) else { panic!("went on") };
    assert!(message.contains("`spoilt`") && message.contains("hint: check that `[redis]` and the prefix"), "{message}");
}

#[tokio::test]
async fn thousand_finished_tasks_cost_few_commands() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    let running = vec![("echo".into(), State::Running, 10_000)];
    writer.apply(&Changes { counts: running, ..Changes::default() }, None, checkpoint(0)).await.unwrap();
    let _: String = server.call(&["CONFIG", "RESETSTAT"]).unwrap();
    let mut at = Some(checkpoint(0));
    for batch in 1..=10 {
        let ids: Vec<_> = (0..1_000).map(|n| format!("p:{batch}-{n}")).collect();
        let mut changes = adds(&Index::Children(id("p")), ids.iter().map(|id| entry(batch, id)));
        changes.task_records = ids.iter().map(|id| record(id, 1)).collect();
        changes.counts = vec![("echo".into(), State::Running, -1_000), ("echo".into(), State::Succeeded, 1_000)];
        writer.apply(&changes, at, checkpoint(batch)).await.unwrap();
        at = Some(checkpoint(batch));
    }
    let stats: String = server.call(&["INFO", "commandstats"]).unwrap();
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    let ours = stats.lines().filter(|line| !line.contains("|") && !line.contains("hello") && !line.contains("client"));
    let total: u64 = ours.filter_map(calls).sum();
    assert!(total <= 130, "{total} commands for 10 batches:\n{stats}");
}

#[tokio::test]
async fn zero_counter_is_removed() {
    let Some((server, fixture)) = server(&[]).await else { return };
    let (mut writer, _) = fixture.open(0).await;
    let count = |change| Changes { counts: vec![("label".into(), State::Queued, change)], ..Changes::default() };
    writer.apply(&count(1), None, checkpoint(1)).await.unwrap();
    writer.apply(&count(-1), Some(checkpoint(1)), checkpoint(2)).await.unwrap();
    writer.apply(&Changes::default(), Some(checkpoint(2)), checkpoint(3)).await.unwrap();
    assert_eq!(server.call::<i64>(&["EXISTS", "kafleet:{p0}:counts"]).unwrap(), 0);
}

#[tokio::test]
async fn sentinels_name_the_master() {
    let Some((master, _)) = server(&["--requirepass", SECRET]).await else { return };
    let sentinel = Server::sentinel(&format!("sentinel monitor main 127.0.0.1 {} 1\n", master.port));
    let fixture = Fixture::over(patient(format!("redis-sentinel://:{SECRET}@127.0.0.1:{}/main", sentinel.port)));
    assert_eq!(fixture.store.check().await, Ok(()));
    fixture.put(0, full_batch("a")).await;
    assert_eq!(fixture.store.task_records(0, &[id("a")]).await.unwrap(), [Some(task_record(1))]);
    let unknown = Redis::connect(impatient(&format!("redis-sentinel://127.0.0.1:{}/other", sentinel.port))).unwrap();
    let is_told = || async { is_unavailable(&unknown.check().await, "entinel") };
    eventually("the sentinels know no such master", is_told).await;
}

/// A Redis that stops in the middle of writing a batch keeps its first part, and reads it as the beginning of the
/// next batch at the second start.
#[tokio::test]
async fn torn_batch_is_detected() {
    // Cut within its last command, and within the EXEC behind it.
    for cut in [40, 7] {
        let Some((mut server, fixture)) = server(&["--appendonly", "yes", "--appendfsync", "always"]).await else {
            return;
        };
        fixture.put(0, full_batch("a")).await;
        fixture.put(0, full_batch("b")).await;
        let (_, folder): (String, String) = server.call(&["CONFIG", "GET", "dir"]).unwrap();
        server.kill();
        let file = std::path::Path::new(&folder).join("appendonlydir/appendonly.aof.1.incr.aof");
        let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        file.set_len(file.metadata().unwrap().len() - cut).unwrap();
        server.restart();
        assert_eq!(fixture.open(0).await.1, Some(checkpoint(1)), "the torn batch is removed");
        fixture.put(0, full_batch("b")).await;
        fixture.put(1, full_batch("c")).await;
        server.kill();
        server.restart();
        let message = fixture.store.open(0).await.map(drop);
        assert!(
            matches!(&message, Err(StoreError::Emptied(reason)) if reason == "only a part of a batch was applied"),
            "{message:?}"
        );
        let left: Vec<String> = server.call(&["KEYS", "kafleet:{p0}:*"]).unwrap();
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(fixture.open(0).await.1, None, "the partition starts from scratch");
        fixture.put(0, full_batch("a")).await;
        assert_eq!(fixture.open(0).await.1, Some(checkpoint(1)));
        assert_eq!(fixture.open(1).await.1, Some(checkpoint(1)), "other partitions are unchanged");
        assert_eq!(fixture.store.counts(&[0]).await.unwrap()[0].count, 1);
    }
}
