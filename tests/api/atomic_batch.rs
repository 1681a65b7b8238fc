//! Atomic batches: the tasks of one tree, all or none.

use kafleet::broker::{Broker, Partition};
use kafleet::documents::{BatchOutcome, Status, TreeNode};
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{DEADLINE, Fleet, PARTITIONS, eventually, fleet};

async fn send(fleet: &Fleet, items: &Value) -> BatchOutcome {
    let answer = fleet.request(Method::POST, "/v1/batches?atomic=true").json(items).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Number of task and event records visible to a reader.
fn records(fleet: &Fleet) -> usize {
    let topics = [(fleet.names.events(), PARTITIONS), (fleet.names.tasks("echo"), 2), (fleet.names.tasks("resize"), 2)];
    let in_partition = |topic: &str, number: u32| {
        let at = Partition::new(topic, number as i32);
        let ends = fleet.log.watermarks(&at, DEADLINE).unwrap();
        (ends.low..ends.high).filter(|offset| fleet.record(&at, *offset).is_some()).count()
    };
    topics.iter().map(|(topic, count)| (0..*count).map(|number| in_partition(topic, number)).sum::<usize>()).sum()
}

#[tokio::test]
async fn atomic_batch_creates_a_tree_once() {
    let fleet = fleet().await;
    let items = json!([
        {"type": "echo", "id": "r"},
        {"type": "echo", "id": "a", "parent": "r", "params": 1},
        {"type": "echo", "id": "b", "parent": "r:a"},
        {"type": "echo", "id": "later", "parent": "r", "delay": "1h"},
        {"type": "job", "id": "else", "parent": "r", "external": true},
    ]);
    let made = send(&fleet, &items).await;
    assert_eq!((made.accepted, made.refused), (5, 0), "{made:?}");
    let last = made.items.last().unwrap().position.clone().unwrap();
    let tree: TreeNode = fleet.get(&format!("/v1/tasks/r/tree?after={last}")).await;
    assert_eq!((tree.tree.total, tree.children.total), (5, 3));
    let states = ["r:a", "r:a:b", "r:later", "r:else"].map(|id| format!("/v1/tasks/{id}"));
    let mut statuses = Vec::new();
    for path in states {
        statuses.push(fleet.get::<Status>(&path).await);
    }
    let states: Vec<State> = statuses.iter().map(|status| status.state).collect();
    assert_eq!(states, [State::Queued, State::Queued, State::Scheduled, State::Queued]);
    assert!(statuses[0].record.is_some(), "the event has the position of the record: {:?}", statuses[0]);
    assert_eq!(fleet.get::<Value>("/v1/tasks/r:a/params").await["params"], 1);
    let before = records(&fleet);
    assert_eq!(send(&fleet, &items).await.accepted, 5, "repeating the batch has no effect");
    assert_eq!(records(&fleet), before);
    let more = json!([{"type": "echo", "id": "c", "parent": "r"}, {"type": "echo", "id": "d", "parent": "r:c"}]);
    assert_eq!(send(&fleet, &more).await.accepted, 2, "the parent may exist already");
    let submitted = |name: &str| fleet.metrics.tasks.submitted.with_label_values(&[name]).get();
    assert_eq!((submitted("echo"), submitted("job")), (6, 1), "a repeated batch is not counted");
}

#[tokio::test]
async fn group_ends_with_its_children_and_passes_their_results_on_in_order() {
    let fleet = fleet().await;
    let group = json!({"type": "group", "id": "g", "external": true, "state": "waiting_for_children",
        "then": [{"type": "echo", "with_results": true}]});
    // By their ids the children would have another order.
    let items = json!([group, {"type": "job", "id": "z", "parent": "g", "external": true},
        {"type": "job", "id": "a", "parent": "g", "external": true}, {"type": "job", "id": "k", "parent": "g", "external": true}]);
    assert_eq!(send(&fleet, &items).await.accepted, 4);
    assert_eq!(send(&fleet, &items).await.accepted, 4, "repeating the batch has no effect");
    let status = fleet.get::<Status>("/v1/tasks/g").await;
    assert_eq!((status.state, status.children.total), (State::WaitingForChildren, 3));
    for (id, result) in [("k", 3), ("z", 1), ("a", 2)] {
        let report = json!({"state": "succeeded", "result": result});
        let answer = fleet.request(Method::PUT, &format!("/v1/tasks/g:{id}/state")).json(&report).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let results = eventually("the continuation is published", || async {
        let params: Value =
            fleet.request(Method::GET, "/v1/tasks/g:then/params").send().await.ok()?.json().await.ok()?;
        Some(params["params"]["results"].as_array()?.iter().map(|result| result["output"].clone()).collect::<Vec<_>>())
    });
    assert_eq!(results.await, [1, 2, 3]);
}

#[tokio::test]
async fn group_is_created_with_its_children_only() {
    let fleet = fleet().await;
    let group = json!({"type": "group", "external": true, "state": "waiting_for_children"});
    for (path, task, part) in [
        ("/v1/tasks", group.clone(), "atomic batches only"),
        ("/v1/batches?atomic=true", json!([{"type": "group", "external": true, "state": "running"}]), "`running`"),
        ("/v1/batches?atomic=true", json!([{"type": "echo", "state": "waiting_for_children"}]), "external tasks only"),
    ] {
        let (status, problem) = fleet.post(path, task).await;
        assert_eq!((status, &problem["code"]), (400, &json!("bad_field")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(part), "{problem}");
    }
    let answer = fleet.request(Method::POST, "/v1/batches").json(&json!([group])).send().await.unwrap();
    let outcome: BatchOutcome = answer.json().await.unwrap();
    assert_eq!((outcome.accepted, outcome.refused), (0, 1), "{outcome:?}");
}

#[tokio::test]
async fn invalid_item_rejects_the_whole_atomic_batch() {
    let fleet = fleet().await;
    fleet.echo("there").await;
    let before = records(&fleet);
    let root = json!({"type": "echo", "id": "r"});
    let child = |id: &str| json!({"type": "echo", "id": id, "parent": "r"});
    let resize = json!({"type": "resize", "id": "c", "parent": "r", "params": {"url": "u", "width": "wide"}});
    for (items, status, code, pointer) in [
        (json!([root, resize]), 422, "schema", "/1/params/width"),
        (json!([root, child("c"), {"type": "echo", "id": "other"}]), 422, "multiple_trees", "/2"),
        (json!([root, child("c"), child("c")]), 409, "duplicate_id", "/2"),
        (json!([child("c"), root]), 404, "unknown_parent", "/0/parent"),
        (json!([root, {"type": "nobody", "id": "c", "parent": "r"}]), 404, "unknown_type", "/1"),
        (json!([root, {"type": "echo", "id": "c", "parent": "r", "retries": 9999}]), 400, "bad_field", "/1/retries"),
        (
            json!([{"type": "echo", "id": "there"}, {"type": "echo", "id": "c", "parent": "there"}]),
            409,
            "duplicate_id",
            "/0",
        ),
    ] {
        let answer = problem(fleet.request(Method::POST, "/v1/batches?atomic=true").json(&items)).await;
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{items}: {answer:?}");
        assert_eq!(answer.pointer.as_deref(), Some(pointer), "{answer:?}");
        assert!(answer.detail.contains("nothing of the batch was published"), "{answer:?}");
    }
    let many: Vec<Value> = (0..1_001).map(|n| child(&format!("c{n}"))).collect();
    let answer = problem(fleet.request(Method::POST, "/v1/batches?atomic=true").json(&many)).await;
    assert_eq!(answer.code, "too_many_items");
    assert_eq!(records(&fleet), before);
    assert_eq!(fleet.problem("/v1/tasks/r").await.code, "not_found");
    let good = send(&fleet, &json!([root, child("c")])).await;
    assert_eq!(good.accepted, 2, "no reservation is left behind");
}
