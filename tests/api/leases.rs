//! Concurrent requests with the same id.

use std::time::Duration;

use kafleet::documents::Status;
use kafleet::model::task::hash::spawn_hash;
use kafleet::store::memory::{MemoryStore, MemoryStoreOptions};
use kafleet::store::{Reservation, Stage, Store};
use kafleet_testkit::faults::full;
use kafleet_testkit::faults::{Call, send};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::client::problem;
use crate::api::fixture::{Fleet, eventually, fleet, fleet_on};

const REQUESTS: usize = 8;

fn body() -> Value {
    json!({"type": "echo", "id": "a", "params": {"n": 1}})
}

/// Reserves `a` for a request that has died.
async fn reserve(fleet: &Fleet, stage: Stage) {
    let hash = spawn_hash("echo", &json!({"n": 1}).into()).unwrap();
    let id = "a".parse().unwrap();
    let held =
        fleet.memory.reserve(fleet.publisher.topology.partition_of(&id), &id, 1, &Reservation { hash, stage }).await;
    assert_eq!(held.unwrap(), None);
}

/// Submits like a patient client: retries while another request publishes the task.
async fn post(fleet: &Fleet) -> (u16, Value) {
    loop {
        let (status, answer) = fleet.post("/v1/tasks", body()).await;
        if answer["code"] != "in_progress" {
            return (status, answer);
        }
    }
}

async fn expect_one_creation(answers: Vec<(u16, Value)>) {
    let mut statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    statuses.sort_unstable();
    let mut expected = vec![200; answers.len() - 1];
    expected.push(201);
    assert_eq!(statuses, expected, "{answers:?}");
    assert!(answers.iter().all(|(_, answer)| answer["id"] == "a"), "{answers:?}");
}

#[tokio::test]
async fn requests_wait_for_the_one_that_publishes() {
    let fleet = fleet().await;
    let full = fleet.faults.on(send(".tasks.")).fail(full());
    let reserves = fleet.faults.count(|call| matches!(call, Call::Reserve));
    let requests = futures::future::join_all((0..REQUESTS).map(|_| post(&fleet)));
    let release = async {
        eventually("all requests have claimed the id", async || reserves.hits() >= 3 * REQUESTS).await;
        full.lift();
    };
    let (answers, ()) = futures::future::join(requests, release).await;
    expect_one_creation(answers).await;
    assert_eq!(fleet.published("echo"), 1);
}

#[tokio::test]
async fn one_request_takes_over_from_a_dead_one() {
    let store =
        MemoryStore::new(MemoryStoreOptions { lease_ttl: Duration::from_secs(3), ..MemoryStoreOptions::default() });
    let fleet = fleet_on(store).await;
    reserve(&fleet, Stage::Publishing { owner: "dead".into() }).await;
    let answers = futures::future::join_all((0..REQUESTS).map(|_| post(&fleet))).await;
    expect_one_creation(answers).await;
    assert_eq!(fleet.published("echo"), 1);
}

#[tokio::test]
async fn one_request_takes_over_where_the_publish_is_in_doubt() {
    let fleet = fleet().await;
    reserve(&fleet, Stage::InDoubt).await;
    let answers = futures::future::join_all((0..REQUESTS).map(|_| post(&fleet))).await;
    expect_one_creation(answers).await;
    assert_eq!(fleet.published("echo"), 1);
    let other =
        problem(fleet.request(Method::POST, "/v1/tasks").json(&json!({"type": "echo", "id": "a", "params": 1}))).await;
    assert_eq!(other.code, "duplicate_id");
    let status: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!(status.id, "a");
}

#[tokio::test]
async fn request_that_waits_too_long_is_refused_with_a_hint() {
    let store =
        MemoryStore::new(MemoryStoreOptions { lease_ttl: Duration::from_secs(3_600), ..MemoryStoreOptions::default() });
    let fleet = fleet_on(store).await;
    reserve(&fleet, Stage::Publishing { owner: "slow".into() }).await;
    let together = json!([body()]);
    let one = problem(fleet.request(Method::POST, "/v1/tasks").json(&body()));
    let atomic = problem(fleet.request(Method::POST, "/v1/batches?atomic=true").json(&together));
    let batch = fleet.post("/v1/batches", together.clone());
    let (one, atomic, (status, batch)) = futures::future::join3(one, atomic, batch).await;
    assert_eq!((one.status, one.code.as_str(), one.existing.as_deref()), (503, "in_progress", Some("a")), "{one:?}");
    assert!(one.hint.unwrap().contains("repeat the request with the same id"));
    assert_eq!((atomic.code.as_str(), atomic.pointer.as_deref()), ("in_progress", Some("/0")), "{atomic:?}");
    assert_eq!((status, &batch["items"][0]["problem"]["code"]), (200, &json!("in_progress")), "{batch}");
    assert_eq!(fleet.published("echo"), 0);
}
