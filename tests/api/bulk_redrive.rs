//! Bulk redrives of dead letters: selection, changed params, limits, and a crash between redrive and progress.

use kafleet::broker::BrokerError;
use kafleet::documents::{Audit, BulkOptions, BulkPreview, DeadLetterDetail, DeadLetterOutcome, Failures, Status};
use kafleet::model::event::{AttemptFailure, Payload};
use kafleet::model::record::state::State;
use kafleet_testkit::faults::Call;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::bulk::{ended, order, progress};
use crate::api::client::problem;
use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{Fleet, eventually};

/// Creates a failed task of the type `resize`, and its dead letter.
async fn dead_resize(fleet: &Fleet, id: &str, kind: &str, params: Value) -> String {
    fleet.create(json!({"type": "resize", "id": id, "name": "photo", "params": {"url": "a", "width": 1}})).await;
    fleet.publish_event(id, Payload::Failed(AttemptFailure::new(kind, format!("photo {id}"), 1)), |_| {}).await;
    fleet.folded().await;
    let (value, headers) = (params.to_string(), [("ce_id", id.as_bytes())]);
    let letter = NewLetter { task_type: "resize", key: id, task: Some((id, 1)), headers: &headers, ..LETTER };
    fleet.letter(NewLetter { value: value.as_bytes(), ..letter }, 0).await
}

async fn preview(fleet: &Fleet, selection: Value) -> BulkPreview {
    let answer = fleet.request(Method::POST, "/v1/bulk/preview").json(&selection).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

async fn run_of(fleet: &Fleet, id: &str) -> u32 {
    fleet.get::<Status>(&format!("/v1/tasks/{id}")).await.run
}

#[tokio::test]
async fn letters_of_a_kind_are_redriven_with_a_reason_and_one_audit_entry() {
    let fleet = with_letters().await;
    let letter = dead_resize(&fleet, "a", "Timeout", json!({"url": "a", "width": 1})).await;
    dead_resize(&fleet, "b", "Timeout", json!({"url": "b", "width": 1})).await;
    dead_resize(&fleet, "c", "NoSpace", json!({"url": "c", "width": 1})).await;
    let letters = json!({"type": "resize", "kind": "Timeout"});
    let seen = preview(&fleet, json!({"action": "redrive", "letters": letters})).await;
    assert_eq!((seen.matching, seen.changing, seen.exact, seen.sample.len()), (2, 2, true, 2));
    let sample = seen.tasks.iter().find(|task| task.id.as_deref() == Some("a")).unwrap();
    assert_eq!((sample.state, sample.letter.as_deref()), (Some(State::Failed), Some(letter.as_str())));
    assert_eq!((sample.error.as_deref(), sample.name.as_deref()), (Some("Timeout: photo a"), Some("photo")));
    let action = order(&fleet, json!({"action": "redrive", "letters": letters, "reason": "more memory"})).await;
    let action = ended(&fleet, &action.id).await;
    let mut counted = progress(&action);
    counted.changed.sort();
    assert_eq!((action.state, counted.done, counted.skipped, counted.refused), (State::Succeeded, 2, 0, 0));
    assert_eq!(counted.changed, ["a", "b"]);
    assert_eq!([run_of(&fleet, "a").await, run_of(&fleet, "b").await, run_of(&fleet, "c").await], [2, 2, 1]);
    assert_eq!(fleet.listed("").await.len(), 1);
    let options = BulkOptions::of(&action).unwrap();
    assert_eq!((options.selection().as_str(), options.q.as_str()), ("type:resize kind:Timeout", ""));
    let history: Value = fleet.get("/v1/tasks/a/history").await;
    assert!(history.to_string().contains(&format!("redriven from the dead letter {letter}: more memory")), "{history}");
    let audit: Audit = fleet.get("/v1/audit").await;
    let entries: Vec<(&str, Option<&str>)> =
        audit.requests.iter().map(|request| (request.action.as_str(), request.reason.as_deref())).collect();
    assert_eq!(entries, [("bulk_redrive", Some("more memory"))]);
}

#[tokio::test]
async fn patched_params_are_checked_for_each_letter() {
    let fleet = with_letters().await;
    dead_resize(&fleet, "wide", "Timeout", json!({"url": "a", "width": 9_000})).await;
    let odd = dead_resize(&fleet, "odd", "Timeout", json!({"width": 9_000})).await;
    let request = json!({"action": "redrive", "letters": {"type": "resize"}, "patch": {"width": 200}});
    let seen = preview(&fleet, request.clone()).await;
    assert_eq!((seen.matching, seen.changing, seen.unchanged.len()), (2, 1, 1), "{seen:?}");
    let invalid = &seen.unchanged[0];
    assert_eq!((invalid.cause.as_str(), invalid.tasks), ("The params do not match the type's schema", 1));
    assert!(invalid.example.as_deref().is_some_and(|example| example.contains(&odd)), "{invalid:?}");
    let action = order(&fleet, request).await;
    let counted = progress(&ended(&fleet, &action.id).await);
    assert_eq!((counted.done, counted.refused, counted.refusals[0].id.as_str()), (1, 1, odd.as_str()), "{counted:?}");
    assert!(counted.refusals[0].cause.contains("the changed params of"), "{counted:?}");
    eventually("the changed params", async || {
        let answer = fleet.request(Method::GET, "/v1/tasks/wide/params").send().await.unwrap();
        answer.json::<Value>().await.unwrap()["params"] == json!({"url": "a", "width": 200})
    })
    .await;
    assert_eq!(run_of(&fleet, "odd").await, 1);
}

#[tokio::test]
async fn redrive_stops_at_its_limit_and_fails_if_more_would_run() {
    let fleet = with_letters().await;
    for n in 0..3 {
        fleet.dead_task(&format!("t{n}"), 0).await;
    }
    let letters = json!({"type": "echo"});
    let action = order(&fleet, json!({"action": "redrive", "letters": letters, "limit": 2})).await;
    let action = ended(&fleet, &action.id).await;
    assert_eq!((action.state, progress(&action).done), (State::Failed, 2));
    assert!(action.error.unwrap().message.contains("more than 2 tasks"));
    assert_eq!(fleet.listed("").await.len(), 1);
    let action = order(&fleet, json!({"action": "redrive", "letters": letters, "limit": 1})).await;
    assert_eq!(ended(&fleet, &action.id).await.state, State::Succeeded, "the limit is not exceeded");
}

/// The letters of a step are resolved before the progress that counts them is written.
#[tokio::test]
async fn letters_are_counted_once_if_the_progress_is_lost() {
    let fleet = with_letters().await;
    for n in 0..3 {
        fleet.dead_task(&format!("t{n}"), 0).await;
    }
    let dead = fleet.names.dead("echo");
    let is_progress = move |call: &Call<'_>| {
        matches!(call, Call::Transaction(_)) && call.records_of(".events") > 0 && call.records_of(&dead) == 0
    };
    // The first one claims the action.
    let lost = fleet.faults.on(is_progress).after(1).times(1).fail(BrokerError::Unavailable("on purpose".into()));
    let action = order(&fleet, json!({"action": "redrive", "letters": {"type": "echo"}})).await;
    let action = ended(&fleet, &action.id).await;
    assert_eq!((action.state, progress(&action).done, lost.hits()), (State::Succeeded, 3, 1), "{action:?}");
    assert_eq!([fleet.asked("t0"), fleet.asked("t1"), fleet.asked("t2")], [1, 1, 1]);
}

#[tokio::test]
async fn letters_are_selected_by_ids() {
    let fleet = with_letters().await;
    let (selected, other) = (fleet.dead_task("a", 0).await, fleet.dead_task("b", 0).await);
    let action = order(&fleet, json!({"action": "redrive", "ids": [selected, "echo:0:99"]})).await;
    let counted = progress(&ended(&fleet, &action.id).await);
    assert_eq!((counted.done, counted.refused, counted.refusals[0].id.as_str()), (1, 1, "echo:0:99"));
    assert_eq!(fleet.listed("").await, [other]);
}

#[tokio::test]
async fn redrive_without_a_valid_selection_is_refused() {
    let fleet = with_letters().await;
    for (body, code) in [
        (json!({"action": "redrive"}), "bad_field"),
        (json!({"action": "redrive", "q": "type:echo"}), "bad_field"),
        (json!({"action": "redrive", "ids": ["echo"]}), "bad_id"),
        (json!({"action": "redrive", "ids": ["echo:0:1"], "letters": {"type": "echo"}}), "bad_field"),
        (json!({"action": "redrive", "letters": {}}), "bad_field"),
        (json!({"action": "redrive", "letters": {"type": "nope"}}), "unknown_type"),
        (json!({"action": "redrive", "letters": {"type": "echo", "error": "odd"}}), "bad_field"),
        (json!({"action": "redrive", "letters": {"type": "echo", "from": "soon"}}), "bad_field"),
    ] {
        for path in ["/v1/bulk", "/v1/bulk/preview"] {
            assert_eq!(problem(fleet.request(Method::POST, path).json(&body)).await.code, code, "{path} {body}");
        }
    }
}

#[tokio::test]
async fn reason_of_one_letter_is_in_its_history_and_in_the_audit() {
    let fleet = with_letters().await;
    let (redriven, dropped) = (fleet.dead_task("a", 0).await, fleet.dead_task("b", 0).await);
    for (letter, verb) in [(&redriven, "redrive"), (&dropped, "drop")] {
        let path = format!("/v1/dead-letters/{letter}/{verb}");
        let (status, answer) = fleet.post(&path, json!({"reason": format!("to {verb} it")})).await;
        assert_eq!(status, 200, "{answer}");
    }
    let too_long = fleet.post(&format!("/v1/dead-letters/{dropped}/drop"), json!({"reason": "x".repeat(2_001)})).await;
    assert_eq!((too_long.0, too_long.1["pointer"].as_str()), (400, Some("/reason")));
    fleet.folded().await;
    let history: Value = fleet.get("/v1/tasks/b/history").await;
    assert!(history.to_string().contains("was dropped: to drop it"), "{history}");
    let audit: Audit = fleet.get("/v1/audit").await;
    let reasons: Vec<&str> = audit.requests.iter().filter_map(|request| request.reason.as_deref()).collect();
    assert!(reasons.contains(&"to redrive it"), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.ends_with("to drop it")), "{reasons:?}");
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{dropped}")).await;
    assert_eq!(shown.outcome, Some(DeadLetterOutcome::Dropped));
}

#[tokio::test]
async fn failures_count_their_dead_letters() {
    let fleet = with_letters().await;
    dead_resize(&fleet, "a", "Timeout", json!({"url": "a", "width": 1})).await;
    dead_resize(&fleet, "b", "Timeout", json!({"url": "a", "width": 1})).await;
    fleet.echo("c").await;
    fleet.fail("c", "no dead letter").await;
    fleet.letter(NewLetter { task: None, code: "bad_json", ..LETTER }, 0).await;
    fleet.folded().await;
    let failures: Failures = fleet.get("/v1/failures?by=kind").await;
    let counts: Vec<(&str, Option<u64>)> =
        failures.groups.iter().map(|group| (group.task_type.as_str(), group.dead_letters)).collect();
    assert_eq!(counts, [("resize", Some(2)), ("echo", Some(0))]);
    assert_eq!((failures.other_dead_letters, failures.dead_letters_at_least), (Some(1), false));
    let failures: Failures = fleet.get("/v1/failures?with_dead_letters=true").await;
    let messages: Vec<(&str, Option<u64>)> =
        failures.groups.iter().map(|group| (group.task_type.as_str(), group.dead_letters)).collect();
    assert_eq!(messages, [("resize", Some(1)), ("resize", Some(1))]);
    let error = &failures.groups[0].error;
    assert_eq!(fleet.listed(&format!("?type=resize&error={error}")).await.len(), 1);
    assert_eq!(fleet.listed("?kind=Timeout").await.len(), 2);
    assert_eq!(fleet.listed("?without_failure=true").await.len(), 1);
}
