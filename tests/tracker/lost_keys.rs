//! Lost keys of the store: evicted, expired or deleted. The tracker detects and reports them and folds the partition
//! again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kafleet::config::TrackerConfig;
use kafleet::model::units::duration::Millis;
use kafleet_testkit::faults::polls_of_groups;
use kafleet_testkit::redis::Server;

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::event_log;
use crate::tracker::fixture::{Fixture, Tracker, eventually, part};
use crate::tracker::{memory, services};

const TREES: usize = 300;

fn frequent_integrity_checks() -> TrackerConfig {
    TrackerConfig { integrity_check_interval: Millis(100), ..TrackerConfig::default() }
}

/// Losses detected so far in all partitions.
fn losses(fixture: &Fixture, tracker: &Tracker) -> u64 {
    let of = |partition: u32| tracker.metrics.tracker.store_losses.with_label_values(&[&partition.to_string()]).get();
    fixture.all().into_iter().map(of).sum()
}

/// Waits until more than `before` losses are detected and the store contains all tasks again.
async fn expect_recovery(fixture: &Fixture, tracker: &Tracker, subject: &str, before: u64) {
    eventually(&format!("the loss is detected: {subject}"), || async { losses(fixture, tracker) > before }).await;
    expect_agreement(fixture).await;
    tracker.expect_ready().await;
}

/// Starts a tracker on a generated log and returns it when the log is folded.
async fn folded(fixture: &Fixture) -> Tracker {
    fixture.write(&event_log(7, TREES)).await;
    let tracker = fixture.tracker_with(frequent_integrity_checks()).await;
    expect_agreement(fixture).await;
    tracker.expect_ready().await;
    assert_eq!(losses(fixture, &tracker), 0);
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

/// Makes Redis evict at least one key: its memory limit is lowered below the memory in use.
fn evict(server: &Server) {
    let info: String = server.call(&["INFO", "memory"]).unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse::<u64>().unwrap();
    let before = evicted(server);
    configure(server, "allkeys-random", used.saturating_sub(100_000));
    while evicted(server) == before {
        let _: redis::RedisResult<String> = server.call(&["SET", "another:key", "foreign value"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_keys_are_folded_again() {
    let Some((fixture, server)) = services::fixture(2) else { return };
    let tracker = folded(&fixture).await;
    evict(&server);
    for partition in fixture.all() {
        tracker.expect_reason(&part(partition), "maxmemory-policy `allkeys-random`").await;
    }
    configure(&server, "noeviction", 0);
    expect_recovery(&fixture, &tracker, "evicted", 0).await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_without_a_tracker_are_detected() {
    let Some((fixture, server)) = services::fixture(2) else { return };
    folded(&fixture).await.stop().await;
    evict(&server);
    configure(&server, "noeviction", 0);
    let tracker = fixture.tracker_with(frequent_integrity_checks()).await;
    expect_recovery(&fixture, &tracker, "evicted", 0).await;
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_expiring_keys_are_folded_again() {
    let Some((fixture, server)) = services::fixture(2) else { return };
    let tracker = folded(&fixture).await;
    for (pattern, words) in [
        ("t:*:*", &["DEL"][..]),
        ("t:*", &["DEL"]),
        ("c:*", &["DEL"]),
        ("m:*", &["DEL"]),
        ("counts", &["DEL"]),
        ("roots", &["DEL"]),
        ("batches", &["DEL"]),
        ("checkpoint", &["DEL"]),
        ("t:*", &["PEXPIRE", "3600000"]),
        ("t:*", &["PEXPIRE", "1"]),
    ] {
        let before = losses(&fixture, &tracker);
        let mut keys: Vec<String> = server.call(&["KEYS", &format!("kafleet:{{p1}}:{pattern}")]).unwrap();
        keys.sort();
        let key = keys.first().unwrap_or_else(|| panic!("no key matches `{pattern}`"));
        let command: Vec<&str> = [&words[..1], &[key], &words[1..]].concat();
        // A batch may write the key again before the integrity check reaches it, so the command is repeated.
        eventually(&format!("a loss is detected: {command:?}"), || async {
            let _: i64 = server.call(&command).unwrap();
            // Longer than an integrity check of the partition takes.
            tokio::time::sleep(Duration::from_secs(2)).await;
            losses(&fixture, &tracker) > before
        })
        .await;
        expect_recovery(&fixture, &tracker, key, before).await;
    }
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_redis_is_reported_by_an_idle_tracker() {
    let Some((fixture, server)) = services::fixture(1) else { return };
    let tracker = folded(&fixture).await;
    configure(&server, "noeviction", 1);
    tracker.expect_reason(&part(0), "out of memory").await;
    configure(&server, "noeviction", 0);
    tracker.expect_ready().await;
    assert_eq!(losses(&fixture, &tracker), 0);
    tracker.stop().await;
}

/// Every seventh record is lost in turn, at all levels of the trees. The tracker is not ready until everything is
/// folded again.
#[tokio::test(flavor = "multi_thread")]
async fn lost_records_are_found_by_the_integrity_check() {
    let (fixture, memory) = memory::fixture(1);
    fixture.write(&event_log(7, 40)).await;
    let tracker = fixture.tracker_with(TrackerConfig { batch_events: 1, ..frequent_integrity_checks() }).await;
    let oracle = expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    let (health, reasons) = (tracker.health.clone(), Arc::new(Mutex::new(BTreeSet::new())));
    let sampling = tokio::spawn({
        let reasons = reasons.clone();
        async move {
            loop {
                reasons.lock().unwrap().extend(health.reasons().into_iter().map(|(_, reason)| reason));
                // Interval of the samples.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    for (id, _) in oracle.task_records[0].iter().step_by(7) {
        let before = losses(&fixture, &tracker);
        memory.remove_record(0, id);
        expect_recovery(&fixture, &tracker, id.as_str(), before).await;
    }
    sampling.abort();
    let reasons = reasons.lock().unwrap().clone();
    let reports_loss = |reason: &String| reason.contains("is missing") && reason.contains("projected again");
    assert!(reasons.iter().any(reports_loss), "{reasons:?}");
    tracker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_topic_with_short_retention_is_not_folded() {
    let (fixture, _) = memory::fixture(1);
    let fixture = Fixture { topic_check: Millis(50), ..fixture };
    fixture.write(&event_log(7, 20)).await;
    for (setting, unsuitable, suitable) in [("cleanup.policy", "compact", "delete"), ("retention.ms", "60000", "-1")] {
        fixture.configure(setting, unsuitable);
        let tracker = fixture.tracker().await;
        tracker.expect_reason(&part(0), setting).await;
        assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [None], "no event is folded");
        fixture.configure(setting, suitable);
        // A partition that waits for the topic is retried every 10 s.
        expect_agreement(&fixture).await;
        tracker.expect_ready().await;
        fixture.configure(setting, unsuitable);
        tracker.expect_reason(&part(0), setting).await;
        let checkpoint = fixture.store.checkpoints(&[0]).await.unwrap();
        fixture.write(&event_log(8, 5)).await;
        tracker.expect_reason("tracker's topics", "kafleet topics apply").await;
        assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), checkpoint, "no more events are folded");
        fixture.configure(setting, suitable);
        expect_agreement(&fixture).await;
        tracker.expect_ready().await;
        tracker.stop().await;
        fixture.store.open(0).await.unwrap().0.mark_damaged("").await.unwrap();
    }
}

/// A tracker that resumes another tracker's rebuild of a partition becomes ready at the same offset.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_tracker_is_not_ready_before_a_lost_partition_is_complete() {
    let (plain, memory) = memory::fixture(1);
    let (fixture, faults) = plain.with_faults();
    let tracker = folded(&fixture).await;
    let oracle = expect_agreement(&fixture).await;
    let end = fixture.end(0);
    let some = faults.on(polls_of_groups).records(100);
    memory.remove_record(0, &oracle.task_records[0][0].0);
    eventually("the loss is detected", || async { losses(&fixture, &tracker) > 0 }).await;
    let offset =
        || async { fixture.store.checkpoints(&[0]).await.unwrap()[0].map_or(0, |checkpoint| checkpoint.offset) };
    eventually("a part is folded again", || async { (1..end).contains(&offset().await) }).await;
    tracker.stop().await;

    some.lift();
    let none = faults.on(polls_of_groups).records(0);
    let at = offset().await;
    assert!(at < end, "{at} of {end}");
    let tracker = fixture.tracker_with(frequent_integrity_checks()).await;
    tracker.expect_reason(&part(0), &format!("at offset {at} of ")).await;
    none.lift();
    expect_agreement(&fixture).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}
