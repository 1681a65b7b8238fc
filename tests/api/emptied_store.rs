//! An emptied store is not an answer: what each route answers while the store is empty and no tracker projects the log.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use kafleet::documents::{EndReason, Status};
use kafleet::model::record::state::State;
use kafleet_testkit::faults::read_nodes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::api::dead_letters::{LETTER, with_letters};
use crate::api::fixture::{Fleet, PARTITIONS, eventually, fleet};
use crate::api::watches::Stream;

/// Answer of a route that is right while the store is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// Waits for the projection for a few seconds; then 503 `not_visible_yet`, with `Retry-After`.
    Refused,
    /// 503 at once or in the outcome of each item.
    RefusedItems,
    /// Contents of the store, with the list of all partitions in `incomplete`.
    Incomplete,
    /// Does not depend on the store.
    Other,
}

use Answer::{Incomplete, Other, Refused, RefusedItems};

/// Method, path, query and body of a request, and the right answer.
type Case = (&'static str, &'static str, &'static str, Value, Answer);

/// Requests to all routes. A path may occur several times, with different bodies or queries.
fn requests() -> Vec<Case> {
    [requests_about_tasks(), requests_about_types(), requests_about_the_fleet()].concat()
}

fn none() -> Value {
    Value::Null
}

fn requests_about_tasks() -> Vec<Case> {
    let task = json!({"type": "echo", "id": "t0", "params": {"n": 1}});
    let child = json!({"type": "echo", "id": "c", "parent": "t0"});
    vec![
        ("POST", "/v1/batches", "", json!([task]), RefusedItems),
        ("POST", "/v1/batches", "", json!([child]), RefusedItems),
        ("POST", "/v1/batches", "?atomic=true", json!([task]), Refused),
        ("POST", "/v1/batches", "?atomic=true", json!([child]), Refused),
        ("GET", "/v1/tasks", "", none(), Incomplete),
        ("GET", "/v1/tasks", "?level=any", none(), Incomplete),
        ("GET", "/v1/tasks", "?state=failed&type=echo", none(), Incomplete),
        ("GET", "/v1/tasks", "?state=failed&sort=oldest", none(), Incomplete),
        ("GET", "/v1/tasks", "?q=id:t0,t1", none(), Refused),
        ("GET", "/v1/tasks", "?root=t0", none(), Refused),
        ("POST", "/v1/tasks", "", task.clone(), Refused),
        ("POST", "/v1/tasks", "?wait=1s", task, Refused),
        ("POST", "/v1/tasks", "", json!({"type": "echo", "id": "t0", "params": {"n": 2}}), Refused),
        ("POST", "/v1/tasks", "", json!({"type": "echo", "id": "unknown"}), Refused),
        ("POST", "/v1/tasks", "", child, Refused),
        ("POST", "/v1/tasks", "", json!({"type": "echo"}), Other),
        ("GET", "/v1/tasks/{id}", "", none(), Refused),
        ("PATCH", "/v1/tasks/{id}", "", json!({"name": "n"}), Refused),
        ("GET", "/v1/tasks/{id}/attachments", "", none(), Refused),
        ("DELETE", "/v1/tasks/{id}/attachments/{name}", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/attachments/{name}", "", none(), Refused),
        ("PUT", "/v1/tasks/{id}/attachments/{name}", "", json!("x"), Refused),
        ("POST", "/v1/tasks/{id}/cancel", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/children", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/history", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/log", "", none(), Refused),
        ("POST", "/v1/tasks/{id}/log", "", json!({"lines": ["x"]}), Refused),
        ("GET", "/v1/tasks/{id}/log/watch", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/params", "", none(), Refused),
        ("POST", "/v1/tasks/{id}/retry", "", none(), Refused),
        ("POST", "/v1/tasks/{id}/start", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/state", "", none(), Refused),
        ("PUT", "/v1/tasks/{id}/state", "", json!({"state": "running"}), Refused),
        ("GET", "/v1/tasks/{id}/tree", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/watch", "", none(), Refused),
        ("GET", "/v1/tasks/{id}/why", "", none(), Refused),
    ]
}

/// Types, schedules and kill switches.
fn requests_about_types() -> Vec<Case> {
    let yearly = json!({"cron": "0 0 1 1 *", "task": {"type": "echo"}});
    vec![
        ("GET", "/v1/kill-switches", "", none(), Other),
        ("GET", "/v1/kill-switches/{name}/preview", "", none(), Refused),
        ("PUT", "/v1/kill-switches/{name}", "", json!({"tag": "x"}), Other),
        ("DELETE", "/v1/kill-switches/{name}", "", none(), Other),
        ("GET", "/v1/views", "", none(), Other),
        ("GET", "/v1/views/{name}", "", none(), Other),
        ("PUT", "/v1/views/{name}", "", json!({"q": "state:failed"}), Other),
        ("DELETE", "/v1/views/{name}", "", none(), Other),
        ("GET", "/v1/unique/{type}/{key}", "", none(), Refused),
        ("DELETE", "/v1/unique/{type}/{key}", "", none(), Refused),
        ("GET", "/v1/schedules", "", none(), Other),
        ("POST", "/v1/schedules", "", json!({"id": "new", "spec": yearly.clone()}), Other),
        ("DELETE", "/v1/schedules/{id}", "", none(), Other),
        ("GET", "/v1/schedules/{id}", "", none(), Other),
        ("PUT", "/v1/schedules/{id}", "", yearly.clone(), Other),
        ("POST", "/v1/schedules/{id}/preview", "", yearly, Other),
        ("GET", "/v1/schedules/{id}/backfill", "", none(), Other),
        ("POST", "/v1/schedules/{id}/backfill", "", json!({}), Other),
        ("POST", "/v1/schedules/{id}/pause", "", none(), Other),
        ("POST", "/v1/schedules/{id}/resume", "", none(), Other),
        ("GET", "/v1/schedules/{id}/times", "", none(), Other),
        ("POST", "/v1/schedules/{id}/trigger", "", none(), Other),
        ("GET", "/v1/types", "", none(), Incomplete),
        ("DELETE", "/v1/types/{type}", "", none(), Other),
        ("GET", "/v1/types/{type}", "", none(), Incomplete),
        ("GET", "/v1/types/{type}/backlog", "", none(), Refused),
        ("PUT", "/v1/types/{type}/circuit", "", json!({"state": "closed"}), Incomplete),
        ("PUT", "/v1/types/{type}/limits", "", json!({"slots": 3}), Incomplete),
        ("POST", "/v1/types/{type}/pause", "", none(), Incomplete),
        ("POST", "/v1/types/{type}/resume", "", none(), Incomplete),
    ]
}

fn requests_about_the_fleet() -> Vec<Case> {
    let bulk = json!({"action": "cancel", "q": "type:echo"});
    let bulk_ids = json!({"action": "cancel", "ids": ["t0"]});
    let redrive = json!({"action": "redrive", "letters": {"type": "echo"}});
    vec![
        ("GET", "/", "", none(), Other),
        ("GET", "/healthz", "", none(), Other),
        ("GET", "/metrics", "", none(), Other),
        ("GET", "/openapi.json", "", none(), Other),
        ("GET", "/readyz", "", none(), Incomplete),
        ("GET", "/v1", "", none(), Other),
        ("GET", "/v1/audit", "", none(), Incomplete),
        ("GET", "/v1/bulk", "", none(), Incomplete),
        ("POST", "/v1/bulk", "", bulk.clone(), Refused),
        ("POST", "/v1/bulk", "", bulk_ids.clone(), Refused),
        ("POST", "/v1/bulk", "", redrive.clone(), Refused),
        ("POST", "/v1/bulk/preview", "", bulk, Refused),
        ("POST", "/v1/bulk/preview", "", bulk_ids, Refused),
        ("POST", "/v1/bulk/preview", "", redrive, Refused),
        ("GET", "/v1/dead-letters", "", none(), Incomplete),
        ("POST", "/v1/dead-letters/drop", "", json!({"type": "echo"}), Refused),
        ("GET", "/v1/dead-letters/{letter}", "", none(), Refused),
        ("POST", "/v1/dead-letters/{letter}/drop", "", none(), Refused),
        ("POST", "/v1/dead-letters/{letter}/redrive", "", none(), Refused),
        // The last line states that tasks are missing.
        ("GET", "/v1/export", "", none(), Other),
        ("GET", "/v1/failures", "", none(), Incomplete),
        ("POST", "/v1/preview", "", json!({"type": "echo", "id": "t0"}), Refused),
        ("GET", "/v1/stats", "", none(), Incomplete),
        ("GET", "/v1/stats/durations", "", none(), Incomplete),
        ("GET", "/v1/stats/slowest", "", none(), Incomplete),
        ("GET", "/v1/suggestions", "?q=type:", none(), Incomplete),
        ("GET", "/v1/system", "", none(), Incomplete),
        ("GET", "/v1/watch", "", none(), Other),
        ("GET", "/v1/workers", "", none(), Other),
    ]
}

fn request(fleet: &Fleet, base: &str, (method, path): (&str, &str), body: &Value) -> RequestBuilder {
    let request = fleet.http.request(method.parse().unwrap(), format!("{base}{path}"));
    if body.is_null() { request } else { request.json(body) }
}

/// Reason why a response is wrong.
async fn fault(request: RequestBuilder, expected: Answer) -> Option<String> {
    let answer = request.send().await.unwrap();
    if expected == Other {
        return None;
    }
    let (status, again) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    let text = answer.text().await.unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let all: Vec<u32> = (0..PARTITIONS).collect();
    let is_right = match expected {
        Refused => status == 503 && body["code"] == "not_visible_yet" && again,
        RefusedItems => status == 200 && body["items"][0]["problem"]["code"] == "not_visible_yet",
        Incomplete => status == 200 && body["incomplete"] == json!(all),
        Other => true,
    };
    (!is_right).then(|| format!("expected {expected:?}, got {status}: {text}"))
}

/// Fleet with tasks in all partitions, whose store was emptied after its tracker ended.
async fn emptied() -> (Fleet, String) {
    let fleet = with_letters().await;
    for n in 0..16 {
        fleet.create(json!({"type": "echo", "id": format!("t{n}"), "params": {"n": 1}})).await;
    }
    let yearly = json!({"cron": "0 0 1 1 *", "task": {"type": "echo"}});
    assert_eq!(fleet.post("/v1/schedules", json!({"id": "s", "spec": yearly})).await.0, 201);
    let letter = fleet.letter(LETTER, 0).await;
    fleet.folded().await;
    for n in 0..16 {
        let _: Status = fleet.get(&format!("/v1/tasks/t{n}")).await;
    }
    fleet.untrack().await;
    fleet.memory.wipe();
    (fleet, letter)
}

#[tokio::test]
async fn no_route_answers_from_an_emptied_store() {
    let (fleet, letter) = emptied().await;
    let later = fleet.second_api().await;
    let table = requests();
    let mut faults = Vec::new();
    for base in [&fleet.base, &later] {
        let sent = table.iter().map(|(method, path, query, body, expected)| {
            let path = path.replace("{letter}", &letter).replace("{type}", "echo").replace("{key}", "k");
            let id = if path.contains("schedules") { "s" } else { "t0" };
            let path = format!("{}{query}", path.replace("{id}", id).replace("{name}", "n"));
            let request = request(&fleet, base, (*method, path.as_str()), body);
            async move { fault(request, *expected).await.map(|answer| format!("{method} {path} {body}: {answer}")) }
        });
        let found: Vec<Option<String>> = futures::stream::iter(sent).buffered(16).collect().await;
        faults.extend(found.into_iter().flatten());
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let known: BTreeSet<(String, String)> =
        table.iter().map(|(method, path, ..)| (method.to_lowercase(), (*path).to_owned())).collect();
    let document: Value = fleet.get("/openapi.json").await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|method| method.parse::<Method>().is_ok()) {
            let route = (method.clone(), path.clone());
            assert!(method == "parameters" || known.contains(&route), "{route:?} is missing in the table");
        }
    }
}

/// Creates a task by an id like a patient client.
async fn create(fleet: &Fleet, base: &str, params: Value) -> (u16, Value) {
    let body = json!({"type": "echo", "id": "t0", "params": params});
    let mut answer = (0, Value::Null);
    eventually("an answer other than 503", async || {
        let sent = request(fleet, base, ("POST", "/v1/tasks"), &body).send().await.unwrap();
        answer = (sent.status().as_u16(), sent.json().await.unwrap());
        answer.0 != 503
    })
    .await;
    answer
}

#[tokio::test]
async fn creation_by_id_is_idempotent_across_a_loss() {
    let (fleet, _) = emptied().await;
    let later = fleet.second_api().await;
    let published = fleet.published("echo");
    let waiting = [&fleet.base, &later].map(|base| create(&fleet, base, json!({"n": 1})));
    let tracking = async { fleet.track() };
    let (answers, ()) = futures::future::join(futures::future::join_all(waiting), tracking).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let (status, other) = create(&fleet, &fleet.base, json!({"n": 2})).await;
    assert_eq!((status, &other["code"]), (409, &json!("duplicate_id")));
    assert_eq!(fleet.published("echo"), published, "no task was published again");
}

/// Stores are emptied while requests with the same ids are sent.
#[tokio::test]
async fn store_emptied_under_load_duplicates_no_task() {
    const CLIENTS: usize = 8;
    const IDS: usize = 60;
    let fleet = fleet().await;
    let other = fleet.second_api().await;
    let bases = [fleet.base.clone(), other];
    let client = |number: usize| {
        let (fleet, bases) = (&fleet, &bases);
        async move {
            for n in 0..IDS {
                let body = json!({"type": "echo", "id": format!("load-{n}")});
                eventually("an answer other than 503", async || {
                    let sent = request(fleet, &bases[(number + n) % 2], ("POST", "/v1/tasks"), &body);
                    sent.send().await.unwrap().status() != 503
                })
                .await;
            }
        }
    };
    let wipes = async {
        for round in 1..=2 {
            eventually("a part of the tasks", async || fleet.published("echo") >= round * IDS / 3).await;
            fleet.memory.wipe();
        }
    };
    futures::future::join(futures::future::join_all((0..CLIENTS).map(client)), wipes).await;
    assert_eq!(fleet.published("echo"), IDS);
}

#[tokio::test]
async fn watch_goes_on_across_a_loss() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let mut stream = Stream::open_at(&fleet, "/v1/tasks/a/watch", "0:0").await;
    assert_eq!(stream.status().await.state, State::Queued);
    fleet.untrack().await;
    fleet.memory.wipe();
    let reads = fleet.faults.count(read_nodes);
    eventually("the watch has read the empty store", async || reads.hits() >= 2).await;
    fleet.succeed("a", json!(1)).await;
    fleet.track();
    loop {
        let status: Status = stream.status().await;
        if status.state == State::Succeeded {
            break;
        }
    }
    assert_eq!(stream.end().await, EndReason::Finished);
}

#[tokio::test]
async fn task_that_never_existed_is_not_found_again_after_a_loss() {
    let (fleet, _) = emptied().await;
    fleet.track();
    eventually("404", async || fleet.request(Method::GET, "/v1/tasks/unknown").send().await.unwrap().status() == 404)
        .await;
    eventually("ready", async || {
        let answer = fleet.request(Method::GET, "/readyz").send().await.unwrap();
        answer.json::<Value>().await.unwrap() == json!({"status": "ready"})
    })
    .await;
    let created = fleet.request(Method::POST, "/v1/tasks").timeout(Duration::from_secs(20));
    assert_eq!(created.json(&json!({"type": "echo", "id": "unknown"})).send().await.unwrap().status(), 201);
}
