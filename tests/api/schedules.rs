//! Recurring schedules over the API.

use kafleet::config::ApiConfig;
use kafleet::documents::{ScheduleDocument, ScheduleRequestOutcome, ScheduleTimes, Schedules};
use kafleet::model::units::time::time_text;
use kafleet::runtime::now_ms;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{Fleet, eventually, fleet, unfolded};

/// Far enough in the future not to fire during the test.
fn yearly() -> Value {
    json!({"cron": "0 0 1 1 *", "timezone": "Europe/Berlin", "task": {"type": "echo", "params": {"n": 1}}})
}

async fn create(fleet: &Fleet, id: &str, spec: Value) -> ScheduleDocument {
    let (status, document) = fleet.post("/v1/schedules", json!({"id": id, "spec": spec})).await;
    assert_eq!(status, 201, "{document}");
    serde_json::from_value(document).unwrap()
}

async fn put(fleet: &Fleet, id: &str, spec: Value) -> (StatusCode, ScheduleDocument) {
    let answer = fleet.request(Method::PUT, &format!("/v1/schedules/{id}")).json(&spec).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

#[tokio::test]
async fn schedule_is_created_changed_paused_and_deleted() {
    let fleet = fleet().await;
    let made = create(&fleet, "nightly", yearly()).await;
    assert_eq!((made.next.len(), made.paused, made.last, made.owner), (5, None, None, None));
    assert!(made.next[0].ends_with("-12-31T23:00:00.000Z"), "{:?}", made.next);
    let (_, twice) = fleet.post("/v1/schedules", json!({"id": "nightly", "spec": yearly()})).await;
    assert_eq!(twice["code"], "duplicate_schedule");
    let mut spec = yearly();
    spec["overlap"] = json!("replace");
    let (status, changed) = put(&fleet, "nightly", spec).await;
    assert_eq!((status, changed.spec.overlap.name()), (StatusCode::OK, "replace"));
    assert_eq!(put(&fleet, "other", yearly()).await.0, StatusCode::CREATED);
    let all: Schedules = fleet.get("/v1/schedules").await;
    assert_eq!(all.schedules.iter().map(|schedule| schedule.id.as_str()).collect::<Vec<_>>(), ["nightly", "other"]);
    let (status, paused) = fleet.post("/v1/schedules/nightly/pause", json!({"reason": "a look"})).await;
    assert_eq!((status, &paused["paused"]["reason"]), (200, &json!("a look")));
    let (_, resumed) = fleet.post("/v1/schedules/nightly/resume", json!({})).await;
    assert_eq!(resumed["paused"], Value::Null);
    let times: ScheduleTimes = fleet.get("/v1/schedules/nightly/times?count=2&after=2030-06-01T00:00:00Z").await;
    assert_eq!(times.times, ["2030-12-31T23:00:00.000Z", "2031-12-31T23:00:00.000Z"]);
    assert!(fleet.request(Method::DELETE, "/v1/schedules/nightly").send().await.unwrap().status().is_success());
    for path in ["", "/times"] {
        assert_eq!(fleet.problem(&format!("/v1/schedules/nightly{path}")).await.code, "unknown_schedule");
    }
    assert_eq!(problem(fleet.request(Method::DELETE, "/v1/schedules/nightly")).await.code, "unknown_schedule");
}

/// Each change writes the whole schedule, and must not undo another one that is under way.
#[tokio::test]
async fn simultaneous_changes_of_a_schedule_all_remain() {
    let fleet = fleet().await;
    create(&fleet, "nightly", yearly()).await;
    for round in 0..10 {
        let mut spec = yearly();
        spec["task"]["params"]["n"] = json!(round);
        let (paused, changed) =
            tokio::join!(fleet.post("/v1/schedules/nightly/pause", json!({})), put(&fleet, "nightly", spec));
        assert_eq!((paused.0, changed.0), (200, StatusCode::OK));
        let now: ScheduleDocument = fleet.get("/v1/schedules/nightly").await;
        assert!(now.paused.is_some(), "the pause of round {round} is lost");
        assert_eq!(now.spec.task.params.value().unwrap()["n"], json!(round), "the change of round {round} is lost");
        assert_eq!(fleet.post("/v1/schedules/nightly/resume", json!({})).await.0, 200);
    }
}

#[tokio::test]
async fn schedule_runs_on_request_and_backfills() {
    let fleet = fleet().await;
    create(&fleet, "s", yearly()).await;
    let (status, asked) = fleet.post("/v1/schedules/s/trigger", Value::Null).await;
    let asked: ScheduleRequestOutcome = serde_json::from_value(asked).unwrap();
    assert_eq!((status, asked.tasks.len()), (202, 1));
    eventually("the task of the run is visible", async || {
        let shown: ScheduleDocument = fleet.get("/v1/schedules/s").await;
        shown.last.is_some_and(|last| last.task == asked.tasks[0] && last.state.is_some())
    })
    .await;
    let path = "/v1/schedules/s/backfill?from=2020-01-01T00:00:00%2B01:00&to=2022-06-01T00:00:00Z";
    for _ in 0..2 {
        let (status, asked) = fleet.post(path, Value::Null).await;
        let asked: ScheduleRequestOutcome = serde_json::from_value(asked).unwrap();
        assert_eq!(
            (status, asked.tasks),
            (202, vec!["s.20191231T230000Z".into(), "s.20201231T230000Z".into(), "s.20211231T230000Z".into()])
        );
    }
    eventually("the backfill is processed", async || {
        let shown: ScheduleDocument = fleet.get("/v1/schedules/s").await;
        shown.recent[0].count == 3 && shown.recent[0].outcome.name() == "backfilled"
    })
    .await;
}

#[tokio::test]
async fn invalid_schedules_are_rejected() {
    let fleet = unfolded(ApiConfig::default()).await;
    let with = |key: &str, value: Value| {
        let mut spec = yearly();
        spec[key] = value;
        spec
    };
    for (spec, status, code, pointer) in [
        (with("cron", json!("x")), 400, "bad_field", "/spec/cron"),
        (with("timezone", json!("Mars")), 400, "bad_field", "/spec/timezone"),
        (with("every", json!("1h")), 400, "bad_field", "/spec/every"),
        (with("overlap", json!("both")), 400, "bad_field", "/spec/overlap"),
        (with("delay", json!("1h")), 400, "unknown_field", "/spec/delay"),
        (with("task", json!({"type": "ehco"})), 404, "unknown_type", "/spec/task/type"),
        (
            with("task", json!({"type": "echo", "then": [{"type": "ehco"}]})),
            404,
            "unknown_type",
            "/spec/task/then/0/type",
        ),
        (
            with("task", json!({"type": "resize", "params": {"url": 1, "width": 2}})),
            422,
            "schema",
            "/spec/task/params/url",
        ),
        (with("task", json!({"type": "echo", "id": "x"})), 400, "unknown_field", "/spec/task/id"),
    ] {
        let (answer, refusal) = fleet.post("/v1/schedules", json!({"id": "s", "spec": spec})).await;
        assert_eq!(
            (answer, refusal["code"].as_str(), refusal["pointer"].as_str()),
            (status, Some(code), Some(pointer)),
            "{refusal}"
        );
    }
    let (_, refusal) = fleet.post("/v1/schedules", json!({"id": "a:b", "spec": yearly()})).await;
    assert_eq!((refusal["code"].as_str(), refusal["pointer"].as_str()), (Some("bad_field"), Some("/id")));
    create(&fleet, "s", json!({"every": "1h", "task": {"type": "echo"}})).await;
    let future = time_text(now_ms() + 86_400_000);
    for (query, code) in [
        ("", "bad_parameter"),
        ("?from=soon", "bad_parameter"),
        ("?from=2020-01-01T00:00:00Z&to=2019-01-01T00:00:00Z", "bad_parameter"),
        (&format!("?from=2020-01-01T00:00:00Z&to={future}"), "bad_parameter"),
        ("?from=2020-01-01T00:00:00Z&to=2021-01-01T00:00:00Z", "too_many_times"),
    ] {
        let (_, refusal) = fleet.post(&format!("/v1/schedules/s/backfill{query}"), Value::Null).await;
        assert_eq!(refusal["code"], code, "{query}: {refusal}");
    }
}

#[tokio::test]
async fn backfill_from_a_time_beyond_all_calendars_is_refused() {
    let fleet = fleet().await;
    create(&fleet, "nightly", yearly()).await;
    let path = "/v1/schedules/nightly/backfill?from=-9223372036854775808";
    let refused = problem(fleet.request(Method::POST, path)).await;
    assert_eq!((refused.status, refused.code.as_str()), (400, "bad_parameter"), "{refused:?}");
    let (status, answer) = fleet.post("/v1/schedules/nightly/backfill?from=-253402207200999", json!(null)).await;
    assert!(status < 500, "{answer}");
}
