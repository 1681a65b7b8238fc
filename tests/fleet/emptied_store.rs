//! Redis is flushed while requests create tasks by id: each task is created and executed once.

use serde_json::json;

use crate::fleet::idempotent_creation::{assert_ran_once, post, task_records, two_apis};
use crate::fleet::in_process::{Fleet, eventually};

/// Clients that send the same requests.
const CLIENTS: usize = 8;
const TASKS: usize = 120;

#[tokio::test(flavor = "multi_thread")]
async fn flushed_redis_duplicates_no_task() {
    let Some(mut fleet) = Fleet::with_services().await else { return };
    let apis = two_apis(&mut fleet).await;
    fleet.start_worker();
    let client = |number: usize| {
        let apis = &apis;
        async move {
            let mut created = 0;
            for n in 0..TASKS {
                let body = json!({"type": "echo", "id": format!("t{n}"), "params": n});
                let (status, answer) = post(format!("{}/v1/tasks", apis[(number + n) % 2]), &body).await;
                assert!(status == 200 || status == 201, "{status} {answer}");
                created += usize::from(status == 201);
            }
            created
        }
    };
    let flushes = async {
        for round in 1..=2 {
            let part = (round * TASKS / 3) as i64;
            eventually("a part of the tasks", || async { task_records(&fleet) >= part }).await;
            let () = fleet.redis.as_ref().unwrap().call(&["FLUSHALL"]).unwrap();
        }
    };
    let (created, ()) = futures::future::join(futures::future::join_all((0..CLIENTS).map(client)), flushes).await;
    assert_eq!((created.into_iter().sum::<usize>(), task_records(&fleet)), (TASKS, TASKS as i64));
    for n in 0..TASKS {
        assert_ran_once(&fleet, &format!("t{n}")).await;
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}
