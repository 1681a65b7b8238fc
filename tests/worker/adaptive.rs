//! Adaptive limits in a worker: its share of the learned one, what an operator sets, and the counts in heartbeats.

use kafleet::config::{Adaptive, AdaptiveOverride};
use kafleet::control::{AdaptiveRecord, ControlKey, ControlRecord, Slots};
use kafleet::handlers::Failure;
use kafleet::model::adaptive::AdaptiveLimit;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{Fleet, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, gated, ok};

const TYPE: &str = "limited";

async fn learn(fleet: &Fleet, limit: f64, round: u64) {
    let learned = AdaptiveLimit { limit, round, tick_ms: 1_000, cut: None, quiet: 0 };
    let record = AdaptiveRecord { v: 1, at_ms: 0, learned };
    fleet.put_control(ControlKey::Adaptive(TYPE.into()), ControlRecord::Adaptive(record)).await;
}

async fn set(fleet: &Fleet, adaptive: AdaptiveOverride) {
    let record = Slots { v: 1, at_ms: 0, slots: None, max_concurrency: None, adaptive: Some(adaptive) };
    fleet.put_control(ControlKey::Slots(TYPE.into()), ControlRecord::Slots(record)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn share_follows_the_learned_limit_and_the_operator() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let mut kind = gated(TYPE, &journal, &gate).slots(16);
    kind.registered.policy.adaptive = Some(Adaptive { min: 3, ..Adaptive::default() });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send_many(TYPE, "t", 40, "0").await;
    let worker = fleet.worker();
    eventually("the smallest limit is used", async || journal.running() == 3).await;
    learn(&fleet, 8.0, 1).await;
    eventually("the learned limit is used", async || journal.running() == 8).await;
    assert_eq!(worker.metric("kafleet_adaptive_limit", TYPE), 8.0);
    set(&fleet, AdaptiveOverride::Limit(12)).await;
    eventually("the limit of the operator is used", async || journal.running() == 12).await;
    set(&fleet, AdaptiveOverride::OFF).await;
    eventually("all slots are used", async || journal.running() == 16).await;
    learn(&fleet, 20.0, 2).await;
    fleet.delete_control(ControlKey::Slots(TYPE.into())).await;
    eventually("the learned limit is known", async || worker.metric("kafleet_adaptive_limit", TYPE) == 20.0).await;
    gate.open();
    fleet.wait_for_results(40).await;
    assert_eq!(journal.most(), 16, "a limit above the slots adds none");
    worker.stop().await;
    fleet.assert_clean(TYPE).await;
}

/// The refusals of a type brake the worker before any decision, and are counted.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_counted_and_end_no_task() {
    let journal = Journal::default();
    let begun = journal.clone();
    let kind = Kind::new(TYPE, move |params: Value, cx| {
        let begun = begun.clone();
        async move {
            let _run = begun.begin(&cx);
            // Duration of a call, so that several run at once.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            if begun.running() > 4 {
                return Err(Failure::wait(Some(std::time::Duration::from_millis(20)), "429").of_kind("rate_limited"));
            }
            ok(params)
        }
    });
    let mut kind = kind.slots(16).retries(3, Millis(20));
    kind.registered.policy.adaptive = Some(Adaptive::default());
    let (fleet, _) = memory(1, &[kind]).await;
    learn(&fleet, 16.0, 1).await;
    fleet.send_many(TYPE, "t", 200, "1").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(200).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "{results:?}");
    assert!(worker.metric("kafleet_refused_total", TYPE) > 0.0);
    worker.stop().await;
    fleet.assert_clean(TYPE).await;
}
