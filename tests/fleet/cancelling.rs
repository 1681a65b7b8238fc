//! Cancelling over the api: how soon an attempt hears it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::inside::{Fleet, until};
use crate::tasks::Patient;

/// It hears of it at once, not at the next of its rounds; a busy machine may take its time, so the best of several counts.
const SOON: Duration = Duration::from_secs(10);
const TRIES: usize = 5;

async fn a_running_task_hears_it_soon(mut fleet: Fleet) {
    fleet.start_worker();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut times = Vec::new();
    for n in 0..TRIES {
        let id = format!("p{n}");
        fleet.publish("patient", &id, &Patient {}).await;
        until("it runs", || async { fleet.heard.is_running(&id).then_some(()) }).await;
        fleet.node_seen(&id).await;
        let begun = Instant::now();
        let answer = http.post(format!("{}/v1/tasks/{id}/cancel", fleet.api)).json(&json!({})).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 202, "{text}");
        let heard = until("the token has fired", || async { fleet.heard.stopped(&id) }).await;
        times.push(heard.saturating_duration_since(begun));
        let ended = until("its end is in the log", || async {
            let history = fleet.get(&format!("/v1/tasks/{id}/history")).await;
            let events = history["events"].as_array()?.clone();
            events.iter().any(|event| event["kind"] == "cancelled").then_some(events)
        })
        .await;
        let kinds: Vec<&Value> = ended.iter().map(|event| &event["kind"]).collect();
        assert!(kinds.contains(&&json!("cancel_requested")), "{kinds:?}");
        let status = fleet.get(&format!("/v1/tasks/{id}")).await;
        assert_eq!((&status["state"], &status["error"]["kind"]), (&json!("cancelled"), &json!("cancelled")));
    }
    times.sort();
    eprintln!("from the call to the handler's token: {times:?}");
    assert!(times[0] < SOON, "{times:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory() {
    a_running_task_hears_it_soon(Fleet::in_memory().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_kafka_and_redis() {
    let Some(fleet) = Fleet::real().await else { return };
    a_running_task_hears_it_soon(fleet).await;
}
