//! Failure policies of types, and timeouts of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafleet::config::{OnError, TypePolicy};
use kafleet::control::ControlKey;
use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Gate, Kind, ok};

/// A type that fails as its params request: `{"kind": …, "final": …}`.
fn failing(change: impl FnOnce(&mut TypePolicy)) -> Kind {
    let mut kind = Kind::new("failing", |params: Value, _| async move {
        let word = params["kind"].as_str().unwrap().to_owned();
        let failure = if params["final"] == json!(true) { Failure::fail("no") } else { Failure::retry("no") };
        Err(failure.of_kind(word))
    });
    change(&mut kind.registered.policy);
    kind
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn error_kind_decides_whether_an_attempt_is_retried() {
    let lists = |policy: &mut TypePolicy| (policy.retry_on, policy.fail_on) = (words(&["busy"]), words(&["*"]));
    let (fleet, _) = memory(1, &[failing(lists)]).await;
    fleet.send("failing", "busy", r#"{"kind": "busy"}"#).await;
    fleet.send("failing", "busy-final", r#"{"kind": "busy", "final": true}"#).await;
    fleet.send("failing", "other", r#"{"kind": "broken"}"#).await;
    let worker = fleet.worker();
    let mut attempts = Vec::new();
    for id in ["busy", "busy-final", "other"] {
        let event = fleet.result_of(id).await;
        attempts.push((event.kind(), event.attempt));
    }
    worker.stop().await;
    let failed = |attempt| (EventKind::Failed, attempt);
    assert_eq!(attempts, [failed(3), failed(3), failed(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_error_fail_ends_a_task_after_its_first_failure() {
    let (fleet, _) = memory(1, &[failing(|policy| policy.on_error = OnError::Fail)]).await;
    fleet.send("failing", "t", r#"{"kind": "any"}"#).await;
    let worker = fleet.worker();
    let event = fleet.result_of("t").await;
    worker.stop().await;
    assert_eq!((event.kind(), event.attempt), (EventKind::Failed, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_error_skip_ends_a_failed_task_as_a_success() {
    let skip = |policy: &mut TypePolicy| {
        policy.on_error = OnError::Skip;
        policy.retry_on = words(&["busy"]);
    };
    let (fleet, _) = memory(1, &[failing(skip)]).await;
    fleet.send("failing", "t", r#"{"kind": "any"}"#).await;
    fleet.send("failing", "b", r#"{"kind": "busy"}"#).await;
    let worker = fleet.worker();
    let any = fleet.result_of("t").await;
    let busy = fleet.result_of("b").await;
    worker.stop().await;
    assert_eq!((any.kind(), any.attempt, any.payload.output()), (EventKind::Succeeded, 1, None));
    assert_eq!((busy.kind(), busy.attempt), (EventKind::Succeeded, 3), "retried before it is skipped");
    let warned =
        fleet.events.all().into_iter().find(|event| event.id.as_str() == "t" && event.kind() == EventKind::Warned);
    let warning = warned.and_then(|event| event.message).unwrap();
    assert!(warning.contains("any") && warning.contains("no"), "{warning}");
    fleet.assert_clean("failing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_failures_stop_the_type() {
    let kind = Kind::new("failing", |params: Value, _| async move {
        if params == json!("bad") { Err(Failure::retry("down").of_kind("unreachable")) } else { ok(params) }
    });
    let mut kind = kind.retries(1_000, Millis(1));
    (kind.registered.policy.max_failures, kind.registered.policy.failure_period) = (Some(20), Millis::secs(60));
    let (fleet, _) = memory(1, &[kind, Kind::echo("echo")]).await;
    let worker = fleet.worker();
    fleet.send("failing", "good", "1").await;
    fleet.result_of("good").await;
    fleet.send("failing", "bad", r#""bad""#).await;
    eventually("the health report contains the alarm", async || {
        worker.health.reasons().iter().any(|(part, _)| part == "failures of failing")
    })
    .await;
    let (_, reason) = worker.health.reasons().into_iter().find(|(part, _)| part == "failures of failing").unwrap();
    assert!(reason.contains("more than 20 attempts failed within 1m") && reason.contains("unreachable"), "{reason}");
    eventually("the metric shows the alarm", async || worker.metric("kafleet_type_stopped", "failing") == 1.0).await;
    fleet.send("failing", "waits", "2").await;
    fleet.send("echo", "goes-on", "3").await;
    fleet.result_of("goes-on").await;
    assert!(fleet.kinds_of("waits").is_empty(), "no more tasks of the type are started");
    worker.stop().await;
    // A new worker counts from zero; no task was lost.
    let next = fleet.worker();
    fleet.result_of("waits").await;
    next.stop().await;
}

/// A pause and resume reset the failure limit; the type continues on the same worker.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_type_continues_after_a_pause_and_resume() {
    let healed = Arc::new(AtomicBool::new(false));
    let down = json!("bad");
    let cured = healed.clone();
    let kind = Kind::new("failing", move |params: Value, _| {
        let fails = params == down && !cured.load(Ordering::Relaxed);
        async move { if fails { Err(Failure::retry("down")) } else { ok(params) } }
    });
    let mut kind = kind.retries(1_000, Millis(1));
    (kind.registered.policy.max_failures, kind.registered.policy.failure_period) = (Some(5), Millis::secs(60));
    let (fleet, _) = memory(1, &[kind]).await;
    let worker = fleet.worker();
    fleet.send("failing", "bad", r#""bad""#).await;
    eventually("the type has stopped", async || worker.metric("kafleet_type_stopped", "failing") == 1.0).await;
    fleet.send("failing", "waits", "2").await;
    healed.store(true, Ordering::Relaxed);
    fleet.pause("failing").await;
    eventually("the pause applies", async || worker.metric("kafleet_type_paused", "failing") == 1.0).await;
    assert_eq!(worker.metric("kafleet_type_stopped", "failing"), 1.0, "a pause alone does not start the type again");
    assert_eq!(fleet.results(), []);
    fleet.delete_control(ControlKey::Pause("failing".into())).await;
    let results = fleet.wait_for_results(2).await;
    assert!(results.iter().all(|event| event.kind() == EventKind::Succeeded), "{results:?}");
    assert_eq!((worker.metric("kafleet_type_stopped", "failing"), worker.health.reasons()), (0.0, Vec::new()));
    worker.stop().await;
    fleet.assert_clean("failing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_fails_after_its_total_timeout() {
    let mut kind = Kind::new("long", |_, cx| async move {
        cx.cancelled().cancelled().await;
        Err(Failure::cancelled())
    });
    let total = Millis::secs(3);
    kind.registered.policy.total_timeout = Some(total);
    let mut retrying = failing(|policy| policy.total_timeout = Some(total)).retries(1_000, Millis(30));
    retrying.registered.policy.timeout = Millis::secs(60);
    let free = Kind::new("free", |_, _| async move { Err(Failure::retry("never")) }).retries(1_000, Millis(30));
    let (fleet, _) = memory(1, &[kind, retrying, free]).await;
    let worker = fleet.worker();
    let headers = [("ce_id", "own"), ("ce_totaltimeout", "2s")];
    fleet.send_record("free", None, None, Some(b"0"), &headers).await;
    let more = [("ce_id", "more"), ("ce_totaltimeout", "1h"), ("ce_retries", "3"), ("ce_time", "2026-01-31T12:00:00Z")];
    fleet.send_record("long", None, None, Some(b"0"), &[("ce_id", "longer"), ("ce_totaltimeout", "30d")]).await;
    fleet.send_record("free", None, None, Some(b"0"), &more).await;
    fleet
        .send_record("long", None, Some("old"), Some(b"0"), &[("ce_id", "old"), ("ce_time", "2026-01-31T12:00:00Z")])
        .await;
    fleet.send("long", "runs", "0").await;
    let sent_ms = kafleet::runtime::now_ms();
    fleet.send("failing", "retries", r#"{"kind": "busy"}"#).await;
    for (id, code) in [("old", "long"), ("runs", "long"), ("retries", "failing"), ("own", "free"), ("more", "free")] {
        let event = fleet.result_of(id).await;
        let error = event.payload.error().unwrap();
        assert_eq!((event.kind(), &*error.kind), (EventKind::Failed, "timeout"), "{id}: {error:?}");
        assert!(fleet.dead(code, 1).await.iter().any(|dead| dead.code == "timeout"), "{id}");
    }
    let old = fleet.kinds_of("old");
    assert_eq!(old, ["failed"], "its timeout expired before its first attempt");
    assert_eq!(fleet.kinds_of("more"), ["failed"], "the task's own timeout also counts from its creation");
    assert!(fleet.kinds_of("longer").iter().all(|kind| kind == "started"), "a task with a longer timeout continues");
    let last = fleet.result_of("retries").await;
    assert!(
        last.at_ms >= sent_ms + total.as_i64() - 100,
        "the task is retried while there is time for a wait and an attempt"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_has_its_own_stall_timeout() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let kind = Kind::new("stalling", move |_: Value, cx| {
        let gate = inner.clone();
        async move {
            gate.pass(cx.id.as_str()).await;
            ok(json!(1))
        }
    });
    let (fleet, _) = memory(1, &[kind.retries(0, Millis(1))]).await;
    let headers = [("ce_id", "impatient"), ("ce_stalltimeout", "100ms")];
    fleet.send_record("stalling", None, None, Some(b"1"), &headers).await;
    fleet.send("stalling", "patient", "1").await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("impatient").await.payload.error().unwrap().kind, "stalled");
    gate.open();
    assert_eq!(fleet.result_of("patient").await.kind(), EventKind::Succeeded);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_without_a_sign_of_life_stalls() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let mut kind = Kind::new("stalling", move |params: Value, cx| {
        let gate = inner.clone();
        async move {
            match params.as_str().unwrap() {
                "beats" => {
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(3) {
                        cx.heartbeat();
                        // Heartbeats for longer than an attempt may be silent.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                "chatters" => loop {
                    cx.silent().log("still here");
                    // Output without a sign of life, until the attempt is stopped.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                },
                _ => gate.pass(cx.id.as_str()).await,
            }
            ok(json!(cx.activity()))
        }
    });
    // Longer than a pause of a busy machine, shorter than the duration of `heartbeats`.
    kind.registered.policy.stall_timeout = Some(Millis(1_500));
    let (fleet, _) = memory(1, &[kind.retries(0, Millis(1))]).await;
    for id in ["beats", "chatters", "waits"] {
        fleet.send("stalling", id, &format!("{id:?}")).await;
    }
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("beats").await.kind(), EventKind::Succeeded);
    for id in ["chatters", "waits"] {
        let end = fleet.result_of(id).await;
        let error = end.payload.error().unwrap();
        assert_eq!(error.kind, "stalled", "{id}");
        assert!(error.message.contains("no sign of life for 1.5 s"), "{}", error.message);
    }
    worker.stop().await;
}
