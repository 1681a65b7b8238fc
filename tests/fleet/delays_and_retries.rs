//! Delayed tasks, long retry delays and retries on request, with real workers.

use kafleet::model::event::Kind;
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use serde_json::{Value, json};

use crate::fleet::in_process::{Fleet, eventually};
use crate::fleet::task_types::{Branch, Leaf};

async fn post(fleet: &Fleet, path: &str, body: &Value) -> (u16, Value) {
    let client = kafleet_testkit::http::client();
    let response = client.post(format!("{}{path}", fleet.api)).json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Delayed over the API and with the header of a plain Kafka client.
async fn delayed_task_starts_when_due(mut fleet: Fleet) {
    fleet.start_worker();
    let begun = now_ms();
    let task = json!({"type": "echo", "id": "later", "params": {"n": 1}, "delay": "6s", "tags": ["x"]});
    let (code, created) = post(&fleet, "/v1/tasks", &task).await;
    assert_eq!((code, &created["state"]), (201, &json!("scheduled")), "{created}");
    assert_eq!(fleet.get("/v1/tasks/later/params").await["params"], json!({"n": 1}), "params of a scheduled task");
    let (code, again) = post(&fleet, "/v1/tasks", &task).await;
    assert_eq!((code, &again["id"]), (200, &json!("later")), "the request is idempotent: {again}");
    let later = fleet.wait_for_end("later").await;
    assert!(later.times.started_at_ms.unwrap() >= begun + 6_000, "started before its time");
    assert_eq!(
        (later.state, later.history.duplicates, later.outcome.output.unwrap().text()),
        (State::Succeeded, 0, "{\"n\":1}")
    );
    assert!(later.definition.position.is_some(), "the worker reports the record's offset");
    assert_eq!(fleet.get("/v1/tasks/later/params").await["params"], json!({"n": 1}));
    // Too far ahead for the worker, which hands the task over to the tracker.
    let at = kafleet::model::units::time::time_text(now_ms() + 3_600_000);
    fleet.publish_bare("echo", &[("ce_id", b"far"), ("ce_notbefore", at.as_bytes()), ("ce_name", b"n")], "7").await;
    let far = eventually("the task waiting at the tracker", || async {
        fleet.record("far").await.filter(|task_record| task_record.deferral.record_bytes > 0)
    })
    .await;
    assert_eq!((far.state, far.definition.policy.unwrap().name.as_deref()), (State::Scheduled, Some("n")));
    let after = fleet.publish("echo", "after", &json!(1)).await;
    fleet.wait_for_end("after").await;
    fleet.get(&format!("/v1/tasks/after?after={}", after.position)).await;
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// A retry delay above `inline_retry_max` is spent at the tracker, and the attempt count continues.
async fn long_retry_waits_at_the_tracker(mut fleet: Fleet) {
    fleet.worker.inline_retry_max = "100ms".parse().unwrap();
    fleet.start_worker();
    fleet.publish("flaky", "f", &json!({"failures": 2, "after_ms": 1_500})).await;
    let waiting = eventually("the task waiting at the tracker", || async {
        fleet
            .record("f")
            .await
            .filter(|task_record| task_record.deferral.record_bytes > 0 || task_record.state.is_terminal())
    })
    .await;
    // Each of the two waiting states may be missed on a slow machine: the history is asserted below.
    let seen = (waiting.state, waiting.attempt);
    assert!([(State::Retrying, 1), (State::Retrying, 2), (State::Succeeded, 3)].contains(&seen), "{seen:?}");
    let done = fleet.wait_for_end("f").await;
    assert_eq!((done.state, done.attempt, done.history.duplicates), (State::Succeeded, 3, 0));
    // The producer's event may arrive after the worker's first one.
    let unordered = [Kind::Started, Kind::Submitted];
    let kinds: Vec<Kind> =
        done.history.entries.iter().map(|entry| entry.kind).filter(|kind| !unordered.contains(kind)).collect();
    let twice = [Kind::Retrying, Kind::Released];
    assert_eq!(kinds, [&twice[..], &twice, &[Kind::Succeeded]].concat());
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// Starts the next attempt of a task twice, which fails in its first two attempts and would wait for an hour after each.
/// `deferred`: it waits at the tracker.
async fn waiting_retry_is_started(mut fleet: Fleet, inline_retry_max: &str, deferred: bool) {
    fleet.worker.inline_retry_max = inline_retry_max.parse().unwrap();
    fleet.start_worker();
    fleet.publish("flaky", "f", &json!({"failures": 2, "after_ms": 3_600_000})).await;
    for attempt in 1..=2 {
        let waiting = eventually("the task waits", || async {
            let is_waiting = |state, number| state == State::Retrying && number == attempt;
            fleet.record("f").await.filter(|record| is_waiting(record.own, record.attempt))
        })
        .await;
        assert_eq!(waiting.deferral.is_deferred(), deferred);
        let (code, outcome) = post(&fleet, "/v1/tasks/f/start", &json!({"reason": "it is urgent"})).await;
        assert_eq!(code, 200, "{outcome}");
    }
    let done = fleet.wait_for_end("f").await;
    assert_eq!((done.state, done.attempt, done.history.duplicates), (State::Succeeded, 3, 0));
    let ends = done.history.entries.iter().filter(|entry| entry.kind == Kind::Retrying).count();
    assert_eq!(ends, 2, "no attempt is added: {:?}", done.history.entries);
    let (code, problem) = post(&fleet, "/v1/tasks/f/start", &json!({})).await;
    assert_eq!((code, &problem["code"]), (409, &json!("already_finished")));
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

async fn retry_that_waits_at_the_tracker_is_started_now(fleet: Fleet) {
    waiting_retry_is_started(fleet, "100ms", true).await;
}

async fn retry_that_waits_in_a_worker_is_started_now(fleet: Fleet) {
    waiting_retry_is_started(fleet, "2h", false).await;
}

/// A retry of failed descendants keeps the parents' run; a retry of the root starts all again.
async fn retry_starts_failed_tasks_again(mut fleet: Fleet) {
    fleet.start_worker();
    fleet
        .publish(
            "branch",
            "r",
            &Branch { widths: vec![3, 2], held: None, failing: Some(vec![1, 1]), ..Branch::default() },
        )
        .await;
    assert_eq!(fleet.wait_for_end("r").await.state, State::Failed);
    let (code, outcome) = post(&fleet, "/v1/tasks/r/retry", &json!({"only_failed": true, "reason": "again"})).await;
    assert_eq!((code, &outcome["run"]), (202, &json!(2)), "{outcome}");
    let again = eventually("the leaf has failed again", || async {
        fleet.record("r:1:1").await.filter(|task_record| task_record.run == 2 && task_record.own.is_terminal())
    })
    .await;
    assert_eq!((again.state, fleet.record("r:1").await.unwrap().run), (State::Failed, 1));
    // A retry of the root spawns its children again, in the root's run.
    fleet.wait_for_end("r").await;
    let (code, outcome) = post(&fleet, "/v1/tasks/r/retry", &json!({})).await;
    assert_eq!((code, &outcome["run"], &outcome["status"]["run"]), (202, &json!(3), &json!(3)), "{outcome}");
    let leaf = eventually("the leaf runs in the third run", || async {
        fleet.record("r:1:1").await.filter(|task_record| task_record.run == 3 && task_record.own.is_terminal())
    })
    .await;
    assert_eq!(
        leaf.requests.asof,
        fleet.record("r").await.unwrap().requests.asof,
        "a spawned child is as recent as the retry"
    );
    eventually("the third run has ended", || async {
        fleet.record("r").await.filter(|task_record| task_record.run == 3 && task_record.state == State::Failed)
    })
    .await;
    fleet.publish("leaf", "held", &Leaf { held: true, fails: false, waits_to_fail: false }).await;
    eventually("the task runs", || async {
        fleet.record("held").await.filter(|task_record| task_record.state == State::Running)
    })
    .await;
    let (code, problem) = post(&fleet, "/v1/tasks/held/retry", &json!({})).await;
    assert_eq!((code, &problem["code"]), (409, &json!("not_finished")));
    // The API answers 404 only once the tracker has caught up.
    let (code, problem) = eventually("a response about an unknown task", || async {
        Some(post(&fleet, "/v1/tasks/nobody/retry", &json!({})).await).filter(|(code, _)| *code != 503)
    })
    .await;
    assert_eq!((code, &problem["code"]), (404, &json!("not_found")));
    fleet.gate.open();
    fleet.wait_for_end("held").await;
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    delayed_task_starts_when_due,
    long_retry_waits_at_the_tracker,
    retry_that_waits_at_the_tracker_is_started_now,
    retry_that_waits_in_a_worker_is_started_now,
    retry_starts_failed_tasks_again,
}
