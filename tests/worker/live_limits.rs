//! Slots, fleet-wide limits and rates: configured, and changed at run time.

use std::time::{Duration, Instant};

use kafleet::config::{Rate, RateBy};
use kafleet::control::{ControlKey, ControlRecord, RateLimit, Slots};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;

use crate::worker::fleet::{Fleet, Worker, eventually, kafka, memory};
use crate::worker::types::{Gate, Journal, Kind, counted, gated};

async fn limit(fleet: &Fleet, task_type: &str, slots: Option<u32>, max_concurrency: Option<u32>) {
    let record = Slots { v: 1, at_ms: 0, slots, max_concurrency, adaptive: None };
    fleet.put_control(ControlKey::Slots(task_type.into()), ControlRecord::Slots(record)).await;
}

fn rate(count: u32, per: Millis, burst: u32, by: RateBy) -> Rate {
    Rate { count, per, burst, by }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_follow_the_control_topic() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(1, &[gated("work", &journal, &gate).slots(2)]).await;
    fleet.send_many("work", "t", 700, "0").await;
    let worker = fleet.worker();
    eventually("two run", async || journal.running() == 2).await;
    limit(&fleet, "work", Some(600), None).await;
    eventually("all slots are used, beyond the window of two slots", async || journal.running() == 600).await;
    limit(&fleet, "work", Some(1), None).await;
    eventually("the gauge shows one slot", async || worker.metric("kafleet_type_slots", "work") == 1.0).await;
    for n in 0..600 {
        gate.open_for(&format!("t{n}"));
    }
    fleet.wait_for_results(600).await;
    eventually("one runs", async || journal.running() <= 1).await;
    fleet.delete_control(ControlKey::Slots("work".into())).await;
    eventually("two tasks run again", async || journal.running() == 2).await;
    gate.open();
    fleet.wait_for_results(700).await;
    worker.stop().await;
    fleet.assert_clean("work").await;
}

/// Divides a limit of 7 over 4 partitions and two workers: never more run, and all run.
async fn divided_limit(fleet: Fleet, journal: Journal, gate: Gate) {
    let first = fleet.worker();
    let second = fleet.worker();
    // Tasks that one worker starts while it owns all partitions continue beside those of the other.
    let slots = |worker: &Worker| worker.metric("kafleet_type_slots", "work");
    eventually("each worker has a part of the limit", async || {
        slots(&first) > 0.0 && slots(&second) > 0.0 && slots(&first) + slots(&second) == 7.0
    })
    .await;
    for n in 0..80 {
        fleet.send_to("work", n % 4, &format!("t{n}"), "0").await;
    }
    eventually("seven run", async || journal.running() == 7).await;
    limit(&fleet, "work", None, Some(10)).await;
    eventually("ten run", async || journal.running() == 10).await;
    gate.open();
    fleet.wait_for_results(80).await;
    first.stop().await;
    second.stop().await;
    assert!(journal.most() <= 10, "{} tasks ran at once", journal.most());
    fleet.assert_clean("work").await;
}

fn limited(journal: &Journal, gate: &Gate) -> Kind {
    let mut kind = gated("work", journal, gate).slots(100);
    kind.registered.policy.max_concurrency = Some(7);
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_wide_limit_is_divided_by_partitions() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let (fleet, _) = memory(4, &[limited(&journal, &gate)]).await;
    divided_limit(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_wide_limit_is_divided_by_partitions_on_kafka() {
    let journal = Journal::default();
    let gate = Gate::closed();
    let Some(fleet) = kafka(4, &[limited(&journal, &gate)]).await else { return };
    divided_limit(fleet, journal, gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_below_the_number_of_partitions_is_refused_with_a_reason() {
    let journal = Journal::default();
    let mut kind = counted("work", &journal);
    kind.registered.policy.max_concurrency = Some(3);
    let (fleet, _) = memory(4, &[kind]).await;
    fleet.send("work", "t", "0").await;
    let worker = fleet.worker();
    let is_reported =
        || worker.health.reasons().into_iter().any(|(_, reason)| reason.contains("`max_concurrency` 3 is below the 4"));
    eventually("the health report contains the reason", async || is_reported()).await;
    worker.stop().await;
    assert_eq!(journal.started(), 0);
}

/// Checks 40 starts a second over two workers, for any division of the partitions.
async fn rate_limited(fleet: Fleet) {
    let first = fleet.worker();
    let second = fleet.worker();
    first.ready().await;
    second.ready().await;
    let begun = Instant::now();
    for n in 0..40 {
        fleet.send_to("work", n % 4, &format!("t{n}"), "0").await;
    }
    fleet.wait_for_results(40).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(800), "40 tasks in {took:?} at 40 per second");
    // Without a limit the remaining tasks would take almost no time; with it, 100 s.
    let record = RateLimit { v: 1, at_ms: 0, rate: rate(1_000_000, Millis::secs(1), 1_000, RateBy::Type) };
    fleet.put_control(ControlKey::Rate("work".into()), ControlRecord::Rate(record)).await;
    let begun = Instant::now();
    fleet.send_many("work", "u", 4_000, "0").await;
    fleet.wait_for_results(4_040).await;
    assert!(begun.elapsed() < Duration::from_secs(80), "{:?}", begun.elapsed());
    first.stop().await;
    second.stop().await;
    fleet.assert_clean("work").await;
}

fn with_rate() -> Kind {
    let mut kind = counted("work", &Journal::default());
    kind.registered.policy.rate = Some(rate(40, Millis::secs(1), 1, RateBy::Type));
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_holds_over_the_fleet() {
    rate_limited(memory(4, &[with_rate()]).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_holds_over_the_fleet_on_kafka() {
    let Some(fleet) = kafka(4, &[with_rate()]).await else { return };
    rate_limited(fleet).await;
}

/// Checks that one key with a long queue does not delay the others.
async fn rate_limited_by_key(fleet: Fleet, journal: Journal) {
    for n in 0..8 {
        fleet.send_record("work", None, Some("busy"), Some(b"0"), &[("ce_id", &format!("busy{n}"))]).await;
    }
    for n in 0..50 {
        fleet.send("work", &format!("free{n}"), "0").await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(58).await;
    worker.stop().await;
    assert_eq!(journal.started(), 58);
    let events = fleet.events.all();
    // The start time is in the `started` event or in the result.
    let began = |id: &str| {
        let of_task = events.iter().filter(|event| event.id.as_str() == id);
        of_task
            .filter_map(|event| {
                if event.kind() == EventKind::Started { Some(event.at_ms) } else { event.payload.started_at_ms() }
            })
            .min()
            .unwrap()
    };
    let busy: Vec<i64> = (0..8).map(|n| began(&format!("busy{n}"))).collect();
    let free = (0..50).map(|n| began(&format!("free{n}"))).max();
    assert!(free < busy.last().copied(), "other keys do not wait");
    assert!(busy.is_sorted(), "in order: {busy:?}");
    assert!(busy[7] - busy[0] >= 3_400, "eight tasks of one key at two a second: {busy:?}");
    fleet.assert_clean("work").await;
}

fn with_rate_per_key(journal: &Journal) -> Kind {
    let mut kind = counted("work", journal);
    kind.registered.policy.rate = Some(rate(1, Millis(500), 1, RateBy::Key));
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_per_key_delays_only_its_key() {
    let journal = Journal::default();
    rate_limited_by_key(memory(1, &[with_rate_per_key(&journal)]).await.0, journal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_per_key_delays_only_its_key_on_kafka() {
    let journal = Journal::default();
    let Some(fleet) = kafka(1, &[with_rate_per_key(&journal)]).await else { return };
    rate_limited_by_key(fleet, journal).await;
}
