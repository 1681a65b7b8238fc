//! Starting waiting tasks now, singly and in bulk.

use kafleet::control::{ControlState, ControlWatch, follow_control};
use kafleet::documents::{Audit, BulkPreview, History, Reason, StartOutcome, Status, Why};
use kafleet::model::event::{AttemptFailure, Event, Kind, Payload};
use kafleet::model::json::RawJson;
use kafleet::model::outbox::RecordCopy;
use kafleet::model::record::state::State;
use kafleet::model::task::start::NextStart;
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{Fleet, eventually, fleet};

const HOUR_MS: i64 = 3_600_000;

/// Failed attempt, after which a worker waits for an hour.
fn waits_in_worker(event: &mut Event) {
    let failure = AttemptFailure::new("error", "down", 1);
    event.payload = Payload::Retrying { failure, due_ms: Some(now_ms() + HOUR_MS), record: None, waits: 0 };
    (event.attempt, event.worker) = (1, Some("w-1".into()));
}

/// Failed attempt, after which the tracker keeps the task for an hour.
fn waits_at_tracker(event: &mut Event) {
    waits_in_worker(event);
    let id = event.id.to_string();
    let record = RecordCopy::of(None, [("ce_id", id.as_bytes())].into_iter(), RawJson::null());
    event.payload.set_record(record);
}

async fn task_in(fleet: &Fleet, id: &str, kind: Kind, change: impl FnOnce(&mut Event)) {
    fleet.echo(id).await;
    fleet.publish_event(id, kind, change).await;
    fleet.folded().await;
}

/// Starts on the control topic.
async fn starts(fleet: &Fleet) -> Vec<(String, NextStart)> {
    let control = ControlWatch::new(ControlState::default());
    let _reading = follow_control(control.clone(), fleet.log.clone(), &fleet.names, None);
    control.wait_until_read().await;
    let state = control.state();
    let mut starts: Vec<_> = state.starts().map(|(id, start)| (id.to_owned(), start.next_start)).collect();
    starts.sort_by(|a, b| a.0.cmp(&b.0));
    starts
}

async fn start(fleet: &Fleet, id: &str) -> StartOutcome {
    let (status, answer) = fleet.post(&format!("/v1/tasks/{id}/start"), json!({"reason": "urgent"})).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer).unwrap()
}

#[tokio::test]
async fn only_waiting_tasks_are_started() {
    let fleet = fleet().await;
    fleet.echo("queued").await;
    task_in(&fleet, "running", Kind::Started, |event| (event.attempt, event.worker) = (1, Some("w-1".into()))).await;
    task_in(&fleet, "in-worker", Kind::Retrying, waits_in_worker).await;
    task_in(&fleet, "at-tracker", Kind::Retrying, waits_at_tracker).await;
    task_in(&fleet, "cancelling", Kind::Retrying, waits_in_worker).await;
    assert_eq!(fleet.post("/v1/tasks/cancelling/cancel", json!({})).await.0, 202);
    fleet.create(json!({"type": "echo", "id": "scheduled", "delay": "1h"})).await;
    fleet.create(json!({"type": "job", "id": "external", "external": true})).await;
    for (id, kind) in [("succeeded", Kind::Succeeded), ("failed", Kind::Failed), ("expired", Kind::Expired)] {
        task_in(&fleet, id, kind, |_| {}).await;
    }
    fleet.echo("parent").await;
    fleet.echo("parent:child").await;
    fleet.succeed("parent", json!(1)).await;
    fleet.announce("unknown:child", "echo", None).await;
    fleet.folded().await;
    for (id, expected) in [
        ("queued", "not_changeable"),
        ("running", "not_changeable"),
        ("in-worker", ""),
        ("at-tracker", ""),
        ("cancelling", "not_changeable"),
        ("scheduled", ""),
        ("external", "not_changeable"),
        ("succeeded", "already_finished"),
        ("failed", "already_finished"),
        ("expired", "already_finished"),
        ("parent", "already_finished"),
        ("unknown", "not_changeable"),
        ("nobody", "not_found"),
    ] {
        let status = fleet.request(Method::GET, &format!("/v1/tasks/{id}")).send().await.unwrap();
        let offered = status.json::<Status>().await.is_ok_and(|status| status.waits_for_a_time());
        assert_eq!(offered, expected.is_empty(), "{id}: what pages offer is what the API accepts");
        let request = fleet.request(Method::POST, &format!("/v1/tasks/{id}/start"));
        match expected {
            "" => drop(start(&fleet, id).await),
            code => assert_eq!(problem(request).await.code, code, "{id}"),
        }
    }
}

#[tokio::test]
async fn wait_in_a_worker_ends_by_a_record_on_the_control_topic() {
    let fleet = fleet().await;
    task_in(&fleet, "a", Kind::Retrying, waits_in_worker).await;
    let StartOutcome { status, .. } = start(&fleet, "a").await;
    assert_eq!((status.state, status.attempt), (State::Retrying, 1));
    assert!(status.due_at.unwrap() <= kafleet::model::units::time::time_text(now_ms()));
    let next_start = NextStart { run: 1, attempts: 1, waits: 0 };
    assert_eq!(starts(&fleet).await, [("a".to_owned(), next_start)]);
    let again = start(&fleet, "a").await;
    assert_eq!(again.status.state, State::Retrying, "a repeated start is accepted");
    assert_eq!(starts(&fleet).await, [("a".to_owned(), next_start)]);
    let history: History = fleet.get("/v1/tasks/a/history").await;
    let entry = history.events.iter().find(|event| event.kind == "patched").unwrap();
    assert_eq!((entry.message.as_deref(), entry.ignored), (Some("urgent"), false));
    let audit: Audit = fleet.get("/v1/audit").await;
    assert_eq!((audit.requests[0].action.as_str(), audit.requests[0].target.as_str()), ("start", "a"));
    let patched: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!(patched.fields.name, None);
}

#[tokio::test]
async fn wait_at_the_tracker_ends_by_the_event() {
    let fleet = fleet().await;
    task_in(&fleet, "a", Kind::Retrying, waits_at_tracker).await;
    let before = fleet.published("echo");
    start(&fleet, "a").await;
    eventually("the task is released", async || fleet.get::<Status>("/v1/tasks/a").await.state == State::Queued).await;
    assert_eq!(fleet.published("echo"), before + 1, "its record is published once");
    assert_eq!(starts(&fleet).await, [], "no worker has the task");
    let refused = problem(fleet.request(Method::POST, "/v1/tasks/a/start")).await;
    assert!(refused.detail.contains("it is queued"), "{refused:?}");
}

#[tokio::test]
async fn answer_and_why_name_what_still_holds_the_task() {
    let fleet = fleet().await;
    task_in(&fleet, "a", Kind::Retrying, waits_in_worker).await;
    let body = json!({"state": "open", "reason": "the bureau is closed"});
    let opened = fleet.request(Method::PUT, "/v1/types/echo/circuit").json(&body).send().await.unwrap();
    assert_eq!(opened.status(), 200);
    let explanation: Why = fleet.get("/v1/tasks/a/why").await;
    let codes = |explanation: &Why| explanation.findings.iter().map(|finding| finding.code).collect::<Vec<_>>();
    assert_eq!(codes(&explanation), [Reason::Retrying], "its delay holds it");
    let outcome = start(&fleet, "a").await;
    assert_eq!(outcome.held_by[0].code, Reason::CircuitOpen);
    assert!(outcome.held_by[0].message.contains("the circuit of `echo`"), "{:?}", outcome.held_by);
    let explanation: Why = fleet.get("/v1/tasks/a/why").await;
    assert_eq!(
        (codes(&explanation)[0], codes(&explanation).last().copied()),
        (Reason::CircuitOpen, Some(Reason::Retrying))
    );
    assert!(explanation.findings.last().unwrap().message.contains("has been due since"), "{explanation:?}");
}

#[tokio::test]
async fn bulk_action_starts_waiting_retries() {
    let fleet = fleet().await;
    for id in ["in-worker", "other"] {
        task_in(&fleet, id, Kind::Retrying, waits_in_worker).await;
    }
    task_in(&fleet, "at-tracker", Kind::Retrying, waits_at_tracker).await;
    fleet.create(json!({"type": "echo", "id": "scheduled", "delay": "1h"})).await;
    fleet.echo("queued").await;
    fleet.folded().await;
    start(&fleet, "other").await;
    let selection = json!({"action": "start_now", "q": "type:echo"});
    let preview: BulkPreview =
        fleet.request(Method::POST, "/v1/bulk/preview").json(&selection).send().await.unwrap().json().await.unwrap();
    assert_eq!((preview.matching, preview.changing), (5, 3), "{preview:?}");
    let causes: Vec<&str> = preview.unchanged.iter().map(|unchanged| unchanged.cause.as_str()).collect();
    assert!(causes.contains(&"due already") && causes.len() == 2, "{causes:?}");
    let (status, bulk) = fleet.post("/v1/bulk", selection).await;
    assert_eq!(status, 202, "{bulk}");
    let path = format!("/v1/tasks/{}", bulk["id"].as_str().unwrap());
    eventually("the end of the bulk action", async || fleet.get::<Status>(&path).await.state.is_terminal()).await;
    assert_eq!(fleet.get::<Value>(&path).await["result"]["done"], json!(3));
    for id in ["at-tracker", "scheduled"] {
        let status = || async { fleet.get::<Status>(&format!("/v1/tasks/{id}")).await.state };
        eventually("the task is released", async || status().await == State::Queued).await;
    }
    let in_worker: Vec<String> = starts(&fleet).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(in_worker, ["in-worker", "other"]);
}
