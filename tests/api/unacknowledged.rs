//! Writes that Kafka does not acknowledge have an unknown outcome, which the response reports.

use kafleet::documents::Status;
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::{Client, problem};
use crate::api::fixture::{eventually, fleet};

impl Client {
    /// Expects an unknown outcome and returns the hint.
    async fn is_unknown(&self, method: Method, path: &str, body: Option<Value>) -> String {
        let request = self.request(method.clone(), path);
        let answer = problem(body.into_iter().fold(request, |request, body| request.json(&body))).await;
        assert_eq!((answer.status, &*answer.code), (503, "outcome_unknown"), "{method} {path}: {answer:?}");
        assert!(answer.detail.contains("may or may not have been written"), "{method} {path}: {answer:?}");
        let hint = answer.hint.unwrap_or_default();
        assert!(hint.contains("repeat"), "{method} {path}: {hint}");
        hint
    }
}

#[tokio::test]
async fn writes_without_an_acknowledgement_have_an_unknown_outcome() {
    let fleet = fleet().await;
    for id in ["a", "failed"] {
        fleet.echo(id).await;
    }
    fleet.fail("failed", "broken").await;
    fleet.create(json!({"type": "review", "id": "x", "external": true})).await;
    fleet.create(json!({"type": "echo", "id": "later", "delay": "1h"})).await;
    let attached =
        fleet.request(Method::PUT, "/v1/tasks/a/attachments/n").header("content-type", "text/plain").body("1");
    assert_eq!(attached.send().await.unwrap().status(), 200);
    let schedule = json!({"id": "s", "spec": {"cron": "0 3 * * *", "task": {"type": "echo"}}});
    assert_eq!(fleet.post("/v1/schedules", schedule).await.0, 201);
    let kill = fleet.request(Method::PUT, "/v1/kill-switches/off").json(&json!({})).send().await.unwrap();
    assert_eq!(kill.status(), 200);
    fleet.folded().await;

    let unacknowledged = fleet.faults.unacknowledged_writes();
    let spec = || Some(json!({"cron": "0 4 * * *", "task": {"type": "echo"}}));
    let writes = [
        (Method::POST, "/v1/tasks/a/cancel", Some(json!({}))),
        (Method::PATCH, "/v1/tasks/later", Some(json!({"delay": "2h"}))),
        (Method::PUT, "/v1/tasks/x/state", Some(json!({"state": "running"}))),
        (Method::DELETE, "/v1/tasks/a/attachments/n", None),
        (Method::POST, "/v1/types/echo/pause", None),
        (Method::POST, "/v1/types/echo/resume", None),
        (Method::PUT, "/v1/types/echo/limits", Some(json!({"slots": 2}))),
        (Method::PUT, "/v1/kill-switches/batch", Some(json!({}))),
        (Method::DELETE, "/v1/kill-switches/off", None),
        (Method::PUT, "/v1/schedules/s", spec()),
        (Method::POST, "/v1/schedules/s/pause", None),
        (Method::POST, "/v1/schedules/s/backfill?from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z", None),
        (Method::DELETE, "/v1/schedules/s", None),
    ];
    for (method, path, body) in writes {
        let hint = fleet.is_unknown(method, path, body).await;
        assert!(hint.contains("it is safe to repeat"), "{path}: {hint}");
    }
    // Repeating these requests may have a second effect.
    let hint = fleet.is_unknown(Method::POST, "/v1/tasks/failed/retry", None).await;
    assert!(hint.contains("while `run` of the task is unchanged"), "{hint}");
    let hint = fleet.is_unknown(Method::POST, "/v1/tasks/a/log", Some(json!({"lines": ["1"]}))).await;
    assert!(hint.contains("the lines twice"), "{hint}");
    let hint = fleet.is_unknown(Method::POST, "/v1/schedules/s/trigger", None).await;
    assert!(hint.contains("starts a second one"), "{hint}");

    unacknowledged.lift();
    assert_eq!(fleet.post("/v1/tasks/a/cancel", json!({})).await.0, 202);
    eventually("the cancel", async || {
        let status: Status = fleet.get("/v1/tasks/a").await;
        matches!(status.state, State::Cancelling | State::Cancelled)
    })
    .await;
}
