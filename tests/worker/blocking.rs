//! Handlers that block threads.

use std::time::Duration;

use kafleet::handlers::{Context, Task, TaskResult, TypeRegistration};
use kafleet::model::event::Kind as EventKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::Kind;

/// Blocks until a file exists.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Blocks {
    until: std::path::PathBuf,
}

impl Task for Blocks {
    const TYPE: &'static str = "blocks";
    const CONCURRENCY: u32 = 16;
    const RETRIES: u32 = 0;
    const BLOCKING: bool = true;
    type Output = String;

    async fn run(self, cx: Context) -> TaskResult<String> {
        cx.log("blocks");
        while !self.until.exists() {
            // Blocks its thread until the test lets it go.
            std::thread::sleep(Duration::from_millis(2));
        }
        // A blocking handler may also await.
        tokio::time::sleep(Duration::from_millis(1)).await;
        if self.until.extension().is_some() {
            panic!("on purpose");
        }
        Ok(std::thread::current().name().unwrap_or_default().to_owned())
    }
}

fn blocks(change: impl FnOnce(&mut kafleet::config::TypePolicy)) -> Kind {
    let mut registered = TypeRegistration::of::<Blocks>();
    change(&mut registered.policy);
    Kind { name: Blocks::TYPE, registered }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_type_does_not_block_other_types() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("open");
    let bad = folder.path().join("open.bad");
    let (fleet, _) = memory(2, &[blocks(|_| ()), Kind::echo("echo")]).await;
    for n in 0..15 {
        fleet.send("blocks", &format!("b{n}"), &json!({"until": gate}).to_string()).await;
    }
    fleet.send("blocks", "panics", &json!({"until": bad}).to_string()).await;
    let worker = fleet.worker();
    eventually("all attempts block", async || worker.metric("kafleet_tasks_in_flight", "blocks") == 16.0).await;
    fleet.send_many("echo", "e", 500, "1").await;
    fleet.wait_for_results(500).await;
    assert!(fleet.results().iter().all(|event| event.id.as_str().starts_with('e')));
    std::fs::write(&gate, "").unwrap();
    std::fs::write(&bad, "").unwrap();
    assert_eq!(
        fleet.result_of("b0").await.payload.output().unwrap().text(),
        "\"kafleet-blocks\"",
        "runs on a thread of its type"
    );
    assert_eq!(fleet.result_of("panics").await.payload.error().unwrap().kind, "panic");
    fleet.wait_for_results(516).await;
    assert_eq!(worker.metric("kafleet_slots_stuck", "blocks"), 0.0);
    worker.stop().await;
    fleet.assert_clean("blocks").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_that_does_not_stop_keeps_its_slot() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("closed");
    let open = folder.path().join("open");
    std::fs::write(&open, "").unwrap();
    let (fleet, _) = memory(1, &[blocks(|policy| policy.concurrency = Some(1)), Kind::echo("echo")]).await;
    let worker = fleet.worker();
    let headers = [("ce_id", "stuck"), ("ce_timeout", "1500ms")];
    fleet.send_record("blocks", None, None, Some(json!({"until": gate}).to_string().as_bytes()), &headers).await;
    assert_eq!(
        fleet.result_of("stuck").await.payload.error().unwrap().kind,
        "timeout",
        "the timeout is published in time"
    );
    eventually("the slot counts as stuck", async || worker.metric("kafleet_slots_stuck", "blocks") == 1.0).await;
    fleet.send("blocks", "next", &json!({"until": open}).to_string()).await;
    fleet.send("echo", "e", "1").await;
    fleet.result_of("e").await;
    assert!(fleet.kinds_of("next").is_empty(), "the stuck attempt occupies its slot");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(fleet.result_of("next").await.kind(), EventKind::Succeeded);
    eventually("the slot is free", async || worker.metric("kafleet_slots_stuck", "blocks") == 0.0).await;
    worker.stop().await;
}
