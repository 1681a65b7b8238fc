//! Adaptive limits of a whole fleet: the tracker learns from the heartbeats of workers what a service takes at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kafleet::config::Adaptive;
use kafleet::handlers::{Failure, TypeRegistration};
use kafleet::model::record::state::State;
use serde_json::json;

use crate::fleet::in_process::{Fleet, eventually};

const TYPE: &str = "limited";
/// Calls that the service takes at once, and the time of one.
const SERVERS: usize = 4;
const CALL: Duration = Duration::from_millis(20);
const TASKS: usize = 3_000;

async fn limit_of_a_service_is_learned(mut fleet: Fleet) {
    let busy = Arc::new(AtomicUsize::new(0));
    let mut registered = TypeRegistration::of_fn(move |(): (), _cx| {
        let busy = busy.clone();
        async move {
            let is_refused = busy.fetch_add(1, Ordering::SeqCst) >= SERVERS;
            if !is_refused {
                // Duration of a call.
                tokio::time::sleep(CALL).await;
            }
            busy.fetch_sub(1, Ordering::SeqCst);
            if is_refused {
                return Err(Failure::wait(Some(Duration::from_millis(100)), "429").of_kind("rate_limited"));
            }
            Ok(())
        }
    });
    registered.policy.concurrency = Some(32);
    registered.policy.adaptive = Some(Adaptive::default());
    fleet.add_type(TYPE, registered).await;
    fleet.start_worker();
    // Sent together: tasks that come one after the other never meet in the service.
    let ids: Vec<String> = (0..TASKS).map(|n| format!("t{n}")).collect();
    futures::future::join_all(ids.iter().map(|id| fleet.publish(TYPE, id, &()))).await;
    let cut = eventually("the limit is cut", || async {
        let document = fleet.get(&format!("/v1/types/{TYPE}")).await;
        Some(document["adaptive"].clone()).filter(|adaptive| adaptive["cut_at"].is_string())
    })
    .await;
    let reason = cut["cut_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("calls were refused"), "{cut}");
    assert!(cut["limit"].as_f64().is_some_and(|limit| (1.0..=16.0).contains(&limit)), "{cut}");
    assert_eq!(cut["fixed"], json!(false));
    assert_eq!(fleet.wait_for_end(&format!("t{}", TASKS - 1)).await.state, State::Succeeded);
    fleet.stop().await;
}

cases! {
    limit_of_a_service_is_learned,
}
