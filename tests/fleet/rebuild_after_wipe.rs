//! A Redis that is flushed while a fleet runs: attachments, changes, log lines and deliveries are rebuilt from the
//! log, and no effect is repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet::handlers::builtin::callback::TYPE;
use kafleet::model::record::state::State;
use kafleet::store::{Checkpoint, Store};
use reqwest::Method;
use serde_json::{Value, json};

use crate::fleet::http_receiver::Receiver;
use crate::fleet::in_process::{Fleet, eventually};
use crate::fleet::notifications::{callbacks, completed_deliveries};
use crate::fleet::task_types::{Branch, Leaf};

/// Maximum number of attempts to rebuild without a concurrent event; trackers rarely write events of their own in
/// between.
const ROUNDS: usize = 20;
const CALL: Duration = Duration::from_secs(60);

pub async fn call(fleet: &Fleet, method: Method, path: &str, body: Value) -> Value {
    let request = kafleet_testkit::http::client().request(method, format!("{}{path}", fleet.api));
    let response = request.timeout(CALL).json(&body).send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert!(status.is_success(), "{path}: {status} {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

async fn create(fleet: &Fleet, task: Value) {
    let made = call(fleet, Method::POST, "/v1/tasks", task).await;
    fleet.wait_for_record(made["id"].as_str().unwrap()).await;
}

/// Creates a task with data kept beside its record: attachments, log lines and changed fields.
async fn documented(fleet: &Fleet) {
    create(fleet, json!({"type": "echo", "id": "doc"})).await;
    fleet.wait_for_end("doc").await;
    let path = |name: &str| format!("/v1/tasks/doc/attachments/{name}");
    for (name, value) in
        [("a", json!("first")), ("b", json!([1, 2])), ("a", json!({"second": true})), ("c", json!(null))]
    {
        call(fleet, Method::PUT, &path(name), value).await;
    }
    call(fleet, Method::DELETE, &path("b"), json!(null)).await;
    // More lines than the log keeps.
    for round in 0..2 {
        let lines: Vec<String> = (0..600).map(|n| format!("line {n} of {round}")).collect();
        call(fleet, Method::POST, "/v1/tasks/doc/log", json!({ "lines": lines })).await;
    }
    let changes =
        json!({"name": "renamed", "tags": ["x", "y"], "options": {"a": {"b": 1}}, "link": "https://example.com"});
    call(fleet, Method::PATCH, "/v1/tasks/doc", changes).await;
    call(fleet, Method::PATCH, "/v1/tasks/doc", json!({"link": null, "retries": 7})).await;
}

/// Creates scheduled tasks and changes their start.
async fn rescheduled(fleet: &Fleet) {
    create(fleet, json!({"type": "echo", "id": "later", "delay": "1h", "params": {"n": 1}, "tags": ["t"]})).await;
    create(fleet, json!({"type": "echo", "id": "soon", "delay": "1h"})).await;
    call(fleet, Method::PATCH, "/v1/tasks/later", json!({"delay": "3h", "timeout": "7s", "name": "moved"})).await;
    call(fleet, Method::PATCH, "/v1/tasks/soon", json!({"delay": "0s"})).await;
    assert_eq!(fleet.wait_for_end("soon").await.state, State::Succeeded);
}

/// Creates a tree that fails twice, a tree that is cancelled while it runs, and a task that keeps running.
async fn trees(fleet: &Fleet) {
    fleet
        .publish("branch", "tree", &Branch { widths: vec![2, 2], failing: Some(vec![1, 1]), ..Branch::default() })
        .await;
    fleet.wait_for_end("tree").await;
    call(fleet, Method::POST, "/v1/tasks/tree/retry", json!({"only_failed": true})).await;
    eventually("the leaf has failed again", || async {
        fleet.record("tree:1:1").await.filter(|task_record| task_record.run == 2 && task_record.own.is_terminal())
    })
    .await;
    fleet.publish("cancellable", "cancelled", &json!({})).await;
    eventually("the task runs", || async { fleet.cancel_log.is_running("cancelled").then_some(()) }).await;
    fleet.wait_for_record("cancelled").await;
    call(fleet, Method::POST, "/v1/tasks/cancelled/cancel", json!({"reason": "enough"})).await;
    fleet.wait_for_end("cancelled").await;
    fleet.publish("leaf", "running", &Leaf { held: true, fails: false, waits_to_fail: false }).await;
    eventually("the task runs", || async {
        fleet.record("running").await.filter(|task_record| task_record.state == State::Running)
    })
    .await;
}

/// Creates a task with a callback that is delivered, one that fails, and a check that is due in an hour.
async fn notifying(fleet: &Fleet, receiver: &Receiver) {
    let to = |path: &str| json!({"callback": {"url": format!("{}/{path}", receiver.url), "retries": 1}});
    let check = json!({"after": "1h", "expect": ["succeeded"], "failed": to("missed")});
    let params = json!({"held": false, "fails": true});
    let task = json!({"type": "leaf", "id": "notifying", "params": params, "actions": [to("ok"), to("broken")], "checks": [check]});
    create(fleet, task).await;
    completed_deliveries(fleet, "notifying", 2).await;
}

const TASKS: [&str; 9] = ["doc", "later", "soon", "tree", "tree:1", "tree:1:1", "cancelled", "running", "notifying"];

/// Every document that the API serves about the tasks.
async fn documents(fleet: &Fleet) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let parts = ["", "/history", "/log?limit=10000", "/attachments", "/tree"];
    let paths = TASKS.into_iter().flat_map(|id| parts.map(|part| format!("/v1/tasks/{id}{part}")));
    let attachments = ["a", "c"].map(|name| format!("/v1/tasks/doc/attachments/{name}"));
    let lists = ["/v1/tasks?limit=200", "/v1/tasks?tag=y", "/v1/tasks?state=scheduled", "/v1/types"].map(str::to_owned);
    for path in paths.chain(attachments).chain(lists) {
        let document = fleet.get(&path).await;
        all.insert(path, document);
    }
    // The workers' view of a type changes with every heartbeat, and its flow with every minute.
    let types = all.get_mut("/v1/types").and_then(|types| types["types"].as_array_mut()).unwrap();
    for of_type in types.iter_mut().filter_map(Value::as_object_mut) {
        of_type.retain(|field, _| field != "worker_totals" && field != "flow");
    }
    all
}

/// Checkpoints without the mark of a fold from the beginning, which only the store of the tracker has.
async fn checkpoints(fleet: &Fleet, store: &dyn Store) -> Vec<Option<Checkpoint>> {
    let partitions: Vec<u32> = (0..fleet.events_partitions).collect();
    let found = store.checkpoints(&partitions).await.unwrap();
    found.into_iter().map(|checkpoint| checkpoint.map(|known| Checkpoint { complete_at: 0, ..known })).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_store_is_rebuilt_completely() {
    let Some(mut fleet) = Fleet::with_services().await else { return };
    let receiver = Receiver::start().await;
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    documented(&fleet).await;
    rescheduled(&fleet).await;
    trees(&fleet).await;
    notifying(&fleet, &receiver).await;
    let calls = || [receiver.ids("ok"), receiver.ids("broken"), receiver.ids("missed")];
    let delivered = calls();
    for round in 0.. {
        assert!(round < ROUNDS, "the log does not come to rest");
        let before = fleet.assert_store_matches_log().await;
        let expected = documents(&fleet).await;
        assert_eq!(expected["/v1/tasks/doc/attachments/a"], json!({"second": true}));
        assert_eq!(expected["/v1/tasks/doc/log?limit=10000"]["total"], json!(1_200));
        let () = fleet.redis.as_ref().unwrap().call(&["FLUSHALL"]).unwrap();
        fleet.assert_store_matches_log().await;
        if checkpoints(&fleet, &*fleet.store).await == checkpoints(&fleet, &before.store).await {
            before.equals(&*fleet.store).await;
            let rebuilt = documents(&fleet).await;
            for (path, document) in &expected {
                assert_eq!(&rebuilt[path], document, "{path}");
            }
            break;
        }
    }
    assert_eq!(calls(), delivered, "a delivery was repeated");
    fleet.gate.open();
    assert_eq!(fleet.wait_for_end("running").await.state, State::Succeeded, "the running task continues");
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}
