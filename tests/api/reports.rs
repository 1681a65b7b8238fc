//! Reports about external tasks.

use kafleet::config::ApiConfig;
use kafleet::documents::{History, ReportOutcome, Status};
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::{problem, refusal};
use crate::api::fixture::{Fleet, fleet, unfolded};

async fn report(fleet: &Fleet, id: &str, body: Value) -> ReportOutcome {
    let answer = fleet.request(Method::PUT, &format!("/v1/tasks/{id}/state")).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn reports_are_applied_in_order_until_the_end() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "review", "id": "e", "external": true})).await;
    fleet.folded().await;
    for (state, shown, ignored) in [
        ("running", State::Running, false),
        ("warning", State::Warning, false),
        ("queued", State::Queued, false),
        ("running", State::Running, false),
        ("succeeded", State::Succeeded, false),
        ("failed", State::Succeeded, true),
        ("running", State::Succeeded, true),
    ] {
        let outcome = report(&fleet, "e", json!({"state": state, "result": {"said": state}})).await;
        assert_eq!((outcome.status.state, outcome.ignored), (shown, ignored), "{state}");
    }
    let status: Status = fleet.get("/v1/tasks/e").await;
    assert_eq!(status.result.unwrap(), json!({"said": "succeeded"}));
    let history: History = fleet.get("/v1/tasks/e/history").await;
    assert_eq!((history.events.len(), history.events.iter().filter(|event| event.ignored).count()), (8, 2));
}

#[tokio::test]
async fn report_may_return_to_an_earlier_state_while_children_are_pending() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "review", "id": "e", "external": true})).await;
    fleet.folded().await;
    fleet.echo("e:c").await;
    let done = report(&fleet, "e", json!({"state": "succeeded"})).await;
    assert_eq!((done.status.state, done.ignored), (State::WaitingForChildren, false));
    let back = report(&fleet, "e", json!({"state": "running", "message": "not quite"})).await;
    assert_eq!((back.status.state, back.ignored), (State::Running, false));
    report(&fleet, "e", json!({"state": "waiting_for_children"})).await;
    let last = fleet.succeed("e:c", json!(1)).await;
    let status: Status = fleet.get(&format!("/v1/tasks/e?after={last}")).await;
    assert_eq!(status.state, State::Succeeded);
}

#[tokio::test]
async fn reported_failure_is_final_and_has_a_reason() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "review", "id": "e", "external": true, "block_when_done": false})).await;
    fleet.folded().await;
    let failed = report(&fleet, "e", json!({"state": "failed", "message": "no budget"})).await;
    assert_eq!((failed.status.state, failed.status.error.unwrap().message.as_str()), (State::Failed, "no budget"));
    let later = report(&fleet, "e", json!({"state": "succeeded"})).await;
    assert_eq!((later.status.state, later.ignored), (State::Failed, false));
}

#[tokio::test]
async fn oversized_report_is_rejected() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "review", "id": "e", "external": true})).await;
    let put = |body: Value| fleet.request(Method::PUT, "/v1/tasks/e/state").json(&body);
    let answer = problem(put(json!({"state": "succeeded", "result": "x".repeat(256 << 10)}))).await;
    assert_eq!((answer.code.as_str(), answer.pointer.as_deref()), ("too_large", Some("/result")));
    let answer = problem(put(json!({"state": "failed", "message": "x".repeat(2_001)}))).await;
    assert_eq!((answer.code.as_str(), answer.pointer.as_deref()), ("bad_field", Some("/message")));
}

#[tokio::test]
async fn late_outcome_of_a_report_advises_against_repeating() {
    let fleet = unfolded(ApiConfig::default()).await;
    let made = fleet.create(json!({"type": "review", "id": "e", "external": true})).await;
    fleet.track();
    let _: Status = fleet.get(&format!("/v1/tasks/e?after={}", made.position)).await;
    fleet.untrack().await;
    let answer = refusal(fleet.request(Method::PUT, "/v1/tasks/e/state").json(&json!({"state": "running"}))).await;
    assert_eq!(answer.code, "not_visible_yet");
    let hint = answer.hint.unwrap();
    assert!(hint.contains("do not repeat it"), "{hint}");
    fleet.track();
    fleet.folded().await;
    let after = hint.split("after=").nth(1).unwrap().trim_end_matches('`');
    let status: Status = fleet.get(&format!("/v1/tasks/e?after={after}")).await;
    assert_eq!(status.state, State::Running);
}
