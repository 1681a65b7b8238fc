//! Creation is idempotent: concurrent requests with one id create one task.

use kafleet::broker::{Partition, TopicInfo};
use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::fleet::in_process::{DEADLINE, Fleet, eventually};

cases!(
    concurrent_requests_create_one_task,
    batches_that_share_ids_create_each_task_once,
    atomic_batches_that_share_ids_create_each_task_once,
);

/// Number of concurrent requests.
const REQUESTS: usize = 8;

/// Sends a request, and again while the response is `503`.
pub async fn post(url: String, body: &Value) -> (u16, Value) {
    let client = kafleet_testkit::http::client();
    eventually("a response other than 503", || async {
        let response = client.post(&url).json(body).send().await.unwrap();
        let status = response.status().as_u16();
        (status != 503).then_some((status, response.json().await.unwrap()))
    })
    .await
}

/// Addresses of two APIs of the fleet.
pub async fn two_apis(fleet: &mut Fleet) -> [String; 2] {
    let first = fleet.api.clone();
    fleet.start_api_on(fleet.broker.clone()).await;
    [first, fleet.api.clone()]
}

/// Sends the bodies concurrently, alternating between the APIs.
async fn post_all(apis: &[String; 2], path: &str, bodies: &[Value]) -> Vec<(u16, Value)> {
    let sent = bodies.iter().enumerate().map(|(n, body)| post(format!("{}{path}", apis[n % 2]), body));
    futures::future::join_all(sent).await
}

/// Number of offsets used in the task topics, including transaction markers.
pub fn task_records(fleet: &Fleet) -> i64 {
    let topics = fleet.broker.topics(&fleet.names.tasks(""), DEADLINE).unwrap();
    let of = |topic: &TopicInfo| {
        let end =
            |number| fleet.broker.watermarks(&Partition::new(topic.name.as_str(), number), DEADLINE).unwrap().high;
        (0..topic.partitions as i32).map(end).sum::<i64>()
    };
    topics.iter().map(of).sum()
}

pub async fn assert_ran_once(fleet: &Fleet, id: &str) {
    let task_record = fleet.wait_for_end(id).await;
    assert_eq!((task_record.state, task_record.history.duplicates), (State::Succeeded, 0), "`{id}`: {task_record:?}");
}

async fn concurrent_requests_create_one_task(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    let rounds = 10;
    for round in 0..rounds {
        let body = json!({"type": "echo", "id": format!("t{round}"), "params": {"n": 1}});
        let responses = post_all(&apis, "/v1/tasks", &vec![body; REQUESTS]).await;
        let mut statuses: Vec<u16> = responses.iter().map(|(status, _)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201], "round {round}: {responses:?}");
    }
    assert_eq!(task_records(&fleet), rounds);
    fleet.start_worker();
    for round in 0..rounds {
        assert_ran_once(&fleet, &format!("t{round}")).await;
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

async fn batches_that_share_ids_create_each_task_once(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    let item = |n: usize| json!({"type": "echo", "id": format!("t{n}"), "params": n});
    // Each batch starts with a different task.
    let batches: Vec<Value> = (0..REQUESTS).map(|first| (0..20).map(|n| item((n + first) % 20)).collect()).collect();
    for (status, outcome) in post_all(&apis, "/v1/batches", &batches).await {
        assert_eq!((status, &outcome["accepted"]), (200, &json!(20)), "{outcome}");
    }
    assert_eq!(task_records(&fleet), 20);
    fleet.start_worker();
    for n in 0..20 {
        assert_ran_once(&fleet, &format!("t{n}")).await;
    }
    fleet.stop().await;
}

async fn atomic_batches_that_share_ids_create_each_task_once(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    fleet.publish("echo", "r", &json!(null)).await;
    fleet.wait_for_record("r").await;
    let before = task_records(&fleet);
    let item = |n: usize| json!({"type": "echo", "id": format!("c{n}"), "parent": "r", "params": n});
    // In opposite order: the batches must not wait for each other forever.
    let (up, down): (Value, Value) = ((0..20).map(item).collect(), (0..20).rev().map(item).collect());
    let batches: Vec<Value> = (0..REQUESTS).map(|n| if n % 4 < 2 { up.clone() } else { down.clone() }).collect();
    for (status, outcome) in post_all(&apis, "/v1/batches?atomic=true", &batches).await {
        assert_eq!((status, &outcome["accepted"]), (200, &json!(20)), "{outcome}");
    }
    let markers = 4;
    assert!((20..=20 + markers).contains(&(task_records(&fleet) - before)), "{}", task_records(&fleet) - before);
    fleet.start_worker();
    for n in 0..20 {
        assert_ran_once(&fleet, &format!("r:c{n}")).await;
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}
