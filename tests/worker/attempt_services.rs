//! Services: values made before an attempt and disposed of after it, and handlers from closures.

use std::sync::Arc;

use kafleet::handlers::service::{Disposal, Service};
use kafleet::handlers::testing::TestRun;
use kafleet::handlers::{Context, Failure, TaskResult, TypeRegistration};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::json::RawJson;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Kind, ok};

/// Steps of all services, each with the id of its task.
static STEPS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds its steps to [`STEPS`].
struct Recorder(String);

impl Service for Recorder {
    async fn make(cx: &Context) -> TaskResult<Self> {
        if cx.id.as_str() == "unavailable" {
            return Err(Failure::fail("no connection"));
        }
        STEPS.lock().push(format!("{}: made", cx.id));
        Ok(Self(cx.id.to_string()))
    }

    async fn dispose(self: Arc<Self>, disposal: Disposal) {
        // Ends only after the task of the attempt could have gone on.
        tokio::task::yield_now().await;
        STEPS.lock().push(format!("{}: {disposal:?}", self.0));
        assert!(self.0 != "bad-disposal", "a disposal that panics");
    }
}

fn steps(id: &str) -> Vec<String> {
    let beginning = format!("{id}: ");
    STEPS.lock().iter().filter_map(|step| step.strip_prefix(&beginning)).map(str::to_owned).collect()
}

/// A type whose params choose the end of the attempt.
fn with_service() -> Kind {
    let mut kind = Kind::new("serviced", |params: Value, cx| async move {
        let service = cx.service::<Recorder>();
        STEPS.lock().push(format!("{}: used", service.0));
        match params.as_str() {
            Some("fails") => Err(Failure::fail("no")),
            Some("panics") => panic!("no"),
            Some("ignores") => std::future::pending().await,
            _ => ok(json!(service.0)),
        }
    });
    kind.registered = kind.registered.with_service::<Recorder>();
    kind.registered.policy.retries = 0;
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn service_is_disposed_of_after_every_end() {
    let (fleet, _) = memory(1, &[with_service()]).await;
    let ends = [("succeeds", "Succeeded"), ("fails", "Failed"), ("panics", "Panicked"), ("bad-disposal", "Succeeded")];
    for (id, _) in ends {
        fleet.send("serviced", id, &format!("\"{id}\"")).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(4).await;
    for (id, disposal) in ends {
        assert_eq!(steps(id), ["made", "used", disposal], "before the end of `{id}` is published");
    }
    assert_eq!(fleet.result_of("bad-disposal").await.kind(), EventKind::Succeeded, "a panic there changes no result");
    assert_eq!(fleet.result_of("panics").await.payload.error().unwrap().kind, "panic");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_is_disposed_of_when_its_attempt_is_dropped() {
    let (fleet, _) = memory(1, &[with_service()]).await;
    fleet.send("serviced", "cancelled", "\"ignores\"").await;
    let worker = fleet.worker();
    eventually("the attempt runs", async || steps("cancelled").len() == 2).await;
    fleet.cancel("cancelled", 7, true).await;
    assert_eq!(fleet.result_of("cancelled").await.kind(), EventKind::Cancelled);
    eventually("the service is disposed of", async || steps("cancelled") == ["made", "used", "Dropped"]).await;
    fleet.send("serviced", "killed", "\"ignores\"").await;
    eventually("the next attempt runs", async || steps("killed").len() == 2).await;
    worker.kill().await;
    eventually("its service is disposed of", async || steps("killed") == ["made", "used", "Dropped"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_fails_without_its_service() {
    let (fleet, _) = memory(1, &[with_service()]).await;
    fleet.send("serviced", "unavailable", "1").await;
    let worker = fleet.worker();
    let end = fleet.result_of("unavailable").await;
    assert_eq!((end.kind(), end.payload.error().unwrap().message.as_str()), (EventKind::Failed, "no connection"));
    assert_eq!(steps("unavailable"), [""; 0], "the handler has not run");
    worker.stop().await;
}

#[tokio::test]
async fn closure_is_a_handler_with_the_schema_of_its_params() {
    let factor = 3;
    let registered = TypeRegistration::of_fn(move |n: u32, _cx: Context| async move { Ok(n * factor) });
    let run = async |params: Value| TestRun::new().handle("triple", &registered, RawJson::of(&params).unwrap()).await;
    assert_eq!(run(json!(2)).await.output(), 6);
    let refused = run(json!("two")).await;
    assert_eq!((refused.failure().kind.as_ref(), refused.failure().message.is_empty()), ("schema", false));
}
