//! Circuit breakers of types: the service behind a type fails and recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kafleet::config::TypePolicy;
use kafleet::control::{CircuitSetting, ControlKey, ControlRecord, ForcedCircuit};
use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Journal, Kind, counted, ok};

/// Service that a type calls.
#[derive(Clone, Default)]
struct Service {
    is_away: Arc<AtomicBool>,
    failed_calls: Arc<AtomicUsize>,
}

impl Service {
    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    fn failed_calls(&self) -> usize {
        self.failed_calls.load(Ordering::SeqCst)
    }

    /// A type with two slots that calls the service.
    fn caller(&self) -> Kind {
        let service = self.clone();
        let kind = Kind::new("caller", move |params: Value, _| {
            let service = service.clone();
            async move {
                if service.is_away.load(Ordering::SeqCst) {
                    service.failed_calls.fetch_add(1, Ordering::SeqCst);
                    return Err(Failure::retry("no answer").of_kind("unreachable"));
                }
                ok(params)
            }
        });
        let mut kind = kind.slots(2).retries(3, Millis(50));
        kind.registered.policy.trip_on = TypePolicy::outage_kinds();
        kind
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_ends_no_task_and_the_circuit_closes_after_it() {
    let service = Service::default();
    let mut kind = service.caller();
    (kind.registered.policy.max_failures, kind.registered.policy.failure_period) = (Some(4), Millis::secs(60));
    let (fleet, _) = memory(1, &[kind]).await;
    service.set_away(true);
    fleet.send_many("caller", "t", 30, "1").await;
    let worker = fleet.worker();
    eventually("the circuit is open", async || worker.metric("kafleet_circuit_open", "caller") == 1.0).await;
    eventually("a probe has failed", async || service.failed_calls() > 5).await;
    assert_eq!(fleet.results(), []);
    service.set_away(false);
    let results = fleet.wait_for_results(30).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded && event.attempt <= 2), "{results:?}");
    eventually("the circuit is closed", async || worker.metric("kafleet_circuit_open", "caller") == 0.0).await;
    assert_eq!(worker.metric("kafleet_circuit_opened_total", "caller"), 1.0);
    assert_eq!(worker.metric("kafleet_type_stopped", "caller"), 0.0, "failures of an outage do not stop the type");
    // The type has two slots: five failures open its circuit, and then there is a probe a second or two.
    assert!(service.failed_calls() < 15, "{} calls of the absent service", service.failed_calls());
    worker.stop().await;
    fleet.assert_clean("caller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_other_kinds_open_no_circuit() {
    let kind = Kind::new("other", |_: Value, _| async { Err(Failure::retry("no").of_kind("rate_limited")) });
    let mut kind = kind.slots(2).retries(0, Millis(1));
    kind.registered.policy.trip_on = TypePolicy::outage_kinds();
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send_many("other", "t", 30, "1").await;
    let worker = fleet.worker();
    let results = fleet.wait_for_results(30).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Failed), "{results:?}");
    assert_eq!(worker.metric("kafleet_circuit_opened_total", "other"), 0.0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_opens_and_closes_the_circuit() {
    let service = Service::default();
    let (fleet, _) = memory(1, &[service.caller()]).await;
    let key = || ControlKey::Circuit("caller".into());
    let setting = |state| ControlRecord::Circuit(CircuitSetting { v: 1, at_ms: 0, state, reason: None, by: None });
    let worker = fleet.worker();
    fleet.put_control(key(), setting(ForcedCircuit::Open)).await;
    eventually("the circuit is open", async || worker.metric("kafleet_circuit_open", "caller") == 1.0).await;
    fleet.send("caller", "held", "1").await;
    service.set_away(true);
    fleet.put_control(key(), setting(ForcedCircuit::Closed)).await;
    let failed = fleet.result_of("held").await;
    assert_eq!(failed.kind(), EventKind::Failed, "a closed circuit spares nothing");
    fleet.delete_control(key()).await;
    fleet.send_many("caller", "t", 10, "1").await;
    eventually("the circuit opens by itself", async || worker.metric("kafleet_circuit_opened_total", "caller") == 1.0)
        .await;
    service.set_away(false);
    let results = fleet.wait_for_results(11).await;
    assert_eq!(results.iter().filter(|event| event.kind() == EventKind::Failed).count(), 1);
    worker.stop().await;
}

/// Tasks wait in Kafka or in the worker, without an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn open_circuit_ends_cancelled_tasks_and_holds_in_a_worker_that_starts_later() {
    let service = Service::default();
    let (fleet, _) = memory(2, &[service.caller()]).await;
    let setting = CircuitSetting { v: 1, at_ms: 0, state: ForcedCircuit::Open, reason: None, by: None };
    fleet.put_control(ControlKey::Circuit("caller".into()), ControlRecord::Circuit(setting)).await;
    let first = fleet.worker();
    eventually("the circuit is open", async || first.metric("kafleet_circuit_open", "caller") == 1.0).await;
    fleet.send_many("caller", "t", 20, "1").await;
    fleet.cancel("t7", 5, true).await;
    assert_eq!(fleet.result_of("t7").await.kind(), EventKind::Cancelled);
    let second = fleet.worker();
    second.ready().await;
    eventually("the circuit is open", async || second.metric("kafleet_circuit_open", "caller") == 1.0).await;
    first.stop().await;
    assert_eq!(fleet.results().len(), 1, "nothing has started");
    fleet.delete_control(ControlKey::Circuit("caller".into())).await;
    fleet.wait_for_results(20).await;
    second.stop().await;
    fleet.assert_clean("caller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_stops_while_its_circuit_is_open_and_another_one_continues() {
    let service = Service::default();
    let (fleet, _) = memory(1, &[service.caller()]).await;
    service.set_away(true);
    fleet.send_many("caller", "t", 30, "1").await;
    let worker = fleet.worker();
    eventually("the circuit is open", async || worker.metric("kafleet_circuit_open", "caller") == 1.0).await;
    worker.stop().await;
    assert_eq!(fleet.results(), []);
    service.set_away(false);
    let worker = fleet.worker();
    let results = fleet.wait_for_results(30).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "{results:?}");
    worker.stop().await;
    fleet.assert_clean("caller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_circuit_delays_only_its_own_type_of_a_shared_group() {
    const BACKLOG: usize = 12_000;
    let (service, journal) = (Service::default(), Journal::default());
    let (mut fleet, _) = memory(2, &[service.caller(), counted("free", &journal)]).await;
    fleet.share(&["caller", "free"]);
    service.set_away(true);
    fleet.send_many("caller", "t", BACKLOG, "1").await;
    let worker = fleet.worker();
    // 8,192 inputs of at least 512 bytes each.
    eventually("the backlog is full", async || worker.metric("kafleet_worker_held_bytes", "") >= 8_192.0 * 512.0).await;
    fleet.send_many("free", "free", 1_000, "0").await;
    fleet.wait_for_results(1_000).await;
    assert_eq!(worker.metric("kafleet_circuit_open", "caller"), 1.0);
    service.set_away(false);
    let results = fleet.wait_for_results(BACKLOG + 1_000).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded));
    worker.stop().await;
    fleet.assert_clean("caller").await;
    fleet.assert_clean("free").await;
}
