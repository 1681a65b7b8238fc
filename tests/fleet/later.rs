//! Tasks that start later, long retries, and retries on request, with real workers.

use kafleet::model::event::Kind;
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use serde_json::{Value, json};

use crate::inside::{Fleet, until};
use crate::tasks::{Branch, Leaf};

async fn post(fleet: &Fleet, path: &str, body: &Value) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(format!("{}{path}", fleet.api)).json(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Over the api, and as any Kafka client would.
async fn a_task_starts_when_it_is_due(mut fleet: Fleet) {
    fleet.start_worker();
    let begun = now_ms();
    let asked = json!({"type": "echo", "id": "later", "params": {"n": 1}, "delay": "6s", "tags": ["x"]});
    let (code, created) = post(&fleet, "/v1/tasks", &asked).await;
    assert_eq!((code, &created["state"]), (201, &json!("scheduled")), "{created}");
    assert_eq!(fleet.get("/v1/tasks/later/params").await["params"], json!({"n": 1}), "while it waits");
    let (code, again) = post(&fleet, "/v1/tasks", &asked).await;
    assert_eq!((code, &again["id"]), (200, &json!("later")), "the same task: {again}");
    let later = fleet.ended("later").await;
    assert!(later.started_at_ms.unwrap() >= begun + 6_000, "not before its time");
    assert_eq!((later.state, later.duplicates, later.output.unwrap().text()), (State::Succeeded, 0, "{\"n\":1}"));
    assert!(later.position.is_some(), "its worker has told where its record lies");
    assert_eq!(fleet.get("/v1/tasks/later/params").await["params"], json!({"n": 1}));
    // So far ahead that its worker hands it over.
    let at = kafleet::publish::time_text(now_ms() + 3_600_000);
    fleet.publish_bare("echo", &[("ce_id", b"far"), ("ce_notbefore", at.as_bytes()), ("ce_name", b"n")], "7").await;
    let far = until("it waits at the tracker", || async { fleet.node("far").await.filter(|node| node.kept > 0) }).await;
    assert_eq!((far.state, far.policy.unwrap().name.as_deref()), (State::Scheduled, Some("n")));
    let after = fleet.publish("echo", "after", &json!(1)).await;
    fleet.ended("after").await;
    fleet.get(&format!("/v1/tasks/after?after={}", after.position)).await;
    fleet.agrees().await;
    fleet.stop().await;
}

/// A retry further away than `inline_retry_max` waits at the tracker, and goes on from the attempts used.
async fn a_long_retry_waits_at_the_tracker(mut fleet: Fleet) {
    fleet.worker.inline_retry_max = "100ms".parse().unwrap();
    fleet.start_worker();
    fleet.publish("fickle", "f", &json!({"failures": 2, "after_ms": 1_500})).await;
    let waits = until("it waits at the tracker", || async {
        fleet.node("f").await.filter(|node| node.kept > 0 || node.state.is_terminal())
    })
    .await;
    // One of the two waits, or seen too late: its history tells all the same.
    let seen = (waits.state, waits.attempt);
    assert!([(State::Retrying, 1), (State::Retrying, 2), (State::Succeeded, 3)].contains(&seen), "{seen:?}");
    let done = fleet.ended("f").await;
    assert_eq!((done.state, done.attempt, done.duplicates), (State::Succeeded, 3, 0));
    // Its producer's word may come behind the worker's first one.
    let beside = [Kind::Started, Kind::Submitted];
    let kinds: Vec<Kind> = done.history.iter().map(|entry| entry.kind).filter(|kind| !beside.contains(kind)).collect();
    let twice = [Kind::Retrying, Kind::Released];
    assert_eq!(kinds, [&twice[..], &twice, &[Kind::Succeeded]].concat());
    fleet.agrees().await;
    fleet.stop().await;
}

/// What failed below is started again in one run; the parents are healed, or not.
async fn a_retry_starts_again(mut fleet: Fleet) {
    fleet.start_worker();
    fleet
        .publish("branch", "r", &Branch { widths: vec![3, 2], held: None, failing: Some(vec![1, 1]), ..Branch::default() })
        .await;
    assert_eq!(fleet.ended("r").await.state, State::Failed);
    let (code, outcome) = post(&fleet, "/v1/tasks/r/retry", &json!({"only_failed": true, "reason": "again"})).await;
    assert_eq!((code, &outcome["run"]), (202, &json!(2)), "{outcome}");
    let again = until("it has failed again", || async {
        fleet.node("r:1:1").await.filter(|node| node.run == 2 && node.own.is_terminal())
    })
    .await;
    assert_eq!((again.state, fleet.node("r:1").await.unwrap().run), (State::Failed, 1));
    // The root itself: its children come again by themselves, in its run.
    fleet.ended("r").await;
    let (code, outcome) = post(&fleet, "/v1/tasks/r/retry", &json!({})).await;
    assert_eq!((code, &outcome["run"], &outcome["status"]["run"]), (202, &json!(3), &json!(3)), "{outcome}");
    let leaf = until("the leaf runs anew", || async {
        fleet.node("r:1:1").await.filter(|node| node.run == 3 && node.own.is_terminal())
    })
    .await;
    assert_eq!(leaf.asof, fleet.node("r").await.unwrap().asof, "what it spawns is as new as its retry");
    until("all of it has ended", || async { fleet.node("r").await.filter(|node| node.run == 3 && node.state == State::Failed) })
        .await;
    fleet.publish("leaf", "held", &Leaf { held: true, fails: false, fused: false }).await;
    until("it runs", || async { fleet.node("held").await.filter(|node| node.state == State::Running) }).await;
    let (code, problem) = post(&fleet, "/v1/tasks/held/retry", &json!({})).await;
    assert_eq!((code, &problem["code"]), (409, &json!("not_finished")));
    // Said only when the fold has caught up.
    let (code, problem) = until("an answer about nobody", || async {
        Some(post(&fleet, "/v1/tasks/nobody/retry", &json!({})).await).filter(|(code, _)| *code != 503)
    })
    .await;
    assert_eq!((code, &problem["code"]), (404, &json!("not_found")));
    fleet.gate.open();
    fleet.ended("held").await;
    fleet.agrees().await;
    fleet.stop().await;
}

cases! {
    a_task_starts_when_it_is_due,
    a_long_retry_waits_at_the_tracker,
    a_retry_starts_again,
}
