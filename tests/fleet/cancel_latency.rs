//! Time from a cancel over the API to the cancellation token of the attempt.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::in_process::{Fleet, eventually};
use crate::fleet::task_types::Cancellable;

/// Maximum of the fastest try. A cancel is pushed rather than polled; the best of several tries tolerates a busy
/// machine.
const MAX_LATENCY: Duration = Duration::from_secs(10);
const TRIES: usize = 5;

async fn running_attempt_is_cancelled_soon(mut fleet: Fleet) {
    fleet.start_worker();
    let http = kafleet_testkit::http::client();
    let mut times = Vec::new();
    for n in 0..TRIES {
        let id = format!("p{n}");
        fleet.publish("cancellable", &id, &Cancellable {}).await;
        eventually("the task runs", || async { fleet.cancel_log.is_running(&id).then_some(()) }).await;
        fleet.wait_for_record(&id).await;
        let begun = Instant::now();
        let response = http.post(format!("{}/v1/tasks/{id}/cancel", fleet.api)).json(&json!({})).send().await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert_eq!(status, 202, "{text}");
        let cancelled =
            eventually("the attempt's token is cancelled", || async { fleet.cancel_log.cancelled_at(&id) }).await;
        times.push(cancelled.saturating_duration_since(begun));
        let ended = eventually("the cancelled event is in the log", || async {
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
    eprintln!("from the request to the handler's cancellation token: {times:?}");
    assert!(times[0] < MAX_LATENCY, "{times:?}");
    fleet.stop().await;
}

cases! {
    running_attempt_is_cancelled_soon,
}
