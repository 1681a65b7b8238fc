//! Policies that are replaced while a worker runs.

use kafleet::config::TypePolicy;
use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::{Worker, eventually, memory};
use crate::worker::types::{Gate, Journal, Kind, gated, ok};

fn replace(worker: &Worker, kind: &Kind, change: impl FnOnce(&mut TypePolicy)) {
    let mut policy = kind.registered.policy.clone();
    change(&mut policy);
    worker.policies.replace([(kind.name.into(), policy)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_concurrency_takes_effect_beyond_the_window() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let kind = gated("work", &journal, &gate).slots(2);
    let (fleet, _) = memory(1, &[kind.clone(), Kind::echo("other")]).await;
    fleet.send_many("work", "t", 700, "0").await;
    let worker = fleet.worker();
    eventually("two run", async || journal.running() == 2).await;
    replace(&worker, &kind, |policy| policy.concurrency = Some(600));
    eventually("all slots are used, beyond the window of two slots", async || journal.running() == 600).await;
    assert_eq!(worker.metric("kafleet_type_slots", "work"), 600.0);
    assert_eq!(worker.metric("kafleet_type_slots", "other"), 8.0);
    replace(&worker, &kind, |policy| policy.concurrency = Some(1));
    eventually("the gauge shows one slot", async || worker.metric("kafleet_type_slots", "work") == 1.0).await;
    gate.open();
    fleet.wait_for_results(700).await;
    worker.stop().await;
    fleet.assert_clean("work").await;
}

/// A type whose param `waits` waits for the end of its attempt; any other fails.
fn failing() -> Kind {
    Kind::new("failing", |params: Value, cx| async move {
        if params == json!("waits") {
            cx.cancelled().cancelled().await;
            return ok(Value::Null);
        }
        Err(Failure::retry("no"))
    })
    .retries(100, Millis::secs(300))
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_rules_apply_to_the_next_attempts() {
    let kind = failing();
    let (fleet, _) = memory(1, std::slice::from_ref(&kind)).await;
    let worker = fleet.worker();
    worker.ready().await;
    replace(&worker, &kind, |policy| {
        policy.concurrency = Some(9);
        policy.retries = 1;
        policy.min_backoff = Millis(1);
        policy.max_backoff = Millis(1);
        policy.timeout = Millis(20);
    });
    eventually("the policy applies", async || worker.metric("kafleet_type_slots", "failing") == 9.0).await;
    // Before the reload it would be retried a hundred times, after five minutes each.
    fleet.send("failing", "fails", "1").await;
    let end = fleet.result_of("fails").await;
    assert_eq!((end.kind(), end.attempt), (EventKind::Failed, 2));
    fleet.send("failing", "waits", r#""waits""#).await;
    let end = fleet.result_of("waits").await;
    assert!(end.at_ms - end.payload.started_at_ms().unwrap() < 60_000, "the timeout has cancelled it");
    replace(&worker, &kind, |policy| {
        (policy.max_failures, policy.failure_period) = (Some(1), Millis::secs(60));
        policy.concurrency = Some(4);
    });
    eventually("the limit applies", async || worker.metric("kafleet_type_slots", "failing") == 4.0).await;
    fleet.send_many("failing", "more", 2, "1").await;
    eventually("the type stops", async || worker.metric("kafleet_type_stopped", "failing") == 1.0).await;
    worker.stop().await;
}

/// A policy replaced before the types of the worker have started.
#[tokio::test(flavor = "multi_thread")]
async fn policy_replaced_during_the_start_applies() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let kind = gated("work", &journal, &gate).slots(1);
    let (fleet, _) = memory(1, std::slice::from_ref(&kind)).await;
    fleet.send_many("work", "t", 10, "0").await;
    let worker = fleet.worker();
    replace(&worker, &kind, |policy| policy.concurrency = Some(7));
    eventually("seven run", async || journal.running() == 7).await;
    gate.open();
    fleet.wait_for_results(10).await;
    worker.stop().await;
}
