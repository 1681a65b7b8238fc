//! One id is one task, however many requests bring it at the same time.

use kafleet::broker::{Partition, TopicInfo};
use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::inside::{DEADLINE, Fleet, until};

cases!(
    one_of_many_requests_creates_the_task,
    tasks_of_batches_that_share_ids_run_once,
    tasks_of_atomic_batches_that_share_ids_run_once,
);

/// Requests at the same moment.
const REQUESTS: usize = 8;

/// Sends a request, again while the answer is that another request or the machine takes its time.
async fn post(url: String, body: &Value) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    until("an answer that is no 503", || async {
        let answer = client.post(&url).json(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status != 503).then_some((status, answer.json().await.unwrap()))
    })
    .await
}

/// The two apis of a fleet.
async fn two_apis(fleet: &mut Fleet) -> [String; 2] {
    let first = fleet.api.clone();
    fleet.start_api_on(fleet.broker.clone()).await;
    [first, fleet.api.clone()]
}

/// Sends bodies at the same time, to both apis in turn.
async fn post_all(apis: &[String; 2], path: &str, bodies: &[Value]) -> Vec<(u16, Value)> {
    let sent = bodies.iter().enumerate().map(|(n, body)| post(format!("{}{path}", apis[n % 2]), body));
    futures::future::join_all(sent).await
}

/// Records in the topics of tasks, markers of transactions included.
fn task_records(fleet: &Fleet) -> i64 {
    let topics = fleet.broker.topics(&fleet.names.tasks(""), DEADLINE).unwrap();
    let of = |topic: &TopicInfo| {
        let end = |number| fleet.broker.ends(&Partition::new(topic.name.as_str(), number), DEADLINE).unwrap().end;
        (0..topic.partitions as i32).map(end).sum::<i64>()
    };
    topics.iter().map(of).sum()
}

async fn ran_once(fleet: &Fleet, id: &str) {
    let node = fleet.ended(id).await;
    assert_eq!((node.state, node.duplicates), (State::Succeeded, 0), "`{id}`: {node:?}");
}

async fn one_of_many_requests_creates_the_task(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    let rounds = 10;
    for round in 0..rounds {
        let body = json!({"type": "echo", "id": format!("t{round}"), "params": {"n": 1}});
        let answers = post_all(&apis, "/v1/tasks", &vec![body; REQUESTS]).await;
        let mut statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201], "round {round}: {answers:?}");
    }
    assert_eq!(task_records(&fleet), rounds);
    fleet.start_worker();
    for round in 0..rounds {
        ran_once(&fleet, &format!("t{round}")).await;
    }
    fleet.agrees().await;
    fleet.stop().await;
}

async fn tasks_of_batches_that_share_ids_run_once(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    let item = |n: usize| json!({"type": "echo", "id": format!("t{n}"), "params": n});
    // Each begins with another task.
    let batches: Vec<Value> = (0..REQUESTS).map(|first| (0..20).map(|n| item((n + first) % 20)).collect()).collect();
    for (status, outcome) in post_all(&apis, "/v1/batches", &batches).await {
        assert_eq!((status, &outcome["accepted"]), (200, &json!(20)), "{outcome}");
    }
    assert_eq!(task_records(&fleet), 20);
    fleet.start_worker();
    for n in 0..20 {
        ran_once(&fleet, &format!("t{n}")).await;
    }
    fleet.stop().await;
}

async fn tasks_of_atomic_batches_that_share_ids_run_once(mut fleet: Fleet) {
    let apis = two_apis(&mut fleet).await;
    fleet.publish("echo", "r", &json!(null)).await;
    fleet.node_seen("r").await;
    let before = task_records(&fleet);
    let item = |n: usize| json!({"type": "echo", "id": format!("c{n}"), "parent": "r", "params": n});
    // In two orders: neither waits for the other for ever.
    let (up, down): (Value, Value) = ((0..20).map(item).collect(), (0..20).rev().map(item).collect());
    let batches: Vec<Value> = (0..REQUESTS).map(|n| if n % 4 < 2 { up.clone() } else { down.clone() }).collect();
    for (status, outcome) in post_all(&apis, "/v1/batches?atomic=true", &batches).await {
        assert_eq!((status, &outcome["accepted"]), (200, &json!(20)), "{outcome}");
    }
    let markers = 4;
    assert!((20..=20 + markers).contains(&(task_records(&fleet) - before)), "{}", task_records(&fleet) - before);
    fleet.start_worker();
    for n in 0..20 {
        ran_once(&fleet, &format!("r:c{n}")).await;
    }
    fleet.agrees().await;
    fleet.stop().await;
}
