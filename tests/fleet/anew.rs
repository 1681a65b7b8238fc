//! A store that is lost while a fleet runs: what has been attached, changed, logged and told since is there again, from the
//! log alone, and nothing is done twice.

use std::collections::BTreeMap;
use std::time::Duration;

use kafleet::handlers::builtin::callback::TYPE;
use kafleet::model::record::state::State;
use kafleet::store::{Checkpoint, Store};
use reqwest::Method;
use serde_json::{Value, json};

use crate::inside::{Fleet, until};
use crate::receiver::Receiver;
use crate::tasks::{Branch, Leaf};
use crate::telling::{callbacks, settled};

/// Events of their own that trackers may write in between are few and far between.
const ROUNDS: usize = 20;
const CALL: Duration = Duration::from_secs(60);

pub async fn call(fleet: &Fleet, method: Method, path: &str, body: Value) -> Value {
    let client = reqwest::Client::builder().no_proxy().timeout(CALL).build().unwrap();
    let answer = client.request(method, format!("{}{path}", fleet.api)).json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{path}: {status} {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

async fn create(fleet: &Fleet, task: Value) {
    let made = call(fleet, Method::POST, "/v1/tasks", task).await;
    fleet.node_seen(made["id"].as_str().unwrap()).await;
}

/// A task with everything that is kept beside its record.
async fn documented(fleet: &Fleet) {
    create(fleet, json!({"type": "echo", "id": "doc"})).await;
    fleet.ended("doc").await;
    let path = |name: &str| format!("/v1/tasks/doc/attachments/{name}");
    for (name, value) in [("a", json!("first")), ("b", json!([1, 2])), ("a", json!({"second": true})), ("c", json!(null))] {
        call(fleet, Method::PUT, &path(name), value).await;
    }
    call(fleet, Method::DELETE, &path("b"), json!(null)).await;
    // More than is kept.
    for round in 0..2 {
        let lines: Vec<String> = (0..600).map(|n| format!("line {n} of {round}")).collect();
        call(fleet, Method::POST, "/v1/tasks/doc/log", json!({ "lines": lines })).await;
    }
    let changes = json!({"name": "renamed", "tags": ["x", "y"], "options": {"a": {"b": 1}}, "link": "https://example.com"});
    call(fleet, Method::PATCH, "/v1/tasks/doc", changes).await;
    call(fleet, Method::PATCH, "/v1/tasks/doc", json!({"link": null, "retries": 7})).await;
}

/// Tasks that wait for their time, moved.
async fn moved(fleet: &Fleet) {
    create(fleet, json!({"type": "echo", "id": "later", "delay": "1h", "params": {"n": 1}, "tags": ["t"]})).await;
    create(fleet, json!({"type": "echo", "id": "soon", "delay": "1h"})).await;
    call(fleet, Method::PATCH, "/v1/tasks/later", json!({"delay": "3h", "timeout": "7s", "name": "moved"})).await;
    call(fleet, Method::PATCH, "/v1/tasks/soon", json!({"delay": "0s"})).await;
    assert_eq!(fleet.ended("soon").await.state, State::Succeeded);
}

/// A tree of which a part has failed twice, one that is cancelled while it runs, and a task that goes on.
async fn trees(fleet: &Fleet) {
    fleet.publish("branch", "tree", &Branch { widths: vec![2, 2], failing: Some(vec![1, 1]), ..Branch::default() }).await;
    fleet.ended("tree").await;
    call(fleet, Method::POST, "/v1/tasks/tree/retry", json!({"only_failed": true})).await;
    until("it has failed again", || async {
        fleet.node("tree:1:1").await.filter(|node| node.run == 2 && node.own.is_terminal())
    })
    .await;
    fleet.publish("patient", "cancelled", &json!({})).await;
    until("it runs", || async { fleet.heard.is_running("cancelled").then_some(()) }).await;
    fleet.node_seen("cancelled").await;
    call(fleet, Method::POST, "/v1/tasks/cancelled/cancel", json!({"reason": "enough"})).await;
    fleet.ended("cancelled").await;
    fleet.publish("leaf", "running", &Leaf { held: true, fails: false, fused: false }).await;
    until("it runs", || async { fleet.node("running").await.filter(|node| node.state == State::Running) }).await;
}

/// Of whose end others are told, one way and the other, and whose state is looked at only in an hour.
async fn told(fleet: &Fleet, receiver: &Receiver) {
    let to = |path: &str| json!({"callback": {"url": format!("{}/{path}", receiver.url), "retries": 1}});
    let check = json!({"after": "1h", "expect": ["succeeded"], "failed": to("missed")});
    let params = json!({"held": false, "fails": true});
    let task = json!({"type": "leaf", "id": "told", "params": params, "actions": [to("ok"), to("broken")], "checks": [check]});
    create(fleet, task).await;
    settled(fleet, "told", 2).await;
}

const TASKS: [&str; 9] = ["doc", "later", "soon", "tree", "tree:1", "tree:1:1", "cancelled", "running", "told"];

/// What the api says of every task.
async fn documents(fleet: &Fleet) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let parts = ["", "/history", "/log?limit=10000", "/attachments", "/tree"];
    let paths = TASKS.into_iter().flat_map(|id| parts.map(|part| format!("/v1/tasks/{id}{part}")));
    let kept = ["a", "c"].map(|name| format!("/v1/tasks/doc/attachments/{name}"));
    let lists = ["/v1/tasks?limit=200", "/v1/tasks?tag=y", "/v1/tasks?state=scheduled", "/v1/types"].map(str::to_owned);
    for path in paths.chain(kept).chain(lists) {
        let document = fleet.get(&path).await;
        all.insert(path, document);
    }
    // What workers say of a type goes on by itself.
    let types = all.get_mut("/v1/types").and_then(|types| types["types"].as_array_mut()).unwrap();
    for of_type in types.iter_mut().filter_map(Value::as_object_mut) {
        of_type.retain(|field, _| field != "at_work");
    }
    all
}

async fn fences(fleet: &Fleet, store: &dyn Store) -> Vec<Option<Checkpoint>> {
    store.fences(&(0..fleet.events_partitions).collect::<Vec<_>>()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_folded_anew_with_all_that_was_added() {
    let Some(mut fleet) = Fleet::real().await else { return };
    let receiver = Receiver::start().await;
    fleet.add_type(TYPE, callbacks()).await;
    fleet.start_worker();
    documented(&fleet).await;
    moved(&fleet).await;
    trees(&fleet).await;
    told(&fleet, &receiver).await;
    let calls = || [receiver.ids("ok"), receiver.ids("broken"), receiver.ids("missed")];
    let called = calls();
    for round in 0.. {
        assert!(round < ROUNDS, "the log comes to rest");
        let before = fleet.agrees().await;
        let said = documents(&fleet).await;
        assert_eq!(said["/v1/tasks/doc/attachments/a"], json!({"second": true}));
        assert_eq!(said["/v1/tasks/doc/log?limit=10000"]["total"], json!(1_200));
        let () = fleet.redis.as_ref().unwrap().call(&["FLUSHALL"]).unwrap();
        fleet.agrees().await;
        if fences(&fleet, &*fleet.store).await == fences(&fleet, &before.store).await {
            before.equals(&*fleet.store).await;
            let again = documents(&fleet).await;
            for (path, document) in &said {
                assert_eq!(&again[path], document, "{path}");
            }
            break;
        }
    }
    assert_eq!(calls(), called, "nobody is told anything again");
    fleet.gate.open();
    assert_eq!(fleet.ended("running").await.state, State::Succeeded, "and it goes on");
    fleet.agrees().await;
    fleet.stop().await;
}
