//! Unique tasks with real workers: records of foreign producers, races of two APIs, and a lost Redis.

use futures::future::join_all;
use kafleet::model::record::state::State;
use serde_json::{Value, json};

use crate::fleet::in_process::{Fleet, eventually};

async fn post(api: &str, body: &Value) -> (u16, Value) {
    let client = kafleet_testkit::http::client();
    let response = client.post(format!("{api}/v1/tasks")).json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

fn task(number: usize, mode: &str) -> Value {
    json!({"type": "echo", "params": number, "unique": {"key": "k", "mode": mode}})
}

/// A worker hands a record with the header over to the tracker, which lets it start or drops it.
async fn record_with_the_header_asks_before_it_starts(mut fleet: Fleet) {
    let (code, first) = post(&fleet.api, &task(1, "latest")).await;
    assert_eq!((code, &first["verdict"]), (201, &json!("started")), "{first}");
    let first = first["id"].as_str().unwrap().to_owned();
    let rule = br#"{"key": "k", "mode": "latest"}"#;
    for (id, params) in [("a", "2"), ("b", "3")] {
        let headers: [(&str, &[u8]); 3] = [("ce_id", id.as_bytes()), ("ce_unique", rule), ("x-own", b"kept")];
        fleet.publish_bare("echo", &headers, params).await;
    }
    fleet.start_worker();
    fleet.wait_for_end(&first).await;
    let ended = eventually("all asks are decided", async || {
        let key = fleet.get("/v1/unique/echo/k").await;
        let is_over = key["open"] == json!([]) && key["kept"].is_null() && key["last"] != json!(first);
        is_over.then(|| key["last"].as_str().unwrap().to_owned())
    })
    .await;
    let last = fleet.wait_for_end(&ended).await;
    assert_eq!(last.state, State::Succeeded);
    assert!(ended == "echo~k~~a" || ended == "echo~k~~b", "{ended}");
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// Two APIs at once: every answer names a task of the key, and never are two open.
async fn races_of_two_apis_have_one_order(mut fleet: Fleet) {
    let first_api = fleet.api.clone();
    fleet.start_api_on(fleet.broker.clone()).await;
    fleet.start_worker();
    for round in 0..5 {
        let asked_tasks: Vec<Value> = (0..20).map(|n| task(round * 20 + n, "skip")).collect();
        let apis = [&first_api, &fleet.api];
        let answers = join_all(asked_tasks.iter().enumerate().map(|(n, ask)| post(apis[n % 2], ask))).await;
        for (code, answer) in &answers {
            assert!(*code == 200 || *code == 201, "{code} {answer}");
            fleet.wait_for_end(answer["id"].as_str().unwrap()).await;
        }
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    record_with_the_header_asks_before_it_starts,
    races_of_two_apis_have_one_order,
}
