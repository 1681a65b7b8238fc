//! Keys that are gone from the store: evicted, expired, or deleted by hand. The tracker notices, says so, and folds anew.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kafleet::config::TrackerConfig;
use kafleet::model::units::duration::Millis;

use crate::cases::agrees;
use crate::ground::{Ground, Tracker, part, until};
use crate::redis::Server;
use crate::shaky::{ANY, ShakyBroker};
use crate::story::story;
use crate::{memory, services};

const TREES: usize = 300;

fn watchful() -> TrackerConfig {
    TrackerConfig { audit_interval: Millis(100), ..TrackerConfig::default() }
}

fn losses(ground: &Ground, tracker: &Tracker) -> u64 {
    let of = |partition: u32| tracker.metrics.tracker.store_losses.with_label_values(&[&partition.to_string()]).get();
    ground.all().into_iter().map(of).sum()
}

/// Waits until a loss is noticed, and for the store to hold all tasks again.
async fn heals(ground: &Ground, tracker: &Tracker, what: &str, before: u64) {
    until(&format!("the loss is noticed: {what}"), || async { losses(ground, tracker) > before }).await;
    agrees(ground).await;
    tracker.is_well().await;
}

/// Folds a story, and returns what folded it.
async fn folded(ground: &Ground) -> Tracker {
    ground.write(&story(7, TREES)).await;
    let tracker = ground.tracker_with(watchful()).await;
    agrees(ground).await;
    tracker.is_well().await;
    assert_eq!(losses(ground, &tracker), 0);
    tracker
}

fn evicted(server: &Server) -> u64 {
    let stats: String = server.call(&["INFO", "stats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    line.unwrap().trim().parse().unwrap()
}

fn configure(server: &Server, policy: &str, maxmemory: u64) {
    let _: String = server.call(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
    let _: String = server.call(&["CONFIG", "SET", "maxmemory", &maxmemory.to_string()]).unwrap();
}

/// Has Redis drop keys for lack of memory.
fn evict(server: &Server) {
    let facts: String = server.call(&["INFO", "memory"]).unwrap();
    let used = facts.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse::<u64>().unwrap();
    let before = evicted(server);
    configure(server, "allkeys-random", used.saturating_sub(100_000));
    while evicted(server) == before {
        let _: redis::RedisResult<String> = server.call(&["SET", "another:key", "of somebody else"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_keys_are_folded_anew() {
    let Some((ground, server)) = services::ground(2) else { return };
    let tracker = folded(&ground).await;
    evict(&server);
    for partition in ground.all() {
        tracker.says(&part(partition), "maxmemory-policy `allkeys-random`").await;
    }
    configure(&server, "noeviction", 0);
    heals(&ground, &tracker, "evicted", 0).await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_while_no_tracker_runs_are_noticed() {
    let Some((ground, server)) = services::ground(2) else { return };
    folded(&ground).await.stop().await;
    evict(&server);
    configure(&server, "noeviction", 0);
    let tracker = ground.tracker_with(watchful()).await;
    heals(&ground, &tracker, "evicted", 0).await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_expiring_keys_are_folded_anew() {
    let Some((ground, server)) = services::ground(2) else { return };
    let tracker = folded(&ground).await;
    for (kind, words) in [
        ("t:*:*", &["DEL"][..]),
        ("t:*", &["DEL"]),
        ("c:*", &["DEL"]),
        ("m:*", &["DEL"]),
        ("n", &["DEL"]),
        ("roots", &["DEL"]),
        ("b", &["DEL"]),
        ("fence", &["DEL"]),
        ("t:*", &["PEXPIRE", "3600000"]),
        ("t:*", &["PEXPIRE", "1"]),
    ] {
        let before = losses(&ground, &tracker);
        let mut keys: Vec<String> = server.call(&["KEYS", &format!("kafleet:{{p1}}:{kind}")]).unwrap();
        keys.sort();
        let key = keys.first().unwrap_or_else(|| panic!("no {kind}"));
        let command: Vec<&str> = [&words[..1], &[key], &words[1..]].concat();
        // A record that a batch writes again before anybody looks is whole again: it is taken away once more then.
        until(&format!("a loss is noticed: {command:?}"), || async {
            let _: i64 = server.call(&command).unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
            losses(&ground, &tracker) > before
        })
        .await;
        heals(&ground, &tracker, key, before).await;
    }
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_redis_is_reported_by_an_idle_tracker() {
    let Some((ground, server)) = services::ground(1) else { return };
    let tracker = folded(&ground).await;
    configure(&server, "noeviction", 1);
    tracker.says(&part(0), "out of memory").await;
    configure(&server, "noeviction", 0);
    tracker.is_well().await;
    assert_eq!(losses(&ground, &tracker), 0);
    tracker.stop().await;
}

/// Every record is missed in turn, wherever it stands in its tree. Until all is folded again the tracker is not ready.
#[tokio::test(flavor = "multi_thread")]
async fn lost_records_are_found_by_the_audit() {
    let (ground, memory) = memory::ground(1);
    ground.write(&story(7, 40)).await;
    let tracker = ground.tracker_with(TrackerConfig { batch_events: 1, ..watchful() }).await;
    let oracle = agrees(&ground).await;
    tracker.is_well().await;
    let (health, heard) = (tracker.health.clone(), Arc::new(Mutex::new(BTreeSet::new())));
    let listening = tokio::spawn({
        let heard = heard.clone();
        async move {
            loop {
                heard.lock().unwrap().extend(health.reasons().into_iter().map(|(_, reason)| reason));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    for (id, _) in oracle.nodes[0].iter().step_by(7) {
        let before = losses(&ground, &tracker);
        memory.remove_record(0, id);
        heals(&ground, &tracker, id.as_str(), before).await;
    }
    listening.abort();
    let heard = heard.lock().unwrap().clone();
    assert!(heard.iter().any(|reason| reason.contains("is missing") && reason.contains("folded again")), "{heard:?}");
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_topic_that_forgets_is_not_folded() {
    let (ground, _) = memory::ground(1);
    let ground = Ground { topic_check: Millis(50), ..ground };
    ground.write(&story(7, 20)).await;
    for (setting, forgets, fits) in [("cleanup.policy", "compact", "delete"), ("retention.ms", "60000", "-1")] {
        ground.configure(setting, forgets);
        let tracker = ground.tracker().await;
        tracker.says(&part(0), setting).await;
        assert_eq!(ground.store.fences(&[0]).await.unwrap(), [None], "nothing is folded");
        ground.configure(setting, fits);
        // What waits for the topic looks again every 10 s.
        agrees(&ground).await;
        tracker.is_well().await;
        ground.configure(setting, forgets);
        tracker.says(&part(0), setting).await;
        let fence = ground.store.fences(&[0]).await.unwrap();
        ground.write(&story(8, 5)).await;
        tracker.says("tracker's topics", "kafleet topics apply").await;
        assert_eq!(ground.store.fences(&[0]).await.unwrap(), fence, "nothing more is folded");
        ground.configure(setting, fits);
        agrees(&ground).await;
        tracker.is_well().await;
        tracker.stop().await;
        ground.store.open(0).await.unwrap().0.condemn().await.unwrap();
    }
}

/// A tracker that goes on with a fold that another one has begun anew is ready where that one would have been.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_tracker_is_not_ready_before_a_lost_partition_is_complete() {
    let (plain, memory) = memory::ground(1);
    let (broker, tricks) = ShakyBroker::new(plain.broker.clone());
    let ground = plain.with(broker, plain.store.clone());
    let tracker = folded(&ground).await;
    let oracle = agrees(&ground).await;
    let end = ground.end(0);
    tricks.records.store(100, SeqCst);
    memory.remove_record(0, &oracle.nodes[0][0].0);
    until("the loss is noticed", || async { losses(&ground, &tracker) > 0 }).await;
    let place = || async { ground.store.fences(&[0]).await.unwrap()[0].map_or(0, |fence| fence.offset) };
    until("a part is folded anew", || async { (1..end).contains(&place().await) }).await;
    tracker.stop().await;

    tricks.records.store(0, SeqCst);
    let at = place().await;
    assert!(at < end, "{at} of {end}");
    let tracker = ground.tracker_with(watchful()).await;
    tracker.says(&part(0), &format!("at offset {at} of ")).await;
    tricks.records.store(ANY, SeqCst);
    agrees(&ground).await;
    tracker.is_well().await;
    tracker.stop().await;
}
