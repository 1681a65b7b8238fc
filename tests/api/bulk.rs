//! Bulk actions: `POST /v1/bulk` and its preview, limits, access, and the takeover of a runner that died.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kafleet::config::{ApiConfig, Role, TokenConfig};
use kafleet::documents::{Audit, BulkOptions, BulkPreview, BulkProgress, Problem, Status, TaskPage};
use kafleet::model::event::{AttemptFailure, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::model::task::partition::partition_of;
use kafleet::store::Store;
use kafleet_testkit::faults::Call;
use kafleet_testkit::faults::full;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, PARTITIONS, eventually, fleet, unfolded};

/// Search for the failed tasks of the fixture.
const FAILED: &str = "type:echo state:failed tag:bulk";

fn name(n: usize) -> String {
    format!("bulk-{n:04}")
}

/// Creates tasks that fail.
async fn failed_tasks(fleet: &Fleet, count: usize) {
    let tasks: Vec<Value> = (0..count).map(|n| json!({"type": "echo", "id": name(n), "tags": ["bulk"]})).collect();
    let answer = fleet.request(Method::POST, "/v1/batches").json(&tasks).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    for n in 0..count {
        fleet.fail(&name(n), "no answer from 10.0.0.7").await;
    }
    fleet.folded().await;
}

pub async fn order(fleet: &Fleet, body: Value) -> Status {
    let answer = fleet.request(Method::POST, "/v1/bulk").json(&body).send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(status, StatusCode::ACCEPTED, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn refused(fleet: &Fleet, method: Method, path: &str, body: Value) -> (u16, String) {
    let answer = fleet.request(method, path).json(&body).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json::<Problem>().await.unwrap().code)
}

/// Waits until a bulk action has ended.
pub async fn ended(fleet: &Fleet, id: &str) -> Status {
    eventually("the end of the bulk action", async || {
        fleet.get::<Status>(&format!("/v1/tasks/{id}")).await.state.is_terminal()
    })
    .await;
    fleet.folded().await;
    fleet.get(&format!("/v1/tasks/{id}")).await
}

pub fn progress(task: &Status) -> BulkProgress {
    task.progress.as_ref().map(|progress| serde_json::from_str(progress.text()).unwrap()).unwrap_or_default()
}

async fn runs(fleet: &Fleet, count: usize) -> Vec<u32> {
    let mut runs = Vec::new();
    for n in 0..count {
        runs.push(fleet.get::<Status>(&format!("/v1/tasks/{}", name(n))).await.run);
    }
    runs
}

#[tokio::test]
async fn matching_tasks_are_retried_and_the_bulk_action_is_audited() {
    let fleet = fleet().await;
    failed_tasks(&fleet, 25).await;
    fleet.create(json!({"type": "echo", "id": "other", "tags": ["bulk"]})).await;
    let selection = json!({"action": "retry", "q": FAILED});
    let preview: BulkPreview =
        fleet.request(Method::POST, "/v1/bulk/preview").json(&selection).send().await.unwrap().json().await.unwrap();
    assert_eq!((preview.matching, preview.changing, preview.exact, preview.sample.len()), (25, 25, true, 10));
    let task = order(&fleet, json!({"action": "retry", "q": FAILED, "reason": "the network is back"})).await;
    let task = ended(&fleet, &task.id).await;
    let BulkProgress { done, skipped, refused, runner, .. } = progress(&task);
    assert_eq!((task.state, done, skipped, refused, runner.as_str()), (State::Succeeded, 25, 0, 0, ""));
    assert_eq!(task.result.unwrap().value().unwrap()["done"], 25);
    assert_eq!(runs(&fleet, 25).await, vec![2; 25]);
    assert_eq!(fleet.get::<Status>("/v1/tasks/other").await.run, 1);
    let history: Value = fleet.get(&format!("/v1/tasks/{}/history", name(3))).await;
    assert!(history.to_string().contains("the network is back"), "{history}");
    let audit: Audit = fleet.get("/v1/audit").await;
    let actions: Vec<(&str, &str)> =
        audit.requests.iter().map(|request| (request.action.as_str(), request.target.as_str())).collect();
    assert_eq!(actions, [("bulk_retry", task.id.as_str())], "the bulk action replaces its requests in the audit log");
    let listed: TaskPage = fleet.get("/v1/bulk").await;
    assert_eq!(listed.tasks.iter().map(|listed| &listed.id).collect::<Vec<_>>(), [&task.id]);
}

/// A parent counts its children by their runs: with a run for each retried child its record would grow with them.
#[tokio::test]
async fn children_retried_by_one_action_share_a_run() {
    const CHILDREN: usize = 40;
    let fleet = fleet().await;
    fleet.echo("order").await;
    let child = |n: usize| json!({"type": "echo", "id": name(n), "parent": "order", "tags": ["bulk"]});
    let children: Vec<Value> = (0..CHILDREN).map(child).collect();
    assert_eq!(fleet.request(Method::POST, "/v1/batches").json(&children).send().await.unwrap().status(), 200);
    for n in 0..CHILDREN {
        fleet.fail(&format!("order:{}", name(n)), "no answer from 10.0.0.7").await;
    }
    fleet.succeed("order", json!(1)).await;
    fleet.folded().await;
    let task = order(&fleet, json!({"action": "retry", "q": format!("{FAILED} level:any")})).await;
    assert_eq!(progress(&ended(&fleet, &task.id).await).done, CHILDREN as u64);
    let parent = TaskId::parse("order").unwrap();
    let partition = partition_of(b"order", PARTITIONS);
    let record = fleet.memory.task_records(partition, &[parent]).await.unwrap().pop().flatten().unwrap();
    assert_eq!(record.tree.below.len(), 1, "{:?}", record.tree.below);
    let status: Status = fleet.get("/v1/tasks/order").await;
    assert_eq!((status.children.pending, status.children.total), (CHILDREN as u64, CHILDREN as u64));
}

#[tokio::test]
async fn action_stops_at_its_limit_and_fails() {
    let fleet = fleet().await;
    failed_tasks(&fleet, 15).await;
    let task = order(&fleet, json!({"action": "retry", "q": FAILED, "limit": 10})).await;
    let task = ended(&fleet, &task.id).await;
    assert_eq!((task.state, progress(&task).done), (State::Failed, 10));
    assert!(task.error.unwrap().message.contains("more than 10 tasks"));
    assert_eq!(runs(&fleet, 15).await.into_iter().filter(|run| *run == 2).count(), 10);
}

#[tokio::test]
async fn tasks_are_selected_by_ids_and_cancelled() {
    let fleet = fleet().await;
    for id in ["a", "b", "c"] {
        fleet.create(json!({"type": "echo", "id": id})).await;
    }
    fleet.succeed("c", json!(1)).await;
    fleet.folded().await;
    let task = order(&fleet, json!({"action": "cancel", "ids": ["a", "c"]})).await;
    let task = ended(&fleet, &task.id).await;
    assert_eq!((progress(&task).done, progress(&task).skipped), (1, 1), "`c` has ended");
    let open: TaskPage = fleet.get("/v1/tasks?q=type:echo+is:open").await;
    let asked: Value = fleet.get("/v1/tasks/a/history").await;
    assert!(asked.to_string().contains("cancel_requested"), "{asked}");
    assert!(open.tasks.iter().any(|task| task.id == "b"));
}

#[tokio::test]
async fn progress_lists_the_changed_tasks_and_the_causes_of_refusals() {
    let fleet = fleet().await;
    failed_tasks(&fleet, 2).await;
    fleet.create(json!({"type": "approval", "id": "ext", "external": true})).await;
    fleet.request(Method::PUT, "/v1/tasks/ext/state").json(&json!({"state": "failed"})).send().await.unwrap();
    fleet.create(json!({"type": "echo", "id": "open"})).await;
    fleet.folded().await;
    let ids = json!([name(0), name(1), "ext", "open"]);
    let selection = json!({"action": "retry", "ids": ids});
    let preview: BulkPreview =
        fleet.request(Method::POST, "/v1/bulk/preview").json(&selection).send().await.unwrap().json().await.unwrap();
    let unchanged: Vec<(&str, u64)> =
        preview.unchanged.iter().map(|unchanged| (unchanged.cause.as_str(), unchanged.tasks)).collect();
    assert_eq!((preview.changing, unchanged.len(), preview.tasks.len()), (2, 2, 2), "{preview:?}");
    assert!(unchanged.contains(&("not ended yet", 1)), "{unchanged:?}");
    let sample = &preview.tasks[0];
    assert_eq!((sample.state, sample.task_type.as_deref()), (Some(State::Failed), Some("echo")));
    assert!(sample.error.as_deref().is_some_and(|error| error.contains("no answer from 10.0.0.7")), "{sample:?}");
    let task = order(&fleet, json!({"action": "retry", "ids": ids, "reason": "healed"})).await;
    let task = ended(&fleet, &task.id).await;
    let mut progress = progress(&task);
    progress.changed.sort();
    assert_eq!(progress.changed, [name(0), name(1)]);
    assert_eq!((progress.refused, progress.refusals[0].id.as_str()), (1, "ext"));
    assert!(progress.refusals[0].cause.contains("is an external task"), "{progress:?}");
    let options = BulkOptions::of(&task).unwrap();
    assert_eq!((options.reason.as_deref(), options.limit, options.error), (Some("healed"), 100, None));
}

#[tokio::test]
async fn action_on_an_error_records_its_text() {
    let fleet = fleet().await;
    failed_tasks(&fleet, 1).await;
    let task = order(&fleet, json!({"action": "retry", "q": "error:\"no answer from 1.1.1.1\""})).await;
    let error = BulkOptions::of(&ended(&fleet, &task.id).await).unwrap().error.unwrap();
    assert!(error.contains("no answer from 10.0.0.7"), "{error}");
}

#[tokio::test]
async fn bulk_action_cannot_be_forged_or_altered() {
    let fleet = fleet().await;
    failed_tasks(&fleet, 1).await;
    let made = refused(&fleet, Method::POST, "/v1/tasks", json!({"type": "kafleet-bulk", "external": true})).await;
    assert_eq!(made, (400, "bad_field".into()));
    let id = order(&fleet, json!({"action": "retry", "q": FAILED})).await.id;
    ended(&fleet, &id).await;
    let path = format!("/v1/tasks/{id}");
    let options = json!({"options": {"q": "level:any"}});
    assert_eq!(refused(&fleet, Method::PATCH, &path, options).await, (409, "not_changeable".into()));
    let report = json!({"state": "running"});
    assert_eq!(refused(&fleet, Method::PUT, &format!("{path}/state"), report).await, (409, "not_external".into()));
    assert_eq!(refused(&fleet, Method::POST, &format!("{path}/retry"), json!({})).await, (409, "external_task".into()));
    for wrong in [
        json!({"action": "retry"}),
        json!({"action": "retry", "q": " "}),
        json!({"action": "retry", "q": "stat:failed"}),
        json!({"action": "retry", "q": "type:echo", "ids": ["a"]}),
        json!({"action": "retry", "ids": ["a b"]}),
        json!({"action": "retry", "q": "type:echo", "limit": 0}),
        json!({"action": "eat", "q": "type:echo"}),
        json!({"action": "retry", "letters": {"type": "echo"}}),
        json!({"action": "retry", "q": "type:echo", "patch": {"a": 1}}),
    ] {
        assert_eq!(refused(&fleet, Method::POST, "/v1/bulk", wrong.clone()).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn bulk_actions_need_the_role_operate() {
    let token = |role: Role| TokenConfig { name: "t".into(), token: format!("token-for-the-role-{role:?}"), role };
    let config = ApiConfig { tokens: [Role::Submit, Role::Operate].map(token).to_vec(), ..ApiConfig::default() };
    let fleet = unfolded(config).await;
    fleet.track();
    let send = async |path: &str, role: Role| {
        let request = fleet.request(Method::POST, path).bearer_auth(token(role).token);
        request.json(&json!({"action": "retry", "q": "type:echo"})).send().await.unwrap().status()
    };
    assert_eq!(send("/v1/bulk", Role::Submit).await, StatusCode::FORBIDDEN);
    assert_eq!(send("/v1/bulk/preview", Role::Submit).await, StatusCode::OK);
    assert_eq!(send("/v1/bulk", Role::Operate).await, StatusCode::ACCEPTED);
}

/// The API server that runs the action is killed on its way; another one takes over, and each task is retried once.
#[tokio::test]
async fn other_api_takes_over_when_the_runner_dies() {
    const TASKS: usize = 1_500;
    let fleet = fleet().await;
    failed_tasks(&fleet, TASKS).await;
    let doomed = fleet.killable_api();
    // Events of the action and of nearly four fifths of the tasks: it stops within the second transaction.
    let left = AtomicUsize::new(TASKS / 5 * 4);
    let is_beyond = move |call: &Call<'_>| {
        let events = call.records_of(".events");
        let is_beyond = events > 0 && left.try_update(SeqCst, SeqCst, |left| left.checked_sub(events)).is_err();
        if is_beyond {
            left.store(0, SeqCst);
        }
        is_beyond
    };
    let full = doomed.faults.on(is_beyond).fail(full());
    let body = json!({"action": "retry", "q": FAILED, "limit": TASKS});
    let url = format!("{}/v1/bulk", doomed.base);
    let ordered = fleet.http.post(url).json(&body).send().await.unwrap();
    assert_eq!(ordered.status(), StatusCode::ACCEPTED);
    let id = ordered.json::<Status>().await.unwrap().id;
    let path = format!("/v1/tasks/{id}");
    eventually("most of the events", async || full.hits() > 0).await;
    doomed.kill();
    fleet.folded().await;
    let before = progress(&fleet.get::<Status>(&path).await);
    assert!(
        before.done > 0 && before.done < TASKS as u64 && !before.runner.is_empty(),
        "it was killed on its way: {before:?}"
    );
    // A task that has failed again in its new run must not be retried a second time.
    let again: Vec<usize> = restarted(&fleet, TASKS).await.into_iter().take(20).collect();
    for n in &again {
        let failed = Payload::Failed(AttemptFailure::new("error", "once more", 1));
        fleet.publish_event(&name(*n), failed, |event| event.run = 2).await;
    }
    let task = ended(&fleet, &id).await;
    let after = progress(&task);
    assert_eq!(task.state, State::Succeeded, "{after:?}");
    assert_eq!(after.done, TASKS as u64, "{after:?}");
    assert_eq!(runs(&fleet, TASKS).await, vec![2; TASKS], "each task has one new run");
}

/// Numbers of the tasks that are in their second run.
async fn restarted(fleet: &Fleet, count: usize) -> Vec<usize> {
    let runs = runs(fleet, count).await;
    runs.iter().enumerate().filter(|(_, run)| **run == 2).map(|(n, _)| n).collect()
}
